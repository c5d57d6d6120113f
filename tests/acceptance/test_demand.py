"""A product that many ask for gets more shards by itself, and fewer when they have gone."""

from collections.abc import AsyncIterator

import pytest

from deploy.local.waiting import until
from inventory.client import AsyncInventoryClient
from tests.acceptance.load import load
from tests.acceptance.shop import WORKERS, Shop

NUMBER = 2
"""Of a server and a worker beside those of the shop."""
STOP_GRACE_S = 12.0
SCALED_WITHIN_S = 45.0
SETTINGS = {
    "INVENTORY_HOT_RATE_PER_S": "60",
    "INVENTORY_COLD_AFTER_S": "2",
    "INVENTORY_DEFAULT_SHARDS": "1",
}
"""What a test can reach; half of the rate is left to each shard."""


@pytest.fixture
async def client(shop: Shop) -> AsyncIterator[AsyncInventoryClient]:
    """Of a server that calls a product hot early, as the only worker does."""
    for number in WORKERS:
        await shop.stack.workers[number].stop(grace_s=STOP_GRACE_S)
    worker = await shop.stack.start_worker(NUMBER, environment=SETTINGS)
    server = await shop.stack.start_server(NUMBER, environment=SETTINGS)
    yield await shop.client(shop.stack.grpc_address(NUMBER))
    await server.stop(grace_s=STOP_GRACE_S)
    await worker.stop(grace_s=STOP_GRACE_S)
    del shop.stack.servers[NUMBER], shop.stack.workers[NUMBER]
    await shop.start_workers()


async def test_a_hot_product_grows_and_a_cold_one_shrinks(
    shop: Shop, client: AsyncInventoryClient
) -> None:
    product, pinned = await shop.on_sale(1_000_000, shards=0), await shop.on_sale(100, shards=6)
    await client.set_shards(product, 1)
    await client.set_shards(product, 0)

    async def has_shards(few: bool) -> bool:
        row = await client.get_product(product)
        assert row.pinned_shards == 0
        return (row.shards == 1) if few else (row.shards > 1)

    async with load(client, product) as buyers:
        await until(
            lambda: has_shards(few=False), what="it has more shards", within_s=SCALED_WITHIN_S
        )
    await until(lambda: has_shards(few=True), what="it has one shard", within_s=SCALED_WITHIN_S)
    assert (await client.get_product(pinned)).shards == 6
    await shop.assert_balanced(product, accepted=buyers.accepted)
