"""Orders in the ledger: holds and their ends, in the journal, the counts and the list of holds."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest
from prometheus_client import CollectorRegistry

from ledger.batch import EffectKey, HoldKey
from ledger.database import Database
from ledger.dead_letters import DeadLetters
from ledger.failpoints import Failpoints
from ledger.holds import HoldRow, Holds
from ledger.journal import Journal
from ledger.literals import hold_end_row
from ledger.merge import merge
from ledger.metrics import LedgerMetrics
from ledger.products import Products
from ledger.statements import UNION, statement, with_rows
from sharding.events import Kind
from sharding.orders import OrderState, request_id_of
from sharding.partitions import Entry
from tests.ledger.conftest import NewProduct, Stream, fetch, new_metrics, write
from tests.ledger.streams import FakeStream, chunk_of, fresh_order_ids, fresh_request_ids
from worker.applier import Applier

JOURNAL = (
    "SELECT request_id, kind, type, quantity, order_id, user_id, remark "
    "FROM inventory_log WHERE product_id = %s ORDER BY id"
)
SHARD = "SELECT available, held, sold FROM shard_stock WHERE product_id = %s AND partition_id = %s"


@dataclass
class Sale:
    """A product with one loaded shard, and what its stream tells."""

    applier: Applier
    database: Database
    product_id: int
    events: FakeStream

    @property
    def here(self) -> int:
        return self.events.partition

    async def apply(self, *tell: Callable[[], Entry]) -> None:
        """All in one batch."""
        start = self.events.position
        entries = [each() for each in tell]
        await self.applier.apply([chunk_of(self.here, start, entries)])

    def line(self, order_id: int, *, word: str = "order") -> str:
        """The id of an order's line; the product is the order's first."""
        return f"{word} {order_id} {self.product_id}"

    def hold(self, order_id: int, units: int, *, word: str = "order") -> Callable[[], Entry]:
        line = self.line(order_id, word=word)
        return lambda: self.events.hold(self.product_id, [(line, units)])

    def end(
        self, order_id: int, units: int, why: OrderState, *, word: str = "order"
    ) -> Callable[[], Entry]:
        line = self.line(order_id, word=word)
        return lambda: self.events.end(self.product_id, [(line, units)], why, [order_id])

    async def counts(self) -> tuple[int, int, int]:
        """Available, held, sold of the product, once the shard has been seen to have the same."""
        row = await Products(self.database).get(self.product_id)
        found = (row.available_stock, row.held_stock, row.sold_count)
        assert await fetch(self.database, SHARD, self.product_id, self.here) == [found]
        return found

    async def holds(self) -> list[tuple[int, int]]:
        """Order and units of each hold."""
        found = await Holds(self.database).page(product_id=self.product_id)
        return [(hold.order_id, hold.quantity) for hold in found]


NewSale = Callable[[], Awaitable[Sale]]


@pytest.fixture
def new_sale(
    applier: Applier, database: Database, new_product: NewProduct, stream: Stream
) -> NewSale:
    """`await new_sale()`: a product of 100 units on sale in one shard."""

    async def create() -> Sale:
        sale = Sale(applier, database, await new_product(100), await stream())
        await sale.apply(lambda: sale.events.load(sale.product_id, 100))
        return sale

    return create


async def test_a_hold_is_neither_available_nor_sold_until_it_ends(new_sale: NewSale) -> None:
    sale = await new_sale()
    paid, given_back = fresh_order_ids(2)
    await sale.apply(sale.hold(paid, 3), sale.hold(given_back, 4))
    assert await sale.counts() == (93, 7, 0)
    assert await sale.holds() == [(paid, 3), (given_back, 4)]
    await sale.apply(sale.end(paid, 3, OrderState.CONFIRMED))
    assert await sale.counts() == (93, 4, 3)
    await sale.apply(sale.end(given_back, 4, OrderState.RELEASED))
    assert await sale.counts() == (97, 0, 3)
    assert await sale.holds() == []
    assert await fetch(sale.database, JOURNAL, sale.product_id) == [
        (sale.line(paid), "reserve", 1, -3, paid, 7, ""),
        (sale.line(given_back), "reserve", 1, -4, given_back, 7, ""),
        (sale.line(paid), "confirm", 2, -3, paid, 7, ""),
        (sale.line(given_back), "release", 3, 4, given_back, 7, "released"),
    ]


async def test_a_batch_may_begin_hold_again_and_end_in_any_number(new_sale: NewSale) -> None:
    sale = await new_sale()
    before, short, kept = fresh_order_ids(3)
    await sale.apply(sale.hold(before, 1))
    await sale.apply(
        sale.hold(short, 2),
        sale.end(short, 2, OrderState.REFUSED),
        sale.hold(kept, 5),
        sale.end(before, 1, OrderState.EXPIRED),
        sale.hold(before, 1, word="retake"),
        sale.end(before, 1, OrderState.RETAKEN, word="retake"),
    )
    assert await sale.counts() == (94, 5, 1)
    assert await sale.holds() == [(kept, 5)]
    rows = await fetch(sale.database, JOURNAL, sale.product_id)
    assert [(row[0], row[1], row[-1]) for row in rows] == [
        (sale.line(before), "reserve", ""),
        (sale.line(short), "reserve", ""),
        (sale.line(short), "release", "refused"),
        (sale.line(kept), "reserve", ""),
        (sale.line(before), "release", "expired"),
        (sale.line(before, word="retake"), "reserve", ""),
        (sale.line(before, word="retake"), "confirm", "retaken"),
    ]


async def test_a_refund_stands_in_the_journal_once_and_moves_no_units(new_sale: NewSale) -> None:
    sale = await new_sale()
    (late,) = fresh_order_ids(1)
    await sale.apply(sale.hold(late, 3), sale.end(late, 3, OrderState.EXPIRED))
    for _ in range(2):
        await sale.apply(
            lambda: sale.events.end(sale.product_id, (), OrderState.REFUND_REQUIRED, [late])
        )
    assert await sale.counts() == (100, 0, 0)
    rows = await fetch(sale.database, JOURNAL, sale.product_id)
    assert rows[2:] == [(sale.line(late), "refund", 9, 0, late, 7, "")]


async def test_holds_applied_by_many_workers_are_applied_once(new_sale: NewSale) -> None:
    sale = await new_sale()
    start, orders = sale.events.position, fresh_order_ids(60)
    entries = [sale.hold(order_id, 1)() for order_id in orders]
    entries += [sale.end(order_id, 1, OrderState.CONFIRMED)() for order_id in orders[:40]]
    chunk = chunk_of(sale.here, start, entries)
    rivals = [Applier(Journal(sale.database, new_metrics(), Failpoints({}))) for _ in range(6)]
    await asyncio.gather(*(rival.apply([chunk]) for rival in rivals))
    assert await sale.counts() == (40, 20, 40)
    assert await sale.holds() == [(order_id, 1) for order_id in orders[40:]]


async def test_workers_that_hold_and_end_at_the_same_time_wait_for_each_other_at_most(
    database: Database, new_product: NewProduct, stream: Stream
) -> None:
    product_id, registry = await new_product(6_000), CollectorRegistry()
    busy = Database(database._url, LedgerMetrics(registry), connections=8)

    async def work(events: FakeStream) -> None:
        sale = Sale(Applier(Journal(busy, new_metrics(), Failpoints({}))), busy, product_id, events)
        await sale.apply(lambda: events.load(product_id, 1_000))
        before: list[tuple[str, int]] = []
        for _ in range(10):
            lines = [(f"order {order_id} 1", 1) for order_id in fresh_order_ids(50)]
            ended = before
            await sale.apply(
                lambda lines=lines: events.hold(product_id, lines),  # type: ignore[misc]
                lambda ended=ended: events.end(product_id, ended, OrderState.CONFIRMED),  # type: ignore[misc]
            )
            before = lines

    await asyncio.gather(*[work(await stream()) for _ in range(6)])
    await busy.close()
    row = await Products(database).get(product_id)
    assert (row.available_stock, row.held_stock, row.sold_count) == (3_000, 300, 2_700)
    assert len(await Holds(database).page(product_id=product_id, limit=1_000)) == 300
    assert not registry.get_sample_value("inventory_ledger_errors_total", {"kind": "deadlock"})


async def test_a_second_hold_of_an_order_is_set_aside_while_its_shard_follows(
    new_sale: NewSale, stream: Stream
) -> None:
    sale, there = await new_sale(), await stream()
    (order_id,) = fresh_order_ids(1)
    start = there.position
    load = there.load(sale.product_id, 0)
    await sale.applier.apply([chunk_of(there.partition, start, [load])])
    there.counts[sale.product_id] = {"available": 9, "held": 0, "sold": 0, "loaded": 9}
    await write(
        sale.database,
        "UPDATE shard_stock SET available = 9, loaded = 9 "
        "WHERE product_id = %s AND partition_id = %s",
        sale.product_id,
        there.partition,
    )
    await sale.apply(sale.hold(order_id, 2))
    line = [(sale.line(order_id), 2)]
    start = there.position
    second = there.hold(sale.product_id, line)
    await sale.applier.apply([chunk_of(there.partition, start, [second])])
    assert await sale.counts() == (98, 2, 0)
    assert await fetch(sale.database, SHARD, sale.product_id, there.partition) == [(7, 2, 0)]
    assert len(await sale.holds()) == 2
    await sale.apply(sale.end(order_id, 2, OrderState.EXPIRED))
    start = there.position
    second_end = there.end(sale.product_id, line, OrderState.EXPIRED)
    await sale.applier.apply([chunk_of(there.partition, start, [second_end])])
    assert await sale.counts() == (100, 0, 0)
    assert await fetch(sale.database, SHARD, sale.product_id, there.partition) == [(9, 0, 0)]
    assert await sale.holds() == []
    letters = await DeadLetters(sale.database).list(after=0, limit=100_000)
    assert [each.reason for each in letters if each.product_id == sale.product_id] == [
        "duplicate_effect reserve of 2 units",
        "duplicate_effect release of 2 units",
    ]


@pytest.mark.parametrize(
    ("first", "second", "counts"),
    [
        (OrderState.CONFIRMED, OrderState.RELEASED, (96, 0, 4)),
        (OrderState.EXPIRED, OrderState.CONFIRMED, (100, 0, 0)),
    ],
)
@pytest.mark.parametrize("batches", [1, 2, 4])
async def test_an_order_that_is_held_anew_after_its_record_and_ends_otherwise_counts_once(
    new_sale: NewSale,
    first: OrderState,
    second: OrderState,
    counts: tuple[int, int, int],
    batches: int,
) -> None:
    sale = await new_sale()
    (order_id,) = fresh_order_ids(1)
    told = [
        sale.hold(order_id, 4),
        sale.end(order_id, 4, first),
        sale.hold(order_id, 4),
        sale.end(order_id, 4, second),
    ]
    size = len(told) // batches
    for start in range(0, len(told), size):
        await sale.apply(*told[start : start + size])
    row = await Products(sale.database).get(sale.product_id)
    assert (row.available_stock, row.held_stock, row.sold_count) == counts
    assert await fetch(sale.database, SHARD, sale.product_id, sale.here) == [(96, 0, 4)]
    assert await sale.holds() == []
    letters = await DeadLetters(sale.database).list(after=0, limit=100_000)
    assert [each.reason for each in letters if each.product_id == sale.product_id] == [
        "duplicate_effect reserve of 4 units",
        f"duplicate_effect {'confirm' if second.is_sold else 'release'} of 4 units",
    ]


async def test_the_journal_is_asked_for_both_ends_of_a_hold(
    new_sale: NewSale, journal: Journal
) -> None:
    sale = await new_sale()
    sold, given_back, other = fresh_order_ids(3)
    await sale.apply(sale.hold(sold, 1), sale.hold(given_back, 1), sale.hold(other, 6))
    await sale.apply(
        sale.end(sold, 1, OrderState.CONFIRMED), sale.end(given_back, 1, OrderState.EXPIRED)
    )
    start = sale.events.position
    entries = [
        sale.end(order_id, 1, why)()
        for order_id in (sold, given_back, other)
        for why in (OrderState.RELEASED, OrderState.RETAKEN)
    ]
    assert await journal.existing(merge([chunk_of(sale.here, start, entries)])) == {
        EffectKey(sale.product_id, sale.line(sold), "confirm"),
        EffectKey(sale.product_id, sale.line(given_back), "release"),
    }


async def test_a_thousand_holds_of_a_batch_are_written_and_ended(new_sale: NewSale) -> None:
    sale = await new_sale()
    (request_id,) = fresh_request_ids(1)
    await sale.apply(lambda: sale.events.adjust(Kind.RESTOCK, sale.product_id, 2_000, request_id))
    lines = [(f"order {order_id} 1", 1) for order_id in fresh_order_ids(900)]
    await sale.apply(lambda: sale.events.hold(sale.product_id, lines))
    assert len(await Holds(sale.database).page(product_id=sale.product_id, limit=5_000)) == 900
    await sale.apply(lambda: sale.events.end(sale.product_id, lines, OrderState.EXPIRED))
    assert await sale.holds() == []
    assert (await sale.counts())[1:] == (0, 0)


async def test_pages_of_holds_are_by_age_and_of_whom_they_were_asked_for(
    database: Database, new_product: NewProduct
) -> None:
    one, other = await new_product(100), await new_product(100)
    user, stranger = fresh_order_ids(2)
    rows = [(one, user), (other, user), (one, stranger), (one, user)]
    for position, (product_id, user_id) in enumerate(rows):
        await write(
            database,
            "INSERT INTO hold (product_id, partition_id, request_id, order_id, user_id, quantity,"
            " create_time) VALUES (%s, 3, %s, %s, %s, 4, NOW(3) - INTERVAL %s SECOND)",
            product_id,
            f"order {position + 1} {one}",
            position + 1,
            user_id,
            3_600 - position,
        )
    holds = Holds(database)

    def orders(found: object) -> list[int]:
        return [hold.order_id for hold in found]  # type: ignore[attr-defined]

    assert orders(await holds.page(product_id=one)) == [1, 3, 4]
    assert orders(await holds.page(user_id=user)) == [1, 2, 4]
    assert orders(await holds.page(product_id=one, user_id=user)) == [1, 4]
    first = await holds.page(product_id=one, limit=2)
    assert orders(first) == [1, 3]
    assert orders(await holds.page(product_id=one, after_id=first[-1].id)) == [4]
    everything = await holds.page(after_id=first[0].id - 1, limit=1_000)
    assert set(orders(everything)) >= {1, 2, 3, 4}
    hold = first[0]
    assert hold == HoldRow(hold.id, one, 3, 1, user, 4, hold.created_ms, hold.age_ms)
    assert 3_600_000 <= hold.age_ms < 3_660_000


@pytest.mark.parametrize("filters", [{"product_id": 1}, {"user_id": 1}, {}])
async def test_a_page_of_holds_reads_its_index_and_sorts_nothing(
    database: Database, filters: dict[str, int]
) -> None:
    names = {"product_id": "hold_page_product", "user_id": "hold_page_user"}
    sql = statement(names[next(iter(filters))] if filters else "hold_page")
    plan = await fetch(database, f"EXPLAIN {sql}", 0, *filters.values(), 10)
    assert "filesort" not in str(plan)


async def test_ended_holds_are_found_by_their_whole_key(database: Database) -> None:
    keys = [HoldKey(1, 2, f"order {number} 1") for number in range(3, 6)]
    sql = with_rows("hold_end", map(hold_end_row, keys), UNION).decode()
    plan = await fetch(database, f"EXPLAIN {sql}")
    key_bytes = str(8 + 2 + 64 + 2)
    assert any("once" in row and key_bytes in row for row in plan), plan


async def test_who_had_an_order_released_stands_in_the_journal_of_each_product_once(
    database: Database, new_product: NewProduct
) -> None:
    products = [await new_product(10), await new_product(10)]
    (order_id,) = fresh_order_ids(1)
    for reason in ("fraud" * 40, "again"):
        await Holds(database).note_force_release(
            order_id,
            user_id=8,
            first_product=min(products),
            product_ids=products[::-1],
            actor="ann",
            reason=reason,
        )
    request_id = request_id_of(order_id, min(products))
    sql = "SELECT actor, available_after FROM inventory_log WHERE product_id = %s"
    for product_id in products:
        assert await fetch(database, JOURNAL, product_id) == [
            (request_id, "force_release", 10, 0, order_id, 8, "fraud" * 40)
        ]
        assert await fetch(database, sql, product_id) == [("ann", 10)]
