"""A product's way on sale and off it without Redis, corrections, and whose the ledger is."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from ledger.checkpoints import Checkpoints
from ledger.database import Database
from ledger.engine_claim import claim_for_mysql
from ledger.errors import EngineDiffersError, PartitionsDifferError
from ledger.migrate import migrate
from ledger.products import JournalKind, Products
from ledger.settings import MysqlUrl
from server.errors import RefusedError
from server.lifecycle import Correction
from sharding.orders import Line
from sharding.outcomes import Outcome, State
from tests.engine.conftest import (
    NewProduct,
    Process,
    accepted,
    ask,
    assert_balanced,
    buying,
    order_ids,
    product_ids,
    row_of,
    settings_of,
)
from tests.ledger.conftest import create_database, new_metrics, write


@pytest.fixture
async def unclaimed(engine_url: MysqlUrl) -> AsyncIterator[Database]:
    opened = Database(await create_database(engine_url), new_metrics())
    await migrate(opened)
    yield opened
    await opened.close()


async def test_all_units_go_on_sale_and_the_buffer_stays_empty(one: Process) -> None:
    product_id = next(product_ids)
    await Products(one.database).put(settings_of(product_id, 100, buffer_percent=50, shards=6))
    loaded = await one.lifecycle.load(product_id, wait_s=1)
    assert (loaded.now, loaded.plan.amounts, loaded.plan.epoch) == (True, (100,), 1)
    stock = await one.stock.read(product_id)
    assert stock is not None
    assert (stock.available, stock.buffer, stock.total, stock.state) == (100, 0, 100, State.OPEN)
    assert len(stock.shards) == 1


async def test_loading_during_a_sale_changes_nothing(
    one: Process, other: Process, on_sale: NewProduct
) -> None:
    product_id = await on_sale(100)
    requests = buying(product_id, 40)
    results = await asyncio.gather(
        *(ask(one, each) for each in requests),
        *((one, other)[i % 2].lifecycle.load(product_id, wait_s=1) for i in range(6)),
    )
    assert not any(loaded.now for loaded in results[40:])
    row = await assert_balanced(one, product_id)
    assert (row.available_stock, row.sold_count, row.epoch) == (60, 40, 1)


async def test_a_load_that_broke_off_after_its_first_step_is_resumed(
    one: Process, other: Process
) -> None:
    product_id = next(product_ids)
    await Products(one.database).put(settings_of(product_id, 10))
    await Products(one.database).begin_load(
        product_id, partitions=1, default_shards=1, has_buffer=False
    )
    (answer,) = await ask(one, *buying(product_id, 1))
    assert (answer.outcome, answer.reason.value) == (Outcome.FROZEN, "PRODUCT_LOADING")
    assert (await other.lifecycle.load(product_id, wait_s=1)).plan.epoch == 1
    assert accepted(await ask(one, *buying(product_id, 1))) == 1


async def test_a_product_closes_once_no_order_holds_units_and_goes_on_sale_again(
    one: Process, other: Process, on_sale: NewProduct
) -> None:
    product_id, order_id = await on_sale(10), next(order_ids)
    lines = [Line(product_id, 2)]
    await one.orders.reserve(order_id, user_id=0, lines=lines, ttl_s=60, attempt=1)
    await ask(one, *buying(product_id, 3))
    with pytest.raises(RefusedError) as busy:
        await one.lifecycle.close(product_id, wait_s=1)
    assert busy.value.reason == "CLOSE_PENDING"
    (answer,) = await ask(other, *buying(product_id, 1))
    assert (answer.outcome, answer.reason.value) == (Outcome.FROZEN, "PRODUCT_CLOSED")
    assert (await other.orders.confirm(order_id)).outcome is Outcome.CONFIRMED
    closed = await other.lifecycle.close(product_id, wait_s=1)
    assert (closed.status, closed.available_stock, closed.sold_before) == (State.CLOSED, 5, 5)
    again = await one.lifecycle.load(product_id, wait_s=1)
    assert (again.plan.epoch, again.plan.amounts) == (2, (5,))
    stock = await other.stock.read(product_id)
    assert stock is not None
    assert (stock.available, stock.sold, stock.sold_before, stock.total) == (5, 5, 5, 10)


async def test_restocks_and_deductions_at_once_add_up_and_repeats_add_nothing(
    one: Process, other: Process, on_sale: NewProduct
) -> None:
    product_id = await on_sale(0)
    restocks = [Correction(JournalKind.RESTOCK, product_id, f"s{i}", 50, "", "") for i in range(20)]
    results = await asyncio.gather(
        *((one, other)[i % 2].lifecycle.correct(each) for i, each in enumerate(restocks * 2)),
        *(ask((one, other)[i % 2], each) for i, each in enumerate(buying(product_id, 300))),
    )
    sold = sum(accepted(each) for each in results[40:])
    assert sum(results[:40]) == 20
    row = await assert_balanced(one, product_id)
    assert (row.total_stock, row.sold_count, row.available_stock) == (1_000, sold, 1_000 - sold)


async def test_a_removal_takes_unsold_units_only(one: Process, on_sale: NewProduct) -> None:
    product_id = await on_sale(10)
    lines = [Line(product_id, 4)]
    await one.orders.reserve(next(order_ids), user_id=0, lines=lines, ttl_s=60)
    wanted = Correction(JournalKind.REMOVE, product_id, "out", 7, "broken", "ann")
    with pytest.raises(RefusedError) as refused:
        await one.lifecycle.correct(wanted)
    assert refused.value.reason == "INSUFFICIENT_STOCK"
    fitting = Correction(JournalKind.REMOVE, product_id, "out", 6, "broken", "ann")
    assert [await one.lifecycle.correct(fitting) for _ in range(2)] == [False, True]
    row = await assert_balanced(one, product_id)
    assert (row.total_stock, row.available_stock, row.held_stock) == (4, 0, 4)


async def test_corrections_work_in_every_state_of_a_product(
    one: Process, on_sale: NewProduct
) -> None:
    product_id, order_id = await on_sale(10), next(order_ids)
    lines = [Line(product_id, 1)]
    await one.orders.reserve(order_id, user_id=0, lines=lines, ttl_s=60)

    async def correct(request_id: str) -> bool:
        wanted = Correction(JournalKind.RESTOCK, product_id, request_id, 1, "", "")
        return await one.lifecycle.correct(wanted)

    assert not await correct("open")
    with pytest.raises(RefusedError):
        await one.lifecycle.close(product_id, wait_s=1)
    assert not await correct("closing")
    await one.orders.release(order_id)
    await one.lifecycle.close(product_id, wait_s=1)
    assert not await correct("closed")
    assert [await correct(each) for each in ("open", "closing", "closed")] == [True] * 3
    assert (await row_of(one, product_id)).available_stock == 13


async def test_a_ledger_that_sells_is_no_ledger_of_redis(unclaimed: Database) -> None:
    await claim_for_mysql(unclaimed)
    await claim_for_mysql(unclaimed)
    with pytest.raises(EngineDiffersError, match="INVENTORY_ENGINE=mysql"):
        await Checkpoints(unclaimed).prepare(48)


async def test_a_ledger_of_redis_sells_nothing_itself(unclaimed: Database) -> None:
    await Checkpoints(unclaimed).prepare(48)
    await Checkpoints(unclaimed).prepare(48)
    with pytest.raises(EngineDiffersError, match="INVENTORY_ENGINE=redis"):
        await claim_for_mysql(unclaimed)
    with pytest.raises(PartitionsDifferError):
        await Checkpoints(unclaimed).prepare(24)


async def test_a_ledger_from_before_engines_were_written_down_belongs_to_redis(
    unclaimed: Database,
) -> None:
    await Checkpoints(unclaimed).prepare(48)
    await write(unclaimed, "DELETE FROM service_mode")
    with pytest.raises(EngineDiffersError, match="INVENTORY_ENGINE=redis"):
        await claim_for_mysql(unclaimed)
    await Checkpoints(unclaimed).prepare(48)
