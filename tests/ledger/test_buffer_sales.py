"""Sales from the buffer: in their mode alone, once a request, and no unit more than there are."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from ledger.buffer_releases import Buffers, Release
from ledger.buffer_sales import BufferSales
from ledger.database import Database
from ledger.engine.metrics import SalesMetrics
from ledger.products import Products
from ledger.sales_mode import Mode, Modes
from ledger.settings import MysqlUrl
from ledger.untold import UntoldSales
from sharding.outcomes import Answer, Deduction, Outcome, Reason
from sharding.placement import Layout
from tests.ledger.conftest import Stream, fetch, new_metrics, settings_of, write
from tests.ledger.streams import chunk_of
from tests.waiting import eventually
from worker.applier import Applier

AWAY = Answer(Outcome.UNAVAILABLE, reason=Reason.LIVE_STOCK_AWAY)
EMPTY = Answer(Outcome.UNAVAILABLE, reason=Reason.BUFFER_EMPTY)

OnSale = Callable[..., Awaitable[int]]
_JOURNAL = (
    "SELECT request_id, quantity, user_id, order_id, partition_id, remark, available_after"
    " FROM inventory_log WHERE product_id = %s AND kind = 'deduct' ORDER BY id"
)


def new_sales(database: Database) -> BufferSales:
    return BufferSales(database, SalesMetrics(CollectorRegistry()))


@pytest.fixture
async def modes(database: Database) -> AsyncIterator[Modes]:
    """In the buffer's mode."""
    await write(database, "DELETE FROM service_mode WHERE name = 'sales'")
    modes = Modes(database)
    assert (await modes.enter()).mode is Mode.BUFFER
    yield modes
    await write(database, "DELETE FROM service_mode WHERE name = 'sales'")


@pytest.fixture
async def sales(database: Database, modes: Modes) -> AsyncIterator[BufferSales]:
    assert (await modes.get()).mode is Mode.BUFFER
    made = new_sales(database)
    yield made
    await made.drain()


@pytest.fixture
def on_sale(products: Products, new_product: OnSale) -> OnSale:
    """`await on_sale(10)`: a product on sale, with so many units in its buffer and as many outside."""

    async def load(units: int, *, max_per_user: int = 0) -> int:
        product_id = await new_product(2 * units, buffer_percent=50, shards=6)
        if max_per_user:
            settings = settings_of(product_id, 2 * units, buffer_percent=50, shards=6)
            await products.put(replace(settings, max_per_user=max_per_user))
        plan, _ = await products.begin_load(product_id, partitions=48, default_shards=6)
        assert plan.buffer == units
        await products.finish_load(plan)
        return product_id

    return load


async def ask(sales: BufferSales, *requests: Deduction) -> list[Answer]:
    return await sales.deduct(requests)


async def test_the_plan_of_a_load_stays_what_it_was_whatever_became_of_its_buffer(
    sales: BufferSales, database: Database, products: Products, on_sale: OnSale
) -> None:
    """It may be carried out once more, where a shard was lost."""
    product = await on_sale(10)
    before = (await products.get(product)).plan
    await ask(sales, Deduction("r", product, 3))
    buffers = Buffers(database, partitions=48)
    await buffers.release(Release(product, "b1", 4, "test", "ann"))
    row = await products.get(product)
    assert (row.buffer_stock, row.sold_from_buffer, row.released_stock) == (3, 3, 4)
    assert row.plan == before


async def test_a_sale_is_in_row_and_journal_and_known_from_then_on(
    sales: BufferSales, database: Database, products: Products, on_sale: OnSale, modes: Modes
) -> None:
    product = await on_sale(10)
    request = Deduction("r", product, 3, user_id=7, order_id=9)
    assert await ask(sales, request) == [Answer(Outcome.DEDUCTED, available=7)]
    replay = Answer(Outcome.DEDUCTED, replayed=True, available=7)
    for attempt in (0, 1, 2):
        again, *_ = await ask(new_sales(database), request._replace(attempt=attempt))
        assert again == replay
    other_user, other_units = await ask(
        sales, request._replace(user_id=8), request._replace(quantity=2)
    )
    assert {other_user, other_units} == {Answer(Outcome.REQUEST_MISMATCH)}
    row = await products.get(product)
    assert (row.buffer_stock, row.sold_count, row.sold_from_buffer) == (7, 3, 3)
    assert (row.available_stock, row.total_stock) == (10, 20)
    assert await fetch(database, _JOURNAL, product) == [("r", -3, 7, 9, None, "buffer", 7)]
    (untold,) = [
        sale
        for sale in await UntoldSales(database).page(after_id=0)
        if sale.request.product_id == product
    ]
    assert untold.request == Deduction("r", product, 3, user_id=7)
    assert untold.layout == Layout(row.layout_version, 6)
    epoch = await fetch(
        database, "SELECT mode_epoch FROM buffer_sale WHERE product_id = %s", product
    )
    assert epoch == [((await modes.get()).epoch,)]
    assert await ask(sales, request) == [replay]


async def test_too_few_units_are_no_refusal_and_nothing_is_remembered(
    sales: BufferSales, database: Database, on_sale: OnSale
) -> None:
    product = await on_sale(2)
    for attempt in (0, 1, 2):
        assert await ask(sales, Deduction("r", product, 3, attempt=attempt)) == [EMPTY]
    assert await ask(sales, Deduction("r", product, 2)) == [Answer(Outcome.DEDUCTED)]
    tombs = "SELECT COUNT(*) FROM request_tombstone WHERE product_id = %s"
    assert await fetch(database, tombs, product) == [(0,)]


