"""Calls to partitions: finds the node, sends over its lane, repeats what had no effect.

Every script is safe to run twice, so a call is repeated until `patience_s` is over whatever happened to
it; what cannot be settled by then ends as StockUnavailableError, whose reason says whether it may have
taken effect.
"""

import asyncio
import ssl
from collections.abc import Sequence
from enum import StrEnum
from random import uniform
from typing import Self

from hiredis import ReplyError
from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, RedisClusterException, RedisError

from sharding.errors import StockUnavailableError
from sharding.events import EventId
from sharding.keys import tags
from sharding.lane import (
    Lane,
    LaneError,
    LaneOptions,
    LostError,
    Node,
    NotReplicatedError,
    QueueFullError,
    packed,
)
from sharding.metrics import StockMetrics
from sharding.outcomes import Reason
from sharding.scripts import Script
from sharding.settings import StockSettings, parse_addresses
from sharding.slots import slot_of

REPLICAS_CONFIRMING = 1
PAUSE_MAX_S = 0.1
PAUSE_MIN_S = 0.005
TOPOLOGY_PAUSE_S = 0.1
REDIRECTIONS_MAX = 16


class LaneKind(StrEnum):
    """Which of a node's connections a call travels on."""

    READ = "read"
    """Waits for no replica: a read behind WAIT would wait with it."""
    WRITE = "write"
    """Waits for a replica where durability says so."""
    MOVE = "move"
    """Always waits for a replica: the steps of a transfer may not overtake their own replication."""


class _Pending:
    """One call while it is being tried: what happened to it so far and how it goes on."""

    __slots__ = (
        "attempts",
        "command",
        "detail",
        "may_have_run",
        "packed",
        "partition",
        "pause_s",
        "redirected_to",
        "script",
        "why",
    )

    def __init__(
        self, partition: int, script: Script | None, command: tuple[str | bytes, ...]
    ) -> None:
        self.partition = partition
        self.script = script
        self.command = command
        self.packed = packed(command)
        self.redirected_to: Node | None = None
        self.may_have_run = False
        self.why = Reason.NOT_EXECUTED
        self.detail = "no node has this partition"
        self.attempts = 0
        self.pause_s = 0.0

    @property
    def reason(self) -> Reason:
        if self.may_have_run and self.why is not Reason.NOT_REPLICATED:
            return Reason.OUTCOME_UNKNOWN
        return self.why

    def grow_pause(self) -> None:
        self.pause_s = min(max(PAUSE_MIN_S, self.pause_s * 2), PAUSE_MAX_S)

    def send_whole_script(self) -> None:
        """Send the script's text, which the node remembers from then on."""
        assert self.script is not None
        self.packed = packed(("EVAL", self.script.source, *self.command[2:]))
        self.pause_s = 0.0


