"""Masters without a replica: whether their partitions are opened so that nobody waits for one."""

import asyncio
import time
from collections.abc import Awaitable

import structlog

from sharding.cluster import Cluster
from sharding.errors import StockUnavailableError
from sharding.lane import Node
from sharding.nodes import Nodes, Replication
from sharding.outcomes import Reason
from sharding.partitions import PartitionHead
from worker.metrics import WorkerMetrics
from worker.settings import WorkerSettings

FRESH_S = 0.5
"""How long what a node said of its replicas is taken for true; partitions of one node ask together."""
SYNC_GRACE_S = 3.0
"""How long a replica that is there but not in sync is waited for before sales go on without it."""
DEMANDED = 1
"""Replicas that a master in order does not write without."""

log = structlog.get_logger()


class Replicas:
    """The replicas of masters, as far as opening partitions depends on them."""

    def __init__(self, cluster: Cluster, settings: WorkerSettings, metrics: WorkerMetrics) -> None:
        self._cluster = cluster
        self._nodes = Nodes(cluster)
        self._metrics = metrics
        self._without_failover = settings.degraded_without_failover == "on"
        self._asked: dict[Node, tuple[float, asyncio.Task[Replication]]] = {}
        self._demanded: dict[Node, tuple[Replication, asyncio.Task[None]]] = {}
        """What was asked of a node after it had said that; once for all of its partitions."""
        self._lacking_since_s: dict[Node, float] = {}
        self._trouble: dict[Node | None, str] = {}

    async def opens_degraded(self, partition: int, head: PartitionHead) -> bool:
        """Whether a partition that is shut is to be opened without a replica, because a failover has
        left its node with none; from then on the node writes without one."""
        if head.reason != "NEW_OWNER" and not head.is_degraded:
            return False
        return await self._known(self._goes_on_alone(partition), partition)

    async def changes(self, partition: int, head: PartitionHead) -> bool:
        """Whether a partition that is open is to be opened once more, because it was degraded and its
        node has a replica again, or the other way round."""
        return await self._known(self._changes(partition, head), partition)

    async def _changes(self, partition: int, head: PartitionHead) -> bool:
        node, state = await self._state(partition)
        if state.in_sync:
            self._lacking_since_s.pop(node, None)
            await self._demand(node, state, DEMANDED)
            return head.is_degraded
        if head.is_degraded:
            await self._demand(node, state, 0)
            return False
        return self._without_failover and await self._goes_on_alone(partition)

    async def _goes_on_alone(self, partition: int) -> bool:
        node, state = await self._state(partition)
        if state.in_sync:
            return False
        since_s = self._lacking_since_s.setdefault(node, time.monotonic())
        if state.known and time.monotonic() < since_s + SYNC_GRACE_S:
            return False
        await self._demand(node, state, 0)
        return True

    async def _known(self, answer: Awaitable[bool], partition: int) -> bool:
        """False where the node does not answer or may not be asked, which is said once."""
        node = self._cluster.node_of(partition)
        try:
            found = await answer
        except StockUnavailableError as error:
            self._metrics.failures.labels("replicas").inc()
            if self._trouble.get(node) != error.detail:
                self._trouble[node] = error.detail
                log.warning("a node does not say what replicas it has", node=node, why=error.detail)
            return False
        self._trouble.pop(node, None)
        return found

    async def _demand(self, node: Node, state: Replication, replicas: int) -> None:
        """Where the demand is not what it is to be: 0, or at least so many."""
        if (state.demanded == 0) == (replicas == 0):
            return
        seen, demanding = self._demanded.get(node, (None, None))
        if demanding is None or seen is not state:
            demanding = asyncio.create_task(
                self._nodes.demand(node, replicas), name="demand replicas"
            )
            self._demanded[node] = state, demanding
            log.warning("replicas that a node demands", node=node, replicas=replicas)
        await asyncio.shield(demanding)
        self._asked.pop(node, None)

    async def _state(self, partition: int) -> tuple[Node, Replication]:
        node = self._cluster.node_of(partition)
        if node is None:
            raise StockUnavailableError(Reason.NOT_EXECUTED, "no node has this partition")
        since_s, asked = self._asked.get(node, (-FRESH_S, None))
        if asked is None or time.monotonic() > since_s + FRESH_S:
            asked = asyncio.create_task(self._nodes.replication(node), name="ask for replicas")
            self._asked[node] = time.monotonic(), asked
        return node, await asyncio.shield(asked)
