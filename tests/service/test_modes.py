"""What callers are told while the live stock is away, and by which word."""

from dataclasses import replace
from typing import Any

import pytest
from grpc import StatusCode

from inventory.v1.admin_pb2 import CloseRequest, LoadRequest, RemoveRequest, RestockRequest
from inventory.v1.inventory_pb2 import (
    OUTCOME_UNAVAILABLE,
    BatchDeductRequest,
    BatchReserveRequest,
    ConfirmRequest,
    DeductRequest,
    GetOrderRequest,
    GetStockRequest,
    OrderLine,
    ReserveRequest,
    ResolveRequestRequest,
    WatchStockRequest,
)
from ledger.errors import LedgerUnavailableError
from ledger.products import Adjustment, JournalKind
from server.gate import OBJECTIONS, Stance
from sharding.outcomes import State
from tests.service.conftest import CALL_S, PRODUCT, Service, details_of, failure_of

NOT_LIVE = [stance for stance in Stance if stance is not Stance.LIVE]
OUT_OF_REACH = [Stance.AWAY, Stance.BUFFER]
SALE = DeductRequest(request_id="r1", product_id=PRODUCT, quantity=1)
ORDER = ReserveRequest(order_id=5, lines=[OrderLine(product_id=PRODUCT, quantity=1)])


async def refusal_of(call: Any, stance: Stance) -> None:
    """The call must say that the live stock is not there, and that it is worth trying again."""
    error = await failure_of(call)
    details = details_of(error)
    assert error.code() is StatusCode.UNAVAILABLE
    assert details.info.reason == OBJECTIONS[stance].value
    assert details.retry is not None


@pytest.mark.parametrize("stance", [Stance.AWAY, Stance.LEAVING])
async def test_nothing_is_sold_on_the_way_in_and_out(service: Service, stance: Stance) -> None:
    service.gate.turn(stance)
    await refusal_of(service.inventory.Deduct(SALE, timeout=CALL_S), stance)
    batch = await service.inventory.BatchDeduct(
        BatchDeductRequest(items=[SALE] * 2), timeout=CALL_S
    )
    assert [(each.outcome, each.reason) for each in batch.results] == [
        (OUTCOME_UNAVAILABLE, OBJECTIONS[stance].value)
    ] * 2
    assert service.stock.batches == []


async def test_in_the_buffers_mode_deductions_go_to_the_buffer(service: Service) -> None:
    service.gate.turn(Stance.BUFFER)
    error = await failure_of(service.inventory.Deduct(SALE, timeout=CALL_S))
    assert details_of(error).info.reason == "BUFFER_EMPTY"  # what the buffer of these tests says
    assert service.stock.batches == []
    service.gate.turn(Stance.LIVE)
    await service.inventory.Deduct(SALE, timeout=CALL_S)
    assert len(service.stock.batches) == 1


@pytest.mark.parametrize("stance", NOT_LIVE)
async def test_orders_and_corrections_wait_for_the_live_stock(
    service: Service, stance: Stance
) -> None:
    service.products.add(PRODUCT, total=10, status=State.OPEN)
    service.products.add(2, total=10)
    service.gate.turn(stance)
    calls = [
        service.inventory.Reserve(ORDER, timeout=CALL_S),
        service.inventory.Confirm(ConfirmRequest(order_id=5), timeout=CALL_S),
        service.inventory.GetOrder(GetOrderRequest(order_id=5), timeout=CALL_S),
        service.admin.Load(LoadRequest(product_ids=[2]), timeout=CALL_S),
        service.admin.Close(CloseRequest(product_id=PRODUCT), timeout=CALL_S),
        service.admin.Restock(RestockRequest(request_id="s", product_id=PRODUCT, quantity=1)),
        service.admin.Remove(RemoveRequest(request_id="m", product_id=PRODUCT, quantity=1)),
    ]
    for call in calls:
        await refusal_of(call, stance)
    batch = await service.inventory.BatchReserve(BatchReserveRequest(items=[ORDER]), timeout=CALL_S)
    assert [each.reason for each in batch.results] == [OBJECTIONS[stance].value]
    assert service.orders.calls == []
    assert service.products.rows[PRODUCT].status is State.OPEN
    assert service.products.rows[2].status is State.CLOSED
    # A closed product's units are all in the ledger.
    await service.admin.Restock(RestockRequest(request_id="s", product_id=2, quantity=1))
    assert service.products.rows[2].available_stock == 11


@pytest.mark.parametrize("stance", OUT_OF_REACH)
async def test_stock_is_read_from_the_ledger_and_marked(service: Service, stance: Stance) -> None:
    service.products.add(PRODUCT, total=10, status=State.OPEN)
    row = service.products.rows[PRODUCT]
    service.products.rows[PRODUCT] = replace(row, available_stock=5, buffer_stock=2, sold_count=3)
    service.gate.turn(stance)
    stock = (await service.inventory.GetStock(GetStockRequest(product_id=PRODUCT))).stock
    assert (stock.available, stock.buffer, stock.sold, stock.total) == (5, 2, 3, 10)
    assert stock.inexact
    assert service.stock.reads == 0
    watch = service.inventory.WatchStock(WatchStockRequest(product_id=PRODUCT), timeout=CALL_S)
    assert (await watch.read()).stock == stock
    watch.cancel()


@pytest.mark.parametrize("stance", NOT_LIVE)
async def test_a_request_is_resolved_only_where_the_journal_has_it(
    service: Service, stance: Stance
) -> None:
    sold = Adjustment(JournalKind.DEDUCT, 3, replayed=True)
    service.products.journal[PRODUCT, "sold"] = sold
    service.gate.turn(stance)

    def resolve(request_id: str) -> Any:
        request = ResolveRequestRequest(product_id=PRODUCT, request_id=request_id)
        return service.inventory.ResolveRequest(request, timeout=CALL_S)

    assert (await resolve("sold")).quantity == 3
    await refusal_of(resolve("unheard"), stance)


async def test_each_change_is_said_once_and_counted(service: Service) -> None:
    for stance in (Stance.AWAY, Stance.AWAY, Stance.BUFFER, Stance.LEAVING, Stance.LIVE):
        service.gate.turn(stance)
        shown = [s for s in Stance if service.sample("inventory_sales_mode", mode=s.value)]
        assert shown == [stance]
    said = [entry["mode"] for entry in service.log.entries if entry["event"] == "sales_mode"]
    assert said == ["away", "buffer", "leaving", "live"]


async def test_what_was_sold_from_the_buffer_is_no_part_of_it_any_more(service: Service) -> None:
    service.products.add(PRODUCT, status=State.OPEN)
    row = service.products.rows[PRODUCT]
    service.products.rows[PRODUCT] = replace(row, epoch=1, sold_from_buffer=3)

    async def read() -> Any:
        return (await service.inventory.GetStock(GetStockRequest(product_id=PRODUCT))).stock

    service.gate.mode_epoch = 0
    before = await read()
    service.gate.mode_epoch = 3
    after = await read()
    assert (after.buffer, after.sold) == (before.buffer - 3, before.sold + 3)
    assert (after.total, after.inexact) == (before.total, False)
    assert after.total == after.available + after.buffer + after.sold
    service.products.failures.append(LedgerUnavailableError("away"))
    without = await read()
    assert (without.total, without.inexact) == (before.total, True)
