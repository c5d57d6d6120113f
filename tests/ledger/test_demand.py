"""Reports of the demand in the ledger, and the products that the workers look at for it."""

from collections.abc import Awaitable, Callable

import pytest

from ledger.database import Database
from ledger.demand import Demand, LiveProduct
from ledger.layouts import Cause, ChangeState, Layouts
from ledger.products import Products
from tests.ledger.conftest import PARTITIONS, NewProduct, write

OnSale = Callable[..., Awaitable[int]]


@pytest.fixture
async def demand(database: Database) -> Demand:
    return Demand(database)


@pytest.fixture
def on_sale(products: Products, new_product: NewProduct, database: Database) -> OnSale:
    """`await on_sale(pin=0, shards=6)`: a product on sale that nothing happened to for long."""

    async def create(*, pin: int = 0, shards: int = 6) -> int:
        product_id = await new_product(100, shards=pin)
        plan, _ = await products.begin_load(
            product_id, partitions=PARTITIONS, default_shards=shards
        )
        await products.finish_load(plan)
        await rest(database, product_id)
        return product_id

    return create


async def rest(database: Database, product_id: int) -> None:
    sql = (
        "UPDATE product_inventory SET update_time = NOW(3) - INTERVAL 1 HOUR WHERE product_id = %s"
    )
    await write(database, sql, product_id)


async def seen(demand: Demand, product_id: int) -> LiveProduct | None:
    found = await demand.products(within_s=5, shards_above=6, pause_s=30)
    return next((each for each in found if each.product_id == product_id), None)


async def rates_of(demand: Demand, product_id: int) -> list[int]:
    reports = await demand.reports(within_s=5)
    return [each.requests_per_s for each in reports if each.product_id == product_id]


async def test_each_server_has_one_word_and_the_last_one_counts(
    demand: Demand, on_sale: OnSale
) -> None:
    one, two = await on_sale(), await on_sale()
    await demand.report("a", {one: 500, two: 7})
    await demand.report("b", {one: 400})
    await demand.report("a", {one: 300})
    await demand.report("a", {})
    assert await rates_of(demand, one) == [400, 300]
    assert await rates_of(demand, two) == [7]
    assert all(0 <= each.age_s < 5 for each in await demand.reports(within_s=5))


async def test_old_reports_are_neither_told_nor_kept(
    demand: Demand, database: Database, on_sale: OnSale
) -> None:
    product_id = await on_sale()
    await demand.report("a", {product_id: 500})
    sql = (
        "UPDATE product_demand SET update_time = NOW(3) - INTERVAL 61 SECOND WHERE product_id = %s"
    )
    await write(database, sql, product_id)
    assert await rates_of(demand, product_id) == []
    assert await demand.prune(older_than_s=60) == 1
    assert await demand.prune(older_than_s=60) == 0


async def test_a_product_at_rest_with_few_shards_is_not_looked_at(
    demand: Demand, on_sale: OnSale
) -> None:
    assert await seen(demand, await on_sale()) is None
    assert await seen(demand, await on_sale(pin=12)) is None


async def test_demand_events_and_many_shards_are_looked_at(
    demand: Demand, products: Products, database: Database, on_sale: OnSale
) -> None:
    asked, changed, large = await on_sale(), await on_sale(pin=12), await on_sale(shards=24)
    await demand.report("a", {asked: 1})
    await write(
        database,
        "UPDATE product_inventory SET version = version + 1 WHERE product_id = %s",
        changed,
    )
    assert await seen(demand, asked) == LiveProduct(asked, 0, 6)
    assert await seen(demand, changed) == LiveProduct(changed, 12, 12)
    assert await seen(demand, large) == LiveProduct(large, 0, 24)
    await write(
        database, "UPDATE product_inventory SET max_per_user = 2 WHERE product_id = %s", asked
    )
    assert await seen(demand, asked) == LiveProduct(asked, 0, 6, is_fixed=True)
    await products.begin_close(asked)
    assert await seen(demand, asked) is None


async def test_a_product_whose_layout_changes_is_looked_at_when_its_row_says_so(
    demand: Demand, database: Database, on_sale: OnSale
) -> None:
    product_id, layouts = await on_sale(shards=24), Layouts(database)
    aim = await layouts.want(product_id, 12, Cause.COLD, partitions=PARTITIONS)
    assert await seen(demand, product_id) is None
    await layouts.mark(product_id, aim.version, ChangeState.ACTIVE)
    assert await seen(demand, product_id) is None
    sql = (
        "UPDATE product_inventory SET layout_version = %s, layout_shards = 12 WHERE product_id = %s"
    )
    await write(database, sql, aim.version, product_id)
    assert await seen(demand, product_id) == LiveProduct(product_id, 0, 12)


async def test_a_product_rests_after_a_change_that_was_rolled_back(
    demand: Demand, database: Database, on_sale: OnSale
) -> None:
    product_id, layouts = await on_sale(shards=24), Layouts(database)
    aim = await layouts.want(product_id, 12, Cause.COLD, partitions=PARTITIONS)
    await layouts.mark(product_id, aim.version, ChangeState.ROLLED_BACK)
    assert await seen(demand, product_id) is None
    sql = "UPDATE layout_change SET update_time = NOW(3) - INTERVAL 31 SECOND WHERE product_id = %s"
    await write(database, sql, product_id)
    assert await seen(demand, product_id) == LiveProduct(product_id, 0, 24)
