"""What could not be applied: applied again once, or given up once, and said so."""

import asyncio
import dataclasses
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

import pytest
from prometheus_client import CollectorRegistry

from ledger.audits import Audits
from ledger.database import Database
from ledger.dead_letters import DeadLetterRow, DeadLetters
from ledger.errors import Conflict, LedgerConflictError
from ledger.failpoints import VARIABLE, Failpoints
from ledger.holds import Holds
from ledger.journal import Journal
from ledger.letter_retries import LetterRetries
from ledger.metrics import LedgerMetrics
from ledger.products import Products
from ledger.settings import MysqlUrl
from ledger.timeline import Timeline
from sharding.events import EventId, Kind
from sharding.orders import OrderState, request_id_of
from sharding.partitions import Entry
from tests.chaos.proxy import MysqlProxy
from tests.ledger.conftest import NewProduct, Stream, fetch, new_metrics, write
from tests.ledger.streams import FakeStream, chunk_of, flat, fresh_order_ids, fresh_request_ids
from worker.applier import Applier

SHARD = (
    "SELECT available, held, sold, loaded, in_transit, state, epoch, event_number "
    "FROM shard_stock WHERE product_id = %s AND partition_id = %s"
)
WHO = {"actor": "ann", "reason": "put right"}


@dataclass
class Sale:
    """A product with one loaded shard of 100 units, its stream, and a worker that says what drifts."""

    database: Database
    product_id: int
    events: FakeStream
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)

    def __post_init__(self) -> None:
        metrics = LedgerMetrics(self.registry)
        self.applier = Applier(Journal(self.database, metrics, Failpoints({})))
        self.letters = DeadLetters(self.database)
        self.retries = LetterRetries(self.database, Failpoints({}))

    @property
    def drifts(self) -> float | None:
        return self.registry.get_sample_value("inventory_ledger_drift_total")

    async def apply(self, *entries: Entry) -> None:
        first = entries[0].id
        start = EventId(first.generation, first.number - 1) if first.number > 1 else EventId(0, 0)
        await self.applier.apply([chunk_of(self.events.partition, start, entries)])

    async def open_letters(self) -> Sequence[DeadLetterRow]:
        return await self.all_letters(closed_too=False)

    async def all_letters(self, *, closed_too: bool = True) -> Sequence[DeadLetterRow]:
        found = await self.letters.list(after=0, limit=100_000, closed_too=closed_too)
        return [each for each in found if each.partition == self.events.partition]

    async def close_letters(self) -> None:
        for letter in await self.open_letters():
            await self.letters.discard(letter.id, **WHO)

    async def retry(self, letter: DeadLetterRow) -> None:
        await self.retries.retry(letter.id, actor="ann", reason="put right")

    async def refusal(self, letter: DeadLetterRow) -> tuple[Conflict, str]:
        with pytest.raises(LedgerConflictError) as caught:
            await self.retry(letter)
        return caught.value.conflict, str(caught.value).rpartition(": ")[2]

    async def counts(self) -> tuple[int, int, int]:
        """Available, held, sold of the product, once the shard's row says what the shard itself does."""
        row = await Products(self.database).get(self.product_id)
        found = (row.available_stock, row.held_stock, row.sold_count)
        own = self.events.counts[self.product_id]
        shard = await fetch(self.database, SHARD, self.product_id, self.events.partition)
        assert shard[0][:4] == (own["available"], own["held"], own["sold"], own["loaded"])
        return found

    async def differences(self) -> Sequence[tuple[object, ...]]:
        """Of shards: how each stands, available units live less ledger, how often that changed."""
        sql = "SELECT state, available, changes FROM shard_drift WHERE product_id = %s ORDER BY id"
        return await fetch(self.database, sql, self.product_id)

    async def lose_product(self) -> None:
        """Its row goes; who brings it back writes it as it was."""
        sql = "UPDATE product_inventory SET product_id = %s WHERE product_id = %s"
        await write(self.database, sql, self.product_id + 10**9, self.product_id)

    async def find_product(self) -> None:
        sql = "UPDATE product_inventory SET product_id = %s WHERE product_id = %s"
        await write(self.database, sql, self.product_id, self.product_id + 10**9)


