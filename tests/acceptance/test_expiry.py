"""Very many holds that end at once: their units are back once, and nobody who buys notices."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from deploy.local.waiting import until
from inventory.client import (
    AsyncInventoryClient,
    OrderLine,
    OrderResult,
    Outcome,
    Reservation,
    RetryPolicy,
)
from tests.acceptance.load import load
from tests.acceptance.orders import (
    SWEPT_WITHIN_S,
    assert_settled,
    new_order_ids,
    read_journal,
    until_nothing_is_held,
)
from tests.acceptance.shop import Shop

HOLDS = 20_000
BATCH = 500
BATCHES_OUT = 4
MADE_WITHIN_S = 12
ENDS_MS_MAX = 1_500
"""From the first end to the last: a second, and what a batch of holds takes to make."""
PLENTY = 1_000_000
ONE_TRY = RetryPolicy(deadline_s=60.0, try_timeout_s=30.0, tries_max=1)
"""So that a buyer who is turned away is not heard again, but ends the test."""


@pytest.fixture
async def buyers_client(shop: Shop) -> AsyncIterator[AsyncInventoryClient]:
    async with AsyncInventoryClient(shop.stack.grpc_address(), policy=ONE_TRY) as client:
        yield client


async def hold_until(shop: Shop, product_id: int, due_s: float) -> list[OrderResult]:
    """Holds of one unit each, through both servers, that end within about a second before `due_s`."""
    order_ids = new_order_ids(HOLDS)
    batches = iter([order_ids[first : first + BATCH] for first in range(0, HOLDS, BATCH)])
    line = OrderLine(product_id, 1)
    held: list[OrderResult] = []

    async def reserve(client: AsyncInventoryClient) -> None:
        for batch in batches:
            ttl_s = max(1, int(due_s - time.time()))
            wanted = [Reservation(each, (line,), ttl_s=ttl_s, attempt=1) for each in batch]
            held.extend(await client.batch_reserve(wanted))

    async with asyncio.TaskGroup() as tasks:
        for number in range(BATCHES_OUT):
            tasks.create_task(reserve(shop.clients[number % 2]))
    return held


async def test_many_holds_that_end_in_one_second_turn_no_buyer_away(
    shop: Shop, buyers_client: AsyncInventoryClient
) -> None:
    product = await shop.on_sale(HOLDS + PLENTY)
    holds = await hold_until(shop, product, time.time() + MADE_WITHIN_S)
    assert Counter(hold.outcome for hold in holds) == {Outcome.HELD: HOLDS}
    ends_ms = [hold.order.expires_ms for hold in holds if hold.order]
    assert max(ends_ms) - min(ends_ms) < ENDS_MS_MAX

    async def some_are_back() -> bool:
        return (await shop.caller.get_stock(product)).held < HOLDS

    worker = shop.stack.workers[1]
    async with load(buyers_client, product) as buyers:
        await until(some_are_back, what="holds end", within_s=MADE_WITHIN_S + SWEPT_WITHIN_S)
        worker.kill()
        await until_nothing_is_held(shop, [product], within_s=SWEPT_WITHIN_S)
    await worker.start()
    assert buyers.outcomes.keys() == {Outcome.DEDUCTED}
    stock = await assert_settled(shop, product, sold={})
    assert (stock.sold, stock.available) == (
        len(buyers.accepted),
        HOLDS + PLENTY - len(buyers.accepted),
    )
    journal = await read_journal(shop.stack, product)
    assert journal.releases() == {"expired": HOLDS}
    assert len(journal.units()) == HOLDS
