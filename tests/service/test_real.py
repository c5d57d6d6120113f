"""The server's processes on a real Redis Cluster, MySQL and worker."""

import asyncio
import signal
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from deploy.local.errors import StackError
from deploy.local.stack import LocalStack
from inventory.v1.admin_pb2 import (
    CloseRequest,
    GetClusterRequest,
    GetProductRequest,
    LoadRequest,
    PutProductRequest,
    RemoveRequest,
    RestockRequest,
)
from inventory.v1.admin_pb2_grpc import AdminServiceStub
from inventory.v1.inventory_pb2 import (
    OUTCOME_DEDUCTED,
    OUTCOME_INSUFFICIENT_STOCK,
    BatchDeductRequest,
    DeductRequest,
    GetStockRequest,
)
from inventory.v1.inventory_pb2_grpc import InventoryServiceStub
from tests.service.conftest import details_of, failure_of
from tests.waiting import eventually

CALL_S = 20


@pytest.fixture(scope="module")
async def running() -> AsyncIterator[LocalStack]:
    """A stack of its own: this module starts and stops servers."""
    async with LocalStack() as stack:
        await stack.start_services()
        await stack.migrate()
        await stack.start_worker()
        await stack.start_server(processes=2)
        yield stack


@pytest.fixture
async def channel(running: LocalStack) -> AsyncIterator[grpc.aio.Channel]:
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(running.grpc_address(), options=options) as channel:
        yield channel


@pytest.fixture
def inventory(channel: grpc.aio.Channel) -> Any:
    return InventoryServiceStub(channel)


@pytest.fixture
def admin(channel: grpc.aio.Channel) -> Any:
    return AdminServiceStub(channel)


async def on_sale(admin: Any, product_id: int, total: int) -> None:
    wanted = PutProductRequest(product_id=product_id, total_stock=total, buffer_percent=0, shards=6)
    await admin.PutProduct(wanted, timeout=CALL_S)
    await admin.Load(LoadRequest(product_ids=[product_id]), timeout=CALL_S)


async def closed(admin: Any, product_id: int) -> Any:
    request = CloseRequest(product_id=product_id)
    answer = await admin.Close(request, timeout=CALL_S, wait_for_ready=True)
    return answer.product


async def test_a_products_life_adds_up(inventory: Any, admin: Any) -> None:
    await on_sale(admin, 1, 100)
    items = [DeductRequest(request_id=f"r{i}", product_id=1, quantity=3) for i in range(40)]
    sold = await inventory.BatchDeduct(BatchDeductRequest(items=items), timeout=CALL_S)
    for _ in range(2):
        await admin.Restock(RestockRequest(request_id="s1", product_id=1, quantity=50))
        await admin.Remove(RemoveRequest(request_id="m1", product_id=1, quantity=20))
    live = (await inventory.GetStock(GetStockRequest(product_id=1), timeout=CALL_S)).stock
    end = await closed(admin, 1)
    late = await failure_of(
        inventory.Deduct(DeductRequest(request_id="late", product_id=1, quantity=1))
    )
    outcomes = [result.outcome for result in sold.results]
    assert outcomes.count(OUTCOME_DEDUCTED) == 33
    assert outcomes.count(OUTCOME_INSUFFICIENT_STOCK) == 7
    assert (live.available, live.sold, live.total) == (31, 99, 130)
    assert (end.available_stock, end.sold_count, end.total_stock) == (31, 99, 130)
    assert details_of(late).info.reason == "PRODUCT_CLOSED"


async def test_a_retry_after_another_load_is_still_a_replay(inventory: Any, admin: Any) -> None:
    await on_sale(admin, 2, 10)
    request = DeductRequest(request_id="r", product_id=2, quantity=4)
    await inventory.Deduct(request, timeout=CALL_S)
    await closed(admin, 2)
    await admin.Load(LoadRequest(product_ids=[2]), timeout=CALL_S)
    again = await inventory.Deduct(request, timeout=CALL_S)
    stock = (await inventory.GetStock(GetStockRequest(product_id=2), timeout=CALL_S)).stock
    assert (again.outcome, again.replayed) == (OUTCOME_DEDUCTED, True)
    assert (stock.available, stock.sold) == (6, 4)


async def test_the_cluster_is_shown(admin: Any) -> None:
    state = await admin.GetCluster(GetClusterRequest(), timeout=CALL_S)
    assert [each.partition for each in state.partitions] == list(range(48))
    assert {(each.open, each.reason) for each in state.partitions} == {(True, "")}
    assert state.schema_version > 0
    assert not any(each.degraded for each in state.partitions)
    assert (state.durability, list(state.node_flaws)) == ("replicated", [])


async def test_a_node_that_is_set_up_badly_later_is_shown_and_stops_nobody(
    running: LocalStack, admin: Any
) -> None:
    node = running.redis[4]
    await node.call("CONFIG", "SET", "appendonly", "no")
    try:

        async def flaws() -> Any:
            return (await admin.GetCluster(GetClusterRequest(), timeout=CALL_S)).node_flaws

        (flaw,) = await eventually(flaws)
    finally:
        await node.call("CONFIG", "SET", "appendonly", "yes")
    assert (flaw.node, flaw.what, flaw.value) == (node.address, "appendonly", "no")
    assert flaw.loses_units
    assert "CONFIG SET appendonly yes" in flaw.remedy
    assert running.servers[0].alive


async def test_a_server_does_not_start_on_nodes_that_break_the_promise_of_its_durability(
    running: LocalStack,
) -> None:
    with pytest.raises(StackError, match="appendfsync is 'everysec'"):
        await running.start_server(1, environment={"INVENTORY_DURABILITY": "synced"})


async def test_a_server_that_stops_leaves_no_sale_behind(
    running: LocalStack, inventory: Any, admin: Any
) -> None:
    await on_sale(admin, 3, 1_000_000)
    server = running.servers[0]
    sold = 0

    async def buy(number: int) -> None:
        nonlocal sold
        request = DeductRequest(request_id=f"r{number}", product_id=3, quantity=1, attempt=1)
        try:
            answer = await inventory.Deduct(request, timeout=CALL_S)
        except grpc.aio.AioRpcError:
            return
        sold += answer.outcome == OUTCOME_DEDUCTED

    async def crowd(numbers: range) -> None:
        async with asyncio.TaskGroup() as buyers:
            for number in numbers:
                buyers.create_task(buy(number))
                await asyncio.sleep(0.002)

    await crowd(range(500))
    server.signal(signal.SIGTERM)
    await crowd(range(500, 1_500))
    assert await server.wait() == 0
    await running.start_server(processes=2)
    end = await closed(admin, 3)
    product = (await admin.GetProduct(GetProductRequest(product_id=3))).product
    assert sold > 500
    assert end.sold_count == product.sold_count == sold
