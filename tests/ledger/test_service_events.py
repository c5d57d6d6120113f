"""What callers are told of: in the order of the commits, once, and for a while."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from ledger import events_feed
from ledger.checkpoints import Checkpoints
from ledger.database import Database, Transaction
from ledger.events_feed import EventsFeed, ServiceEvent
from ledger.failpoints import Failpoints
from ledger.journal import Journal
from ledger.metrics import LedgerMetrics
from ledger.migrate import migrate
from ledger.products import JournalKind, Products, ProductSettings
from ledger.service_events import Notice, ServiceEventKind, publish, stock_notices
from ledger.settings import MysqlUrl
from sharding.events import Kind
from sharding.orders import OrderState
from sharding.partitions import Entry
from tests.ledger.conftest import create_database, fetch, new_metrics, write
from tests.ledger.streams import FakeStream, chunk_of, fresh_request_ids
from worker.applier import Applier

PRODUCT, OTHER = 1, 2
LOW = 10
SOLD_OUT, BACK = ServiceEventKind.SOLD_OUT, ServiceEventKind.BACK_IN_STOCK
LOW_STOCK = ServiceEventKind.LOW_STOCK


@pytest.fixture
async def database(server_url: MysqlUrl) -> AsyncIterator[Database]:
    """A ledger in which nothing happened yet."""
    opened = Database(await create_database(server_url), new_metrics(), connections=20)
    await migrate(opened)
    await Checkpoints(opened).prepare(48)
    for product_id in (PRODUCT, OTHER):
        settings = ProductSettings(product_id, "", 100, 0, 0, 0, LOW)
        await Products(opened).put(settings)
    yield opened
    await opened.close()


@pytest.fixture
async def feed(database: Database) -> EventsFeed:
    return EventsFeed(database)


class Shop:
    """Both products in one shard each, and what their stream tells."""

    def __init__(self, database: Database, partition: int = 0) -> None:
        self.applier = Applier(Journal(database, new_metrics(), Failpoints({})))
        self.events = FakeStream(partition)

    async def apply(self, *tell: Callable[[FakeStream], Entry]) -> None:
        start = self.events.position
        entries = [each(self.events) for each in tell]
        await self.applier.apply([chunk_of(self.events.partition, start, entries)])

    async def open(self) -> None:
        await self.apply(lambda s: s.load(PRODUCT, 50), lambda s: s.load(OTHER, 50))


def sell(product_id: int, units: int) -> Callable[[FakeStream], Entry]:
    (request_id,) = fresh_request_ids(1)
    return lambda stream: stream.deduct(product_id, [(request_id, units)])


def restock(product_id: int, units: int) -> Callable[[FakeStream], Entry]:
    (request_id,) = fresh_request_ids(1)
    return lambda stream: stream.adjust(Kind.RESTOCK, product_id, units, request_id)


@pytest.fixture
async def shop(database: Database) -> Shop:
    opened = Shop(database)
    await opened.open()
    await write(database, "UPDATE product_inventory SET available_stock = 50, total_stock = 50")
    return opened


def told(events: Sequence[ServiceEvent]) -> list[tuple[ServiceEventKind, int, int]]:
    return [(event.kind, event.product_id, event.available) for event in events]


async def test_a_product_is_told_to_be_low_sold_out_and_back_when_it_crosses(
    shop: Shop, feed: EventsFeed
) -> None:
    assert (await feed.last(), await feed.oldest(), await feed.after(0, limit=10)) == (0, 0, [])
    await shop.apply(sell(PRODUCT, 40))
    assert await feed.last() == 0
    await shop.apply(sell(PRODUCT, 1))
    await shop.apply(sell(PRODUCT, 9))
    await shop.apply(sell(OTHER, 50))
    await shop.apply(restock(PRODUCT, 5), restock(PRODUCT, 5))
    await shop.apply(sell(PRODUCT, 10), restock(PRODUCT, 1))
    events = await feed.after(0, limit=100)
    assert told(events) == [
        (LOW_STOCK, PRODUCT, 9),
        (SOLD_OUT, PRODUCT, 0),
        (LOW_STOCK, OTHER, 0),
        (SOLD_OUT, OTHER, 0),
        (BACK, PRODUCT, 10),
        (LOW_STOCK, PRODUCT, 1),
    ]
    assert [event.id for event in events] == [1, 2, 3, 4, 5, 6]
    assert await feed.last() == 6
    assert all(event.at_ms > 1_700_000_000_000 for event in events)


async def test_held_units_are_not_available_and_orders_are_told_by_their_coordinator(
    shop: Shop, feed: EventsFeed
) -> None:
    await shop.apply(lambda s: s.hold(PRODUCT, [("order 5 5", 45), ("order 6 6", 5)]))
    await shop.apply(
        lambda s: s.end(PRODUCT, [("order 5 5", 45)], OrderState.EXPIRED, [5]),
        lambda s: s.end(PRODUCT, [("order 6 6", 5)], OrderState.CONFIRMED, [6]),
    )
    await shop.apply(lambda s: s.end(PRODUCT, (), OrderState.REFUND_REQUIRED, [5]))
    events = await feed.after(0, limit=100)
    assert told(events) == [
        (LOW_STOCK, PRODUCT, 0),
        (SOLD_OUT, PRODUCT, 0),
        (ServiceEventKind.ORDER_EXPIRED, PRODUCT, 0),
        (BACK, PRODUCT, 45),
        (ServiceEventKind.REFUND_REQUIRED, PRODUCT, 0),
    ]
    assert [(event.order_id, event.user_id) for event in events] == [
        *[(0, 0)] * 2,
        (5, 7),
        (0, 0),
        (5, 7),
    ]


async def test_corrections_of_a_closed_product_are_told_once(
    database: Database, feed: EventsFeed
) -> None:
    products = Products(database)
    for kind, quantity, request_id in (
        (JournalKind.REMOVE, 100, "out"),
        (JournalKind.REMOVE, 100, "out"),
        (JournalKind.RESTOCK, 20, "in"),
        (JournalKind.RESTOCK, 20, "in"),
        (JournalKind.RESTOCK, 20, "more"),
    ):
        await products.adjust_closed(
            kind, PRODUCT, request_id=request_id, quantity=quantity, reason=""
        )
    expected = [(LOW_STOCK, PRODUCT, 0), (SOLD_OUT, PRODUCT, 0), (BACK, PRODUCT, 20)]
    assert told(await feed.after(0, limit=10)) == expected


async def test_a_reader_gets_what_it_asked_for_from_its_cursor_on(
    shop: Shop, feed: EventsFeed
) -> None:
    await shop.apply(sell(PRODUCT, 50))
    await shop.apply(sell(OTHER, 50))
    ids = [event.id for event in await feed.after(0, limit=10)]
    assert [event.id for event in await feed.after(0, limit=3)] == ids[:3]
    assert [event.id for event in await feed.after(ids[2], limit=10)] == ids[3:]
    assert await feed.after(ids[-1], limit=10) == []
    only = await feed.after(0, kinds=[SOLD_OUT], limit=10)
    assert told(only) == [(SOLD_OUT, PRODUCT, 0), (SOLD_OUT, OTHER, 0)]
    only = await feed.after(0, kinds={SOLD_OUT, BACK}, product_ids={OTHER, 77}, limit=10)
    assert told(only) == [(SOLD_OUT, OTHER, 0)]


async def test_a_reader_looks_no_further_than_it_asked_to(
    database: Database, feed: EventsFeed
) -> None:
    async def run(transaction: Transaction) -> None:
        await publish(transaction, [Notice(BACK, PRODUCT)] * 6 + [Notice(SOLD_OUT, PRODUCT)])

    await database.transaction(run)
    for kinds in ((), (BACK, SOLD_OUT)):
        found = await feed.after(2, until=5, kinds=kinds, limit=10)
        assert [event.id for event in found] == [3, 4, 5]
        assert len(await feed.after(2, until=5, kinds=kinds, limit=2)) == 2
    assert await feed.after(2, until=6, kinds=[SOLD_OUT], limit=10) == []
    assert len(await feed.after(6, until=7, kinds=[SOLD_OUT], product_ids=[PRODUCT], limit=10)) == 1


async def test_a_look_for_rare_events_reads_a_range_of_ids(database: Database) -> None:
    sql = events_feed._after(1, 1)
    (plan,) = await fetch(database, f"EXPLAIN {sql}", 5, 9, SOLD_OUT.value, PRODUCT, 10)
    assert "PRIMARY" in plan
    assert "filesort" not in str(plan)


async def test_ids_appear_in_the_order_in_which_they_were_given_out(
    database: Database, feed: EventsFeed
) -> None:
    notice = Notice(SOLD_OUT, PRODUCT)

    async def tell(count: int) -> None:
        async def run(transaction: Transaction) -> None:
            await publish(transaction, [notice] * count)
            await asyncio.sleep(0.01)

        await database.transaction(run)

    writers = asyncio.gather(*(tell(1 + position % 3) for position in range(12)))
    seen: list[int] = []
    while not writers.done():
        last = await feed.last()
        seen += [event.id for event in await feed.after(seen[-1] if seen else 0, limit=100)]
        assert (seen[-1] if seen else 0) >= last
    await writers
    seen += [event.id for event in await feed.after(seen[-1] if seen else 0, limit=100)]
    assert seen == list(range(1, 25))


async def test_batches_that_tell_of_the_same_products_all_count_without_a_deadlock(
    shop: Shop, database: Database, feed: EventsFeed
) -> None:
    registry = CollectorRegistry()
    busy = Database(database._url, LedgerMetrics(registry), connections=20)
    others = [Shop(busy, partition) for partition in range(1, 7)]
    for other in others:
        await other.open()

    async def go_to_and_fro(mine: Shop, order: tuple[int, int]) -> None:
        for _ in range(10):
            for product_id in order:
                await mine.apply(sell(product_id, 50), restock(order[0], 1), sell(order[0], 1))
                await mine.apply(restock(product_id, 50), restock(order[1], 1), sell(order[1], 1))

    orders = ((PRODUCT, OTHER), (OTHER, PRODUCT))
    await asyncio.gather(
        *(go_to_and_fro(each, orders[position % 2]) for position, each in enumerate(others))
    )
    await busy.close()
    assert not registry.get_sample_value("inventory_ledger_errors_total", {"kind": "deadlock"})
    for product_id in (PRODUCT, OTHER):
        assert (await Products(database).get(product_id)).available_stock == 50
        found = await feed.after(0, product_ids=[product_id], kinds=[SOLD_OUT, BACK], limit=1_000)
        assert [event.kind for event in found] == [SOLD_OUT, BACK] * (len(found) // 2)
        assert found


async def test_old_events_are_forgotten_in_bounded_pieces_and_readers_go_on(
    database: Database, feed: EventsFeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events_feed, "PRUNED_AT_ONCE", 10)
    monkeypatch.setattr(events_feed, "ROUNDS_MAX", 2)

    async def run(transaction: Transaction) -> None:
        old = [Notice(BACK, PRODUCT, at_ms=1_700_000_000_000 + each) for each in range(25)]
        await publish(transaction, [*old, Notice(SOLD_OUT, PRODUCT)])

    await database.transaction(run)
    assert await feed.prune(older_than_s=3_600) == 20
    assert [event.id for event in await feed.after(3, limit=100)] == list(range(21, 27))
    assert await feed.oldest() == 21
    assert await feed.prune(older_than_s=3_600) == 5
    assert told(await feed.after(0, limit=100)) == [(SOLD_OUT, PRODUCT, 0)]
    assert (await feed.oldest(), await feed.last()) == (26, 26)
    await write(database, "DELETE FROM service_event")
    assert (await feed.oldest(), await feed.last()) == (0, 26)


async def test_the_time_of_an_order_is_the_live_stocks(database: Database) -> None:
    at_ms = 1_700_000_000_123

    async def run(transaction: Transaction) -> None:
        await publish(transaction, [Notice(ServiceEventKind.ORDER_EXPIRED, PRODUCT, at_ms=at_ms)])

    await database.transaction(run)
    (event,) = await EventsFeed(database).after(0, limit=1)
    assert event.at_ms == at_ms


counts = st.integers(min_value=-20, max_value=20)


@given(st.lists(counts, min_size=2, max_size=30), st.integers(min_value=0, max_value=10))
def test_whoever_follows_what_is_told_knows_whether_there_are_units(
    available: list[int], low_stock: int
) -> None:
    has_units, was_low = available[0] > 0, 0
    for before, after in pairwise(available):
        for notice in stock_notices(PRODUCT, before=before, after=after, low_stock=low_stock):
            assert notice.available == after
            if notice.kind is LOW_STOCK:
                was_low += 1
                assert after < low_stock <= before
            else:
                assert has_units is (notice.kind is SOLD_OUT)
                has_units = notice.kind is BACK
        assert has_units == (after > 0)
    assert low_stock or not was_low
