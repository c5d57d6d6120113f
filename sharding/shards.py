"""One product's shards, script call by script call. No decisions here; those are in stock.py and
shortage.py."""

from asyncio import gather
from collections.abc import Sequence
from typing import NamedTuple

from sharding import keys
from sharding.cluster import Cluster, LaneKind
from sharding.errors import StockUnavailableError
from sharding.outcomes import Reason, State
from sharding.packing import NO_REQUESTS
from sharding.placement import Layout, ledger_of
from sharding.plans import LoadPlan
from sharding.scripts import script

LEDGERS = 1
GATHERING_MS = 50

_DEDUCT = script("deduct")
_PUT = script("put")
_TAKE = script("take")
_ACK = script("ack")
_GATHER = script("gather")
_SHARD = script("shard")
_RESTOCK = script("restock")
_REMOVE = script("remove")
_LOAD = script("load")
_STATE = script("state")
_CLOSE = script("close")


class Served(NamedTuple):
    """What a list of requests came to at one shard."""

    available: int
    statuses: bytes
    """One status a request, see events.Status."""
    firsts: Sequence[bytes]
    """For each replayed request in its order: what was left after its first copy."""
    state: State


class OpenTransfer(NamedTuple):
    """Units that left one shard and have, as far as the donor knows, not arrived at the other."""

    donor: int
    receiver: int
    number: int
    units: int


class ShardReading(NamedTuple):
    """One shard as it was read. `partition` is where it is; `last_out` numbers of its last takes."""

    partition: int
    generation: int
    available: int
    held: int
    sold: int
    loaded: int
    moves: int
    layout: int
    epoch: int
    state: State
    frozen: bool
    last_out: dict[int, int]
    open_transfers: tuple[OpenTransfer, ...]

    def is_on_sale(self, layout: Layout) -> bool:
        """Whether units can be taken here by callers of that layout."""
        return self.state is State.OPEN and not self.frozen and self.layout == layout.version

    @property
    def version(self) -> tuple[int, int]:
        """Changes whenever units may have come back or gone elsewhere."""
        return self.generation, self.moves


class Loaded(NamedTuple):
    """What became of a load: `word` as load.lua returns it, and the shard as it is if that is "done"."""

    word: str
    available: int = 0
    state: State = State.CLOSED


class Taken(NamedTuple):
    """What became of a take: `word` as take.lua returns it, and the numbers behind it."""

    word: str
    numbers: tuple[int, ...]


class MissingShardError(Exception):
    """A shard's key is not there: the product was never loaded, or the key was deleted."""


