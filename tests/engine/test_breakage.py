"""Whatever breaks between a server and MySQL: no unit twice, none lost, no transaction left open."""

import asyncio
import dataclasses
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from ledger.database import Transaction
from ledger.engine.stock import Manner
from ledger.settings import MysqlUrl
from sharding.orders import Line
from sharding.outcomes import Answer, Deduction, Outcome, Reason
from tests.chaos.proxy import MysqlProxy
from tests.engine.conftest import (
    NewProduct,
    Process,
    accepted,
    ask,
    assert_balanced,
    assert_free,
    buying,
    order_ids,
    process,
    row_of,
)
from tests.ledger.conftest import fetch, write
from tests.waiting import eventually

MANNERS = pytest.mark.parametrize("manner", list(Manner))
NOT_EXECUTED = Answer(Outcome.UNAVAILABLE, reason=Reason.NOT_EXECUTED)
UNKNOWN = Answer(Outcome.UNAVAILABLE, reason=Reason.OUTCOME_UNKNOWN)
TRIES_MAX = 200
PAUSE_S_MAX = 1.0
LOCK = "SELECT version FROM product_inventory WHERE product_id = %s FOR UPDATE"


@pytest.fixture
async def proxy(engine_url: MysqlUrl) -> AsyncIterator[MysqlProxy]:
    async with MysqlProxy(engine_url.host, engine_url.port) as running:
        yield running


def through(proxy: MysqlProxy, url: MysqlUrl) -> MysqlUrl:
    return dataclasses.replace(url, port=proxy.port)


async def decided(sender: Process, request: Deduction) -> Answer:
    """The answer of somebody who asks again until there is a fact."""
    for _ in range(TRIES_MAX):
        (answer,) = await ask(sender, request)
        if answer.outcome is not Outcome.UNAVAILABLE:
            return answer
        request = request._replace(attempt=2)
    raise AssertionError(f"{request} is never decided")


@MANNERS
async def test_a_lost_reply_to_a_commit_costs_no_unit_and_no_answer(
    proxy: MysqlProxy, engine_url: MysqlUrl, one: Process, on_sale: NewProduct, manner: Manner
) -> None:
    product_id = await on_sale(10)
    async with process(through(proxy, engine_url), manner=manner) as lossy:
        proxy.cut_after_commit = 1
        (answer,) = await ask(lossy, Deduction("r", product_id, 4))
    assert answer == Answer(Outcome.DEDUCTED, replayed=True, available=6)
    assert (await assert_balanced(one, product_id)).sold_count == 4


@MANNERS
async def test_replies_that_stay_lost_are_unknown_and_the_same_id_decides(
    proxy: MysqlProxy, engine_url: MysqlUrl, one: Process, on_sale: NewProduct, manner: Manner
) -> None:
    product_id = await on_sale(10)
    async with process(through(proxy, engine_url), manner=manner) as lossy:
        proxy.cut_after_commit = 99
        assert await ask(lossy, Deduction("r", product_id, 4)) == [UNKNOWN]
        proxy.cut_after_commit = 0
        (answer,) = await ask(lossy, Deduction("r", product_id, 4, attempt=2))
    assert (answer.outcome, answer.replayed) == (Outcome.DEDUCTED, True)
    assert (await assert_balanced(one, product_id)).sold_count == 4


async def test_what_cannot_reach_mysql_has_certainly_done_nothing(
    proxy: MysqlProxy, engine_url: MysqlUrl, one: Process, on_sale: NewProduct
) -> None:
    product_id = await on_sale(10)
    async with process(through(proxy, engine_url)) as away:
        await proxy.shut()
        assert await ask(away, Deduction("r", product_id, 4)) == [NOT_EXECUTED]
        reserved = await away.orders.reserve(
            next(order_ids), user_id=0, lines=[Line(product_id, 1)], ttl_s=60
        )
        assert (reserved.outcome, reserved.reason) == (Outcome.UNAVAILABLE, Reason.NOT_EXECUTED)
        await proxy.open()
        assert accepted(await ask(away, Deduction("r", product_id, 4))) == 1
    assert (await assert_balanced(one, product_id)).sold_count == 4


