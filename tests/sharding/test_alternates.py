"""A home whose node refuses connections: what its alternate does, and what is told apart."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import count

import pytest

from deploy.local.stack import LocalStack
from sharding import keys, ordering, reserving
from sharding.cluster import Cluster, LaneKind
from sharding.errors import StockUnavailableError
from sharding.events import Kind
from sharding.lane import Node
from sharding.metrics import StockMetrics
from sharding.ordering import Orders
from sharding.orders import Line, OrderAnswer, canonical, request_id_of, retake_id_of
from sharding.outcomes import (
    Answer,
    Deduction,
    Outcome,
    Reason,
    Resolution,
    Resolved,
    State,
)
from sharding.packing import pack
from sharding.partitions import Partitions
from sharding.placement import Layout, alternate_shard, base_partition, home_shard
from sharding.reserving import Wanted
from sharding.shards import Mode, Served, Shards
from sharding.stock import Stock
from tests import waiting
from tests.sharding.conftest import LoadProduct, events_of, settings_for

NOBODY_LISTENS = Node("127.0.0.1", 1)
SHARDS = 6
HOME, ALTERNATE = 1, 4
"""Shards of a product of six."""
TTL_S = 600.0
_order_ids = count(4_000_001)


class Half:
    """A process that cannot reach the nodes of some partitions, until `heal`."""

    def __init__(self, cluster: Cluster, metrics: StockMetrics) -> None:
        self.cluster = cluster
        self.stock = Stock(cluster, metrics)
        self.orders = Orders(self.stock, cluster, grace_s=0)
        self._healthy = list(cluster._nodes)

    def lose(self, node: Node) -> None:
        """All partitions of a master."""
        for partition, found in enumerate(self._healthy):
            if found == node:
                self.cluster._nodes[partition] = NOBODY_LISTENS

    def heal(self) -> None:
        self.cluster._nodes[:] = self._healthy


@pytest.fixture
async def half(
    services: LocalStack, metrics: StockMetrics, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Half]:
    async def keep(self: Cluster) -> str:
        return ""

    connected = await Cluster.connect(settings_for(services, redis_patience_ms=300), metrics)
    monkeypatch.setattr(connected, "_refresh", keep.__get__(connected))
    found = Half(connected, metrics)
    yield found
    await found.orders.drain()
    await found.stock.drain()
    await connected.close()


def node_of(cluster: Cluster, product: int, shard: int) -> Node:
    partition = (base_partition(product, 48) + shard * 48 // SHARDS) % 48
    node = cluster._nodes[partition]
    assert node is not None
    return node


def ids_at(shard: int) -> list[str]:
    """Ten ids whose home is that shard."""
    ids = (f"id-{i}" for i in count())
    return [name for name, _ in zip((n for n in ids if home_shard(n, SHARDS) == shard), range(10))]  # noqa: B905


async def ask(stock: Stock, request: Deduction) -> Answer:
    (answer,) = await stock.deduct([request])
    return answer


async def test_a_first_try_whose_home_is_away_goes_to_its_alternate_and_is_found_there(
    half: Half, stock: Stock, load: LoadProduct, partitions: Partitions
) -> None:
    product = await load(*[30] * SHARDS)
    await half.stock.read(product)
    half.lose(node_of(half.cluster, product, 1))
    wanted = [Deduction(name, product, 1, attempt=1) for name in ids_at(1)]
    answers = [await ask(half.stock, request) for request in wanted]
    assert {(a.outcome, a.shard) for a in answers} == {(Outcome.DEDUCTED, alternate_shard(1, 6))}
    for attempt in (0, 2):
        again = await asyncio.gather(*(ask(stock, r._replace(attempt=attempt)) for r in wanted))
        assert again == [answer._replace(replayed=True) for answer in answers]
    half.heal()
    assert (await ask(half.stock, wanted[0]._replace(attempt=2))).replayed
    sales = [sale for event in await events_of(partitions, product) for sale in event.sales]
    assert len(sales) == len(wanted)


async def test_any_other_try_is_not_executed_and_says_so(half: Half, load: LoadProduct) -> None:
    product = await load(*[30] * SHARDS)
    await half.stock.read(product)
    half.lose(node_of(half.cluster, product, 1))
    (name, *_) = ids_at(1)
    for attempt in (0, 2):
        answer = await ask(half.stock, Deduction(name, product, 1, attempt=attempt))
        assert answer == Answer(Outcome.UNAVAILABLE, reason=Reason.NOT_EXECUTED)
    half.heal()
    assert await ask(half.stock, Deduction(name, product, 1, attempt=2)) == Answer(
        Outcome.DEDUCTED, shard=1, available=29
    )


@pytest.mark.parametrize("lost", [0, 1])
async def test_the_shards_that_answer_are_counted_and_the_others_named(
    half: Half, load: LoadProduct, lost: int
) -> None:
    product = await load(*[30] * SHARDS)
    half.lose(node_of(half.cluster, product, lost))
    away = [s for s in range(SHARDS) if node_of(half.cluster, product, s) == NOBODY_LISTENS]
    seen = await half.stock.read_present(product)
    assert seen is not None
    assert [shard.shard for shard in seen.shards] == [s for s in range(SHARDS) if s not in away]
    assert (seen.available, seen.total, seen.exact) == (120, 120, False)
    assert set(seen.unread) == {(base_partition(product, 48) + s * 8) % 48 for s in away}
    half.heal()
    healed = await half.stock.read(product)
    assert healed is not None
    assert (healed.available, healed.exact, healed.unread) == (180, True, ())


async def test_shards_that_are_silent_are_named_by_a_process_that_never_met_the_product(
    half: Half, services: LocalStack, load: LoadProduct
) -> None:
    product = await load(*[30] * SHARDS)
    stuck = node_of(half.cluster, product, 0)
    (node,) = [each for each in services.redis if each.port == stuck.port]
    node.process.pause()
    try:
        seen = await half.stock.read_present(product)
    finally:
        node.process.resume()
    assert seen is not None
    assert (seen.available, len(seen.unread)) == (120, 2)


async def test_a_product_of_which_no_shard_answers_has_no_counts(
    half: Half, load: LoadProduct
) -> None:
    product = await load(30)
    half.lose(node_of(half.cluster, product, 0))
    with pytest.raises(StockUnavailableError):
        await half.stock.read_present(product)


async def test_the_other_shards_sell_whatever_the_attempt(half: Half, load: LoadProduct) -> None:
    product = await load(*[30] * SHARDS)
    await half.stock.read(product)
    lost = node_of(half.cluster, product, 1)
    half.lose(lost)
    alive = [s for s in range(SHARDS) if node_of(half.cluster, product, s) != NOBODY_LISTENS]
    assert len(alive) == 4
    for attempt in (0, 1, 2):
        for shard in alive:
            wanted = Deduction(f"{attempt}{ids_at(shard)[0]}", product, 1, attempt=attempt)
            if home_shard(wanted.request_id, SHARDS) in alive:
                assert (await ask(half.stock, wanted)).outcome is Outcome.DEDUCTED


async def test_a_retry_does_not_wait_for_an_alternate_whose_memory_is_full(
    half: Half, services: LocalStack, metrics: StockMetrics, load: LoadProduct
) -> None:
    product = await load(*[30] * SHARDS)
    await half.stock.read(product)
    half.lose(node_of(half.cluster, product, HOME))
    visitor = Deduction(ids_at(HOME)[0], product, 1, attempt=1)
    assert (await ask(half.stock, visitor)).shard == ALTERNATE
    full = node_of(half.cluster, product, ALTERNATE)
    (node,) = [each for each in services.redis if each.port == full.port]
    cluster = await Cluster.connect(settings_for(services, redis_patience_ms=60_000), metrics)
    stock = Stock(cluster, metrics)
    await stock.read(product)
    await node.call("CONFIG", "SET", "maxmemory", 1)
    try:
        async with asyncio.timeout(20):
            answer = await ask(stock, Deduction(ids_at(HOME)[1], product, 1, attempt=2))
        assert (answer.outcome, answer.shard) == (Outcome.DEDUCTED, HOME)
    finally:
        await node.call("CONFIG", "SET", "maxmemory", "1gb")
        await stock.drain()
        await cluster.close()


async def test_nothing_is_refused_while_a_shard_cannot_be_asked(
    half: Half, load: LoadProduct
) -> None:
    product = await load(1, 1, 1, 1, 1, 1)
    await half.stock.read(product)
    half.lose(node_of(half.cluster, product, 1))
    for shard in range(SHARDS):
        answer = await ask(half.stock, Deduction(ids_at(shard)[1], product, 5, attempt=1))
        assert answer == Answer(Outcome.UNAVAILABLE, reason=Reason.SHARDS_UNREACHABLE)


async def test_nobody_stands_in_for_a_home_that_knew_the_request_before(
    half: Half, stock: Stock, load: LoadProduct
) -> None:
    product = await load(30)
    (name, *_) = ids_at(0)  # the base, in every layout
    assert await stock.resolve(product, name) == Resolved(Resolution.NEVER)
    await stock.change_layout(product, version=3, shards=SHARDS, cause="operator")
    await half.stock.read(product)
    half.lose(node_of(half.cluster, product, 0))
    late = await ask(half.stock, Deduction(name, product, 1, attempt=1))
    assert late == Answer(Outcome.UNAVAILABLE, reason=Reason.NOT_EXECUTED)


async def test_what_a_lost_try_may_still_change_is_not_said_for_a_fact(
    stock: Stock, load: LoadProduct, monkeypatch: pytest.MonkeyPatch
) -> None:
    product = await load(*[30] * SHARDS)

    async def repeated(self: Shards, *args: object, **kwargs: object) -> Served:
        return Served(0, b"F", (), State.LOADING, may_echo=True)

    monkeypatch.setattr(Shards, "deduct", repeated)
    answer = await ask(stock, Deduction("id", product, 1, attempt=1))
    assert answer == Answer(Outcome.UNAVAILABLE, reason=Reason.OUTCOME_UNKNOWN)


async def test_a_refusal_after_a_lost_try_is_final(
    stock: Stock, load: LoadProduct, monkeypatch: pytest.MonkeyPatch
) -> None:
    product = await load(0, 0)
    real = Shards.deduct

    async def repeated(self: Shards, *args: object, **kwargs: object) -> Served:
        return (await real(self, *args, **kwargs))._replace(may_echo=True)  # type: ignore[arg-type]

    monkeypatch.setattr(Shards, "deduct", repeated)
    wanted = Deduction("id", product, 1, attempt=1)
    assert await ask(stock, wanted) == Answer(Outcome.INSUFFICIENT_STOCK)
    monkeypatch.undo()
    await stock.restock(product, request_id="in", quantity=5, reason="")
    # The try that was lost arrives now: it meets the tombstone.
    late = await ask(stock, wanted)
    assert late == Answer(Outcome.INSUFFICIENT_STOCK, replayed=True)


async def test_a_resolution_waits_until_every_place_can_be_asked(
    half: Half, load: LoadProduct
) -> None:
    product = await load(*[30] * SHARDS)
    await half.stock.read(product)
    half.lose(node_of(half.cluster, product, 1))
    resolved = await half.stock.resolve(product, ids_at(1)[0])
    assert resolved == Answer(Outcome.UNAVAILABLE, reason=Reason.NOT_EXECUTED)


async def test_a_resolution_finds_what_a_stand_in_sold_though_home_refused_it(
    stock: Stock, load: LoadProduct, cluster: Cluster
) -> None:
    product = await load(0, 1)
    shards = Shards(cluster, product, Layout(1, 2))
    name = next(f"id-{i}" for i in range(99) if home_shard(f"id-{i}", 2) == 0)
    wanted = Deduction(name, product, 1, attempt=2)
    refused = await shards.deduct(shards.partitions[0], pack([wanted]), mode=Mode.FINAL)
    sold = await shards.deduct(shards.partitions[1], pack([wanted]), mode=Mode.VISIT)
    assert (refused.statuses, sold.statuses) == (b"T", b"D")
    assert await stock.resolve(product, name) == Resolved(Resolution.DEDUCTED, 1)


# Orders.


@pytest.fixture
async def orders(stock: Stock, cluster: Cluster) -> AsyncIterator[Orders]:
    """A process that reaches every node."""
    healthy = Orders(stock, cluster, grace_s=0)
    yield healthy
    await healthy.drain()


def partition_of(product: int, shard: int) -> int:
    return Layout(0, SHARDS).partition(shard, product_id=product, partitions=48)


def order_at(product: int, shard: int = HOME) -> int:
    """A new order whose line of that product, its first, belongs to that shard."""
    return next(i for i in _order_ids if home_shard(request_id_of(i, product), SHARDS) == shard)


def wanted_at(order_id: int, *products: int, attempt: int = 1) -> Wanted:
    """A unit of each."""
    lines = canonical([Line(product, 1) for product in products])
    return Wanted(order_id, 0, lines, 60_000, sells=False, attempt=attempt)


async def reserve(
    orders: Orders, order_id: int, *products: int, attempt: int = 1, ttl_s: float = TTL_S
) -> OrderAnswer:
    lines = [Line(product, 1) for product in products]
    return await orders.reserve(order_id, user_id=0, lines=lines, ttl_s=ttl_s, attempt=attempt)


async def counts(stock: Stock, product_id: int) -> tuple[int, int, int]:
    """Available, held, sold."""
    seen = await stock.read(product_id)
    assert seen is not None
    return seen.available, seen.held, seen.sold


async def eventually(what: Callable[[], Awaitable[object]]) -> None:
    for _ in range(1_000):
        if await what():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it does not come about")


async def sweep(orders: Orders, partition: int, order_id: int) -> object:
    """What an order comes to that is due; None while it is not."""
    due = await orders.due(partition, limit=500)
    mine = tuple(each for each in due.orders if each.member == str(order_id))
    return next(iter(await orders.look_after(partition, due._replace(orders=mine))), None)


async def held_by_the_alternate(
    half: Half, load: LoadProduct, *, ttl_s: float = TTL_S
) -> tuple[int, int]:
    """A product, and an order of it whose home was away."""
    product = await load(*[30] * SHARDS)
    await half.stock.read(product)
    half.lose(node_of(half.cluster, product, HOME))
    order_id = order_at(product)
    held = await reserve(half.orders, order_id, product, ttl_s=ttl_s)
    assert (held.outcome, held.replayed) == (Outcome.HELD, False)
    return product, order_id


@pytest.mark.parametrize("end", ["confirm", "release", "expire"])
async def test_an_order_whose_home_is_away_is_held_by_the_alternate_and_ends_there(
    half: Half, orders: Orders, stock: Stock, load: LoadProduct, end: str
) -> None:
    product, order_id = await held_by_the_alternate(
        half, load, ttl_s=0.05 if end == "expire" else TTL_S
    )
    seen = await stock.read(product)
    assert seen is not None
    assert [shard.held for shard in seen.shards] == [0, 0, 0, 0, 1, 0]
    if end == "confirm":
        assert (await half.orders.confirm(order_id)).outcome is Outcome.CONFIRMED
    elif end == "release":
        assert (await half.orders.release(order_id)).outcome is Outcome.RELEASED
    else:
        place = partition_of(product, ALTERNATE)
        await eventually(lambda: sweep(orders, place, order_id))
        assert (await half.orders.get(order_id)).outcome is Outcome.EXPIRED
    sold = int(end == "confirm")
    assert await counts(stock, product) == (180 - sold, 0, sold)


async def test_an_order_whose_home_is_away_is_sold_at_once(
    half: Half, stock: Stock, load: LoadProduct
) -> None:
    product = await load(*[30] * SHARDS)
    await half.stock.read(product)
    half.lose(node_of(half.cluster, product, HOME))
    order_id = order_at(product)
    lines = [Line(product, 2)]
    sold = await half.orders.sell(order_id, user_id=0, lines=lines, attempt=1)
    again = await half.orders.sell(order_id, user_id=0, lines=lines, attempt=2)
    assert [(a.outcome, a.replayed) for a in (sold, again)] == [
        (Outcome.CONFIRMED, False),
        (Outcome.CONFIRMED, True),
    ]
    assert await counts(stock, product) == (178, 0, 2)


@pytest.mark.parametrize("attempt", [0, 2])
async def test_a_retry_in_another_process_finds_the_order_at_the_alternate(
    half: Half,
    orders: Orders,
    stock: Stock,
    partitions: Partitions,
    load: LoadProduct,
    attempt: int,
) -> None:
    product, order_id = await held_by_the_alternate(half, load)
    # The line alone, as where the order itself cannot be looked for.
    line = await orders._reserving._take_first(wanted_at(order_id, product, attempt=attempt))
    again = await reserve(orders, order_id, product, attempt=attempt)
    assert (line.replayed, line.shard) == (True, partition_of(product, ALTERNATE))
    assert (again.outcome, again.replayed) == (Outcome.HELD, True)
    assert (await orders.confirm(order_id)).outcome is Outcome.CONFIRMED
    holds = [hold for event in await events_of(partitions, product) for hold in event.holds]
    assert len(holds) == 1
    assert await counts(stock, product) == (179, 0, 1)


@pytest.mark.parametrize("attempt", [0, 2])
@pytest.mark.parametrize("former", [SHARDS, 2])
async def test_a_first_copy_that_was_held_up_takes_nothing_once_a_retry_has_come(
    half: Half, orders: Orders, stock: Stock, load: LoadProduct, attempt: int, former: int
) -> None:
    product = await load(*[180 // former] * former)
    if former != SHARDS:
        assert await stock.change_layout(product, version=3, shards=SHARDS, cause="operator")
        await stock.drain_retired(product)
    await half.stock.read(product)
    home = 2  # a third of the partitions away from the former home, on another node
    order_id = order_at(product, home)
    held = await reserve(orders, order_id, product, attempt=attempt)
    assert held.outcome is Outcome.HELD
    half.lose(node_of(half.cluster, product, home))
    late = await reserve(half.orders, order_id, product)
    # The home may have placed the order, and does not say.
    assert (late.outcome, late.reason) == (Outcome.UNAVAILABLE, Reason.OUTCOME_UNKNOWN)
    assert await counts(stock, product) == (179, 1, 0)
    assert (await orders.confirm(order_id)).outcome is Outcome.CONFIRMED


async def test_a_first_copy_that_was_held_up_is_answered_with_the_order_where_that_is_found(
    half: Half, orders: Orders, stock: Stock, load: LoadProduct
) -> None:
    product = await load(*[30] * SHARDS)
    await half.stock.read(product)
    order_id = order_at(product)
    held = await reserve(orders, order_id, product, attempt=2)
    half.cluster._note_shut(partition_of(product, HOME), "for this test")
    late = await reserve(half.orders, order_id, product)
    assert late == held._replace(replayed=True)
    assert await counts(stock, product) == (179, 1, 0)


async def test_a_first_copy_that_was_held_up_ends_nothing_that_a_retry_is_about_to_place(
    half: Half, orders: Orders, stock: Stock, load: LoadProduct, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The retry has barred the alternate and not yet come to its home."""
    product = await load(*[30] * SHARDS)
    await half.stock.read(product)
    await stock.read(product)
    order_id, late = order_at(product), []
    real = Shards.deduct

    async def overtaken(self: Shards, partition: int, *args: object, **kwargs: object) -> Served:
        if kwargs.get("mode") is Mode.HOME and not late:
            half.cluster._note_shut(partition_of(product, HOME), "for this test")
            late.append(None)
            late[0] = await reserve(half.orders, order_id, product)
        return await real(self, partition, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(Shards, "deduct", overtaken)
    held = await reserve(orders, order_id, product, attempt=2)
    assert late[0] == OrderAnswer(Outcome.UNAVAILABLE, reason=Reason.OUTCOME_UNKNOWN)
    assert (held.outcome, held.replayed) == (Outcome.HELD, False)
    assert await counts(stock, product) == (179, 1, 0)


@pytest.mark.parametrize("attempt", [0, 2])
async def test_nobody_stands_in_for_the_home_of_an_order_that_was_perhaps_sent_before(
    half: Half, stock: Stock, load: LoadProduct, attempt: int
) -> None:
    product = await load(*[30] * SHARDS)
    await half.stock.read(product)
    half.lose(node_of(half.cluster, product, HOME))
    refused = await reserve(half.orders, order_at(product), product, attempt=attempt)
    assert refused == OrderAnswer(Outcome.UNAVAILABLE, reason=Reason.NOT_EXECUTED)
    assert await counts(stock, product) == (180, 0, 0)


@pytest.mark.parametrize("attempt", [0, 2])
async def test_a_retry_does_nothing_without_the_word_of_the_alternate(
    half: Half, stock: Stock, load: LoadProduct, attempt: int
) -> None:
    product = await load(*[30] * SHARDS)
    await half.stock.read(product)
    half.lose(node_of(half.cluster, product, ALTERNATE))
    order_id = order_at(product)
    refused = await reserve(half.orders, order_id, product, attempt=attempt)
    assert refused == OrderAnswer(Outcome.UNAVAILABLE, reason=Reason.NOT_EXECUTED)
    assert await counts(stock, product) == (180, 0, 0)
    first = await reserve(half.orders, order_at(product), product)
    assert first.outcome is Outcome.HELD
    half.heal()
    again = await reserve(half.orders, order_id, product, attempt=attempt)
    assert (again.outcome, again.replayed) == (Outcome.HELD, False)


async def test_a_retry_is_not_placed_where_there_is_no_room_for_the_bar(
    services: LocalStack, stock: Stock, load: LoadProduct
) -> None:
    product = await load(*[30] * SHARDS)
    settings = settings_for(services, tombstone_cap=1_000)
    cramped = await Cluster.connect(settings, stock.metrics)
    try:
        place = partition_of(product, ALTERNATE)
        for generation in range(keys.RECORD_GENERATIONS):
            fields = [part for i in range(1_000) for part in (f"filled {product} {i}", "n")]
            key = keys.tombstones(cramped.tags[place], generation)
            await cramped.command(place, "HSET", key, *fields, lane=LaneKind.WRITE)
        elsewhere = Stock(cramped, stock.metrics)
        full = await reserve(
            Orders(elsewhere, cramped, grace_s=0), order_at(product), product, attempt=0
        )
        assert full == OrderAnswer(Outcome.OVERLOADED, reason=Reason.RECORDS_FULL)
        await elsewhere.drain()
    finally:
        await cramped.close()
    assert await counts(stock, product) == (180, 0, 0)


async def two_products(half: Half, load: LoadProduct) -> tuple[int, int, int]:
    """Two products and an order of them: the home of its second line is away, and no other node that the
    order needs."""
    first = await load(*[30] * SHARDS)
    for _ in range(20):
        second = await load(*[30] * SHARDS)
        for home in range(SHARDS):
            needed = (node_of(half.cluster, first, each) for each in (home, (home + 3) % SHARDS))
            lost = node_of(half.cluster, second, home)
            if lost not in needed:
                for product in (first, second):
                    await half.stock.read(product)
                half.lose(lost)
                return first, second, order_at(first, home)
    raise AssertionError("all products begin on one node")


def shards_of(order_id: int, first: int) -> tuple[int, int]:
    """Home and alternate of an order's lines."""
    home = home_shard(request_id_of(order_id, first), SHARDS)
    alternate = alternate_shard(home, SHARDS)
    assert alternate is not None
    return home, alternate


@pytest.mark.parametrize("attempt", [0, 1])
async def test_an_order_is_held_though_the_home_of_a_further_line_is_away(
    half: Half, stock: Stock, load: LoadProduct, attempt: int
) -> None:
    first, second, order_id = await two_products(half, load)
    held = await reserve(half.orders, order_id, first, second, attempt=attempt)
    assert held.outcome is Outcome.HELD
    assert held.order is not None
    _, alternate = shards_of(order_id, first)
    assert int(held.order.held[1].place) == partition_of(second, alternate)
    assert (await half.orders.confirm(order_id)).outcome is Outcome.CONFIRMED
    assert [await counts(stock, each) for each in (first, second)] == [(179, 0, 1)] * 2


async def test_nobody_stands_in_for_a_further_line_that_was_perhaps_asked_for(
    half: Half, orders: Orders, stock: Stock, load: LoadProduct
) -> None:
    first, second, order_id = await two_products(half, load)
    await orders._reserving._take_first(wanted_at(order_id, first, second))
    unknown = await reserve(half.orders, order_id, first, second, attempt=2)
    assert unknown == OrderAnswer(Outcome.UNAVAILABLE, reason=Reason.OUTCOME_UNKNOWN)
    assert await counts(stock, second) == (180, 0, 0)
    # A copy of the line that was held up meets the bar, though it was the first.
    line = reserving._further(wanted := wanted_at(order_id, first, second), wanted.lines[1])
    (late,) = await half.stock.deduct([line], is_new=True)
    assert late.outcome is Outcome.UNAVAILABLE
    again = await reserve(orders, order_id, first, second, attempt=2)
    assert again.outcome is Outcome.HELD
    assert [await counts(stock, each) for each in (first, second)] == [(179, 1, 0)] * 2


async def test_a_further_line_at_an_alternate_ends_with_an_order_that_broke_off(
    half: Half,
    stock: Stock,
    cluster: Cluster,
    load: LoadProduct,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ordering, "PENDING_SLACK_MS", -4 * cluster.settings.redis_patience_ms + 50)
    keeper = Orders(stock, cluster, grace_s=0)
    first, second, order_id = await two_products(half, load)
    wanted = wanted_at(order_id, first, second)
    taken = await keeper._reserving._take_first(wanted)
    further = reserving._further(wanted, wanted.lines[1])
    (line,) = await half.stock.deduct([further], is_new=True)
    assert (taken.outcome, line.outcome) == (Outcome.HELD, Outcome.HELD)
    await eventually(lambda: sweep(keeper, taken.shard, order_id))
    assert [await counts(stock, each) for each in (first, second)] == [(180, 0, 0)] * 2
    half.heal()
    (late,) = await half.stock.deduct([further])
    assert late.replayed
    await keeper.drain()
    assert await counts(stock, second) == (180, 0, 0)


async def test_a_product_leads_to_an_order_at_the_alternate(
    half: Half, load: LoadProduct, monkeypatch: pytest.MonkeyPatch
) -> None:
    product, order_id = await held_by_the_alternate(half, load)
    for call in ("get", "confirm", "release"):
        newcomer = Orders(half.stock, half.cluster, grace_s=0)
        monkeypatch.delattr(newcomer._finder, "_finding")  # nobody looks everywhere
        answer = await getattr(newcomer, call)(order_id, product_id=product)
        assert answer.outcome is (Outcome.HELD if call == "get" else Outcome.CONFIRMED)
        await newcomer.drain()


@pytest.mark.parametrize("is_named", [False, True])
async def test_an_order_whose_partition_does_not_answer_is_never_called_unknown(
    half: Half, orders: Orders, load: LoadProduct, is_named: bool
) -> None:
    product = await load(*[30] * SHARDS)
    await half.stock.read(product)
    order_id = order_at(product)
    await reserve(orders, order_id, product)
    half.lose(node_of(half.cluster, product, HOME))
    for call in (half.orders.get, half.orders.confirm, half.orders.release):
        answer = await call(order_id, product_id=product if is_named else 0)
        assert answer.outcome is Outcome.UNAVAILABLE
    half.heal()
    assert (await half.orders.confirm(order_id)).outcome is Outcome.CONFIRMED


@pytest.mark.parametrize("shards", [4, 12])
async def test_an_order_at_an_alternate_is_found_after_the_shards_have_changed(
    half: Half, orders: Orders, stock: Stock, load: LoadProduct, shards: int
) -> None:
    product, order_id = await held_by_the_alternate(half, load)
    assert await stock.change_layout(product, version=3, shards=shards, cause="operator")
    line = await orders._reserving._take_first(wanted_at(order_id, product, attempt=2))
    assert (line.replayed, line.shard) == (True, partition_of(product, ALTERNATE))
    again = await reserve(orders, order_id, product, attempt=0)
    assert (again.outcome, again.replayed) == (Outcome.HELD, True)
    newcomer = Orders(stock, orders._coordinator._cluster, grace_s=0)
    assert (await newcomer.confirm(order_id, product_id=product)).outcome is Outcome.CONFIRMED
    await newcomer.drain()
    assert await counts(stock, product) == (179, 0, 1)


async def test_a_crowd_that_a_proof_refuses_leaves_nothing_behind(
    half: Half, orders: Orders, stock: Stock, partitions: Partitions, load: LoadProduct
) -> None:
    product = await load(0, 0, 0, 0, 1, 0)
    await half.stock.read(product)
    half.lose(node_of(half.cluster, product, HOME))
    order_id = order_at(product)
    assert (await reserve(half.orders, order_id, product)).outcome is Outcome.HELD
    refused = [await reserve(orders, next(_order_ids), product)]
    # Some of them come when the proof is over, and it is made anew.
    proof = stock._catalogue.get(product)
    assert proof is not None
    for is_over in (False, True, False, True, False):
        if is_over:
            await waiting.eventually(lambda: proof.shortage.note is None)
        refused.append(await reserve(orders, next(_order_ids), product, attempt=0))
    assert {answer.outcome for answer in refused} == {Outcome.INSUFFICIENT_STOCK}
    # Who was accepted is known all the same.
    line = await orders._reserving._take_first(wanted_at(order_id, product, attempt=0))
    assert line.replayed
    (event,) = [e for e in await events_of(partitions, product) if e.kind is Kind.DEDUCT]
    assert [hold.order_id for hold in event.holds] == [order_id]


async def test_a_late_confirmation_does_not_need_an_alternate(
    half: Half, stock: Stock, load: LoadProduct
) -> None:
    product = await load(*[30] * SHARDS)
    for order_id in _order_ids:
        again = home_shard(retake_id_of(order_id, product), SHARDS)
        lost = node_of(half.cluster, product, (again + SHARDS // 2) % SHARDS)
        needed = (again, shards_of(order_id, product)[0])
        if lost not in (node_of(half.cluster, product, shard) for shard in needed):
            break
    await reserve(half.orders, order_id, product, ttl_s=0.02)
    await asyncio.sleep(0.03)
    half.lose(lost)
    assert (await half.orders.confirm(order_id)).outcome is Outcome.RETAKEN
    assert await counts(stock, product) == (179, 0, 1)


async def test_a_retry_under_an_outdated_layout_is_held_under_the_present_one(
    half: Half, stock: Stock, load: LoadProduct
) -> None:
    product = await load(*[90] * 2)
    await half.stock.read(product)
    assert await stock.change_layout(product, version=3, shards=SHARDS, cause="operator")
    held = await reserve(half.orders, next(_order_ids), product, attempt=2)
    assert held.outcome is Outcome.HELD
    assert await counts(stock, product) == (179, 1, 0)


async def test_orders_of_a_closed_product_leave_nothing_behind(
    orders: Orders, stock: Stock, partitions: Partitions, load: LoadProduct
) -> None:
    product = await load(*[30] * SHARDS)
    await stock.close(product, 1)
    refused = await reserve(orders, next(_order_ids), product, attempt=0)
    assert refused == OrderAnswer(Outcome.FROZEN, reason=Reason.PRODUCT_CLOSED)
    kinds = {event.kind for event in await events_of(partitions, product)}
    assert kinds == {Kind.LOAD, Kind.STATE, Kind.CLOSE}


async def test_a_retry_that_a_proof_refuses_stays_refused(
    orders: Orders, stock: Stock, load: LoadProduct
) -> None:
    product, order_id = await load(*[0] * SHARDS), next(_order_ids)
    refused = [
        await reserve(orders, next(_order_ids), product),
        await reserve(orders, order_id, product, attempt=2),
    ]
    assert {answer.outcome for answer in refused} == {Outcome.INSUFFICIENT_STOCK}
    await stock.restock(product, request_id="in", quantity=5, reason="")
    again = await reserve(orders, order_id, product, attempt=2)
    assert (again.outcome, again.replayed) == (Outcome.INSUFFICIENT_STOCK, True)
