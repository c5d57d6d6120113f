"""Partitions whose node has lost something are given the ledger's state, and open by themselves."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from ledger.buffer_releases import Buffers
from ledger.layouts import Cause, Layouts
from ledger.outbox import Outbox, OutboxRow
from ledger.restoring import PartitionStates
from sharding import keys
from sharding.cluster import Cluster, LaneKind
from sharding.errors import StockUnavailableError
from sharding.events import EventId
from sharding.metrics import StockMetrics
from sharding.ordering import Orders
from sharding.orders import Line
from sharding.outcomes import Answer, Deduction, Outcome, Reason
from sharding.placement import Layout
from sharding.stock import Stock
from tests.ledger.conftest import fetch, write
from tests.ledger.streams import fresh_order_ids, fresh_request_ids
from tests.moving import begin, move, open_transfers
from tests.waiting import eventually
from tests.worker.audits import audit, last_event, shard_of, shards_of
from tests.worker.busy import Busy, Memory, busy_world, drained, remembered
from tests.worker.conftest import PARTITIONS, StartWorker, WorkerProcess, World, working
from tests.worker.losses import (
    EVERYWHERE,
    all_restored,
    dump,
    empty,
    fields_of,
    generations,
    set_back,
)
from worker.mending import Mends
from worker.metrics import WorkerMetrics


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
    await lose_everything(world)  # also what other tests did behind the ledger's back
    return await busy_world(world, orders)


@asynccontextmanager
async def other_process(world: World) -> AsyncIterator[Stock]:
    """One that has seen nothing yet."""
    metrics = StockMetrics(CollectorRegistry())
    cluster = await Cluster.connect(world.cluster.settings, metrics)
    stock = Stock(cluster, metrics)
    yield stock
    await stock.drain()
    await cluster.close()


async def sell(world: World, product: int, ids: list[str]) -> list[Answer]:
    return await sell_by(world.stock, product, ids)


async def sell_by(stock: Stock, product: int, ids: list[str]) -> list[Answer]:
    answers = await asyncio.gather(
        *(stock.deduct([Deduction(each, product, 1, user_id=7)]) for each in ids)
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


LOST = "inventory_worker_restored_events_lost_total"
LEASE_AND_CHECKPOINT = (
    "SELECT opening, anchor FROM partition_lease JOIN stream_checkpoint USING (partition_id)"
    " WHERE partition_id = %s"
)


async def is_shown(worker: WorkerProcess, reason: str) -> bool:
    name = f'inventory_worker_partitions_fenced{{reason="{reason}"}}'
    return (await worker.metric(name) or 0) > 0


async def is_open(world: World, partition: int) -> bool:
    return (await world.partitions.head(partition)).is_open


async def set_owner(world: World, partition: int, owner: str) -> None:
    """As if another node had the partition."""
    head = keys.head(world.cluster.tags[partition])
    await world.cluster.command(partition, "HSET", head, "owner", owner, lane=LaneKind.MOVE)


async def restore_remarks(world: World, product: int) -> list[str]:
    """What the journal says of restorations of a product."""
    sql = "SELECT remark FROM inventory_log WHERE product_id = %s AND kind = 'restore' ORDER BY id"
    return [str(remark) for (remark,) in await fetch(world.database, sql, product)]


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


async def is_decidable(orders: Orders, order_id: int) -> bool:
    """Whether a restored order's lines have been asked."""
    return (await orders.get(order_id)).outcome is not Outcome.UNAVAILABLE


async def test_orders_outlive_a_loss_however_long_they_are_held(
    world: World, busy: Busy, orders: Orders
) -> None:
    """Entries are kept for an hour, holds last for up to twelve."""
    await write(world.database, "DELETE FROM raw_event")
    await lose_everything(world)
    (alone, one), (apart, _), (extended, _), (limited, _) = busy.held.items()
    for order_id in (alone, apart, extended, limited):
        await eventually(lambda order_id=order_id: is_decidable(orders, order_id))
    assert (await orders.confirm(apart)).outcome is Outcome.CONFIRMED
    assert (await orders.release(alone, product_id=one)).outcome is Outcome.RELEASED
    assert (await orders.get(extended)).outcome is Outcome.HELD
    assert (await orders.release(limited)).outcome is Outcome.RELEASED
    assert (await orders.release(extended)).outcome is Outcome.RELEASED
    await orders.drain()
    await eventually(lambda: _holds_nothing(world, one))
    await assert_balanced(world, one)