@MANNERS
async def test_a_row_that_another_session_holds_too_long_is_waited_for_again(
    engine_url: MysqlUrl, one: Process, on_sale: NewProduct, manner: Manner
) -> None:
    product_id = await on_sale(10)
    has_lock, may_go = asyncio.Event(), asyncio.Event()

    async def hold(transaction: Transaction) -> None:
        await transaction.rows(LOCK, (product_id,))
        has_lock.set()
        await may_go.wait()

    async with (
        process(engine_url, manner=manner, lock_wait_s=1) as waiting,
        asyncio.TaskGroup() as tasks,
    ):
        tasks.create_task(one.database.transaction(hold))
        await has_lock.wait()
        selling = tasks.create_task(decided(waiting, Deduction("r", product_id, 4)))
        await eventually(lambda: waiting.metric("inventory_ledger_errors_total", kind="lock_wait"))
        may_go.set()
        assert (await selling) == Answer(Outcome.DEDUCTED, available=6)
    assert (await assert_balanced(one, product_id)).sold_count == 4


async def test_a_row_that_stays_locked_ends_as_not_executed_and_leaves_nothing_open(
    engine_url: MysqlUrl, one: Process, on_sale: NewProduct
) -> None:
    locked, free = await on_sale(10), await on_sale(10)
    answered = asyncio.Event()
    has_lock = asyncio.Event()

    async def hold(transaction: Transaction) -> None:
        await transaction.rows(LOCK, (locked,))
        has_lock.set()
        await answered.wait()

    async with (
        process(engine_url, lock_wait_s=1) as waiting,
        asyncio.TaskGroup() as tasks,
    ):
        tasks.create_task(one.database.transaction(hold))
        await has_lock.wait()
        blocked = tasks.create_task(ask(waiting, *buying(locked, 3)))
        assert accepted(await ask(waiting, *buying(free, 3))) == 3
        assert await blocked == [NOT_EXECUTED] * 3
        answered.set()
    await assert_free(one, locked)
    assert (await assert_balanced(one, locked)).sold_count == 0


async def kill_all_but_mine(killer: Process) -> None:
    """KILL every session of the engine's database but the one that does it."""
    sessions = await fetch(
        killer.database,
        "SELECT id FROM information_schema.processlist"
        " WHERE db = DATABASE() AND id <> CONNECTION_ID()",
    )
    for (session,) in sessions:
        with suppress(Exception):  # it may have ended meanwhile
            await write(killer.database, f"KILL {session}")


@MANNERS
async def test_killed_connections_under_load_cost_no_unit(
    engine_url: MysqlUrl, one: Process, on_sale: NewProduct, manner: Manner
) -> None:
    units = 120 if manner is Manner.MERGED else 60
    product_id = await on_sale(units)
    async with (
        process(engine_url, manner=manner) as here,
        process(engine_url, manner=manner) as there,
        process(engine_url, connections=1) as killer,
    ):
        selling = [
            asyncio.create_task(decided((here, there)[i % 2], request))
            for i, request in enumerate(buying(product_id, units + 40))
        ]
        done, pause_s = -1, 0.0
        while not all(task.done() for task in selling):
            now = sum(task.done() for task in selling)
            # On a slow machine nothing would ever come between two strikes.
            pause_s = 0.0 if now > done else min(max(2 * pause_s, 0.01), PAUSE_S_MAX)
            done = now
            await asyncio.sleep(pause_s)
            await kill_all_but_mine(killer)
        sold = (await row_of(killer, product_id)).sold_count
        answers = [task.result() for task in selling]
    assert sold == units
    assert Counter(answer.outcome for answer in answers) == {
        Outcome.DEDUCTED: units,
        Outcome.INSUFFICIENT_STOCK: 40,
    }
    await assert_free(one, product_id)
    await assert_balanced(one, product_id)


