"""The journal as people read it: in order, by product, order and request, with what was there before."""

import random
from collections.abc import Sequence
from typing import NamedTuple

import pytest

from ledger.database import Database
from ledger.holds import Holds
from ledger.products import JournalKind, Products
from ledger.timeline import Timeline, TimelineRow, page_sql
from sharding.events import EventId, Kind
from sharding.orders import OrderState, request_id_of
from sharding.partitions import Entry
from tests.ledger.conftest import NewProduct, Stream, fetch
from tests.ledger.streams import FakeStream, chunk_of, fresh_order_ids, fresh_request_ids
from worker.applier import Applier

STEPS = 150


@pytest.fixture
def timeline(database: Database) -> Timeline:
    return Timeline(database)


class Told(NamedTuple):
    """What a row of the journal must say of the shard."""

    request_id: str
    kind: str
    before: int
    after: int


class Shop:
    """One product's shard: does something at random and remembers what each operation found and left."""

    def __init__(self, events: FakeStream, product_id: int, dice: random.Random) -> None:
        self.events = events
        self.product_id = product_id
        self.dice = dice
        self.told: list[Told] = []
        self._held: dict[str, int] = {}
        self._sold: list[tuple[str, int, EventId]] = []

    @property
    def available(self) -> int:
        return self.events.counts[self.product_id]["available"]

    def step(self) -> Entry:
        steps = (self._serve, self._serve, self._end, self._end, self._adjust, self._move)
        return self.dice.choice(steps)()

    def _serve(self) -> Entry:
        """Sales, holds and refusals in any order."""
        left, requests = self.available, []
        for _ in range(self.dice.randint(1, 6)):
            status, units = self.dice.choice("DDHHI"), self.dice.randint(1, 3)
            (request_id,) = fresh_request_ids(1)
            if status == "H":
                request_id = request_id_of(fresh_order_ids(1)[0], self.product_id)
            if status != "I":
                kind = "reserve" if status == "H" else "deduct"
                self.told.append(Told(request_id, kind, left, left - units))
                left -= units
            if status == "H":
                self._held[request_id] = units
            requests.append((status, request_id, units))
        return self.events.serve(self.product_id, requests)

    def _end(self) -> Entry:
        """Several holds end, each in its own way; one entry carries them all."""
        ended = self.dice.sample(list(self._held), min(len(self._held), self.dice.randint(0, 4)))
        left, ends = self.available, []
        for request_id in ended:
            why = self.dice.choice((OrderState.CONFIRMED, OrderState.RELEASED, OrderState.EXPIRED))
            units = self._held.pop(request_id)
            after = left if why.is_sold else left + units
            kind = "confirm" if why.is_sold else "release"
            self.told.append(Told(request_id, kind, left, after))
            left = after
            ends.append((request_id, units, why))
        return self.events.end_each(self.product_id, ends)

    def _adjust(self) -> Entry:
        kind = self.dice.choice((Kind.RESTOCK, Kind.REMOVE))
        (request_id,) = fresh_request_ids(1)
        units = self.dice.randint(1, 5)
        after = self.available + (units if kind is Kind.RESTOCK else -units)
        self.told.append(Told(request_id, kind.value, self.available, after))
        return self.events.adjust(kind, self.product_id, units, request_id)

    def _move(self) -> Entry:
        """Units come and go without a row of the journal."""
        move = self.dice.choice((self.events.take, self.events.put))
        units = self.dice.randint(1, 5)
        return move(self.product_id, units, peer=40)


async def everything(timeline: Timeline, **named: int) -> list[TimelineRow]:
    """All pages, the oldest first."""
    rows: list[TimelineRow] = []
    while True:
        before = rows[-1].id if rows else 0
        page = await timeline.page(before_id=before, limit=100, **named)
        rows += page
        if len(page) < 100:
            return rows[::-1]


