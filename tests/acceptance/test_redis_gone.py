"""All of Redis is lost and comes back: the buffer is sold meanwhile, and no unit or request over both
has two effects."""

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from deploy.local.redis_cluster import start_cluster
from deploy.local.stack import LocalStack
from deploy.local.waiting import until
from inventory.client import (
    AsyncInventoryClient,
    OrderLine,
    Outcome,
    RetryPolicy,
    Unavailable,
)
from ledger.database import Database, Transaction
from ledger.failpoints import VARIABLE as FAILPOINTS
from ledger.metrics import LedgerMetrics
from ledger.settings import parse_url
from tests.acceptance.load import load
from tests.acceptance.shop import SERVERS, WORKERS, Shop, ended, ids, strike
from tests.ledger.conftest import fetch
from tests.waiting import eventually

UNITS = 20
HALF = 50
SHARDS = 6
PLENTY = 1_000_000
PAIRS = 12
HASTY = RetryPolicy(deadline_s=20.0, try_timeout_s=10.0, tries_max=1)
"""A caller that wants to hear the service's own word."""
WITHIN_S = 30.0
STOP_GRACE_S = 12.0
QUICK_TO_REPLACE = {"INVENTORY_LEASE_TTL_S": "1"}


@pytest.fixture(scope="module")
async def shop() -> AsyncIterator[Shop]:
    """A shop of its own, whose Redis ends with data that nobody can use."""
    async with LocalStack() as stack:
        await stack.start_services()
        await stack.migrate()
        async with Shop(stack) as shop:
            await shop.start()
            yield shop


@pytest.fixture
async def hasty(shop: Shop) -> Sequence[AsyncInventoryClient]:
    return [await shop.client(shop.stack.grpc_address(each), HASTY) for each in SERVERS]


def kill_redis(shop: Shop) -> None:
    for node in shop.stack.redis:
        node.process.kill()


async def start_redis(shop: Shop) -> None:
    await start_cluster(shop.stack.redis)


async def stop_workers(shop: Shop) -> None:
    for number in WORKERS:
        await shop.stack.workers[number].stop(grace_s=STOP_GRACE_S)


async def is_in(shop: Shop, mode: str) -> bool:
    return (await shop.clients[0].get_cluster()).mode == mode


async def buy(client: AsyncInventoryClient, product_id: int, names: Sequence[str]) -> list[bool]:
    """Each of these requests of one unit is accepted; returns which were replayed."""
    answers = [await client.deduct(product_id, 1, request_id=name) for name in names]
    assert all(answer.accepted for answer in answers)
    return [answer.replayed for answer in answers]


async def refusal_of(client: AsyncInventoryClient, product_id: int, name: str) -> str:
    """Why the service cannot serve a request."""
    with pytest.raises(Unavailable) as caught:
        await client.deduct(product_id, 1, request_id=name)
    return caught.value.reason


async def test_dropped_connections_and_failovers_are_no_loss_of_redis(shop: Shop) -> None:
    product = await shop.on_sale(PLENTY)
    before = await shop.caller.get_cluster()
    async with load(shop.caller, product) as buyers:
        for _ in range(20):
            for node in shop.stack.redis:
                await node.call("CLIENT", "KILL", "TYPE", "normal")
            await asyncio.sleep(0.05)
        replica = shop.stack.redis[3]
        await replica.call("CLUSTER", "FAILOVER")
        await until(replica.is_master, what="the replica took over", within_s=WITHIN_S)
        await buyers.flows()
    after = await shop.caller.get_cluster()
    assert (after.mode, after.mode_epoch) == (before.mode, before.mode_epoch) == ("redis", 0)
    await shop.assert_balanced(product, accepted=buyers.accepted)


async def test_a_master_that_stays_dead_stops_no_sale_and_loses_none(shop: Shop) -> None:
    product, ordered = await shop.on_sale(PLENTY), [await shop.on_sale(100) for _ in range(2)]
    master, *_ = [node for node in shop.stack.redis if await node.is_master()]
    async with load(shop.caller, product) as buyers:
        master.process.kill()
        await until(lambda: some_are(shop, degraded=True), what="degraded", within_s=WITHIN_S)
        await buyers.flows()
        await order_in_pairs(shop, ordered)
        await master.process.start()
        await until(lambda: some_are(shop, degraded=False), what="replicated", within_s=WITHIN_S)
    await shop.assert_balanced(product, accepted=buyers.accepted)
    for each in ordered:
        stock, ledger = await shop.drained(each)
        assert (stock.sold, stock.held, stock.available) == (PAIRS, 0, 100 - PAIRS)
        assert (ledger.product.sold, ledger.product.held) == (PAIRS, 0)


