"""What is released of a buffer leaves it once, and leaves the worker one errand."""

import asyncio
from dataclasses import replace

import pytest

from ledger.buffer_releases import Buffers, Progress, Release, Released, Rule
from ledger.database import Database
from ledger.errors import Conflict, LedgerConflictError, UnknownProductError
from ledger.products import JournalKind, ProductRow, Products
from sharding.outcomes import State
from sharding.placement import base_partition
from tests.ledger.conftest import PARTITIONS, NewProduct, fetch, settings_of, write

UNITS, BUFFER = 100, 40


@pytest.fixture
async def buffers(database: Database) -> Buffers:
    return Buffers(database, partitions=PARTITIONS)


@pytest.fixture
async def product(products: Products, new_product: NewProduct) -> int:
    """On sale with 60 units, and 40 in the buffer."""
    product_id = await new_product(UNITS, buffer_percent=BUFFER)
    await load(products, product_id)
    return product_id


async def load(products: Products, product_id: int) -> ProductRow:
    plan, _ = await products.begin_load(product_id, partitions=PARTITIONS, default_shards=6)
    return await products.finish_load(plan)


async def close(products: Products, product_id: int) -> ProductRow:
    row = await products.begin_close(product_id)
    return await products.finish_close(product_id, epoch=row.epoch)


def wanted(product_id: int, quantity: int = 0, request_id: str = "b1") -> Release:
    return Release(product_id, request_id, quantity, "it is hot", "me")


async def conflict(work: object) -> Conflict:
    with pytest.raises(LedgerConflictError) as refused:
        await work  # type: ignore[misc]
    return refused.value.conflict


async def test_units_leave_the_buffer_for_the_available_ones(
    buffers: Buffers, products: Products, database: Database, product: int
) -> None:
    assert await buffers.release(wanted(product, 15)) == Released(15, replayed=False)
    row = await products.get(product)
    assert (row.available_stock, row.buffer_stock, row.total_stock) == (75, 25, UNITS)
    sql = "SELECT request_id, kind, type, quantity, remark, actor, available_after, partition_id "
    journal = await fetch(database, sql + "FROM inventory_log WHERE product_id = %s", product)
    assert journal == [("b1", "buffer", 12, 15, "it is hot", "me", 75, None)]
    sql = "SELECT kind, partition_id, epoch, request_id, quantity, state FROM outbox "
    errands = await fetch(database, sql + "WHERE product_id = %s", product)
    base = base_partition(product, PARTITIONS)
    assert errands == [("buffer", base, 1, "b1", 15, "open")]
    assert await buffers.progress(product) == Progress(1, 15)


@pytest.mark.parametrize("again", [15, 0])
async def test_a_repeat_takes_nothing_more(
    buffers: Buffers, products: Products, product: int, again: int
) -> None:
    await buffers.release(wanted(product, 15))
    assert await buffers.release(wanted(product, again)) == Released(15, replayed=True)
    assert (await products.get(product)).buffer_stock == 25
    await close(products, product)
    assert await buffers.release(wanted(product, again)) == Released(15, replayed=True)


async def test_calls_with_one_id_at_once_are_one(
    buffers: Buffers, products: Products, product: int
) -> None:
    done = await asyncio.gather(*(buffers.release(wanted(product)) for _ in range(8)))
    assert sorted(each.replayed for each in done) == [False, *[True] * 7]
    assert {each.quantity for each in done} == {BUFFER}
    assert (await products.get(product)).buffer_stock == 0
    assert await buffers.progress(product) == Progress(1, BUFFER)


async def test_releases_at_once_never_take_more_than_there_is(
    buffers: Buffers, products: Products, product: int
) -> None:
    releases = (buffers.release(wanted(product, 15, f"b{i}")) for i in range(5))
    done = await asyncio.gather(*releases, return_exceptions=True)
    assert sum(isinstance(each, Released) for each in done) == 2
    row = await products.get(product)
    assert (row.available_stock, row.buffer_stock) == (90, 10)


async def test_an_id_stands_for_one_thing(
    buffers: Buffers, products: Products, database: Database, product: int
) -> None:
    await buffers.release(wanted(product, 15))
    assert await conflict(buffers.release(wanted(product, 16))) is Conflict.REQUEST_MISMATCH
    known = await products.find_adjustment(product, "b1")
    assert known is not None
    assert known.kind is JournalKind.BUFFER
    sql = (
        "INSERT INTO inventory_log (product_id, request_id, kind, type, quantity) "
        "VALUES (%s, 'in', 'restock', 6, 7)"
    )
    await write(database, sql, product)
    mismatch = await conflict(buffers.release(wanted(product, 7, "in")))
    assert mismatch is Conflict.REQUEST_MISMATCH


async def test_more_than_the_buffer_has_and_all_of_an_empty_one_are_refused(
    buffers: Buffers, product: int
) -> None:
    assert await conflict(buffers.release(wanted(product, 41))) is Conflict.INSUFFICIENT_STOCK
    await buffers.release(wanted(product))
    empty = await conflict(buffers.release(wanted(product, request_id="b2")))
    assert empty is Conflict.INSUFFICIENT_STOCK


async def test_only_a_product_on_sale_has_a_buffer_to_release(
    buffers: Buffers, products: Products, new_product: NewProduct
) -> None:
    product = await new_product(UNITS, buffer_percent=BUFFER)
    assert await conflict(buffers.release(wanted(product))) is Conflict.NOT_OPEN
    plan, _ = await products.begin_load(product, partitions=PARTITIONS, default_shards=6)
    assert await conflict(buffers.release(wanted(product))) is Conflict.NOT_OPEN
    await products.finish_load(plan)
    other = buffers.release(wanted(product), epoch=2)
    assert await conflict(other) is Conflict.OTHER_EPOCH
    await products.begin_close(product)
    assert await conflict(buffers.release(wanted(product))) is Conflict.NOT_OPEN
    with pytest.raises(UnknownProductError):
        await buffers.release(wanted(7))


async def test_a_close_keeps_what_never_came_on_sale_and_the_next_load_begins_anew(
    buffers: Buffers, products: Products, product: int
) -> None:
    await buffers.release(wanted(product, 15))
    row = await close(products, product)
    assert (row.available_stock, row.buffer_stock, row.total_stock) == (UNITS, 0, UNITS)
    row = await load(products, product)
    assert (row.available_stock, row.buffer_stock) == (60, BUFFER)
    assert await buffers.progress(product) == Progress(2, 0)


async def test_rules_are_those_of_products_on_sale_with_a_buffer(
    buffers: Buffers, products: Products, new_product: NewProduct
) -> None:
    async def ruled(below: int, percent: int = BUFFER) -> int:
        product_id = await new_product(UNITS, buffer_percent=percent)
        settings = settings_of(product_id, UNITS, percent)
        row = await products.put(replace(settings, buffer_release_below=below))
        assert row.buffer_release_below == below
        await load(products, product_id)
        return product_id

    first, _plain, _empty, second, closed = (
        await ruled(10),
        await ruled(0),
        await ruled(10, percent=0),
        await ruled(7),
        await ruled(9),
    )
    await close(products, closed)
    expected = [Rule(first, 1, 10), Rule(second, 1, 7)]
    assert list(await buffers.rules(after=first - 1, limit=100)) == expected
    assert list(await buffers.rules(after=first - 1, limit=1)) == expected[:1]
    await buffers.release(wanted(second))
    assert list(await buffers.rules(after=first, limit=100)) == []
    assert (await products.get(second)).status is State.OPEN