async def test_every_row_begins_and_ends_as_the_shard_did_whatever_happens(
    applier: Applier, timeline: Timeline, new_product: NewProduct, stream: Stream
) -> None:
    seed = random.randrange(1 << 32)
    product_id, dice = await new_product(2_000), random.Random(seed)
    shops = [Shop(await stream(), product_id, dice) for _ in range(2)]
    for shop in shops:
        start = shop.events.position
        entries = [shop.events.load(product_id, 1_000), *(shop.step() for _ in range(STEPS))]
        await applier.apply([chunk_of(shop.events.partition, start, entries)])
    rows = await everything(timeline, product_id=product_id)
    for shop in shops:
        of_shard = [row for row in rows if row.partition == shop.events.partition]
        assert shop.told == [
            Told(row.request_id, row.kind, row.available_before or 0, row.available_after or 0)
            for row in of_shard
        ], f"seed {seed}"
    assert len(rows) == sum(len(shop.told) for shop in shops)


def starts_of(events: FakeStream, entries: Sequence[Entry]) -> EventId:
    first = entries[0].id
    return EventId(first.generation, first.number - 1)


async def apply(applier: Applier, events: FakeStream, entries: Sequence[Entry]) -> None:
    await applier.apply([chunk_of(events.partition, starts_of(events, entries), entries)])


async def test_a_second_effect_leaves_the_other_rows_as_exact_and_its_return_has_one_of_its_own(
    applier: Applier, timeline: Timeline, new_product: NewProduct, stream: Stream
) -> None:
    product_id, here, there = await new_product(200), await stream(), await stream()
    for events in (here, there):
        start = events.position
        load = events.load(product_id, 100)
        await applier.apply([chunk_of(events.partition, start, [load])])
    once, first, last = fresh_request_ids(3)
    await apply(applier, here, [here.deduct(product_id, [(once, 2)])])
    second = there.deduct(product_id, [(first, 1), (once, 5), (last, 3)])
    await apply(applier, there, [second])
    undo = there.undo(product_id, 5, once, second.id)
    await apply(applier, there, [undo])
    rows = {row.request_id: row for row in await everything(timeline, product_id=product_id)}
    found = {each: (rows[each].available_before, rows[each].available_after) for each in rows}
    assert found[first] == (100, 99)
    assert found[last] == (94, 91)
    both = await timeline.page(product_id=product_id, request_id=once, limit=10)
    returned, counted = both
    assert (counted.kind, counted.quantity, counted.available_after) == ("deduct", -2, 98)
    assert counted.remark == f"second effect p{there.partition:02d} {second.id} goes back"
    assert (returned.kind, returned.quantity) == ("rollback", 5)
    assert (returned.partition, returned.event_id) == (there.partition, second.id)
    assert (returned.available_before, returned.available_after) == (91, 96)
    assert returned.remark == f"second effect, returned by event {undo.id}"
    assert (returned.order_id, returned.user_id) == (9, 7)


