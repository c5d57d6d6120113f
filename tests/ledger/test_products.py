"""Products in the ledger: settings, loading, closing, corrections."""

import asyncio

import pytest

from ledger.database import Database
from ledger.errors import Conflict, LedgerConflictError, UnknownProductError
from ledger.products import Adjustment, JournalKind, ProductRow, Products
from sharding.outcomes import State
from tests.ledger.conftest import PARTITIONS, NewProduct, fetch, settings_of, write


def conserves(row: ProductRow) -> bool:
    parts = row.available_stock + row.held_stock + row.buffer_stock + row.sold_count
    return row.total_stock == parts


async def load(products: Products, product_id: int) -> None:
    plan, _ = await products.begin_load(product_id, partitions=PARTITIONS, default_shards=6)
    await products.finish_load(plan)


async def test_a_product_is_created_closed_with_all_units_available(
    products: Products, new_product: NewProduct
) -> None:
    row = await products.get(await new_product(103))
    assert (row.status, row.total_stock, row.available_stock) == (State.CLOSED, 103, 103)


async def test_before_the_first_load_the_total_may_be_written_again(
    products: Products, new_product: NewProduct
) -> None:
    product_id = await new_product(103)
    row = await products.put(settings_of(product_id, 40, buffer_percent=7))
    assert (row.total_stock, row.available_stock, row.buffer_percent) == (40, 40, 7)


async def test_after_the_first_load_the_total_stays(
    products: Products, new_product: NewProduct
) -> None:
    product_id = await new_product(103)
    await load(products, product_id)
    row = await products.begin_close(product_id)
    await products.finish_close(product_id, epoch=row.epoch)
    for total in (0, 103):
        assert (await products.put(settings_of(product_id, total))).total_stock == 103
    with pytest.raises(LedgerConflictError) as refused:
        await products.put(settings_of(product_id, 104))
    assert refused.value.conflict is Conflict.TOTAL_FIXED


async def test_settings_change_only_while_closed(
    products: Products, new_product: NewProduct
) -> None:
    product_id = await new_product(103)
    await load(products, product_id)
    before = await products.get(product_id)
    with pytest.raises(LedgerConflictError) as refused:
        await products.put(settings_of(product_id, 0, buffer_percent=50))
    assert refused.value.conflict is Conflict.NOT_CLOSED
    assert await products.get(product_id) == before


async def test_a_load_splits_what_the_buffer_leaves(
    products: Products, new_product: NewProduct
) -> None:
    product_id = await new_product(103, buffer_percent=5)
    plan, is_to_load = await products.begin_load(
        product_id, partitions=PARTITIONS, default_shards=6
    )
    assert is_to_load
    assert (plan.buffer, plan.amounts, plan.epoch) == (5, (17, 17, 16, 16, 16, 16), 1)
    row = await products.get(product_id)
    assert (row.available_stock, row.buffer_stock, row.status) == (98, 5, State.LOADING)
    assert conserves(row)


async def test_many_loads_at_once_are_one(products: Products, new_product: NewProduct) -> None:
    product_id = await new_product(1_000, buffer_percent=10, shards=12)
    answers = await asyncio.gather(
        *(
            products.begin_load(product_id, partitions=PARTITIONS, default_shards=6)
            for _ in range(20)
        )
    )
    assert len(set(answers)) == 1
    row = await products.get(product_id)
    assert (row.epoch, row.layout_version, row.buffer_stock) == (1, 1, 100)


async def test_loading_an_open_product_changes_nothing(
    products: Products, new_product: NewProduct
) -> None:
    product_id = await new_product(100)
    await load(products, product_id)
    before = await products.get(product_id)
    plan, is_to_load = await products.begin_load(product_id, partitions=48, default_shards=6)
    assert (plan, is_to_load) == (before.plan, False)
    assert await products.get(product_id) == before


