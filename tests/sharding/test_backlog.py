"""While too many of its events wait for the ledger, a partition sells and holds nothing more."""

import asyncio
from collections.abc import AsyncIterator
from itertools import count

import pytest

from deploy.local.stack import LocalStack
from sharding import keys
from sharding.answers import INSUFFICIENT, may_pass
from sharding.cluster import Cluster, LaneKind
from sharding.events import EventId
from sharding.metrics import StockMetrics
from sharding.ordering import Orders
from sharding.orders import Line
from sharding.outcomes import Answer, Deduction, Outcome, Reason
from sharding.partitions import NOTHING_APPLIED, Partitions
from sharding.placement import Layout, home_shard
from sharding.shards import Shards
from sharding.stock import Stock
from tests.sharding.conftest import plan_for, settings_for

PARTITIONS = 24
LIMIT = 100
BEHIND = Answer(Outcome.UNAVAILABLE, reason=Reason.LEDGER_BEHIND)
_product_ids = count(7_600_001)
_order_ids = count(9_000_001)


@pytest.fixture(scope="module")
async def cluster(services: LocalStack, metrics: StockMetrics) -> AsyncIterator[Cluster]:
    """A client with a small limit, on partitions that no other test uses."""
    connected = await Cluster.connect(
        settings_for(services, partitions=PARTITIONS, backlog_max=LIMIT), metrics
    )
    yield connected
    await connected.close()


@pytest.fixture(scope="module")
async def partitions(cluster: Cluster) -> Partitions:
    found = Partitions(cluster, partitions=PARTITIONS)
    opening = (found.open(i, [NOTHING_APPLIED], opening=1) for i in range(PARTITIONS))
    await asyncio.gather(*opening)
    return found


@pytest.fixture
async def stock(
    cluster: Cluster, partitions: Partitions, metrics: StockMetrics
) -> AsyncIterator[Stock]:
    live = Stock(cluster, metrics)
    yield live
    await live.drain()


@pytest.fixture
async def orders(stock: Stock, cluster: Cluster) -> Orders:
    return Orders(stock, cluster, grace_s=0)


class Sale:
    """A product with one unit more in its first shard than in the others, and how far its ledger is."""

    def __init__(self, stock: Stock, cluster: Cluster, partitions: Partitions, shards: int) -> None:
        self.product = next(_product_ids)
        self.layout = Layout(1, shards)
        self.homes = Shards(cluster, self.product, self.layout).partitions
        self._stock = stock
        self._cluster = cluster
        self._partitions = partitions
        self._names = (f"r-{n}" for n in count())

    async def load(self, *amounts: int) -> None:
        await self._stock.load(plan_for(self.product, *amounts))

    def request(self, shard: int = 0, quantity: int = 1, attempt: int = 0) -> Deduction:
        """A fresh one whose home is that shard."""
        name = next(n for n in self._names if home_shard(n, self.layout.shards) == shard)
        return Deduction(name, self.product, quantity, attempt=attempt)

    async def ask(self, request: Deduction) -> Answer:
        (answer,) = await self._stock.deduct([request])
        return answer

    async def backlog(self, shard: int = 0) -> int:
        head = await self._partitions.head(self.homes[shard])
        applied = head.stream(0).applied
        assert applied is not None
        return head.number - applied

    async def apply_all_but(self, waiting: int, shard: int = 0) -> None:
        """The ledger catches up."""
        head = await self._partitions.head(self.homes[shard])
        applied = EventId(head.generation, head.number - waiting)
        await self._partitions.note_applied(self.homes[shard], applied)

    async def fall_behind(self, shard: int = 0) -> None:
        """As though as many events as may wait had come since the ledger stopped."""
        await self.apply_all_but(0, shard)
        await self.head_field(shard, "HINCRBY", "number", str(LIMIT))

    async def head_field(self, shard: int, *command: str) -> object:
        partition = self.homes[shard]
        name, *rest = command
        key = keys.head(self._cluster.tags[partition])
        return await self._cluster.command(partition, name, key, *rest, lane=LaneKind.WRITE)


@pytest.fixture
async def sale(stock: Stock, cluster: Cluster, partitions: Partitions) -> Sale:
    """One shard with a thousand units."""
    found = Sale(stock, cluster, partitions, 1)
    await found.load(1_000)
    await found.apply_all_but(0)
    return found


@pytest.fixture
async def wide(stock: Stock, cluster: Cluster, partitions: Partitions) -> Sale:
    """Two shards: the first has one unit, and its ledger is behind; the second has ten."""
    found = Sale(stock, cluster, partitions, 2)
    await found.load(1, 10)
    await found.apply_all_but(0, shard=1)
    await found.fall_behind(shard=0)
    return found


