"""Nodes, network and server processes of one simulation: the real kernel, everything else imagined."""

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import Context, ContextVar, copy_context
from math import inf
from random import Random
from typing import Any, TypeVar, cast

from prometheus_client import CollectorRegistry
from redis.asyncio.cluster import RedisCluster

from sharding.cluster import Cluster, LaneKind
from sharding.keys import tags
from sharding.lane import Lane, Node
from sharding.metrics import StockMetrics
from sharding.ordering import Orders
from sharding.partitions import Partitions
from sharding.settings import StockSettings
from sharding.slots import SLOTS, slot_of
from sharding.stock import Stock
from tests.simulation.loop import VirtualLoop
from tests.simulation.network import FIRST_PORT, Executed, Network, SimulatedLane
from tests.simulation.nodes import FakeNode, LuaEngine
from tests.simulation.trace import Trace
from worker.metrics import WorkerMetrics

Result = TypeVar("Result")

MASTERS = 3
PARTITIONS = 12
BACKLOG_MAX = 20
RENEWED = 1_000_000
"""Nodes that were renewed are numbered from here on."""

_running: ContextVar["Process | None"] = ContextVar("_running", default=None)


def owner_of(context: Context | None) -> "Process | None":
    """The server process that a task belongs to."""
    return _running.get() if context is None else context.get(_running)


class CrashedError(Exception):
    """The process ended before it answered; nobody knows what it did."""


class Equipment:
    """What simulations share, because it is costly to make and has no memory of what happened."""

    def __init__(
        self, alter: Callable[[bytes], bytes] = bytes, *, durability: str = "replicated"
    ) -> None:
        self.engine = LuaEngine(alter)
        self.metrics = StockMetrics(CollectorRegistry())
        self.worker_metrics = WorkerMetrics(CollectorRegistry())
        settings = StockSettings.model_validate(
            {
                "partitions": PARTITIONS,
                "default_shards": 6,
                "redis_timeout_ms": 1_000,
                "durability": durability,
            }
        )
        # Below what may be set, because a simulation is short.
        self.settings = settings.model_copy(update={"backlog_max": BACKLOG_MAX})


class SimulatedCluster(Cluster):
    """The real cluster client over lanes of the simulation."""

    def __init__(self, world: "World", process: "Process") -> None:
        # The topology client is only ever asked in `_refresh`, which is another one here.
        super().__init__(
            world.equipment.settings, world.equipment.metrics, cast(RedisCluster, None)
        )
        self._world = world
        self._process = process
        self._nodes = [Node("node", FIRST_PORT + owner) for owner in world.owners]

    async def _refresh(self) -> str:
        await asyncio.sleep(0.001)
        self._nodes = [Node("node", FIRST_PORT + owner) for owner in self._world.owners]
        return ""

    def _lane(self, node: Node, kind: LaneKind) -> Lane:
        lane = self._lanes.get((node, kind))
        if lane is None:
            made = SimulatedLane(
                self._world.network,
                self._process,
                self._world.nodes[node.port - FIRST_PORT],
                waits=self._waits(kind),
            )
            lane = self._lanes[node, kind] = cast(Lane, made)
        return lane


