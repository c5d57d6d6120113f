"""Partitions whose node has lost something are given the ledger's state, and open by themselves."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from sharding.ordering import Orders
from sharding.outcomes import Answer, Deduction, Outcome
from tests.ledger.streams import fresh_request_ids
from tests.waiting import eventually
from tests.worker.audits import audit
from tests.worker.busy import Busy, Memory, busy_world, remembered
from tests.worker.conftest import WorkerProcess, World, working
from tests.worker.losses import EVERYWHERE, all_restored, empty, generations


@pytest.fixture(scope="module")
async def worker(
    world: World, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[WorkerProcess]:
    log: Path = tmp_path_factory.mktemp("restoring") / "worker.log"
    async with working(world, log) as started:
        yield started


@pytest.fixture(scope="module")
async def orders(world: World) -> AsyncIterator[Orders]:
    made = Orders(world.stock, world.cluster, grace_s=0)
    yield made
    await made.drain()


@pytest.fixture(scope="module")
async def busy(world: World, worker: WorkerProcess, orders: Orders) -> Busy:
    return await busy_world(world, orders)


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


async def lose_everything(world: World) -> None:
    before = await generations(world, EVERYWHERE)
    await empty(world, EVERYWHERE)
    await all_restored(world, before)


async def assert_remembered(world: World, before: Mapping[int, Memory]) -> None:
    """What orders came to is told to their lines once more first; nobody had noted that they know."""
    with contextlib.suppress(AssertionError):
        await eventually(lambda: _are_equal(world, before), within_s=5)
    after = await remembered(world, before)
    for partition, memory in before.items():
        assert after[partition] == memory, partition


async def _are_equal(world: World, before: Mapping[int, Memory]) -> bool:
    return await remembered(world, before) == before


async def test_an_emptied_cluster_knows_all_that_it_knew(world: World, busy: Busy) -> None:
    before = await remembered(world)
    await lose_everything(world)
    await assert_remembered(world, before)


async def test_what_was_accepted_is_replayed_after_a_loss(world: World, busy: Busy) -> None:
    first = await world.stock.deduct(busy.requests)
    await lose_everything(world)
    again = await world.stock.deduct(busy.requests)
    assert {answer.replayed for answer in again} == {True}
    assert again == first


async def test_an_emptied_cluster_sells_on_to_the_last_unit(
    world: World, worker: WorkerProcess
) -> None:
    product = await world.on_sale(100)
    await sell(world, product, fresh_request_ids(40))
    await eventually(lambda: world.is_sold(product, 40))
    await lose_everything(world)
    await sell_out(world, product, left=60)
    await eventually(lambda: world.is_sold(product, 100))
    await assert_balanced(world, product)
