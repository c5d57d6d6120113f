"""Copies what the ledger knows of a partition into the partition, script call by script call.

No script obeys a partition between `shut` and `reopen`. One attempt may write to it at a time, the one
that shut it last; every call of another ends as RestorationPassedError.
"""

import logging
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import NamedTuple, TypeVar

from msgpack import packb

from sharding import keys
from sharding.cluster import Cluster, LaneKind
from sharding.errors import RestorationPassedError, StockUnavailableError
from sharding.events import EVENT_VERSION, EventId, Kind, anchor
from sharding.lane import Node
from sharding.memories import Memory, What
from sharding.outcomes import Reason
from sharding.partitions import Checkpoint, Entry
from sharding.plans import Freeze
from sharding.scripts import Script, script

T = TypeVar("T")
_LOG = logging.getLogger(__name__)

MEMORIES_AT_ONCE = 1_000
USERS_AT_ONCE = 2_000
BARS_AT_ONCE = 1_000
SHARDS_AT_ONCE = 64
NEWEST = 256

_SHUT = script("shut")
_REFILL = script("refill")
_USERS = script("users")
_RELIVE = script("relive")
_REOPEN = script("reopen")


class Transfers(NamedTuple):
    """Units given to one peer in the shard's epoch, how many of them are known to have arrived, and
    units that have arrived from it."""

    given: int = 0
    arrived: int = 0
    got: int = 0


@dataclass(frozen=True, slots=True)
class ShardState:
    """One shard, and the listing beside it, as the ledger knows them; counts in units."""

    product_id: int
    epoch: int
    layout_version: int
    state: str
    serves: bool
    available: int
    held: int
    sold: int
    loaded: int
    released: int
    max_per_user: int
    repaired: int
    """The last difference that was compensated; 0: none was."""
    freeze: Freeze
    transfers: Mapping[int, Transfers]
    """By the other shard's partition."""
    listing: Mapping[str, int | str]
    """Fields of include/info.lua."""


class Shut(NamedTuple):
    """A partition that only one attempt writes to."""

    attempt: int
    owner: str
    """The node that has it."""
    number: int
    """The last event that anybody knows of."""
    known: int
    """The last one that the node knew of."""


class Found(NamedTuple):
    """Units that a shard counted before it was given the ledger's."""

    available: int
    held: int
    sold: int


