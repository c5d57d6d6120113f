"""The folder that holds one stack's data, logs and what it must remember."""

import fcntl
import json
import secrets
import shutil
import tempfile
from pathlib import Path
from typing import TextIO

from deploy.local.errors import StackError
from deploy.local.ports import Ports


class Folder:
    """One stack at a time uses it; a temporary one vanishes with `close`."""

    def __init__(self, path: Path | None) -> None:
        """Open `path`, or a new temporary folder; raise StackError when another stack uses it."""
        self._temporary = path is None
        self.path = Path(path or tempfile.mkdtemp(prefix="inventory-")).resolve()
        self.logs = self.path / "logs"
        self._memory = self.path / "stack.json"
        self._lock = self._take()
        self.ports_before, self.password = self._recall()

    def remember(self, ports: Ports) -> None:
        """Keep what the next run on this folder needs; only its owner may read the password."""
        self._memory.touch(mode=0o600)
        self._memory.write_text(json.dumps({"base_port": ports.base, "password": self.password}))

    def close(self) -> None:
        self._lock.close()
        if self._temporary:
            shutil.rmtree(self.path, ignore_errors=True)

    def _take(self) -> TextIO:
        try:
            self.logs.mkdir(parents=True, exist_ok=True)
            lock = (self.path / "lock").open("w")
        except OSError as error:
            raise StackError(f"{self.path} cannot be used: {error.strerror}") from error
        try:
            # The kernel gives the lock back when this process ends, whatever ends it.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            lock.close()
            raise StackError(
                f"{self.path} is used by another stack: stop that one or choose another --dir"
            ) from error
        return lock

    def _recall(self) -> tuple[Ports | None, str]:
        if not self._memory.exists():
            return None, secrets.token_hex(16)
        try:
            memory = json.loads(self._memory.read_text())
            return Ports(int(memory["base_port"])), str(memory["password"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            self._lock.close()
            raise StackError(
                f"{self._memory} is damaged: choose another --dir, or remove {self.path} with its data"
            ) from error