class Cluster:
    """The Redis Cluster as the partitions see it. `connect` makes one."""

    def __init__(
        self, settings: StockSettings, metrics: StockMetrics, topology: RedisCluster
    ) -> None:
        self.settings = settings
        self.metrics = metrics
        self.tags = tags(settings.partitions)
        self._slots = tuple(slot_of(tag) for tag in self.tags)
        self._topology = topology
        self._nodes: list[Node | None] = [None] * settings.partitions
        self._lanes: dict[tuple[Node, LaneKind], Lane] = {}
        self._seen = [EventId(0, 0)] * settings.partitions
        self._refreshing: asyncio.Task[None] | None = None
        self._patience_s = settings.redis_patience_ms / 1_000

    @classmethod
    async def connect(cls, settings: StockSettings, metrics: StockMetrics) -> Self:
        """Read the topology. StockUnavailableError, naming the addresses, if no node answers."""
        cluster = cls(settings, metrics, _topology_client(settings))
        await cluster._refresh()
        if cluster._nodes == [None] * settings.partitions:
            await cluster.close()
            raise StockUnavailableError(
                Reason.NOT_EXECUTED,
                f"no Redis Cluster answers at {settings.redis_nodes}; "
                "check INVENTORY_REDIS_NODES and the credentials, and that the nodes are up",
            )
        return cluster

    async def close(self) -> None:
        """Drop all connections."""
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.gather(self._refreshing, return_exceptions=True)
        for lane in self._lanes.values():
            await lane.close()
        await self._topology.aclose()

    def masters(self) -> dict[Node, list[int]]:
        """The partitions of each master that is known."""
        partitions: dict[Node, list[int]] = {}
        for partition, node in enumerate(self._nodes):
            if node is not None:
                partitions.setdefault(node, []).append(partition)
        return partitions

    async def run(
        self,
        script: Script,
        partition: int,
        keys: Sequence[str],
        args: Sequence[str | bytes],
        *,
        lane: LaneKind,
    ) -> list[object]:
        """Run a script that is fenced: the last event seen goes before `args`.

        Returns the script's reply, first the word as bytes; never "fenced" or "corrupt", which become
        StockUnavailableError as every other failure does.
        """
        deadline = asyncio.get_running_loop().time() + self._patience_s
        pause_s = PAUSE_MIN_S
        while True:
            seen = self._seen[partition]
            fenced_args = (str(seen.generation), str(seen.number), *args)
            reply = await self._call(
                _eval(script, keys, fenced_args), script, partition, lane, deadline
            )
            assert isinstance(reply, list)
            word = reply[0]
            if word == b"corrupt":
                self.metrics.corrupt.inc()
                raise StockUnavailableError(Reason.SHARD_CORRUPT, f"p{partition:02d} {reply[1]!r}")
            if word != b"fenced":
                self._note_seen(partition, reply)
                return reply
            self.metrics.redis_errors.labels("fenced").inc()
            if asyncio.get_running_loop().time() + pause_s > deadline:
                why = bytes(reply[1]).decode()
                raise StockUnavailableError(Reason.PARTITION_FENCED, f"p{partition:02d} {why}")
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, PAUSE_MAX_S)

    async def run_unfenced(
        self,
        script: Script,
        partition: int,
        keys: Sequence[str],
        args: Sequence[str | bytes],
        *,
        lane: LaneKind,
    ) -> list[object]:
        """Run one of the scripts that open or inspect a partition."""
        deadline = asyncio.get_running_loop().time() + self._patience_s
        reply = await self._call(_eval(script, keys, args), script, partition, lane, deadline)
        assert isinstance(reply, list)
        return reply

    async def command(self, partition: int, *command: str, lane: LaneKind) -> object:
        """Run one plain command on the node that has the partition."""
        deadline = asyncio.get_running_loop().time() + self._patience_s
        return await self._call(command, None, partition, lane, deadline)

    def _note_seen(self, partition: int, reply: list[object]) -> None:
        if len(reply) < 3:
            return
        generation, number = reply[1], reply[2]
        assert isinstance(generation, int)
        assert isinstance(number, int)
        self._seen[partition] = max(self._seen[partition], EventId(generation, number))

    async def _call(
        self,
        command: tuple[str | bytes, ...],
        script: Script | None,
        partition: int,
        kind: LaneKind,
        deadline: float,
    ) -> object:
        call = _Pending(partition, script, command)
        loop = asyncio.get_running_loop()
        while not call.attempts or loop.time() + call.pause_s <= deadline:
            if call.pause_s:
                await asyncio.sleep(uniform(call.pause_s / 2, call.pause_s))
            call.attempts += 1
            node = call.redirected_to or self._nodes[partition]
            if node is None:
                await self._refresh()
                call.grow_pause()
                continue
            try:
                asking = call.redirected_to is not None
                reply = await self._lane(node, kind).call(call.packed, asking=asking)
            except LaneError as error:
                self._note_lost(call, error)
                continue
            if not isinstance(reply, ReplyError):
                return reply
            self._note_error(call, node, str(reply))
        raise StockUnavailableError(call.reason, f"p{partition:02d} {call.detail}")

    def _note_lost(self, call: "_Pending", error: LaneError) -> None:
        self.metrics.redis_errors.labels(_LANE_ERRORS.get(type(error), "not_sent")).inc()
        call.redirected_to = None
        call.may_have_run |= isinstance(error, LostError | NotReplicatedError)
        call.detail = str(error)
        call.why = {
            NotReplicatedError: Reason.NOT_REPLICATED,
            QueueFullError: Reason.QUEUE_FULL,
        }.get(type(error), Reason.NOT_EXECUTED)
        call.grow_pause()
        self._refresh_soon()

    def _note_error(self, call: "_Pending", node: Node, text: str) -> None:
        """Learn from an error reply how to go on. StockUnavailableError where there is no going on."""
        code, _, rest = text.partition(" ")
        self.metrics.redis_errors.labels(_error_kind(code)).inc()
        call.redirected_to, call.detail, call.why = None, text, Reason.NOT_EXECUTED
        may_follow = call.attempts <= REDIRECTIONS_MAX
        if code == "NOSCRIPT" and may_follow and call.script is not None:
            call.send_whole_script()
        elif code == "MOVED" and may_follow:
            self._nodes[call.partition] = _redirection(rest, node)
            self._refresh_soon()
            call.pause_s = 0.0
        elif code == "ASK" and may_follow:
            call.redirected_to = _redirection(rest, node)
            call.pause_s = 0.0
        elif code in _HAD_NO_EFFECT:
            call.grow_pause()
            self._refresh_soon()
        else:
            raise StockUnavailableError(Reason.SHARD_CORRUPT, f"p{call.partition:02d} {text}")

    def _lane(self, node: Node, kind: LaneKind) -> Lane:
        lane = self._lanes.get((node, kind))
        if lane is None:
            replicas = REPLICAS_CONFIRMING if self._waits(kind) else 0
            options = _lane_options(self.settings, replicas=replicas)
            lane = self._lanes[node, kind] = Lane(node, options, self.metrics)
        return lane

    def _waits(self, kind: LaneKind) -> bool:
        if kind is LaneKind.WRITE:
            return self.settings.durability == "replicated"
        return kind is LaneKind.MOVE

    def _refresh_soon(self) -> None:
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(self._refresh_paced(), name="topology")

    async def _refresh_paced(self) -> None:
        await self._refresh()
        await asyncio.sleep(TOPOLOGY_PAUSE_S)

    async def _refresh(self) -> None:
        """Read which master has which slot; on failure the old map stays."""
        try:
            await self._topology.nodes_manager.initialize()
        except AuthenticationError as error:
            raise StockUnavailableError(
                Reason.NOT_EXECUTED,
                f"Redis refuses the credentials ({error}); check INVENTORY_REDIS_USERNAME and "
                "INVENTORY_REDIS_PASSWORD",
            ) from error
        except (RedisError, RedisClusterException, OSError):
            self.metrics.redis_errors.labels("topology").inc()
            return
        slots = self._topology.nodes_manager.slots_cache
        for partition, slot in enumerate(self._slots):
            owners = slots.get(slot)
            if owners:
                self._nodes[partition] = Node(str(owners[0].host), int(owners[0].port))


