"""`python -m server` on MySQL and nothing else: two servers, one database, the whole contract."""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from typing import Any

import grpc
import pytest
from grpc import StatusCode

from deploy.local.errors import StackError
from deploy.local.stack import LocalStack
from inventory.client import (
    AsyncInventoryClient,
    DeductItem,
    EventKind,
    NewProduct,
    OrderLine,
    OrderState,
    Outcome,
    PreconditionFailed,
    ProductStatus,
)
from inventory.v1 import admin_pb2 as admin_messages
from inventory.v1 import inventory_pb2 as messages
from inventory.v1.admin_pb2_grpc import AdminServiceStub
from inventory.v1.inventory_pb2_grpc import InventoryServiceStub
from ledger.engine_claim import Engine
from tests.engine.conftest import product_ids
from tests.service.conftest import CALL_S, details_of, failure_of
from tests.waiting import eventually

INT64_MIN = -(2**63)


@pytest.fixture(scope="module")
async def stack() -> AsyncIterator[LocalStack]:
    """MySQL and two servers; no Redis node is started."""
    async with LocalStack(engine=Engine.MYSQL) as stack:
        await stack.start_services()
        await stack.migrate()
        await asyncio.gather(
            *(
                stack.start_server(number, environment={"INVENTORY_MYSQL_LOCK_WAIT_S": "1"})
                for number in range(2)
            )
        )
        yield stack


@pytest.fixture
async def clients(stack: LocalStack) -> AsyncIterator[list[AsyncInventoryClient]]:
    """One for each server."""
    async with (
        AsyncInventoryClient(stack.grpc_address(0)) as here,
        AsyncInventoryClient(stack.grpc_address(1)) as there,
    ):
        yield [here, there]


@pytest.fixture
async def channel(stack: LocalStack) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(stack.grpc_address(0)) as channel:
        yield channel


@pytest.fixture
def inventory(channel: grpc.aio.Channel) -> Any:
    return InventoryServiceStub(channel)


@pytest.fixture
def admin(channel: grpc.aio.Channel) -> Any:
    return AdminServiceStub(channel)


async def on_sale(client: AsyncInventoryClient, units: int, **fields: int) -> int:
    product_id = next(product_ids)
    await client.put_product(NewProduct(product_id=product_id, total_stock=units, **fields))
    await client.load([product_id])
    return product_id


async def assert_balanced(client: AsyncInventoryClient, product_id: int, *, sold: int) -> None:
    stock, row = await client.get_stock(product_id), await client.get_product(product_id)
    assert stock.total == stock.accounted
    assert (stock.sold, row.sold_count) == (sold, sold)
    assert (stock.available, stock.held) == (row.available_stock, row.held_stock)


async def test_two_servers_sell_every_unit_once_though_every_third_request_is_sent_twice(
    clients: list[AsyncInventoryClient],
) -> None:
    product_id = await on_sale(clients[0], 300)

    async def buy(i: int) -> Outcome:
        request_id = f"buyer-{i}"
        answer = await clients[i % 2].deduct(product_id, 1, request_id=request_id)
        if i % 3 == 0:
            again = await clients[1 - i % 2].deduct(product_id, 1, request_id=request_id)
            assert (again.accepted, again.replayed) == (answer.accepted, answer.accepted)
        return answer.outcome

    outcomes = Counter(await asyncio.gather(*map(buy, range(600))))
    assert outcomes == {Outcome.DEDUCTED: 300, Outcome.INSUFFICIENT_STOCK: 300}
    await assert_balanced(clients[0], product_id, sold=300)


async def test_a_server_that_is_killed_while_it_sells_costs_no_unit(
    stack: LocalStack, clients: list[AsyncInventoryClient]
) -> None:
    product_id = await on_sale(clients[1], 10_000)
    answered = 0

    async def buy(i: int) -> bool:
        nonlocal answered
        item = DeductItem(product_id, 1, f"b-{i}")
        for attempt in range(100):
            answer = await clients[(i + attempt) % 2].deduct_item(item, deadline_s=5)
            answered += 1
            if answer.outcome in (Outcome.DEDUCTED, Outcome.INSUFFICIENT_STOCK):
                return answer.accepted
        raise AssertionError("no answer")

    async with asyncio.TaskGroup() as tasks:
        buying = [tasks.create_task(buy(i)) for i in range(400)]
        await eventually(lambda: answered > 50)
        stack.servers[0].kill()
    await stack.servers[0].start()
    assert all(task.result() for task in buying)
    await assert_balanced(clients[1], product_id, sold=400)


async def test_batches_and_streams_answer_item_by_item(
    clients: list[AsyncInventoryClient],
) -> None:
    product_id, cousin = await on_sale(clients[0], 3), await on_sale(clients[0], 1)
    items = [
        DeductItem(product_id, 2, "a"),
        DeductItem(cousin, 1, "a"),
        DeductItem(product_id, 2, "b"),
        DeductItem(product_id, 2, "a"),
        DeductItem(product_id, 1, "a"),
        DeductItem(product_id, 0, "c"),
    ]
    answers = await clients[0].batch_deduct(items)
    assert [(answer.outcome, answer.replayed) for answer in answers] == [
        (Outcome.DEDUCTED, False),
        (Outcome.DEDUCTED, False),
        (Outcome.INSUFFICIENT_STOCK, False),
        (Outcome.DEDUCTED, True),
        (Outcome.REQUEST_MISMATCH, False),
        (Outcome.INVALID, False),
    ]
    async with clients[1].stream() as stream:
        again = await stream.deduct(items[:2])
    assert [answer.replayed for answer in again] == [True, True]