@pytest.fixture
async def sale(database: Database, new_product: NewProduct, stream: Stream) -> AsyncIterator[Sale]:
    """Tests share partitions in turn, so none may leave a letter open."""
    sale = Sale(database, await new_product(100), await stream())
    await sale.close_letters()
    await sale.apply(sale.events.load(sale.product_id, 100))
    yield sale
    await sale.close_letters()


def sales_of(sale: Sale, *units: int) -> Entry:
    ids = fresh_request_ids(len(units))
    return sale.events.deduct(sale.product_id, zip(ids, units, strict=True))


async def test_an_event_of_a_product_that_was_missing_is_applied_once_it_is_there(
    sale: Sale, database: Database
) -> None:
    before, lost, after = sales_of(sale, 1), sales_of(sale, 2, 3), sales_of(sale, 4)
    await sale.apply(before)
    await sale.lose_product()
    await sale.apply(lost)
    await sale.find_product()
    await sale.apply(after)
    assert sale.drifts == 1
    (letter,) = await sale.open_letters()
    assert (letter.product_id, letter.request_id, letter.state) == (sale.product_id, "", "open")
    await sale.retry(letter)
    assert await sale.counts() == (90, 0, 10)
    rows = await Timeline(database).page(product_id=sale.product_id, limit=10)
    assert [(row.quantity, row.available_before, row.available_after) for row in rows] == [
        (-3, 97, 94),
        (-2, 99, 97),
        (-4, 94, 90),
        (-1, 100, 99),
    ]
    assert {row.remark for row in rows[:2]} == {f"retried letter {letter.id}: put right"}
    assert {row.actor for row in rows[:2]} == {"ann"}
    (closed,) = [each for each in await sale.all_letters() if each.id == letter.id]
    assert (closed.state, closed.actor, closed.remark) == ("retried", "ann", "put right")
    assert await sale.open_letters() == []
    assert await sale.differences() == [("passed", -5, 0)]
    await sale.apply(sales_of(sale, 1))
    assert sale.drifts == 1


async def test_a_difference_is_not_repaired_while_a_letter_may_explain_it(sale: Sale) -> None:
    await sale.lose_product()
    await sale.apply(sales_of(sale, 2, 3))
    await sale.find_product()
    await sale.apply(sale.events.mark(sale.product_id))
    audits = Audits(sale.database)
    (drift,) = [each for each in await audits.open_drifts() if each.product_id == sale.product_id]
    with pytest.raises(LedgerConflictError) as caught:
        await audits.confirm(drift)
    assert caught.value.conflict is Conflict.DEAD_LETTERS_OPEN
    (letter,) = await sale.open_letters()
    await sale.retry(letter)
    assert await sale.differences() == [("passed", -5, 0)]
    assert not await audits.confirm(drift)


async def test_a_letter_that_explains_a_part_of_a_difference_leaves_the_rest(sale: Sale) -> None:
    await sale.lose_product()
    await sale.apply(sales_of(sale, 2, 3))
    await sale.find_product()
    sale.events.counts[sale.product_id]["available"] += 1
    await sale.apply(sale.events.mark(sale.product_id))
    (letter,) = await sale.open_letters()
    await sale.retry(letter)
    assert await sale.differences() == [("open", 1, 1)]
    await sale.apply(sale.events.mark(sale.product_id))
    assert await sale.differences() == [("open", 1, 1)]


async def test_a_load_that_is_applied_late_ends_the_difference_of_the_one_before(
    sale: Sale,
) -> None:
    sale.events.counts[sale.product_id]["available"] += 1
    await sale.apply(sale.events.mark(sale.product_id))
    assert await sale.differences() == [("open", 1, 0)]
    await sale.lose_product()
    sale.events.counts[sale.product_id] = dict.fromkeys(("available", "held", "sold", "loaded"), 0)
    await sale.apply(sale.events.load(sale.product_id, 60, epoch=2))
    await sale.find_product()
    (letter,) = await sale.open_letters()
    await sale.retry(letter)
    assert await sale.differences() == [("passed", 1, 0)]


