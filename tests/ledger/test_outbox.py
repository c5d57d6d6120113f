"""What the ledger finds left to do: second effects, open transfers; and layouts that events tell of."""

import asyncio
from collections.abc import Sequence

import pytest
from prometheus_client import CollectorRegistry

from ledger.database import Database
from ledger.failpoints import Failpoints
from ledger.journal import Journal
from ledger.merge import Chunk
from ledger.metrics import LedgerMetrics
from ledger.outbox import Outbox, OutboxKind, OutboxRow
from ledger.products import Products
from ledger.transfers import UnevenPairs
from sharding.events import EventId, Kind
from sharding.partitions import Entry
from tests.ledger.conftest import PARTITIONS, NewProduct, Stream, fetch, new_metrics, write
from tests.ledger.streams import FakeStream, chunk_of, fresh_request_ids
from worker.applier import Applier

SHARD = (
    "SELECT available, held, sold, loaded, in_transit, state, epoch, layout_version "
    "FROM shard_stock WHERE product_id = %s AND partition_id = %s"
)
OUTBOX = (
    "SELECT partition_id, epoch, request_id, quantity, event_generation, event_number, state, remark "
    "FROM outbox WHERE kind = %s AND product_id = %s ORDER BY id"
)
REMARK = "SELECT remark FROM inventory_log WHERE product_id = %s AND request_id = %s"


@pytest.fixture
def outbox(database: Database) -> Outbox:
    return Outbox(database)


class Sale:
    """A product with two shards, and batches of their streams."""

    def __init__(
        self, applier: Applier, product_id: int, here: FakeStream, there: FakeStream
    ) -> None:
        self.applier = applier
        self.product_id = product_id
        self.here = here
        self.there = there

    def deduct(self, events: FakeStream, *sales: tuple[str, int]) -> Entry:
        return events.deduct(self.product_id, sales)

    async def apply(self, events: FakeStream, entries: Sequence[Entry]) -> Chunk:
        before = entries[0].id
        start = (
            EventId(before.generation, before.number - 1) if before.number > 1 else EventId(0, 0)
        )
        chunk = chunk_of(events.partition, start, entries)
        await self.applier.apply([chunk])
        return chunk


@pytest.fixture
async def sale(applier: Applier, new_product: NewProduct, stream: Stream) -> Sale:
    sale = Sale(applier, await new_product(1_000), await stream(), await stream())
    for events in (sale.here, sale.there):
        await sale.apply(events, [events.load(sale.product_id, 500)])
    return sale


async def undos(database: Database, sale: Sale) -> list[tuple[object, ...]]:
    return await fetch(database, OUTBOX, "undo", sale.product_id)


async def test_a_second_effect_in_another_batch_is_to_be_undone(
    sale: Sale, database: Database, products: Products
) -> None:
    first, second = fresh_request_ids(2)
    await sale.apply(sale.here, [sale.deduct(sale.here, (first, 2), (second, 1))])
    again = sale.deduct(sale.there, (first, 3))
    chunk = await sale.apply(sale.there, [again])
    row = await products.get(sale.product_id)
    assert (row.sold_count, row.available_stock, row.total_stock) == (3, 997, 1_000)
    shard = await fetch(database, SHARD, sale.product_id, sale.there.partition)
    assert shard[0][:3] == (497, 0, 3)
    where = (sale.there.partition, 1, first, 3, *again.id)
    assert await undos(database, sale) == [(*where, "open", "")]
    ((remark,),) = await fetch(database, REMARK, sale.product_id, first)
    assert remark == f"second effect p{sale.there.partition:02d} {again.id} goes back"
    assert await fetch(database, REMARK, sale.product_id, second) == [("",)]
    await sale.applier.apply([chunk])
    assert len(await undos(database, sale)) == 1


async def test_second_and_third_effects_within_one_batch_are_undone_one_by_one(
    sale: Sale, database: Database, products: Products
) -> None:
    (once,) = fresh_request_ids(1)
    entries = [
        sale.deduct(sale.here, (once, 2)),
        sale.deduct(sale.here, (once, 3)),
        sale.deduct(sale.here, (once, 2)),
    ]
    await sale.apply(sale.here, entries)
    last = sale.deduct(sale.there, (once, 5))
    await sale.apply(sale.there, [last])
    assert (await products.get(sale.product_id)).sold_count == 2
    assert [(row[3], EventId(*row[4:6])) for row in await undos(database, sale)] == [
        (3, entries[1].id),
        (2, entries[2].id),
        (5, last.id),
    ]
    ((remark,),) = await fetch(database, REMARK, sale.product_id, once)
    assert str(remark).count("second effect") == 3
    assert sum([row[2] for row in await both_shards(database, sale)]) == 12


