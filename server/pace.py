"""How much may be unanswered, so that whoever is taken on is answered in time.

How long so much work takes depends on the machine and on who else uses it, so the answers tell. While
even the quickest ones of a moment come late, no more is taken on than was just answered in the time
that is not late. From then on the limit grows, until they come late again.
"""

from collections.abc import Callable
from math import inf
from typing import Final

LATE_S: Final = 0.2
"""An answer that took longer came late."""
MOMENT_S: Final = 0.1
GROWTH: Final = 1.1
"""Of the limit, each moment."""
ITEMS_MIN: Final = 2_000
"""As many as the largest batch has: something is under way, whatever the answers wait for."""


class Pace:
    """Of one process: told of items when they are taken on, and when they are answered."""

    def __init__(self, now_s: Callable[[], float], *, items_max: int) -> None:
        self._now_s = now_s
        self._items_max = items_max
        self._limit: float = items_max
        self._under_way = 0
        self._moment_s = self._quickest_s = 0.0
        self._answered = 0
        self._begin_moment(now_s())

    @property
    def under_way(self) -> int:
        """Items that are unanswered."""
        return self._under_way

    def has_room(self, items: int) -> bool:
        """Whether so many more may be taken on."""
        return self._under_way + items <= self._limit

    def begin(self, items: int) -> float:
        """They are taken on; returns the time, for `end`."""
        now_s = self._now_s()
        if not self._under_way:
            # Whatever was slow has passed.
            self._limit = self._items_max
            self._begin_moment(now_s)
        self._under_way += items
        return now_s

    def end(self, items: int, begun_s: float) -> None:
        """They are answered."""
        now_s = self._now_s()
        self._under_way -= items
        self._answered += items
        self._quickest_s = min(self._quickest_s, now_s - begun_s)
        if now_s - self._moment_s >= MOMENT_S:
            self._judge(now_s - self._moment_s)
            self._begin_moment(now_s)

    def _begin_moment(self, now_s: float) -> None:
        self._moment_s = now_s
        self._answered = 0
        self._quickest_s = inf

    def _judge(self, moment_s: float) -> None:
        if self._quickest_s > LATE_S:
            self._limit = max(ITEMS_MIN, self._answered / moment_s * LATE_S)
        else:
            self._limit = min(self._items_max, self._limit * GROWTH)