async def _holds_nothing(world: World, product: int) -> bool:
    seen, row = await world.stock.read(product), await world.products.get(product)
    return seen is not None and seen.held == 0 and row.held_stock == 0


async def test_a_hold_that_ran_out_meanwhile_expires_after_a_loss(
    world: World, worker: WorkerProcess, orders: Orders
) -> None:
    product = await world.on_sale(10)
    (order_id,) = fresh_order_ids(1)
    await orders.reserve(order_id, user_id=1, lines=[Line(product, 3)], ttl_s=3, attempt=1)
    await eventually(lambda: _has_held(world, product, 3))
    await write(world.database, "DELETE FROM raw_event")
    await lose_everything(world)
    await eventually(lambda: _holds_nothing(world, product))
    assert (await orders.get(order_id, product_id=product)).outcome is Outcome.EXPIRED
    await sell_out(world, product, left=10)
    await assert_balanced(world, product)


async def _has_held(world: World, product: int, units: int) -> bool:
    return (await world.products.get(product)).held_stock == units


async def test_a_node_that_is_merely_behind_keeps_what_it_has_and_hears_the_rest(
    world: World, worker: WorkerProcess
) -> None:
    product = await world.on_sale(120)
    early = await sell(world, product, fresh_request_ids(1))
    await drained(world)
    places = shards_of(world, product).partitions
    snapshots = {each: await dump(world, each) for each in places}
    late = fresh_request_ids(60)
    await sell(world, product, late)
    await drained(world)
    before, opened = await remembered(world, places), await generations(world, places)
    for partition, snapshot in snapshots.items():
        await set_back(world, partition, snapshot)
    await all_restored(world, opened)
    await assert_remembered(world, before)
    assert worker.said('"kept_records": true')
    assert early[0].outcome is Outcome.DEDUCTED
    assert all(answer.replayed for answer in await sell(world, product, late))
    await sell_out(world, product, left=59)
    await assert_balanced(world, product)


async def test_a_quiet_node_that_is_behind_keeps_what_it_has(
    world: World, worker: WorkerProcess
) -> None:
    """Of its stream only an audit's marker is left; all that tells of sales was trimmed."""
    product = await world.on_sale(60, shards=1)
    partition = shard_of(world, product, shards=1)
    early = await sell(world, product, fresh_request_ids(1))
    await shards_of(world, product, shards=1).mark(partition, epoch=1)
    await drained(world)
    await world.partitions.trim(partition, ledger=0, below=await last_event(world, partition))
    await set_back_by_a_sale(world, product, partition)
    assert restored_keeping(worker, partition) == [True]
    assert early[0].outcome is Outcome.DEDUCTED
    await sell_out(world, product, left=58)
    await assert_balanced(world, product)


async def test_what_a_node_has_is_kept_also_when_its_restoration_is_interrupted(
    world: World, worker: WorkerProcess, start_worker: StartWorker
) -> None:
    product = await world.on_sale(60, shards=1)
    partition = shard_of(world, product, shards=1)
    await sell(world, product, fresh_request_ids(1))
    await drained(world)
    with worker.paused():
        doomed = start_worker(FAILPOINTS="worker.after_refill=kill")
        await eventually(lambda: doomed.owns(PARTITIONS))
        snapshot = await dump(world, partition)
        await sell(world, product, fresh_request_ids(1))
        await drained(world)
        opened = await generations(world, [partition])
        await set_back(world, partition, snapshot)
        assert await doomed.ended() == -9
    await all_restored(world, opened)
    assert restored_keeping(worker, partition) == [True]
    await sell_out(world, product, left=58)
    await assert_balanced(world, product)


async def set_back_by_a_sale(world: World, product: int, partition: int) -> None:
    """The node comes back as it was before its last sale, which the ledger has."""
    snapshot, opened = await dump(world, partition), await generations(world, [partition])
    await sell(world, product, fresh_request_ids(1))
    await drained(world)
    await set_back(world, partition, snapshot)
    await all_restored(world, opened)