async def both_shards(database: Database, sale: Sale) -> list[tuple[int, ...]]:
    rows = [
        await fetch(database, SHARD, sale.product_id, events.partition)
        for events in (sale.here, sale.there)
    ]
    return [row for (row,) in rows]  # type: ignore[misc]


async def test_a_remark_grows_no_longer_than_its_column_and_keeps_how_it_began(
    sale: Sale, database: Database
) -> None:
    (once,) = fresh_request_ids(1)
    await sale.apply(sale.here, [sale.deduct(sale.here, (once, 1))])
    sql = "UPDATE inventory_log SET remark = %s WHERE request_id = %s"
    await write(database, sql, "ü" * 199, once)
    for _ in range(2):
        last = sale.deduct(sale.there, (once, 1))
        await sale.apply(sale.there, [last])
    ((remark,),) = await fetch(database, REMARK, sale.product_id, once)
    assert len(str(remark)) == 200
    assert str(remark).startswith("ü" * 100)
    assert str(remark).endswith(f"{last.id} goes back")


async def test_units_that_came_back_end_their_undo_and_no_other(
    sale: Sale, database: Database, products: Products
) -> None:
    first, second = fresh_request_ids(2)
    await sale.apply(sale.here, [sale.deduct(sale.here, (first, 2), (second, 2))])
    again = [
        sale.deduct(sale.there, (first, 2), (second, 2)),
        sale.deduct(sale.there, (first, 2)),
    ]
    await sale.apply(sale.there, again)
    undo = sale.there.undo(sale.product_id, 2, first, again[0].id)
    chunk = await sale.apply(sale.there, [undo])
    states = [(row[2], row[5], row[6], row[7]) for row in await undos(database, sale)]
    assert states == [
        (first, again[0].id.number, "done", f"returned by event {undo.id}"),
        (second, again[0].id.number, "open", ""),
        (first, again[1].id.number, "open", ""),
    ]
    shard = await fetch(database, SHARD, sale.product_id, sale.there.partition)
    assert shard[0][:4] == (496, 0, 4, 500)
    row = await products.get(sale.product_id)
    assert (row.sold_count, row.available_stock) == (4, 996)
    await sale.applier.apply([chunk])
    assert await fetch(database, SHARD, sale.product_id, sale.there.partition) == shard


async def test_units_that_came_back_unasked_are_told_and_block_nothing(
    sale: Sale, database: Database
) -> None:
    registry = CollectorRegistry()
    sale.applier = Applier(Journal(database, LedgerMetrics(registry), Failpoints({})))
    (once,) = fresh_request_ids(1)
    entry = sale.deduct(sale.here, (once, 2))
    await sale.apply(sale.here, [entry, sale.here.undo(sale.product_id, 2, once, entry.id)])
    assert registry.get_sample_value("inventory_ledger_unasked_undos_total") == 1
    assert registry.get_sample_value("inventory_ledger_drift_total") == 0


async def due_of(outbox: Outbox, kind: OutboxKind, sale: Sale) -> list[OutboxRow]:
    partitions = {sale.here.partition, sale.there.partition}
    rows = await outbox.due(kind, partitions, limit=1_000)
    return [row for row in rows if row.product_id == sale.product_id]


