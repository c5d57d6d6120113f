"""What the worker brings back into order by itself: real processes, real Redis Cluster, real MySQL."""

import asyncio
import signal
from collections.abc import Sequence

import pytest

from sharding import keys
from sharding.cluster import LaneKind
from sharding.outcomes import Answer, Deduction, Outcome, ProductStock
from sharding.placement import Layout
from sharding.readings import Given
from sharding.shards import Shards
from tests.ledger.conftest import fetch
from tests.ledger.streams import fresh_request_ids
from tests.moving import begin, open_transfers
from tests.waiting import eventually
from tests.worker.conftest import PARTITIONS, StartWorker, World
from worker.outbox import NOTHING_TO_RETURN

UNITS = 1_000
ROLLED_BACK = (
    "SELECT type, quantity, LEFT(remark, 32) FROM inventory_log "
    "WHERE product_id = %s AND kind = 'rollback'"
)
SHARDS = 6


async def send(world: World, product_id: int, ids: Sequence[str], units: int = 1) -> list[Answer]:
    return await world.stock.deduct([Deduction(each, product_id, units) for each in ids])


async def forget(world: World, product_id: int, ids: Sequence[str]) -> None:
    """As if the requests' records had expired."""
    fields = [f"{product_id}:{request_id}" for request_id in ids]
    for partition, tag in enumerate(world.cluster.tags):
        for key in keys.memory(tag):
            await world.cluster.command(partition, "HDEL", key, *fields, lane=LaneKind.WRITE)


async def live(world: World, product_id: int) -> ProductStock:
    found = await world.stock.read(product_id)
    assert found is not None
    return found


async def outbox(world: World, product_id: int) -> list[tuple[object, ...]]:
    sql = "SELECT kind, state, request_id, remark FROM outbox WHERE product_id = %s ORDER BY id"
    return await fetch(world.database, sql, product_id)


async def agree(world: World, product_id: int) -> bool:
    """Whether every shard's row says what the shard itself says, and nothing is on its way."""
    sql = (
        "SELECT partition_id, available, sold, loaded, in_transit FROM shard_stock "
        "WHERE product_id = %s ORDER BY partition_id"
    )
    rows = await fetch(world.database, sql, product_id)
    stock = await live(world, product_id)
    told = sorted((s.partition, s.available, s.sold, s.loaded) for s in stock.shards)
    moved = sum([row[4] for row in rows])  # type: ignore[misc]
    return [row[:4] for row in rows] == told and (stock.in_transit, moved) == (0, 0)


async def assert_all_is_right(world: World, product_id: int, *, sold: int) -> None:
    """Ledger and Redis both say that so many units are sold and the others are there."""
    await eventually(lambda: agree(world, product_id))
    stock, row = await live(world, product_id), await world.products.get(product_id)
    assert (stock.sold, stock.available) == (sold, UNITS - sold)
    assert (row.sold_count, row.available_stock, row.total_stock) == (sold, UNITS - sold, UNITS)


async def all_done(world: World, product_id: int, rows: int) -> bool:
    found = await outbox(world, product_id)
    return len(found) == rows and {row[1] for row in found} == {"done"}


@pytest.mark.parametrize("in_one_batch", [True, False])
async def test_an_id_that_is_sent_again_after_its_record_expired_takes_its_units_once(
    opened: World, start_worker: StartWorker, in_one_batch: bool
) -> None:
    product_id, ids = await opened.on_sale(UNITS, shards=SHARDS), fresh_request_ids(40)
    worker = None if in_one_batch else start_worker()
    for _ in range(3):
        answers = await send(opened, product_id, ids, 2)
        assert {(each.outcome, each.replayed) for each in answers} == {(Outcome.DEDUCTED, False)}
        await forget(opened, product_id, ids)
        if worker:
            await eventually(lambda: opened.is_sold(product_id, 80))
    worker = worker or start_worker()
    await eventually(lambda: all_done(opened, product_id, 80))
    await assert_all_is_right(opened, product_id, sold=80)
    remarks = [str(row[3]) for row in await outbox(opened, product_id)]
    assert all(remark.startswith("returned by event ") for remark in remarks)
    assert await opened.journal_rows(product_id) == 80
    rolled_back = await fetch(opened.database, ROLLED_BACK, product_id)
    assert rolled_back == [(4, 4, "second effect, returned by event")] * 40
    assert await worker.metric("inventory_ledger_drift_total") == 0
    assert await worker.metric("inventory_ledger_unasked_undos_total") == 0
    await eventually(lambda: is_shown(worker, "inventory_worker_undos_open", 0))
    assert await worker.metric('inventory_worker_undos_total{result="returned"}') == 80
    assert worker.complaints(product_id) == []


async def is_shown(worker: object, name: str, value: float) -> bool:
    return await worker.metric(name) == value  # type: ignore[attr-defined,no-any-return]