async def test_it_sells_up_to_the_limit_and_again_once_half_of_it_waits(sale: Sale) -> None:
    answers = [await sale.ask(sale.request()) for _ in range(LIMIT + 5)]
    sold = [answer for answer in answers if answer.outcome is Outcome.DEDUCTED]
    assert (len(sold), answers[LIMIT:]) == (LIMIT, [BEHIND] * 5)
    assert await sale.backlog() == LIMIT
    await sale.apply_all_but(LIMIT // 2 + 1)
    assert await sale.ask(sale.request()) == BEHIND
    await sale.apply_all_but(LIMIT // 2)
    for _ in range(LIMIT // 2):
        assert (await sale.ask(sale.request())).outcome is Outcome.DEDUCTED
    assert await sale.ask(sale.request()) == BEHIND


async def test_a_refusal_writes_nothing(sale: Sale) -> None:
    await sale.fall_behind()
    before = await sale.head_field(0, "HGETALL")
    for attempt in (0, 1, 2):
        assert await sale.ask(sale.request(attempt=attempt)) == BEHIND
    assert await sale.head_field(0, "HGETALL") == before


async def test_the_head_says_that_it_is_behind(sale: Sale, partitions: Partitions) -> None:
    (home,) = sale.homes
    assert not (await partitions.head(home)).stream(0).is_behind
    await sale.fall_behind()
    assert (await partitions.head(home)).stream(0).is_behind
    await sale.apply_all_but(LIMIT - 1)
    assert (await partitions.head(home)).stream(0).is_behind
    await sale.apply_all_but(0)
    assert not (await partitions.head(home)).stream(0).is_behind


async def test_without_a_word_of_a_worker_there_is_no_limit(sale: Sale) -> None:
    await sale.head_field(0, "HDEL", "applied", "behind")
    answers = [await sale.ask(sale.request()) for _ in range(LIMIT + 1)]
    assert {answer.outcome for answer in answers} == {Outcome.DEDUCTED}


async def test_an_older_word_of_a_worker_changes_nothing(sale: Sale) -> None:
    await sale.apply_all_but(0)
    await sale.apply_all_but(LIMIT)
    assert await sale.backlog() == 0
    assert (await sale.ask(sale.request())).outcome is Outcome.DEDUCTED


async def test_what_was_begun_goes_on_and_no_new_hold_begins(
    sale: Sale, stock: Stock, orders: Orders
) -> None:
    paid, given_up, late, new = (next(_order_ids) for _ in range(4))
    lines, bought = [Line(sale.product, 2)], sale.request()
    assert (await sale.ask(bought)).outcome is Outcome.DEDUCTED
    for order in (paid, given_up):
        held = await orders.reserve(order, user_id=7, lines=lines, ttl_s=600)
        assert held.outcome is Outcome.HELD
    await orders.reserve(late, user_id=7, lines=lines, ttl_s=0.001)
    await sale.fall_behind()
    refused = await orders.reserve(new, user_id=7, lines=lines, ttl_s=600)
    assert (refused.outcome, refused.reason) == (Outcome.UNAVAILABLE, Reason.LEDGER_BEHIND)
    assert (await orders.sell(new, user_id=7, lines=lines)).reason is Reason.LEDGER_BEHIND
    again = await sale.ask(bought)
    assert (again.outcome, again.replayed) == (Outcome.DEDUCTED, True)
    assert (await orders.confirm(paid)).outcome is Outcome.CONFIRMED
    assert (await orders.release(given_up)).outcome is Outcome.RELEASED
    assert (await orders.confirm(late)).outcome is Outcome.RETAKEN
    for correct in (stock.restock, stock.remove):
        done = await correct(
            sale.product, request_id=f"c-{correct.__name__}", quantity=3, reason=""
        )
        assert done.outcome is Outcome.DEDUCTED
    seen = await stock.read(sale.product)
    assert seen is not None
    assert (seen.available, seen.held, seen.sold) == (1_000 - 1 - 2 - 2, 0, 5)
    await sale.apply_all_but(0)
    assert (await orders.reserve(new, user_id=7, lines=lines, ttl_s=600)).outcome is Outcome.HELD


@pytest.mark.parametrize("attempt", [0, 1, 2])
async def test_a_home_that_is_behind_is_neither_short_nor_away(
    wide: Sale, stock: Stock, attempt: int
) -> None:
    asked = wide.request(shard=0, quantity=2, attempt=attempt)
    before = await stock.read(wide.product)
    assert await wide.ask(asked) == BEHIND
    assert await stock.read(wide.product) == before
    await wide.apply_all_but(0, shard=0)
    assert (await wide.ask(asked)).outcome is Outcome.DEDUCTED


async def test_shards_whose_ledger_keeps_up_sell_everything_on(wide: Sale, stock: Stock) -> None:
    # The last one needs the unit of the shard that is behind; it comes, for nobody can sell it there.
    for _ in range(11):
        assert (await wide.ask(wide.request(shard=1, attempt=1))).outcome is Outcome.DEDUCTED
    seen = await stock.read(wide.product)
    assert seen is not None
    assert (seen.available, seen.sold) == (0, 11)


async def test_a_try_that_was_lost_may_run_once_the_ledger_has_caught_up() -> None:
    assert may_pass(BEHIND)
    assert not may_pass(INSUFFICIENT)
