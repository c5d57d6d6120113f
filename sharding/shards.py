"""One product's shards, script call by script call. No decisions here; those are in stock.py and
shortage.py."""

from asyncio import gather, timeout
from collections.abc import Awaitable, Sequence
from enum import StrEnum
from typing import NamedTuple

from msgpack import packb

from sharding import keys
from sharding.cluster import Cluster, LaneKind
from sharding.directory import PRESENT_S
from sharding.errors import StockUnavailableError
from sharding.events import Counts, EventId, Repair, Status
from sharding.outcomes import Reason, State
from sharding.packing import NO_REQUESTS
from sharding.placement import Layout, ledger_of
from sharding.plans import NEVER_FROZEN, Freeze, LoadPlan
from sharding.readings import Given, ShardReading, reading
from sharding.scripts import script

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
_RESOLVE = script("resolve")
_UNDO = script("undo")
_RECALL = script("recall")
_TELL = script("tell")
_BUFFER = script("buffer")
_MARK = script("mark")
_REPAIR = script("repair")
_FREEZE = script("freeze")


class Served(NamedTuple):
    """What a list of requests came to at one shard."""

    available: int
    statuses: bytes
    """One status a request, see events.Status."""
    firsts: Sequence[bytes]
    """For each replayed request in its order: `<left>:<shard>`, what its first copy was answered."""
    state: State
    may_echo: bool = False
    """An earlier try of this call was lost: it may run yet, and serve what is refused by then."""
    partition: int = 0
    at_ms: int = 0
    """When lines of orders were taken, by the node's clock; 0 where none were."""
    got: int = 0
    """Of a put: units of that donor that have arrived in its epoch."""


class Tombstone(StrEnum):
    """What a partition is to remember of a request that it does not know, as it keeps it."""

    NONE = ""
    """Nothing: only look."""
    NEVER = "n"
    BARRED = "b"
    """It takes nothing here; its home says what became of it."""


class Found(NamedTuple):
    """What became of a request at one partition; STALE: nothing that it knows of."""

    status: Status
    quantity: int
    partition: int


class Present(NamedTuple):
    """What shards say of which some do not answer."""

    readings: Sequence[ShardReading | None]
    """Of the layout's shards, in their order, None without an answer; then of retired ones."""
    unread: Sequence[int]
    """The partitions of those that do not answer."""


class Loaded(NamedTuple):
    """What became of a load: `word` as load.lua returns it, and the shard as it is if that is "done"."""

    word: str
    available: int = 0
    state: State = State.CLOSED


class Taken(NamedTuple):
    """What became of a take: `word` as take.lua returns it; the rest if that is "taken"."""

    word: str
    units: int = 0
    given: Given | None = None
    """With those."""


class Known(NamedTuple):
    """What a donor knows of the units that it gave another shard, after it was told of those that have
    arrived."""

    given: Given
    arrived: int

    @property
    def is_even(self) -> bool:
        """Whether just what was given has arrived."""
        return self.given.units == self.arrived

    @property
    def owed(self) -> int:
        """Units that have arrived and that the donor, which forgot to have given them, could not give
        up: it has sold them since."""
        return max(0, self.arrived - self.given.units)


class Brought(NamedTuple):
    """What became of units of the buffer: `word` as buffer.lua returns it, and how many came in."""

    word: str
    units: int = 0


class Marker(NamedTuple):
    """An entry of a shard's stream that tells its counts; `damaged` names those that no script has
    written."""

    partition: int
    event_id: EventId
    damaged: str
    counts: Counts


class MissingShardError(Exception):
    """A shard's key is not there: the product was never loaded, or the key was deleted."""


class Mode(StrEnum):
    """How a shard serves a list of requests; the words of include/serve.lua."""

    HOME = "home"
    FINAL = "final"
    """What is short is refused for good."""
    VISIT = "visit"
    """The requests' home is away and this shard stands in for it."""
    LOOK = "look"
    """Only what is remembered is answered."""
    BAR = "bar"
    """The same, and what is not remembered is never taken here by a visit."""


class _Keys(NamedTuple):
    """One shard's keys; `shard` is what most scripts declare, `memory` what those of requests add."""

    shard: tuple[str, ...]
    memory: tuple[str, ...]
    orders: tuple[str, ...]
    """Deadlines and users."""
    info: str