async def test_a_connection_that_is_lost_in_the_middle_of_any_commit_costs_no_unit(
    proxy: MysqlProxy, engine_url: MysqlUrl, one: Process, on_sale: NewProduct
) -> None:
    product_id = await on_sale(100)
    async with process(through(proxy, engine_url)) as lossy:
        for round_ in range(10):
            if round_ % 2:
                proxy.cut_before_commit = 1
            else:
                proxy.cut_after_commit = 1
            requests = buying(product_id, 5)
            answers = await asyncio.gather(*(decided(lossy, each) for each in requests))
            assert accepted(list(answers)) == 5
    await assert_free(one, product_id)
    assert (await assert_balanced(one, product_id)).sold_count == 50


async def test_sessions_that_mysql_has_closed_for_idleness_cost_one_retry(
    engine_url: MysqlUrl, one: Process, on_sale: NewProduct
) -> None:
    product_id = await on_sale(10)
    async with process(engine_url, connections=1) as idle:
        ((session,),) = await fetch(idle.database, "SELECT CONNECTION_ID()")
        await write(idle.database, "SET SESSION wait_timeout = 1")

        async def is_gone() -> bool:
            sessions = await fetch(one.database, "SELECT id FROM information_schema.processlist")
            return (session,) not in sessions

        await eventually(is_gone)
        assert accepted(await ask(idle, *buying(product_id, 1))) == 1
        assert idle.metric("inventory_ledger_errors_total", kind="lost_connection") <= 1


@MANNERS
async def test_calls_that_are_cancelled_at_any_moment_leave_each_id_decided_and_no_lock(
    engine_url: MysqlUrl, one: Process, on_sale: NewProduct, manner: Manner
) -> None:
    product_id = await on_sale(50)
    requests = buying(product_id, 50, attempt=0)
    async with process(engine_url, manner=manner) as sender:
        for delay_ms, request in enumerate(requests, start=1):
            with suppress(TimeoutError):
                async with asyncio.timeout(delay_ms / 1_000):
                    await ask(sender, request)
        await sender.stock.drain()
        assert await fetch(sender.database, "SELECT 'mine'") == [("mine",)]
        answers = await asyncio.gather(*(decided(sender, request) for request in requests))
    assert accepted(list(answers)) == 50
    await assert_free(one, product_id)
    assert (await assert_balanced(one, product_id)).sold_count == 50


async def test_orders_and_sales_over_the_same_products_in_any_order_never_lose_each_other(
    one: Process, other: Process, on_sale: NewProduct
) -> None:
    """Orders name {1, 2} and {2, 1}; restocks and deductions go on meanwhile."""
    first, second = await on_sale(100), await on_sale(100)
    both = [Line(first, 1), Line(second, 1)]

    async def order(process: Process, lines: list[Line]) -> Outcome:
        answer = await process.orders.sell(next(order_ids), user_id=0, lines=lines, attempt=1)
        return answer.outcome

    results = await asyncio.gather(
        *(order((one, other)[i % 2], both if i % 3 else both[::-1]) for i in range(60)),
        *(ask((one, other)[i % 2], *buying((first, second)[i % 2], 1)) for i in range(40)),
        *(
            other.stock.restock(first, request_id=f"more-{i}", quantity=1, reason="")
            for i in range(10)
        ),
    )
    assert results[:60] == [Outcome.CONFIRMED] * 60
    rows = [await assert_balanced(one, product_id) for product_id in (first, second)]
    assert [(row.available_stock, row.sold_count) for row in rows] == [(30, 80), (20, 80)]


async def test_a_lost_reply_to_an_orders_commit_holds_once(
    proxy: MysqlProxy, engine_url: MysqlUrl, one: Process, on_sale: NewProduct
) -> None:
    product_id, order_id = await on_sale(10), next(order_ids)
    async with process(through(proxy, engine_url)) as lossy:
        for call, outcome in (("reserve", Outcome.HELD), ("confirm", Outcome.CONFIRMED)):
            proxy.cut_after_commit = 1
            if call == "reserve":
                lines = [Line(product_id, 3)]
                answer = await lossy.orders.reserve(order_id, user_id=0, lines=lines, ttl_s=60)
            else:
                answer = await lossy.orders.confirm(order_id)
            assert (answer.outcome, answer.replayed) == (outcome, True)
    row = await assert_balanced(one, product_id)
    assert (row.sold_count, row.held_stock, row.available_stock) == (3, 0, 7)