async def test_work_is_found_by_its_partition_and_rests_when_put_off(
    sale: Sale, outbox: Outbox, database: Database
) -> None:
    (once,) = fresh_request_ids(1)
    await sale.apply(sale.here, [sale.deduct(sale.here, (once, 2))])
    again = sale.deduct(sale.there, (once, 4))
    await sale.apply(sale.there, [again])
    (row,) = await due_of(outbox, OutboxKind.UNDO, sale)
    assert (row.partition, row.epoch, row.event_id) == (sale.there.partition, 1, again.id)
    assert (row.request_id, row.quantity, row.attempts) == (once, 4, 0)
    elsewhere = (sale.there.partition + 1) % 48
    assert row not in await outbox.due(OutboxKind.UNDO, {elsewhere}, limit=1_000)
    assert await outbox.due(OutboxKind.UNDO, set(), limit=1_000) == []
    assert await outbox.count_open(OutboxKind.UNDO, set()) == 0
    await outbox.postpone(row, "away", pause_s=60)
    assert await due_of(outbox, OutboxKind.UNDO, sale) == []
    assert await outbox.count_open(OutboxKind.UNDO, {sale.there.partition}) >= 1
    await outbox.postpone(row, "still away", pause_s=-1)
    (later,) = await due_of(outbox, OutboxKind.UNDO, sale)
    assert later.attempts == 2
    await outbox.done(row, "x" * 300)
    await outbox.postpone(row, "too late", pause_s=0)
    assert [(each[6], each[7]) for each in await undos(database, sale)] == [("done", "x" * 200)]
    assert await due_of(outbox, OutboxKind.UNDO, sale) == []


async def transfers(database: Database, sale: Sale) -> list[tuple[object, ...]]:
    sql = (
        "SELECT partition_id, peer, transfer FROM outbox "
        "WHERE kind = 'transfer' AND product_id = %s ORDER BY id"
    )
    return await fetch(database, sql, sale.product_id)


async def test_a_transfer_is_known_from_its_take_to_its_ack(
    sale: Sale, outbox: Outbox, database: Database
) -> None:
    here, product_id = sale.here, sale.product_id
    whole = [here.take(product_id, 1, peer=2), here.ack(product_id, peer=2)]
    await sale.apply(here, whole)
    assert await transfers(database, sale) == []
    takes = [
        here.take(product_id, 5, peer=2),
        here.take(product_id, 6, peer=3),
    ]
    await sale.apply(here, takes)
    assert await transfers(database, sale) == [(here.partition, 2, 6), (here.partition, 3, 6)]
    assert await due_of(outbox, OutboxKind.TRANSFER, sale) == []
    await write(
        database, "UPDATE outbox SET due_time = CURRENT_TIMESTAMP(3) WHERE kind = 'transfer'"
    )
    rows = await due_of(outbox, OutboxKind.TRANSFER, sale)
    assert [(row.peer, row.transfer) for row in rows] == [(2, 6), (3, 6)]
    await sale.apply(here, [here.ack(product_id, peer=2)])
    assert await transfers(database, sale) == [(here.partition, 3, 6)]
    more = [here.ack(product_id, peer=3), here.take(product_id, 1, peer=3)]
    await sale.apply(here, more)
    await outbox.remove(rows[1])
    assert await transfers(database, sale) == [(here.partition, 3, 7)]
    await sale.apply(here, [here.ack(product_id, peer=3)])
    assert await transfers(database, sale) == []
    await outbox.remove(rows[1])


async def test_shards_of_which_one_has_lost_what_moved_are_made_even(
    sale: Sale, outbox: Outbox, database: Database
) -> None:
    """Whichever of the two; and nothing is noted of what is even, or over."""
    here, there, product_id = sale.here, sale.there, sale.product_id
    known = UnevenPairs(database)
    other = min(set(range(PARTITIONS)) - {here.partition, there.partition})
    on_sale = "UPDATE product_inventory SET epoch = %s, status = 'open' WHERE product_id = %s"
    await write(database, on_sale, 1, product_id)
    await sale.apply(here, [here.take(product_id, 5, peer=other), here.ack(product_id, peer=other)])
    await sale.apply(there, [there.put(product_id, 3, peer=here.partition)])
    await known.want_even(other)
    assert await transfers(database, sale) == [(here.partition, other, 5)]
    await known.want_even(here.partition)
    await known.want_even(there.partition)
    expected = [(here.partition, other, 5), (here.partition, there.partition, 0)]
    assert await transfers(database, sale) == expected
    for row in await due_of(outbox, OutboxKind.TRANSFER, sale):
        await outbox.remove(row)
    await sale.apply(here, [here.take(product_id, 3, peer=there.partition)])
    await sale.apply(here, [here.ack(product_id, peer=there.partition)])
    await known.want_even(there.partition)
    assert await transfers(database, sale) == []
    await write(database, on_sale, 2, product_id)
    await known.want_even(here.partition)
    assert await transfers(database, sale) == []