async def test_a_product_is_not_loaded_while_the_ledger_lacks_what_was_sold_of_it(
    sale: Sale,
) -> None:
    await sale.lose_product()
    await sale.apply(sales_of(sale, 2))
    await sale.find_product()
    products = Products(sale.database)
    with pytest.raises(LedgerConflictError) as caught:
        await products.begin_load(sale.product_id, partitions=48, default_shards=1)
    assert caught.value.conflict is Conflict.DEAD_LETTERS_OPEN
    (letter,) = await sale.open_letters()
    await sale.retry(letter)
    plan, _ = await products.begin_load(sale.product_id, partitions=48, default_shards=1)
    assert sum(plan.amounts) + plan.buffer == 98


async def test_a_letter_whose_shard_followed_changes_the_product_alone(sale: Sale) -> None:
    (line,) = [request_id_of(each, sale.product_id) for each in fresh_order_ids(1)]
    await sale.apply(sale.events.hold(sale.product_id, [(line, 5)]))
    sql = "UPDATE product_inventory SET pre_deduct_stock = %s, available_stock = %s "
    sql += "WHERE product_id = %s"
    await write(sale.database, sql, 2, 98, sale.product_id)
    await sale.apply(sale.events.end(sale.product_id, [(line, 5)], OrderState.CONFIRMED))
    (letter,) = await sale.open_letters()
    assert letter.reason.startswith("below_zero ")
    assert await sale.refusal(letter) == (Conflict.DEAD_LETTER_REFUSED, "below_zero")
    await write(sale.database, sql, 5, 95, sale.product_id)
    await sale.retry(letter)
    assert await sale.counts() == (95, 0, 5)
    assert await Holds(sale.database).page(product_id=sale.product_id) == []
    await sale.apply(sales_of(sale, 1))
    assert sale.drifts == 0


async def test_holds_and_their_ends_may_be_made_up_for_in_any_order(sale: Sale) -> None:
    orders = fresh_order_ids(3)
    lines = [request_id_of(each, sale.product_id) for each in orders]
    await sale.lose_product()
    await sale.apply(
        sale.events.hold(sale.product_id, [(each, 2) for each in lines]),
        sale.events.end(sale.product_id, [(lines[0], 2)], OrderState.CONFIRMED),
        sale.events.end(sale.product_id, [(lines[1], 2)], OrderState.EXPIRED, [orders[1]]),
    )
    await sale.find_product()
    held, confirmed, expired = await sale.open_letters()
    assert await sale.refusal(expired) == (Conflict.DEAD_LETTER_REFUSED, "below_zero")
    for letter in (held, expired, confirmed):
        await sale.retry(letter)
    assert await sale.counts() == (96, 2, 2)
    holds = await Holds(sale.database).page(product_id=sale.product_id)
    assert [(each.order_id, each.quantity) for each in holds] == [(orders[2], 2)]
    told = "SELECT COUNT(*) FROM service_event WHERE kind = 'order_expired' AND order_id = %s"
    assert await fetch(sale.database, told, orders[1]) == [(1,)]


async def test_a_hold_that_is_made_up_for_after_its_end_holds_nothing(sale: Sale) -> None:
    first, second = (request_id_of(each, sale.product_id) for each in fresh_order_ids(2))
    await sale.apply(sale.events.hold(sale.product_id, [(first, 5)]))
    await sale.lose_product()
    await sale.apply(sale.events.hold(sale.product_id, [(second, 2)]))
    await sale.find_product()
    await sale.apply(sale.events.end(sale.product_id, [(second, 2)], OrderState.RELEASED))
    (letter,) = await sale.open_letters()
    await sale.retry(letter)
    assert await sale.counts() == (95, 5, 0)
    holds = await Holds(sale.database).page(product_id=sale.product_id)
    assert [each.quantity for each in holds] == [5]


async def test_units_that_were_sold_out_by_a_retry_are_told(sale: Sale) -> None:
    await sale.lose_product()
    await sale.apply(sales_of(sale, 100))
    await sale.find_product()
    (letter,) = await sale.open_letters()
    await sale.retry(letter)
    sql = "SELECT kind FROM service_event WHERE product_id = %s"
    assert await fetch(sale.database, sql, sale.product_id) == [("sold_out",)]


