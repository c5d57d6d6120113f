"""Changes of shard counts in the ledger: wishes, versions, and loads and closes beside them."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from ledger.database import Database
from ledger.errors import Conflict, LedgerConflictError, UnknownProductError
from ledger.layouts import Aim, Cause, ChangeState, LayoutChange, Layouts
from ledger.products import Adjustment, JournalKind, Products
from sharding.outcomes import State
from tests.ledger.conftest import PARTITIONS, NewProduct, fetch, write

OnSale = Callable[..., Awaitable[int]]


@pytest.fixture
async def layouts(database: Database) -> Layouts:
    return Layouts(database)


@pytest.fixture
def on_sale(products: Products, new_product: NewProduct) -> OnSale:
    """`await on_sale(pin=0)`: a product on sale as layout 1, with six shards by default."""

    async def create(*, pin: int = 0) -> int:
        product_id = await new_product(100, shards=pin)
        await load(products, product_id)
        return product_id

    return create


async def load(products: Products, product_id: int) -> int:
    plan, _ = await products.begin_load(product_id, partitions=PARTITIONS, default_shards=6)
    await products.finish_load(plan)
    return plan.layout.version


async def close(products: Products, product_id: int) -> None:
    row = await products.begin_close(product_id)
    await products.finish_close(product_id, epoch=row.epoch)


async def want(
    layouts: Layouts, product_id: int, shards: int, cause: Cause = Cause.OPERATOR
) -> Aim:
    return await layouts.want(product_id, shards, cause, partitions=PARTITIONS)


async def changes_of(layouts: Layouts, product_id: int) -> list[LayoutChange]:
    found = await layouts.open_changes()
    return [each.change for each in found if each.change.product_id == product_id]


async def apply_event(database: Database, product_id: int, version: int, shards: int) -> None:
    """What the worker writes when the event of a change arrives."""
    sql = (
        "UPDATE product_inventory SET layout_version = %s, layout_shards = %s WHERE product_id = %s"
    )
    await write(database, sql, version, shards, product_id)


async def test_an_operators_count_is_remembered_and_a_change_begins(
    layouts: Layouts, products: Products, on_sale: OnSale
) -> None:
    product_id = await on_sale()
    assert await want(layouts, product_id, 12) == Aim(2, in_force=False)
    assert (await products.get(product_id)).shards == 12
    change = LayoutChange(product_id, 2, 12, Cause.OPERATOR, ChangeState.WANTED)
    assert await changes_of(layouts, product_id) == [change]


async def test_the_same_wish_many_times_at_once_is_one_change(
    layouts: Layouts, on_sale: OnSale
) -> None:
    product_id = await on_sale()
    aims = await asyncio.gather(*(want(layouts, product_id, 12) for _ in range(15)))
    assert set(aims) == {Aim(2, in_force=False)}
    assert len(await changes_of(layouts, product_id)) == 1


async def test_another_wish_meanwhile_changes_nothing(
    layouts: Layouts, products: Products, on_sale: OnSale
) -> None:
    product_id = await on_sale()
    await want(layouts, product_id, 12)
    for shards, cause in ((24, Cause.OPERATOR), (6, Cause.OPERATOR)):
        with pytest.raises(LedgerConflictError) as refused:
            await want(layouts, product_id, shards, cause)
        assert refused.value.conflict is Conflict.LAYOUT_CHANGING
    assert (await products.get(product_id)).shards == 12
    assert len(await changes_of(layouts, product_id)) == 1


async def test_a_product_with_a_limit_per_user_changes_its_count_while_it_is_closed(
    layouts: Layouts, products: Products, database: Database, on_sale: OnSale
) -> None:
    product_id = await on_sale()
    sql = "UPDATE product_inventory SET max_per_user = 2 WHERE product_id = %s"
    await write(database, sql, product_id)
    for cause in Cause:
        with pytest.raises(LedgerConflictError, match="while it is closed") as refused:
            await want(layouts, product_id, 12, cause)
        assert refused.value.conflict is Conflict.LIMIT_FIXES_SHARDS
    assert (await products.get(product_id)).shards == 0
    assert await want(layouts, product_id, 6) == Aim(1, in_force=True)
    assert await changes_of(layouts, product_id) == []
    await close(products, product_id)
    assert (await want(layouts, product_id, 12)).in_force
    assert await load(products, product_id) == 2
    row = await products.get(product_id)
    assert (row.layout_shards, row.plan.max_per_user) == (12, 2)


async def test_a_count_that_is_in_force_needs_no_change(layouts: Layouts, on_sale: OnSale) -> None:
    product_id = await on_sale()
    assert await want(layouts, product_id, 6) == Aim(1, in_force=True)
    assert await changes_of(layouts, product_id) == []


async def test_automatic_again_changes_the_pin_and_nothing_else(
    layouts: Layouts, products: Products, on_sale: OnSale
) -> None:
    product_id = await on_sale(pin=12)
    assert await want(layouts, product_id, 0) == Aim(1, in_force=True)
    row = await products.get(product_id)
    assert (row.shards, row.layout_shards) == (0, 12)
    await want(layouts, product_id, 24, Cause.HOT)
    assert await want(layouts, product_id, 0) == Aim(1, in_force=True)


async def test_a_product_with_a_pin_is_not_changed_by_the_demand(
    layouts: Layouts, on_sale: OnSale
) -> None:
    product_id = await on_sale(pin=6)
    assert await want(layouts, product_id, 12, Cause.HOT) == Aim(1, in_force=True)
    assert await changes_of(layouts, product_id) == []


async def test_what_was_given_up_is_not_begun_anew_at_once(
    layouts: Layouts, on_sale: OnSale
) -> None:
    product_id = await on_sale()
    aim = await want(layouts, product_id, 12)
    await layouts.mark(product_id, aim.version, ChangeState.ROLLED_BACK)
    assert [await want(layouts, product_id, 12) for _ in range(3)] == [aim] * 3
    other = await want(layouts, product_id, 24)
    assert other.version > aim.version


async def test_each_change_leaves_a_version_to_roll_back_under(
    layouts: Layouts, on_sale: OnSale, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ledger.layouts.GIVEN_UP_REST_S", 0)
    product_id = await on_sale()
    versions = []
    for shards, end in (
        (12, ChangeState.ROLLED_BACK),
        (12, ChangeState.ACTIVE),
        (24, ChangeState.ROLLED_BACK),
        (2, ChangeState.ACTIVE),
    ):
        aim = await want(layouts, product_id, shards)
        versions.append(aim.version)
        assert await layouts.mark(product_id, aim.version, end)
    assert versions == [2, 4, 6, 8]


async def test_what_is_active_counts_before_its_event_has_arrived(
    layouts: Layouts, database: Database, on_sale: OnSale, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ledger.layouts.GIVEN_UP_REST_S", 0)
    product_id = await on_sale()
    await want(layouts, product_id, 12)
    await layouts.mark(product_id, 2, ChangeState.ACTIVE)
    assert await want(layouts, product_id, 12) == Aim(2, in_force=True)
    back = await want(layouts, product_id, 6)
    assert back == Aim(4, in_force=False)
    await layouts.mark(product_id, 4, ChangeState.ROLLED_BACK)
    assert await want(layouts, product_id, 12) == Aim(2, in_force=True)
    await apply_event(database, product_id, 5, 12)
    assert await want(layouts, product_id, 12) == Aim(5, in_force=True)
    assert await want(layouts, product_id, 6) == Aim(6, in_force=False)


async def test_marks_follow_their_order_and_count_once(layouts: Layouts, on_sale: OnSale) -> None:
    product_id = await on_sale()
    await want(layouts, product_id, 12)
    assert not await layouts.mark(product_id, 2, ChangeState.DONE)
    assert await layouts.mark(product_id, 2, ChangeState.ACTIVE)
    assert not await layouts.mark(product_id, 2, ChangeState.ACTIVE)
    assert await layouts.state(product_id, 2) is ChangeState.ACTIVE
    assert [each.state for each in await changes_of(layouts, product_id)] == [ChangeState.ACTIVE]
    assert await layouts.mark(product_id, 2, ChangeState.DONE)
    assert await changes_of(layouts, product_id) == []
    assert not await layouts.mark(product_id, 2, ChangeState.ROLLED_BACK)
    assert await layouts.state(product_id, 3) is None


async def test_a_change_that_its_base_has_forgotten_may_be_rolled_back(
    layouts: Layouts, on_sale: OnSale
) -> None:
    product_id = await on_sale()
    await want(layouts, product_id, 12)
    assert await layouts.mark(product_id, 2, ChangeState.ACTIVE)
    assert await layouts.mark(product_id, 2, ChangeState.ROLLED_BACK)
    assert await layouts.state(product_id, 2) is ChangeState.ROLLED_BACK


async def test_a_product_off_sale_keeps_the_count_for_its_next_load(
    layouts: Layouts, products: Products, new_product: NewProduct
) -> None:
    product_id = await new_product(100)
    assert await want(layouts, product_id, 12) == Aim(0, in_force=True)
    assert await changes_of(layouts, product_id) == []
    plan, _ = await products.begin_load(product_id, partitions=PARTITIONS, default_shards=6)
    assert plan.layout.shards == 12


async def test_a_product_that_is_loaded_or_closed_just_now_is_left_alone(
    layouts: Layouts, products: Products, new_product: NewProduct
) -> None:
    product_id = await new_product(100)
    plan, _ = await products.begin_load(product_id, partitions=PARTITIONS, default_shards=6)
    await assert_left_alone(layouts, products, product_id, State.LOADING)
    await products.finish_load(plan)
    await products.begin_close(product_id)
    await assert_left_alone(layouts, products, product_id, State.CLOSING)


async def assert_left_alone(
    layouts: Layouts, products: Products, product_id: int, status: State
) -> None:
    with pytest.raises(LedgerConflictError) as refused:
        await want(layouts, product_id, 12)
    assert refused.value.conflict is Conflict.STATUS_CHANGING
    row = await products.get(product_id)
    assert (row.status, row.shards) == (status, 0)


async def test_a_product_is_not_closed_while_its_layout_changes(
    layouts: Layouts, products: Products, on_sale: OnSale
) -> None:
    product_id = await on_sale()
    await want(layouts, product_id, 12)
    with pytest.raises(LedgerConflictError) as refused:
        await products.begin_close(product_id)
    assert refused.value.conflict is Conflict.LAYOUT_CHANGING
    assert (await products.get(product_id)).status is State.OPEN
    await layouts.mark(product_id, 2, ChangeState.ACTIVE)
    assert (await products.begin_close(product_id)).status is State.CLOSING
    (found,) = [e for e in await layouts.open_changes() if e.change.product_id == product_id]
    assert found.status is State.CLOSING


async def test_wishes_and_closes_at_once_never_both_win(
    layouts: Layouts, products: Products, on_sale: OnSale
) -> None:
    for _ in range(5):
        product_id = await on_sale()
        await asyncio.gather(
            want(layouts, product_id, 12), products.begin_close(product_id), return_exceptions=True
        )
        is_closing = (await products.get(product_id)).status is State.CLOSING
        assert is_closing == (await changes_of(layouts, product_id) == [])


@pytest.mark.parametrize("end", [ChangeState.ACTIVE, ChangeState.ROLLED_BACK])
async def test_a_load_is_above_every_version_that_a_change_used(
    layouts: Layouts, products: Products, on_sale: OnSale, end: ChangeState
) -> None:
    product_id = await on_sale()
    await want(layouts, product_id, 12)
    await layouts.mark(product_id, 2, end)
    await close(products, product_id)
    assert await load(products, product_id) == 4
    await close(products, product_id)
    assert await load(products, product_id) == 5


async def test_only_automatic_changes_that_were_not_rolled_back_count(
    layouts: Layouts, on_sale: OnSale
) -> None:
    product_id = await on_sale()
    for shards, cause, end in (
        (12, Cause.HOT, ChangeState.ACTIVE),
        (24, Cause.HOT, ChangeState.ROLLED_BACK),
        (6, Cause.COLD, ChangeState.ACTIVE),
        (24, Cause.OPERATOR, ChangeState.ACTIVE),
    ):
        aim = await want(layouts, product_id, shards, cause)
        await layouts.mark(product_id, aim.version, end)
    assert await layouts.recent_automatic(product_id, within_s=60) == 2
    assert await layouts.recent_automatic(product_id + 1, within_s=60) == 0


async def test_automatic_changes_are_forgotten_with_time(
    layouts: Layouts, database: Database, on_sale: OnSale
) -> None:
    product_id = await on_sale()
    await want(layouts, product_id, 12, Cause.HOT)
    sql = "UPDATE layout_change SET create_time = NOW(3) - INTERVAL 61 SECOND WHERE product_id = %s"
    await write(database, sql, product_id)
    assert await layouts.recent_automatic(product_id, within_s=60) == 0


async def test_a_pin_that_was_rolled_back_is_wanted_again_after_a_pause(
    layouts: Layouts, database: Database, on_sale: OnSale
) -> None:
    product_id = await on_sale()
    await want(layouts, product_id, 12)
    await layouts.mark(product_id, 2, ChangeState.ROLLED_BACK)
    assert product_id not in await layouts.unmet_pins(pause_s=30)
    sql = "UPDATE layout_change SET update_time = NOW(3) - INTERVAL 31 SECOND WHERE product_id = %s"
    await write(database, sql, product_id)
    assert product_id in await layouts.unmet_pins(pause_s=30)
    assert await layouts.want_pin(product_id) == Aim(4, in_force=False)
    assert product_id not in await layouts.unmet_pins(pause_s=30)


@pytest.mark.parametrize("pin", [0, 6])
async def test_a_pin_that_was_given_up_is_not_wanted_again(
    layouts: Layouts, database: Database, on_sale: OnSale, pin: int
) -> None:
    product_id = await on_sale()
    await want(layouts, product_id, 12)
    await layouts.mark(product_id, 2, ChangeState.ROLLED_BACK)
    sql = "UPDATE layout_change SET update_time = NOW(3) - INTERVAL 31 SECOND WHERE product_id = %s"
    await write(database, sql, product_id)
    await want(layouts, product_id, pin)
    assert product_id not in await layouts.unmet_pins(pause_s=30)
    assert (await layouts.want_pin(product_id)).in_force


async def test_an_unknown_product_is_said_to_be_unknown(layouts: Layouts) -> None:
    with pytest.raises(UnknownProductError):
        await want(layouts, 1, 12)


async def test_shards_count_as_closed_once_none_of_the_epoch_is_not(
    products: Products, database: Database, on_sale: OnSale
) -> None:
    product_id = await on_sale()

    async def shard(partition: int, epoch: int, state: str) -> None:
        sql = (
            "INSERT INTO shard_stock (product_id, partition_id, epoch, layout_version, state) "
            "VALUES (%s, %s, %s, 1, %s) ON DUPLICATE KEY UPDATE state = VALUES(state)"
        )
        await write(database, sql, product_id, partition, epoch, state)

    await shard(0, 2, "closed")
    await shard(1, 2, "closed")
    await shard(2, 1, "open")
    assert await products.closed_shards(product_id, epoch=2) == 2
    await shard(3, 2, "closing")
    assert await products.closed_shards(product_id, epoch=2) == 0
    await shard(3, 2, "closed")
    assert await products.closed_shards(product_id, epoch=2) == 3
    assert await products.closed_shards(product_id, epoch=3) == 0


async def test_the_journal_tells_what_a_request_took(
    products: Products, database: Database, on_sale: OnSale
) -> None:
    product_id = await on_sale()
    rows = await fetch(
        database, "SELECT COUNT(*) FROM inventory_log WHERE product_id = %s", product_id
    )
    assert rows == [(0,)]
    for name, kind, type_, units in (("a", "deduct", 5, -3), ("b", "restock", 6, 4)):
        sql = (
            "INSERT INTO inventory_log (product_id, request_id, kind, type, quantity) "
            "VALUES (%s, %s, %s, %s, %s)"
        )
        await write(database, sql, product_id, name, kind, type_, units)
    deducted = Adjustment(JournalKind.DEDUCT, 3, replayed=True)
    restocked = Adjustment(JournalKind.RESTOCK, 4, replayed=True)
    assert await products.find_request(product_id, "a") == deducted
    assert await products.find_request(product_id, "b") == restocked
    assert await products.find_request(product_id, "A") is None
    assert await products.find_request(product_id + 1, "a") is None