class Process:
    """A server process: a Stock, Orders and a Cluster of its own, and the tasks that run in its name."""

    def __init__(self, world: "World", name: str) -> None:
        self.name = name
        self.is_dead = False
        self.cluster = SimulatedCluster(world, self)
        self.stock = Stock(self.cluster, world.equipment.metrics)
        self.orders = Orders(self.stock, self.cluster, grace_s=world.grace_s)
        self.partitions = Partitions(self.cluster, partitions=PARTITIONS)
        # A dict keeps the order that a set of tasks would not have.
        self._tasks: dict[asyncio.Task[Any], None] = {}

    def adopt(self, task: asyncio.Task[Any]) -> None:
        """Have a task end with this process."""
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
        if self.is_dead:
            task.cancel()

    def crash(self) -> None:
        """End now; what is on the wire stays there."""
        self.is_dead = True
        for task in list(self._tasks):
            task.cancel()

    def ask(self, work: Callable[["Process"], Awaitable[Result]]) -> asyncio.Future[Result]:
        """Let the process do something; CrashedError if it ends before it is done."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Result] = loop.create_future()
        if self.is_dead:
            answer.set_exception(CrashedError())
            return answer
        context = copy_context()
        context.run(_running.set, self)
        task = loop.create_task(_carried_out(work, self), context=context)
        task.add_done_callback(lambda done: _hand_over(done, answer))
        return answer


async def _carried_out(work: Callable[[Process], Awaitable[Result]], process: Process) -> Result:
    return await work(process)


def _hand_over(done: asyncio.Task[Result], answer: asyncio.Future[Result]) -> None:
    if answer.done():
        return
    if done.cancelled():
        answer.set_exception(CrashedError())
    elif (error := done.exception()) is not None:
        answer.set_exception(error)
    else:
        answer.set_result(done.result())


class World:
    """Everything that a scenario plays in. Needs a running VirtualLoop."""

    def __init__(
        self, equipment: Equipment, rng: Random, loop: VirtualLoop, executed: Executed
    ) -> None:
        self.equipment = equipment
        self.rng = rng
        self.loop = loop
        self.trace = Trace(loop.time)
        self.tags = tags(PARTITIONS)
        # As deploy.local spreads them: contiguous slots, a third to each master.
        self.owners = [slot_of(tag) * MASTERS // SLOTS for tag in self.tags]
        self._partitions = {tag.encode(): partition for partition, tag in enumerate(self.tags)}
        self.nodes = [FakeNode(i, equipment.engine, loop.wall_s) for i in range(MASTERS)]
        self.network = Network(rng, self.trace, executed, self._redirection)
        self.processes: list[Process] = []
        self._started = 0
        self.grace_s = rng.choice((0.0, 0.0, 2.0))
        """What late confirmations are given."""
        self._renewed = 0
        self.is_losing = False
        """Whether a node is about to end."""

    def node_of(self, partition: int) -> FakeNode:
        """The node that has a partition now, dead or alive."""
        return self.nodes[self.owners[partition]]

    def promote_replica_of(self, dead: FakeNode) -> list[int]:
        """Have a node's replica take over; returns the partitions that it has now."""
        number = len(self.nodes)
        dead.lose_unconfirmed()
        self.nodes.append(FakeNode(number, self.equipment.engine, self.loop.wall_s, after=dead))
        taken = [p for p, owner in enumerate(self.owners) if owner == dead.number]
        for partition in taken:
            self.owners[partition] = number
        self.network.troubled_s[number] = self.loop.time()
        return taken

    def renew(self, node: FakeNode) -> None:
        """Have a node be another one, as after a restart without its configuration."""
        self._renewed += 1
        node.identity = b"%040x" % (RENEWED + self._renewed)

    def troubled_s(self, partition: int) -> float:
        """When the node of a partition was last not reached at once."""
        return self.network.troubled_s.get(self.owners[partition], -inf)

    def migrate(self, partition: int, to: FakeNode) -> None:
        """Move a partition with its keys to another node."""
        self.node_of(partition).hand_over(self.tags[partition].encode(), to)
        self.owners[partition] = to.number

    def _redirection(self, node: FakeNode, words: list[bytes]) -> str:
        key = words[3] if words[0] in (b"EVAL", b"EVALSHA") else words[1]
        partition = self._partitions[key.partition(b"{")[2].partition(b"}")[0]]
        owner = self.owners[partition]
        if owner == node.number:
            return ""
        return f"MOVED {slot_of(self.tags[partition])} node:{FIRST_PORT + owner}"

    def start_process(self) -> Process:
        """One more server process."""
        self._started += 1
        process = Process(self, f"s{self._started}")
        self.processes.append(process)
        return process

    def any_process(self) -> Process:
        """A process that is alive; where one has crashed, a fresh one takes over."""
        count = len(self.processes)
        self.processes = [process for process in self.processes if not process.is_dead]
        for _ in range(count - len(self.processes)):
            self.start_process()
        return self.rng.choice(self.processes)
