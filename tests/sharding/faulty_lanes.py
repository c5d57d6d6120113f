"""A process whose connections to Redis fail on demand, always after the node has done its work."""

import asyncio
import re
from collections import deque
from functools import cache
from math import inf
from typing import NamedTuple

from hiredis import Reader, ReplyError
from redis.asyncio.cluster import RedisCluster

from sharding.cluster import REPLICAS_CONFIRMING, Cluster, LaneKind, _lane_options
from sharding.lane import Lane, LaneOptions, Node, NotSentError, _Call, packed
from sharding.metrics import StockMetrics
from sharding.scripts import Script, script
from sharding.settings import StockSettings

WRITING = (
    *("deduct", "put", "take", "ack", "restock", "remove", "gather", "resolve"),
    *("load", "state", "close", "tell", "prepare", "commit", "inform"),
    *("decide", "settle", "order"),
)
"""Scripts whose calls may be delivered a second time, much later."""
COPIES_MAX = 300


class Copy(NamedTuple):
    """A script call as it was sent."""

    node: Node
    kind: LaneKind
    script: Script
    keys: tuple[bytes, ...]
    args: tuple[bytes, ...]

    def argument(self, name: str) -> bytes:
        """The argument that the script's header gives that name."""
        found = re.search(rf"^-- ARGV\[(\d+)\] {name} ", self.script.source, re.MULTILINE)
        assert found is not None
        return self.args[int(found[1]) - 1]


class Faults:
    """What is to go wrong on all lanes of one process.

    `losing` rounds lose their replies, then `unconfirmed` ones hear of no replica. After
    `rounds_to_live` rounds the process is dead: it sends nothing and hears nothing. `spoiled` counts.
    """

    def __init__(self) -> None:
        self.losing = 0
        self.unconfirmed = 0
        self.spares_reads = False
        self.rounds_to_live = inf
        self.dies_deaf = False
        self.spoiled = 0
        self.copies: deque[Copy] = deque(maxlen=COPIES_MAX)

    @property
    def is_dead(self) -> bool:
        return self.rounds_to_live <= 0

    def heal(self) -> None:
        """Nothing fails from here on."""
        self.losing = self.unconfirmed = 0
        self.rounds_to_live = inf

    def loses(self, kind: LaneKind) -> bool:
        """Whether the round that has just been done loses its replies."""
        self.rounds_to_live -= 1
        if self.rounds_to_live < 0 or (self.dies_deaf and self.rounds_to_live == 0):
            return True
        if not self.losing or (self.spares_reads and kind is LaneKind.READ):
            return False
        self.losing -= 1
        self.spoiled += 1
        return True

    def leaves_unconfirmed(self) -> bool:
        """Whether the round, which waited for a replica, hears of none."""
        if not self.unconfirmed:
            return False
        self.unconfirmed -= 1
        self.spoiled += 1
        return True


class FaultyLane(Lane):
    """A lane that fails as its process's faults say, and keeps copies of what it sent."""

    def __init__(
        self,
        node: Node,
        kind: LaneKind,
        options: LaneOptions,
        metrics: StockMetrics,
        faults: Faults,
    ) -> None:
        super().__init__(node, options, metrics)
        self._kind = kind
        self._faults = faults

    def call(
        self,
        command: bytes,
        *,
        is_script: bool = False,
        asking: bool = False,
        deadline: float = inf,
    ) -> asyncio.Future[object]:
        if self._faults.is_dead:
            future: asyncio.Future[object] = self._loop.create_future()
            future.set_exception(NotSentError("the process is dead"))
            return future
        return super().call(command, is_script=is_script, asking=asking, deadline=deadline)

    def _next_calls(self) -> list[_Call]:
        if self._faults.is_dead:
            self._fail_queue("the process is dead")
        return super()._next_calls()

    def _send(self, calls: list[_Call], *, waits: bool) -> None:
        copies = (
            _copy(self._node, self._kind, call.command + self._run)
            for call in calls
            if call.is_script
        )
        self._faults.copies += (copy for copy in copies if copy is not None)
        super()._send(calls, waits=waits)

    def _take_reply(self, reply: object) -> None:
        under_way = self._round
        if under_way is not None and len(under_way.replies) + 1 == under_way.expected:
            if self._faults.loses(self._kind):
                # The node has done all of it; breaking the connection loses the round's replies.
                self._abort()
                return
            if under_way.waits and self._faults.leaves_unconfirmed():
                reply = 0
        super()._take_reply(reply)


class FaultyCluster(Cluster):
    """A process's view of the cluster, over faulty lanes."""

    def __init__(
        self,
        settings: StockSettings,
        metrics: StockMetrics,
        topology: RedisCluster,
        *,
        ledgers: int = 1,
    ) -> None:
        super().__init__(settings, metrics, topology, ledgers=ledgers)
        self.faults = Faults()

    def _lane(self, node: Node, kind: LaneKind) -> Lane:
        lane = self._lanes.get((node, kind))
        if lane is None:
            replicas = REPLICAS_CONFIRMING if self._waits(kind) else 0
            options = _lane_options(self.settings, replicas=replicas)
            lane = FaultyLane(node, kind, options, self.metrics, self.faults)
            self._lanes[node, kind] = lane
        return lane

    async def deliver(self, copy: Copy) -> list[object]:
        """Let a node run an earlier call once more; returns its reply, which nobody else hears."""
        head = ("EVAL", copy.script.source, str(len(copy.keys)))
        command: list[str | bytes] = [*head, *copy.keys, *copy.args]
        reply = await self._lane(copy.node, copy.kind).call(packed(command))
        assert not isinstance(reply, ReplyError), reply
        assert isinstance(reply, list)
        return reply


def _copy(node: Node, kind: LaneKind, command: bytes) -> Copy | None:
    """The script call in a packed command; None where it is another command or only reads."""
    if b"EVALSHA" not in command[:32]:
        return None
    reader = Reader()
    reader.feed(command)
    _, digest, keys, *rest = reader.gets()
    name = _names().get(digest)
    if name is None:
        return None
    return Copy(node, kind, script(name), tuple(rest[: int(keys)]), tuple(rest[int(keys) :]))


@cache
def _names() -> dict[bytes, str]:
    return {script(name).digest.encode(): name for name in WRITING}
