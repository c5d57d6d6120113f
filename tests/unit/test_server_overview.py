"""Redis is there as soon as one of its masters answers, and one that does not is told of as it is."""

import asyncio
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ledger.sales_mode import Mode, ModeRow
from ledger.servers import PerServer
from server import overview
from server.overview import LOOKS_MAX, Overview
from server.standstill import TICK_S
from sharding.errors import PartitionCountError, StockUnavailableError
from sharding.fitness import Flaw
from sharding.keys import tags
from sharding.lane import Node
from sharding.outcomes import Reason
from sharding.partitions import PartitionHead

OPEN = PartitionHead(is_open=True, reason="", generation=1, number=0, partitions=48)
LOOP_TURNS = 10
AWAY = StockUnavailableError(Reason.NOT_EXECUTED, "away")


class Redis:
    """One master a partition; None: it never answers."""

    replies = 0

    def __init__(self, *answers: PartitionHead | Exception | None) -> None:
        self._answers = answers
        self.count = len(answers)
        self.tags = tags(48)
        self.settings = SimpleNamespace(durability="replicated")

    def node_of(self, partition: int) -> Node:
        return Node("r", 7000 + partition)

    def masters(self) -> dict[int, list[int]]:
        return {partition: [partition] for partition in range(len(self._answers))}

    async def head(self, partition: int) -> PartitionHead:
        answer = self._answers[partition]
        if answer is None:
            await asyncio.Event().wait()
        if isinstance(answer, Exception):
            raise answer
        return cast(PartitionHead, answer)


def overview_of(*answers: PartitionHead | Exception | None) -> Overview:
    redis = cast(Any, Redis(*answers))
    return Overview(redis, redis, PerServer([]), cast(Any, None))


async def test_masters_that_are_silent_or_away_delay_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(overview, "REACH_S", 60)
    assert await overview_of(None, AWAY, None, OPEN).reaches_redis()
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize("answers", [(), (AWAY, AWAY), (None, AWAY)])
async def test_without_an_answer_it_is_not_there(
    answers: tuple[Exception | None, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overview, "REACH_S", 0.01)
    assert not await overview_of(*answers).reaches_redis()
    assert asyncio.all_tasks() == {asyncio.current_task()}


class StandingStill(Redis):
    """Its master answers at once; the process that asks gets no processor in its first looks."""

    looks = 0

    async def head(self, partition: int) -> PartitionHead:
        self.looks += 1
        if self.looks < LOOKS_MAX:
            time.sleep(3 * overview.STANDSTILL_S)  # noqa: ASYNC251 - that it blocks is the fault
        for _ in range(LOOP_TURNS):
            await asyncio.sleep(0)
        return await super().head(partition)


class Busy(Redis):
    """Its master answers others meanwhile; who looks has to wait behind them."""

    async def head(self, partition: int) -> PartitionHead:
        self.replies += 1
        return await super().head(partition)


async def test_a_look_that_waits_behind_others_who_are_answered_has_reached_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(overview, "REACH_S", 0.01)
    redis = cast(Any, Busy(None))
    assert await Overview(redis, redis, PerServer([]), cast(Any, None)).reaches_redis()


@pytest.mark.parametrize("answer", [OPEN, AWAY])
async def test_a_look_of_a_process_that_stood_still_is_repeated(
    answer: PartitionHead | Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overview, "REACH_S", 0.01)
    monkeypatch.setattr(overview, "STANDSTILL_S", TICK_S)
    redis = StandingStill(answer)
    looker = Overview(cast(Any, redis), cast(Any, redis), PerServer([]), cast(Any, None))
    assert await looker.reaches_redis() is (answer is OPEN)
    assert redis.looks == LOOKS_MAX


async def test_another_partition_count_passes_through() -> None:
    with pytest.raises(PartitionCountError):
        await overview_of(PartitionCountError("24, not 48")).reaches_redis()


class Ledger:
    """What one MySQL server says: nothing applied, units are sold from Redis."""

    def __init__(self, _database: object) -> None: ...

    async def all(self) -> dict[int, object]:
        return {}

    async def get(self) -> ModeRow:
        return ModeRow(Mode.REDIS, 0)


class Inspected:
    """What the nodes' inspection says."""

    flaw = Flaw("r:7001", "node", "away", "it is down", "Start it")

    async def flaws(self) -> list[Flaw]:
        return [self.flaw]


@pytest.mark.parametrize("away", [None, AWAY])
async def test_a_partition_that_does_not_answer_is_told_of_as_such(
    away: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def version(_database: object) -> int:
        return 7

    monkeypatch.setattr(overview, "HEAD_S", 0.01)
    for name, fake in (("Checkpoints", Ledger), ("Modes", Ledger), ("schema_version", version)):
        monkeypatch.setattr(overview, name, fake)
    redis = cast(Any, Redis(OPEN, away))
    looking = Overview(redis, redis, PerServer([cast(Any, None)]), cast(Any, Inspected()))
    state = await looking.read()
    assert [each.head.is_open for each in state.partitions] == [True, False]
    assert [each.head.reason for each in state.partitions] == ["", "UNREACHABLE"]
    assert [each.node for each in state.partitions] == ["r:7000", "r:7001"]
    assert list(state.flaws) == [Inspected.flaw]
    assert asyncio.all_tasks() == {asyncio.current_task()}
