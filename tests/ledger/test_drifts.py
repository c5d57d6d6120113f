"""Differences between shards and the ledger, from the entries that tell of them to their end."""

import pytest

from ledger.audits import Audits, DriftRow, Side
from ledger.database import Database
from ledger.products import Products
from sharding.events import BEFORE_ALL, Counts, EventId, Kind
from sharding.outcomes import State
from sharding.partitions import Entry
from tests.ledger.conftest import NewProduct, Stream, fetch, write
from tests.ledger.streams import FakeStream, chunk_of, fresh_request_ids
from worker.applier import Applier

UNITS = 1_000


class Shard:
    """One product of one shard, and the stream that tells of it."""

    def __init__(self, product_id: int, events: FakeStream, database: Database) -> None:
        self.product_id = product_id
        self.events = events
        self._database = database

    async def apply(self, applier: Applier, *entries: Entry) -> None:
        """Entries that follow each other, as one batch."""
        number = entries[0].id.number - 1
        start = EventId(self.events.generation, number) if number else BEFORE_ALL
        await applier.apply([chunk_of(self.events.partition, start, entries)])

    def sale(self, units: int = 1) -> Entry:
        return self.events.deduct(self.product_id, [(fresh_request_ids(1)[0], units)])

    def mark(self, damaged: str = "") -> Entry:
        return self.events.mark(self.product_id, damaged=damaged)

    def by_hand(self, **units: int) -> None:
        """Change the live counts without an event."""
        for name, change in units.items():
            self.events.counts[self.product_id][name] += change

    async def rows(self) -> list[tuple[object, ...]]:
        sql = (
            "SELECT state, available, held, sold, loaded, first_number, last_number, changes"
            " FROM shard_drift WHERE product_id = %s ORDER BY id"
        )
        return await fetch(self._database, sql, self.product_id)

    async def open(self) -> DriftRow:
        drifts = await Audits(self._database).open_drifts()
        (drift,) = [each for each in drifts if each.product_id == self.product_id]
        return drift


@pytest.fixture
async def shard(
    applier: Applier, database: Database, new_product: NewProduct, stream: Stream
) -> Shard:
    """Loaded and on sale, with one unit sold."""
    product_id, events = await new_product(UNITS, shards=1), await stream()
    found = Shard(product_id, events, database)
    await found.apply(applier, events.load(product_id, UNITS), found.sale())
    await write(
        database,
        "UPDATE product_inventory SET status = 'open', epoch = 1 WHERE product_id = %s",
        product_id,
    )
    return found


async def test_nothing_is_noted_while_every_shard_is_as_the_ledger_has_it(
    applier: Applier, shard: Shard
) -> None:
    await shard.apply(applier, shard.sale(), shard.mark(), shard.sale())
    await shard.apply(applier, shard.mark())
    assert await shard.rows() == []


async def test_a_difference_is_one_row_until_it_changes_and_ends_when_the_shard_agrees_again(
    applier: Applier, shard: Shard
) -> None:
    shard.by_hand(available=1)
    first = shard.mark()
    await shard.apply(applier, first, shard.sale())
    await shard.apply(applier, shard.sale(), shard.mark())
    (row,) = await shard.rows()
    assert row == ("open", 1, 0, 0, 0, first.id.number, first.id.number + 1, 0)
    shard.by_hand(available=1, sold=2)
    changed = shard.sale()
    await shard.apply(applier, changed)
    (row,) = await shard.rows()
    assert row == ("open", 2, 0, 2, 0, first.id.number, changed.id.number, 1)
    shard.by_hand(available=-2, sold=-2)
    await shard.apply(applier, shard.mark())
    (row,) = await shard.rows()
    assert row[0] == "passed"
    shard.by_hand(held=4)
    await shard.apply(applier, shard.mark())
    assert [state for state, *_ in await shard.rows()] == ["passed", "open"]


async def test_the_first_entry_that_parts_is_named_in_the_middle_of_a_batch(
    applier: Applier, shard: Shard
) -> None:
    before = [shard.sale(), shard.mark(), shard.sale()]
    shard.by_hand(available=-1, sold=1)
    after = [shard.sale(), shard.mark()]
    await shard.apply(applier, *before, *after)
    drift = await shard.open()
    assert drift.first_event == after[0].id
    assert (drift.units, drift.side) == (Counts(-1, 0, 1, 0), Side.LEDGER)


