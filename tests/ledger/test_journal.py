"""Events into the ledger: all, once, in whatever company."""

import asyncio
import dataclasses
from collections import Counter

import pytest
from prometheus_client import CollectorRegistry

from ledger import literals, raw_events
from ledger.batch import TransferNote, TransferSide
from ledger.checkpoints import Checkpoints
from ledger.database import Database, Transaction
from ledger.dead_letters import DeadLetterRow, DeadLetters
from ledger.errors import CheckpointMovedError, PartitionsDifferError
from ledger.failpoints import Failpoints
from ledger.journal import Journal
from ledger.merge import Chunk, cut, merge
from ledger.metrics import LedgerMetrics
from ledger.products import Products
from ledger.raw_events import RawEvents
from ledger.settings import MysqlUrl
from ledger.statements import with_rows
from sharding.events import EventId, Kind
from sharding.partitions import Entry
from tests.chaos.proxy import MysqlProxy
from tests.ledger.conftest import PARTITIONS, NewProduct, Stream, fetch, new_metrics, write
from tests.ledger.streams import FakeStream, chunk_of, flat, fresh_request_ids, sales_chunk
from tests.waiting import eventually
from worker.applier import Applier
from worker.keeper import HOUSEKEEPING_EVERY_S

SHARD = (
    "SELECT available, held, sold, loaded, in_transit, state, epoch FROM shard_stock "
    "WHERE product_id = %s AND partition_id = %s"
)
JOURNAL_ROWS = "SELECT COUNT(*) FROM inventory_log WHERE product_id = %s"


async def loaded(applier: Applier, stream: FakeStream, product_id: int, units: int = 1_000) -> None:
    start = stream.position
    await applier.apply([chunk_of(stream.partition, start, [stream.load(product_id, units)])])


async def rows_of(database: Database, product_id: int) -> object:
    return (await fetch(database, JOURNAL_ROWS, product_id))[0][0]


async def letters_of(database: Database, stream: FakeStream) -> list[DeadLetterRow]:
    letters = await DeadLetters(database).list(after=0, limit=100_000)
    return [letter for letter in letters if letter.partition == stream.partition]


async def assert_sold_once(
    database: Database, products: Products, events: FakeStream, product_id: int, units: int
) -> None:
    row = await products.get(product_id)
    assert (row.sold_count, await rows_of(database, product_id)) == (units, units)
    shard = await fetch(database, SHARD, product_id, events.partition)
    assert shard[0][2] == units
    assert await letters_of(database, events) == []


async def test_a_batch_is_applied_to_journal_product_shard_and_checkpoint(
    applier: Applier,
    database: Database,
    products: Products,
    checkpoints: Checkpoints,
    new_product: NewProduct,
    stream: Stream,
) -> None:
    product_id, events = await new_product(1_000), await stream()
    start = events.position
    first, second, restock, removal = fresh_request_ids(4)
    entries = [
        events.opened(),
        events.load(product_id, 1_000),
        events.deduct(product_id, [(first, 3), (second, 4)]),
        events.adjust(Kind.RESTOCK, product_id, 50, restock),
        events.adjust(Kind.REMOVE, product_id, 20, removal),
    ]
    await applier.apply([chunk_of(events.partition, start, entries)])
    row = await products.get(product_id)
    assert (row.total_stock, row.available_stock, row.sold_count) == (1_030, 1_023, 7)
    shard = await fetch(database, SHARD, product_id, events.partition)
    assert shard == [(1_023, 0, 7, 1_030, 0, "loading", 1)]
    journal = await fetch(
        database,
        "SELECT request_id, kind, type, quantity, order_id, user_id, event_number, remark "
        "FROM inventory_log WHERE product_id = %s ORDER BY id",
        product_id,
    )
    number = start.number
    assert journal == [
        (first, "deduct", 5, -3, 9, 7, number + 3, ""),
        (second, "deduct", 5, -4, 9, 7, number + 3, ""),
        (restock, "restock", 6, 50, 0, 0, number + 4, "counted again"),
        (removal, "remove", 7, -20, 0, 0, number + 5, "counted again"),
    ]
    checkpoint = (await checkpoints.all())[events.partition]
    assert (checkpoint.id, len(checkpoint.anchor)) == (events.position, 40)