async def test_one_id_with_another_content_or_another_kind_is_never_ok(
    clients: list[AsyncInventoryClient], inventory: Any, admin: Any
) -> None:
    product_id, cousin = await on_sale(clients[0], 10), await on_sale(clients[0], 10)
    good = {"request_id": "x", "product_id": product_id, "quantity": 2, "user_id": 7}
    await inventory.Deduct(messages.DeductRequest(**good), timeout=CALL_S)
    calls = [
        inventory.Deduct(messages.DeductRequest(**{**good, "quantity": 3}), timeout=CALL_S),
        inventory.Deduct(messages.DeductRequest(**{**good, "user_id": 8}), timeout=CALL_S),
        admin.Restock(
            admin_messages.RestockRequest(request_id="x", product_id=product_id, quantity=2),
            timeout=CALL_S,
        ),
    ]
    for call in calls:
        error = await failure_of(call)
        assert (error.code(), details_of(error).info.reason) == (
            StatusCode.ALREADY_EXISTS,
            "REQUEST_MISMATCH",
        )
    other = await inventory.Deduct(
        messages.DeductRequest(**{**good, "product_id": cousin, "quantity": 3}), timeout=CALL_S
    )
    assert (other.replayed, other.shard_available) == (False, 7)
    await assert_balanced(clients[0], product_id, sold=2)


async def test_ids_and_quantities_out_of_their_bounds_change_nothing(
    clients: list[AsyncInventoryClient], inventory: Any, admin: Any
) -> None:
    product_id = await on_sale(clients[0], 10)
    calls: list[Any] = []
    for request_id in ("", " ", "a b", "x" * 10_000, "a\n", "a\0"):
        wanted = messages.DeductRequest(request_id=request_id, product_id=product_id, quantity=1)
        calls.append(inventory.Deduct(wanted, timeout=CALL_S))
    for quantity in (-3, 0, -(2**31), INT64_MIN, 2**62):
        name = f"q{quantity}"
        wanted = messages.DeductRequest(request_id=name, product_id=product_id, quantity=quantity)
        lines = [messages.OrderLine(product_id=product_id, quantity=quantity)]
        fields = {"request_id": name, "product_id": product_id, "quantity": quantity}
        calls += [
            inventory.Deduct(wanted, timeout=CALL_S),
            inventory.Reserve(messages.ReserveRequest(order_id=1, lines=lines), timeout=CALL_S),
            inventory.DeductOrder(
                messages.DeductOrderRequest(order_id=1, lines=lines), timeout=CALL_S
            ),
            admin.Restock(admin_messages.RestockRequest(**fields), timeout=CALL_S),
            admin.Remove(admin_messages.RemoveRequest(**fields), timeout=CALL_S),
        ]
    codes = {(await failure_of(call)).code() for call in calls}
    assert codes == {StatusCode.INVALID_ARGUMENT}
    await assert_balanced(clients[0], product_id, sold=0)


async def test_calls_that_have_no_meaning_here_say_so(
    clients: list[AsyncInventoryClient], inventory: Any, admin: Any
) -> None:
    product_id = await on_sale(clients[0], 10)
    with pytest.raises(PreconditionFailed) as refused:
        await clients[0].set_shards(product_id, 12)
    assert refused.value.reason == "ENGINE_HAS_NO_SHARDS"
    released = admin_messages.ReleaseBufferRequest(request_id="b", product_id=product_id)
    error = await failure_of(admin.ReleaseBuffer(released, timeout=CALL_S))
    assert (error.code(), details_of(error).info.reason) == (
        StatusCode.FAILED_PRECONDITION,
        "ENGINE_HAS_NO_BUFFER",
    )
    cluster = await clients[0].get_cluster()
    assert (cluster.mode, cluster.partitions) == ("mysql", ())
    assert cluster.schema_version > 0


async def test_every_other_outcome_has_the_status_that_it_has_on_redis(
    clients: list[AsyncInventoryClient], inventory: Any
) -> None:
    limited = await on_sale(clients[0], 10, max_per_user=1)
    closed = await on_sale(clients[0], 10)
    row = await clients[0].close_product(closed)
    assert (row.status, row.available_stock) == (ProductStatus.CLOSED, 10)
    wanted = {
        (limited, 1, 7): None,
        (limited, 2, 7): (StatusCode.FAILED_PRECONDITION, "USER_LIMIT"),
        (limited, 1, 0): (StatusCode.INVALID_ARGUMENT, "USER_REQUIRED"),
        (closed, 1, 7): (StatusCode.FAILED_PRECONDITION, "PRODUCT_CLOSED"),
        (limited + 10**6, 1, 7): (StatusCode.NOT_FOUND, "UNKNOWN_PRODUCT"),
    }
    for (product_id, quantity, user_id), expected in wanted.items():
        call = inventory.Deduct(
            messages.DeductRequest(
                request_id=f"s{quantity}{user_id}",
                product_id=product_id,
                quantity=quantity,
                user_id=user_id,
            ),
            timeout=CALL_S,
        )
        if expected is None:
            assert (await call).outcome == messages.OUTCOME_DEDUCTED
        else:
            error = await failure_of(call)
            assert (error.code(), details_of(error).info.reason) == expected