async def test_a_shard_that_agrees_at_the_end_of_a_batch_is_not_noted(
    applier: Applier, shard: Shard
) -> None:
    shard.by_hand(available=1)
    wrong = shard.mark()
    shard.by_hand(available=-1)
    await shard.apply(applier, wrong, shard.mark())
    assert await shard.rows() == []


async def test_a_damaged_count_is_a_difference_even_where_it_stands_for_nothing(
    applier: Applier, shard: Shard
) -> None:
    await shard.apply(applier, shard.mark(damaged="held"))
    drift = await shard.open()
    assert (drift.units, drift.damaged, drift.side) == (Counts(0, 0, 0, 0), "held", Side.LIVE)
    await shard.apply(applier, shard.mark())
    assert [state for state, *_ in await shard.rows()] == ["passed"]


async def test_a_count_below_zero_reaches_the_ledger_as_a_difference(
    applier: Applier, database: Database, shard: Shard
) -> None:
    shard.by_hand(available=-UNITS - 4)
    await shard.apply(applier, shard.mark(damaged="available"))
    assert (await shard.open()).units.available == -UNITS - 4
    letters = await fetch(
        database, "SELECT reason FROM dead_letter WHERE product_id = %s", shard.product_id
    )
    assert letters == []


async def test_the_ledger_follows_a_sale_that_no_event_told_of(
    applier: Applier, database: Database, products: Products, shard: Shard
) -> None:
    shard.by_hand(available=-1, sold=1)
    await shard.apply(applier, shard.mark())
    drift = await shard.open()
    sale = shard.sale()
    repair = shard.events.repair(
        shard.product_id, drift.id, ledger=Counts(-1, 0, 1, 0), actor="ann", reason="seen"
    )
    await shard.apply(applier, sale, repair, shard.sale())
    assert [state for state, *_ in await shard.rows()] == ["repaired"]
    row = await products.get(shard.product_id)
    assert (row.total_stock, row.available_stock, row.sold_count) == (UNITS, UNITS - 4, 4)
    (entry,) = await fetch(
        database,
        "SELECT request_id, type, quantity, partition_id, event_number, remark, actor, available_after"
        " FROM inventory_log WHERE product_id = %s AND kind = 'repair'",
        shard.product_id,
    )
    assert entry == (
        f"repair {drift.id}",
        11,
        -1,
        shard.events.partition,
        repair.id.number,
        "seen",
        "ann",
        UNITS - 3,
    )


async def test_units_that_appear_in_the_ledger_raise_the_total(
    applier: Applier, products: Products, shard: Shard
) -> None:
    shard.by_hand(available=5)
    await shard.apply(applier, shard.mark())
    drift = await shard.open()
    assert drift.side is Side.LIVE
    repair = shard.events.repair(
        shard.product_id,
        drift.id,
        live=Counts(0, 0, 0, 5),
        ledger=Counts(5, 0, 0, 5),
        actor="ann",
        reason="they are there",
    )
    await shard.apply(applier, repair)
    assert [state for state, *_ in await shard.rows()] == ["repaired"]
    row = await products.get(shard.product_id)
    assert (row.total_stock, row.available_stock) == (UNITS + 5, UNITS + 4)


async def test_the_live_stock_follows_and_the_ledger_stays(
    applier: Applier, products: Products, shard: Shard
) -> None:
    shard.by_hand(available=5)
    await shard.apply(applier, shard.mark())
    drift = await shard.open()
    sale = shard.sale()
    repair = shard.events.repair(
        shard.product_id, drift.id, live=Counts(-5, 0, 0, 0), actor="ann", reason="they are not"
    )
    await shard.apply(applier, sale, repair, shard.mark())
    assert [state for state, *_ in await shard.rows()] == ["repaired"]
    row = await products.get(shard.product_id)
    assert (row.total_stock, row.available_stock) == (UNITS, UNITS - 2)