async def test_units_on_their_way_are_signed_whichever_side_is_applied_first(
    applier: Applier, database: Database, new_product: NewProduct, stream: Stream
) -> None:
    product_id, donor, receiver = await new_product(200), await stream(), await stream()
    await loaded(applier, donor, product_id, 100)
    await loaded(applier, receiver, product_id, 100)
    start = receiver.position
    put = receiver.put(product_id, 30, peer=donor.partition)
    await applier.apply([chunk_of(receiver.partition, start, [put])])
    shard = await fetch(database, SHARD, product_id, receiver.partition)
    assert shard[0][:5] == (130, 0, 0, 100, -30)
    start = donor.position
    take = donor.take(product_id, 30, peer=receiver.partition)
    await applier.apply([chunk_of(donor.partition, start, [take])])
    shard = await fetch(database, SHARD, product_id, donor.partition)
    assert shard[0][:5] == (70, 0, 0, 100, 30)


async def test_a_shard_may_give_back_more_than_it_was_loaded_with(
    applier: Applier, products: Products, new_product: NewProduct, stream: Stream
) -> None:
    product_id, donor, receiver = await new_product(200), await stream(), await stream()
    for events in (donor, receiver):
        await loaded(applier, events, product_id, 100)
    for events, entries in (
        (donor, [donor.take(product_id, 100, peer=1), donor.close(product_id)]),
        (receiver, [receiver.put(product_id, 100, peer=1), receiver.close(product_id)]),
    ):
        start = EventId(1, events.number - 2) if events.number > 2 else EventId(0, 0)
        await applier.apply([chunk_of(events.partition, start, entries)])
    assert await products.closed_shards(product_id, epoch=1) == 2
    assert await products.closed_shards(product_id, epoch=2) == 0


async def test_a_new_epoch_starts_the_shard_anew_within_one_batch(
    applier: Applier, database: Database, new_product: NewProduct, stream: Stream
) -> None:
    product_id, events = await new_product(1_000), await stream()
    start = events.position
    ids = fresh_request_ids(2)
    entries = [
        events.load(product_id, 600),
        events.deduct(product_id, [(ids[0], 5)]),
        events.close(product_id),
        events.load(product_id, 400, epoch=2, layout=2),
        events.deduct(product_id, [(ids[1], 1)], epoch=2),
    ]
    await applier.apply([chunk_of(events.partition, start, entries)])
    shard = await fetch(database, SHARD, product_id, events.partition)
    assert shard == [(399, 0, 1, 400, 0, "loading", 2)]


async def test_one_batch_applied_by_many_is_applied_once(
    applier: Applier,
    products: Products,
    database: Database,
    new_product: NewProduct,
    stream: Stream,
) -> None:
    product_id, events = await new_product(1_000), await stream()
    await loaded(applier, events, product_id)
    chunk = sales_chunk(events, [product_id], sales=100, sales_per_event=10)
    rivals = [Applier(Journal(database, new_metrics(), Failpoints({}))) for _ in range(6)]
    await asyncio.gather(*(rival.apply([chunk]) for rival in rivals))
    await assert_sold_once(database, products, events, product_id, 100)


async def test_moves_without_a_journal_row_are_applied_once_by_many_too(
    applier: Applier, database: Database, new_product: NewProduct, stream: Stream
) -> None:
    product_id, events = await new_product(1_000), await stream()
    await loaded(applier, events, product_id)
    rivals = [Applier(Journal(database, new_metrics(), Failpoints({}))) for _ in range(6)]
    for _ in range(20):
        start = events.position
        take = events.take(product_id, 10, peer=1)
        chunk = chunk_of(events.partition, start, [take])
        await asyncio.gather(*(rival.apply([chunk]) for rival in rivals))
    shard = await fetch(database, SHARD, product_id, events.partition)
    assert shard[0][:5] == (800, 0, 0, 1_000, 200)