async def test_calls_that_are_given_up_after_1_to_50_ms_have_one_effect_each(
    clients: list[AsyncInventoryClient], inventory: Any
) -> None:
    product_id = await on_sale(clients[0], 100)

    async def give_up(i: int) -> None:
        wanted = messages.DeductRequest(request_id=f"c{i}", product_id=product_id, quantity=1)
        with suppress(grpc.aio.AioRpcError):
            await inventory.Deduct(wanted, timeout=(1 + i % 50) / 1_000)

    await asyncio.gather(*map(give_up, range(100)))
    answers = await asyncio.gather(
        *(clients[i % 2].deduct(product_id, 1, request_id=f"c{i}") for i in range(100))
    )
    assert all(answer.accepted for answer in answers)
    await assert_balanced(clients[0], product_id, sold=100)


async def test_an_order_expires_by_itself_and_callers_are_told(
    clients: list[AsyncInventoryClient],
) -> None:
    product_id = await on_sale(clients[0], 5)
    order_id = 10_000 + product_id
    async with aclosing(clients[1].watch_events(cursors=True, product_ids=[product_id])) as events:
        await anext(events)  # where the feed is now
        held = await clients[0].reserve(order_id, [OrderLine(product_id, 5)], user_id=7, ttl_s=1)
        page = await clients[1].list_holds(product_id=product_id)
        seen = []
        async with asyncio.timeout(30):
            async for event in events:
                if event.kind is not None:
                    seen.append((event.kind, event.order_id, event.user_id))
                if len(seen) == 3:
                    break
    assert held.held
    assert [(hold.order_id, hold.quantity) for hold in page.holds] == [(order_id, 5)]
    assert set(seen) == {
        (EventKind.SOLD_OUT, 0, 0),
        (EventKind.ORDER_EXPIRED, order_id, 7),
        (EventKind.BACK_IN_STOCK, 0, 0),
    }
    assert (await clients[1].get_order(order_id)).state is OrderState.EXPIRED
    assert (await clients[0].confirm(order_id)).outcome is Outcome.RETAKEN
    await assert_balanced(clients[0], product_id, sold=5)


async def test_an_operator_releases_an_order_and_the_journal_says_who(
    clients: list[AsyncInventoryClient],
) -> None:
    product_id = await on_sale(clients[0], 5)
    order_id = 20_000 + product_id
    await clients[0].reserve(order_id, [OrderLine(product_id, 5)], ttl_s=600)
    order = await clients[1].force_release(order_id, reason="stuck", actor="me")
    assert order.state is OrderState.RELEASED
    await assert_balanced(clients[0], product_id, sold=0)


async def test_a_watched_stock_is_told_as_it_changes(
    clients: list[AsyncInventoryClient],
) -> None:
    product_id = await on_sale(clients[0], 5)
    async with aclosing(clients[1].watch_stock(product_id, interval_ms=100)) as stocks:
        first = await anext(stocks)
        await clients[0].deduct(product_id, 2)
        second = await anext(stocks)
    assert [(stock.available, stock.sold) for stock in (first, second)] == [(5, 0), (3, 2)]
    assert [shard.shard for shard in first.shards] == [0]


async def test_a_mysql_that_is_away_is_unavailable_and_all_recovers_by_itself(
    stack: LocalStack, clients: list[AsyncInventoryClient], inventory: Any
) -> None:
    product_id = await on_sale(clients[0], 5)
    stack.database.process.kill()

    async def is_not_serving() -> bool:
        return not await clients[0].is_serving()

    await eventually(is_not_serving)
    wanted = messages.DeductRequest(request_id="m", product_id=product_id, quantity=1)
    error = await failure_of(inventory.Deduct(wanted, timeout=CALL_S))
    assert error.code() is StatusCode.UNAVAILABLE
    assert not re.search("MySQL|127.0.0.1|Traceback", error.details() or "")
    await stack.database.process.start()
    await eventually(clients[0].is_serving)
    assert (await clients[0].deduct(product_id, 1, request_id="m")).accepted
    await assert_balanced(clients[0], product_id, sold=1)


async def test_a_server_of_the_other_engine_refuses_this_ledger(stack: LocalStack) -> None:
    settings = {"INVENTORY_ENGINE": "redis", "INVENTORY_REDIS_NODES": "127.0.0.1:1"}
    with pytest.raises(StackError, match="INVENTORY_ENGINE=mysql"):
        await stack.start_server(2, environment=settings)
