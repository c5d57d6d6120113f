"""When which product is audited, and what counts as a round that has come to its end. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil

from ledger.batch import NO_COUNTS
from sharding.auditing import Marked
from sharding.events import Counts, EventId

ROUNDS_PER_PERIOD = 2
"""A product that comes on sale in the middle of a round has its turn within the promised time, too."""


@dataclass(slots=True)
class Round:
    """Every product once, spread evenly over the round. Times on a clock that only goes forward."""

    products: Sequence[int]
    since_s: float
    for_s: float
    begun: int = 0
    """Products whose turn has come."""
    ended: int = 0
    shards: int = 0
    faults: int = 0
    markers: dict[int, EventId] = field(default_factory=dict)
    """The last marker of each partition."""
    totals: Counts = NO_COUNTS

    def due(self, now_s: float) -> Sequence[int]:
        """Products whose turn it is; each is told once."""
        passed = min(1.0, (now_s - self.since_s) / self.for_s) if self.for_s else 1.0
        until = ceil(passed * len(self.products))
        found = self.products[self.begun : until]
        self.begun = max(self.begun, until)
        return found

    def note(self, marked: Marked | None) -> None:
        """Take what became of a product; None: nobody says which shards it has."""
        self.ended += 1
        if marked is None:
            self.faults += 1
            return
        self.faults += len(marked.faults)
        self.shards += len(marked.markers)
        for marker in marked.markers:
            last = self.markers.get(marker.partition, marker.event_id)
            self.markers[marker.partition] = max(last, marker.event_id)
            units = zip(self.totals, marker.counts, strict=True)
            self.totals = Counts(*(a + b for a, b in units))

    def is_over(self, now_s: float) -> bool:
        """Whether every product has been marked and it is time for the next round."""
        return self.ended == len(self.products) and now_s >= self.since_s + self.for_s

    def is_compared(self, applied: Mapping[int, EventId]) -> bool:
        """Whether the ledger has passed all markers, of every shard there is."""
        return not self.faults and all(
            applied.get(partition, EventId(0, 0)) >= marker
            for partition, marker in self.markers.items()
        )
