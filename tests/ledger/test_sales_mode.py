"""The mode that all processes agree on: entered only where nobody reaches the live stock."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from ledger.database import Database, Transaction
from ledger.sales_mode import BEAT_TTL, Mode, ModeRow, Modes, shared
from tests.ledger.conftest import fetch, write
from tests.waiting import eventually

HERE, THERE = "one", "two"


@pytest.fixture
async def modes(database: Database) -> AsyncIterator[Modes]:
    """As a ledger has them that nobody has looked at."""
    await forget(database)
    yield Modes(database)
    await forget(database)


async def forget(database: Database) -> None:
    await write(database, "DELETE FROM service_mode")


async def expire(database: Database, name: str) -> None:
    sql = "UPDATE service_mode SET update_time = update_time - INTERVAL %s SECOND WHERE remark = %s"
    assert await write(database, sql, BEAT_TTL.total_seconds(), name) == 1


async def has_asked(database: Database) -> bool:
    """Whether somebody wants the mode's row for itself just now."""
    sql = "SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE %s"
    return (await fetch(database, sql, "SELECT mode%FOR UPDATE%"))[0][0] == 1


async def test_a_way_there_and_back_raises_the_epoch_at_each_step(modes: Modes) -> None:
    assert await modes.get() == ModeRow(Mode.REDIS, 0)
    assert await modes.beat(HERE, reaches_redis=False) == ModeRow(Mode.REDIS, 0)
    assert await modes.enter() == ModeRow(Mode.BUFFER, 1)
    assert await modes.enter() == ModeRow(Mode.BUFFER, 1)
    assert await modes.beat(HERE, reaches_redis=True) == ModeRow(Mode.BUFFER, 1)
    assert await modes.leave(1) == ModeRow(Mode.LEAVING, 2)
    assert await modes.finish(2) == ModeRow(Mode.REDIS, 3)
    assert await modes.get() == ModeRow(Mode.REDIS, 3)


async def test_a_step_that_somebody_else_has_done_is_not_done_again(modes: Modes) -> None:
    await modes.enter()
    await modes.leave(1)
    assert await modes.leave(1) == ModeRow(Mode.LEAVING, 2)
    assert await modes.finish(1) == ModeRow(Mode.LEAVING, 2)
    await modes.finish(2)
    assert await modes.finish(2) == ModeRow(Mode.REDIS, 3)
    assert await modes.leave(3) == ModeRow(Mode.REDIS, 3)


async def test_whoever_reaches_the_live_stock_keeps_the_buffer_shut(
    modes: Modes, database: Database
) -> None:
    await modes.beat(HERE, reaches_redis=False)
    await modes.beat(THERE, reaches_redis=True)
    assert (await modes.enter()).mode is Mode.REDIS
    await modes.beat(THERE, reaches_redis=False)
    assert (await modes.enter()).mode is Mode.BUFFER
    said = await fetch(database, "SELECT remark, mode FROM service_mode WHERE remark <> ''")
    assert sorted(said) == [(HERE, "away"), (THERE, "away")]


@pytest.mark.parametrize("end", ["killed", "stopped"])
async def test_a_process_that_is_gone_keeps_nobody_out(
    modes: Modes, database: Database, end: str
) -> None:
    await modes.beat(THERE, reaches_redis=True)
    if end == "killed":
        await expire(database, THERE)
    else:
        await modes.gone(THERE)
    assert (await modes.enter()).mode is Mode.BUFFER


async def test_a_way_back_on_which_the_live_stock_is_lost_again_ends_in_the_buffer(
    modes: Modes,
) -> None:
    await modes.enter()
    await modes.leave(1)
    await modes.beat(HERE, reaches_redis=True)
    assert (await modes.enter()).mode is Mode.LEAVING
    await modes.beat(HERE, reaches_redis=False)
    assert await modes.enter() == ModeRow(Mode.BUFFER, 3)
    assert await modes.finish(2) == ModeRow(Mode.BUFFER, 3)


async def test_of_an_entry_and_a_process_that_comes_back_one_sees_the_other(
    modes: Modes, database: Database
) -> None:
    for _ in range(20):
        await forget(database)
        await modes.beat(HERE, reaches_redis=False)
        entered, back = await asyncio.gather(modes.enter(), modes.beat(HERE, reaches_redis=True))
        sees_entry = back.mode is Mode.BUFFER
        assert sees_entry == (entered.mode is Mode.BUFFER)


async def test_the_buffer_is_not_left_under_a_sale_that_is_being_made(
    modes: Modes, database: Database
) -> None:
    await modes.enter()
    asked, sold = asyncio.Event(), asyncio.Event()

    async def sell(transaction: Transaction) -> ModeRow:
        found = await shared(transaction)
        asked.set()
        await sold.wait()
        return found

    sale = asyncio.create_task(database.transaction(sell))
    await asked.wait()
    leave = asyncio.create_task(modes.leave(1))
    await eventually(lambda: has_asked(database))
    assert not leave.done()
    sold.set()
    assert (await sale).mode is Mode.BUFFER
    assert await leave == ModeRow(Mode.LEAVING, 2)