async def test_a_request_that_took_effect_meanwhile_goes_back(sale: Sale, stream: Stream) -> None:
    (once,) = fresh_request_ids(1)
    await sale.lose_product()
    lost = sale.events.deduct(sale.product_id, [(once, 2), (fresh_request_ids(1)[0], 1)])
    await sale.apply(lost)
    await sale.find_product()
    await sale.apply(sale.events.deduct(sale.product_id, [(once, 4)]))
    (letter,) = await sale.open_letters()
    await sale.retry(letter)
    assert await sale.counts() == (95, 0, 5)
    sql = "SELECT request_id, quantity, event_number, state FROM outbox WHERE product_id = %s"
    assert await fetch(sale.database, sql, sale.product_id) == [(once, 2, lost.id.number, "open")]


async def test_a_request_is_applied_when_the_effect_that_stood_against_it_is_gone(
    sale: Sale,
) -> None:
    (once,) = fresh_request_ids(1)
    await sale.apply(sale.events.adjust(Kind.RESTOCK, sale.product_id, 10, once))
    await sale.apply(sale.events.adjust(Kind.RESTOCK, sale.product_id, 7, once, actor="Zoë"))
    (letter,) = await sale.open_letters()
    assert (letter.product_id, letter.request_id) == (sale.product_id, once)
    assert await sale.refusal(letter) == (Conflict.DEAD_LETTER_REFUSED, "duplicate_effect")
    await write(sale.database, "DELETE FROM inventory_log WHERE request_id = %s", once)
    await sale.retry(letter)
    row = await Products(sale.database).get(sale.product_id)
    assert (row.total_stock, row.available_stock) == (117, 117)
    assert await sale.counts() == (117, 0, 0)
    (entry,) = await Timeline(sale.database).page(product_id=sale.product_id, limit=10)
    assert (entry.quantity, entry.available_after, entry.actor) == (7, 117, "ann")
    assert entry.remark == f"retried letter {letter.id}: put right; counted again"


async def test_one_request_of_a_list_is_applied_without_the_others(sale: Sale) -> None:
    twice = request_id_of(fresh_order_ids(1)[0], sale.product_id)
    (other,) = fresh_request_ids(1)
    await sale.apply(sale.events.hold(sale.product_id, [(twice, 2)]))
    await sale.apply(sale.events.deduct(sale.product_id, [(other, 1)], holds=[(twice, 3)]))
    (letter,) = await sale.open_letters()
    assert letter.reason == "duplicate_effect reserve of 3 units"
    await write(sale.database, "DELETE FROM inventory_log WHERE request_id = %s", twice)
    await sale.retry(letter)
    row = await Products(sale.database).get(sale.product_id)
    assert (row.held_stock, row.sold_count) == (5, 1)


async def test_a_late_letter_moves_neither_the_state_nor_the_place_of_its_shard(
    sale: Sale,
) -> None:
    await sale.lose_product()
    await sale.apply(sale.events.layout(sale.product_id, 7), sales_of(sale, 3))
    await sale.find_product()
    await sale.apply(sale.events.close(sale.product_id))
    layout, sold = await sale.open_letters()
    for letter in (sold, layout):
        await sale.retry(letter)
    (shard,) = await fetch(sale.database, SHARD, sale.product_id, sale.events.partition)
    assert shard == (0, 0, 3, 3, 0, "closed", 1, sale.events.number)


async def test_a_load_that_was_missed_makes_the_shard_and_one_that_is_over_changes_nothing(
    sale: Sale,
) -> None:
    product_id, events = sale.product_id, sale.events
    await sale.apply(events.close(product_id))
    await sale.lose_product()
    await sale.apply(events.load(product_id, 60, epoch=2, layout=2))
    await sale.apply(events.deduct(product_id, [(fresh_request_ids(1)[0], 1)], epoch=2))
    await sale.find_product()
    load, sold = await sale.open_letters()
    assert await sale.refusal(sold) == (Conflict.DEAD_LETTER_REFUSED, "unknown_shard")
    await sale.retry(load)
    await sale.apply(events.close(product_id, epoch=2), events.load(product_id, 5, epoch=3))
    assert await sale.open_letters() == [sold]
    await sale.retry(sold)
    (shard,) = await fetch(sale.database, SHARD, product_id, events.partition)
    assert shard[:4] == (5, 0, 0, 5)
    assert (await Products(sale.database).get(product_id)).sold_count == 1


