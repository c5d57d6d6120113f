"""Orders of several products while servers and workers are killed: all lines or none, none for ever."""

import asyncio
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import pytest

from inventory.client import (
    AsyncInventoryClient,
    InventoryError,
    OrderEnded,
    OrderLine,
    OrderState,
    Outcome,
    RetryPolicy,
)
from tests.acceptance.orders import (
    GIVEN_UP_AFTER_S,
    SWEPT_WITHIN_S,
    assert_settled,
    new_order_ids,
    states,
    until_nothing_is_held,
)
from tests.acceptance.shop import SERVERS, Shop, strike

ORDERS = 200
"""All at once; each wants a unit of each product."""
UNITS_OF_THE_LAST = (ORDERS - 1, ORDERS // 2, ORDERS // 4)
"""What the last product has of it, in each storm."""
SHARDS = (6, 3, 12)
TTL_S = 3
STRIKES_WITHIN_S = 0.3
"""While most customers are served."""
ONE_TRY = RetryPolicy(deadline_s=60.0, try_timeout_s=30.0, tries_max=1)
"""A caller that does not come back whatever it is told."""

DECIDED = frozenset(
    (
        None,
        OrderState.CONFIRMED,
        OrderState.RELEASED,
        OrderState.EXPIRED,
        OrderState.REFUND_REQUIRED,
        OrderState.REFUSED,
    )
)
SOLD = frozenset((Outcome.CONFIRMED, Outcome.RETAKEN))


class Conduct(StrEnum):
    """How a buyer goes about an order."""

    BUYS = "buys"
    """Sells all of it at once."""
    PAYS = "pays"
    """Holds it, then confirms it."""
    LEAVES = "leaves"
    """Holds it and is never seen again."""


@dataclass(frozen=True, slots=True)
class Customer:
    """Somebody with one order; `client` may give up where the service does not answer."""

    order_id: int
    lines: Sequence[OrderLine]
    conduct: Conduct
    client: AsyncInventoryClient
    comes_back: bool

    async def shop(self) -> Outcome | None:
        """What came of it as far as the customer knows; None: that is not known."""
        try:
            return await self._shop()
        except OrderEnded:  # it took so long that its time was over
            return None
        except InventoryError:
            if self.comes_back:
                raise
            return None

    async def _shop(self) -> Outcome:
        if self.conduct is Conduct.BUYS:
            sold = await self.client.deduct_order(self.order_id, self.lines, attempt=1)
            return sold.outcome
        held = await self.client.reserve(self.order_id, self.lines, ttl_s=TTL_S, attempt=1)
        if self.conduct is Conduct.LEAVES or not held.held:
            return held.outcome
        return (await self.client.confirm(self.order_id)).outcome


@pytest.fixture
async def hasty(shop: Shop) -> AsyncIterator[list[AsyncInventoryClient]]:
    """Clients of each server that try once."""
    clients = [
        AsyncInventoryClient(shop.stack.grpc_address(each), policy=ONE_TRY) for each in SERVERS
    ]
    yield clients
    for client in clients:
        await client.close()


async def too_few(shop: Shop, *, of_the_last: int) -> list[int]:
    """Products with a unit for each order, but for the last product."""
    return [
        await shop.on_sale(total, shards=shards)
        for total, shards in zip((ORDERS, ORDERS, of_the_last), SHARDS, strict=True)
    ]


async def storm(
    shop: Shop,
    products: Sequence[int],
    hasty: Sequence[AsyncInventoryClient],
    chance: random.Random,
) -> dict[int, Outcome | None]:
    """All customers at once, and meanwhile all processes are killed; returns what came of each order."""
    customers = []
    for number, order_id in enumerate(new_order_ids(ORDERS)):
        comes_back = chance.random() < 0.7
        clients = shop.clients if comes_back else hasty
        customers.append(
            Customer(
                order_id=order_id,
                lines=[OrderLine(product_id, 1) for product_id in products],
                conduct=chance.choice(list(Conduct)),
                client=clients[number % 2],
                comes_back=comes_back,
            )
        )
    victims = [*shop.stack.servers.values(), *shop.stack.workers.values()]
    async with asyncio.TaskGroup() as tasks:
        served = [tasks.create_task(customer.shop()) for customer in customers]
        for victim in victims:
            tasks.create_task(strike(victim, after_s=chance.uniform(0, STRIKES_WITHIN_S)))
    ends = [task.result() for task in served]
    return {customer.order_id: end for customer, end in zip(customers, ends, strict=True)}


async def assert_whole(
    shop: Shop, products: Sequence[int], ends: Mapping[int, Outcome | None]
) -> None:
    """Each order has sold all lines or none, as GetOrder says, the journal, and its customer knows."""
    known = await states(shop, list(ends))
    assert set(known.values()) <= DECIDED
    sold = {order_id: 1 for order_id, state in known.items() if state is OrderState.CONFIRMED}
    for order_id, end in ends.items():
        if end is not None:
            assert (end in SOLD) == (order_id in sold), (order_id, end, known[order_id])
    for product in products:
        stock = await assert_settled(shop, product, sold=sold)
        assert stock.sold == len(sold)


async def assert_all_left_can_be_sold(shop: Shop, products: Sequence[int]) -> None:
    for stock in await shop.caller.batch_get_stock(products):
        (order_id,) = new_order_ids(1)
        assert (stock.held, stock.in_transit) == (0, 0)
        if stock.available:
            line = OrderLine(stock.product_id, stock.available)
            last = await shop.caller.deduct_order(order_id, [line], attempt=1)
            assert last.outcome is Outcome.CONFIRMED
    for stock in await shop.caller.batch_get_stock(products):
        assert (stock.available, stock.sold) == (0, stock.total)


async def test_orders_are_sold_whole_or_not_at_all_while_servers_and_workers_are_killed(
    shop: Shop, hasty: list[AsyncInventoryClient]
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # noqa: T201 - to repeat a run that failed
    chance = random.Random(seed)
    storms = []
    for units in UNITS_OF_THE_LAST:
        products = await too_few(shop, of_the_last=units)
        storms.append((products, await storm(shop, products, hasty, chance)))
    every = [product for products, _ in storms for product in products]
    await until_nothing_is_held(shop, every, within_s=GIVEN_UP_AFTER_S + SWEPT_WITHIN_S)
    for products, ends in storms:
        await assert_whole(shop, products, ends)
        await assert_all_left_can_be_sold(shop, products)


async def test_of_200_orders_for_199_units_one_is_refused_and_holds_nothing(shop: Shop) -> None:
    products = await too_few(shop, of_the_last=ORDERS - 1)
    lines = [OrderLine(product, 1) for product in products]
    order_ids = new_order_ids(ORDERS)
    sold = await asyncio.gather(
        *(
            shop.clients[number % 2].deduct_order(order_id, lines, attempt=1)
            for number, order_id in enumerate(order_ids)
        )
    )
    (refused,) = [each for each in sold if each.outcome is not Outcome.CONFIRMED]
    assert refused.outcome is Outcome.INSUFFICIENT_STOCK
    assert refused.short_lines == (lines[-1],)
    await assert_whole(shop, products, {each.order_id: each.outcome for each in sold})
    await assert_all_left_can_be_sold(shop, products)
