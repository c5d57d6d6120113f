"""The ledger's side of a simulation: what its tables would say, partition by partition.

A model and not the real one: it applies events one by one, counts one effect an id, and hands out
what workers have to do. What it must agree with the kernel about is checked in scenario.py.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from sharding.events import Counts, Event, EventId, Kind
from sharding.outcomes import State
from sharding.partitions import NOTHING_APPLIED, Checkpoint
from sharding.placement import Layout
from sharding.plans import NEVER_FROZEN, Freeze, LoadPlan, split_evenly
from tests.simulation.observed import expect
from tests.simulation.shards import KnownShards

NO_UNITS = Counts(0, 0, 0, 0)
COMES_IN = {Kind.LOAD: 1, Kind.RESTOCK: 1, Kind.BUFFER: 1, Kind.REMOVE: -1, Kind.CLOSE: -1}
"""Kinds of events by which units come in from outside or leave for it."""
MOVES = {Kind.PUT: 1, Kind.TAKE: -1}
PASSED_MAX = 20
"""As in worker/layouts.py: so often a change may come too late before it is given up."""


class SecondEffect(NamedTuple):
    """Units that a request took a second time, to be brought back."""

    product_id: int
    epoch: int
    partition: int
    request_id: str
    quantity: int
    event: EventId


@dataclass(slots=True)
class Change:
    """One change of a shard count. `state` as in ledger/layouts.py."""

    product_id: int
    version: int
    shards: int
    state: str = "wanted"
    passed: int = 0


@dataclass(slots=True)
class Row:
    """One product."""

    product_id: int
    available: int
    """Units that are not sold, wherever they are."""
    sold: int = 0
    held: int = 0
    """Units held for orders; part of `available` no more."""
    buffer: int = 0
    """Units kept back; part of `available` no more."""
    released: int = 0
    """Units that left the buffer since the load."""
    max_per_user: int = 0
    status: State = State.CLOSED
    epoch: int = 0
    version: int = 0
    shards: int = 0
    former: set[int] = field(default_factory=set)
    changes: list[Change] = field(default_factory=list)
    plan: LoadPlan | None = None
    states: dict[int, dict[int, str]] = field(default_factory=dict)
    """For each epoch the state of each of its shards, as far as its events are applied."""
    freeze: Freeze = NEVER_FROZEN
    counts: dict[int, tuple[int, Counts]] = field(default_factory=dict)
    """For each shard its epoch and its counts, added up from its events alone."""

    @property
    def is_changing(self) -> bool:
        return any(change.state == "wanted" for change in self.changes)

    @property
    def next_version(self) -> int:
        """Above all that were used, and the one by which the last change was perhaps undone."""
        last = self.changes[-1].version + 1 if self.changes else 0
        return max(self.version, last) + 1


class Ledger:
    """All rows of one simulation."""

    def __init__(self, partitions: int) -> None:
        self.rows: dict[int, Row] = {}
        self.applied = [NOTHING_APPLIED] * partitions
        self.told: dict[int, int] = {}
        """The number that each partition's head was last told to be applied."""
        self.openings = [0] * partitions
        self.seconds: list[SecondEffect] = []
        """Second effects that are to be undone."""
        self.drifts: int = 0
        """Numbers of differences that were given out."""
        self.kept: int = 0
        """Units of second effects that the ledger had by closing the product."""
        self.known = KnownShards()
        """What partitions are restored from."""
        self._journal: set[tuple[int, str, str]] = set()

    # What operators want.

    def begin_load(self, product_id: int, shards: int, *, buffer_percent: int) -> LoadPlan:
        """A closed product is to be sold from so many shards."""
        row = self.rows[product_id]
        assert row.status is State.CLOSED
        row.former = (row.former | {row.shards}) - {0, shards}
        row.epoch, row.version, row.shards = row.epoch + 1, row.next_version, shards
        row.status = State.LOADING
        row.buffer, row.released = row.available * buffer_percent // 100, 0
        row.available -= row.buffer
        row.plan = LoadPlan(
            product_id,
            row.epoch,
            Layout(row.version, shards),
            split_evenly(row.available, shards),
            buffer=row.buffer,
            sold_before=row.sold,
            former_shards=tuple(sorted(row.former)),
            max_per_user=row.max_per_user,
            freeze=row.freeze,
        )
        return row.plan

    def release_buffer(self, product_id: int, units: int) -> None:
        """Units leave the buffer for the shards."""
        row = self.rows[product_id]
        row.buffer -= units
        row.released += units
        row.available += units

    def finish_close(self, product_id: int) -> None:
        """Every shard has given its units back."""
        row = self.rows[product_id]
        row.status = State.CLOSED
        row.available += row.buffer
        row.buffer = 0

    def begin_opening(self, partition: int, *, above: int) -> int:
        """As ledger/openings.py does."""
        self.openings[partition] = max(self.openings[partition], above) + 1
        return self.openings[partition]

    def is_closed(self, product_id: int, shards: int) -> bool:
        """Whether the ledger knows that so many shards have given their units back."""
        row = self.rows[product_id]
        states = row.states.get(row.epoch, {})
        return len(states) >= shards and set(states.values()) == {"closed"}

    def want_change(self, product_id: int, shards: int) -> Change | None:
        """Another shard count; None if it cannot be, or is there."""
        row = self.rows[product_id]
        active = [c for c in row.changes if c.state in ("active", "done")]
        present = max([(row.version, row.shards), *((c.version, c.shards) for c in active)])
        if row.status is not State.OPEN or row.is_changing or present[1] == shards:
            return None
        if row.max_per_user:
            return None
        change = Change(product_id, row.next_version, shards)
        row.changes.append(change)
        return change

    def open_changes(self) -> Iterator[Change]:
        """The latest of each product that there is something left to do for."""
        for row in self.rows.values():
            found = [change for change in row.changes if change.state in ("wanted", "active")]
            if found:
                yield found[-1]

    # What workers tell.

    def apply(self, partition: int, event: Event, checkpoint: Checkpoint) -> None:
        """Count an event that a replica has."""
        self.applied[partition] = checkpoint
        row = self.rows.get(event.product_id)
        if row is None:
            return
        self._follow(row, partition, event)
        for sale in event.sales:
            self._count_sale(row, partition, event, sale.request_id, sale.quantity)
        for hold in event.holds:
            self._count_once(row, "hold", hold.request_id)
            row.available -= hold.quantity
            row.held += hold.quantity
        for end in event.ends:
            self._count_once(row, "end", end.request_id)
            row.held -= end.quantity
            row.sold += end.quantity if end.is_sold else 0
            row.available += 0 if end.is_sold else end.quantity
        if event.kind in (Kind.RESTOCK, Kind.REMOVE):
            row.available += event.quantity * (1 if event.kind is Kind.RESTOCK else -1)
        if event.kind is Kind.RESHARD and event.layout > row.version:
            row.version, row.shards, row.former = event.layout, event.shards, set(event.former)
        if event.state:
            row.states.setdefault(event.epoch, {})[partition] = event.state

    def _follow(self, row: Row, partition: int, event: Event) -> None:
        """The shard's counts as its events alone make them must be those that each event carries."""
        if event.counts is None:
            return
        epoch, counts = row.counts.get(partition, (0, NO_UNITS))
        if epoch != event.epoch:
            counts = NO_UNITS
        counts = followed(counts, event)
        row.counts[partition] = event.epoch, counts
        expect(counts == event.counts, f"I1: partition {partition} adds up to {counts}: {event}")

    def _count_once(self, row: Row, kind: str, request_id: str) -> None:
        key = (row.product_id, kind, request_id)
        expect(key not in self._journal, f"I6: {kind} of {request_id} came twice to {row}")
        self._journal.add(key)

    def _count_sale(
        self, row: Row, partition: int, event: Event, request_id: str, quantity: int
    ) -> None:
        key = (row.product_id, "deduct", request_id)
        if key in self._journal:
            self.seconds.append(
                SecondEffect(row.product_id, event.epoch, partition, request_id, quantity, event.id)
            )
            return
        self._journal.add(key)
        row.available -= quantity
        row.sold += quantity


def followed(counts: Counts, event: Event) -> Counts:
    """A shard's counts after an event, by what the event says was done."""
    outside = COMES_IN.get(event.kind, 0) * event.quantity
    moved = MOVES.get(event.kind, 0) * event.quantity
    undone = event.quantity if event.kind is Kind.UNDO else 0
    sold = sum(sale.quantity for sale in event.sales)
    held = sum(hold.quantity for hold in event.holds)
    ended = sum(end.quantity for end in event.ends)
    ended_sold = sum(end.quantity for end in event.ends if end.is_sold)
    return Counts(
        available=counts.available + outside + moved + undone - sold - held + ended - ended_sold,
        held=counts.held + held - ended,
        sold=counts.sold + sold + ended_sold - undone,
        loaded=counts.loaded + outside,
    )