async def test_a_load_whose_shard_has_gone_on_is_refused(sale: Sale) -> None:
    product_id, events = sale.product_id, sale.events
    await sale.lose_product()
    await sale.apply(events.load(product_id, 100))
    await sale.find_product()
    await sale.apply(sales_of(sale, 1))
    (letter,) = await sale.open_letters()
    assert await sale.refusal(letter) == (Conflict.DEAD_LETTER_REFUSED, "superseded")


async def test_what_cannot_be_read_is_refused_whole_or_cut(sale: Sale) -> None:
    await sale.apply(
        sale.events.entry(flat(x="")),
        sale.events.entry(flat(rubbish=b"\0\xff" * (1 << 20))),
    )
    malformed, cut_off = await sale.open_letters()
    assert await sale.refusal(malformed) == (Conflict.DEAD_LETTER_REFUSED, "malformed")
    assert (await sale.refusal(cut_off))[0] is Conflict.DEAD_LETTER_CUT
    assert len(await sale.open_letters()) == 2


async def test_what_an_earlier_version_could_not_read_is_applied_and_told(sale: Sale) -> None:
    order_id, *_ = fresh_order_ids(1)
    line = request_id_of(order_id, sale.product_id)
    await sale.apply(sale.events.hold(sale.product_id, [(line, 2)]))
    entry = sale.events.end(sale.product_id, [(line, 2)], OrderState.EXPIRED, [order_id])
    unread = entry._replace(fields=tuple(b"?" if each == b"1" else each for each in entry.fields))
    await sale.apply(unread)
    (letter,) = await sale.open_letters()
    assert letter.reason.startswith("malformed ")
    sql = "UPDATE dead_letter SET fields = REPLACE(fields, %s, %s) WHERE id = %s"
    await write(sale.database, sql, b"\xc4\x01?", b"\xc4\x011", letter.id)
    await sale.retry(letter)
    assert await sale.counts() == (100, 0, 0)
    told = "SELECT COUNT(*) FROM service_event WHERE kind = 'order_expired' AND order_id = %s"
    assert await fetch(sale.database, told, order_id) == [(1,)]


async def test_a_letter_of_which_nobody_knows_whether_its_shard_followed_is_refused(
    sale: Sale,
) -> None:
    await sale.lose_product()
    await sale.apply(sales_of(sale, 1))
    await sale.find_product()
    (letter,) = await sale.open_letters()
    await write(
        sale.database, "UPDATE dead_letter SET shard_followed = NULL WHERE id = %s", letter.id
    )
    assert await sale.refusal(letter) == (Conflict.DEAD_LETTER_REFUSED, "shard_not_known")


async def lost_sale(sale: Sale) -> DeadLetterRow:
    """A letter of one sale of two units, whose product is there again."""
    await sale.lose_product()
    await sale.apply(sales_of(sale, 2))
    await sale.find_product()
    (letter,) = await sale.open_letters()
    return letter


async def test_of_many_retries_and_discards_at_once_one_has_its_way(sale: Sale) -> None:
    letter = await lost_sale(sale)
    calls = [sale.retry(letter) for _ in range(6)]
    calls += [sale.letters.discard(letter.id, **WHO) for _ in range(2)]
    ended = await asyncio.gather(*calls, return_exceptions=True)
    failures = [each for each in ended if each is not None]
    assert [each.conflict for each in failures if isinstance(each, LedgerConflictError)] == [
        Conflict.DEAD_LETTER_CLOSED
    ] * 7
    (closed,) = [each for each in await sale.all_letters() if each.id == letter.id]
    row = await Products(sale.database).get(sale.product_id)
    assert row.sold_count == (2 if closed.state == "retried" else 0)


