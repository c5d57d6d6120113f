"""Orders in acceptance tests: their ids, where they end, and what the journal has of their lines."""

import asyncio
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import count, islice
from typing import NamedTuple

from prometheus_client import CollectorRegistry

from deploy.demo.readings import LedgerReading
from deploy.local.stack import LocalStack
from deploy.local.waiting import until
from inventory.client import AsyncInventoryClient, OrderState, Stock, UnknownOrder
from ledger.database import Database, Transaction
from ledger.metrics import LedgerMetrics
from ledger.products import JournalKind
from ledger.settings import parse_url
from sharding.placement import ledger_of
from sharding.settings import StockSettings
from tests.acceptance.shop import Shop
from worker.settings import WorkerSettings

GIVEN_UP_AFTER_S = 4 * StockSettings().redis_patience_ms / 1_000 + 5
"""From the reservation of an order that nobody decides to the time at which it is over."""
SWEPT_WITHIN_S = WorkerSettings().lease_ttl_s + 15.0
"""From the time at which an order is over to its end, also where its worker has just died."""
LOOKS_AT_ONCE = 32

LINES = """\
SELECT order_id, kind, remark, quantity FROM inventory_log WHERE product_id = %s AND order_id > 0
"""
DEAD_LETTERS = "SELECT COUNT(*) FROM dead_letter WHERE product_id = %s"

_order_ids = count(1)


class Row(NamedTuple):
    """One row of the journal; `quantity` is below zero where units left."""

    order_id: int
    kind: JournalKind
    remark: str
    quantity: int


class Units(NamedTuple):
    """What an order has of one product, as the journal adds up."""

    held: int
    sold: int


class Journal:
    """All rows of orders in one product's journal."""

    def __init__(self, rows: Sequence[Row], *, dead_letters: int) -> None:
        self.rows = rows
        self.dead_letters = dead_letters

    def units(self) -> Mapping[int, Units]:
        """By order; an order that was refused has none, or such as came and went."""
        found: dict[int, Counter[JournalKind]] = {}
        for row in self.rows:
            found.setdefault(row.order_id, Counter())[row.kind] += abs(row.quantity)
        return {order_id: _units(sums) for order_id, sums in found.items()}

    def releases(self) -> Counter[str]:
        """Rows of units that came back, by why."""
        return Counter(row.remark for row in self.rows if row.kind is JournalKind.RELEASE)


def new_order_ids(number: int) -> list[int]:
    return list(islice(_order_ids, number))


async def read_journal(stack: LocalStack, product_id: int) -> Journal:
    """What MySQL has of the orders of a product."""

    async def run(transaction: Transaction) -> Journal:
        rows = await transaction.rows(LINES, (product_id,))
        found = [
            Row(order_id, JournalKind(kind), remark, int(quantity))
            for order_id, kind, remark, quantity in rows
        ]
        letters = await transaction.row(DEAD_LETTERS, (product_id,))
        assert letters is not None
        return Journal(found, dead_letters=int(letters[0]))

    url = stack.mysql_urls[ledger_of(product_id, len(stack.mysql_urls))]
    database = Database(parse_url(url), LedgerMetrics(CollectorRegistry()))
    try:
        return await database.transaction(run)
    finally:
        await database.close()


async def until_nothing_is_held(
    shop: Shop, product_ids: Collection[int], *, within_s: float
) -> None:
    """Return when no order holds a unit of these products."""

    async def nothing_is_held() -> bool:
        stocks = await shop.caller.batch_get_stock(list(product_ids))
        assert len(stocks) == len(product_ids)
        return not any(stock.held for stock in stocks)

    await until(nothing_is_held, what="nothing is held", within_s=within_s)


async def assert_settled(shop: Shop, product_id: int, *, sold: Mapping[int, int]) -> Stock:
    """Redis, MySQL and what became of the orders agree, and none of them holds anything.

    `sold`: units of this product by order. Returns the live counts, in which other sales may be.
    """
    stock, ledger = await shop.drained(product_id)
    journal = await read_journal(shop.stack, product_id)
    assert journal.dead_letters == 0
    assert stock.total == stock.accounted
    assert stock.held == 0
    units = journal.units()
    assert not {order_id for order_id, each in units.items() if each.held}
    assert {order_id: each.sold for order_id, each in units.items() if each.sold} == sold
    _assert_same_counts(stock, ledger)
    return stock


async def states(shop: Shop, order_ids: Sequence[int]) -> dict[int, OrderState | None]:
    """What both servers say of each order, and say alike; None: nobody knows it."""
    first, second = [await _states_by(client, order_ids) for client in shop.clients]
    assert first == second
    return first


def _units(sums: Counter[JournalKind]) -> Units:
    ended = sums[JournalKind.CONFIRM] + sums[JournalKind.RELEASE]
    return Units(
        held=sums[JournalKind.RESERVE] - ended,
        sold=sums[JournalKind.DEDUCT] + sums[JournalKind.CONFIRM],
    )


def _assert_same_counts(stock: Stock, ledger: LedgerReading) -> None:
    for counts in (ledger.product, ledger.shards):
        assert (counts.total, counts.available, counts.held, counts.sold) == (
            stock.total,
            stock.available,
            stock.held,
            stock.sold,
        )


async def _states_by(
    client: AsyncInventoryClient, order_ids: Sequence[int]
) -> dict[int, OrderState | None]:
    found: dict[int, OrderState | None] = {}
    queue = iter(order_ids)

    async def look(order_ids: Iterator[int]) -> None:
        for order_id in order_ids:
            try:
                found[order_id] = (await client.get_order(order_id)).state
            except UnknownOrder:
                found[order_id] = None

    async with asyncio.TaskGroup() as tasks:
        for _ in range(LOOKS_AT_ONCE):
            tasks.create_task(look(queue))
    return found