class Shards:
    """The shards of one product under one layout.

    `partitions` are those of the layout, in the order of its shards; `retired` those that only earlier
    layouts of the epoch had. Calls to a partition are possible for both.
    """

    def __init__(
        self, cluster: Cluster, product_id: int, layout: Layout, *, earlier: Sequence[int] = ()
    ) -> None:
        self.product_id = product_id
        self.layout = layout
        settings = cluster.settings
        self.partitions = layout.all_partitions(
            product_id=product_id, partitions=settings.partitions
        )
        self.retired = tuple(
            sorted(
                {
                    partition
                    for count in earlier
                    for partition in Layout(0, count).all_partitions(
                        product_id=product_id, partitions=settings.partitions
                    )
                }
                - set(self.partitions)
            )
        )
        self._cluster = cluster
        self._product = str(product_id)
        self._layout = str(layout.version)
        self._numbers = {p: str(shard) for shard, p in enumerate(self.partitions)}
        self._caps = (str(settings.record_cap), str(settings.tombstone_cap))
        self._backlog_max = str(settings.backlog_max)
        self._keys: dict[int, _Keys] = {}

    async def deduct(
        self, partition: int, requests: bytes, *, mode: Mode = Mode.HOME, hasty: bool = False
    ) -> Served:
        """Serve packed requests at one shard. MissingShardError, StockUnavailableError.

        `hasty`: do not wait for a node that is away.
        """
        keys_ = self._keys_of(partition)
        reply, may_echo = await self._cluster.run_noting(
            _DEDUCT,
            partition,
            keys_.shard + keys_.memory + keys_.orders,
            (
                self._product,
                self._layout,
                *self._caps,
                self._backlog_max,
                self._number(partition),
                str(partition),
                mode,
                requests,
            ),
            # In every durability a replica must know of a bar before the home acts.
            lane=LaneKind.MOVE if mode is Mode.BAR else LaneKind.WRITE,
            hasty=hasty,
        )
        return _served(reply, partition, may_echo=may_echo)

    async def put(self, given: Given, requests: bytes = NO_REQUESTS) -> Served:
        """Let those of the given units arrive that have not, and serve packed requests with them, in one
        step."""
        keys_ = self._keys_of(given.receiver)
        reply, may_echo = await self._cluster.run_noting(
            _PUT,
            given.receiver,
            keys_.shard + keys_.memory + keys_.orders,
            (
                self._product,
                self._layout,
                *self._caps,
                self._backlog_max,
                self._number(given.receiver),
                str(given.receiver),
                requests,
                str(given.donor),
                str(given.epoch),
                str(given.units),
            ),
            lane=LaneKind.MOVE,
        )
        self._cluster.metrics.moves.labels("put").inc()
        _word(reply)
        *served, got = reply
        assert isinstance(got, int)
        return _served(served, given.receiver, may_echo=may_echo)._replace(got=got)

    async def take(self, donor: int, *, receiver: int, before: int, quantity: int) -> Taken:
        """Take up to `quantity` units out of a shard for another, to which it gave so many `before`."""
        reply = await self._cluster.run(
            _TAKE,
            donor,
            self._keys_of(donor).shard,
            (
                self._product,
                str(donor),
                str(receiver),
                str(before),
                str(quantity),
                self._layout,
            ),
            lane=LaneKind.MOVE,
        )
        word = _word(reply)
        self._cluster.metrics.moves.labels(word).inc()
        if word != "taken":
            return Taken(word)
        units, given, epoch = reply[3:]
        assert isinstance(units, int)
        assert isinstance(given, int)
        assert isinstance(epoch, int)
        return Taken(word, units, Given(donor, receiver, epoch, given))

    async def resolve(
        self, partition: int, request_id: str, tombstone: Tombstone, *, epoch: int
    ) -> Found:
        """What became of a request here; where nothing did, leave a tombstone, if the epoch is that."""
        keys_ = self._keys_of(partition)
        reply = await self._cluster.run(
            _RESOLVE,
            partition,
            keys_.shard + keys_.memory,
            (self._product, str(epoch), self._layout, self._caps[1], request_id, tombstone),
            lane=LaneKind.WRITE,
        )
        _word(reply)
        status, quantity = reply[3], reply[4]
        assert isinstance(status, bytes)
        assert isinstance(quantity, int)
        return Found(Status(status.decode()), quantity, partition)

    async def undo(
        self, partition: int, *, epoch: int, request_id: str, quantity: int, undone: EventId
    ) -> str:
        """Bring the units of a second effect back. Returns the script's word."""
        keys_ = self._keys_of(partition)
        reply = await self._cluster.run(
            _UNDO,
            partition,
            (*keys_.shard, *keys_.memory, keys_.orders[1]),
            (self._product, str(epoch), request_id, str(quantity), str(undone)),
            lane=LaneKind.MOVE,
        )
        return _word(reply)

    async def bring_buffer(self, partition: int, *, epoch: int, released: int) -> Brought:
        """Let what the ledger has released of the buffer arrive at the product's first shard."""
        reply = await self._cluster.run(
            _BUFFER,
            partition,
            self._keys_of(partition).shard,
            (self._product, str(epoch), str(released)),
            lane=LaneKind.MOVE,
        )
        word = _word(reply)
        if word != "done":
            return Brought(word)
        units = reply[3]
        assert isinstance(units, int)
        return Brought(word, units)

    async def recall(self, partition: int, requests: bytes) -> int:
        """Have a shard remember packed requests that were sold elsewhere; returns how many were news.

        A node that is away is not waited for.
        """
        keys_ = self._keys_of(partition)
        reply = await self._cluster.run(
            _RECALL,
            partition,
            (keys_.shard[0], *keys_.memory),
            (self._product, self._number(partition), requests),
            lane=LaneKind.MOVE,
            hasty=True,
        )
        _word(reply)
        assert isinstance(reply[3], int)
        return reply[3]

    async def tell(
        self,
        partition: int,
        *,
        epoch: int,
        version: int,
        serves: bool,
        freeze: Freeze = NEVER_FROZEN,
    ) -> str:
        """Tell one shard of a layout, and whether the product is frozen. Returns the script's word."""
        reply = await self._cluster.run(
            _TELL,
            partition,
            (*self._keys_of(partition).shard, self._keys_of(partition).orders[1]),
            (
                self._product,
                str(epoch),
                str(version),
                str(int(serves)),
                str(freeze.version),
                str(int(freeze.frozen)),
            ),
            lane=LaneKind.MOVE,
        )
        return _word(reply)

    async def mark(self, partition: int, *, epoch: int) -> Marker | None:
        """Have one shard's counts told in its stream; None: it has another epoch."""
        reply = await self._cluster.run(
            _MARK,
            partition,
            self._keys_of(partition).shard,
            (self._product, str(epoch)),
            lane=LaneKind.WRITE,
        )
        if _word(reply) != "done":
            return None
        _, generation, number, damaged, *counts = reply
        assert isinstance(generation, int)
        assert isinstance(number, int)
        assert isinstance(damaged, bytes)
        units = [each for each in counts if isinstance(each, int)]
        event_id = EventId(generation, number)
        return Marker(partition, event_id, damaged.decode(), Counts(*units))

    async def repair(
        self, partition: int, repair: Repair, *, epoch: int, call: str, reason: str
    ) -> tuple[str, bool]:
        """Enter a compensation. Returns the script's word, and whether this very call entered it."""
        reply = await self._cluster.run(
            _REPAIR,
            partition,
            self._keys_of(partition).shard,
            (
                self._product,
                str(epoch),
                str(repair.drift_id),
                call,
                packb(repair.live),
                packb(repair.ledger),
                repair.actor,
                reason,
            ),
            lane=LaneKind.MOVE,
        )
        word = _word(reply)
        return word, word == "done" and reply[3] == 1

    async def freeze(self, partition: int, freeze: Freeze) -> None:
        """Tell one shard of the last decision to stop or to resume the sale, open or not."""
        reply = await self._cluster.run_unfenced(
            _FREEZE,
            partition,
            self._keys_of(partition).shard[1:2],
            (str(freeze.version), str(int(freeze.frozen))),
            lane=await self._cluster.lane_of(partition, LaneKind.MOVE),
        )
        if _word(reply) != "done":
            raise StockUnavailableError(Reason.SHARD_CORRUPT, f"p{partition:02d} stock")

    async def freeze_of(self, partition: int) -> Freeze:
        """The last such decision that one shard knows; none of a shard without a key."""
        key = self._keys_of(partition).shard[1]
        reply = await self._cluster.command(
            partition, "HMGET", key, "freeze", "frozen", lane=LaneKind.READ, hasty=True
        )
        assert isinstance(reply, list)
        version, frozen = reply
        return Freeze(int(version or 0), frozen=frozen == b"1")

    async def ack(self, given: Given) -> Known:
        """Tell the donor that so many units have arrived."""
        reply = await self._cluster.run(
            _ACK,
            given.donor,
            self._keys_of(given.donor).shard,
            (self._product, str(given.receiver), str(given.epoch), str(given.units)),
            lane=LaneKind.MOVE,
        )
        _word(reply)
        self._cluster.metrics.moves.labels("ack").inc()
        units, arrived, epoch = reply[3:]
        assert isinstance(units, int)
        assert isinstance(arrived, int)
        assert isinstance(epoch, int)
        return Known(given._replace(epoch=epoch, units=units), arrived)

    async def finish(self, donor: int, receiver: int) -> Known:
        """Let all that one shard gave another arrive, whoever began it, as far as that can be now.

        What was read of the donor came without a replica's word, so that is asked for first: a put must
        never outlive a take that a failover undoes. StockUnavailableError, also where one of them lacks
        its shard.
        """
        try:
            known = await self.ack(Given(donor, receiver, epoch=0, units=0))
            got = (await self.put(known.given)).got
            if got == known.given.units == known.arrived:
                return known
            return await self.ack(known.given._replace(units=got))
        except MissingShardError:
            where = f"p{donor:02d} or p{receiver:02d} lacks its shard"
            raise StockUnavailableError(Reason.SHARD_CORRUPT, where) from None

    def serving(self) -> "Shards":
        """The same without those that left."""
        return Shards(self._cluster, self.product_id, self.layout)

    async def mark_gathering(self, partition: int) -> None:
        """Let this shard go first where two need each other's units, for 50 ms."""
        reply = await self._cluster.run(
            _GATHER,
            partition,
            self._keys_of(partition).shard[:2],
            (str(GATHERING_MS),),
            lane=LaneKind.WRITE,
        )
        _word(reply)

    async def read(self, partition: int, *, hasty: bool = False) -> ShardReading:
        """Read one shard; `hasty`: one that is away or shut is not waited for."""
        keys_read = self._keys_of(partition).shard[:2]
        reply = await self._cluster.run(
            _SHARD, partition, keys_read, (), lane=LaneKind.READ, hasty=hasty
        )
        _word(reply)
        return reading(partition, reply)

    async def read_all(self) -> list[ShardReading]:
        """Read all shards, in their order, and behind them the retired ones. The reads are no snapshot.

        StockUnavailableError if any shard cannot be read.
        """
        results = await gather(
            *map(self.read, self.partitions),
            *map(self._read_retired, self.retired),
            return_exceptions=True,
        )
        for result in results:
            if isinstance(result, BaseException):
                raise result
        found = [result for result in results if isinstance(result, ShardReading)]
        epoch = found[0].epoch
        serving = len(self.partitions)
        return found[:serving] + [each for each in found[serving:] if each.epoch >= epoch]

    async def read_present(self) -> Present:
        """Read the shards that answer within PRESENT_S; those that are away or shut are not waited for.

        StockUnavailableError if none of the layout's does; MissingShardError.
        """
        said = await gather(
            *(_or_away(self.read(each, hasty=True)) for each in self.partitions),
            *(_or_away(self._read_retired(each, hasty=True)) for each in self.retired),
        )
        readings = [each if isinstance(each, ShardReading) else None for each in said]
        serving, retired = readings[: len(self.partitions)], readings[len(self.partitions) :]
        found = [each for each in serving if each]
        if not found:
            assert isinstance(said[0], StockUnavailableError)
            raise said[0]
        named = zip((*self.partitions, *self.retired), said, strict=True)
        return Present(
            [*serving, *(each for each in retired if each and each.epoch >= found[0].epoch)],
            [partition for partition, each in named if isinstance(each, StockUnavailableError)],
        )

    async def _read_retired(self, partition: int, *, hasty: bool = False) -> ShardReading | None:
        """None: a change that was taken back never came to this shard."""
        try:
            return await self.read(partition, hasty=hasty)
        except MissingShardError:
            return None

    async def reach(self, partition: int, *, has_shard: bool) -> None:
        """StockUnavailableError if the partition does not answer soon, or lacks a shard that it is to
        have: one that was lost is loaded once more, which a change of the layout must not overtake."""
        key = self._keys_of(partition).shard[1]
        found = await self._cluster.command(
            partition, "EXISTS", key, lane=LaneKind.READ, hasty=True
        )
        if has_shard and not found:
            raise StockUnavailableError(Reason.SHARD_CORRUPT, f"p{partition:02d} lacks its shard")

    async def was_visited(self, partition: int) -> bool:
        """Whether a shard ever stood in for the home of a request. StockUnavailableError, at once if its
        node is known to be away."""
        if self._cluster.is_down(partition):
            raise StockUnavailableError(Reason.NOT_EXECUTED, f"p{partition:02d} is away")
        key = self._keys_of(partition).shard[1]
        reply = await self._cluster.command(
            partition, "HGET", key, "visited", lane=LaneKind.READ, hasty=True
        )
        return reply is not None

    async def adjust(
        self,
        partition: int,
        kind: str,
        *,
        request_id: str,
        quantity: int,
        reason: str,
        actor: str = "",
        look: bool = False,
    ) -> Served:
        """`restock` or `remove` units at one shard; `look`: only say whether it was done there."""
        # Nothing is ever done under version 0: that asks for the answer to an earlier request only.
        layout = "0" if look else self._layout
        keys_ = self._keys_of(partition)
        reply, may_echo = await self._cluster.run_noting(
            _RESTOCK if kind == "restock" else _REMOVE,
            partition,
            keys_.shard + keys_.memory,
            (self._product, layout, self._caps[0], request_id, str(quantity), reason, actor),
            lane=LaneKind.WRITE,
        )
        _word(reply)
        _, _, _, available, status, state = reply
        assert isinstance(available, int)
        assert isinstance(status, bytes)
        return Served(available, status, (), _state(state), may_echo)

    async def load(self, partition: int, amount: int, plan: LoadPlan) -> Loaded:
        """Put units into one shard."""
        reply = await self._cluster.run(
            _LOAD,
            partition,
            (
                *self._keys_of(partition).shard,
                self._keys_of(partition).info,
                self._keys_of(partition).orders[1],
            ),
            (
                self._product,
                str(plan.epoch),
                self._layout,
                str(self.layout.shards),
                str(amount),
                str(plan.buffer),
                str(plan.sold_before),
                " ".join(map(str, plan.former_shards)),
                str(plan.max_per_user),
                str(plan.freeze.version),
                str(int(plan.freeze.frozen)),
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
            self._keys_of(partition).shard,
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
            self._keys_of(partition).shard,
            (self._product, str(epoch)),
            lane=LaneKind.MOVE,
        )
        word = _word(reply)
        return str(reply[3], "ascii") if word == "busy" and isinstance(reply[3], bytes) else word

    def _number(self, partition: int) -> str:
        """What callers are told; of a shard that no caller is served at, nothing."""
        return self._numbers.get(partition, "0")

    def _keys_of(self, partition: int) -> _Keys:
        found = self._keys.get(partition)
        if found is None:
            tag = self._cluster.tags[partition]
            ledger = ledger_of(self.product_id, self._cluster.ledgers)
            found = self._keys[partition] = _Keys(
                (keys.head(tag), keys.stock(tag, self.product_id), keys.events(tag, ledger)),
                keys.memory(tag),
                (keys.deadlines(tag), keys.users(tag, self.product_id)),
                keys.product_info(tag, self.product_id),
            )
        return found


def _word(reply: Sequence[object]) -> str:
    word = reply[0]
    assert isinstance(word, bytes)
    if word == b"missing":
        raise MissingShardError
    return word.decode()


def _state(value: object) -> State:
    assert isinstance(value, bytes)
    return State(value.decode())


def _served(reply: Sequence[object], partition: int, *, may_echo: bool) -> Served:
    _word(reply)
    _, _, _, available, statuses, firsts, state, at_ms = reply
    assert isinstance(at_ms, int)
    assert isinstance(available, int)
    assert isinstance(statuses, bytes)
    assert isinstance(firsts, list)
    return Served(available, statuses, firsts, _state(state), may_echo, partition, at_ms)


async def _or_away(
    reading: Awaitable[ShardReading | None],
) -> ShardReading | StockUnavailableError | None:
    try:
        async with timeout(PRESENT_S):
            return await reading
    except TimeoutError:
        return StockUnavailableError(Reason.NOT_EXECUTED, "a shard is silent")
    except StockUnavailableError as error:
        return error
