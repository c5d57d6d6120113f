"""Partitions as the worker sees them: opening, reading their events, upkeep."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sharding import keys
from sharding.cluster import Cluster, LaneKind
from sharding.errors import (
    NotOpenableError,
    PartitionCountError,
    ServerCountError,
    StockUnavailableError,
)
from sharding.events import BEFORE_ALL, EventId
from sharding.lane import Node
from sharding.outcomes import Reason
from sharding.scripts import script

_OPEN = script("open")
_HEAD = script("head")
_CONFIRM = script("confirm")
_ROTATE = script("rotate")
_APPLIED = script("applied")


class Entry(NamedTuple):
    """One raw entry of a stream; `fields` is flat: name, value, name, value …"""

    id: EventId
    fields: tuple[bytes, ...]


class Checkpoint(NamedTuple):
    """The last entry that a ledger has applied and what it is recognised by (events.anchor)."""

    id: EventId
    anchor: str


NOTHING_APPLIED = Checkpoint(BEFORE_ALL, "")


class StreamState(NamedTuple):
    """What a head says of the stream of one MySQL server."""

    last: EventId
    """Its newest entry; BEFORE_ALL: it has none, or nobody knows."""
    applied: int | None
    """Number up to which the server is known to have all of its events; None: nobody has said so yet."""
    is_behind: bool
    """Nothing of its products is sold or held there because too many events wait for the server."""


UNKNOWN_STREAM = StreamState(BEFORE_ALL, None, is_behind=False)


class PartitionHead(NamedTuple):
    """Whether a partition is open where it is now, and its last event; 0, 0 without a head."""

    is_open: bool
    reason: str
    generation: int
    number: int
    partitions: int
    streams: Sequence[StreamState] = ()
    """Of each MySQL server, in their order; none where there is no head."""
    is_degraded: bool = False
    """It was opened on a node without a replica, and what happens in it waits for none."""
    was_opened: bool = False
    """By the very call that returned this."""

    def stream(self, ledger: int) -> StreamState:
        """That of one server; UNKNOWN_STREAM where there is no head."""
        return self.streams[ledger] if ledger < len(self.streams) else UNKNOWN_STREAM


class Partitions:
    """Every method raises StockUnavailableError when the partition's node is away."""

    def __init__(self, cluster: Cluster, *, partitions: int) -> None:
        self._cluster = cluster
        self._partitions = partitions
        self._backlog_max = str(cluster.settings.backlog_max)

    @property
    def moved(self) -> asyncio.Event:
        """Set when a partition is found on another node; whoever waits for it clears it."""
        return self._cluster.moved

    @property
    def record_ttl_s(self) -> int:
        """How long requests are remembered at least."""
        return self._cluster.settings.record_ttl_s

    @property
    def count(self) -> int:
        return self._partitions

    async def head(self, partition: int, *, opening: int = 0) -> PartitionHead:
        """Open only if it was opened as `opening` or later, the last generation that was issued, and has
        not gone back behind what this process has seen.

        PartitionCountError, ServerCountError if the cluster was set up with another partition count or
        for another number of MySQL servers.
        """
        seen = self._cluster.seen(partition)
        reply = await self._cluster.run_unfenced(
            _HEAD,
            partition,
            self._head_keys(partition),
            (self._backlog_max,),
            lane=LaneKind.READ,
        )
        why, generation, number, partitions, ledgers, degraded, *streams = reply
        assert isinstance(why, bytes)
        assert isinstance(generation, int)
        assert isinstance(number, int)
        assert isinstance(partitions, int)
        assert isinstance(ledgers, int)
        if partitions not in (0, self._partitions):
            raise PartitionCountError(_other_count(partitions, self._partitions))
        if ledgers not in (0, self._cluster.ledgers):
            raise ServerCountError(_other_servers(ledgers, self._cluster.ledgers))
        went_back = generation < opening or EventId(generation, number) < seen
        if not why and went_back:
            why = b"WENT_BACK"
        return PartitionHead(
            is_open=not why,
            reason=why.decode(),
            generation=generation,
            number=number,
            partitions=partitions,
            is_degraded=degraded == 1,
            streams=[_stream(*part) for part in zip(*[iter(streams)] * 3, strict=True)],
        )

    async def read(self, partition: int, *, ledger: int, after: EventId, count: int) -> list[Entry]:
        """Up to `count` entries after an id, oldest first; never waits for new ones."""
        reply = await self._cluster.command(
            partition,
            "XRANGE",
            keys.events(self._tag(partition), ledger),
            f"({after}",
            "+",
            "COUNT",
            str(count),
            lane=LaneKind.READ,
        )
        assert isinstance(reply, list)
        return [Entry(EventId.parse(entry_id), tuple(fields)) for entry_id, fields in reply]

    async def open(
        self,
        partition: int,
        checkpoints: Sequence[Checkpoint],
        *,
        opening: int,
        degraded: bool = False,
        judged: int | None = None,
    ) -> PartitionHead:
        """Open a partition where it is now; `checkpoints` are the ledgers', in their order.

        `opening` is the generation that the ledger issued for it; no two attempts share one. One that
        comes after a later one changes nothing, and the head is returned as that has left it.
        `degraded`: its node has no replica, and nobody is to wait for one until it is opened again;
        `judged` is the generation of the head that this was seen by: one that was opened since stays so.
        Otherwise a replica has by then all that ever happened in the partition.

        NotOpenableError unless it was never used or has all that the ledgers have.
        """
        tag = self._tag(partition)
        ledgers = self._cluster.ledgers
        assert len(checkpoints) == ledgers
        proofs = [part for checkpoint in checkpoints for part in map(str, checkpoint)]
        reply = await self._cluster.run_unfenced(
            _OPEN,
            partition,
            keys.partition(tag, ledgers),
            [
                str(self._partitions),
                str(opening),
                str(int(degraded)),
                "" if judged is None else str(judged),
                *proofs,
            ],
            lane=LaneKind.ALONE if degraded else LaneKind.MOVE,
        )
        if reply[0] == b"passed":
            return await self.head(partition, opening=opening)
        if reply[0] != b"done":
            raise _refusal(partition, reply, partitions=self._partitions, ledgers=ledgers)
        _, generation, number = reply
        assert isinstance(generation, int)
        assert isinstance(number, int)
        return PartitionHead(
            is_open=True,
            reason="",
            generation=generation,
            number=number,
            partitions=self._partitions,
            is_degraded=degraded,
            was_opened=True,
            streams=[UNKNOWN_STREAM._replace(last=EventId(generation, number))] * ledgers,
        )

    async def replicated(self, partition: int, *, ledger: int, last: Checkpoint) -> bool:
        """Whether the stream has the entry `last`; if so, a replica has it by now, too.

        A master that was promoted since the entry was read may not have it. In `fast` durability
        nothing waits for a replica.
        """
        tag = self._tag(partition)
        reply = await self._cluster.run(
            _CONFIRM,
            partition,
            [keys.head(tag), keys.events(tag, ledger)],
            [str(last.id), last.anchor],
            lane=LaneKind.WRITE,
        )
        return reply[3] == 1

    async def told(self, partition: int) -> EventId:
        """See Cluster.told."""
        return await self._cluster.told(partition)

    async def is_whole(self, partition: int, *, ledger: int, after: EventId) -> bool:
        """Whether a stream still has an entry, unless it is BEFORE_ALL, and lost none after it."""
        tag = self._tag(partition)
        reply = await self._cluster.command(
            partition, "XINFO", "STREAM", keys.events(tag, ledger), lane=LaneKind.READ
        )
        assert isinstance(reply, list)
        found = dict(zip(reply[::2], reply[1::2], strict=True))
        deleted = EventId.parse(found[b"max-deleted-entry-id"])
        first = EventId.parse(found[b"recorded-first-entry-id"])
        return deleted <= after and (after == BEFORE_ALL or first <= after)

    async def note_applied(self, partition: int, applied: EventId, *, ledger: int = 0) -> None:
        """Tell a partition up to which event a MySQL server has all of its own; an older word changes
        nothing.

        No replica is waited for: a word that a failover loses is as good as an older one.
        """
        await self._cluster.run(
            _APPLIED,
            partition,
            [keys.head(self._tag(partition)), keys.events(self._tag(partition), ledger)],
            [str(applied.number), self._backlog_max],
            lane=LaneKind.READ,
        )

    async def trim(self, partition: int, *, ledger: int, below: EventId) -> int:
        """Remove the entries strictly below an id; returns how many. No replica is waited for: entries
        that a failover brings back are removed again.
        """
        reply = await self._cluster.command(
            partition,
            "XTRIM",
            keys.events(self._tag(partition), ledger),
            "MINID",
            "=",
            str(below),
            lane=LaneKind.READ,
        )
        assert isinstance(reply, int)
        return reply

    async def rotate_records(self, partition: int, *, record_ttl_s: int) -> bool:
        """Begin a new generation of records and tombstones if the newest was filled long enough."""
        tag = self._tag(partition)
        age_ms = record_ttl_s * 1_000 // (keys.RECORD_GENERATIONS - 1)
        reply = await self._cluster.run(
            _ROTATE,
            partition,
            [keys.head(tag), *keys.memory(tag)],
            [str(age_ms)],
            lane=LaneKind.WRITE,
        )
        return reply[3] == 1

    def node(self, partition: int) -> Node | None:
        """The node that has a partition as far as is known; None: none has."""
        return self._cluster.node_of(partition)

    def seen(self, partition: int) -> EventId:
        """The last event of a partition that this process knows of."""
        return self._cluster.seen(partition)

    def learn(self, checkpoints: Mapping[int, Checkpoint]) -> None:
        """Hold partitions to what the ledger has of them."""
        self._cluster.learn({each: known.id for each, known in checkpoints.items()})

    def _tag(self, partition: int) -> str:
        return self._cluster.tags[partition]

    def _head_keys(self, partition: int) -> list[str]:
        tag = self._tag(partition)
        return [keys.head(tag), *keys.streams(tag, self._cluster.ledgers)]


