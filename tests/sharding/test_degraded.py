"""Where a node has no replica nobody waits for one, and only in the generation that was opened so."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count

import pytest
from prometheus_client import CollectorRegistry

from deploy.local.redis_cluster import RedisNode
from deploy.local.stack import LocalStack
from sharding import keys
from sharding.cluster import Cluster, LaneKind
from sharding.errors import StockUnavailableError
from sharding.events import EventId, anchor
from sharding.fitness import MIN_REPLICAS
from sharding.lane import Node
from sharding.metrics import StockMetrics
from sharding.nodes import Nodes
from sharding.outcomes import Reason
from sharding.partitions import NOTHING_APPLIED, Checkpoint, PartitionHead, Partitions
from sharding.scripts import script
from sharding.settings import Durability
from tests.sharding.conftest import entries_of, settings_for
from tests.waiting import eventually

PARTITIONS = 64
"""Of which no other test uses a tag."""
TIMEOUT_MS = 200
MODES: tuple[Durability, ...] = ("replicated", "fast", "synced")
_on_the_first_node = count()


async def connected(services: LocalStack, durability: Durability = "replicated") -> Cluster:
    """A process that gives up soon."""
    settings = settings_for(
        services,
        partitions=PARTITIONS,
        default_shards=1,
        durability=durability,
        redis_timeout_ms=TIMEOUT_MS,
        redis_patience_ms=3 * TIMEOUT_MS,
    )
    return await Cluster.connect(settings, StockMetrics(CollectorRegistry()))


@pytest.fixture(scope="module")
async def cluster(services: LocalStack) -> AsyncIterator[Cluster]:
    made = await connected(services)
    yield made
    await made.close()


@pytest.fixture
async def newcomer(services: LocalStack) -> AsyncIterator[Partitions]:
    """A process that has not spoken to any partition."""
    made = await connected(services)
    yield Partitions(made, partitions=PARTITIONS)
    await made.close()


@pytest.fixture
def partitions(cluster: Cluster) -> Partitions:
    return Partitions(cluster, partitions=PARTITIONS)


@pytest.fixture
def partition(cluster: Cluster) -> int:
    """A fresh one, always of the same node."""
    first, *_ = cluster.masters().values()
    return first[next(_on_the_first_node)]


async def replica_of(services: LocalStack, node: Node) -> RedisNode:
    for each in services.redis:
        said = await each.call("INFO", "replication")
        if said.get("master_port") == node.port:
            return each
    raise AssertionError(f"{node} has no replica")


@asynccontextmanager
async def without_replica(
    services: LocalStack, cluster: Cluster, partition: int
) -> AsyncIterator[None]:
    """Within the block nothing is replicated, and the partition's node writes all the same."""
    node, nodes = cluster.node_of(partition), Nodes(cluster)
    assert node is not None
    replica = await replica_of(services, node)
    await nodes.demand(node, 0)
    replica.process.pause()
    try:
        yield
    finally:
        replica.process.resume()
        await nodes.demand(node, 1)

        async def is_followed() -> bool:
            return (await nodes.replication(node)).in_sync > 0

        await eventually(is_followed)


async def acts(partitions: Partitions, partition: int) -> bool:
    """One fenced write that waits for a replica where others do."""
    return await partitions.replicated(partition, ledger=0, last=Checkpoint(EventId(9, 9), ""))


async def reopened(
    partitions: Partitions, partition: int, opening: int, *, degraded: bool
) -> PartitionHead:
    newest = (await entries_of(partitions, partition))[-1]
    checkpoint = Checkpoint(newest.id, anchor(newest.fields))
    return await partitions.open(partition, [checkpoint], opening=opening, degraded=degraded)


async def test_a_degraded_partition_obeys_without_a_replica_and_says_so(
    services: LocalStack,
    cluster: Cluster,
    partitions: Partitions,
    newcomer: Partitions,
    partition: int,
) -> None:
    async with without_replica(services, cluster, partition):
        opened = await partitions.open(partition, [NOTHING_APPLIED], opening=1, degraded=True)
        assert opened.is_degraded
        assert (await newcomer.head(partition)).is_degraded
        for process in (partitions, newcomer, newcomer):
            assert not await acts(process, partition)


@pytest.mark.parametrize("durability", MODES)
async def test_steps_of_transfers_and_decisions_do_not_wait_either(
    services: LocalStack,
    cluster: Cluster,
    partitions: Partitions,
    partition: int,
    durability: Durability,
) -> None:
    await partitions.open(partition, [NOTHING_APPLIED], opening=1, degraded=True)
    other = await connected(services, durability)
    tag = other.tags[partition]
    async with without_replica(services, cluster, partition):
        arguments = [keys.head(tag), keys.events(tag, 0)], ["9-9"]
        await other.run(script("confirm"), partition, *arguments, lane=LaneKind.MOVE)
    await other.close()


