"""AdminService and what stands behind it when a step fails."""

from typing import Any

import pytest
from grpc import StatusCode

from inventory.v1.admin_pb2 import (
    CloseRequest,
    FreezeRequest,
    GetProductRequest,
    ListProductsRequest,
    LoadRequest,
    PutProductRequest,
    RemoveRequest,
    RestockRequest,
    SetShardsRequest,
)
from inventory.v1.inventory_pb2 import PRODUCT_STATUS_CLOSED
from ledger.errors import Conflict, LedgerConflictError, LedgerUnavailableError
from ledger.products import Adjustment, JournalKind
from server.lifecycle import LOADED_AT_ONCE
from sharding.errors import CloseBusyError, LoadConflictError, StockUnavailableError
from sharding.outcomes import Reason, State
from tests.service.conftest import CALL_S, Service, details_of, failure_of
from tests.waiting import eventually

ID = 7
AWAY = StockUnavailableError(Reason.NOT_EXECUTED, "10.0.0.7 is away")


@pytest.fixture
def admin(service: Service) -> Any:
    service.products.add(ID, total=100)
    return service.admin


async def load(admin: Any, timeout_s: float = CALL_S) -> Any:
    answer = await admin.Load(LoadRequest(product_ids=[ID]), timeout=timeout_s)
    return answer.products[0]


async def close(admin: Any, timeout_s: float = CALL_S) -> Any:
    return await admin.Close(CloseRequest(product_id=ID), timeout=timeout_s)


async def restock(admin: Any, name: str = "s1", quantity: int = 5, **fields: Any) -> Any:
    request = RestockRequest(request_id=name, product_id=ID, quantity=quantity, **fields)
    return await admin.Restock(request, timeout=CALL_S)


async def remove(admin: Any, name: str = "m1", quantity: int = 5) -> Any:
    request = RemoveRequest(request_id=name, product_id=ID, quantity=quantity)
    return await admin.Remove(request, timeout=CALL_S)


async def test_a_product_is_written_and_read(admin: Any) -> None:
    wanted = PutProductRequest(product_id=8, name="Bühne", total_stock=10, shards=6)
    written = await admin.PutProduct(wanted)
    read = await admin.GetProduct(GetProductRequest(product_id=8))
    assert written.product == read.product
    assert (read.product.name, read.product.total_stock) == ("Bühne", 10)
    assert read.product.buffer_percent == 5


async def test_a_limit_per_user_is_written(admin: Any) -> None:
    for limit in (2, 10**9):
        written = await admin.PutProduct(PutProductRequest(product_id=8, max_per_user=limit))
        assert written.product.max_per_user == limit


async def test_a_limit_per_user_that_fixes_the_shards_is_said(service: Service) -> None:
    text = "a product with a limit per user changes its shard count while it is closed"
    service.layouts.failures = [LedgerConflictError(Conflict.LIMIT_FIXES_SHARDS, text)]
    request = SetShardsRequest(product_id=ID, shards=6)
    error = await failure_of(service.admin.SetShards(request, timeout=CALL_S))
    assert (error.code(), error.details()) == (StatusCode.FAILED_PRECONDITION, text)
    assert details_of(error).info.reason == "LIMIT_FIXES_SHARDS"


