"""One program of the stack, from its start to its end."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from deploy.local.errors import StackError
from deploy.local.waiting import POLL_S, Condition, until

LEASH = Path(__file__).with_name("leash.py")
READY_WITHIN_S = 30.0


class Process:
    """A child process with a log, in a process group of its own, that dies with this process.

    The group keeps a terminal's Ctrl-C away from the children, so that they stop in order.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        log: Path,
        directory: Path,
        environment: Mapping[str, str] | None = None,
        ready: Condition | None = None,
        sigterm_every_s: float | None = None,
    ) -> None:
        """`sigterm_every_s` is for a program that may refuse to stop, and says so only in its log."""
        self.name = name
        self.command = tuple(command)
        self.log = log
        self._directory = directory
        self._environment = environment
        self._ready = ready
        self._sigterm_every_s = sigterm_every_s
        self._popen: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        return self._child().pid

    @property
    def alive(self) -> bool:
        return self._popen is not None and self._popen.poll() is None

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative when a signal ended it."""
        return self._child().poll()

    async def start(self, *, ready_within_s: float = READY_WITHIN_S) -> None:
        """Start it and wait until it is ready; on failure nothing of it is left running."""
        assert not self.alive, f"{self.name} runs already"
        if self._popen is not None:
            self.kill()  # what the last one started may outlive it for a moment, and hold its ports
        self._popen = self._spawn()
        if self._ready is None:
            return
        try:
            await until(
                self._ready_or_ended, what=f"{self.name} is not ready", within_s=ready_within_s
            )
        except StackError as error:
            self.kill()
            raise StackError(f"{error}; {self.last_words()}") from error
        if not self.alive:
            raise StackError(f"{self.name} ended at start; {self.last_words()}")

    async def stop(self, *, grace_s: float) -> None:
        """SIGTERM, and SIGKILL for whatever is left of its group after the grace."""
        if self._popen is None:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self._ask_to_end()
        self.kill()

    async def restart(self, *, grace_s: float = 10.0) -> None:
        """Stop it if it still runs, start it again and wait until it is ready."""
        await self.stop(grace_s=grace_s)
        await self.start()

    async def wait(self) -> int:
        """Wait for its end and return its exit code."""
        child = self._child()
        while (exit_code := child.poll()) is None:  # noqa: ASYNC110  # another process sets no event
            await asyncio.sleep(POLL_S)
        return exit_code

    def kill(self) -> None:
        """SIGKILL to it and everything that it started, and wait for its end: no last words."""
        child = self._child()
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()

    def terminate(self) -> None:
        """SIGTERM to it alone; a paused process is continued, or it would never notice."""
        self.signal(signal.SIGTERM)
        self.resume()

    def pause(self) -> None:
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.signal(signal.SIGCONT)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process itself; to one that has ended: nothing."""
        self._child().send_signal(number)

    def last_words(self) -> str:
        """The last line of its log and where the rest is."""
        lines = self.log.read_text(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "(empty)")
        return f"last line of {self.log}: {last}"

    async def _ask_to_end(self) -> None:
        while self.alive:
            self.terminate()
            with suppress(TimeoutError):
                await asyncio.wait_for(self.wait(), timeout=self._sigterm_every_s)

    async def _ready_or_ended(self) -> bool:
        assert self._ready is not None
        return not self.alive or await self._ready()

    def _spawn(self) -> subprocess.Popen[bytes]:
        leash = [sys.executable, "-I", "-S", str(LEASH), str(os.getpid())]
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [*leash, *self.command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._directory,
                env=self._environment,
                start_new_session=True,
            )

    def _child(self) -> subprocess.Popen[bytes]:
        assert self._popen is not None, f"{self.name} was never started"
        return self._popen