async def test_workers_that_overlap_apply_every_event_once(
    applier: Applier,
    products: Products,
    database: Database,
    new_product: NewProduct,
    stream: Stream,
) -> None:
    product_id, events = await new_product(1_000), await stream()
    await loaded(applier, events, product_id)
    whole = sales_chunk(events, [product_id], sales=60, sales_per_event=1)

    async def work(step: int) -> None:
        """As a worker does: read its checkpoint, apply what comes after it, until nothing does."""
        mine = Checkpoints(database)
        while True:
            position = (await mine.of({whole.partition}))[whole.partition].id
            rest = [each for each in whole.deliveries if each.entry.id > position][:step]
            if not rest:
                return
            try:
                await applier.apply([Chunk(whole.partition, position, rest)])
            except CheckpointMovedError:
                continue

    await asyncio.gather(work(1), work(3), work(7))
    await assert_sold_once(database, products, events, product_id, 60)


async def test_a_moved_checkpoint_is_named_and_nothing_is_written(
    applier: Applier, database: Database, new_product: NewProduct, stream: Stream
) -> None:
    product_id, here, there = await new_product(1_000), await stream(), await stream()
    for events in (here, there):
        await loaded(applier, events, product_id, 500)
    chunks = [
        sales_chunk(events, [product_id], sales=5, sales_per_event=5) for events in (here, there)
    ]
    await write(
        database,
        "UPDATE stream_checkpoint SET number = number + 100 WHERE partition_id = %s",
        there.partition,
    )
    there.number += 99
    with pytest.raises(CheckpointMovedError) as moved:
        await applier.apply(chunks)
    assert moved.value.partitions == {there.partition}
    assert await rows_of(database, product_id) == 0


async def test_a_commit_whose_reply_was_lost_is_not_done_twice(
    applier: Applier,
    products: Products,
    ledger_url: MysqlUrl,
    database: Database,
    new_product: NewProduct,
    stream: Stream,
) -> None:
    product_id, events = await new_product(1_000), await stream()
    await loaded(applier, events, product_id)
    async with MysqlProxy(ledger_url.host, ledger_url.port) as proxy:
        lossy = Database(dataclasses.replace(ledger_url, port=proxy.port), new_metrics())
        mine = Applier(Journal(lossy, new_metrics(), Failpoints({})))
        for lost in ("cut_after_commit", "cut_before_commit"):
            setattr(proxy, lost, 1)
            chunk = sales_chunk(events, [product_id], sales=10, sales_per_event=5)
            await mine.apply([chunk])
            assert getattr(proxy, lost) == 0
        await lossy.close()
    row = await products.get(product_id)
    assert (row.sold_count, await rows_of(database, product_id)) == (20, 20)


async def test_a_second_effect_of_a_correction_is_set_aside_while_the_shard_follows(
    applier: Applier,
    products: Products,
    database: Database,
    new_product: NewProduct,
    stream: Stream,
) -> None:
    product_id, here, there = await new_product(1_000), await stream(), await stream()
    for events in (here, there):
        await loaded(applier, events, product_id, 500)
    came, went = fresh_request_ids(2)
    for events in (here, there):
        start = events.position
        entries = [
            events.adjust(Kind.RESTOCK, product_id, 7, came),
            events.adjust(Kind.REMOVE, product_id, 5, went),
        ]
        await applier.apply([chunk_of(events.partition, start, entries)])
    row = await products.get(product_id)
    assert (row.total_stock, row.available_stock) == (1_002, 1_002)
    shard = await fetch(database, SHARD, product_id, there.partition)
    assert shard[0][:4] == (502, 0, 0, 502)
    letters = await letters_of(database, there)
    assert [(each.request_id, each.reason) for each in letters] == [
        (came, "duplicate_effect restock of 7 units"),
        (went, "duplicate_effect remove of 5 units"),
    ]


async def test_ids_that_differ_in_case_or_trailing_bytes_are_different(
    applier: Applier, products: Products, new_product: NewProduct, stream: Stream
) -> None:
    product_id, events = await new_product(1_000), await stream()
    await loaded(applier, events, product_id)
    start = events.position
    (base,) = fresh_request_ids(1)
    ids = [base + tail for tail in ("a", "A", "a'", 'a"', "a\\", "a%s", "a_", "a;--")]
    entry = events.deduct(product_id, [(each, 1) for each in ids])
    await applier.apply([chunk_of(events.partition, start, [entry])])
    assert (await products.get(product_id)).sold_count == len(ids)


