"""What one process does as Redis goes and comes back, with the ledger there or away."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest
import structlog
from prometheus_client import CollectorRegistry
from structlog.testing import LogCapture

from ledger.checkpoints import Checkpoints
from ledger.database import Database
from ledger.sales_mode import Mode, ModeRow, Modes
from ledger.settings import MysqlUrl
from server.gate import Gate, Shut, Stance
from server.metrics import Metrics
from server.modes import MISSES, ModeKeeper, quick_database
from sharding.outcomes import Reason
from sharding.partitions import Checkpoint
from tests.ledger.conftest import new_metrics, write


class FakeRedis:
    """Answers looks as it is told to; `learned` is what it was told of the ledger."""

    def __init__(self) -> None:
        self.is_there = True
        self.learned: Sequence[int] = ()

    async def reaches_redis(self) -> bool:
        return self.is_there

    def learn(self, checkpoints: dict[int, Checkpoint]) -> None:
        self.learned = sorted(checkpoints)


class Server:
    """A process's gate and what turns it."""

    def __init__(self, name: str, database: Database, *, enters: bool = True) -> None:
        self.redis = FakeRedis()
        shut = Shut(Reason.NOT_EXECUTED)
        log = structlog.wrap_logger(None, processors=[LogCapture()])
        self.gate = Gate(shut, shut, Metrics(CollectorRegistry()), log)
        self.keeper = ModeKeeper(
            self.gate,
            self.redis,
            cast(Any, self.redis),
            Modes(database),
            Checkpoints(database),
            name=name,
            enters=enters,
        )

    async def step(self, *, redis: bool) -> Stance:
        self.redis.is_there = redis
        await self.keeper.step()
        return self.gate.stance

    async def lose_redis(self) -> Stance:
        for _ in range(MISSES - 1):
            await self.step(redis=False)
        return await self.step(redis=False)


@pytest.fixture
async def clean(database: Database) -> AsyncIterator[Database]:
    await write(database, "DELETE FROM service_mode")
    yield database
    await write(database, "DELETE FROM service_mode")


@pytest.fixture
async def unreachable(ledger_url: MysqlUrl) -> Database:
    """A ledger that is away."""
    return quick_database(replace(ledger_url, port=1), new_metrics())


async def test_one_look_without_an_answer_is_no_loss_and_one_with_it_is_enough(
    clean: Database,
) -> None:
    server = Server("one", clean, enters=False)
    assert server.gate.stance is Stance.AWAY
    assert await server.step(redis=True) is Stance.LIVE
    assert len(server.redis.learned) > 1
    for _ in range(3):
        assert await server.step(redis=False) is Stance.LIVE
        assert await server.step(redis=True) is Stance.LIVE
    assert await server.lose_redis() is Stance.AWAY
    assert await server.step(redis=True) is Stance.LIVE


async def test_the_last_who_loses_redis_enters_and_the_first_who_finds_it_leaves(
    clean: Database,
) -> None:
    one, two, modes = Server("one", clean), Server("two", clean), Modes(clean)
    for server in (one, two):
        assert await server.step(redis=True) is Stance.LIVE
    assert await one.lose_redis() is Stance.AWAY
    assert await two.lose_redis() is Stance.BUFFER
    assert await one.step(redis=False) is Stance.BUFFER
    assert await two.step(redis=True) is Stance.LEAVING
    assert await one.step(redis=False) is Stance.LEAVING
    row = await modes.get()
    assert row == ModeRow(Mode.LEAVING, 2)
    await modes.finish(row.epoch)
    assert await two.step(redis=True) is Stance.LIVE
    assert await one.step(redis=False) is Stance.AWAY
    assert await one.step(redis=True) is Stance.LIVE
    assert (one.gate.mode_epoch, two.gate.mode_epoch) == (3, 3)


async def test_a_process_that_is_told_not_to_enters_nothing_but_follows(clean: Database) -> None:
    timid, bold = Server("timid", clean, enters=False), Server("bold", clean)
    assert await timid.lose_redis() is Stance.AWAY
    assert await bold.lose_redis() is Stance.BUFFER
    assert await timid.step(redis=False) is Stance.BUFFER
    assert await timid.step(redis=True) is Stance.LEAVING


async def test_without_the_ledger_the_live_stock_sells_as_soon_as_it_is_there(
    unreachable: Database,
) -> None:
    server = Server("alone", unreachable)
    assert await server.step(redis=True) is Stance.LIVE
    assert await server.lose_redis() is Stance.AWAY
    assert await server.step(redis=True) is Stance.LIVE
    await server.keeper.leave()


async def test_a_process_that_ends_keeps_nobody_out_of_the_buffer(clean: Database) -> None:
    leaving, left = Server("leaving", clean), Server("left", clean)
    for server in (leaving, left):
        await server.step(redis=True)
    await asyncio.gather(leaving.keeper.leave(), leaving.keeper.leave())
    assert await left.lose_redis() is Stance.BUFFER