def restored_keeping(worker: WorkerProcess, partition: int) -> list[bool]:
    """Whether the last restoration of a partition that a worker tells of has kept what the node had."""
    lines = map(json.loads, worker.log.read_text().splitlines())
    restored = "partition restored from the ledger"
    found = [e for e in lines if (e["event"], e.get("partition")) == (restored, partition)]
    return [bool(each["kept_records"]) for each in found][-1:]


async def test_a_stream_that_has_parted_from_the_ledger_goes_and_its_losses_are_told(
    world: World, worker: WorkerProcess
) -> None:
    product = await world.on_sale(60, shards=1)
    partition = shard_of(world, product, shards=1)
    await sell(world, product, fresh_request_ids(5))
    await drained(world)
    snapshot = await dump(world, partition)
    ledgers = fresh_request_ids(4)
    await sell(world, product, ledgers)
    await drained(world)
    before, lost = await generations(world, [partition]), await worker.metric(LOST) or 0
    with worker.paused():
        await set_back(world, partition, snapshot)
        async with other_process(world) as stock:
            for request_id in fresh_request_ids(7):
                (answer,) = await sell_by(stock, product, [request_id])
                assert answer.outcome is Outcome.DEDUCTED
        await set_owner(world, partition, "0" * 40)
    await all_restored(world, before)
    assert all(answer.replayed for answer in await sell(world, product, ledgers))
    await sell_out(world, product, left=51)
    await assert_balanced(world, product)
    assert (await worker.metric(LOST) or 0) > lost
    remarks = await restore_remarks(world, product)
    assert len(remarks) == 1
    assert "sold +3" in remarks[0]


async def _are_named(worker: WorkerProcess, events: float) -> bool:
    return await worker.metric(LOST) == events


@pytest.mark.parametrize("comes_by_before", [True, False])
@pytest.mark.parametrize("applied", [0, 4])
async def test_of_events_that_neither_ledger_nor_worker_had_heard_who_sold_them_tells(
    world: World, worker: WorkerProcess, applied: int, comes_by_before: bool
) -> None:
    """As after a failover in `fast`: the replica that leads now never had them."""
    product = await world.on_sale(60, shards=1)
    partition = shard_of(world, product, shards=1)
    await drained(world)
    snapshot = await dump(world, partition)
    await sell(world, product, fresh_request_ids(applied))
    await drained(world)
    before, lost = await generations(world, [partition]), await worker.metric(LOST) or 0
    with worker.paused():
        for request_id in fresh_request_ids(3):
            await sell(world, product, [request_id])
        sold = world.cluster.seen(partition)
        await set_back(world, partition, snapshot)
        await set_owner(world, partition, "0" * 40)
        if comes_by_before:
            (answer,) = await sell(world, product, fresh_request_ids(1))
            assert answer.reason is Reason.PARTITION_FENCED
            assert await world.cluster.told(partition) == sold
    await all_restored(world, before)
    if comes_by_before:
        assert (await worker.metric(LOST) or 0) - lost == 3
    else:
        await sell(world, product, fresh_request_ids(1))
        await eventually(lambda: _are_named(worker, lost + 3))
    assert (await world.partitions.head(partition)).generation > sold.generation
    await sell_out(world, product, left=60 - applied - (not comes_by_before))
    await assert_balanced(world, product)


async def test_units_that_were_on_their_way_arrive_once_after_a_loss(
    world: World, worker: WorkerProcess
) -> None:
    """A take whose put is to come, and one that has arrived of which the donor was not told."""
    product = await world.on_sale(60)
    shards = shards_of(world, product)
    first, second, third = shards.partitions[:3]
    for receiver, arrives in ((second, False), (third, True)):
        given = await begin(shards, first, receiver, 4)
        if arrives:
            await shards.put(given)
    await drained(world)
    await lose_everything(world)
    await eventually(lambda: _has_arrived(world, product))
    seen = await world.stock.read(product)
    assert seen is not None
    assert [shard.available for shard in seen.shards[:3]] == [2, 14, 14]
    await sell_out(world, product, left=60)
    await assert_balanced(world, product)