async def test_rubbish_among_good_events_ends_as_dead_letters(
    applier: Applier,
    products: Products,
    database: Database,
    new_product: NewProduct,
    stream: Stream,
) -> None:
    product_id, events = await new_product(1_000), await stream()
    await loaded(applier, events, product_id)
    start = events.position
    stranger = 4_999_999

    def sale_of(quantity: object) -> Entry:
        good = events.deduct(product_id, [("never", 0)])
        fields = dict(zip(good.fields[::2], good.fields[1::2], strict=True))
        restock = {**fields, b"kind": b"restock", b"request": b"x", b"reason": b""}
        restock[b"quantity"] = str(quantity).encode()
        return good._replace(fields=tuple(part for pair in restock.items() for part in pair))

    rubbish = [
        lambda: events.entry(flat(x="")),
        lambda: sale_of("abc"),
        lambda: sale_of(-1),
        lambda: sale_of(2**40),
        lambda: events.deduct(stranger, [(fresh_request_ids(1)[0], 0 + 1)]),
        lambda: events.entry(flat(v=99, kind="deduct")),
        lambda: events.entry(flat(rubbish=b"\0'\\\xff" * 262_144)),
    ]
    events.counts[stranger] = {"available": 10, "held": 0, "sold": 0, "loaded": 10}
    entries = []
    for position in range(100):
        if position % 15 == 7 and rubbish:
            entries.append(rubbish.pop()())
        (request_id,) = fresh_request_ids(1)
        entries.append(events.deduct(product_id, [(request_id, 2)]))
    assert not rubbish
    await applier.apply([chunk_of(events.partition, start, entries)])
    assert (await products.get(product_id)).sold_count == 200
    letters = await letters_of(database, events)
    reasons = Counter(letter.reason.partition(" ")[0] for letter in letters)
    assert reasons == {"malformed": 6, "unknown_product": 1}
    assert all(len(letter.event) <= 1_000 for letter in letters)
    # Delivered again, as after a restart that knows less: nothing more happens.
    await applier.apply([chunk_of(events.partition, start, entries)])
    assert len(await letters_of(database, events)) == 7


async def test_an_event_that_would_take_a_shard_below_zero_is_isolated(
    applier: Applier,
    products: Products,
    database: Database,
    new_product: NewProduct,
    stream: Stream,
) -> None:
    small, large, events = await new_product(500), await new_product(1_000), await stream()
    for product_id in (small, large):
        await loaded(applier, events, product_id, 500)
    await write(
        database,
        "UPDATE shard_stock SET available = 10, loaded = 10 WHERE product_id = %s",
        small,
    )
    start = events.position
    ids = fresh_request_ids(5)
    entries = [
        events.deduct(large, [(ids[0], 5)]),
        events.deduct(small, [(ids[1], 6)]),
        events.deduct(small, [(ids[2], 6)]),
        events.deduct(small, [(ids[3], 4)]),
        events.deduct(large, [(ids[4], 5)]),
    ]
    await applier.apply([chunk_of(events.partition, start, entries)])
    assert (await products.get(large)).sold_count == 10
    assert (await products.get(small)).sold_count == 10
    (letter,) = await letters_of(database, events)
    assert letter.reason.startswith("below_zero ")
    assert letter.event_id.number == start.number + 3
    shard = await fetch(database, SHARD, small, events.partition)
    assert shard[0][:3] == (0, 0, 10)


