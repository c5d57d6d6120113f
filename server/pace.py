"""How much may be unanswered, so that whoever is taken on is answered in time.

How long so much work takes depends on the machine and on who else uses it, so the answers tell. While
most items of a moment are answered late, no more is taken on than was lately answered in 0.3 s. From
then on the limit grows, until they come late again. The quickest answer of a moment would say nothing:
beside a product that everybody wants there is always one that nobody waits for.

Only answers of a request's own shard count. Others come at once, for they are known, or late, for they
wait for a node that is away; neither says that there is too much to do. And it takes most of the Redis
nodes: where one is slow, or has the one shard of a product that everybody wants, its own queue is
bounded (sharding/home.py), and whoever wants something else has nothing to do with that.
"""

from collections.abc import Callable, Hashable
from typing import Final

LATE_S: Final = 0.15
"""An answer of a shard that took longer came late. Where most take even longer than `WAIT_S`, on disks
that take so long to write, `ITEMS_MIN` are under way."""
WAIT_S: Final = 0.3
"""How long the work takes that is let in, once answers have come late."""
SMOOTHING: Final = 0.2
"""Weight of the last moment in what is answered a second: a process that got no processor for most of it
answers as much more in the next."""
MOMENT_S: Final = 0.1
GROWTH: Final = 1.1
"""Of the limit, each moment."""
IDLE_S: Final = 1.0
"""After so long with nothing to do, whatever was slow has passed."""
ITEMS_MIN: Final = 2_000
"""As many as the largest batch has: something is under way, whatever the answers wait for."""


class Pace:
    """Of one process: told of items when they are taken on, when their shards answer, when they end."""

    def __init__(self, now_s: Callable[[], float], *, items_max: int) -> None:
        self._now_s = now_s
        self._items_max = items_max
        self.limit: float = items_max
        """Items that may be under way at the same time."""
        self.under_way = 0
        self._idle_since_s = self._moment_s = now_s()
        self._per_s: float | None = None
        self._nodes: dict[Hashable, _Served] = {}

    def has_room(self, items: int) -> bool:
        """Whether so many more may be taken on, in time."""
        return self.under_way + items <= self.limit

    def has_place(self, items: int) -> bool:
        """Whether so many more may be taken on that bring to an end what was begun."""
        return self.under_way + items <= self._items_max

    def begin(self, items: int) -> None:
        """They are taken on."""
        now_s = self._now_s()
        if not self.under_way and now_s - self._idle_since_s >= IDLE_S:
            self.limit = self._items_max
            self._per_s = None
            self._begin_moment(now_s)
        self.under_way += items

    def served(self, items: int, since_s: float, node: Hashable) -> None:
        """A shard of their own on that node has answered those that were taken on at that time."""
        now_s = self._now_s()
        served = self._nodes.get(node)
        if served is None:
            served = self._nodes[node] = _Served()
        served.items += items
        if now_s - since_s > LATE_S:
            served.late += items
        if now_s - self._moment_s >= MOMENT_S:
            self._judge(now_s - self._moment_s)
            self._begin_moment(now_s)

    def end(self, items: int) -> None:
        """They are answered, by whomever."""
        self.under_way -= items
        if not self.under_way:
            self._idle_since_s = self._now_s()

    def _begin_moment(self, now_s: float) -> None:
        self._moment_s = now_s
        self._nodes.clear()

    def _judge(self, moment_s: float) -> None:
        now_per_s = sum(node.items for node in self._nodes.values()) / moment_s
        before_per_s = now_per_s if self._per_s is None else self._per_s
        self._per_s = before_per_s + (now_per_s - before_per_s) * SMOOTHING
        late = sum(node.late * 2 > node.items for node in self._nodes.values())
        if late * 2 > len(self._nodes):
            wanted = max(ITEMS_MIN, self._per_s * WAIT_S)
        else:
            wanted = self.limit * GROWTH
        self.limit = min(self._items_max, wanted)


class _Served:
    """What one node has answered in a moment."""

    __slots__ = ("items", "late")

    def __init__(self) -> None:
        self.items = self.late = 0