async def _has_arrived(world: World, product: int) -> bool:
    return not await open_transfers(world.stock, product)


async def test_of_a_transfer_whose_put_was_lost_the_donor_knows(
    world: World, worker: WorkerProcess
) -> None:
    product = await world.on_sale(60)
    shards = shards_of(world, product)
    donor, receiver = shards.partitions[:2]
    with worker.paused():
        given = await begin(shards, donor, receiver, 4)
        await shards.put(given)
        await forget_last_event(world, receiver)
        await shards.ack(given)
    await drained(world)
    before = await generations(world, [receiver])
    await empty(world, [receiver])
    await all_restored(world, before)
    await move(shards_of(world, product), donor, receiver, 3)
    readings = [await shards.read(donor), await shards.read(receiver)]
    assert [reading.available for reading in readings] == [3, 17]
    await sell_out(world, product, left=60)
    await assert_balanced(world, product)


@pytest.mark.parametrize("loser", [0, 1])
async def test_of_a_transfer_nobody_had_heard_of_one_side_is_lost_and_made_up_for(
    world: World, worker: WorkerProcess, loser: int
) -> None:
    """The donor's, so that its units are at both shards; or the receiver's, so that they are nowhere."""
    product = await world.on_sale(90, shards=3)
    shards = shards_of(world, product, shards=3)
    pair = shards.partitions[:2]
    await drained(world)
    with worker.paused():
        await move(shards, *pair, 30)
        before = await generations(world, [pair[loser]])
        await empty(world, [pair[loser]])
    await all_restored(world, before)
    await eventually(lambda: _is_even(world, product))
    await drained(world)
    await sell_out(world, product, left=90)
    await assert_balanced(world, product)


async def _is_even(world: World, product: int) -> bool:
    seen = await world.stock.read(product)
    assert seen
    return seen.exact and seen.in_transit == 0 and seen.available == 90


async def forget_last_event(world: World, partition: int) -> None:
    """As if the node had been lost before the worker read it."""
    event_id = str((await world.partitions.head(partition)).stream(0).last)
    stream = keys.events(world.cluster.tags[partition], 0)
    await world.cluster.command(partition, "XDEL", stream, event_id, lane=LaneKind.MOVE)


async def test_a_shard_that_a_change_of_layout_made_is_not_loaded_when_its_beginning_is_lost(
    world: World, worker: WorkerProcess, start_worker: StartWorker
) -> None:
    """Its units have come from others. Whoever restores it need not live to tell it of its layout."""
    product = await world.on_sale(60, shards=2)
    partition = min(places_of(product, 4) - places_of(product, 2))
    await drained(world)
    with worker.paused():
        start = await last_event(world, partition)
        await Layouts(world.database).want(product, 4, Cause.OPERATOR, partitions=PARTITIONS)
        assert await world.stock.change_layout(product, version=2, shards=4, cause="operator")
        await forget_events(world, partition, after=start)
    await eventually(lambda: _is_resharded(world, product))
    await drained(world)
    opened = await generations(world, [partition])
    with worker.paused():
        doomed = start_worker(FAILPOINTS="worker.after_reopen=kill")
        await eventually(lambda: doomed.owns(PARTITIONS))
        await empty(world, [partition])
        assert await doomed.ended() == -9
    await all_restored(world, opened)
    await eventually(lambda: is_told(world, product, partition, layout=2))
    await eventually(lambda: _is_mended(world, product))
    await eventually(lambda: _has_arrived(world, product))
    await drained(world)
    opened = await generations(world, places_of(product, 4))
    await empty(world, places_of(product, 4))
    await all_restored(world, opened)
    await sell_out(world, product, left=60)
    await assert_balanced(world, product)


