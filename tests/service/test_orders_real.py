"""Orders through the server's processes, on a real Redis Cluster, MySQL and worker."""

import asyncio
import contextlib
import importlib.util
import json
import re
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import ModuleType
from typing import Any

import grpc
import pytest

from deploy.local.stack import LocalStack
from inventory.client import (
    AsyncInventoryClient,
    EventKind,
    InvalidRequest,
    InventoryError,
    NewProduct,
    OrderConfirmed,
    OrderLine,
    OrderReleased,
    OrderState,
    Outcome,
    RequestMismatch,
    Reservation,
    UnknownOrder,
    UserLimit,
)
from inventory.payment import PaidSale, simulate_payment
from inventory.v1.inventory_pb2 import ConfirmRequest
from inventory.v1.inventory_pb2_grpc import InventoryServiceStub
from tests.service.conftest import details_of, failure_of
from tests.waiting import eventually

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "client" / "examples" / "order_service.py"
WAIT_S = 60


@pytest.fixture(scope="module")
async def stack() -> AsyncIterator[LocalStack]:
    async with LocalStack() as stack:
        await stack.start_services()
        await stack.migrate()
        await stack.start_worker()
        await stack.start_server(processes=2)
        yield stack


@pytest.fixture
async def client(stack: LocalStack) -> AsyncIterator[AsyncInventoryClient]:
    async with AsyncInventoryClient(stack.grpc_address()) as client:
        yield client


async def on_sale(
    client: AsyncInventoryClient, *products: int, total: int = 100, **fields: int
) -> None:
    for product_id in products:
        product = NewProduct(
            product_id=product_id, total_stock=total, shards=3, buffer_percent=0, **fields
        )
        await client.put_product(product)
    await client.load(products)


async def until_state(client: AsyncInventoryClient, order_id: int, state: OrderState) -> None:
    async def has_come() -> bool:
        return (await client.get_order(order_id)).state is state

    await eventually(has_come)


async def until_at_rest(client: AsyncInventoryClient, product_id: int, **counts: int) -> None:
    """Until the ledger has these counts of a product."""

    async def are_these() -> bool:
        row = await client.get_product(product_id)
        return {name: getattr(row, name) for name in counts} == counts

    await eventually(are_these)


async def test_an_order_of_several_products_is_held_sold_and_in_the_ledger(
    client: AsyncInventoryClient,
) -> None:
    await on_sale(client, 1, 2, 3)
    lines = [OrderLine(3, 5), OrderLine(1, 2), OrderLine(2, 3), OrderLine(1, 1)]
    held = await client.reserve(11, lines, user_id=9, ttl_s=60, attempt=1)
    stock = await client.get_stock(1)
    await until_at_rest(client, 1, held_stock=3, available_stock=97)
    page = await client.list_holds(user_id=9)
    sold = await client.confirm(11, product_id=2)
    again = await client.confirm(11)
    replay = await client.reserve(11, lines, user_id=9)
    assert held.held
    assert held.order is not None
    assert held.order.lines == (OrderLine(1, 3), OrderLine(2, 3), OrderLine(3, 5))
    assert 59_000 <= held.order.expires_ms - held.order.created_ms <= 60_500
    assert (stock.held, stock.available, stock.accounted) == (3, 97, stock.total)
    assert {hold.order_id for hold in page.holds} == {11}
    assert (sold.outcome, sold.replayed) == (Outcome.CONFIRMED, False)
    assert (again.outcome, again.replayed) == (Outcome.CONFIRMED, True)
    assert (replay.outcome, replay.replayed) == (Outcome.CONFIRMED, True)
    for product_id, units in ((1, 3), (2, 3), (3, 5)):
        await until_at_rest(client, product_id, held_stock=0, sold_count=units)


async def test_an_order_that_is_short_of_one_product_holds_none_of_any(
    client: AsyncInventoryClient,
) -> None:
    await on_sale(client, 21, 22)
    refused = await client.reserve(21, [OrderLine(21, 2), OrderLine(22, 101)], attempt=1)
    stock = await client.get_stock(21)
    released = await client.release(21)
    assert refused.outcome is released.outcome is Outcome.INSUFFICIENT_STOCK
    assert refused.short_lines == (OrderLine(22, 101),)
    assert (stock.held, stock.available) == (0, 100)


async def test_an_order_is_sold_in_one_call_and_once(client: AsyncInventoryClient) -> None:
    await on_sale(client, 31, 32)
    lines = [OrderLine(31, 2), OrderLine(32, 1)]
    answers = await asyncio.gather(*(client.deduct_order(31, lines) for _ in range(10)))
    stock = await client.get_stock(31)
    assert {answer.outcome for answer in answers} == {Outcome.CONFIRMED}
    assert (stock.sold, stock.held) == (2, 0)
    with pytest.raises(RequestMismatch):
        await client.deduct_order(31, [OrderLine(31, 3), OrderLine(32, 1)])
    with pytest.raises(OrderConfirmed):
        await client.release(31)