@pytest.mark.parametrize("rows_max", [1, 2, 1_000])
@pytest.mark.parametrize("first", ["donor", "receiver"])
@pytest.mark.parametrize("use", ["sold", "removed"])
async def test_units_may_be_used_at_one_shard_before_the_other_tells_where_they_came_from(
    applier: Applier,
    products: Products,
    database: Database,
    new_product: NewProduct,
    stream: Stream,
    use: str,
    first: str,
    rows_max: int,
) -> None:
    product_id, donor, receiver = await new_product(0), await stream(), await stream()
    for events in (donor, receiver):
        await loaded(applier, events, product_id, 0)
    came, went = fresh_request_ids(2)
    starts = donor.position, receiver.position
    told_by_donor = [
        donor.adjust(Kind.RESTOCK, product_id, 5, came),
        donor.take(product_id, 5, peer=receiver.partition),
    ]
    told_by_receiver = [
        receiver.put(product_id, 5, peer=donor.partition),
        receiver.deduct(product_id, [(went, 5)])
        if use == "sold"
        else receiver.adjust(Kind.REMOVE, product_id, 5, went),
    ]
    chunks = [
        chunk_of(donor.partition, starts[0], told_by_donor),
        chunk_of(receiver.partition, starts[1], told_by_receiver),
    ]
    for batch in cut(chunks if first == "donor" else chunks[::-1], rows_max):
        await applier.apply(batch)
    row = await products.get(product_id)
    counts = (row.total_stock, row.available_stock, row.sold_count)
    assert counts == ((5, 0, 5) if use == "sold" else (0, 0, 0))
    assert await rows_of(database, product_id) == 2
    for events in (donor, receiver):
        assert await letters_of(database, events) == []


async def test_ids_that_only_the_ledger_takes_for_one_are_set_aside_and_block_nothing(
    applier: Applier,
    products: Products,
    database: Database,
    new_product: NewProduct,
    stream: Stream,
) -> None:
    product_id, events = await new_product(1_000), await stream()
    await loaded(applier, events, product_id)
    chunk = sales_chunk(events, [product_id], sales=5, sales_per_event=1)
    deliveries = list(chunk.deliveries)
    for position, request_id in ((1, "zz"), (3, "zz ")):
        event = deliveries[position].event
        assert event is not None
        sales = (event.sales[0]._replace(request_id=request_id),)
        deliveries[position] = dataclasses.replace(
            deliveries[position], event=dataclasses.replace(event, sales=sales)
        )
    await applier.apply([chunk._replace(deliveries=deliveries)])
    assert (await products.get(product_id)).sold_count == 4
    (letter,) = await letters_of(database, events)
    assert letter.reason.startswith("duplicate_effect ")
    assert letter.event_id == deliveries[3].entry.id
    shard = await fetch(database, SHARD, product_id, events.partition)
    assert shard[0][:3] == (995, 0, 5)


async def test_a_batch_waits_for_no_other_partitions_checkpoint(
    ledger_url: MysqlUrl, database: Database, checkpoints: Checkpoints
) -> None:
    known = await checkpoints.all()
    held, *others = sorted(known)
    has_lock, may_go = asyncio.Event(), asyncio.Event()

    async def hold(transaction: Transaction) -> None:
        sql = "SELECT 1 FROM stream_checkpoint WHERE partition_id = %s FOR UPDATE"
        await transaction.rows(sql, (held,))
        has_lock.set()
        await may_go.wait()

    impatient = Database(ledger_url, new_metrics(), lock_wait_s=1)
    mine = Applier(Journal(impatient, new_metrics(), Failpoints({})))
    streams = [FakeStream(partition, after=known[partition].id) for partition in others]
    chunks = [chunk_of(each.partition, each.position, [each.opened()]) for each in streams]
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(database.transaction(hold))
        await has_lock.wait()
        try:
            await mine.apply(chunks)
        finally:
            may_go.set()
    await impatient.close()


async def test_a_hundred_bad_events_do_not_hold_up_other_partitions(
    applier: Applier,
    products: Products,
    database: Database,
    new_product: NewProduct,
    stream: Stream,
) -> None:
    product_id, bad, good = await new_product(1_000), await stream(), await stream()
    await loaded(applier, good, product_id)
    start = bad.position
    bad.counts[4_999_998] = {"available": 1_000, "held": 0, "sold": 0, "loaded": 1_000}
    entries = [bad.deduct(4_999_998, [(each, 1)]) for each in fresh_request_ids(100)]
    await applier.apply(
        [
            chunk_of(bad.partition, start, entries),
            sales_chunk(good, [product_id], sales=50, sales_per_event=5),
        ]
    )
    assert (await products.get(product_id)).sold_count == 50
    assert len(await letters_of(database, bad)) == 100