async def some_are(shop: Shop, *, degraded: bool) -> bool:
    """All partitions are open, and some, or none, are degraded."""
    partitions = (await shop.caller.get_cluster()).partitions
    is_open = all(each.open for each in partitions)
    return is_open and any(each.degraded for each in partitions) is degraded


async def order_in_pairs(shop: Shop, product_ids: Sequence[int]) -> None:
    """Orders over several products, of which every second one is given back."""
    lines = [OrderLine(each, 1) for each in product_ids]
    for number in range(2 * PAIRS):
        order_id = 1_000 + number
        held = await shop.caller.reserve(order_id, lines, attempt=1)
        assert held.outcome is Outcome.HELD
        if number % 2:
            assert (await shop.caller.release(order_id)).outcome is Outcome.RELEASED
        else:
            assert (await shop.caller.confirm(order_id)).outcome is Outcome.CONFIRMED


async def test_the_buffer_is_sold_while_redis_is_gone_and_every_unit_once(
    shop: Shop, hasty: Sequence[AsyncInventoryClient]
) -> None:
    product = await shop.on_sale(UNITS, shards=SHARDS, buffer_percent=HALF)
    delivered, undelivered = ids("delivered", 3), ids("undelivered", 5)
    await buy(shop.clients[0], product, delivered)
    await shop.drained(product)
    await stop_workers(shop)
    await buy(shop.clients[1], product, undelivered)
    await kill_redis_and_a_server_on_the_way_in(shop)
    await shop.stack.servers[1].start()  # without Redis

    of_buffer = ids("buffer", 9)
    assert not any(await buy(shop.clients[0], product, of_buffer[:5]))
    assert not any(await buy(shop.clients[1], product, of_buffer[5:]))
    for client in shop.clients:
        assert all(await buy(client, product, (*delivered, *of_buffer)))
    # What the ledger has not heard of is sold once more.
    assert await buy(shop.clients[1], product, undelivered[:1]) == [False]
    assert await buy(shop.clients[0], product, undelivered[:1]) == [True]
    for client in hasty:
        assert await refusal_of(client, product, "too-late") == "BUFFER_EMPTY"
    await assert_only_deductions_are_served(hasty[0], product)
    assert await is_in(shop, "buffer")

    asleep = shop.stack.servers[1]
    os.killpg(asleep.pid, signal.SIGSTOP)
    await start_redis(shop)
    await lead_back_with_a_worker_that_dies(shop)
    first = await shop.clients[0].deduct(product, 1, request_id="after-0")
    assert first.accepted
    assert await is_in(shop, "redis")
    os.killpg(asleep.pid, signal.SIGCONT)
    accepted = dict.fromkeys((*delivered, *undelivered, *of_buffer, "after-0"), 1)
    for client in (shop.clients[1], shop.clients[0]):
        assert all(await buy(client, product, list(accepted)))
    await sell_the_rest(shop, product, accepted)
    await assert_sold_out_over_both(shop, product, accepted)


async def kill_redis_and_a_server_on_the_way_in(shop: Shop) -> None:
    """No server can enter while the mode's row is held; one of them dies as it waits for it."""
    database = Database(parse_url(shop.stack.mysql_url), LedgerMetrics(CollectorRegistry()))

    async def run(transaction: Transaction) -> None:
        await transaction.row("SELECT 1 FROM service_mode WHERE name = 'sales' FOR UPDATE")
        kill_redis(shop)

        async def wanted() -> bool:
            waiting = "SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE %s"
            row = await transaction.row(waiting, ("SELECT mode, epoch FROM service_mode%",))
            return row is not None and row[0] >= len(SERVERS)

        await until(wanted, what="both servers want the mode", within_s=WITHIN_S)
        shop.stack.servers[1].kill()

    await database.transaction(run)
    await database.close()


