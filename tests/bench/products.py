"""The products that are sold while it is measured, and how they come on sale."""

import asyncio
from collections.abc import Sequence

from inventory.client import AsyncInventoryClient, NewProduct

ON_SALE, SOLD_OUT, RECORDED = 1, 2, 3
HOT = {1: 11, 3: 12, 6: 13, 12: 14, 24: 15}
"""A product for each number of shards."""
_FIRST_COLD = 1_001
ORDERED = range(21, 24)
"""What orders are for; none of them is sold in another way."""
FIRST_SALE = 10_001
"""From here on, each sale to the last unit has a product of its own."""
PLENTY = 1_000_000_000
SHARDS = 6
LOADED_AT_A_TIME = 100
CALLERS = 8


def product(product_id: int, total: int, *, shards: int = SHARDS) -> NewProduct:
    """A product that sells all of its units."""
    return NewProduct(product_id=product_id, total_stock=total, buffer_percent=0, shards=shards)


def cold_ids(number: int) -> range:
    """The ids of so many cold products."""
    return range(_FIRST_COLD, _FIRST_COLD + number)


def hot_and_cold(cold: range) -> Sequence[NewProduct]:
    """Products that have units from the first round to the last."""
    return [
        *(product(product_id, PLENTY, shards=shards) for shards, product_id in HOT.items()),
        *(product(product_id, PLENTY, shards=1) for product_id in cold),
    ]


def ordered() -> Sequence[NewProduct]:
    """The products of the orders' lines."""
    return [product(product_id, PLENTY) for product_id in ORDERED]


async def bring_on_sale(client: AsyncInventoryClient, products: Sequence[NewProduct]) -> None:
    """Write and load products, several at a time."""
    loads = [
        products[first : first + LOADED_AT_A_TIME]
        for first in range(0, len(products), LOADED_AT_A_TIME)
    ]
    turn = asyncio.Semaphore(CALLERS)

    async def load(some: Sequence[NewProduct]) -> None:
        async with turn:
            for each in some:
                await client.put_product(each)
            await client.load([each.product_id for each in some])

    async with asyncio.TaskGroup() as tasks:
        for number, some in enumerate(loads):
            tasks.create_task(load(some), name=f"load-{number}")