async def test_what_a_repair_leaves_is_a_difference_of_its_own(
    applier: Applier, shard: Shard
) -> None:
    shard.by_hand(available=5)
    await shard.apply(applier, shard.mark())
    drift = await shard.open()
    shard.by_hand(available=2)
    repair = shard.events.repair(
        shard.product_id, drift.id, live=Counts(-5, 0, 0, 0), actor="ann", reason="counted"
    )
    await shard.apply(applier, repair)
    rows = await shard.rows()
    assert [row[:2] for row in rows] == [("repaired", 5), ("open", 2)]


async def test_the_equation_has_every_term_and_both_halves(
    applier: Applier, database: Database, shard: Shard
) -> None:
    product = shard.product_id
    (restock, remove) = fresh_request_ids(2)
    await shard.apply(
        applier,
        shard.events.adjust(Kind.RESTOCK, product, 50, restock),
        shard.events.adjust(Kind.REMOVE, product, 20, remove),
        shard.events.hold(product, [("order 5 5", 7)]),
        shard.events.take(product, 10, peer=40),
        shard.mark(),
    )
    found = await Audits(database).read(product)
    ledger = found.ledger
    assert found.balanced
    assert (found.status, found.shards, found.drifts) == (State.OPEN, 1, ())
    assert (ledger.loaded, ledger.restocked, ledger.removed) == (UNITS, 50, 20)
    assert (ledger.available, ledger.held, ledger.in_transit, ledger.sold) == (1_012, 7, 10, 1)
    assert found.live == ledger
    shard.by_hand(available=3)
    await shard.apply(applier, shard.mark())
    found = await Audits(database).read(product)
    assert not found.balanced
    assert (found.ledger.difference, found.live.difference) == (0, -3)
    assert found.live.available == 1_015


async def test_units_that_left_the_buffer_are_on_their_way_until_they_arrive(
    applier: Applier, database: Database, shard: Shard
) -> None:
    await write(
        database,
        "UPDATE product_inventory SET total_stock = total_stock + 30, buffer_stock = buffer_stock + 10,"
        " released_stock = 20, available_stock = available_stock + 20 WHERE product_id = %s",
        shard.product_id,
    )
    for arrived in (0, 15, 20):
        if arrived:
            before = (await Audits(database).read(shard.product_id)).ledger.in_transit
            units = before - (20 - arrived)
            await shard.apply(applier, shard.events.buffer(shard.product_id, units))
        found = await Audits(database).read(shard.product_id)
        assert (found.balanced, found.ledger.in_transit) == (True, 20 - arrived)
        assert (found.ledger.buffer, found.ledger.available) == (10, UNITS - 1 + arrived)


async def test_a_product_that_is_sold_from_its_row_is_audited_by_it(
    database: Database, new_product: NewProduct
) -> None:
    product_id = await new_product(UNITS)
    await write(
        database,
        "UPDATE product_inventory SET status = 'open', epoch = 1, available_stock = available_stock - 3,"
        " sold_count = 3 WHERE product_id = %s",
        product_id,
    )
    found = await Audits(database).read(product_id)
    assert (found.balanced, found.ledger.available, found.ledger.sold) == (True, UNITS - 3, 3)


async def test_a_restock_that_only_the_shard_knows_of_unbalances_the_ledger(
    applier: Applier, database: Database, shard: Shard
) -> None:
    """As after a dead letter: the shard's row has followed, the product's has not."""
    await write(
        database,
        "UPDATE shard_stock SET available = available + 9, loaded = loaded + 9 WHERE product_id = %s",
        shard.product_id,
    )
    shard.by_hand(available=9, loaded=9)
    await shard.apply(applier, shard.mark())
    found = await Audits(database).read(shard.product_id)
    assert (found.drifts, found.ledger.difference, found.balanced) == ((), -9, False)


async def test_a_closed_product_is_audited_by_its_row_alone(
    applier: Applier, database: Database, products: Products, shard: Shard
) -> None:
    await shard.apply(applier, shard.events.close(shard.product_id))
    await write(
        database,
        "UPDATE product_inventory SET status = 'closed' WHERE product_id = %s",
        shard.product_id,
    )
    found = await Audits(database).read(shard.product_id)
    assert found.balanced
    assert (found.shards, found.ledger.available, found.ledger.sold) == (0, UNITS - 1, 1)
    assert found.live == found.ledger