async def test_a_buffer_of_nothing_is_meant(admin: Any) -> None:
    written = await admin.PutProduct(PutProductRequest(product_id=8, buffer_percent=0))
    assert written.product.buffer_percent == 0


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"product_id": 0}, "INVALID_PRODUCT_ID"),
        ({"name": "x" * 201}, "INVALID_NAME"),
        ({"name": "a\nb"}, "INVALID_NAME"),
        ({"total_stock": -1}, "INVALID_TOTAL_STOCK"),
        ({"total_stock": 10**12 + 1}, "INVALID_TOTAL_STOCK"),
        ({"buffer_percent": 101}, "INVALID_BUFFER_PERCENT"),
        ({"buffer_percent": -1}, "INVALID_BUFFER_PERCENT"),
        ({"shards": 5}, "INVALID_SHARDS"),
        ({"shards": -1}, "INVALID_SHARDS"),
        ({"shards": 96}, "INVALID_SHARDS"),
        ({"low_stock": -1}, "INVALID_LOW_STOCK"),
        ({"max_per_user": -1}, "INVALID_MAX_PER_USER"),
        ({"max_per_user": 10**9 + 1}, "INVALID_MAX_PER_USER"),
    ],
)
async def test_a_product_out_of_bounds_is_not_written(
    service: Service, admin: Any, fields: dict[str, Any], reason: str
) -> None:
    error = await failure_of(admin.PutProduct(PutProductRequest(**{"product_id": 8, **fields})))
    assert error.code() is StatusCode.INVALID_ARGUMENT
    assert details_of(error).info.reason == reason
    assert set(service.products.rows) == {ID}


async def test_a_conflict_in_the_ledger_has_its_name(service: Service, admin: Any) -> None:
    service.products.failures.append(
        LedgerConflictError(Conflict.TOTAL_FIXED, "product 7 keeps its total")
    )
    error = await failure_of(admin.PutProduct(PutProductRequest(product_id=ID, total_stock=9)))
    assert error.code() is StatusCode.FAILED_PRECONDITION
    assert details_of(error).info.reason == "TOTAL_FIXED"


async def test_products_are_listed_page_by_page(service: Service, admin: Any) -> None:
    for product_id in (1, 3, 9):
        service.products.add(product_id)
    seen, after = [], 0
    while True:
        page = await admin.ListProducts(ListProductsRequest(after_product_id=after, page_size=3))
        seen += [product.product_id for product in page.products]
        after = page.next_after_product_id
        if not after:
            break
    assert seen == [1, 3, ID, 9]


@pytest.mark.parametrize("size", [-1, 1_001])
async def test_a_page_out_of_bounds_is_invalid(admin: Any, size: int) -> None:
    error = await failure_of(admin.ListProducts(ListProductsRequest(page_size=size)))
    assert details_of(error).fields == [("page_size", "INVALID_PAGE_SIZE")]


async def test_loading_twice_loads_once(service: Service, admin: Any) -> None:
    first = await load(admin)
    service.stock.available[ID] -= 40
    second = await load(admin)
    assert (first.loaded, first.pool, first.shards) == (True, 100, 1)
    assert (second.loaded, second.epoch) == (False, first.epoch)
    assert service.stock.available[ID] == 60


@pytest.mark.parametrize("step", ["stock", "ledger"])
async def test_a_load_that_broke_off_is_resumed_with_the_same_plan(
    service: Service, admin: Any, step: str
) -> None:
    if step == "stock":
        service.stock.failures.append(AWAY)
    else:
        # The first answer is of begin_load's look at the row.
        service.products.failures += [None, LedgerUnavailableError("away")]
    error = await failure_of(load(admin))
    again = await load(admin)
    assert error.code() is StatusCode.UNAVAILABLE
    assert details_of(error).info.reason == "LOAD_PENDING"
    assert "10.0.0.7" not in repr((error.details(), list(error.trailing_metadata())))
    assert (again.loaded, again.epoch, again.pool) == (True, 1, 100)
    assert service.products.rows[ID].status is State.OPEN


async def test_a_product_is_sold_once_the_ledger_knows_its_shards(
    service: Service, admin: Any
) -> None:
    service.products.applied = False
    error = await failure_of(load(admin, timeout_s=1.5))
    service.products.applied = True
    await service.stock.background.drain()
    before = dict(service.stock.available)
    loaded = await load(admin)
    assert error.code() is StatusCode.UNAVAILABLE
    assert details_of(error).info.reason == "LOAD_PENDING"
    assert ID not in before
    assert loaded.loaded