def _stream(last: object, applied: object, is_behind: object) -> StreamState:
    assert isinstance(last, bytes)
    assert isinstance(applied, int)
    return StreamState(EventId.parse(last), None if applied < 0 else applied, is_behind == 1)


def _other_count(found: int, expected: int) -> str:
    return (
        f"the Redis Cluster was set up with {found} partitions, this process with {expected}; "
        f"set INVENTORY_PARTITIONS={found}"
    )


def _other_servers(found: int, expected: int) -> str:
    return (
        f"the number of MySQL servers was {found} when the Redis Cluster was set up, "
        f"INVENTORY_MYSQL_URLS names {expected}: their number and order are fixed"
    )


def _refusal(
    partition: int, reply: Sequence[object], *, partitions: int, ledgers: int
) -> Exception:
    word, *rest = (part.decode() if isinstance(part, bytes) else part for part in reply)
    match word, rest:
        case "partitions", [int(found)]:
            return PartitionCountError(_other_count(found, partitions))
        case "ledgers", [int(found)]:
            return ServerCountError(_other_servers(found, ledgers))
        case "corrupt", [what]:
            return StockUnavailableError(Reason.SHARD_CORRUPT, f"p{partition:02d} {what}")
        case "behind", [_, number]:
            text = f"its head is at event {number}, behind the ledger"
        case "half", _:
            text = "it was being restored, and that did not come to its end"
        case "anchor", [_, checkpoint]:
            text = f"the ledger's last event {checkpoint} is not in its stream"
        case _:
            text = "it is empty, but the ledger has events of it"
    may_be_past = word in ("behind", "half")
    text = f"partition {partition}: {text}"
    return NotOpenableError(text, found=str(rest[0]), may_be_past=may_be_past)
