"""What leaves the buffer comes on sale once, whoever is killed; by itself where a rule says so."""

import asyncio
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from ledger.buffer_releases import Buffers, Release, Rule
from sharding.errors import StockUnavailableError
from sharding.outcomes import (
    Answer,
    Deduction,
    Outcome,
    ProductStock,
    Reason,
    ShardStock,
    State,
)
from tests.ledger.conftest import fetch
from tests.ledger.streams import fresh_request_ids
from tests.waiting import eventually
from tests.worker.conftest import PARTITIONS, StartWorker, World
from tests.worker.test_repairs import agree
from worker.buffer_releases import BROUGHT, KEPT, BufferKeeper, is_low
from worker.metrics import WorkerMetrics
from worker.share import Share

UNITS, BUFFER = 100, 40


async def buffered(world: World, *, below: int = 0) -> int:
    """A product on sale with 60 units in its shards and 40 in its buffer."""
    return await world.on_sale(UNITS, buffer_percent=BUFFER, release_below=below)


def releasing(world: World) -> Buffers:
    return Buffers(world.database, partitions=PARTITIONS)


async def release(world: World, product_id: int, quantity: int, request_id: str) -> None:
    await releasing(world).release(Release(product_id, request_id, quantity, "", ""))


async def errands(world: World, product_id: int) -> list[tuple[object, ...]]:
    sql = "SELECT state, remark FROM outbox WHERE product_id = %s AND kind = 'buffer' ORDER BY id"
    return await fetch(world.database, sql, product_id)


async def are_done(world: World, product_id: int, remarks: list[str]) -> bool:
    return await errands(world, product_id) == [("done", remark) for remark in remarks]


async def live(world: World, product_id: int) -> ProductStock:
    seen = await world.stock.read(product_id)
    assert seen is not None
    return seen


async def buy(world: World, product_id: int, quantity: int = 1) -> Answer:
    (request_id,) = fresh_request_ids(1)
    (answer,) = await world.stock.deduct([Deduction(request_id, product_id, quantity, attempt=1)])
    return answer


async def test_a_worker_killed_before_or_behind_the_step_brings_it_once(
    opened: World, start_worker: StartWorker
) -> None:
    product_id = await buffered(opened)
    await release(opened, product_id, 10, "b1")
    await release(opened, product_id, 5, "b2")
    for place in ("before", "after"):
        doomed = start_worker(FAILPOINTS=f"worker.{place}_buffer=kill")
        assert await doomed.ended() == -9
    worker = start_worker()
    await eventually(lambda: are_done(opened, product_id, [BROUGHT, BROUGHT]))
    await eventually(lambda: agree(opened, product_id))
    seen, row = await live(opened, product_id), await opened.products.get(product_id)
    assert (seen.available, seen.buffer, seen.total) == (75, 25, UNITS)
    assert (row.available_stock, row.buffer_stock, row.total_stock) == (75, 25, UNITS)
    assert await worker.metric("inventory_ledger_drift_total") == 0
    await release(opened, product_id, 0, "b3")
    await eventually(lambda: are_done(opened, product_id, [BROUGHT] * 3))
    assert (await live(opened, product_id)).available == UNITS
    brought = 'inventory_worker_buffer_releases_total{result="brought"}'
    await eventually(lambda: worker.metric(brought))
    assert worker.complaints(product_id) == []


async def test_a_sold_out_product_sells_what_is_released_and_nothing_more(
    opened: World, start_worker: StartWorker
) -> None:
    product_id = await buffered(opened)
    start_worker()
    assert (await buy(opened, product_id, 60)).outcome is Outcome.DEDUCTED
    for _ in range(3):
        assert (await buy(opened, product_id)).outcome is Outcome.INSUFFICIENT_STOCK
    await release(opened, product_id, 15, "b1")
    await eventually(lambda: are_done(opened, product_id, [BROUGHT]))
    answers = await asyncio.gather(*(buy(opened, product_id) for _ in range(20)))
    outcomes = [answer.outcome for answer in answers]
    assert outcomes.count(Outcome.DEDUCTED) == 15
    assert outcomes.count(Outcome.INSUFFICIENT_STOCK) == 5
    row = await eventually(lambda: opened.is_sold(product_id, 75))
    assert (row.available_stock, row.buffer_stock) == (0, 25)