async def test_products_of_one_call_are_loaded_side_by_side(service: Service, admin: Any) -> None:
    product_ids = (21, 9, 15)
    for product_id in product_ids:
        service.products.add(product_id, total=product_id)
    service.stock.open_gate.clear()
    call = admin.Load(LoadRequest(product_ids=product_ids), timeout=CALL_S)
    await eventually(lambda: set(service.stock.loading) == set(product_ids))
    service.stock.open_gate.set()
    loaded = (await call).products
    assert [(each.product_id, each.pool) for each in loaded] == [
        (each, each) for each in product_ids
    ]


async def test_a_product_that_is_named_twice_is_loaded_once(service: Service, admin: Any) -> None:
    loaded = (await admin.Load(LoadRequest(product_ids=[ID, ID]), timeout=CALL_S)).products
    assert [each.product_id for each in loaded] == [ID, ID]
    assert service.stock.loading == [ID]


async def test_after_a_failure_no_further_product_is_begun(service: Service, admin: Any) -> None:
    product_ids = range(21, 21 + 2 * LOADED_AT_ONCE)
    for product_id in product_ids:
        service.products.add(product_id, total=1)
    service.stock.failures.append(AWAY)
    error = await failure_of(admin.Load(LoadRequest(product_ids=product_ids), timeout=CALL_S))
    assert details_of(error).info.reason == "LOAD_PENDING"
    assert len(service.stock.loading) < LOADED_AT_ONCE
    open_now = {each for each, row in service.products.rows.items() if row.status is State.OPEN}
    assert open_now == set(service.stock.loading)


async def test_a_load_that_a_shard_holds_up_says_in_time_that_it_has_begun(
    service: Service, admin: Any
) -> None:
    service.stock.open_gate.clear()
    error = await failure_of(load(admin, timeout_s=1.5))
    service.stock.open_gate.set()
    loaded = await load(admin)
    assert error.code() is StatusCode.UNAVAILABLE
    assert details_of(error).info.reason == "LOAD_PENDING"
    assert loaded.loaded


async def test_shards_of_another_epoch_are_a_conflict(service: Service, admin: Any) -> None:
    service.stock.failures.append(LoadConflictError("its shard in partition 3 answers passed"))
    error = await failure_of(load(admin))
    assert error.code() is StatusCode.FAILED_PRECONDITION
    assert details_of(error).info.reason == "LOAD_CONFLICT"


async def test_a_product_is_closed_once_the_worker_is_through(service: Service, admin: Any) -> None:
    await load(admin)
    service.products.applied = False
    error = await failure_of(close(admin, timeout_s=1.5))
    service.products.applied = True
    closed = await close(admin)
    again = await close(admin)
    assert error.code() is StatusCode.UNAVAILABLE
    assert details_of(error).info.reason == "CLOSE_PENDING"
    assert closed.product.status == again.product.status == PRODUCT_STATUS_CLOSED


async def test_a_close_that_broke_off_is_pending(service: Service, admin: Any) -> None:
    await load(admin)
    service.stock.failures.append(AWAY)
    error = await failure_of(close(admin))
    again = await close(admin)
    assert error.code() is StatusCode.UNAVAILABLE
    assert details_of(error).info.reason == "CLOSE_PENDING"
    assert again.product.status == PRODUCT_STATUS_CLOSED


async def test_units_in_use_keep_a_close_pending(service: Service, admin: Any) -> None:
    await load(admin)
    service.stock.failures.append(CloseBusyError("held"))
    error = await failure_of(close(admin))
    assert details_of(error).info.reason == "CLOSE_PENDING"
    assert service.products.rows[ID].status is State.CLOSING


async def test_corrections_of_a_closed_product_are_made_in_the_ledger(
    service: Service, admin: Any
) -> None:
    first, again = await restock(admin), await restock(admin)
    await remove(admin, quantity=50)
    error = await failure_of(remove(admin, "m2", quantity=56))
    assert (first.replayed, again.replayed) == (False, True)
    assert service.products.rows[ID].available_stock == 55
    assert error.code() is StatusCode.FAILED_PRECONDITION
    assert details_of(error).info.reason == "INSUFFICIENT_STOCK"


