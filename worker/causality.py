"""A put is applied after its take, whichever streams they are in: so what the ledger has of all shards
is what there was at some moment, and adds up where all of them are restored from it.

What a node has lost beyond the ledger may be a take whose put is in the stream of another one. Once the
donor's stream is applied to where it was after the put, such a take is known to be lost: its units are
where they were taken as well, and are given up there (kind `forgo` of the outbox). Units are compared
and not numbers: those of a shard that was restored begin anew, above what it may have used.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import NamedTuple, Protocol

from ledger.checkpoints import Checkpoints
from ledger.merge import Chunk, Delivery
from ledger.transfer_sums import Pair, Sums, TransferSums
from sharding.errors import StockUnavailableError
from sharding.events import EventId, Kind
from sharding.partitions import PartitionHead
from worker.share import Share

PATIENCE_S = 10.0
"""So long a put waits for a donor that is away; then it is applied as it is, because its partition's
other events wait behind it."""


class Heads(Protocol):
    """Says how far the streams of partitions are. StockUnavailableError."""

    async def head(self, partition: int) -> PartitionHead: ...


class Transfer(NamedTuple):
    """What a take begins and a put ends."""

    pair: Pair
    number: int


class _Waiting(NamedTuple):
    """Since when a put waits for its take, and the donor's last event after that, once that was said."""

    since_s: float
    horizon: EventId | None = None


class Causality:
    """Orders what was read, and keeps back what comes too early."""

    def __init__(
        self,
        share: Share,
        heads: Heads,
        checkpoints: Checkpoints,
        sums: TransferSums,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._share = share
        self._heads = heads
        self._checkpoints = checkpoints
        self._sums = sums
        self._clock = clock
        self._waiting: dict[Transfer, _Waiting] = {}

    async def ordered(self, chunks: Sequence[Chunk]) -> list[Chunk]:
        """The same entries so that none comes before what it depends on, less those that have to wait.

        A partition may have several chunks, each of which goes on where the one before it ended.
        """
        order, seen = Order(chunks), set[Transfer]()
        blocked = order.advance()
        if blocked:
            self._waiting = {each: self._waiting[each] for each in blocked & self._waiting.keys()}
        while blocked - seen:
            seen |= blocked
            await self._look_at(blocked, order)
            blocked = order.advance()
        return order.pieces

    async def _look_at(self, blocked: AbstractSet[Transfer], order: "Order") -> None:
        # In this order: a take that comes between the two is not taken for lost.
        checkpoints = await self._checkpoints.of({each.pair.donor for each in blocked})
        order.learn(await self._sums.of({each.pair for each in blocked}))
        for put in blocked:
            if order.excess(put):
                await self._wait(put, checkpoints[put.pair.donor].id, order)

    async def _wait(self, put: Transfer, applied: EventId, order: "Order") -> None:
        waiting = self._waiting.get(put) or _Waiting(self._clock())
        if waiting.horizon is None:
            waiting = waiting._replace(horizon=await self._horizon(put.pair.donor))
        elif applied >= waiting.horizon:
            order.let_go(put, is_lost=True)
        if self._clock() - waiting.since_s >= PATIENCE_S:
            order.let_go(put, is_lost=False)
        self._waiting[put] = waiting

    async def _horizon(self, donor: int) -> EventId | None:
        try:
            head = await self._heads.head(donor)
        except StockUnavailableError:
            return None
        return head.stream(self._share.place.index).last if head.is_open else None


class Order:
    """One attempt to bring chunks into an order. Pure."""

    def __init__(self, chunks: Sequence[Chunk]) -> None:
        self._chunks = chunks
        self._done = [0] * len(chunks)
        """How many entries of each are in the order."""
        self._taken: set[Transfer] = set()
        """By entries in the order."""
        self._balance: dict[Pair, int] = {}
        """Units that entries in the order gave, less those that arrived by them."""
        self._units: dict[Transfer, int] = {}
        """Of the puts that wait."""
        self._known: dict[Pair, Sums] = {}
        self._let_go: dict[Transfer, bool] = {}
        self.pieces: list[Chunk] = []

    def advance(self) -> set[Transfer]:
        """As far as it goes; returns the puts that wait."""
        while True:
            before = len(self.pieces)
            found = {self._advance_one(number) for number in range(len(self._chunks))}
            blocked = {put for put in found if put is not None}
            if not blocked or len(self.pieces) == before:
                return blocked

    def learn(self, sums: Mapping[Pair, Sums]) -> None:
        """Take what the ledger has had before all of this."""
        self._known |= sums

    def excess(self, put: Transfer) -> int:
        """Units by which more would have arrived than were given, at most those of the put; of one of
        which nothing is known all of them."""
        units, known = self._units[put], self._known.get(put.pair)
        if known is None:
            return units
        given = known.given - known.arrived + self._balance.get(put.pair, 0)
        return min(units, max(0, units - given))

    def let_go(self, put: Transfer, *, is_lost: bool) -> None:
        """Have a put wait no longer. `is_lost`: its take will never be applied; that is believed of none
        whose donor has an event set aside."""
        is_doubtful = put.pair not in self._known or self._known[put.pair].is_doubtful
        self._let_go[put] = self._let_go.get(put, False) or (is_lost and not is_doubtful)

    def _advance_one(self, number: int) -> Transfer | None:
        chunk, first = self._chunks[number], self._done[number]
        deliveries: list[Delivery] = []
        waits = None
        for delivery in chunk.deliveries[first:]:
            waits = self._early(chunk.partition, delivery)
            if waits is not None:
                break
            deliveries.append(self._entered(chunk.partition, delivery))
        if deliveries:
            start = chunk.deliveries[first - 1].entry.id if first else chunk.start
            self.pieces.append(Chunk(chunk.partition, start, deliveries))
            self._done[number] += len(deliveries)
        return waits

    def _early(self, partition: int, delivery: Delivery) -> Transfer | None:
        put = _transfer(partition, delivery, Kind.PUT)
        if put is None or put in self._taken or put in self._let_go:
            return None
        assert delivery.event
        self._units[put] = delivery.event.quantity
        return put if self.excess(put) else None

    def _entered(self, partition: int, delivery: Delivery) -> Delivery:
        event = delivery.event
        if event is None:
            return delivery
        if take := _transfer(partition, delivery, Kind.TAKE):
            self._taken.add(take)
            self._add(take.pair, event.quantity)
        elif put := _transfer(partition, delivery, Kind.PUT):
            came_twice = self.excess(put) if self._let_go.get(put) else 0
            self._add(put.pair, came_twice - event.quantity)
            return replace(delivery, came_twice=came_twice) if came_twice else delivery
        return delivery

    def _add(self, pair: Pair, units: int) -> None:
        self._balance[pair] = self._balance.get(pair, 0) + units


def _transfer(partition: int, delivery: Delivery, kind: Kind) -> Transfer | None:
    """What an entry begins or ends, where it is of that kind."""
    event = delivery.event
    if event is None or event.kind is not kind:
        return None
    donor, receiver = (partition, event.peer) if kind is Kind.TAKE else (event.peer, partition)
    return Transfer(Pair(event.product_id, donor, receiver, event.epoch), event.transfer)
