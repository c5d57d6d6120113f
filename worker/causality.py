"""A put is applied after its take, and an ack after its put, whichever streams they are in: so what the
ledger has of all shards is what there was at some moment, and adds up where they are restored from it.

What a node has lost beyond the ledger may be the one, where the stream of another node has the other:
the ledger comes to a later opening of the partition without having heard of it. Then the units between
the two shards tell. Those whose take is lost are where they were taken as well, and leave that once more
(kind `forgo` of the outbox); those whose put is lost are nowhere, and arrive once more (`regain`).
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import NamedTuple

from ledger.checkpoints import Checkpoints
from ledger.merge import Chunk, Delivery
from ledger.transfer_sums import Pair, Sums, TransferSums
from sharding.events import BEFORE_ALL, Event, EventId, Kind
from worker.share import Share

PATIENCE_S = 10.0
"""So long nothing may come of a partition that others' entries wait for; then they are applied as they
are, because all behind them wait, too."""


WATCHED_MAX = 10_000


class Step(NamedTuple):
    """A put or an ack, and what has to be applied before it."""

    pair: Pair
    is_put: bool
    awaited: int
    """The partition that the step before it is in."""
    after: EventId
    """An event of that, not before that step."""


class _Stalled(NamedTuple):
    """How far a partition that is waited for is, and since when."""

    position: EventId
    since_s: float


class Causality:
    """Orders what was read, and keeps back what comes too early."""

    def __init__(
        self,
        share: Share,
        checkpoints: Checkpoints,
        sums: TransferSums,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._share = share
        self._checkpoints = checkpoints
        self._sums = sums
        self._clock = clock
        self._stalled: dict[int, _Stalled] = {}
        self._watched: set[Pair] = set()

    async def ordered(self, chunks: Sequence[Chunk]) -> list[Chunk]:
        """The same entries so that none comes before what it depends on, less those that have to wait.

        A partition may have several chunks, each of which goes on where the one before it ended.
        """
        applied = {each: known.id for each, known in self._share.applied.items()}
        order = Order(chunks, applied, self._watched)
        waiting = order.advance()
        elsewhere = {each.awaited for each in waiting} - applied.keys()
        order.place(
            {each: known.id for each, known in (await self._checkpoints.of(elsewhere)).items()}
        )
        self._give_up_on({each.awaited for each in waiting}, order)
        while waiting := order.advance():
            pairs = {each.pair for each in waiting if order.is_to_be_judged(each)}
            if not pairs:
                break
            order.learn(await self._sums.of(pairs))
            self._watch(pairs)
        return order.pieces

    def _watch(self, pairs: Collection[Pair]) -> None:
        """Judge whatever units these give from now on: those of a later transfer may have stood for what
        was lost, and lack then themselves."""
        if len(self._watched) >= WATCHED_MAX:
            self._watched.clear()
        self._watched.update(pairs)

    def _give_up_on(self, awaited: Collection[int], order: "Order") -> None:
        """Let pass what waits for partitions of which nothing has come for long."""
        now_s, before = self._clock(), self._stalled
        self._stalled = {}
        for partition in awaited:
            position = order.positions.get(partition, BEFORE_ALL)
            known = before.get(partition)
            if known is None or known.position != position:
                known = _Stalled(position, now_s)
            self._stalled[partition] = known
            if now_s - known.since_s >= PATIENCE_S:
                order.given_up.add(partition)


class Order:
    """One attempt to bring chunks into an order. Pure."""

    def __init__(
        self,
        chunks: Sequence[Chunk],
        applied: Mapping[int, EventId],
        watched: AbstractSet[Pair] = frozenset(),
    ) -> None:
        self._chunks = chunks
        self._watched = watched
        self._done = [0] * len(chunks)
        """How many entries of each are in the order."""
        self.positions = {**applied, **{chunk.partition: chunk.start for chunk in chunks}}
        """The last entry of each partition that is applied or in the order."""
        self.given_up: set[int] = set()
        """Partitions that nothing waits for."""
        self._sums: dict[Pair, Sums] = {}
        self._balance: dict[Pair, int] = {}
        """Units that entries in the order gave, less those that arrived by them."""
        self.pieces: list[Chunk] = []

    def place(self, positions: Mapping[int, EventId]) -> None:
        """Take how far other partitions are."""
        self.positions |= positions

    def learn(self, sums: Mapping[Pair, Sums]) -> None:
        """Take what the ledger has had before all of this."""
        self._sums |= sums

    def is_in_doubt(self, step: Step) -> bool:
        """Whether the step before it may be lost: another opening of its partition is reached."""
        return self._position(step).generation > step.after.generation > 0

    def is_to_be_judged(self, step: Step) -> bool:
        """Whether the units that were moved between the two shards are to be compared."""
        is_there = self._position(step) >= step.after
        return is_there and (self.is_in_doubt(step) or step.pair in self._watched)

    def advance(self) -> list[Step]:
        """As far as it goes; returns the steps that wait."""
        while True:
            before = len(self.pieces)
            found = [self._advance_one(number) for number in range(len(self._chunks))]
            waiting = [step for step in found if step is not None]
            if not waiting or len(self.pieces) == before:
                return waiting

    def _advance_one(self, number: int) -> Step | None:
        chunk, first = self._chunks[number], self._done[number]
        deliveries: list[Delivery] = []
        waits = None
        for delivery in chunk.deliveries[first:]:
            step = _step_of(chunk.partition, delivery)
            if step is not None and self._waits(step):
                waits = step
                break
            deliveries.append(self._entered(chunk.partition, step, delivery))
            self.positions[chunk.partition] = delivery.entry.id
        if deliveries:
            start = chunk.deliveries[first - 1].entry.id if first else chunk.start
            self.pieces.append(Chunk(chunk.partition, start, deliveries))
            self._done[number] += len(deliveries)
        return waits

    def _waits(self, step: Step) -> bool:
        if step.awaited in self.given_up or step.after == BEFORE_ALL:
            return False
        if self._position(step) < step.after:
            return True
        return self.is_to_be_judged(step) and step.pair not in self._sums

    def _position(self, step: Step) -> EventId:
        return self.positions.get(step.awaited, BEFORE_ALL)

    def _entered(self, partition: int, step: Step | None, delivery: Delivery) -> Delivery:
        event = delivery.event
        if step is None:
            if event is not None and event.kind in (Kind.TAKE, Kind.PUT):
                self._note(partition, event)
            return delivery
        assert event is not None
        if step.is_put:
            twice = self._excess(step, event.quantity)
            self._add(step.pair, twice - event.quantity)
            return replace(delivery, came_twice=twice) if twice else delivery
        short = -self._excess(step, 0)
        self._add(step.pair, -short)
        return replace(delivery, came_short=short) if short else delivery

    def _note(self, partition: int, event: Event) -> None:
        if event.kind is Kind.TAKE:
            self._add(Pair(event.product_id, partition, event.peer, event.epoch), event.quantity)
        else:
            self._add(Pair(event.product_id, event.peer, partition, event.epoch), -event.quantity)

    def _excess(self, step: Step, units: int) -> int:
        """Of units that arrive, those that were not given by all that is known; below zero: units that
        were given and have not arrived. 0 where nothing is in doubt. Where an event of one of
        the shards is set aside, that may be it."""
        sums = self._sums.get(step.pair)
        if sums is None or sums.is_doubtful or not self.is_to_be_judged(step):
            return 0
        given = sums.given - sums.arrived + self._balance.get(step.pair, 0)
        return min(units, max(0, units - given)) if step.is_put else min(0, -given)

    def _add(self, pair: Pair, units: int) -> None:
        self._balance[pair] = self._balance.get(pair, 0) + units


def _step_of(partition: int, delivery: Delivery) -> Step | None:
    """Of an entry that depends on one of another partition. What makes up for a lost one does not."""
    event = delivery.event
    if event is None or event.kind not in (Kind.PUT, Kind.ACK) or event.regained:
        return None
    is_put = event.kind is Kind.PUT
    donor, receiver = (event.peer, partition) if is_put else (partition, event.peer)
    pair = Pair(event.product_id, donor, receiver, event.epoch)
    return Step(pair, is_put, event.peer, event.after)