async def test_a_worker_and_retries_of_its_partition_do_not_get_into_each_others_way(
    sale: Sale,
) -> None:
    await sale.lose_product()
    await sale.apply(*(sales_of(sale, 1) for _ in range(8)))
    await sale.find_product()
    letters = await sale.open_letters()
    entries = [sales_of(sale, 1) for _ in range(8)]

    async def work() -> None:
        for entry in entries:
            await sale.apply(entry)

    await asyncio.gather(work(), *(sale.retry(letter) for letter in letters))
    assert await sale.counts() == (84, 0, 16)


async def test_a_discarded_letter_is_closed_and_changes_nothing(sale: Sale) -> None:
    letter = await lost_sale(sale)
    await sale.letters.discard(letter.id, **WHO)
    for again in (sale.retry(letter), sale.letters.discard(letter.id, **WHO)):
        with pytest.raises(LedgerConflictError) as caught:
            await again
        assert caught.value.conflict is Conflict.DEAD_LETTER_CLOSED
    assert (await Products(sale.database).get(sale.product_id)).sold_count == 0
    (closed,) = [each for each in await sale.all_letters() if each.id == letter.id]
    assert (closed.state, closed.actor, closed.remark) == ("discarded", "ann", "put right")


@pytest.mark.parametrize("end", ["retry", "discard"])
@pytest.mark.parametrize("lost", ["cut_after_commit", "cut_before_commit"])
async def test_a_letter_whose_end_was_committed_in_vain_or_unheard_is_ended_once(
    sale: Sale, ledger_url: MysqlUrl, end: str, lost: str
) -> None:
    letter = await lost_sale(sale)
    async with MysqlProxy(ledger_url.host, ledger_url.port) as proxy:
        lossy = Database(dataclasses.replace(ledger_url, port=proxy.port), new_metrics())
        setattr(proxy, lost, 1)
        if end == "retry":
            await LetterRetries(lossy, Failpoints({})).retry(letter.id, **WHO)
        else:
            await DeadLetters(lossy).discard(letter.id, **WHO)
        assert getattr(proxy, lost) == 0
        await lossy.close()
    row = await Products(sale.database).get(sale.product_id)
    assert row.sold_count == (2 if end == "retry" else 0)
    assert await sale.open_letters() == []


async def test_an_unknown_letter_has_its_own_error(sale: Sale) -> None:
    unknown = 2**62
    for call in (sale.retries.retry(unknown, **WHO), sale.letters.discard(unknown, **WHO)):
        with pytest.raises(LedgerConflictError) as caught:
            await call
        assert caught.value.conflict is Conflict.DEAD_LETTER_UNKNOWN


RETRY = """
import asyncio, sys
from prometheus_client import CollectorRegistry
from ledger.database import Database
from ledger.failpoints import Failpoints
from ledger.letter_retries import LetterRetries
from ledger.metrics import LedgerMetrics
from ledger.settings import parse_url

database = Database(parse_url(sys.argv[1]), LedgerMetrics(CollectorRegistry()))
retries = LetterRetries(database, Failpoints.from_environment())
asyncio.run(retries.retry(int(sys.argv[2]), actor="ann", reason="put right"))
"""


@pytest.mark.parametrize(
    ("place", "is_applied"),
    [
        ("worker.after_insert", False),
        ("letter.before_commit", False),
        ("letter.after_commit", True),
    ],
)
async def test_a_process_that_is_killed_in_a_retry_applies_all_of_it_or_nothing(
    sale: Sale, ledger_url: MysqlUrl, place: str, is_applied: bool
) -> None:
    letter = await lost_sale(sale)
    url = (
        f"mysql://{ledger_url.user}:{ledger_url.password}@{ledger_url.host}:{ledger_url.port}"
        f"/{ledger_url.database}"
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", RETRY, url, str(letter.id)),
        env={**os.environ, VARIABLE: f"{place}=kill"},
        stderr=subprocess.DEVNULL,
    )
    assert await process.wait() == -9
    row = await Products(sale.database).get(sale.product_id)
    assert row.sold_count == (2 if is_applied else 0)
    if is_applied:
        assert (await sale.refusal(letter))[0] is Conflict.DEAD_LETTER_CLOSED
    else:
        await sale.retry(letter)
    assert await sale.counts() == (98, 0, 2)