async def test_a_change_of_layout_reaches_product_and_journal_once_and_never_goes_back(
    sale: Sale, database: Database, products: Products
) -> None:
    here, product_id = sale.here, sale.product_id
    before = await products.get(product_id)
    assert before.layout_version == 0
    await sale.apply(here, [here.reshard(product_id, 3, 24, "6 12", "6 -> 24 shards, operator")])
    await sale.apply(
        here, [here.reshard(product_id, 3, 24, "6 12"), here.reshard(product_id, 2, 6, "12")]
    )
    row = await products.get(product_id)
    assert (row.layout_version, row.layout_shards, row.former_shards) == (3, 24, "6 12")
    assert (row.available_stock, row.sold_count) == (1_000, 0)
    sql = (
        "SELECT request_id, kind, type, quantity, partition_id, remark FROM inventory_log "
        "WHERE product_id = %s ORDER BY id"
    )
    assert await fetch(database, sql, product_id) == [
        ("layout 3", "layout", 8, 0, here.partition, "6 -> 24 shards, operator"),
        ("layout 2", "layout", 8, 0, here.partition, "6 shards"),
    ]


async def test_a_shard_joins_a_layout_with_no_units_and_takes_part_from_then_on(
    sale: Sale, database: Database, stream: Stream
) -> None:
    new, product_id = await stream(), sale.product_id
    entries = [
        new.layout(product_id, 4, joins=True),
        new.put(product_id, 30, peer=sale.here.partition),
    ]
    await sale.apply(new, entries)
    shard = await fetch(database, SHARD, product_id, new.partition)
    assert shard == [(30, 0, 0, 0, -30, "open", 1, 4)]
    await sale.apply(new, [new.layout(product_id, 5)])
    shard = await fetch(database, SHARD, product_id, new.partition)
    assert shard == [(30, 0, 0, 0, -30, "open", 1, 5)]


async def test_a_shard_of_an_earlier_epoch_that_joins_starts_anew(
    sale: Sale, database: Database
) -> None:
    here, product_id = sale.here, sale.product_id
    await sale.apply(here, [here.close(product_id)])
    joining = [
        here.layout(product_id, 4, joins=True, epoch=2),
        here.tombstone(product_id, "never", epoch=2),
    ]
    await sale.apply(here, joining)
    shard = await fetch(database, SHARD, product_id, here.partition)
    assert shard == [(0, 0, 0, 0, 0, "open", 2, 4)]


async def test_what_is_to_be_done_is_noted_once_by_many_that_apply_one_batch(
    sale: Sale, database: Database, products: Products
) -> None:
    ids = fresh_request_ids(20)
    await sale.apply(sale.here, [sale.deduct(sale.here, *[(each, 1) for each in ids])])
    start = sale.there.position
    entries = [sale.deduct(sale.there, (each, 1)) for each in ids]
    entries += [sale.there.take(sale.product_id, 1, peer=peer) for peer in range(20, 30)]
    chunk = chunk_of(sale.there.partition, start, entries)
    rivals = [Applier(Journal(database, new_metrics(), Failpoints({}))) for _ in range(6)]
    await asyncio.gather(*(rival.apply([chunk]) for rival in rivals))
    assert (await products.get(sale.product_id)).sold_count == 20
    assert [row[2] for row in await undos(database, sale)] == ids
    assert len(await transfers(database, sale)) == 10


async def test_second_effects_among_many_sales_are_all_found(
    sale: Sale, database: Database, products: Products
) -> None:
    ids = fresh_request_ids(300)
    await sale.apply(sale.here, [sale.deduct(sale.here, *[(each, 1) for each in ids[:200]])])
    fresh = [
        sale.deduct(sale.there, *[(each, 1) for each in ids[start : start + 100]])
        for start in (0, 100, 200)
    ]
    fresh.append(sale.there.adjust(Kind.RESTOCK, sale.product_id, 5, fresh_request_ids(1)[0]))
    await sale.apply(sale.there, fresh)
    row = await products.get(sale.product_id)
    assert (row.sold_count, row.available_stock, row.total_stock) == (300, 705, 1_005)
    assert len(await undos(database, sale)) == 200
