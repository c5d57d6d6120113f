"""Processes that are stopped or killed while buyers buy: nobody sees it, and nothing is lost."""

import signal
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from deploy.local.process import Process
from deploy.local.waiting import until
from inventory.client import AsyncInventoryClient, OrderLine, Outcome
from ledger.failpoints import VARIABLE as FAILPOINTS
from server.__main__ import STOP_SLACK_S
from server.settings import ServerSettings
from tests.acceptance.load import load
from tests.acceptance.orders import assert_settled, new_order_ids, until_nothing_is_held
from tests.acceptance.shop import SERVERS, Shop, ended

PLENTY = 1_000_000
ENDS_WITHIN_S = 10.0
DRAINED_WITHIN_S = ServerSettings().drain_notice_s + ServerSettings().drain_s_max + STOP_SLACK_S


async def test_servers_that_are_stopped_in_turn_fail_no_call(shop: Shop) -> None:
    product = await shop.on_sale(PLENTY)
    async with load(shop.caller, product) as buyers:
        for number in SERVERS:
            server = shop.stack.servers[number]
            server.terminate()
            assert await ended(server, within_s=DRAINED_WITHIN_S) == 0
            await buyers.flows()
            await server.start()
    assert buyers.outcomes.keys() == {Outcome.DEDUCTED}
    await shop.assert_balanced(product, accepted=buyers.accepted)


async def test_a_killed_server_loses_nothing_and_fails_no_call(shop: Shop) -> None:
    product = await shop.on_sale(PLENTY)
    server = shop.stack.servers[0]
    async with load(shop.caller, product) as buyers:
        server.kill()
        await buyers.flows()
        await server.start()
    assert buyers.outcomes.keys() == {Outcome.DEDUCTED}
    await shop.assert_balanced(product, accepted=buyers.accepted)


@pytest.fixture
async def start_mortal(shop: Shop) -> AsyncIterator[Callable[[str], Awaitable[Process]]]:
    """`await start_mortal(place)`: the first server again, each process of which dies at a place."""

    async def start(place: str) -> Process:
        await shop.stack.servers[0].stop(grace_s=DRAINED_WITHIN_S)
        return await shop.stack.start_server(0, environment={FAILPOINTS: f"{place}=kill"})

    yield start
    await shop.stack.servers[0].stop(grace_s=DRAINED_WITHIN_S)
    await shop.start_server(0)


async def has_died(server: Process) -> bool:
    return "child_died" in server.log.read_text()


async def the_other_way(shop: Shop) -> AsyncInventoryClient:
    """A caller that finds the first server first."""
    addresses = ",".join(shop.stack.grpc_address(each) for each in SERVERS)
    return await shop.client(f"ipv4:{addresses}")


@pytest.mark.parametrize("place", ["redis.after_take", "redis.after_put"])
async def test_a_server_that_dies_while_units_are_under_way_leaves_them_to_the_next(
    shop: Shop, start_mortal: Callable[[str], Awaitable[Process]], place: str
) -> None:
    product = await shop.on_sale(12, shards=6)
    server = await start_mortal(place)
    caller = await the_other_way(shop)
    first = await caller.deduct(product, 5, request_id="gathers")
    await until(lambda: has_died(server), what="a process died", within_s=ENDS_WITHIN_S)
    rest = await caller.deduct(product, 7, request_id="the-rest")
    assert first.accepted
    assert rest.accepted
    await shop.assert_balanced(product, accepted={"gathers": 5, "the-rest": 7})


@pytest.mark.parametrize("place", ["redis.after_decide", "redis.before_settle"])
async def test_a_server_that_dies_with_an_order_decided_has_its_lines_told_by_others(
    shop: Shop, start_mortal: Callable[[str], Awaitable[Process]], place: str
) -> None:
    products = [await shop.on_sale(10, shards=6) for _ in range(2)]
    (order_id,) = new_order_ids(1)
    server = await start_mortal(place)
    caller = await the_other_way(shop)
    lines = [OrderLine(each, 2) for each in products]
    sold = await caller.deduct_order(order_id, lines, attempt=1)
    await until(lambda: has_died(server), what="a process died", within_s=ENDS_WITHIN_S)
    assert sold.outcome is Outcome.CONFIRMED
    await until_nothing_is_held(shop, products, within_s=20)
    for product in products:
        stock = await assert_settled(shop, product, sold={order_id: 2})
        assert (stock.sold, stock.available) == (2, 8)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_a_worker_that_ends_leaves_no_event_behind(
    shop: Shop, number: signal.Signals
) -> None:
    product = await shop.on_sale(PLENTY)
    worker = shop.stack.workers[0]
    async with load(shop.caller, product) as buyers:
        worker.signal(number)
        await ended(worker, within_s=ENDS_WITHIN_S)
    await shop.assert_balanced(product, accepted=buyers.accepted)
    await worker.start()