async def test_what_others_gave_a_shard_whose_beginning_is_lost_is_there_again(
    world: World, worker: WorkerProcess
) -> None:
    product = await world.on_sale(1_200, shards=2)
    partition = min(places_of(product, 4) - places_of(product, 2))
    await drained(world)
    with worker.paused():
        start = await last_event(world, partition)
        await Layouts(world.database).want(product, 4, Cause.OPERATOR, partitions=PARTITIONS)
        assert await world.stock.change_layout(product, version=2, shards=4, cause="operator")
        assert (await fields_of(world, partition, product))["available"] == "300"
        await forget_events(world, partition, after=start)
    await eventually(lambda: _is_resharded(world, product))
    await drained(world)
    opened = await generations(world, [partition])
    await empty(world, [partition])
    await all_restored(world, opened)
    await eventually(lambda: _is_mended(world, product))
    await drained(world)
    await sell_out(world, product, left=1_200)
    await assert_balanced(world, product)


async def test_shards_that_a_product_had_before_stand_in_for_none_that_it_is_to_have(
    world: World, worker: WorkerProcess
) -> None:
    """By the ledger's word alone it went from six shards to four, not all of which are among the six."""
    product = await world.on_sale(60)
    await drained(world)
    states = PartitionStates(world.database, partitions=PARTITIONS)
    layout = (
        "UPDATE product_inventory SET layout_version = %s, layout_shards = %s WHERE product_id = %s"
    )
    await write(world.database, layout, 2, 4, product)
    partition = min(places_of(product, 4) - places_of(product, 6))
    assert product in (await states.read(partition)).unloaded
    await write(
        world.database,
        "INSERT INTO layout_change (product_id, version, shards, cause, state)"
        " VALUES (%s, 2, 4, 'operator', 'done')",
        product,
    )
    state = await states.read(partition)
    assert product in state.untold
    assert product not in state.unloaded
    await write(world.database, layout, 1, 6, product)
    await write(world.database, "DELETE FROM layout_change WHERE product_id = %s", product)


async def test_a_shard_that_cannot_be_mended_holds_nobody_up(
    world: World, worker: WorkerProcess
) -> None:
    """As far as this ledger knows the product was loaded again; its shards have never heard of that."""
    product = await world.on_sale(60, shards=1)
    partition = shard_of(world, product, shards=1)
    await drained(world)
    epochs = "UPDATE product_inventory SET epoch = epoch + %s WHERE product_id = %s"
    await write(world.database, epochs, 1, product)
    await write(
        world.database,
        "INSERT INTO outbox (kind, product_id, partition_id, epoch, request_id)"
        " VALUES ('mend', %s, %s, 2, '')",
        product,
        partition,
    )
    sql = "SELECT COUNT(*) FROM outbox WHERE product_id = %s AND attempts > 0"
    await eventually(lambda: _has(world, sql, product, 1))
    assert await is_open(world, partition)
    await write(world.database, epochs, -1, product)
    await sell_out(world, product, left=60)
    await eventually(lambda: world.is_sold(product, 60))
    await eventually(lambda: _is_mended(world, product))


async def test_a_load_that_was_lost_is_repeated_and_nothing_sold_before_the_ledger_knows_of_it(
    world: World, worker: WorkerProcess
) -> None:
    """A shard that is lost before would be given its units once more."""
    product = await world.on_sale(60, shards=1)
    partition = shard_of(world, product, shards=1)
    await drained(world)
    mends = Mends(
        world.stock,
        world.products,
        Buffers(world.database, partitions=PARTITIONS),
        PartitionStates(world.database, partitions=PARTITIONS),
        Outbox(world.database),
        WorkerMetrics(CollectorRegistry()),
    )
    row = OutboxRow(0, product, partition, 1, EventId(0, 0), "", -1, 0, 0, 0)
    with worker.paused():
        await write(world.database, "DELETE FROM shard_stock WHERE product_id = %s", product)
        shard = keys.stock(world.cluster.tags[partition], product)
        await world.cluster.command(partition, "DEL", shard, lane=LaneKind.MOVE)
        with pytest.raises(StockUnavailableError):
            await mends.carry_out(row)
        assert (await fields_of(world, partition, product))["state"] == "loading"
    await drained(world)
    await mends.carry_out(row)
    await sell_out(world, product, left=60)
    await assert_balanced(world, product)