async def test_closing_gives_the_buffer_back_and_a_second_load_counts_on(
    products: Products, new_product: NewProduct, database: Database
) -> None:
    product_id = await new_product(100, buffer_percent=10)
    await load(products, product_id)
    await write(
        database,
        "UPDATE product_inventory SET available_stock = available_stock - 30, sold_count = 30 "
        "WHERE product_id = %s",
        product_id,
    )
    for _ in range(2):
        assert (await products.begin_close(product_id)).status is State.CLOSING
    for _ in range(2):
        row = await products.finish_close(product_id, epoch=1)
        assert (row.status, row.available_stock, row.buffer_stock) == (State.CLOSED, 70, 0)
        assert (row.sold_before, conserves(row)) == (30, True)
    plan, _ = await products.begin_load(product_id, partitions=48, default_shards=6)
    assert (plan.epoch, plan.layout.version, plan.sold_before, plan.buffer) == (2, 2, 30, 7)


async def test_steps_out_of_order_are_refused_by_name(
    products: Products, new_product: NewProduct
) -> None:
    product_id = await new_product(100)
    plan, _ = await products.begin_load(product_id, partitions=48, default_shards=6)
    with pytest.raises(LedgerConflictError) as refused:
        await products.begin_close(product_id)
    assert refused.value.conflict is Conflict.NOT_OPEN
    await products.finish_load(plan)
    with pytest.raises(LedgerConflictError) as refused:
        await products.finish_close(product_id, epoch=plan.epoch)
    assert refused.value.conflict is Conflict.NOT_CLOSING
    await products.begin_close(product_id)
    with pytest.raises(LedgerConflictError) as refused:
        await products.begin_load(product_id, partitions=48, default_shards=6)
    assert refused.value.conflict is Conflict.NOT_CLOSED
    with pytest.raises(LedgerConflictError) as refused:
        await products.finish_close(product_id, epoch=plan.epoch + 1)
    assert refused.value.conflict is Conflict.OTHER_EPOCH


async def test_one_adjustment_has_one_effect_however_often_it_is_sent(
    products: Products, new_product: NewProduct
) -> None:
    product_id = await new_product(10)
    answers = await asyncio.gather(
        *(
            products.adjust_closed(
                JournalKind.RESTOCK, product_id, request_id="d'1\\", quantity=7, reason="it's"
            )
            for _ in range(20)
        )
    )
    assert sorted(answer.replayed for answer in answers) == [False] + [True] * 19
    row = await products.get(product_id)
    assert (row.total_stock, row.available_stock) == (17, 17)
    found = await products.find_adjustment(product_id, "d'1\\")
    assert found == Adjustment(JournalKind.RESTOCK, 7, replayed=True)
    assert await products.find_adjustment(product_id, "D'1\\") is None


@pytest.mark.parametrize(("kind", "quantity"), [(JournalKind.RESTOCK, 8), (JournalKind.REMOVE, 7)])
async def test_the_id_of_another_adjustment_is_a_named_error(
    products: Products, new_product: NewProduct, kind: JournalKind, quantity: int
) -> None:
    product_id = await new_product(100)
    await products.adjust_closed(
        JournalKind.RESTOCK, product_id, request_id="d1", quantity=7, reason=""
    )
    with pytest.raises(LedgerConflictError) as refused:
        await products.adjust_closed(
            kind, product_id, request_id="d1", quantity=quantity, reason=""
        )
    assert refused.value.conflict is Conflict.REQUEST_MISMATCH
    assert (await products.get(product_id)).total_stock == 107


async def test_removals_never_go_below_zero(
    products: Products, new_product: NewProduct, database: Database
) -> None:
    product_id = await new_product(10)

    answers = await asyncio.gather(
        *(
            products.adjust_closed(
                JournalKind.REMOVE, product_id, request_id=f"r{number}", quantity=3, reason=""
            )
            for number in range(10)
        ),
        return_exceptions=True,
    )
    refused = [answer for answer in answers if isinstance(answer, LedgerConflictError)]
    assert {each.conflict for each in refused} == {Conflict.INSUFFICIENT_STOCK}
    assert len(refused) == 7
    row = await products.get(product_id)
    assert (row.total_stock, row.available_stock) == (1, 1)
    journal = await fetch(
        database, "SELECT SUM(quantity) FROM inventory_log WHERE product_id = %s", product_id
    )
    assert journal == [(-9,)]