async def test_what_is_off_sale_or_has_a_limit_is_not_sold(
    sales: BufferSales, products: Products, on_sale: OnSale
) -> None:
    closing, limited = await on_sale(2), await on_sale(2, max_per_user=1)
    await products.begin_close(closing)
    (closed,) = await ask(sales, Deduction("r", closing, 1))
    assert closed == Answer(Outcome.FROZEN, reason=Reason.PRODUCT_CLOSED)
    assert await ask(sales, Deduction("r", limited, 1, user_id=7)) == [AWAY]
    assert await ask(sales, Deduction("r", 999_999_999, 1)) == [Answer(Outcome.UNKNOWN_PRODUCT)]


async def test_what_the_live_stock_decided_and_the_ledger_heard_of_stays_decided(
    sales: BufferSales, applier: Applier, stream: Stream, on_sale: OnSale, products: Products
) -> None:
    product, events = await on_sale(5), await stream()
    start = events.position
    entries = [
        events.load(product, 5),
        events.deduct(product, [("sold", 2)], refused=[("refused", 50)]),
        events.tombstone(product, "never"),
    ]
    await applier.apply([chunk_of(events.partition, start, entries)])
    sold, refused, never = await ask(
        sales,
        Deduction("sold", product, 2, user_id=7),
        Deduction("refused", product, 50, user_id=7),
        Deduction("never", product, 1),
    )
    assert (sold.outcome, sold.replayed) == (Outcome.DEDUCTED, True)
    assert (refused.outcome, refused.replayed) == (Outcome.INSUFFICIENT_STOCK, True)
    assert never == Answer(Outcome.REQUEST_MISMATCH, reason=Reason.RESOLVED_NEVER)
    assert (await products.get(product)).sold_from_buffer == 0


async def test_a_sale_that_the_ledger_hears_of_later_is_the_second_effect_and_goes_back(
    sales: BufferSales,
    applier: Applier,
    stream: Stream,
    on_sale: OnSale,
    products: Products,
    database: Database,
) -> None:
    product, events = await on_sale(5), await stream()
    start = events.position
    entries = [events.load(product, 5), events.deduct(product, [("both", 2), ("live", 1)])]
    assert (await ask(sales, Deduction("both", product, 2)))[0].outcome is Outcome.DEDUCTED
    await applier.apply([chunk_of(events.partition, start, entries)])
    row = await products.get(product)
    assert (row.sold_count, row.sold_from_buffer, row.buffer_stock) == (3, 2, 3)
    assert row.available_stock == 4
    undo = "SELECT request_id, quantity, state FROM outbox WHERE kind = 'undo' AND product_id = %s"
    assert await fetch(database, undo, product) == [("both", 2, "open")]
    both, live = await fetch(database, _JOURNAL, product)
    assert (both[0], live[0]) == ("both", "live")
    assert str(both[5]).startswith("buffer; second effect")


async def test_of_two_processes_that_sell_the_last_units_each_gets_what_there_is(
    ledger_url: MysqlUrl, modes: Modes, on_sale: OnSale, products: Products
) -> None:
    product = await on_sale(30)
    assert (await modes.get()).mode is Mode.BUFFER
    databases = [Database(ledger_url, new_metrics(), connections=4) for _ in range(2)]
    tills = [new_sales(database) for database in databases]
    answers = await asyncio.gather(
        *(ask(tills[i % 2], Deduction(f"r{i // 2 % 60}", product, 1)) for i in range(240))
    )
    fresh = [answer for (answer,) in answers if answer.outcome is Outcome.DEDUCTED]
    assert sum(not answer.replayed for answer in fresh) == 30
    assert {answer for (answer,) in answers if answer not in fresh} == {EMPTY}
    row = await products.get(product)
    assert (row.buffer_stock, row.sold_count) == (0, 30)
    for database in databases:
        await database.close()


async def test_after_the_mode_was_left_no_sale_comes(
    ledger_url: MysqlUrl, modes: Modes, on_sale: OnSale, products: Products
) -> None:
    product = await on_sale(10_000)
    database = Database(ledger_url, new_metrics(), connections=4)
    sales, epoch = new_sales(database), (await modes.get()).epoch
    sold = 0

    async def buy(buyer: int) -> None:
        nonlocal sold
        for i in range(10_000):
            (answer,) = await ask(sales, Deduction(f"{buyer}-{i}", product, 1))
            if answer == AWAY:
                return
            sold += answer.outcome is Outcome.DEDUCTED

    async with asyncio.TaskGroup() as buyers:
        for buyer in range(8):
            buyers.create_task(buy(buyer))
        await eventually(lambda: sold >= 20)
        assert (await modes.leave(epoch)).mode is Mode.LEAVING
        at_the_end = (await products.get(product)).sold_count
    row = await products.get(product)
    assert row.sold_count == at_the_end == sold == row.sold_from_buffer
    await database.close()


async def test_closing_gives_the_rest_back_and_the_next_load_counts_anew(
    sales: BufferSales, products: Products, on_sale: OnSale
) -> None:
    product = await on_sale(10)
    await ask(sales, Deduction("r", product, 4))
    epoch = (await products.begin_close(product)).epoch
    row = await products.finish_close(product, epoch=epoch)
    assert (row.available_stock, row.buffer_stock, row.sold_before) == (16, 0, 4)
    assert (row.sold_from_buffer, row.sold_count, row.total_stock) == (0, 4, 20)
    (again,) = await ask(sales, Deduction("r", product, 4))
    assert (again.outcome, again.replayed) == (Outcome.DEDUCTED, True)