async def test_a_partition_that_is_not_degraded_goes_on_waiting_for_a_replica(
    services: LocalStack, cluster: Cluster, partitions: Partitions, partition: int
) -> None:
    await partitions.open(partition, [NOTHING_APPLIED], opening=1)
    async with without_replica(services, cluster, partition):
        with pytest.raises(StockUnavailableError) as failure:
            await acts(partitions, partition)
    assert failure.value.reason is Reason.NOT_REPLICATED
    assert not await acts(partitions, partition)


async def test_who_did_not_wait_asks_again_when_the_generation_is_another_one(
    services: LocalStack,
    cluster: Cluster,
    partitions: Partitions,
    newcomer: Partitions,
    partition: int,
) -> None:
    await partitions.open(partition, [NOTHING_APPLIED], opening=1, degraded=True)
    assert not await acts(newcomer, partition)
    await reopened(partitions, partition, 2, degraded=False)
    async with without_replica(services, cluster, partition):
        with pytest.raises(StockUnavailableError) as failure:
            await acts(newcomer, partition)
    assert failure.value.reason is Reason.NOT_REPLICATED
    assert not await acts(newcomer, partition)
    assert not (await newcomer.head(partition)).is_degraded


async def test_a_partition_that_becomes_degraded_stops_waiting_in_every_process(
    services: LocalStack,
    cluster: Cluster,
    partitions: Partitions,
    newcomer: Partitions,
    partition: int,
) -> None:
    await partitions.open(partition, [NOTHING_APPLIED], opening=1)
    assert not await acts(newcomer, partition)
    async with without_replica(services, cluster, partition):
        await reopened(partitions, partition, 2, degraded=True)
        assert not await acts(newcomer, partition)


async def test_degraded_mode_is_not_left_before_a_replica_has_everything(
    services: LocalStack, cluster: Cluster, partitions: Partitions, partition: int
) -> None:
    async with without_replica(services, cluster, partition):
        await partitions.open(partition, [NOTHING_APPLIED], opening=1, degraded=True)
        with pytest.raises(StockUnavailableError) as failure:
            await reopened(partitions, partition, 2, degraded=False)
    assert failure.value.reason is Reason.NOT_REPLICATED


async def test_a_steps_way_to_a_partition_that_is_shut_waits_for_nobody(
    services: LocalStack, cluster: Cluster, newcomer: Partitions, partition: int
) -> None:
    """A node that was just promoted is told what to freeze before it is opened."""
    async with without_replica(services, cluster, partition):
        with pytest.raises(StockUnavailableError, match="NO_HEAD") as failure:
            await acts(newcomer, partition)
        assert failure.value.reason is Reason.PARTITION_FENCED
        assert await cluster.lane_of(partition, LaneKind.MOVE) is LaneKind.ALONE


async def test_a_node_says_how_many_replicas_it_has_and_demands(
    services: LocalStack, cluster: Cluster, partition: int
) -> None:
    node, nodes = cluster.node_of(partition), Nodes(cluster)
    assert node is not None
    assert await nodes.replication(node) == (1, 1, 1)
    await nodes.demand(node, 2)
    try:
        assert (await nodes.settings(node, MIN_REPLICAS)) == {MIN_REPLICAS: "2"}
        assert (await nodes.replication(node)).demanded == 2
    finally:
        await nodes.demand(node, 1)


async def test_an_opening_that_was_judged_before_another_one_changes_nothing(
    partitions: Partitions, partition: int
) -> None:
    """Whoever was stopped between the two does not know of the replica that is back."""
    await partitions.open(partition, [NOTHING_APPLIED], opening=1)
    await partitions.open(partition, [NOTHING_APPLIED], opening=2)
    late = await partitions.open(partition, [NOTHING_APPLIED], opening=3, degraded=True, judged=1)
    assert (late.generation, late.is_degraded, late.was_opened) == (2, False, False)
    again = await partitions.open(partition, [NOTHING_APPLIED], opening=4, judged=2)
    assert (again.generation, again.was_opened) == (4, True)


async def test_the_mark_of_an_earlier_generation_means_nothing(
    cluster: Cluster, partitions: Partitions, partition: int
) -> None:
    await partitions.open(partition, [NOTHING_APPLIED], opening=1)
    head = keys.head(cluster.tags[partition])
    await cluster.command(partition, "HSET", head, "degraded", "7", lane=LaneKind.WRITE)
    assert not (await partitions.head(partition)).is_degraded


async def test_a_node_that_does_not_answer_is_unavailable_and_not_without_replicas(
    cluster: Cluster,
) -> None:
    with pytest.raises(StockUnavailableError):
        await Nodes(cluster).replication(Node("127.0.0.1", 1))


async def test_an_attempt_to_open_that_comes_late_makes_nothing_degraded(
    partitions: Partitions, partition: int
) -> None:
    await partitions.open(partition, [NOTHING_APPLIED], opening=1)
    await reopened(partitions, partition, 3, degraded=False)
    await reopened(partitions, partition, 2, degraded=True)
    after = await partitions.head(partition)
    assert (after.generation, after.is_degraded) == (3, False)