async def test_a_product_below_zero_is_counted_and_only_a_restock_mends_it(
    products: Products, new_product: NewProduct, database: Database
) -> None:
    before, product_id = await products.count_below_zero(), await new_product(10)
    await write(
        database,
        "UPDATE product_inventory SET total_stock = -5, available_stock = -5 WHERE product_id = %s",
        product_id,
    )
    assert await products.count_below_zero() == before + 1
    with pytest.raises(LedgerConflictError, match="-5 units available") as refused:
        await products.adjust_closed(
            JournalKind.REMOVE, product_id, request_id="r1", quantity=1, reason=""
        )
    assert refused.value.conflict is Conflict.INSUFFICIENT_STOCK
    with pytest.raises(LedgerConflictError, match="-5 units available") as refused:
        await load(products, product_id)
    assert refused.value.conflict is Conflict.INSUFFICIENT_STOCK
    for number, left in ((2, -2), (3, 1)):
        await products.adjust_closed(
            JournalKind.RESTOCK, product_id, request_id=f"r{number}", quantity=3, reason=""
        )
        assert (await products.get(product_id)).available_stock == left
    assert await products.count_below_zero() == before


async def test_only_a_closed_product_is_adjusted_here(
    products: Products, new_product: NewProduct
) -> None:
    product_id = await new_product(10)
    await load(products, product_id)
    with pytest.raises(LedgerConflictError) as refused:
        await products.adjust_closed(
            JournalKind.REMOVE, product_id, request_id="r", quantity=1, reason=""
        )
    assert refused.value.conflict is Conflict.NOT_CLOSED


async def test_an_unknown_product_is_said_to_be_unknown(products: Products) -> None:
    with pytest.raises(UnknownProductError):
        await products.get(1)
    with pytest.raises(UnknownProductError):
        await products.begin_load(1, partitions=48, default_shards=6)


async def test_products_are_listed_page_by_page(
    products: Products, new_product: NewProduct
) -> None:
    ids = [await new_product(units) for units in (1, 2, 3)]
    first = await products.list(after=ids[0] - 1, limit=2)
    rest = await products.list(after=first[-1].product_id, limit=1)
    assert [row.product_id for row in (*first, *rest)] == ids


async def test_what_another_session_writes_is_seen_at_once(
    products: Products, new_product: NewProduct, database: Database
) -> None:
    product_id = await new_product(10)
    for name in ("one", "two"):
        await write(
            database,
            "UPDATE product_inventory SET name = %s WHERE product_id = %s",
            name,
            product_id,
        )
        assert (await products.get(product_id)).name == name


async def test_a_load_remembers_every_other_shard_count_that_the_product_had(
    products: Products, new_product: NewProduct
) -> None:
    product_id = await new_product(60)
    former = []
    for shards in (6, 3, 3, 12, 6):
        await products.put(settings_of(product_id, 0, shards=shards))
        plan, _ = await products.begin_load(product_id, partitions=48, default_shards=1)
        former.append(plan.former_shards)
        await products.finish_load(plan)
        await products.begin_close(product_id)
        await products.finish_close(product_id, epoch=plan.epoch)
    assert former == [(), (6,), (6,), (3, 6), (3, 12)]


async def test_an_id_that_was_a_sale_is_a_mismatch_for_a_correction_of_a_closed_product(
    products: Products, new_product: NewProduct, database: Database
) -> None:
    product_id = await new_product(60)
    await write(
        database,
        "INSERT INTO inventory_log (product_id, request_id, kind, type, order_id, user_id, quantity, "
        "partition_id, event_generation, event_number, remark, create_time) "
        "VALUES (%s, 'sold', 'deduct', 5, 0, 0, -5, 0, 1, 1, '', NOW(3))",
        product_id,
    )
    with pytest.raises(LedgerConflictError) as refused:
        await products.adjust_closed(
            JournalKind.RESTOCK, product_id, request_id="sold", quantity=5, reason=""
        )
    assert refused.value.conflict is Conflict.REQUEST_MISMATCH