async def test_units_that_came_back_are_sold_to_others(
    opened: World, start_worker: StartWorker
) -> None:
    product_id = await opened.on_sale(UNITS, shards=SHARDS)
    (once,) = fresh_request_ids(1)
    await send(opened, product_id, [once], UNITS // 2)
    await forget(opened, product_id, [once])
    await send(opened, product_id, [once], UNITS // 2)
    (other,) = fresh_request_ids(1)
    (answer,) = await send(opened, product_id, [other])
    assert answer.outcome is Outcome.INSUFFICIENT_STOCK
    start_worker()
    await eventually(lambda: all_done(opened, product_id, 1))
    ids = fresh_request_ids(UNITS // 2)
    answers = await send(opened, product_id, ids)
    assert {each.outcome for each in answers} == {Outcome.DEDUCTED}
    await eventually(lambda: opened.is_sold(product_id, UNITS))
    await assert_all_is_right(opened, product_id, sold=UNITS)


async def test_a_repeat_of_an_undone_request_gets_the_answer_that_its_units_were_taken(
    opened: World, start_worker: StartWorker
) -> None:
    start_worker()
    product_id, ids = await opened.on_sale(UNITS, shards=SHARDS), fresh_request_ids(10)
    await send(opened, product_id, ids)
    await forget(opened, product_id, ids)
    await send(opened, product_id, ids)
    await eventually(lambda: all_done(opened, product_id, 10))
    answers = await send(opened, product_id, ids)
    assert {(each.outcome, each.replayed) for each in answers} == {(Outcome.DEDUCTED, True)}
    await assert_all_is_right(opened, product_id, sold=10)


async def test_a_product_that_was_closed_meanwhile_keeps_its_units_in_the_ledger(
    opened: World, start_worker: StartWorker
) -> None:
    product_id, ids = await opened.on_sale(UNITS, shards=SHARDS), fresh_request_ids(10)
    await send(opened, product_id, ids)
    await forget(opened, product_id, ids)
    await send(opened, product_id, ids)
    row = await opened.products.begin_close(product_id)
    await opened.stock.close(product_id, row.epoch)
    start_worker()
    await eventually(lambda: all_done(opened, product_id, 10))
    assert {row[3] for row in await outbox(opened, product_id)} == {NOTHING_TO_RETURN}
    after = await opened.products.get(product_id)
    assert (after.sold_count, after.available_stock) == (10, UNITS - 10)


async def take(world: World, product_id: int, units: int) -> Given:
    """Begin a transfer between two shards and leave it; nobody levels a product that is closing."""
    row = await world.products.begin_close(product_id)
    shards = Shards(world.cluster, product_id, Layout(row.layout_version, row.layout_shards))
    donor, receiver = shards.partitions[:2]
    return await begin(shards, donor, receiver, units)


async def put(world: World, product_id: int, given: Given) -> None:
    row = await world.products.get(product_id)
    shards = Shards(world.cluster, product_id, Layout(row.layout_version, row.layout_shards))
    await shards.put(given)


async def is_over(world: World, product_id: int) -> bool:
    return not await outbox(world, product_id) and not await open_transfers(world.stock, product_id)


@pytest.mark.parametrize("arrived", [False, True])
async def test_a_transfer_that_was_left_open_is_brought_to_its_end(
    opened: World, start_worker: StartWorker, arrived: bool
) -> None:
    worker = start_worker()
    product_id = await opened.on_sale(UNITS, shards=SHARDS)
    transfer = await take(opened, product_id, 50)
    if arrived:
        await put(opened, product_id, transfer)
    await eventually(lambda: outbox(opened, product_id))
    await eventually(lambda: is_over(opened, product_id))
    await assert_all_is_right(opened, product_id, sold=0)
    await eventually(lambda: is_shown(worker, "inventory_worker_transfers_finished_total", 1))
    assert await worker.metric("inventory_worker_transfers_stuck") == 0
    assert worker.complaints(product_id) == []


async def test_a_worker_that_takes_over_ends_the_transfers_that_its_forerunner_knew_of(
    opened: World, start_worker: StartWorker
) -> None:
    first = start_worker()
    await eventually(lambda: first.owns(PARTITIONS))
    product_id = await opened.on_sale(UNITS, shards=SHARDS)
    await take(opened, product_id, 50)
    await eventually(lambda: outbox(opened, product_id))
    first.process.send_signal(signal.SIGKILL)
    await first.ended()
    assert [row[:2] for row in await outbox(opened, product_id)] == [("transfer", "open")]
    second = start_worker()
    await eventually(lambda: is_over(opened, product_id))
    await assert_all_is_right(opened, product_id, sold=0)
    assert await second.metric("inventory_worker_transfers_finished_total") == 1


async def test_the_transfers_of_a_busy_sale_leave_nothing_behind(
    opened: World, start_worker: StartWorker
) -> None:
    worker = start_worker()
    product_id = await opened.on_sale(UNITS, shards=SHARDS)
    batches = [fresh_request_ids(30) for _ in range(40)]
    answers = await asyncio.gather(*(send(opened, product_id, ids) for ids in batches))
    outcomes = [each.outcome for part in answers for each in part]
    assert outcomes.count(Outcome.DEDUCTED) == UNITS
    await eventually(lambda: opened.is_sold(product_id, UNITS))
    await eventually(lambda: is_over(opened, product_id))
    await assert_all_is_right(opened, product_id, sold=UNITS)
    assert await worker.metric("inventory_ledger_drift_total") == 0
