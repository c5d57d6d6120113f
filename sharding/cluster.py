"""Calls to partitions: finds the node, sends over its lane, repeats what had no effect.

Every script is safe to run twice, so a call is repeated until `patience_s` is over whatever happened to
it; what cannot be settled by then ends as StockUnavailableError, whose reason says whether it may have
taken effect.
"""

import asyncio
import ssl
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from functools import partial
from random import uniform
from typing import Any, Self

from hiredis import ReplyError
from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisClusterException, RedisError
from redis.maint_notifications import MaintNotificationsConfig

from sharding.alone import Alone
from sharding.breaker import Breaker
from sharding.errors import NodeAwayError, StockUnavailableError
from sharding.events import BEFORE_ALL, EventId
from sharding.keys import head, tags, witness
from sharding.lane import (
    STUCK_S,
    Lane,
    LaneError,
    LaneOptions,
    Node,
    NotReplicatedError,
    packed,
    packed_script,
)
from sharding.metrics import StockMetrics
from sharding.outcomes import Reason
from sharding.pending import PendingCall, error_kind, means_the_node
from sharding.scripts import Script, script
from sharding.settings import StockSettings, parse_addresses
from sharding.slots import slot_of
from sharding.witness import Witness

_OPENING = script("opening")
_WITNESS = script("witness")

REPLICAS_CONFIRMING = 1
TOPOLOGY_PAUSE_S = 0.1


class LaneKind(StrEnum):
    """Which of a node's connections a call travels on."""

    READ = "read"
    """Waits for no replica: a read behind WAIT would wait with it."""
    WRITE = "write"
    """Waits for a replica where durability says so."""
    MOVE = "move"
    """Always waits for a replica: the steps of a transfer may not overtake their own replication."""
    ALONE = "alone"
    """Takes the place of the two where the node has no replica that could be waited for."""