async def test_a_shard_that_differs_is_told_once_until_it_changes(
    database: Database, new_product: NewProduct, stream: Stream
) -> None:
    registry = CollectorRegistry()
    applier = Applier(Journal(database, LedgerMetrics(registry), Failpoints({})))
    product_id, events = await new_product(1_000), await stream()
    await loaded(applier, events, product_id)

    async def drifts_after_a_sale() -> float | None:
        await applier.apply([sales_chunk(events, [product_id], sales=1, sales_per_event=1)])
        return registry.get_sample_value("inventory_ledger_drift_total")

    assert await drifts_after_a_sale() == 0
    events.counts[product_id]["available"] -= 3
    assert [await drifts_after_a_sale() for _ in range(3)] == [1, 1, 1]
    events.counts[product_id]["available"] -= 1
    assert [await drifts_after_a_sale() for _ in range(2)] == [2, 2]
    events.counts[product_id]["available"] += 4
    assert await drifts_after_a_sale() == 2


async def test_a_hot_row_that_somebody_holds_delays_and_does_not_double(
    applier: Applier,
    products: Products,
    ledger_url: MysqlUrl,
    database: Database,
    new_product: NewProduct,
    stream: Stream,
) -> None:
    product_id, events = await new_product(1_000), await stream()
    await loaded(applier, events, product_id)
    registry = CollectorRegistry()
    impatient = Database(ledger_url, LedgerMetrics(registry), lock_wait_s=1)
    mine = Applier(Journal(impatient, new_metrics(), Failpoints({})))
    chunk = sales_chunk(events, [product_id], sales=20, sales_per_event=5)
    has_lock = asyncio.Event()

    async def hold(transaction: object) -> None:
        await transaction.rows(  # type: ignore[attr-defined]
            "SELECT 1 FROM product_inventory WHERE product_id = %s FOR UPDATE", (product_id,)
        )
        has_lock.set()
        await eventually(
            lambda: registry.get_sample_value(
                "inventory_ledger_errors_total", {"kind": "lock_wait"}
            )
        )

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(database.transaction(hold))
        await has_lock.wait()
        tasks.create_task(mine.apply([chunk]))
    assert (await products.get(product_id)).sold_count == 20
    assert await rows_of(database, product_id) == 20
    await impatient.close()


async def test_batches_over_the_same_products_in_any_order_all_count(
    database: Database, products: Products, new_product: NewProduct, stream: Stream
) -> None:
    first, second = await new_product(100_000), await new_product(100_000)

    async def sell(order: list[int]) -> None:
        mine = Applier(Journal(database, new_metrics(), Failpoints({})))
        events = await stream()
        for product_id in order:
            await loaded(mine, events, product_id, 10_000)
        for _ in range(10):
            await mine.apply([sales_chunk(events, order, sales=20, sales_per_event=5)])

    await asyncio.gather(*(sell(order) for order in ([first, second], [second, first]) * 4))
    assert [(await products.get(each)).sold_count for each in (first, second)] == [800, 800]


async def test_thousands_of_products_fit_one_batch(
    applier: Applier, database: Database, stream: Stream
) -> None:
    events = await stream()
    base = 6_000_000_000
    values = ",".join(f"({base + i}, 10, 10)" for i in range(1_200))
    await write(
        database,
        f"INSERT INTO product_inventory (product_id, total_stock, available_stock) VALUES {values}",
    )
    start = events.position
    entries = [events.load(base + i, 10) for i in range(1_200)]
    await applier.apply([chunk_of(events.partition, start, entries)])
    products = [base + i for i in range(1_200)]
    await applier.apply([sales_chunk(events, products, sales=1_200, sales_per_event=1)])
    sql = "SELECT SUM(sold_count) FROM product_inventory WHERE product_id >= %s"
    sold = await fetch(database, sql, base)
    assert sold == [(1_200,)]


