"""Partitions whose node has lost something are given the ledger's state, and open by themselves."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sharding.outcomes import Answer, Deduction, Outcome
from tests.ledger.conftest import fetch
from tests.ledger.streams import fresh_request_ids
from tests.waiting import eventually
from tests.worker.audits import audit, shards_of
from tests.worker.conftest import WorkerProcess, World, working
from tests.worker.losses import EVERYWHERE, all_restored, empty, fields_of, generations


@pytest.fixture(scope="module")
async def worker(
    world: World, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[WorkerProcess]:
    log: Path = tmp_path_factory.mktemp("restoring") / "worker.log"
    async with working(world, log) as started:
        yield started


async def sell(world: World, product: int, ids: list[str]) -> list[Answer]:
    answers = await asyncio.gather(
        *(world.stock.deduct([Deduction(each, product, 1, user_id=7)]) for each in ids)
    )
    return [answer for (answer,) in answers]


async def sell_out(world: World, product: int, *, left: int) -> None:
    """Exactly so many units can be sold, one by one."""
    answers = await sell(world, product, fresh_request_ids(left + 2))
    sold = [answer for answer in answers if answer.outcome is Outcome.DEDUCTED]
    assert len(sold) == left
    assert {answer.outcome for answer in answers} == {Outcome.DEDUCTED, Outcome.INSUFFICIENT_STOCK}


async def assert_balanced(world: World, product: int) -> None:
    reading = await audit(world, product)
    assert reading.balanced, reading
    assert reading.ledger.in_transit == 0


async def test_an_emptied_cluster_sells_on_with_what_the_ledger_knows(
    world: World, worker: WorkerProcess
) -> None:
    product = await world.on_sale(100)
    ids = fresh_request_ids(40)
    first = await sell(world, product, ids)
    await eventually(lambda: world.is_sold(product, 40))
    before = await generations(world, EVERYWHERE)
    await empty(world, EVERYWHERE)
    await all_restored(world, before)
    repeated = await sell(world, product, ids)
    assert [answer.replayed for answer in repeated] == [True] * 40
    assert [answer._replace(replayed=False) for answer in repeated] == first
    await sell_out(world, product, left=60)
    await eventually(lambda: world.is_sold(product, 100))
    await assert_balanced(world, product)
