"""A promoted node that has no replica sells on, and waits for one again as soon as it has it."""

import signal
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from prometheus_client import CollectorRegistry

from deploy.local.redis_cluster import RedisNode
from deploy.local.stack import LocalStack
from ledger.failpoints import VARIABLE as FAILPOINTS
from ledger.freezes import Freezes
from sharding.cluster import Cluster
from sharding.fitness import MIN_REPLICAS
from sharding.metrics import StockMetrics
from sharding.nodes import Nodes
from sharding.outcomes import Deduction, Outcome
from sharding.settings import Durability
from tests.ledger.streams import fresh_request_ids
from tests.waiting import eventually
from tests.worker.conftest import (
    PARTITIONS,
    StartWorker,
    World,
    all_open,
    world_on,
)
from worker.degraded import Replicas
from worker.metrics import WorkerMetrics
from worker.settings import WorkerSettings

UNITS = 10_000
DIES_OPENING = FAILPOINTS.removeprefix("INVENTORY_")
OPENING = "worker.before_opening=kill"


@pytest.fixture(scope="module")
async def stack() -> AsyncIterator[LocalStack]:
    """One whose nodes may be killed."""
    async with LocalStack() as made:
        await made.start_services()
        yield made


@pytest.fixture(scope="module")
async def world(stack: LocalStack) -> AsyncIterator[World]:
    async with world_on(stack) as made:
        yield made


async def role(node: RedisNode) -> tuple[str, object]:
    said = await node.call("INFO", "replication")
    return said["role"], said.get("master_port")


async def pair(stack: LocalStack) -> tuple[RedisNode, RedisNode]:
    """A master and its replica."""
    replica = stack.redis[0]
    of, port = await role(replica)
    if of == "slave":
        return next(node for node in stack.redis if node.port == port), replica
    for each in stack.redis:
        if (await role(each))[1] == replica.port:
            return replica, each
    raise AssertionError("no replica")


async def promote(replica: RedisNode) -> None:
    """As the other masters do it after the node time-out."""
    await replica.call("CLUSTER", "FAILOVER", "TAKEOVER")


async def demanded(node: RedisNode) -> int:
    return int((await node.call("CONFIG", "GET", MIN_REPLICAS))[MIN_REPLICAS])


def demands(node: RedisNode, replicas: int) -> Callable[[], Awaitable[bool]]:
    async def check() -> bool:
        return await demanded(node) == replicas

    return check


async def degraded(world: World) -> int:
    """How many partitions are; 0 unless all are open."""
    heads = [await world.partitions.head(each) for each in range(PARTITIONS)]
    return sum(head.is_degraded for head in heads) if all(head.is_open for head in heads) else 0


async def none_is_degraded(world: World) -> bool:
    return await all_open(world.partitions) and not await degraded(world)


async def settled(stack: LocalStack) -> None:
    for node in stack.redis:
        await eventually(node.settled)


async def sell(world: World, product_id: int, requests: int) -> list[str]:
    """Requests of one unit, all accepted; returns their ids."""
    names = fresh_request_ids(requests)
    for name in names:
        (answer,) = await world.stock.deduct([Deduction(name, product_id, 1)])
        assert answer.outcome is Outcome.DEDUCTED
    return names


async def outcomes(world: World, product_id: int, requests: int) -> set[Outcome]:
    """What so many retries of requests come to that nobody has seen."""
    names = fresh_request_ids(requests)
    wanted = [Deduction(name, product_id, 1, attempt=2) for name in names]
    return {answer.outcome for answer in await world.stock.deduct(wanted)}


async def test_a_promoted_node_sells_without_a_replica_until_it_has_one(
    stack: LocalStack, world: World, start_worker: StartWorker
) -> None:
    worker = start_worker()
    await eventually(lambda: all_open(world.partitions))
    product, recalled = await world.on_sale(UNITS), await world.on_sale(UNITS)
    accepted = await sell(world, product, 20)
    await Freezes(world.database).freeze(recalled, reason="recalled", actor="ann")
    master, replica = await pair(stack)
    master.process.kill()
    await promote(replica)
    await eventually(lambda: degraded(world))
    assert await demanded(replica) == 0
    accepted += await sell(world, product, 40)

    async def is_frozen() -> bool:
        return await outcomes(world, recalled, 12) == {Outcome.FROZEN}

    await eventually(is_frozen)
    alone = await degraded(world)

    async def is_shown() -> bool:
        return await worker.metric("inventory_worker_degraded_partitions") == alone

    await eventually(is_shown)
    await eventually(lambda: world.is_sold(product, len(accepted)))

    await master.process.start()
    await eventually(lambda: none_is_degraded(world))
    await eventually(demands(replica, 1))
    accepted += await sell(world, product, 20)
    # What it sold alone the other has as well.
    replica.process.kill()
    await promote(master)
    await eventually(lambda: degraded(world))
    stock = await world.stock.read(product)
    assert stock is not None
    assert stock.sold == len(accepted)
    repeats = await world.stock.deduct(
        [Deduction(name, product, 1, attempt=2) for name in accepted]
    )
    assert all(answer.replayed for answer in repeats)
    await replica.process.start()
    await eventually(lambda: none_is_degraded(world))
    await settled(stack)


