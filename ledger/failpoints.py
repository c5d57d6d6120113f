"""Places where a test can make a process die, switched on by INVENTORY_FAILPOINTS.

`worker.after_read=kill,worker.before_commit=kill@3` kills the first and the third time
that the place is passed.
"""

import os
import signal
from collections.abc import Mapping

VARIABLE = "INVENTORY_FAILPOINTS"


class Failpoints:
    """Counts down the passes of each named place."""

    def __init__(self, passes_left: Mapping[str, int]) -> None:
        self._passes_left = dict(passes_left)

    @classmethod
    def from_environment(cls) -> "Failpoints":
        """Read the variable; ValueError if it is anything else than described above."""
        text = os.environ.get(VARIABLE, "")
        return cls(dict(_parsed(part) for part in text.split(",") if part))

    def hit(self, name: str) -> None:
        """Pass a place; ends the process there and then if it was asked for."""
        if not self._passes_left or name not in self._passes_left:
            return
        self._passes_left[name] -= 1
        if self._passes_left[name] == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def _parsed(part: str) -> tuple[str, int]:
    name, _, action = part.strip().partition("=")
    word, _, passes = action.partition("@")
    if word != "kill" or not (passes or "1").isdigit():
        raise ValueError(f"{VARIABLE}: {part!r} is not <place>=kill or <place>=kill@<passes>")
    return name, int(passes or "1")
