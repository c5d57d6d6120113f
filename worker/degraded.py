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

log = structlog.get_logger()


def is_left_alone(state: Replication, *, lacking_s: float, is_empty: bool = False) -> bool:
    """Whether a node that has had no replica in sync for so long is not to wait for one any more.

    `is_empty`: it has nothing of the partition. It may be new, and its replicas about to be introduced.
    """
    if state.in_sync or (is_empty and state.known):
        return False
    waits = state.known or is_empty
    return not waits or lacking_s >= SYNC_GRACE_S


class Replicas:
    """The replicas of masters, as far as opening partitions depends on them."""

    def __init__(self, cluster: Cluster, settings: WorkerSettings, metrics: WorkerMetrics) -> None:
        self._cluster = cluster
        self._nodes = Nodes(cluster)
        self._metrics = metrics
        self._without_failover = settings.degraded_without_failover == "on"
        self._asked: dict[Node, tuple[float, asyncio.Task[Replication]]] = {}
        self._demanded: dict[Node, tuple[Replication, asyncio.Task[None]]] = {}
        """What was changed at a node after it had said that."""
        self._lacking: dict[Node, tuple[float, float]] = {}
        """Since when nodes were seen to lack a replica, and when that was seen last."""
        self._trouble: dict[Node | None, str] = {}

    async def opens_degraded(self, partition: int, head: PartitionHead) -> bool:
        """Whether a partition that is shut is to be opened without a replica, because a failover has
        left its node with none; from then on the node writes without one."""
        # One that is being restored may have come here from another node in the middle of it.
        if head.reason in ("NEW_OWNER", "RESTORING") or head.is_degraded:
            return await self._known(self._goes_on_alone(partition), partition)
        # A node that was promoted and then emptied cannot say so; a fresh one has replicas.
        if head.reason == "NO_HEAD":
            return await self._known(self._goes_on_alone(partition, is_empty=True), partition)
        return False

    async def changes(self, partition: int, head: PartitionHead) -> bool:
        """Whether a partition that is open is to be opened once more, because it was degraded and its
        node has a replica again, or the other way round."""
        return await self._known(self._changes(partition, head), partition)

    async def _changes(self, partition: int, head: PartitionHead) -> bool:
        node, state = await self._state(partition)
        if state.in_sync:
            await self._note_followed(node, state)
            return head.is_degraded
        if head.is_degraded:
            await self._demand(node, state, alone=True)
            return False
        return self._without_failover and await self._goes_on_alone(partition)

    async def _goes_on_alone(self, partition: int, *, is_empty: bool = False) -> bool:
        node, state = await self._state(partition)
        if state.in_sync:
            await self._note_followed(node, state)
            return False
        if not is_left_alone(state, lacking_s=self._lacking_s(node), is_empty=is_empty):
            return False
        await self._demand(node, state, alone=True)
        return True

    def _lacking_s(self, node: Node) -> float:
        """How long a node has lacked a replica. What nobody looked at meanwhile may have had one."""
        now_s = time.monotonic()
        since_s, looked_s = self._lacking.get(node, (now_s, now_s))
        if now_s - looked_s > SYNC_GRACE_S:
            since_s = now_s
        self._lacking[node] = since_s, now_s
        return now_s - since_s

    async def _note_followed(self, node: Node, state: Replication) -> None:
        self._lacking.pop(node, None)
        await self._demand(node, state, alone=False)

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

    async def _demand(self, node: Node, state: Replication, *, alone: bool) -> None:
        """Have a node write without replicas, or not without them; once for all of its partitions."""
        if (state.demanded == 0) == alone:
            return
        seen, changing = self._demanded.get(node, (None, None))
        if changing is None or seen is not state:
            changing = asyncio.create_task(self._change_demand(node, alone=alone), name="demand")
            self._demanded[node] = state, changing
        await asyncio.shield(changing)

    async def _change_demand(self, node: Node, *, alone: bool) -> None:
        replicas = 0 if alone else await self._usual_demand(node)
        if alone or replicas:
            await self._nodes.demand(node, replicas)
            self._asked.pop(node, None)
            log.warning("replicas that a node demands", node=node, replicas=replicas)

    async def _usual_demand(self, node: Node) -> int:
        """What the other masters demand, which are set up alike; at least what the durability needs."""
        others = [each for each in self._cluster.masters() if each != node]
        said = await asyncio.gather(*map(self._nodes.demanded, others), return_exceptions=True)
        least = 1 if self._cluster.settings.confirms else 0
        return max(least, *(found for found in said if isinstance(found, int)), 0)

    async def _state(self, partition: int) -> tuple[Node, Replication]:
        node = self._cluster.node_of(partition)
        if node is None:
            raise StockUnavailableError(Reason.NOT_EXECUTED, "no node has this partition")
        since_s, asked = self._asked.get(node, (-FRESH_S, None))
        if asked is None or time.monotonic() > since_s + FRESH_S:
            asked = asyncio.create_task(self._nodes.replication(node), name="ask for replicas")
            self._asked[node] = time.monotonic(), asked
        return node, await asyncio.shield(asked)