async def test_what_was_set_aside_when_its_shard_is_restored_freezes_its_product(
    world: World, worker: WorkerProcess
) -> None:
    """What the event sold is on sale again, and a retry of the letter would count it twice."""
    product = await world.on_sale(60, shards=1)
    partition = shard_of(world, product, shards=1)
    await drained(world)
    await write(
        world.database,
        "INSERT INTO dead_letter (partition_id, generation, number, product_id, request_id, reason,"
        " fields, shard_followed) VALUES (%s, 1, 1, %s, '', 'malformed', '', 0)",
        partition,
        product,
    )
    before = await generations(world, [partition])
    await empty(world, [partition])
    await all_restored(world, before)
    assert (await fields_of(world, partition, product))["frozen"] == "1"
    row = await world.products.get(product)
    assert "dead letter" in row.frozen_reason
    assert len(await freezes_noted(world, product)) == 1
    await write(world.database, "DELETE FROM dead_letter WHERE product_id = %s", product)


async def freezes_noted(world: World, product: int) -> list[tuple[object, ...]]:
    """The journal's rows of them."""
    sql = "SELECT remark FROM inventory_log WHERE product_id = %s AND kind = 'freeze'"
    return await fetch(world.database, sql, product)


async def _is_mended(world: World, product: int) -> bool:
    sql = "SELECT COUNT(*) FROM outbox WHERE product_id = %s AND kind = 'mend'"
    return await _has(world, sql, product, 0)


async def _is_resharded(world: World, product: int) -> bool:
    sql = "SELECT state FROM layout_change WHERE product_id = %s"
    return await _has(world, sql, product, "done")


async def _has(world: World, sql: str, product: int, value: object) -> bool:
    return await fetch(world.database, sql, product) == [(value,)]


def places_of(product: int, shards: int) -> set[int]:
    return set(Layout(0, shards).all_partitions(product_id=product, partitions=PARTITIONS))


async def is_told(world: World, product: int, partition: int, *, layout: int) -> bool:
    """Whether a shard is there and serves a layout."""
    fields = await fields_of(world, partition, product)
    return (fields.get("layout"), fields.get("serves")) == (str(layout), "1")


async def forget_events(world: World, partition: int, *, after: EventId) -> None:
    """As if the node had been lost before the worker read them."""
    entries = await world.partitions.read(partition, ledger=0, after=after, count=100)
    assert entries
    ids = [str(entry.id) for entry in entries]
    stream = keys.events(world.cluster.tags[partition], 0)
    await world.cluster.command(partition, "XDEL", stream, *ids, lane=LaneKind.MOVE)


async def released_early(orders: Orders) -> list[int]:
    """Orders that nobody knows, and that hold nothing from now on."""
    order_ids = fresh_order_ids(12)
    for order_id in order_ids:
        assert (await orders.release(order_id)).outcome is Outcome.RELEASED
    return order_ids


async def assert_released(orders: Orders, product: int, order_ids: Sequence[int]) -> None:
    for order_id in order_ids:
        late = await orders.reserve(
            order_id, user_id=1, lines=[Line(product, 1)], ttl_s=60, attempt=1
        )
        assert late.outcome is Outcome.RELEASED


async def test_an_order_that_was_released_before_it_came_takes_nothing_of_a_node_set_back_either(
    world: World, worker: WorkerProcess, orders: Orders
) -> None:
    product = await world.on_sale(60, shards=1)
    partition = shard_of(world, product, shards=1)
    before, opened = await dump(world, partition), await generations(world, [partition])
    await sell(world, product, fresh_request_ids(5))
    order_ids = await released_early(orders)
    await drained(world)
    await set_back(world, partition, before)
    await all_restored(world, opened)
    await assert_released(orders, product, order_ids)
    await lose_everything(world)  # with all nodes it is forgotten, which later tests would notice


async def test_an_order_that_was_released_before_it_came_takes_nothing_after_a_loss_either(
    world: World, worker: WorkerProcess, orders: Orders
) -> None:
    """No event tells of it: the other nodes have it."""
    product = await world.on_sale(60)
    order_ids = await released_early(orders)
    await drained(world)
    node = world.cluster.node_of(0)
    lost = [each for each in EVERYWHERE if world.cluster.node_of(each) == node]
    before = await generations(world, lost)
    await empty(world, lost)
    await all_restored(world, before)
    await assert_released(orders, product, order_ids)
    await sell_out(world, product, left=60)
    await lose_everything(world)  # with all nodes it is forgotten, which later tests would notice