async def test_a_release_gives_back_and_outruns_a_late_reserve(
    client: AsyncInventoryClient,
) -> None:
    await on_sale(client, 41)
    await client.reserve(41, [OrderLine(41, 60)], attempt=1)
    assert (await client.release(41)).outcome is Outcome.RELEASED
    assert (await client.get_stock(41)).available == 100
    with pytest.raises(OrderReleased):
        await client.confirm(41)
    assert (await client.release(42, product_id=41)).outcome is Outcome.RELEASED
    with pytest.raises(OrderReleased):
        await client.reserve(42, [OrderLine(41, 1)])


async def test_an_order_that_nobody_knows_is_told_apart_by_code_and_reason(
    stack: LocalStack, client: AsyncInventoryClient
) -> None:
    with pytest.raises(UnknownOrder):
        await client.confirm(999)
    async with grpc.aio.insecure_channel(stack.grpc_address()) as channel:
        stub: Any = InventoryServiceStub(channel)
        error = await failure_of(stub.Confirm(ConfirmRequest(order_id=999)))
    assert error.code() is grpc.StatusCode.NOT_FOUND
    assert details_of(error).info.reason == "UNKNOWN_ORDER"


async def test_a_hold_expires_is_told_of_and_a_late_payment_gets_a_verdict(
    client: AsyncInventoryClient,
) -> None:
    await on_sale(client, 51, total=10)
    watch = client.watch_events(product_ids=[51], cursors=True)
    begin = await anext(watch)
    for order_id in (51, 52):
        await client.reserve(order_id, [OrderLine(51, 5)], user_id=7, ttl_s=1, attempt=1)
    for order_id in (51, 52):
        await until_state(client, order_id, OrderState.EXPIRED)
    retaken = await client.confirm(51)
    await client.deduct(51, 5)
    refund = await client.confirm(52)
    told = []
    async with asyncio.timeout(WAIT_S):
        async for event in watch:
            told.append((event.kind, event.order_id))
            if event.kind is EventKind.REFUND_REQUIRED:
                break
    await watch.aclose()
    assert begin.kind is EventKind.UNSPECIFIED
    assert retaken.outcome is Outcome.RETAKEN
    assert retaken.order is not None
    assert (retaken.order.state, retaken.order.retaken) == (OrderState.CONFIRMED, True)
    assert refund.outcome is Outcome.REFUND_REQUIRED
    assert {(EventKind.ORDER_EXPIRED, 51), (EventKind.ORDER_EXPIRED, 52)} <= set(told)
    assert (EventKind.REFUND_REQUIRED, 52) in told
    assert (EventKind.SOLD_OUT, 0) in told
    await until_at_rest(client, 51, sold_count=10, held_stock=0, available_stock=0)


async def test_a_hold_is_extended_and_released_by_force(client: AsyncInventoryClient) -> None:
    await on_sale(client, 61)
    held = await client.reserve(61, [OrderLine(61, 5)], ttl_s=30)
    longer = await client.extend_hold(61, 600, product_id=61)
    same = await client.extend_hold(61, 10)
    released = await client.force_release(61, reason="a test", actor="a tester")
    assert held.order is not None
    assert longer.expires_ms > held.order.expires_ms + 500_000
    assert same.expires_ms == longer.expires_ms
    assert released.state is OrderState.RELEASED
    assert (await client.get_stock(61)).available == 100
    await until_at_rest(client, 61, held_stock=0, available_stock=100)


async def test_batches_hold_sell_and_give_back_each_order_for_itself(
    client: AsyncInventoryClient,
) -> None:
    await on_sale(client, 65)
    ids = range(6_500, 6_560)
    items = [Reservation(each, (OrderLine(65, 2),), attempt=1) for each in ids]
    reserved = await client.batch_reserve(items)
    held = [each.order_id for each in reserved if each.held]
    confirmed = await client.batch_confirm(held[:20])
    released = await client.batch_release(held[20:])
    stock = await client.get_stock(65)
    assert len(held) == 50
    assert {each.outcome for each in reserved} == {Outcome.HELD, Outcome.INSUFFICIENT_STOCK}
    assert {each.outcome for each in confirmed} == {Outcome.CONFIRMED}
    assert {each.outcome for each in released} == {Outcome.RELEASED}
    assert (stock.sold, stock.held, stock.available) == (40, 0, 60)


