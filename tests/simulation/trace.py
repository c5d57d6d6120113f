"""What happened, in its order; it is only put into words when a seed fails."""

from collections.abc import Callable, Iterator
from hashlib import sha1
from itertools import islice

SHOWN_CHARS_MAX = 150


class Trace:
    """A list of steps. The same seed gives the same list."""

    def __init__(self, time_s: Callable[[], float]) -> None:
        self._time_s = time_s
        self._steps: list[tuple[object, ...]] = []

    def __len__(self) -> int:
        return len(self._steps)

    def note(self, *what: object) -> None:
        """Add a step; `what` must not change afterwards."""
        self._steps.append((self._time_s(), *what))

    def digest(self) -> str:
        """What the whole trace is recognised by."""
        return sha1(repr(self._steps).encode(), usedforsecurity=False).hexdigest()

    def lines(self, last: int) -> Iterator[str]:
        """The last steps, one line each."""
        first = max(0, len(self._steps) - last)
        for number, (at_s, *what) in enumerate(islice(self._steps, first, None), first):
            text = " ".join(_short(part) for part in what)
            yield f"{number:6d} {at_s:12.6f}s  {text}"


def _short(part: object) -> str:
    text = part if isinstance(part, str) else repr(part)
    return text if len(text) <= SHOWN_CHARS_MAX else text[:SHOWN_CHARS_MAX] + "…"
