"""GetStock, BatchGetStock, WatchStock as a caller sees them."""

from typing import Any

import grpc
import pytest
from grpc import StatusCode

from inventory.v1.inventory_pb2 import (
    PRODUCT_STATUS_CLOSED,
    PRODUCT_STATUS_OPEN,
    BatchGetStockRequest,
    DeductRequest,
    GetStockRequest,
    WatchStockRequest,
)
from ledger.errors import LedgerUnavailableError
from sharding.errors import StockUnavailableError
from sharding.outcomes import Reason, ShardStock, State
from tests.service.conftest import (
    CALL_S,
    PRODUCT,
    Service,
    details_of,
    failure_of,
    until,
)


async def stock_of(service: Service, product_id: int = PRODUCT) -> Any:
    answer = await service.inventory.GetStock(
        GetStockRequest(product_id=product_id), timeout=CALL_S
    )
    return answer.stock


async def deduct(service: Service, name: str, quantity: int = 1) -> None:
    await service.inventory.Deduct(
        DeductRequest(request_id=name, product_id=PRODUCT, quantity=quantity), timeout=CALL_S
    )


def watch(service: Service, interval_ms: int = 100) -> Any:
    return service.inventory.WatchStock(
        WatchStockRequest(product_id=PRODUCT, interval_ms=interval_ms), timeout=CALL_S
    )


async def test_counts_add_up(service: Service) -> None:
    await deduct(service, "a", 30)
    stock = await stock_of(service)
    assert (stock.available, stock.sold, stock.buffer) == (999_970, 32, 5)
    assert stock.total == (
        stock.available + stock.held + stock.in_transit + stock.buffer + stock.sold
    )
    assert stock.status == PRODUCT_STATUS_OPEN
    assert [(shard.partition, shard.available) for shard in stock.shards] == [(7, 999_970)]


async def test_a_shard_that_left_is_shown_until_it_is_empty(service: Service) -> None:
    service.stock.left = (ShardStock(1, 9, 0, 0, 4, 4, 0), ShardStock(2, 11, 3, 0, 0, 3, 0))
    stock = await stock_of(service)
    assert [shard.shard for shard in stock.shards] == [0, 2]
    assert stock.total == stock.available + stock.buffer + stock.sold


async def test_shards_that_do_not_answer_are_named(service: Service) -> None:
    service.stock.unread = (9, 11)
    stock = await stock_of(service)
    assert (stock.inexact, list(stock.unread_partitions)) == (True, [9, 11])


async def test_a_product_that_is_off_sale_is_read_from_the_ledger(service: Service) -> None:
    service.products.add(5, total=70)
    service.products.add(PRODUCT, total=80)
    service.stock.states[PRODUCT] = State.CLOSED
    never_loaded, closed = await stock_of(service, 5), await stock_of(service)
    assert (never_loaded.available, closed.available) == (70, 80)
    assert closed.status == PRODUCT_STATUS_CLOSED
    assert len(closed.shards) == 0


async def test_an_unknown_product_is_not_found(service: Service) -> None:
    error = await failure_of(stock_of(service, 404))
    assert error.code() is StatusCode.NOT_FOUND
    assert details_of(error).info.reason == "UNKNOWN_PRODUCT"


async def test_a_product_id_below_one_is_invalid(service: Service) -> None:
    error = await failure_of(stock_of(service, 0))
    assert details_of(error).fields == [("product_id", "INVALID_PRODUCT_ID")]


async def test_a_ledger_that_is_away_is_no_unknown_product(service: Service) -> None:
    service.products.failures.append(LedgerUnavailableError("mysql at 10.0.0.8 is away"))
    error = await failure_of(stock_of(service, 404))
    assert error.code() is StatusCode.UNAVAILABLE
    assert "10.0.0.8" not in repr((error.details(), list(error.trailing_metadata())))


async def test_several_products_come_in_the_order_asked_for(service: Service) -> None:
    service.stock.available |= {3: 30, 2: 20}
    ids = [3, 404, PRODUCT, 2]
    answer = await service.inventory.BatchGetStock(BatchGetStockRequest(product_ids=ids))
    assert [stock.product_id for stock in answer.stocks] == [3, PRODUCT, 2]


@pytest.mark.parametrize(
    ("ids", "field"), [([], "product_ids"), ([1] * 101, "product_ids"), ([1, 0], "product_ids[1]")]
)
async def test_a_wrong_list_of_products_is_invalid(
    service: Service, ids: list[int], field: str
) -> None:
    call = service.inventory.BatchGetStock(BatchGetStockRequest(product_ids=ids))
    assert details_of(await failure_of(call)).fields == [(field, "INVALID_PRODUCT_IDS")]


async def test_one_unreachable_product_fails_the_whole_read(service: Service) -> None:
    service.stock.available[2] = 20
    service.stock.failures.append(StockUnavailableError(Reason.NOT_EXECUTED, "away"))
    error = await failure_of(
        service.inventory.BatchGetStock(BatchGetStockRequest(product_ids=[PRODUCT, 2]))
    )
    assert error.code() is StatusCode.UNAVAILABLE
    assert details_of(error).info.reason == "NOT_EXECUTED"


async def test_a_watch_tells_the_counts_at_once_and_then_only_changes(service: Service) -> None:
    call = watch(service)
    first = await call.read()
    await until(lambda: service.stock.reads >= 3)
    await deduct(service, "a", 10)
    second = await call.read()
    call.cancel()
    assert first.stock.available == 1_000_000
    assert second.stock.available == 999_990
    await until(lambda: service.sample("inventory_streams") == 0)


async def test_a_watch_looks_once_an_interval_however_much_is_sold(service: Service) -> None:
    call = watch(service, interval_ms=60_000)
    await call.read()
    for i in range(20):
        await deduct(service, f"s{i}")
    assert service.stock.reads == 1
    call.cancel()


@pytest.mark.parametrize("interval_ms", [-1, 99, 60_001])
async def test_an_interval_out_of_bounds_is_invalid(service: Service, interval_ms: int) -> None:
    error = await failure_of(watch(service, interval_ms).read())
    assert details_of(error).fields == [("interval_ms", "INVALID_INTERVAL_MS")]


async def test_a_watch_ends_when_the_stock_cannot_be_read(service: Service) -> None:
    call = watch(service)
    await call.read()
    service.stock.failures.append(StockUnavailableError(Reason.NOT_EXECUTED, "away"))
    error = await failure_of(call.read())
    assert error.code() is StatusCode.UNAVAILABLE
    assert details_of(error).retry is not None


async def test_a_watch_ends_with_a_hint_when_the_process_drains(service: Service) -> None:
    call = watch(service)
    await call.read()
    service.lives.drain()
    assert await call.read() is grpc.aio.EOF
    assert await call.code() is StatusCode.OK
    assert dict(await call.trailing_metadata())["inventory-stream-end"] == "draining"
