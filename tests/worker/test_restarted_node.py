"""A node that comes back by itself may have older data, and nobody was promoted who could know."""

import shutil
from collections.abc import AsyncIterator

import pytest
from prometheus_client import CollectorRegistry

from deploy.local.redis_cluster import RedisNode
from deploy.local.stack import LocalStack
from sharding.cluster import Cluster
from sharding.errors import StockUnavailableError
from sharding.metrics import StockMetrics
from sharding.outcomes import Deduction, Outcome
from sharding.partitions import NOTHING_APPLIED, Partitions
from sharding.stock import Stock
from tests.ledger.streams import fresh_request_ids
from tests.waiting import eventually
from tests.worker.conftest import PARTITIONS, StartWorker, World, all_open, world_on

UNITS = 10_000
REQUESTS = 60
APPEND_ONLY = "appendonlydir"


@pytest.fixture
async def stack() -> AsyncIterator[LocalStack]:
    """One whose nodes may be killed."""
    async with LocalStack() as made:
        await made.start_services()
        yield made


@pytest.fixture
async def world(stack: LocalStack) -> AsyncIterator[World]:
    async with world_on(stack) as made:
        yield made


async def reasons(world: World) -> set[str]:
    """Why partitions are shut; of those that are open an empty one."""
    return {(await world.partitions.head(each)).reason for each in range(PARTITIONS)}


def keep_data(node: RedisNode) -> None:
    """As a snapshot of its disk does."""
    shutil.copytree(node.directory / APPEND_ONLY, node.directory / "older")


async def come_back(node: RedisNode, *, with_older_data: bool) -> None:
    """As the same node of the cluster that it was."""
    node.process.kill()
    if with_older_data:
        shutil.rmtree(node.directory / APPEND_ONLY)
        shutil.move(node.directory / "older", node.directory / APPEND_ONLY)
    await node.process.start()
    await eventually(node.settled)


@pytest.mark.parametrize("with_older_data", [True, False])
async def test_a_node_that_comes_back_by_itself_sells_nothing_before_it_was_compared(
    stack: LocalStack, world: World, start_worker: StartWorker, *, with_older_data: bool
) -> None:
    first = start_worker()
    await eventually(lambda: all_open(world.partitions))
    product = await world.on_sale(UNITS)
    master, replica = stack.redis[0], stack.redis[3]
    await replica.call("CONFIG", "SET", "cluster-replica-no-failover", "yes")
    keep_data(master)
    names = fresh_request_ids(REQUESTS)
    answers = await world.stock.deduct([Deduction(name, product, 1) for name in names])
    assert {answer.outcome for answer in answers} == {Outcome.DEDUCTED}
    await eventually(lambda: world.is_sold(product, REQUESTS))
    assert await first.stop() == 0
    await come_back(master, with_older_data=with_older_data)

    # A process that is new knows nothing of what the node has forgotten.
    settings = world.cluster.settings.model_copy(update={"redis_patience_ms": 200})
    metrics = StockMetrics(CollectorRegistry())
    fresh = await Cluster.connect(settings, metrics)
    stock, looking = Stock(fresh, metrics), Partitions(fresh, partitions=PARTITIONS)
    masters = fresh.masters()
    there = next(each for node, each in masters.items() if node.port == master.port)
    for partition in there:
        with pytest.raises(StockUnavailableError, match="RESTARTED"):
            await looking.replicated(partition, ledger=0, last=NOTHING_APPLIED)
    assert await reasons(world) == {"", "RESTARTED"}

    start_worker()
    await eventually(lambda: all_open(world.partitions))
    again = await stock.deduct([Deduction(name, product, 1, attempt=2) for name in names])
    assert all(answer.replayed for answer in again)
    found = await stock.read(product)
    assert found is not None
    assert (found.sold, found.available) == (REQUESTS, UNITS - REQUESTS)
    await stock.drain()
    await fresh.close()