async def test_corrections_of_a_product_on_sale_are_made_live(service: Service, admin: Any) -> None:
    await load(admin)
    await restock(admin, quantity=5)
    await remove(admin, quantity=100)
    error = await failure_of(remove(admin, "m2", quantity=6))
    assert service.stock.available[ID] == 5
    assert details_of(error).info.reason == "INSUFFICIENT_STOCK"


async def test_a_correction_made_while_closed_is_a_replay_on_sale(
    service: Service, admin: Any
) -> None:
    await restock(admin)
    await load(admin)
    again = await restock(admin)
    assert again.replayed
    assert service.stock.available[ID] == 105


async def test_who_corrects_is_told_in_a_few_words_or_not_at_all(admin: Any) -> None:
    error = await failure_of(restock(admin, "s1", actor="x" * 65))
    assert details_of(error).fields == [("actor", "INVALID_ACTOR")]
    assert not (await restock(admin, "s1", actor="Zoë")).replayed


async def test_an_id_cannot_stand_for_two_corrections(service: Service, admin: Any) -> None:
    service.products.adjustments[ID, "s1"] = Adjustment(JournalKind.REMOVE, 5, replayed=True)
    error = await failure_of(restock(admin, "s1", quantity=5))
    assert error.code() is StatusCode.ALREADY_EXISTS
    assert details_of(error).info.reason == "REQUEST_MISMATCH"


@pytest.mark.parametrize("quantity", [0, -3, -(2**31), -(2**63), 10**9 + 1])
async def test_a_correction_out_of_bounds_changes_nothing(
    service: Service, admin: Any, quantity: int
) -> None:
    for correct in (restock, remove):
        error = await failure_of(correct(admin, "q", quantity))
        assert details_of(error).fields == [("quantity", "INVALID_QUANTITY")]
    assert service.products.rows[ID].available_stock == 100


async def test_a_correction_needs_a_good_id_and_a_short_reason(admin: Any) -> None:
    error = await failure_of(restock(admin, "a b", reason="x" * 201))
    fields = [field for field, _ in details_of(error).fields]
    assert fields == ["request_id", "reason"]


async def test_a_call_that_this_version_lacks_says_so(admin: Any) -> None:
    error = await failure_of(admin.Freeze(FreezeRequest(product_id=ID)))
    assert error.code() is StatusCode.UNIMPLEMENTED
    assert "version" in (error.details() or "")


async def test_a_close_waits_for_the_shards_that_left_in_a_change_of_the_layout(
    service: Service, admin: Any
) -> None:
    await load(admin)
    service.stock.retired = 5
    error = await failure_of(close(admin, timeout_s=1.5))
    service.products.closed = 6
    closed = await close(admin)
    assert details_of(error).info.reason == "CLOSE_PENDING"
    assert closed.product.status == PRODUCT_STATUS_CLOSED


async def test_a_close_during_a_change_of_the_layout_is_to_be_called_again(
    service: Service, admin: Any
) -> None:
    await load(admin)
    service.products.failures.append(LedgerConflictError(Conflict.LAYOUT_CHANGING, "on its way"))
    error = await failure_of(close(admin))
    assert error.code() is StatusCode.UNAVAILABLE
    assert details_of(error).info.reason == "LAYOUT_CHANGING"
    assert details_of(error).retry is not None
    assert service.products.rows[ID].status is State.OPEN


async def test_a_close_ends_however_short_the_callers_deadline_is(
    service: Service, admin: Any
) -> None:
    await load(admin)
    service.products.applied = False
    await failure_of(close(admin, timeout_s=0.45))
    service.products.applied = True
    closed = await close(admin, timeout_s=0.45)
    assert closed.product.status == PRODUCT_STATUS_CLOSED