async def assert_only_deductions_are_served(client: AsyncInventoryClient, product_id: int) -> None:
    with pytest.raises(Unavailable) as caught:
        await client.reserve(1, [OrderLine(product_id, 1)])
    assert caught.value.reason == "LIVE_STOCK_AWAY"
    stock = await client.get_stock(product_id)
    assert (stock.total, stock.accounted, stock.inexact) == (UNITS, UNITS, True)
    assert stock.buffer == 0


async def lead_back_with_a_worker_that_dies(shop: Shop) -> None:
    victim = await shop.stack.start_worker(
        0, environment={**QUICK_TO_REPLACE, FAILPOINTS: "worker.before_recall=kill"}
    )
    assert await ended(victim, within_s=WITHIN_S) == -signal.SIGKILL
    assert await is_in(shop, "leaving")
    await shop.start_workers()


async def sell_the_rest(shop: Shop, product_id: int, accepted: dict[str, int]) -> None:
    """Down to nothing: a unit that was sold twice comes back before that."""

    async def all_sold() -> bool:
        name = f"rest-{len(accepted)}"
        answer = await shop.clients[len(accepted) % 2].deduct(product_id, 1, request_id=name)
        if answer.accepted:
            accepted[name] = 1
        return sum(accepted.values()) == UNITS

    await until(all_sold, what="all units are sold", within_s=WITHIN_S)
    for client in shop.clients:
        assert not (await client.deduct(product_id, 1, request_id="one-too-many")).accepted


async def assert_sold_out_over_both(shop: Shop, product_id: int, accepted: dict[str, int]) -> None:
    stock, ledger = await shop.drained(product_id)
    assert (stock.total, stock.accounted, stock.inexact) == (UNITS, UNITS, False)
    assert (stock.sold, stock.available, stock.buffer) == (UNITS, 0, 0)
    assert ledger.deductions == accepted
    assert ledger.deduction_rows == len(accepted)
    product, shards = ledger.product, ledger.shards
    assert (product.sold, product.available, product.buffer) == (UNITS, 0, 0)
    assert (shards.sold, shards.available) == (UNITS // 2, 0)
    for client in shop.clients:
        assert all(await buy(client, product_id, list(accepted)))


async def test_old_data_of_redis_hears_of_what_was_sold_before_it_sells(
    shop: Shop,
) -> None:
    product = await shop.on_sale(3 * UNITS, shards=SHARDS, buffer_percent=HALF)
    early, late = ids("early", 6), ids("late", 18)
    await buy(shop.clients[0], product, early)
    await shop.drained(product)
    older = [copied(node.directory) for node in shop.stack.redis]
    await buy(shop.clients[0], product, late)
    await shop.drained(product)
    kill_redis(shop)
    # A process that is new has seen none of the events that are gone.
    await strike(shop.stack.servers[1], after_s=0)
    of_buffer = ids("of-buffer", 10)
    assert not any(await buy(shop.clients[1], product, of_buffer))
    for node, data in zip(shop.stack.redis, older, strict=True):
        shutil.rmtree(node.directory / DATA)
        data.rename(node.directory / DATA)
    await start_redis(shop)
    await until(lambda: is_in(shop, "redis"), what="Redis serves again", within_s=WITHIN_S)
    await eventually(lambda: all_are_told(shop))
    for client in shop.clients:
        for told in (early, late, of_buffer):
            assert all(await buy(client, product, told))
    fresh = await asyncio.gather(
        *(tried(shop.clients[1], product, each) for each in ids("fresh", 40))
    )
    assert sum(fresh) == 3 * UNITS * HALF // 100 - len(early) - len(late)
    assert all(each.open for each in (await shop.caller.get_cluster()).partitions)


DATA = "appendonlydir"


def copied(directory: Path) -> Path:
    """A node's data as it is now, beside them."""
    return Path(shutil.copytree(directory / DATA, directory / "older"))


async def all_are_told(shop: Shop) -> bool:
    """Whether the live stock has heard of every sale from the buffer."""
    database = Database(parse_url(shop.stack.mysql_url), LedgerMetrics(CollectorRegistry()))
    try:
        return await fetch(database, "SELECT COUNT(*) FROM buffer_sale") == [(0,)]
    finally:
        await database.close()


async def tried(client: AsyncInventoryClient, product_id: int, name: str) -> bool:
    """Whether a request was accepted."""
    return (await client.deduct(product_id, 1, request_id=name)).accepted