async def test_what_is_known_of_transfers_does_not_go_back_when_an_event_comes_late(
    database: Database,
) -> None:
    """As a retried letter does; units that were forgotten would arrive once more."""
    side = TransferSide(3, 7_654_321, 5, is_out=True)
    notes = [
        TransferNote(epoch=2, moved=40, arrived=20),
        TransferNote(epoch=2, moved=10, arrived=30),
        TransferNote(epoch=1, moved=50, arrived=50),
    ]

    async def run(transaction: Transaction) -> None:
        for each in notes:
            rows = [literals.transfer_note_row(side, each)]
            await transaction.bulk(with_rows("transfer_note", rows))

    await database.transaction(run)
    sql = "SELECT epoch, units, arrived FROM shard_transfer WHERE product_id = %s"
    assert await fetch(database, sql, side.product_id) == [(2, 40, 30)]


async def test_raw_entries_are_kept_and_forgotten_by_age(
    applier: Applier, database: Database, new_product: NewProduct, stream: Stream
) -> None:
    product_id, events = await new_product(1_000), await stream()
    await loaded(applier, events, product_id)
    count = "SELECT COUNT(*) FROM raw_event WHERE partition_id = %s"
    before = (await fetch(database, count, events.partition))[0][0]
    assert before
    kept = RawEvents(database)
    assert await kept.prune({events.partition}, older_than_s=3_600) == 0
    await write(
        database,
        "UPDATE raw_event SET create_time = create_time - INTERVAL 2 HOUR WHERE partition_id = %s",
        events.partition,
    )
    assert await kept.prune({events.partition}, older_than_s=3_600) == before


@pytest.mark.parametrize(("rounds_max", "left"), [(raw_events.ROUNDS_MAX, 0), (2, 1)])
async def test_many_old_entries_go_at_once_up_to_a_bound(
    database: Database,
    stream: Stream,
    monkeypatch: pytest.MonkeyPatch,
    rounds_max: int,
    left: int,
) -> None:
    monkeypatch.setattr(raw_events, "PRUNED_AT_ONCE", 10)
    monkeypatch.setattr(raw_events, "ROUNDS_MAX", rounds_max)
    partition = (await stream()).partition
    await write(database, "DELETE FROM raw_event WHERE partition_id = %s", partition)
    values = ",".join(
        f"({partition}, 9, {number}, '', CURRENT_TIMESTAMP(3) - INTERVAL 2 HOUR)"
        for number in range(21)
    )
    columns = "partition_id, generation, number, fields, create_time"
    await write(database, f"INSERT INTO raw_event ({columns}) VALUES {values}")
    assert await RawEvents(database).prune({partition}, older_than_s=3_600) == 21 - left
    count = "SELECT COUNT(*) FROM raw_event WHERE partition_id = %s"
    assert await fetch(database, count, partition) == [(left,)]


def test_the_pieces_of_a_tick_suffice_for_five_thousand_entries_a_second() -> None:
    assert raw_events.PRUNED_AT_ONCE * raw_events.ROUNDS_MAX >= 5_000 * HOUSEKEEPING_EVERY_S


async def test_the_partition_count_is_fixed_for_life(checkpoints: Checkpoints) -> None:
    await checkpoints.prepare(PARTITIONS)
    with pytest.raises(PartitionsDifferError, match="INVENTORY_PARTITIONS=48"):
        await checkpoints.prepare(12)


def test_a_batch_of_nothing_has_no_rows() -> None:
    assert merge([]).rows == 0


async def test_what_is_refused_for_good_is_kept_once_however_often_it_is_told(
    database: Database, applier: Applier, stream: Stream, new_product: NewProduct
) -> None:
    events, product_id = await stream(), await new_product(10)
    start = events.position
    entries = [
        events.load(product_id, 10),
        events.deduct(product_id, [("sold", 1)], refused=[("late", 20), ("twice", 30)]),
        events.deduct(product_id, [], refused=[("twice", 30)]),
        events.tombstone(product_id, "never"),
    ]
    await applier.apply([chunk_of(events.partition, start, entries)])
    sql = (
        "SELECT request_id, kind, quantity, user_id FROM request_tombstone"
        " WHERE product_id = %s ORDER BY request_id"
    )
    assert await fetch(database, sql, product_id) == [
        ("late", "refused", 20, 7),
        ("never", "never", 0, 0),
        ("twice", "refused", 30, 7),
    ]
    assert await rows_of(database, product_id) == 1