async def test_workers_that_die_between_two_steps_leave_it_to_the_next(
    stack: LocalStack, world: World, start_worker: StartWorker
) -> None:
    first = start_worker()
    await eventually(lambda: first.owns(PARTITIONS))
    await eventually(lambda: none_is_degraded(world))
    assert await first.stop() == 0
    product = await world.on_sale(UNITS)
    master, replica = await pair(stack)

    on_the_way_in = start_worker(**{DIES_OPENING: OPENING})
    await eventually(lambda: on_the_way_in.owns(PARTITIONS))
    master.process.kill()
    await promote(replica)
    assert await on_the_way_in.ended() == -signal.SIGKILL
    assert (await demanded(replica), await degraded(world)) == (0, 0)
    second = start_worker()
    await eventually(lambda: degraded(world))
    await sell(world, product, 20)
    assert await second.stop() == 0

    on_the_way_out = start_worker(**{DIES_OPENING: OPENING})
    await eventually(lambda: on_the_way_out.owns(PARTITIONS))
    await master.process.start()
    assert await on_the_way_out.ended() == -signal.SIGKILL
    assert await demanded(replica) == 1
    start_worker()
    await eventually(lambda: none_is_degraded(world))
    await sell(world, product, 20)
    await settled(stack)


@pytest.mark.parametrize(
    ("durability", "of_others", "expected"),
    [("replicated", 1, 1), ("replicated", 0, 1), ("fast", 1, 1), ("fast", 0, 0)],
)
async def test_a_demand_that_was_given_up_for_nothing_is_made_again(
    stack: LocalStack, world: World, durability: Durability, of_others: int, expected: int
) -> None:
    """A worker died on its way in, and the replica was back before another came."""
    settings = WorkerSettings.model_validate(
        {"redis_nodes": ",".join(stack.redis_nodes), "durability": durability}
    )
    masters = [node for node in stack.redis if await node.is_master()]
    cluster = await Cluster.connect(settings, StockMetrics(CollectorRegistry()))
    for node in masters:
        await node.call("CONFIG", "SET", MIN_REPLICAS, of_others)
    try:
        node = cluster.node_of(0)
        assert node is not None
        await Nodes(cluster).demand(node, 0)
        head = await world.partitions.head(0)
        replicas = Replicas(cluster, settings, WorkerMetrics(CollectorRegistry()))
        assert not await replicas.changes(0, head)
        assert await Nodes(cluster).demanded(node) == expected
    finally:
        for each in masters:
            await each.call("CONFIG", "SET", MIN_REPLICAS, 1)
        await cluster.close()


async def test_a_replica_that_is_lost_without_a_failover_stops_its_shards_unless_a_setting_says_else(
    stack: LocalStack, world: World, start_worker: StartWorker
) -> None:
    cautious = start_worker()
    await eventually(lambda: cautious.owns(PARTITIONS))
    await eventually(lambda: none_is_degraded(world))
    product, recalled = await world.on_sale(UNITS), await world.on_sale(UNITS)
    await Freezes(world.database).freeze(recalled, reason="recalled", actor="ann")
    master, replica = await pair(stack)
    replica.process.kill()

    async def is_refused() -> bool:
        return Outcome.UNAVAILABLE in await outcomes(world, product, 12)

    await eventually(is_refused)
    assert (await demanded(master), await degraded(world)) == (1, 0)
    assert await cautious.stop() == 0
    start_worker(DEGRADED_WITHOUT_FAILOVER="on")
    await eventually(lambda: degraded(world))
    await sell(world, product, 20)
    await replica.process.start()
    await eventually(lambda: none_is_degraded(world))
    assert await demanded(master) == 1


async def test_a_worker_does_not_start_on_nodes_that_break_the_promise_of_its_durability(
    world: World, start_worker: StartWorker
) -> None:
    worker = start_worker(DURABILITY="synced")
    assert await worker.ended() == 2
    assert worker.said("appendfsync is 'everysec'")
    assert worker.said("CONFIG SET appendfsync always")