class Cluster:
    """The Redis Cluster as the partitions see it. `connect` makes one, `unconnected` one that waits."""

    def __init__(
        self,
        settings: StockSettings,
        metrics: StockMetrics,
        topology: RedisCluster,
        *,
        ledgers: int = 1,
    ) -> None:
        self.settings = settings
        self.ledgers = ledgers
        """MySQL servers that share the products out; each partition has a stream for each of them."""
        self.metrics = metrics
        self.tags = tags(settings.partitions)
        self._slots = tuple(slot_of(tag) for tag in self.tags)
        self._topology = topology
        self._nodes: list[Node | None] = [None] * settings.partitions
        self._lanes: dict[tuple[Node, LaneKind], Lane] = {}
        self._seen = [EventId(0, 0)] * settings.partitions
        self._witness = Witness(self._leave_word)
        self._alone = Alone()
        self._asking: dict[int, asyncio.Task[bool]] = {}
        """Of partitions in doubt, the questions that are under way."""
        self.moved = asyncio.Event()
        """Set when a partition is found on another node than before; whoever waits for it clears it."""
        self._refreshing: asyncio.Task[None] | None = None
        self._shut: dict[int, Breaker] = {}
        """Of the partitions that were found shut on the node that has them."""
        self.replies = 0
        """What nodes have answered, errors apart."""
        self._in_trouble = True
        """Whether a breaker may be open; asked for every request, so it is not worked out each time."""
        self._patience_s = settings.redis_patience_ms / 1_000
        self.pass_by: Callable[[str], None] | None = None
        """Told of the places around each script call, where a test may have the process end."""

    @classmethod
    def unconnected(
        cls, settings: StockSettings, metrics: StockMetrics, *, ledgers: int = 1
    ) -> Self:
        """Knows no node yet and looks for them when it is asked for something."""
        return cls(settings, metrics, _topology_client(settings), ledgers=ledgers)

    @classmethod
    async def connect(
        cls, settings: StockSettings, metrics: StockMetrics, *, ledgers: int = 1
    ) -> Self:
        """Read the topology. StockUnavailableError, naming the addresses, if no node answers."""
        cluster = cls(settings, metrics, _topology_client(settings), ledgers=ledgers)
        trouble = await cluster._refresh()
        if cluster._nodes == [None] * settings.partitions:
            await cluster.close()
            raise StockUnavailableError(
                Reason.NOT_EXECUTED,
                f"no Redis Cluster answers at {settings.redis_nodes} ({trouble or 'no slots'}); check "
                "INVENTORY_REDIS_NODES, the credentials, and that the nodes are up",
            )
        return cluster

    async def close(self) -> None:
        """Drop all connections."""
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.gather(self._refreshing, return_exceptions=True)
        for asking in self._asking.values():
            asking.cancel()
        await self._witness.close()
        for lane in self._lanes.values():
            await lane.close()
        # The client itself was never initialised, so its own close would leave the nodes open.
        nodes = self._topology.nodes_manager
        await nodes.aclose()
        for node in nodes.startup_nodes.values():
            await node.disconnect()

    def masters(self) -> dict[Node, list[int]]:
        """The partitions of each master that is known; without any, they are looked for from now on."""
        partitions: dict[Node, list[int]] = {}
        for partition, node in enumerate(self._nodes):
            if node is not None:
                partitions.setdefault(node, []).append(partition)
        if not partitions:
            self._refresh_soon()
        return partitions

    def learn(self, seen: Mapping[int, EventId]) -> None:
        """Take somebody's word for events of partitions: one that has gone back behind them is obeyed by
        nobody, as if this process had seen them itself."""
        for partition, event_id in seen.items():
            self._see(partition, event_id)

    def seen(self, partition: int) -> EventId:
        """The last event of the partition that this process knows of."""
        return self._seen[partition]

    async def told(self, partition: int) -> EventId:
        """The last event that a process has seen which found the partition shut, or opened anew, as far
        as such word can be read."""
        key = witness(self.tags[partition])
        with suppress(StockUnavailableError, ValueError):
            reply = await self.command(partition, "GET", key, lane=LaneKind.READ, hasty=True)
            return EventId.parse(reply) if isinstance(reply, bytes) else BEFORE_ALL
        return BEFORE_ALL

    async def _leave_word(self, partition: int, seen: EventId) -> None:
        key, args = witness(self.tags[partition]), [*map(str, seen)]
        await self.run_unfenced(_WITNESS, partition, [key], args, lane=LaneKind.READ)

    def is_down(self, partition: int) -> bool:
        """Whether a call to the partition would not be let through now."""
        return self._in_trouble and not self._has_room(partition)

    def reason_down(self, partition: int) -> Reason:
        """What whoever was not let through is told."""
        return Reason.PARTITION_FENCED if partition in self._shut else Reason.NOT_EXECUTED

    def _has_room(self, partition: int) -> bool:
        masters = {node for node in self._nodes if node is not None}
        self._in_trouble = (
            bool(self._shut)
            or None in self._nodes
            or not all(
                each.is_closed for node in masters for each in self._breakers(node, *LaneKind)
            )
        )
        if partition in self._shut and not self._shut[partition].has_room:
            return False
        node = self._nodes[partition]
        if node is None:
            return False
        is_alone = partition in self._alone and self._waits(LaneKind.WRITE)
        writes = LaneKind.ALONE if is_alone else LaneKind.WRITE
        return all(each.has_room for each in self._breakers(node, writes, LaneKind.READ))

    def _breakers(self, node: Node, *kinds: LaneKind) -> list[Breaker]:
        lanes = (self._lanes.get((node, kind)) for kind in kinds)
        return [lane.breaker for lane in lanes if lane is not None]

    def _note_open(self, node: Node, kind: LaneKind) -> None:
        self._in_trouble = True
        self.metrics.breaker_opened.labels(str(node), kind).inc()

    def _note_shut(self, partition: int, why: str) -> None:
        """Have not everybody find out for themselves that the partition does nothing."""
        self._in_trouble = True
        clock = asyncio.get_running_loop().time
        self._shut.setdefault(partition, Breaker(clock)).fail(why)

    def node_of(self, partition: int) -> Node | None:
        """The master that has a partition, as far as is known."""
        return self._nodes[partition]

    async def ask(self, node: Node, *command: str) -> object:
        """Run one plain command on a node, once. StockUnavailableError if it does not carry it out;
        NodeAwayError if it does not answer."""
        return await self._asked(node, packed(command), is_script=False)

    async def _asked(self, node: Node, command: bytes, *, is_script: bool) -> object:
        try:
            reply = await self._lane(node, LaneKind.READ).call(command, is_script=is_script)
        except LaneError as error:
            raise NodeAwayError(Reason.NOT_EXECUTED, str(error)) from error
        if isinstance(reply, ReplyError):
            raise StockUnavailableError(Reason.NOT_EXECUTED, str(reply))
        return reply

    def share_a_node(self, one: int, other: int) -> bool:
        """Whether two partitions are, as far as is known, on one master."""
        return self._nodes[one] == self._nodes[other]

    async def run(
        self,
        script: Script,
        partition: int,
        keys: Sequence[str],
        args: Sequence[str | bytes],
        *,
        lane: LaneKind,
        hasty: bool = False,
    ) -> list[object]:
        """Run a script that is fenced: the last event seen goes before `args`.

        Returns the script's reply, first the word as bytes; never "fenced" or "corrupt", which become
        StockUnavailableError as every other failure does. `hasty`: do not wait long for a node that is
        away.
        """
        reply, _ = await self.run_noting(script, partition, keys, args, lane=lane, hasty=hasty)
        return reply

    async def run_noting(
        self,
        script: Script,
        partition: int,
        keys: Sequence[str],
        args: Sequence[str | bytes],
        *,
        lane: LaneKind,
        hasty: bool = False,
    ) -> tuple[list[object], bool]:
        """As `run`; also whether an earlier try was lost, which may be on its way and run yet."""
        if self.pass_by:
            self.pass_by(f"redis.before_{script.name}")
        call = PendingCall(partition, script, self._deadline(), hasty=hasty)
        call.each_time = partial(self._fenced, partition, script, keys, args)
        if hasty and partition in self._shut:
            self._require_room(call, self._shut[partition])
        while True:
            reply = await self._scripted(call, script, lane, may_be_alone=True)
            word = reply[0]
            if word == b"corrupt":
                self.metrics.corrupt.inc()
                raise call.failure(Reason.SHARD_CORRUPT, bytes(reply[1]).decode())
            if word != b"fenced":
                if self._shut:
                    self._shut.pop(partition, None)
                self._note_seen(partition, reply)
                if not call.is_alone or self._alone.counts(partition, reply[1:]):
                    return reply, call.may_echo
                call.note_lost(NotReplicatedError())
                continue
            self.metrics.redis_errors.labels("fenced").inc()
            why = bytes(reply[1]).decode()
            self._alone.doubt(partition)
            self._note_shut(partition, why)
            self._witness.tell(partition, self._seen[partition])
            call.note_away(Reason.PARTITION_FENCED, why)

    def _fenced(
        self, partition: int, script: Script, keys: Sequence[str], args: Sequence[str | bytes]
    ) -> Sequence[str | bytes]:
        """A script's call with the last event seen."""
        seen = self._seen[partition]
        return script.call(keys, (str(seen.generation), str(seen.number), *args))

    def _require_room(self, call: PendingCall, shut: Breaker) -> None:
        """A probe's place is free again when its answer opens or shuts the partition, or in a while."""
        if shut.admit() is None:
            call.note_away(Reason.PARTITION_FENCED, shut.why)

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
        if self.pass_by:
            self.pass_by(f"redis.before_{script.name}")
        call = PendingCall(partition, script, self._deadline())
        call.prepare(script.call(keys, args))
        return await self._scripted(call, script, lane)

    async def command(
        self, partition: int, *command: str, lane: LaneKind, hasty: bool = False
    ) -> object:
        """Run one plain command on the node that has the partition; `hasty` as in `run`."""
        call = PendingCall(partition, None, self._deadline(), hasty=hasty)
        call.prepare(command)
        return await self._reply(call, lane)

    async def _scripted(
        self, call: PendingCall, script: Script, lane: LaneKind, *, may_be_alone: bool = False
    ) -> list[Any]:
        reply = await self._reply(call, lane, may_be_alone=may_be_alone)
        assert isinstance(reply, list)
        if self.pass_by:
            self.pass_by(f"redis.after_{script.name}")
        return reply

    def _deadline(self) -> float:
        return asyncio.get_running_loop().time() + self._patience_s

    def _note_seen(self, partition: int, reply: list[object]) -> None:
        if len(reply) < 3:
            return
        generation, number = reply[1], reply[2]
        assert isinstance(generation, int)
        assert isinstance(number, int)
        self._see(partition, EventId(generation, number))

    def _see(self, partition: int, event_id: EventId) -> None:
        before = self._seen[partition]
        if event_id <= before:
            return
        self._seen[partition] = event_id
        # It was opened anew, and maybe without what this process had seen of it.
        if 0 < before.generation < event_id.generation:
            self._witness.tell(partition, before)

    async def lane_of(self, partition: int, kind: LaneKind) -> LaneKind:
        """How what would travel on `kind` travels to a partition now: alone where its node has no
        replica, and while it is shut, because nothing is done then.

        StockUnavailableError: the node does not say.
        """
        if partition not in self._alone or not self._waits(kind):
            return kind
        if self._alone.is_in_doubt(partition) and not await self._is_told(partition):
            detail = f"p{partition:02d} does not say whether it waits for a replica"
            raise StockUnavailableError(Reason.NOT_EXECUTED, detail)
        return LaneKind.ALONE if partition in self._alone else kind

    async def _is_told(self, partition: int) -> bool:
        """Whether a partition says, soon, if it waits for a replica; one question for all who ask."""
        asking = self._asking.get(partition)
        if asking is None:
            asking = asyncio.create_task(self._ask(partition), name=f"doubt {partition}")
            self._asking[partition] = asking
            asking.add_done_callback(lambda _: self._asking.pop(partition, None))
        done, _ = await asyncio.wait([asking], timeout=STUCK_S)
        return bool(done) and asking.result()

    async def _ask(self, partition: int) -> bool:
        node = self._nodes[partition]
        if node is None:
            return False
        key = head(self.tags[partition])
        breaker = self._lane(node, LaneKind.READ).breaker
        ticket = breaker.admit()
        if ticket is None:
            return False
        try:
            # With its text: it is asked for seldom, and a node that is new does not know it.
            command = packed_script(("EVAL", _OPENING.source, "1", key))
            reply = await self._asked(node, command, is_script=True)
        except StockUnavailableError:
            return False
        finally:
            breaker.hand_back(ticket)
        assert isinstance(reply, list)
        breaker.succeed()
        if reply[0] == b"degraded":
            self._alone.note_degraded(partition, reply[1])
            self._forget_trouble(node, LaneKind.WRITE, LaneKind.MOVE)
        elif reply[0] == b"replicated":
            self._alone.note_replicated(partition)
            self._forget_trouble(node, LaneKind.ALONE)
        return True

    def _forget_trouble(self, node: Node, *kinds: LaneKind) -> None:
        """Nobody asks by these lanes any more, so nobody would ever learn that they work."""
        for breaker in self._breakers(node, *kinds):
            breaker.succeed()

    async def _reply(
        self, call: PendingCall, kind: LaneKind, *, may_be_alone: bool = False
    ) -> object:
        """Try until there is a reply that is no error. StockUnavailableError at the deadline."""
        loop = asyncio.get_running_loop()
        while call.may_go_on(loop.time()):
            if call.pause_s:
                await asyncio.sleep(uniform(call.pause_s / 2, call.pause_s))
            used = kind
            if may_be_alone and call.partition in self._alone:
                try:
                    used = await self.lane_of(call.partition, kind)
                except StockUnavailableError as error:
                    self._refresh_soon()
                    call.note_away(error.reason, error.detail)
                    continue
            call.is_alone = used is not kind
            node = call.redirected_to or self._nodes[call.partition]
            if node is None:
                self._refresh_soon()
                call.note(Reason.NOT_EXECUTED, "no node has this partition")
                continue
            lane = self._lane(node, used)
            ticket = lane.breaker.admit()
            if ticket is None:
                self._refresh_soon()
                call.note_away(Reason.NOT_EXECUTED, lane.breaker.why)
                continue
            call.begin_try()
            try:
                reply = await lane.call(
                    call.packed,
                    is_script=call.is_script,
                    asking=call.redirected_to is not None,
                    deadline=call.deadline,
                )
            except LaneError as error:
                self._note_lane_error(call, node, lane, error)
                continue
            finally:
                lane.breaker.hand_back(ticket)
            if not isinstance(reply, ReplyError):
                if not lane.breaker.is_closed:
                    lane.breaker.succeed()
                self.replies += 1
                return reply
            self._note_error(call, node, lane, str(reply))
        raise call.failure()

    def _note_lane_error(self, call: PendingCall, node: Node, lane: Lane, error: LaneError) -> None:
        self._in_trouble = True
        self._refresh_soon()
        self.metrics.redis_errors.labels(call.note_lost(error)).inc()
        if isinstance(error, NotReplicatedError):
            for partition in self.masters().get(node, [call.partition]):
                self._alone.doubt(partition)
            lane.breaker.fail("no replica confirms")

    def _note_error(self, call: PendingCall, node: Node, lane: Lane, text: str) -> None:
        """Learn from an error reply how to go on. StockUnavailableError where there is no going on."""
        if means_the_node(text):
            lane.breaker.fail(text)
        elif not lane.breaker.is_closed:
            lane.breaker.succeed()
        code = text.partition(" ")[0]
        self.metrics.redis_errors.labels(error_kind(code)).inc()
        if code not in ("NOSCRIPT", "ASK"):
            self._refresh_soon()
        if code == "NOREPLICAS":
            self._alone.doubt(call.partition)
        moved_to = call.note_error(node, text)
        if moved_to is not None:
            self._place(call.partition, moved_to)

    def _lane(self, node: Node, kind: LaneKind) -> Lane:
        lane = self._lanes.get((node, kind))
        if lane is None:
            replicas = REPLICAS_CONFIRMING if self._waits(kind) else 0
            options = _lane_options(self.settings, replicas=replicas)
            lane = Lane(node, options, self.metrics, self._breaker(node, kind))
            self._lanes[node, kind] = lane
        return lane

    def _breaker(self, node: Node, kind: LaneKind) -> Breaker:
        clock = asyncio.get_running_loop().time
        breaker = Breaker(clock, on_open=partial(self._note_open, node, kind))
        shown = self.metrics.breaker_state.labels(str(node), kind)
        shown.set_function(lambda: breaker.state)
        return breaker

    def _waits(self, kind: LaneKind) -> bool:
        if kind is LaneKind.WRITE:
            return self.settings.confirms
        return kind is LaneKind.MOVE

    def _refresh_soon(self) -> None:
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(self._refresh_paced(), name="topology")

    async def _refresh_paced(self) -> None:
        await self._refresh()
        await asyncio.sleep(TOPOLOGY_PAUSE_S)

    async def _refresh(self) -> str:
        """Read which master has which slot; on failure the old map stays. Returns what went wrong."""
        try:
            await self._topology.nodes_manager.initialize()
        except (RedisError, RedisClusterException, OSError) as error:
            self.metrics.redis_errors.labels("topology").inc()
            return str(error).partition("\n")[0]
        slots = self._topology.nodes_manager.slots_cache
        for partition, slot in enumerate(self._slots):
            owners = slots.get(slot)
            if owners:
                self._place(partition, Node(str(owners[0].host), int(owners[0].port)))
        self._forget_former_masters()
        return ""

    def _place(self, partition: int, node: Node) -> None:
        """A node that is new to a partition may have no replica: a WAIT would keep it from saying so."""
        if self._nodes[partition] != node:
            self._nodes[partition] = node
            self._alone.doubt(partition)
            self._witness.forget(partition)
            self.moved.set()

    def _forget_former_masters(self) -> None:
        """Nobody asks them for anything, so nobody would ever learn that they are back."""
        masters = set(self._nodes)
        for (node, _), lane in self._lanes.items():
            if node not in masters:
                lane.breaker.succeed()


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
        # Both are commands of later versions: an error each, with every connection, before 7.2 and 8.
        driver_info=None,
        maint_notifications_config=MaintNotificationsConfig(enabled=False),
    )
