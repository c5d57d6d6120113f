"""Transactions under everything that a server, a rival or a caller can do to them."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import aiomysql
import pytest
import uvloop
from prometheus_client import CollectorRegistry

from ledger.database import Database, Transaction
from ledger.errors import LedgerError, LedgerUnavailableError, SchemaError
from ledger.metrics import LedgerMetrics
from ledger.settings import MysqlUrl
from tests.chaos.proxy import MysqlProxy
from tests.ledger.conftest import NewProduct, fetch, new_metrics, write
from tests.waiting import eventually

ADD_ONE = "UPDATE product_inventory SET low_stock = low_stock + 1 WHERE product_id = %s"
LOW_STOCK = "SELECT low_stock FROM product_inventory WHERE product_id = %s"


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
async def narrow(ledger_url: MysqlUrl, registry: CollectorRegistry) -> AsyncIterator[Database]:
    """One connection, a second of patience with locks, its own figures."""
    opened = Database(ledger_url, LedgerMetrics(registry), connections=1, lock_wait_s=1)
    yield opened
    await opened.close()


@pytest.fixture
async def proxy(ledger_url: MysqlUrl) -> AsyncIterator[MysqlProxy]:
    async with MysqlProxy(ledger_url.host, ledger_url.port) as running:
        yield running


@asynccontextmanager
async def through(proxy: MysqlProxy, url: MysqlUrl, **options: int) -> AsyncIterator[Database]:
    opened = Database(dataclasses.replace(url, port=proxy.port), new_metrics(), **options)
    yield opened
    await opened.close()


async def low_stock(database: Database, product_id: int) -> object:
    return (await fetch(database, LOW_STOCK, product_id))[0][0]


def failed(registry: CollectorRegistry, kind: str) -> float:
    return registry.get_sample_value("inventory_ledger_errors_total", {"kind": kind}) or 0


async def test_a_lock_wait_is_rolled_back_and_tried_again(
    narrow: Database, database: Database, new_product: NewProduct, registry: CollectorRegistry
) -> None:
    held, rival = await new_product(1), await new_product(1)
    has_lock, may_go = asyncio.Event(), asyncio.Event()

    async def hold(transaction: Transaction) -> None:
        await transaction.rows(f"{LOW_STOCK} FOR UPDATE", (held,))
        has_lock.set()
        await may_go.wait()

    async def both(transaction: Transaction) -> None:
        await transaction.execute(ADD_ONE, (rival,))
        if failed(registry, "lock_wait"):
            may_go.set()
        await transaction.execute(ADD_ONE, (held,))

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(database.transaction(hold))
        await has_lock.wait()
        tasks.create_task(narrow.transaction(both))
    assert [await low_stock(database, each) for each in (held, rival)] == [1, 1]
    assert failed(registry, "lock_wait") == 1


@pytest.mark.parametrize("code", [1047, 1180, 3101])
async def test_what_a_member_of_a_cluster_says_in_passing_is_tried_again(
    narrow: Database, new_product: NewProduct, code: int
) -> None:
    product_id, tries = await new_product(1), 0

    async def run(transaction: Transaction) -> None:
        nonlocal tries
        tries += 1
        await transaction.execute(ADD_ONE, (product_id,))
        if tries == 1:
            said = f"SET MYSQL_ERRNO = {code}, MESSAGE_TEXT = 'not now'"
            await transaction.execute(f"SIGNAL SQLSTATE 'HY000' {said}")

    await narrow.transaction(run)
    assert (tries, await low_stock(narrow, product_id)) == (2, 1)


async def test_a_deadlock_ends_with_both_effects(
    database: Database, new_product: NewProduct
) -> None:
    first, second = await new_product(1), await new_product(1)
    barrier = asyncio.Barrier(2)

    async def cross(here: int, there: int) -> int:
        tries = 0

        async def run(transaction: Transaction) -> None:
            nonlocal tries
            tries += 1
            await transaction.execute(ADD_ONE, (here,))
            if tries == 1:
                await barrier.wait()
            await transaction.execute(ADD_ONE, (there,))

        await database.transaction(run)
        return tries

    tries = await asyncio.gather(cross(first, second), cross(second, first))
    assert sorted(tries) == [1, 2]
    assert [await low_stock(database, each) for each in (first, second)] == [2, 2]


async def test_after_a_killed_connection_the_whole_transaction_is_done_again(
    narrow: Database, database: Database, new_product: NewProduct
) -> None:
    product_id = await new_product(1)
    tries = 0

    async def run(transaction: Transaction) -> None:
        nonlocal tries
        tries += 1
        await transaction.execute(ADD_ONE, (product_id,))
        if tries == 1:
            (connection_id,) = await transaction.row("SELECT CONNECTION_ID()") or (0,)
            await write(database, f"KILL {connection_id}")
        await transaction.execute(ADD_ONE, (product_id,))

    await narrow.transaction(run)
    assert (tries, await low_stock(database, product_id)) == (2, 2)


async def test_connections_that_died_idle_cost_one_retry(
    database: Database, registry: CollectorRegistry, ledger_url: MysqlUrl
) -> None:
    pool = Database(ledger_url, LedgerMetrics(registry), connections=4)
    ids = await asyncio.gather(
        *(fetch(pool, "SELECT CONNECTION_ID(), SLEEP(0.05)") for _ in range(4))
    )
    assert len({each[0][0] for each in ids}) == 4
    for ((connection_id, _),) in ids:
        await write(database, f"KILL {connection_id}")
    assert await fetch(pool, "SELECT 1") == [(1,)]
    assert failed(registry, "lost_connection") <= 1
    await pool.close()


async def test_a_callers_error_rolls_back_and_leaves_the_connection_clean(
    narrow: Database, database: Database, new_product: NewProduct
) -> None:
    product_id = await new_product(1)

    async def run(transaction: Transaction) -> None:
        await transaction.execute(ADD_ONE, (product_id,))
        raise LedgerError("no")

    before = await fetch(narrow, "SELECT CONNECTION_ID()")
    with pytest.raises(LedgerError, match="no"):
        await narrow.transaction(run)
    assert await low_stock(narrow, product_id) == 0
    assert await fetch(narrow, "SELECT CONNECTION_ID()") == before


async def test_after_an_error_of_any_kind_the_next_transaction_commits_nothing_of_it(
    narrow: Database, database: Database, new_product: NewProduct
) -> None:
    product_id = await new_product(1)

    async def run(transaction: Transaction) -> None:
        await transaction.execute(ADD_ONE, (product_id,))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await narrow.transaction(run)
    assert await fetch(narrow, "SELECT 1") == [(1,)]
    assert await low_stock(database, product_id) == 0


async def test_cancelled_calls_leave_nothing_behind(
    database: Database, new_product: NewProduct, ledger_url: MysqlUrl
) -> None:
    product_id = await new_product(1)
    pool = Database(ledger_url, new_metrics(), connections=3)
    finished = 0

    async def run(transaction: Transaction) -> None:
        await transaction.execute(ADD_ONE, (product_id,))
        await transaction.rows("SELECT SLEEP(0.002)")
        await transaction.execute(ADD_ONE, (product_id,))

    for delay_ms in range(1, 31):
        try:
            async with asyncio.timeout(delay_ms / 1_000):
                await pool.transaction(run)
        except TimeoutError:
            continue
        finished += 1
    value = await low_stock(pool, product_id)
    assert isinstance(value, int)
    # A call that was cancelled while it waited for COMMIT's reply may have been committed.
    assert value % 2 == 0
    assert value >= 2 * finished
    assert await fetch(pool, "SELECT 'mine'") == [("mine",)]
    await pool.close()


async def test_a_commit_that_never_arrived_is_done_again(
    proxy: MysqlProxy, ledger_url: MysqlUrl, database: Database, new_product: NewProduct
) -> None:
    product_id = await new_product(1)
    async with through(proxy, ledger_url) as lossy:
        proxy.cut_before_commit = 1
        await write(lossy, ADD_ONE, product_id)
    assert await low_stock(database, product_id) == 1
    assert proxy.connections == 2


@pytest.mark.parametrize("may_have_run", [True, False])
async def test_a_failure_says_whether_the_work_may_have_been_committed(
    proxy: MysqlProxy,
    ledger_url: MysqlUrl,
    database: Database,
    new_product: NewProduct,
    may_have_run: bool,
) -> None:
    product_id = await new_product(1)
    told: list[bool] = []

    async def run(transaction: Transaction) -> None:
        told.append(transaction.may_have_run)
        await transaction.execute(ADD_ONE, (product_id,))
        if not may_have_run:
            (connection_id,) = await transaction.row("SELECT CONNECTION_ID()") or (0,)
            await write(database, f"KILL {connection_id}")
            await transaction.execute(ADD_ONE, (product_id,))

    async with through(proxy, ledger_url) as lossy:
        proxy.cut_after_commit = 2
        with pytest.raises(LedgerUnavailableError) as lost:
            await lossy.transaction(run, attempts=2)
    assert lost.value.may_have_run == may_have_run
    assert told == [False, may_have_run]
    assert await low_stock(database, product_id) == (2 if may_have_run else 0)


async def test_a_server_that_does_not_answer_is_given_up_in_time(
    proxy: MysqlProxy, ledger_url: MysqlUrl
) -> None:
    async with through(proxy, ledger_url, timeout_ms=300) as stalled:
        assert await fetch(stalled, "SELECT 1") == [(1,)]
        proxy.flowing.clear()
        with pytest.raises(LedgerUnavailableError, match="timed out"):
            await fetch(stalled, "SELECT 1")
        proxy.flowing.set()
        assert await fetch(stalled, "SELECT 1") == [(1,)]


async def test_there_are_never_more_connections_than_allowed(
    proxy: MysqlProxy, ledger_url: MysqlUrl
) -> None:
    async with through(proxy, ledger_url, connections=3) as pool:
        await asyncio.gather(*(fetch(pool, "SELECT SLEEP(0.005)") for _ in range(30)))
        assert proxy.connections == 3


async def test_transactions_read_what_is_committed_and_only_that(database: Database) -> None:
    rows = await fetch(database, "SELECT @@autocommit, @@time_zone, @@sql_mode")
    assert rows[0][:2] == (0, "+00:00")
    assert "STRICT_ALL_TABLES" in str(rows[0][2])


async def test_the_password_is_in_no_message(ledger_url: MysqlUrl) -> None:
    wrong = dataclasses.replace(ledger_url, password="h0rse-battery")
    for text in (str(wrong), repr(wrong)):
        assert "h0rse" not in text
    with pytest.raises(LedgerUnavailableError) as refused:
        await fetch(Database(wrong, new_metrics()), "SELECT 1")
    assert "h0rse" not in str(refused.value)


async def test_tls_is_never_left_out_where_it_was_asked_for(
    proxy: MysqlProxy, ledger_url: MysqlUrl
) -> None:
    strict = Database(dataclasses.replace(ledger_url, tls="on"), new_metrics())
    (offers_tls,) = (await fetch(Database(ledger_url, new_metrics()), "SELECT @@have_ssl"))[0]
    if offers_tls == "YES":
        assert (await fetch(strict, "SHOW STATUS LIKE 'Ssl_cipher'"))[0][1]
    else:
        with pytest.raises(LedgerUnavailableError, match="TLS"):
            await fetch(strict, "SELECT 1")


async def test_missing_tables_are_a_matter_of_the_schema(empty: Database) -> None:
    with pytest.raises(SchemaError, match="inventoryctl migrate"):
        await low_stock(empty, 1)


async def test_a_peer_that_hangs_up_at_once_is_a_server_that_is_away(
    ledger_url: MysqlUrl, monkeypatch: pytest.MonkeyPatch
) -> None:
    """uvloop has no socket any more by the time that aiomysql wants to set it up."""

    def hung_up(_: object) -> None:
        raise RuntimeError("Transport does not expose socket instance")

    monkeypatch.setattr(aiomysql.Connection, "_set_keep_alive", hung_up)
    with pytest.raises(LedgerUnavailableError, match="cannot connect"):
        await low_stock(Database(ledger_url, new_metrics()), 1)


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_connections_that_the_network_reset_while_they_were_idle_are_noticed_by_nobody(
    ledger_url: MysqlUrl, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """The servers' own event loop has other errors than the standard one."""

    async def ask(database: Database) -> int:
        async def run(transaction: Transaction) -> int:
            row = await transaction.row("SELECT SLEEP(0.05) + 7")
            assert row is not None
            return int(row[0])

        return await database.transaction(run)

    async def reset(proxy: MysqlProxy, database: Database) -> None:
        proxy.reset()
        idle = [connection._writer.transport for connection, _ in database._idle]
        assert idle
        await eventually(lambda: all(transport.is_closing() for transport in idle))

    async def run() -> None:
        async with (
            MysqlProxy(ledger_url.host, ledger_url.port) as proxy,
            through(proxy, ledger_url) as database,
        ):
            for _ in range(3):
                answers = await asyncio.gather(*(ask(database) for _ in range(4)))
                assert answers == [7] * 4
                await reset(proxy, database)
            assert await ask(database) == 7
            await reset(proxy, database)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(run())