_LANE_ERRORS = {
    LostError: "lost",
    NotReplicatedError: "not_replicated",
    QueueFullError: "queue_full",
}
_HAD_NO_EFFECT = frozenset(
    (
        "ASK",
        "BUSY",
        "CLUSTERDOWN",
        "LOADING",
        "MASTERDOWN",
        "MISCONF",
        "MOVED",
        "NOREPLICAS",
        "NOSCRIPT",
        "OOM",
        "READONLY",
        "TRYAGAIN",
    )
)


def _error_kind(code: str) -> str:
    return code.lower() if code in _HAD_NO_EFFECT else "other"


def _redirection(rest: str, node: Node) -> Node:
    """The node of `<slot> <host>:<port>`; an empty host means the one that answered."""
    host, _, port = rest.partition(" ")[2].rpartition(":")
    return Node(host or node.host, int(port))


def _eval(
    script: Script, keys: Sequence[str], args: Sequence[str | bytes]
) -> tuple[str | bytes, ...]:
    return ("EVALSHA", script.digest, str(len(keys)), *keys, *args)


def _lane_options(settings: StockSettings, *, replicas: int) -> LaneOptions:
    return LaneOptions(
        timeout_s=settings.redis_timeout_ms / 1_000,
        username=settings.redis_username,
        password=settings.redis_password.get_secret_value(),
        tls=ssl.create_default_context() if settings.redis_tls else None,
        replicas=replicas,
    )


def _topology_client(settings: StockSettings) -> RedisCluster:
    addresses = parse_addresses(settings.redis_nodes)
    return RedisCluster(
        startup_nodes=[ClusterNode(host, port) for host, port in addresses],
        username=settings.redis_username or None,
        password=settings.redis_password.get_secret_value() or None,
        ssl=settings.redis_tls,
        require_full_coverage=False,
        reinitialize_steps=0,
        retry=Retry(NoBackoff(), 0),
        socket_timeout=settings.redis_timeout_ms / 1_000,
        socket_connect_timeout=settings.redis_timeout_ms / 1_000,
        max_connections=8,
    )