@pytest.mark.parametrize("step", ["after_shut", "after_refill", "after_settle", "after_reopen"])
async def test_a_worker_killed_at_any_step_of_a_restoration_leaves_it_to_the_next(
    world: World, busy: Busy, worker: WorkerProcess, start_worker: StartWorker, step: str
) -> None:
    await drained(world)
    before, opened = await remembered(world), await generations(world, EVERYWHERE)
    with worker.paused():
        doomed = start_worker(FAILPOINTS=f"worker.{step}=kill@2")
        await eventually(lambda: doomed.owns(PARTITIONS))
        await empty(world, EVERYWHERE)
        assert await doomed.ended() == -9
    await all_restored(world, opened)
    await assert_remembered(world, before)
    await assert_balanced(world, busy.sold)


async def is_noted(world: World, partition: int) -> bool:
    """Whether the live stock has been told that the ledger has all of the partition's events."""
    head = await world.partitions.head(partition)
    return head.stream(0).applied == head.number


async def test_a_ledger_without_what_it_had_applied_is_told_and_nothing_is_copied_from_it(
    world: World, worker: WorkerProcess
) -> None:
    product = await world.on_sale(60, shards=1)
    partition = shard_of(world, product, shards=1)
    await drained(world)
    tables = ("stream_checkpoint", "shard_stock")
    for table in tables:
        await write(world.database, f"CREATE TABLE backup_{table} AS SELECT * FROM {table}")
    for _ in range(2):  # once the second sale is noted as applied, the first one is known to be
        await sell(world, product, fresh_request_ids(5))
        await eventually(lambda: is_noted(world, partition))
    with worker.paused():
        for table in tables:
            await write(world.database, f"CREATE TABLE newest_{table} AS SELECT * FROM {table}")
            await write(world.database, f"REPLACE INTO {table} SELECT * FROM backup_{table}")
        await empty(world, [partition])
    await eventually(lambda: is_shown(worker, "LEDGER_OLDER"))
    assert not (await world.partitions.head(partition)).is_open
    for table in tables:
        await write(world.database, f"REPLACE INTO {table} SELECT * FROM newest_{table}")
    await eventually(lambda: is_open(world, partition))
    await sell_out(world, product, left=50)


async def test_a_ledger_that_is_older_than_the_live_stock_is_told_and_nothing_is_copied_from_it(
    world: World, worker: WorkerProcess
) -> None:
    product = await world.on_sale(60, shards=1)
    partition = shard_of(world, product, shards=1)
    await sell(world, product, fresh_request_ids(5))
    await drained(world)
    before = await remembered(world, [partition])
    saved = await fetch(world.database, LEASE_AND_CHECKPOINT, partition)
    await write(
        world.database, "UPDATE partition_lease SET opening = 0 WHERE partition_id = %s", partition
    )
    await write(
        world.database,
        "UPDATE stream_checkpoint SET anchor = 'x' WHERE partition_id = %s",
        partition,
    )
    await set_owner(world, partition, "0" * 40)
    await eventually(lambda: worker.said("nothing is copied from it"))
    await eventually(lambda: is_shown(worker, "LEDGER_OLDER"))
    assert not (await world.partitions.head(partition)).is_open
    assert await remembered(world, [partition]) == before
    ((opening, anchor),) = saved
    await write(
        world.database,
        "UPDATE stream_checkpoint SET anchor = %s WHERE partition_id = %s",
        anchor,
        partition,
    )
    await eventually(lambda: is_open(world, partition))
    await eventually(lambda: _is_issued(world, partition, opening))


async def _is_issued(world: World, partition: int, opening: object) -> bool:
    """Whether the ledger knows of a generation by now."""
    ((found, _),) = await fetch(world.database, LEASE_AND_CHECKPOINT, partition)
    return bool(found >= opening)