async def test_several_returns_of_one_request_add_up_in_one_row(
    applier: Applier, timeline: Timeline, new_product: NewProduct, stream: Stream
) -> None:
    product_id, events = await new_product(100), await stream()
    start = events.position
    (once,) = fresh_request_ids(1)
    await applier.apply([chunk_of(events.partition, start, [events.load(product_id, 100)])])
    sales = [events.deduct(product_id, [(once, units)]) for units in (1, 2, 4)]
    await apply(applier, events, sales)
    undos = [events.undo(product_id, units, once, sales[units // 2].id) for units in (2, 4)]
    await apply(applier, events, undos)
    returned, counted = await timeline.page(product_id=product_id, request_id=once, limit=10)
    assert (returned.quantity, returned.available_after) == (6, None)
    assert returned.available_before is None
    assert all(str(undo.id) in returned.remark for undo in undos)
    assert (counted.quantity, counted.remark.count("second effect")) == (-1, 2)


async def test_what_came_by_no_stream_tells_of_the_product(
    database: Database, products: Products, timeline: Timeline, new_product: NewProduct
) -> None:
    product_id = await new_product(100)
    came, went = fresh_request_ids(2)
    (order_id,) = fresh_order_ids(1)
    for kind, name, units in ((JournalKind.RESTOCK, came, 7), (JournalKind.REMOVE, went, 20)):
        await products.adjust_closed(
            kind, product_id, request_id=name, quantity=units, reason="counted", actor="Zoë"
        )
    await Holds(database).note_force_release(
        order_id,
        user_id=8,
        first_product=product_id,
        product_ids=[product_id],
        actor="ann",
        reason="fraud",
    )
    rows = await everything(timeline, product_id=product_id)
    assert [(row.kind, row.available_before, row.available_after) for row in rows] == [
        ("restock", 100, 107),
        ("remove", 107, 87),
        ("force_release", 87, 87),
    ]
    assert [(row.actor, row.remark) for row in rows] == [
        *[("Zoë", "counted")] * 2,
        ("ann", "fraud"),
    ]
    assert {row.partition for row in rows} == {None}


async def test_who_asked_for_a_correction_of_a_product_on_sale_is_told(
    applier: Applier, timeline: Timeline, new_product: NewProduct, stream: Stream
) -> None:
    product_id, events = await new_product(100), await stream()
    start = events.position
    said, unsaid = fresh_request_ids(2)
    entries = [
        events.load(product_id, 100),
        events.adjust(Kind.RESTOCK, product_id, 5, said, actor="Zoë"),
        events.adjust(Kind.REMOVE, product_id, 5, unsaid),
    ]
    await applier.apply([chunk_of(events.partition, start, entries)])
    rows = await everything(timeline, product_id=product_id)
    assert [(row.request_id, row.actor) for row in rows] == [(said, "Zoë"), (unsaid, "")]


async def test_a_layout_knows_no_counts(
    applier: Applier, timeline: Timeline, new_product: NewProduct, stream: Stream
) -> None:
    product_id, events = await new_product(100), await stream()
    start = events.position
    entries = [events.load(product_id, 100), events.reshard(product_id, 3, 24)]
    await applier.apply([chunk_of(events.partition, start, entries)])
    (row,) = await everything(timeline, product_id=product_id)
    assert (row.kind, row.available_before, row.available_after) == ("layout", None, None)


async def test_a_timeline_is_of_a_product_an_order_or_both(
    applier: Applier, timeline: Timeline, new_product: NewProduct, stream: Stream
) -> None:
    one, other, events = await new_product(100), await new_product(100), await stream()
    start = events.position
    order_id, another = fresh_order_ids(2)
    entries = [events.load(one, 100), events.load(other, 100)]
    line = request_id_of(order_id, one)
    for product_id in (one, other):
        entries.append(events.hold(product_id, [(line, 2)]))
        entries.append(events.hold(product_id, [(request_id_of(another, one), 1)]))
        entries.append(events.end(product_id, [(line, 2)], OrderState.CONFIRMED))
    await applier.apply([chunk_of(events.partition, start, entries)])

    async def found(**named: int) -> list[tuple[int, str]]:
        return [(row.product_id, row.kind) for row in await everything(timeline, **named)]

    of_one = [(one, "reserve"), (one, "confirm")]
    of_other = [(other, "reserve"), (other, "confirm")]
    assert await found(order_id=order_id) == of_one + of_other
    assert await found(order_id=order_id, product_id=other) == of_other
    assert await found(product_id=one) == [(one, "reserve"), *of_one]
    rows = await timeline.page(product_id=one, request_id=line, limit=1)
    assert [row.kind for row in rows] == ["confirm"]
    assert await timeline.page(product_id=one, request_id=line, order_id=another, limit=10) == []


@pytest.mark.parametrize(
    ("columns", "reads"),
    [
        (["order_id"], "by_order"),
        (["order_id", "product_id"], "by_order"),
        (["product_id"], "one_effect"),
        (["product_id", "request_id"], "one_effect"),
    ],
)
async def test_a_page_of_a_timeline_reads_whole_rows_only_of_what_it_shows(
    database: Database, columns: list[str], reads: str
) -> None:
    values = [1 for _ in columns]
    plan = await fetch(database, f"EXPLAIN {page_sql(columns)}", *values, 1_000, 10)
    (found,) = [step for step in plan if step[1] == "DERIVED"]
    assert reads in found
    of_index = "Using index" in str(found[-1])
    assert of_index or reads == "by_order"
    assert ("filesort" in str(found[-1])) == (reads == "one_effect")
