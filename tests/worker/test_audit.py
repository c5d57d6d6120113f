"""Workers audit what is on sale, what differs is reported once, and repairs are entered once."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from ledger.audits import Audits, Side
from ledger.errors import LedgerConflictError
from server.auditing import RepairWish
from server.errors import RefusedError
from sharding.events import Counts, Kind
from sharding.outcomes import Outcome
from tests.ledger.conftest import fetch, write
from tests.waiting import eventually
from tests.worker.audits import (
    audit,
    auditor_of,
    buy,
    by_hand,
    events_after,
    frozen,
    last_event,
    looked_at_again,
    noted,
    repair,
    shard_of,
)
from tests.worker.conftest import PARTITIONS, WorkerProcess, World, working


@pytest.fixture(scope="module")
async def worker(
    world: World, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[WorkerProcess]:
    """Looks at every product twice a second, and freezes none."""
    log = tmp_path_factory.mktemp("audit") / "worker.log"
    async with working(world, log, AUDIT_EVERY_S="1", BREAKER="off") as process:
        yield process


async def test_a_unit_from_nowhere_is_reported_once_and_repaired_once(
    world: World, worker: WorkerProcess
) -> None:
    product = await world.on_sale(60)
    await world.sell(product, 20)
    assert (await audit(world, product)).balanced
    partition = shard_of(world, product)
    await by_hand(world, product, partition, "HINCRBY", "available", "1")
    await eventually(lambda: noted(world, product))
    await eventually(lambda: worker.metric("inventory_worker_drift_units"))
    await world.sell(product, 5)
    found = await audit(world, product)
    (drift,) = found.drifts
    assert (drift.partition, drift.units, drift.side) == (partition, Counts(1, 0, 0, 0), Side.LIVE)
    assert (found.ledger.difference, found.live.difference) == (0, -1)
    assert await noted(world, product) == [("open", 1, 0, 0, 0)]
    entered = await asyncio.gather(*(repair(world, product) for _ in range(2)))
    assert sorted(entered) == [False, True]
    found = await audit(world, product)
    assert found.balanced
    assert found.live.available + found.live.sold == 60
    live = await world.stock.read(product)
    assert live is not None
    assert (live.available, live.sold, live.total) == (35, 25, 60)
    assert await noted(world, product) == [("repaired", 1, 0, 0, 0)]
    told = [
        line for line in worker.log.read_text().splitlines() if f'"product_id": {product}' in line
    ]
    assert sum("ledger and stream differ" in line for line in told) == 1


async def test_the_first_event_after_a_change_by_hand_is_named(
    world: World, worker: WorkerProcess
) -> None:
    product = await world.on_sale(10, shards=1)
    partition = shard_of(world, product, 1)
    with worker.paused():
        await world.sell(product, 2)
        await by_hand(world, product, partition, "HINCRBY", "held", "1")
        last = await last_event(world, partition)
        await world.sell(product, 2)
    (drift,) = (await audit(world, product)).drifts
    assert drift.first_event == last._replace(number=last.number + 1)


async def test_the_ledger_follows_a_sale_that_it_was_not_told_of(
    world: World, worker: WorkerProcess
) -> None:
    product = await world.on_sale(60)
    partition = shard_of(world, product)
    with worker.paused():
        await by_hand(world, product, partition, "HINCRBY", "available", "-1")
        await by_hand(world, product, partition, "HINCRBY", "sold", "1")
    assert await repair(world, product)
    found = await audit(world, product)
    assert found.balanced
    assert (found.ledger.available, found.ledger.sold) == (59, 1)
    row = await world.products.get(product)
    assert (row.total_stock, row.available_stock, row.sold_count) == (60, 59, 1)


@pytest.mark.usefixtures("worker")
async def test_either_half_can_be_asked_to_follow(world: World) -> None:
    product = await world.on_sale(60)
    partition = shard_of(world, product)
    await by_hand(world, product, partition, "HINCRBY", "available", "4")
    assert await repair(world, product, Side.LEDGER)
    found = await audit(world, product)
    assert found.balanced
    assert (found.ledger.loaded, found.ledger.available) == (64, 64)
    live = await world.stock.read(product)
    assert live is not None
    assert (live.available, live.total) == (64, 64)
    await by_hand(world, product, partition, "HSET", "available", "0")
    assert await repair(world, product, Side.LIVE)
    found = await audit(world, product)
    assert (found.balanced, found.live.available) == (True, 64)


@pytest.mark.usefixtures("worker")
async def test_a_repair_of_units_that_were_sold_meanwhile_is_refused(world: World) -> None:
    product = await world.on_sale(5, shards=1)
    await by_hand(world, product, shard_of(world, product, 1), "HINCRBY", "available", "3")
    found = await audit(world, product)
    assert (await buy(world, product, 8)).outcome is Outcome.DEDUCTED
    with pytest.raises(RefusedError, match="fewer units") as refused:
        await auditor_of(world).repair(RepairWish(product, "counted", "ann", Side.LIVE), found)
    assert refused.value.reason == "REPAIR_IMPOSSIBLE"
    live = await world.stock.read(product)
    assert live is not None
    assert (live.available, live.sold) == (0, 8)


async def test_nothing_is_repaired_while_events_are_on_their_way(
    world: World, worker: WorkerProcess
) -> None:
    product = await world.on_sale(60)
    before = {each: await last_event(world, each) for each in range(PARTITIONS)}
    with worker.paused():
        await world.sell(product, 9)
        with pytest.raises(RefusedError, match=r"the worker of p\d") as pending:
            await auditor_of(world).audit(product, wait_s=0.3)
    assert pending.value.reason == "AUDIT_PENDING"
    assert (await audit(world, product)).balanced
    assert not await repair(world, product)
    assert await noted(world, product) == []
    for partition, after in before.items():
        events = await events_after(world, product, partition, after)
        assert not any(event.kind is Kind.REPAIR for event in events)


@pytest.mark.usefixtures("worker")
async def test_a_product_that_is_being_loaded_cannot_be_audited_one_being_closed_can(
    world: World,
) -> None:
    product = await world.on_sale(6)
    sql = "UPDATE product_inventory SET status = %s WHERE product_id = %s"
    await write(world.database, sql, "loading", product)
    with pytest.raises(LedgerConflictError, match="loaded"):
        await audit(world, product)
    await write(world.database, sql, "closing", product)
    found = await audit(world, product)
    assert (found.balanced, found.shards) == (True, 6)


async def test_every_shard_is_audited_round_after_round(
    world: World, worker: WorkerProcess
) -> None:
    product = await world.on_sale(60)
    for partition in (shard_of(world, product), shard_of(world, product)):
        await looked_at_again(world, product, partition)
    assert await noted(world, product) == []
    assert await worker.metric("inventory_worker_audit_markers_total")
    sql = "SELECT COUNT(*) FROM dead_letter WHERE product_id = %s"
    assert await fetch(world.database, sql, product) == [(0,)]
    marks = "FROM raw_event WHERE fields LIKE '%%mark%%' AND fields LIKE CONCAT('%%', %s, '%%')"
    ((kept,),) = await fetch(world.database, f"SELECT COUNT(*) {marks}", str(product))
    assert kept < (await worker.metric("inventory_worker_audit_markers_total") or 0)


@pytest.mark.usefixtures("worker")
async def test_a_breaker_that_is_off_freezes_nothing(world: World) -> None:
    product = await world.on_sale(60)
    partition = shard_of(world, product)
    await by_hand(world, product, partition, "HINCRBY", "available", "1")
    await eventually(lambda: noted(world, product))
    await looked_at_again(world, product, partition)
    assert await frozen(world, product) is None
    assert (await buy(world, product)).outcome is Outcome.DEDUCTED


async def test_an_hour_of_audits_is_kept_as_a_report(world: World) -> None:
    audits = Audits(world.database)
    await audits.report("hourly", differences=2, report={"products": 3, "shards": 18})
    sql = "SELECT scope, product_id, differences, report FROM audit_report ORDER BY id DESC LIMIT 1"
    ((scope, product, differences, report),) = await fetch(world.database, sql)
    assert (scope, product, differences) == ("hourly", 0, 2)
    assert json.loads(str(report)) == {"products": 3, "shards": 18}
