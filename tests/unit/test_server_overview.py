"""Readiness: Redis is there as soon as one of its masters answers."""

import asyncio
from typing import Any, cast

import pytest

from ledger.servers import PerServer
from server import overview
from server.overview import Overview
from sharding.errors import PartitionCountError, StockUnavailableError
from sharding.outcomes import Reason
from sharding.partitions import PartitionHead

OPEN = PartitionHead(is_open=True, reason="", generation=1, number=0, partitions=48)
AWAY = StockUnavailableError(Reason.NOT_EXECUTED, "away")


class Redis:
    """One master a partition; None: it never answers."""

    def __init__(self, *answers: PartitionHead | Exception | None) -> None:
        self._answers = answers

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


async def test_another_partition_count_passes_through() -> None:
    with pytest.raises(PartitionCountError):
        await overview_of(PartitionCountError("24, not 48")).reaches_redis()