async def test_a_user_gets_as_many_units_as_the_product_allows(
    client: AsyncInventoryClient,
) -> None:
    await on_sale(client, 71, max_per_user=3)
    line = [OrderLine(71, 2)]
    with pytest.raises(InvalidRequest) as caught:
        await client.reserve(71, line)
    assert caught.value.reason == "USER_REQUIRED"
    assert (await client.reserve(72, line, user_id=1)).held
    with pytest.raises(UserLimit):
        await client.reserve(73, line, user_id=1)
    assert (await client.reserve(74, line, user_id=2)).held
    await client.release(72)
    assert (await client.reserve(75, line, user_id=1)).held


async def test_a_sale_with_payment_ends_in_balance(client: AsyncInventoryClient) -> None:
    await on_sale(client, 81, total=150)
    sale = PaidSale(
        product_id=81, buyers=200, concurrency=50, cancel=0.2, vanish=0.2, late=0.2, ttl_s=2
    )
    report = await simulate_payment(client, sale)
    assert report.imbalances == ()
    assert report.after.held == 0
    assert report.unknown == report.failed == 0
    await until_at_rest(client, 81, sold_count=report.units_sold, held_stock=0)


async def test_the_example_sells_cancels_and_retakes(
    stack: LocalStack, client: AsyncInventoryClient, tmp_path: Path
) -> None:
    await on_sale(client, 91)
    command = [str(EXAMPLE), "--target", stack.grpc_address(), "--product", "91", "--ttl", "1"]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *command,
        "--folder",
        str(tmp_path),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(WAIT_S):
        out, err = await process.communicate()
    said = out.decode().splitlines()
    assert (process.returncode, err.decode()) == (0, "")
    assert said == ["paid in time: shipped", "never paid: cancelled", "paid too late: shipped"]
    kept = json.loads((tmp_path / "orders.json").read_text())
    assert sorted(kept.values()) == ["cancelled", "shipped", "shipped"]
    assert re.fullmatch(r"[1-9]\d*", (tmp_path / "cursor").read_text())
    assert (await client.get_stock(91)).sold == 2


async def test_the_example_goes_on_from_its_files_and_refunds_what_came_too_late(
    client: AsyncInventoryClient, tmp_path: Path
) -> None:
    await on_sale(client, 95, total=1)
    example = _example()
    service = example.OrderService(client, example.Books(tmp_path))
    order_id = await service.order([OrderLine(95, 1)], user_id=1, ttl_s=1)
    example.Books(tmp_path).write(9_500, example.Status.NEW)
    await until_state(client, order_id, OrderState.EXPIRED)
    await client.deduct(95, 1)
    books = example.Books(tmp_path)
    again = example.OrderService(client, books)
    await again.tidy()
    assert books.statuses[9_500] is example.Status.CANCELLED
    following = asyncio.create_task(again.follow())
    await eventually(lambda: books.statuses[order_id] is example.Status.CANCELLED)
    following.cancel()
    await asyncio.wait([following])
    assert await again.pay(order_id) is example.Status.REFUNDED


async def test_a_server_that_stops_leaves_no_order_behind(
    stack: LocalStack, client: AsyncInventoryClient
) -> None:
    await on_sale(client, 101, 102, total=100_000)
    lines = [OrderLine(101, 1), OrderLine(102, 2)]
    sold: set[int] = set()

    async def buy(order_id: int) -> None:
        with contextlib.suppress(InventoryError):
            result = await client.deduct_order(order_id, lines, attempt=1, deadline_s=1)
            if result.sold:
                sold.add(order_id)

    async def crowd(order_ids: range) -> None:
        async with asyncio.TaskGroup() as buyers:
            for order_id in order_ids:
                buyers.create_task(buy(order_id))
                await asyncio.sleep(0.005)

    await crowd(range(10_000, 10_100))
    server = stack.servers[0]
    server.signal(signal.SIGTERM)
    await crowd(range(10_100, 10_300))
    assert await server.wait() == 0
    await stack.start_server(processes=2)
    async with AsyncInventoryClient(stack.grpc_address()) as after:
        await after.wait_ready(WAIT_S)
        states = await asyncio.gather(
            *(_state_of(after, order_id) for order_id in range(10_000, 10_300))
        )
        confirmed = states.count(OrderState.CONFIRMED)
        await until_at_rest(after, 101, sold_count=confirmed, held_stock=0)
        await until_at_rest(after, 102, sold_count=2 * confirmed, held_stock=0)
    assert confirmed >= len(sold) >= 100
    assert {states[order_id - 10_000] for order_id in sold} == {OrderState.CONFIRMED}


async def _state_of(client: AsyncInventoryClient, order_id: int) -> OrderState | None:
    try:
        return (await client.get_order(order_id, product_id=101)).state
    except UnknownOrder:
        return None


def _example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("order_service", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
