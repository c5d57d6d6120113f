"""Redis is emptied for real, under servers and workers with a ledger of two MySQL servers."""

from redis.asyncio.cluster import ClusterNode, RedisCluster

from tests.acceptance.shop import Shop
from tests.servers.conftest import MYSQL_SERVERS
from tests.servers.test_two_servers import (
    UNITS,
    of_worker,
    one_of_each,
    sold_of_each,
    until_applied,
)
from tests.waiting import eventually

EARLY, BUYERS = 50, 150
RESTORED = "inventory_worker_partitions_restored_total"


async def flush(twins: Shop) -> None:
    """FLUSHALL on every master, and so on every replica."""
    nodes = [ClusterNode(*address.split(":")) for address in twins.stack.redis_nodes]
    async with RedisCluster(startup_nodes=nodes) as redis:
        await redis.flushall(target_nodes=RedisCluster.PRIMARIES)


async def restored(twins: Shop) -> float:
    """How many partitions the workers have restored so far."""
    found = [await of_worker(twins, worker, RESTORED) for worker in (0, 1)]
    return sum(value for each in found for value in each.values())


async def test_an_emptied_cluster_comes_back_alone_and_sells_no_unit_twice(twins: Shop) -> None:
    products = await one_of_each(twins)
    early = await sold_of_each(twins, products, "early", EARLY)
    for product_id, accepted in zip(products, early, strict=True):
        assert len(accepted) == EARLY
        await until_applied(twins, product_id, EARLY)
    before = await restored(twins)
    await flush(twins)
    late = await sold_of_each(twins, products, "late", BUYERS)
    for server in MYSQL_SERVERS:
        assert len(early[server]) + len(late[server]) == UNITS
        await twins.assert_balanced(products[server], accepted=early[server] | late[server])
    partitions = len((await twins.caller.get_cluster()).partitions)

    async def all_are_counted() -> bool:
        return await restored(twins) >= before + partitions

    await eventually(all_are_counted)
