"""Whether a node, or a partition that is shut, is asked at all. Knows no time but its clock's.

    closed ──a failure──▶ open ──its time is over──▶ half open ──an answer──▶ closed
                           ▲                             │
                           └─────────a failure───────────┘

Open: no call goes out. Half open: a few do, and what becomes of them decides; to all others it is open.
A refusal is an answer, and what is our own fault (a full queue, a caller who left) is neither.
"""

from collections.abc import Callable
from enum import IntEnum

OPEN_S = 0.2
"""Time from a failure to the next try."""
PROBES_MAX = 3
"""Calls that are let through at a time while it is half open."""
PROBE_S = 1.0
"""A probe that says nothing for so long leaves its place to another one."""

FREE = 0
"""The ticket of a call that takes no place."""


class BreakerState(IntEnum):
    """In the numbers of the metric."""

    CLOSED = 0
    HALF_OPEN = 1
    OPEN = 2


def _nothing() -> None:
    pass


class Breaker:
    """One node's, or one partition's. `on_open` is called each time that it opens."""

    __slots__ = (
        "_clock",
        "_on_open",
        "_open_until_s",
        "_probes_until_s",
        "_ticket",
        "is_closed",
        "why",
    )

    def __init__(
        self, clock: Callable[[], float], *, on_open: Callable[[], None] = _nothing
    ) -> None:
        self.is_closed = True
        self.why = ""
        """The failure that opened it last."""
        self._clock = clock
        self._on_open = on_open
        self._open_until_s = 0.0
        self._probes_until_s: dict[int, float] = {}
        self._ticket = FREE

    @property
    def state(self) -> BreakerState:
        if self.is_closed:
            return BreakerState.CLOSED
        is_open = self._clock() < self._open_until_s
        return BreakerState.OPEN if is_open else BreakerState.HALF_OPEN

    @property
    def has_room(self) -> bool:
        """Whether a call would be let through now."""
        if self.is_closed:
            return True
        now = self._clock()
        return now >= self._open_until_s and self._probes(now) < PROBES_MAX

    def admit(self) -> int | None:
        """Let a call through: a ticket, to be handed back when the call is over; None: it may not go."""
        if self.is_closed:
            return FREE
        if not self.has_room:
            return None
        self._ticket += 1
        self._probes_until_s[self._ticket] = self._clock() + PROBE_S
        return self._ticket

    def hand_back(self, ticket: int) -> None:
        """The call is over, whatever it came to; its place is free."""
        if ticket != FREE:
            self._probes_until_s.pop(ticket, None)

    def succeed(self) -> None:
        """There was an answer that does not speak against it."""
        self.is_closed = True
        self._probes_until_s.clear()

    def fail(self, why: str, *, open_s: float = OPEN_S) -> None:
        """Something spoke against it; for so long nobody tries."""
        was_open = self.state is BreakerState.OPEN
        self.is_closed = False
        self.why = why
        self._open_until_s = self._clock() + open_s
        self._probes_until_s.clear()
        if not was_open:
            self._on_open()

    def retry(self) -> None:
        """What it waited for is over: tries may go out."""
        self._open_until_s = self._clock()

    def _probes(self, now: float) -> int:
        hanging = [each for each, until in self._probes_until_s.items() if until <= now]
        for ticket in hanging:
            del self._probes_until_s[ticket]
        return len(self._probes_until_s)