class Restoring:
    """Every method but `bars` and `told` raises StockUnavailableError; all that write,
    RestorationPassedError."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._alone: set[int] = set()
        """Partitions whose latest attempt waits for no replica."""

    async def newest(self, partition: int, *, ledger: int) -> list[Entry]:
        """The last entries of a stream, the newest first; none where there is no stream."""
        key = keys.events(self._tag(partition), ledger)
        reply = await self._cluster.command(
            partition, "XREVRANGE", key, "+", "-", "COUNT", str(NEWEST), lane=LaneKind.READ
        )
        assert isinstance(reply, list)
        return [Entry(EventId.parse(entry_id), tuple(fields)) for entry_id, fields in reply]

    async def bars(self, partition: int) -> AsyncIterator[list[Memory]]:
        """Orders that are barred in every partition, of which the ledger knows nothing: as one partition
        on each other node has them. A node that is away is passed over."""
        for other in self._elsewhere(partition):
            try:
                async for piece in self._bars_at(other):
                    yield piece
            except StockUnavailableError as error:
                _LOG.warning(
                    "p%02d does not tell p%02d of barred orders: %s", other, partition, error
                )

    def _elsewhere(self, partition: int) -> list[int]:
        found: dict[Node | None, int] = {}
        for other in range(len(self._cluster.tags)):
            found.setdefault(self._cluster.node_of(other), other)
        for node in (None, self._cluster.node_of(partition)):
            found.pop(node, None)
        return list(found.values())

    async def _bars_at(self, partition: int) -> AsyncIterator[list[Memory]]:
        tag = self._tag(partition)
        for generation in range(keys.RECORD_GENERATIONS):
            key, cursor = keys.tombstones(tag, generation), b""
            while cursor != b"0":
                reply = await self._cluster.command(
                    partition,
                    *("HSCAN", key, cursor.decode() or "0", "MATCH", "order *"),
                    *("COUNT", str(BARS_AT_ONCE)),
                    lane=LaneKind.READ,
                    hasty=True,
                )
                assert isinstance(reply, list)
                cursor, flat = reply
                yield [
                    Memory(What.TOMBSTONE, field.decode(), value.decode())
                    for field, value in zip(flat[::2], flat[1::2], strict=True)
                ]

    async def shut(
        self,
        partition: int,
        *,
        attempt: int,
        found: str,
        number: int,
        forgets: bool,
        degraded: bool = False,
    ) -> Shut:
        """Have nobody else obeyed. `forgets`: what the partition has is not the ledger's past.

        `found` is the NotOpenableError's: what was opened since is left alone. `number` is that of the
        last event that the caller knows of. `degraded`: the node has no replica, and nobody waits for
        one, neither now nor once the partition is open.
        """
        (self._alone.add if degraded else self._alone.discard)(partition)
        tag = self._tag(partition)
        count = str(self._cluster.settings.partitions)
        args = (count, str(attempt), str(number), _flag(forgets), _flag(degraded), found)
        declared = keys.partition(tag, self._cluster.ledgers)
        _, owner, at, known = await self._run(_SHUT, partition, declared, args)
        assert isinstance(owner, bytes)
        assert isinstance(at, int)
        assert isinstance(known, int)
        return Shut(attempt, owner.decode(), at, known)

    async def refill(self, partition: int, attempt: int, shard: ShardState) -> Found | None:
        """Give a shard the ledger's counts; returns its own before, None if they made no sense."""
        stock = packb(list(chain.from_iterable(_stock_fields(shard).items())))
        info = packb(list(chain.from_iterable(_listing_fields(shard).items())))
        freeze = (str(shard.freeze.version), _flag(shard.freeze.frozen))
        _, *found = await self._run(
            _REFILL,
            partition,
            self._shard_keys(partition, shard.product_id),
            (str(attempt), *freeze, stock, info),
        )
        return _found(found)

    async def clear(self, partition: int, attempt: int, product_id: int) -> Found | None:
        """Leave nothing of a shard that the ledger does not know; returns what it counted, None if
        there was none or it made no sense."""
        nothing = packb([])
        _, *found = await self._run(
            _REFILL,
            partition,
            self._shard_keys(partition, product_id),
            (str(attempt), "0", "0", nothing, nothing),
        )
        return _found(found)

    async def count_users(
        self, partition: int, attempt: int, product_id: int, units: Mapping[int, int]
    ) -> None:
        """Say how many units users have of a product with a limit."""
        tag = self._tag(partition)
        declared = [keys.head(tag), keys.users(tag, product_id)]
        for piece in _pieces(units.items(), USERS_AT_ONCE):
            users = packb([str(each) for each in chain.from_iterable(piece)])
            await self._run(_USERS, partition, declared, (str(attempt), users))

    async def remember(
        self, partition: int, attempt: int, memories: Iterable[Memory], *, numbers: Iterator[int]
    ) -> None:
        """Enter what happened to requests and orders, in its order; `numbers` go on from call to call of
        an attempt, which does one after the other."""
        tag = self._tag(partition)
        declared = [keys.head(tag), *keys.memory(tag), keys.deadlines(tag)]
        for piece in _pieces(memories, MEMORIES_AT_ONCE):
            flat = packb(list(chain.from_iterable(piece)))
            args = (str(attempt), str(next(numbers)), flat)
            await self._run(_RELIVE, partition, declared, args)

    async def told(self, partition: int) -> EventId:
        """See Cluster.told."""
        return await self._cluster.told(partition)

    async def reopen(self, partition: int, shut: Shut, opened: Entry) -> None:
        """Let the partition be obeyed again; `opened` is its last event from here on."""
        tag = self._tag(partition)
        args = (
            str(shut.attempt),
            str(opened.id.number),
            shut.owner,
            packb([part.decode() for part in opened.fields]),
        )
        await self._run(
            _REOPEN, partition, [keys.head(tag), *keys.streams(tag, self._cluster.ledgers)], args
        )
        self._cluster.learn({partition: opened.id})

    async def _run(
        self, script: Script, partition: int, declared: Sequence[str], args: Sequence[str | bytes]
    ) -> list[object]:
        lane = LaneKind.ALONE if partition in self._alone else LaneKind.MOVE
        reply = await self._cluster.run_unfenced(script, partition, declared, args, lane=lane)
        if reply[0] == b"passed":
            raise RestorationPassedError(f"partition {partition}")
        if reply[0] == b"corrupt":
            raise StockUnavailableError(Reason.SHARD_CORRUPT, f"p{partition:02d} {reply[1]!r}")
        return reply

    def _tag(self, partition: int) -> str:
        return self._cluster.tags[partition]

    def _shard_keys(self, partition: int, product_id: int) -> list[str]:
        tag = self._tag(partition)
        return [
            keys.head(tag),
            keys.stock(tag, product_id),
            keys.product_info(tag, product_id),
            keys.users(tag, product_id),
        ]


def opened_entry(shut: Shut, at_ms: int) -> Entry:
    """The event that a restored partition is opened with."""
    values = (EVENT_VERSION, at_ms, Kind.OPENED, shut.owner)
    fields = chain.from_iterable(zip(("v", "at", "kind", "owner"), map(str, values), strict=True))
    return Entry(EventId(shut.attempt, shut.number + 1), tuple(map(str.encode, fields)))


def checkpoint_at(entry: Entry) -> Checkpoint:
    """What a ledger that has applied an entry as its last one says."""
    return Checkpoint(entry.id, anchor(entry.fields))


def _stock_fields(shard: ShardState) -> dict[str, str]:
    fields: dict[str, object] = {
        "available": shard.available,
        "held": shard.held,
        "sold": shard.sold,
        "loaded": shard.loaded,
        "layout": shard.layout_version,
        "serves": int(shard.serves),
        "epoch": shard.epoch,
        "state": shard.state,
        "repaired": f"{shard.repaired} restored",
        # Nobody knows whether it ever stood in for another shard.
        "visited": 1,
        "released": shard.released,
        "max_per_user": shard.max_per_user,
    }
    for peer, transfers in shard.transfers.items():
        if transfers.given or transfers.arrived:
            fields[f"out:{peer}"] = f"{shard.epoch}:{transfers.given}:{transfers.arrived}"
        if transfers.got:
            fields[f"in:{peer}"] = f"{shard.epoch}:{transfers.got}"
    return {name: str(value) for name, value in fields.items()}


def _listing_fields(shard: ShardState) -> dict[str, str]:
    return {name: str(value) for name, value in shard.listing.items()}


def _found(values: Sequence[object]) -> Found | None:
    texts = [value for value in values if isinstance(value, bytes) and value.isdigit()]
    return Found(*map(int, texts)) if len(texts) == len(Found._fields) else None


def _flag(value: bool) -> str:  # noqa: FBT001 - one of two words of a script
    return str(int(value))


def _pieces(values: Iterable[T], size: int) -> Iterator[list[T]]:
    rest = iter(values)
    while piece := list(islice(rest, size)):
        yield piece