async def test_a_product_that_is_closed_before_the_worker_comes_keeps_the_units(
    opened: World, start_worker: StartWorker
) -> None:
    product_id = await buffered(opened)
    await release(opened, product_id, 15, "b1")
    row = await opened.products.begin_close(product_id)
    await opened.stock.close(product_id, row.epoch)
    start_worker()
    await eventually(lambda: are_done(opened, product_id, [KEPT]))

    async def is_applied() -> bool:
        return await opened.products.closed_shards(product_id, epoch=row.epoch) == 6

    await eventually(is_applied)
    row = await opened.products.finish_close(product_id, epoch=row.epoch)
    assert (row.available_stock, row.buffer_stock, row.total_stock) == (UNITS, 0, UNITS)


async def test_a_buffer_is_released_once_a_product_runs_low(
    opened: World, start_worker: StartWorker
) -> None:
    low, plain = await buffered(opened, below=10), await buffered(opened)
    worker = start_worker()
    for product_id in (low, plain):
        assert (await buy(opened, product_id, 50)).outcome is Outcome.DEDUCTED
    await eventually(lambda: is_above(worker, "inventory_worker_partitions_owned", 0))
    assert (await buy(opened, low)).outcome is Outcome.DEDUCTED
    await eventually(lambda: are_done(opened, low, [BROUGHT]))
    seen, row = await live(opened, low), await opened.products.get(low)
    assert (seen.available, seen.buffer, seen.total) == (49, 0, UNITS)
    assert row.buffer_stock == 0
    assert (await buy(opened, plain, 10)).outcome is Outcome.DEDUCTED
    assert await errands(opened, plain) == []
    sql = "SELECT request_id, quantity, actor, remark FROM inventory_log "
    journal = await fetch(opened.database, sql + "WHERE product_id = %s AND kind = 'buffer'", low)
    assert journal == [("buffer 1", BUFFER, "service", "9 units available, fewer than 10")]
    assert await worker.metric("inventory_worker_buffers_released_total") == 1
    assert worker.said("buffer released")


class StuckStock:
    """A stock of which a shard does not answer."""

    async def read(self, _product_id: int) -> ProductStock | None:
        raise StockUnavailableError(Reason.PARTITION_FENCED, "p01 NEW_OWNER")


async def test_nothing_is_released_while_a_part_of_the_live_stock_does_not_answer(
    opened: World,
) -> None:
    product_id = await buffered(opened, below=UNITS)
    metrics = WorkerMetrics(CollectorRegistry())
    share, buffers = Share(metrics, trim_lag_s=60, partitions=PARTITIONS), releasing(opened)
    share.lease(frozenset(range(PARTITIONS)), float("inf"))
    for stock, released in ((StuckStock(), 0), (opened.stock, BUFFER)):
        keeper = BufferKeeper(
            share,
            stock,  # type: ignore[arg-type]
            buffers,
            metrics,
        )
        await keeper._tick()
        assert (await buffers.progress(product_id)).units == released


@pytest.mark.parametrize(
    ("changes", "low"),
    [
        ({}, True),
        ({"available": 8}, False),
        ({"in_transit": 3}, False),
        ({"state": State.CLOSING}, False),
        ({"frozen": True}, False),
        ({"epoch": 4}, False),
    ],
)
def test_a_product_is_low_while_it_sells_and_its_shards_have_few_units(
    changes: dict[str, Any], low: bool
) -> None:
    counts = {"available": 7, "in_transit": 0} | changes
    shard = ShardStock(0, 7, counts["available"], 0, 0, 0, counts["in_transit"])
    fields = {"state": State.OPEN, "frozen": False, "epoch": 3} | changes
    seen = ProductStock(
        product_id=1,
        state=fields["state"],
        frozen=fields["frozen"],
        layout_version=1,
        epoch=fields["epoch"],
        buffer=40,
        sold_before=0,
        shards=(shard,),
        serving=1,
        exact=True,
    )
    assert is_low(seen, Rule(1, 3, 8)) is low


async def is_above(worker: object, name: str, value: float) -> bool:
    return (await worker.metric(name) or 0) > value  # type: ignore[attr-defined,no-any-return]