class Shards:
    """The shards of one product under one layout."""

    def __init__(self, cluster: Cluster, product_id: int, layout: Layout) -> None:
        self.product_id = product_id
        self.layout = layout
        settings = cluster.settings
        self.partitions = layout.all_partitions(
            product_id=product_id, partitions=settings.partitions
        )
        self._cluster = cluster
        self._product = str(product_id)
        self._layout = str(layout.version)
        self._cap = str(settings.record_cap)
        ledger = ledger_of(product_id, LEDGERS)
        tagged = [(partition, cluster.tags[partition]) for partition in self.partitions]
        self._keys = {
            partition: (keys.head(tag), keys.stock(tag, product_id), keys.events(tag, ledger))
            for partition, tag in tagged
        }
        self._record_keys = {partition: keys.all_records(tag) for partition, tag in tagged}
        self._info_keys = {
            partition: keys.product_info(tag, product_id) for partition, tag in tagged
        }

    async def deduct(self, partition: int, requests: bytes) -> Served:
        """Serve packed requests at one shard. MissingShardError, StockUnavailableError."""
        reply = await self._cluster.run(
            _DEDUCT,
            partition,
            self._keys[partition] + self._record_keys[partition],
            (self._product, self._layout, self._cap, requests),
            lane=LaneKind.WRITE,
        )
        return _served(reply)

    async def put(self, transfer: OpenTransfer, requests: bytes = NO_REQUESTS) -> Served:
        """Let a take's units arrive and serve packed requests with them, in one step."""
        receiver = transfer.receiver
        reply = await self._cluster.run(
            _PUT,
            receiver,
            self._keys[receiver] + self._record_keys[receiver],
            (
                self._product,
                self._layout,
                self._cap,
                requests,
                str(transfer.donor),
                str(transfer.number),
                str(transfer.units),
            ),
            lane=LaneKind.MOVE,
        )
        self._cluster.metrics.moves.labels("put").inc()
        return _served(reply)

    async def take(self, donor: int, *, receiver: int, number: int, quantity: int) -> Taken:
        """Take up to `quantity` units out of a shard for another."""
        reply = await self._cluster.run(
            _TAKE,
            donor,
            self._keys[donor],
            (
                self._product,
                str(donor),
                str(receiver),
                str(number),
                str(quantity),
                self._layout,
            ),
            lane=LaneKind.MOVE,
        )
        word = _word(reply)
        self._cluster.metrics.moves.labels(word).inc()
        return Taken(word, tuple(n for n in reply[3:] if isinstance(n, int)))

    async def ack(self, transfer: OpenTransfer) -> None:
        """Close a take's note, after its put."""
        reply = await self._cluster.run(
            _ACK,
            transfer.donor,
            self._keys[transfer.donor],
            (self._product, str(transfer.receiver), str(transfer.number)),
            lane=LaneKind.MOVE,
        )
        _word(reply)
        self._cluster.metrics.moves.labels("ack").inc()

    async def finish(self, transfer: OpenTransfer) -> None:
        """Bring a transfer that anybody left open to its end.

        The note was read without a replica's word, so the take is confirmed first: a put must never
        outlive a take that a failover undoes.
        """
        taken = await self.take(
            transfer.donor,
            receiver=transfer.receiver,
            number=transfer.number,
            quantity=transfer.units,
        )
        if taken.word == "taken":
            await self.put(transfer)
            await self.ack(transfer)

    async def mark_gathering(self, partition: int) -> None:
        """Let this shard go first where two need each other's units, for 50 ms."""
        reply = await self._cluster.run(
            _GATHER,
            partition,
            self._keys[partition][:2],
            (str(GATHERING_MS),),
            lane=LaneKind.WRITE,
        )
        _word(reply)

    async def read(self, partition: int) -> ShardReading:
        """Read one shard."""
        reply = await self._cluster.run(
            _SHARD, partition, self._keys[partition][:2], (), lane=LaneKind.READ
        )
        _word(reply)
        return _reading(partition, reply)

    async def read_all(self) -> list[ShardReading]:
        """Read all shards, in their order. The reads are no snapshot.

        StockUnavailableError if any shard cannot be read.
        """
        results = await gather(*map(self.read, self.partitions), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return [result for result in results if isinstance(result, ShardReading)]

    async def adjust(
        self, partition: int, kind: str, *, request_id: str, quantity: int, reason: str
    ) -> Served:
        """`restock` or `remove` units at one shard."""
        reply = await self._cluster.run(
            _RESTOCK if kind == "restock" else _REMOVE,
            partition,
            self._keys[partition] + self._record_keys[partition],
            (self._product, self._layout, self._cap, request_id, str(quantity), reason),
            lane=LaneKind.WRITE,
        )
        _word(reply)
        _, _, _, available, status, state = reply
        assert isinstance(available, int)
        assert isinstance(status, bytes)
        return Served(available, status, (), _state(state))

    async def load(self, partition: int, amount: int, plan: LoadPlan) -> Loaded:
        """Put units into one shard."""
        reply = await self._cluster.run(
            _LOAD,
            partition,
            (*self._keys[partition], self._info_keys[partition]),
            (
                self._product,
                str(plan.epoch),
                self._layout,
                str(self.layout.shards),
                str(amount),
                str(plan.buffer),
                str(plan.sold_before),
                " ".join(map(str, plan.former_shards)),
            ),
            lane=LaneKind.MOVE,
        )
        word = _word(reply)
        if word != "done":
            return Loaded(word)
        available, state = reply[3], reply[4]
        assert isinstance(available, int)
        return Loaded(word, available, _state(state))

    async def change_state(
        self, partition: int, *, epoch: int, source: State, target: State
    ) -> str:
        """Lead one shard to its next state. Returns the state it is in, or "passed"."""
        reply = await self._cluster.run(
            _STATE,
            partition,
            self._keys[partition],
            (self._product, str(epoch), source, target),
            lane=LaneKind.MOVE,
        )
        word = _word(reply)
        return _state(reply[3]) if word == "done" else word

    async def close(self, partition: int, *, epoch: int) -> str:
        """Give one closing shard's units back. Returns "done", "passed" or why it is busy."""
        reply = await self._cluster.run(
            _CLOSE,
            partition,
            self._keys[partition],
            (self._product, str(epoch)),
            lane=LaneKind.MOVE,
        )
        word = _word(reply)
        return str(reply[3], "ascii") if word == "busy" and isinstance(reply[3], bytes) else word


def _word(reply: Sequence[object]) -> str:
    word = reply[0]
    assert isinstance(word, bytes)
    if word == b"missing":
        raise MissingShardError
    return word.decode()


def _state(value: object) -> State:
    assert isinstance(value, bytes)
    return State(value.decode())


def _served(reply: Sequence[object]) -> Served:
    _word(reply)
    _, _, _, available, statuses, firsts, state = reply
    assert isinstance(available, int)
    assert isinstance(statuses, bytes)
    assert isinstance(firsts, list)
    return Served(available, statuses, firsts, _state(state))


def _reading(partition: int, reply: Sequence[object]) -> ShardReading:
    try:
        return _parsed(partition, reply)
    except ValueError as error:
        raise StockUnavailableError(Reason.SHARD_CORRUPT, f"p{partition:02d} {error}") from error


def _parsed(partition: int, reply: Sequence[object]) -> ShardReading:
    _, generation, _, flat = reply
    assert isinstance(generation, int)
    assert isinstance(flat, list)
    fields: dict[bytes, bytes] = dict(zip(flat[::2], flat[1::2], strict=True))
    notes = {
        int(name.removeprefix(b"out:")): value.split(b":")
        for name, value in fields.items()
        if name.startswith(b"out:")
    }
    return ShardReading(
        partition,
        generation,
        available=int(fields[b"available"]),
        held=int(fields[b"held"]),
        sold=int(fields[b"sold"]),
        loaded=int(fields[b"loaded"]),
        moves=int(fields[b"moves"]),
        layout=int(fields[b"layout"]),
        epoch=int(fields[b"epoch"]),
        state=_state(fields[b"state"]),
        frozen=fields[b"frozen"] != b"0",
        last_out={receiver: int(number) for receiver, (number, _) in notes.items()},
        open_transfers=tuple(
            OpenTransfer(partition, receiver, int(number), int(units))
            for receiver, (number, units) in notes.items()
            if int(units)
        ),
    )