@dataclass(frozen=True)
class Pair:
    """Two products whose only shards are in different partitions; the first one decides their orders."""

    first: int
    further: int
    coordinator: int
    other: int

    @property
    def lines(self) -> list[Line]:
        return [Line(self.first, 1), Line(self.further, 2)]


async def pair_on_sale(world: World) -> Pair:
    first = await world.on_sale(10, shards=1)
    coordinator = other = shard_of(world, first, shards=1)
    while other == coordinator:
        further = await world.on_sale(10, shards=1)
        other = shard_of(world, further, shards=1)
    return Pair(first, further, coordinator, other)


async def held_order(orders: Orders, pair: Pair) -> int:
    (order_id,) = fresh_order_ids(1)
    answer = await orders.reserve(order_id, user_id=1, lines=pair.lines, ttl_s=600, attempt=1)
    assert answer.outcome is Outcome.HELD
    return order_id


async def lose(world: World, partition: int) -> dict[int, int]:
    before = await generations(world, [partition])
    await empty(world, [partition])
    return before


async def assert_ended(world: World, pair: Pair, *, sold: bool) -> None:
    for product, quantity in ((pair.first, 1), (pair.further, 2)):
        await eventually(lambda product=product: _holds_nothing(world, product))
        seen = await world.stock.read(product)
        assert seen is not None
        assert (seen.sold, seen.available) == ((quantity, 10 - quantity) if sold else (0, 10))
        await assert_balanced(world, product)


@pytest.mark.parametrize("set_back_one", ["line", "coordinator"])
@pytest.mark.parametrize("sold", [True, False], ids=["sold", "released"])
async def test_an_order_ends_alike_at_all_places_though_one_was_set_back(
    world: World, worker: WorkerProcess, orders: Orders, set_back_one: str, sold: bool
) -> None:
    """The others were told, and a coordinator tells nobody twice."""
    pair = await pair_on_sale(world)
    order_id = await held_order(orders, pair)
    await drained(world)
    with worker.paused():
        if sold:
            assert (await orders.confirm(order_id)).outcome is Outcome.CONFIRMED
        else:
            assert (await orders.release(order_id)).outcome is Outcome.RELEASED
        before = await lose(world, pair.other if set_back_one == "line" else pair.coordinator)
    await all_restored(world, before)
    await assert_ended(world, pair, sold=sold)
    expected = Outcome.CONFIRMED if sold else Outcome.RELEASED
    assert (await orders.get(order_id)).outcome is expected


async def test_a_line_whose_order_was_lost_is_given_back(
    world: World, worker: WorkerProcess, orders: Orders
) -> None:
    pair = await pair_on_sale(world)
    await drained(world)
    with worker.paused():
        order_id = await held_order(orders, pair)
        before = await lose(world, pair.coordinator)
    await all_restored(world, before)
    await assert_ended(world, pair, sold=False)
    assert (await orders.get(order_id)).outcome is Outcome.RELEASED


@pytest.mark.parametrize("sold", [True, False], ids=["sold", "released"])
async def test_an_order_is_decided_though_a_line_of_it_was_lost(
    world: World, worker: WorkerProcess, orders: Orders, sold: bool
) -> None:
    """What is sold takes its units once more."""
    pair = await pair_on_sale(world)
    await drained(world)
    with worker.paused():
        order_id = await held_order(orders, pair)
        before = await lose(world, pair.other)
    await all_restored(world, before)
    decide = orders.confirm if sold else orders.release
    answer = await decide(order_id)
    assert answer.outcome is (Outcome.CONFIRMED if sold else Outcome.RELEASED)
    await assert_ended(world, pair, sold=sold)


async def test_an_order_that_was_merely_restored_is_held_until_it_was(
    world: World, worker: WorkerProcess, orders: Orders
) -> None:
    pair = await pair_on_sale(world)
    order_id = await held_order(orders, pair)
    held = (await orders.get(order_id)).order
    await drained(world)
    before = await lose(world, pair.coordinator)
    await all_restored(world, before)

    async def is_as_before() -> bool:
        return (await orders.get(order_id)).order == held

    await eventually(is_as_before)
    assert (await orders.confirm(order_id)).outcome is Outcome.CONFIRMED
    await assert_ended(world, pair, sold=True)
