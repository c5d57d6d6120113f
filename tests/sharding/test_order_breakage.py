"""Orders whose processes, shards or records break while they are under way."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial
from itertools import count

import pytest

from deploy.local.stack import LocalStack
from sharding import keys, ordering
from sharding.cluster import Cluster, LaneKind
from sharding.coordinator import Decided, DueOrder, DueOrders, LineEnd, Want, Wish
from sharding.desk import Desk
from sharding.errors import StockUnavailableError
from sharding.events import Status
from sharding.finding import Finder
from sharding.ordering import Orders
from sharding.orders import Line, canonical, request_id_of
from sharding.outcomes import Answer, Deduction, Outcome, Reason, Resolution, Resolved
from sharding.partitions import Partitions
from sharding.placement import Layout, base_partition
from sharding.plans import LoadPlan
from sharding.reserving import Wanted
from sharding.stock import Stock
from tests.sharding.conftest import LoadProduct, events_of, settings_for

PARTITIONS = 48
TTL_S = 600.0
_order_ids = count(3_000_001)
_limited = count(7_980_001)


@pytest.fixture
async def orders(stock: Stock, cluster: Cluster) -> Orders:
    return Orders(stock, cluster, grace_s=0)


@pytest.fixture
async def keeper(cluster: Cluster, stock: Stock) -> AsyncIterator[Orders]:
    """Another process, whose sweeps look after all orders."""
    elsewhere = Stock(cluster, stock.metrics)
    orders = Orders(elsewhere, cluster, grace_s=0)
    yield orders
    await orders.drain()
    await elsewhere.drain()


@pytest.fixture
def order_id() -> int:
    return next(_order_ids)


async def held(stock: Stock, product_id: int) -> tuple[int, int, int]:
    """Available, held, sold."""
    seen = await stock.read(product_id)
    assert seen is not None
    return seen.available, seen.held, seen.sold


async def expired(orders: Orders, lines: Sequence[Line], *, user_id: int = 0) -> int:
    """An order whose time is over."""
    order_id = next(_order_ids)
    await orders.reserve(order_id, user_id=user_id, lines=lines, ttl_s=0.02)
    for _ in range(500):
        if (await orders.get(order_id)).outcome is not Outcome.HELD:
            return order_id
        await asyncio.sleep(0.005)
    raise AssertionError("the hold does not end")


async def test_a_keeper_who_saw_an_order_undecided_does_not_undo_its_decision(
    orders: Orders,
    keeper: Orders,
    stock: Stock,
    cluster: Cluster,
    load: LoadProduct,
    order_id: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ordering, "PENDING_SLACK_MS", -4 * cluster.settings.redis_patience_ms + 20)
    driver = Orders(stock, cluster, grace_s=0)
    lines = canonical([Line(await load(5), 1), Line(await load(5), 1)])
    wanted = Wanted(order_id, user_id=0, lines=lines, ttl_ms=60_000, sells=False, attempt=1)
    first = await driver._reserving._take_first(wanted)
    due = await keeper.due(first.shard, limit=500)
    while not due.orders:
        due = await keeper.due(first.shard, limit=500)
    answer = await driver.reserve(order_id, user_id=0, lines=lines, ttl_s=60)
    await keeper.look_after(first.shard, due)
    assert answer.outcome is Outcome.HELD
    assert (await orders.confirm(order_id)).outcome is Outcome.CONFIRMED
    assert [await held(stock, line.product_id) for line in lines] == [(4, 0, 1), (4, 0, 1)]


async def test_an_order_of_a_product_that_was_never_loaded_does_not_use_up_its_id(
    orders: Orders, stock: Stock, load: LoadProduct, order_id: int
) -> None:
    product = await load(5)
    lines = [Line(product, 1), Line(10**15, 1)]
    for _ in range(2):
        refused = await orders.reserve(order_id, user_id=0, lines=lines, ttl_s=TTL_S)
        assert refused.outcome is Outcome.UNKNOWN_PRODUCT
    assert await held(stock, product) == (5, 0, 0)
    correct = await orders.reserve(order_id, user_id=0, lines=lines[:1], ttl_s=TTL_S)
    assert correct.outcome is Outcome.HELD


async def test_a_process_that_never_saw_an_order_releases_it_while_memory_is_full(
    orders: Orders,
    keeper: Orders,
    stock: Stock,
    services: LocalStack,
    load: LoadProduct,
    order_id: int,
) -> None:
    lines = [Line(await load(5), 1), Line(await load(5), 1)]
    assert (
        await orders.reserve(order_id, user_id=0, lines=lines, ttl_s=TTL_S)
    ).outcome is Outcome.HELD
    try:
        for node in services.redis:
            await node.call("CONFIG", "SET", "maxmemory", 1)
        released = await keeper.release(order_id)
        assert released.outcome is Outcome.RELEASED
        assert [await held(stock, line.product_id) for line in lines] == [(5, 0, 0), (5, 0, 0)]
    finally:
        for node in services.redis:
            await node.call("CONFIG", "SET", "maxmemory", "1gb")


async def test_lines_that_cannot_be_told_keep_no_later_orders_waiting(
    orders: Orders,
    keeper: Orders,
    stock: Stock,
    load: LoadProduct,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    product, away = await load(50), await load(50)
    lines = [Line(product, 1), Line(away, 1)]
    stuck = await expired(orders, lines)
    partition = base_partition(min(product, away), PARTITIONS)
    (place,) = await orders._finder.likely(stuck, 0)
    settle = keeper._coordinator.settle

    async def unreachable(at: int, product_id: int, end: LineEnd) -> Status:
        if product_id == max(product, away):
            raise StockUnavailableError(Reason.NOT_EXECUTED, "away")
        return await settle(at, product_id, end)

    for process in (orders, keeper):
        monkeypatch.setattr(process._coordinator, "settle", unreachable)
    late = next(_order_ids)
    await orders.reserve(late, user_id=0, lines=lines, ttl_s=0.02)
    counted: dict[str, int] = {}
    for _ in range(400):
        due = await keeper.due(partition, limit=500)
        for state, number in (await keeper.look_after(partition, due)).items():
            counted[state] = counted.get(state, 0) + number
        if counted.get(ordering.UNFINISHED):
            break
        await asyncio.sleep(0.01)
    assert place.partition == partition
    assert counted.get(ordering.UNFINISHED) == 1
    assert (await keeper.due(partition, limit=500)).orders == ()


async def test_two_orders_of_one_id_share_no_line(
    orders: Orders, keeper: Orders, stock: Stock, load: LoadProduct, order_id: int
) -> None:
    first, second = sorted([await load(5), await load(5)])
    alone, both = [Line(second, 1)], [Line(first, 1), Line(second, 2)]
    await keeper.reserve(order_id, user_id=0, lines=alone, ttl_s=TTL_S, attempt=1)
    await orders.reserve(order_id, user_id=0, lines=both, ttl_s=TTL_S, attempt=1)
    assert await held(stock, second) == (2, 3, 0)
    assert (await keeper.release(order_id, product_id=first)).outcome is Outcome.RELEASED
    assert await held(stock, second) == (4, 1, 0)
    confirmed = await orders.confirm(order_id, product_id=second)
    assert confirmed.outcome is Outcome.CONFIRMED
    assert await held(stock, first) == (5, 0, 0)
    assert await held(stock, second) == (4, 0, 1)


async def test_an_id_that_may_be_known_is_no_other_orders(
    orders: Orders, keeper: Orders, load: LoadProduct, order_id: int
) -> None:
    lines = [Line(await load(5), 1), Line(await load(5), 1)]
    assert (
        await orders.reserve(order_id, user_id=0, lines=lines[:1], ttl_s=TTL_S, attempt=1)
    ).outcome is Outcome.HELD
    for process, attempt in ((orders, 1), (keeper, 0), (keeper, 2)):
        other = await process.reserve(
            order_id, user_id=0, lines=lines[1:], ttl_s=TTL_S, attempt=attempt
        )
        assert other.outcome is Outcome.REQUEST_MISMATCH


async def test_of_two_who_go_on_with_an_order_one_decides_and_the_other_repeats(
    orders: Orders, keeper: Orders, load: LoadProduct
) -> None:
    lines = [Line(await load(90), 1), Line(await load(90), 1)]
    for _ in range(20):
        order_id = next(_order_ids)
        answers = await asyncio.gather(
            orders.reserve(order_id, user_id=0, lines=lines, ttl_s=TTL_S),
            keeper.reserve(order_id, user_id=0, lines=lines, ttl_s=TTL_S),
        )
        assert [answer.outcome for answer in answers] == [Outcome.HELD] * 2
        assert sorted(answer.replayed for answer in answers) == [False, True]
        both = await asyncio.gather(
            orders.sell(order_id, user_id=0, lines=lines), keeper.confirm(order_id)
        )
        assert [answer.outcome for answer in both] == [Outcome.CONFIRMED] * 2


async def test_who_has_the_answer_to_a_release_is_refused_by_no_older_proof(
    orders: Orders, keeper: Orders, stock: Stock, load: LoadProduct
) -> None:
    for _ in range(5):
        product, order_id = await load(1), next(_order_ids)
        await orders.reserve(order_id, user_id=0, lines=[Line(product, 1)], ttl_s=TTL_S)
        refused = await _buy(keeper._stock, product, "refused")
        began = asyncio.create_task(orders.release(order_id))
        await asyncio.sleep(0.003)
        again = await orders.release(order_id)
        bought = await _buy(keeper._stock, product, "bought")
        await began
        assert refused.outcome is Outcome.INSUFFICIENT_STOCK
        assert again.outcome is Outcome.RELEASED
        assert bought.outcome is Outcome.DEDUCTED


async def test_a_late_confirmation_is_refused_by_no_proof_from_while_its_units_were_held(
    orders: Orders, stock: Stock, load: LoadProduct
) -> None:
    for _ in range(5):
        product, order_id = await load(1, 1, 1), next(_order_ids)
        await orders.reserve(order_id, user_id=0, lines=[Line(product, 3)], ttl_s=0.02)
        await asyncio.sleep(0.02)
        await _buy(stock, product, "refused")
        assert (await orders.confirm(order_id)).outcome is Outcome.RETAKEN
        assert await held(stock, product) == (0, 0, 3)


async def test_who_hears_that_an_order_expired_is_refused_by_no_older_proof(
    orders: Orders, keeper: Orders, stock: Stock, load: LoadProduct
) -> None:
    for call in (orders.get, orders.confirm, orders.release):
        product, order_id = await load(1), next(_order_ids)
        await orders.reserve(order_id, user_id=0, lines=[Line(product, 1)], ttl_s=0.05)
        await asyncio.sleep(0.04)
        refused = await _buy(keeper._stock, product, "refused")
        await asyncio.sleep(0.02)
        answer = await call(order_id)
        bought = await _buy(keeper._stock, product, "bought")
        assert refused.outcome is Outcome.INSUFFICIENT_STOCK
        if call == orders.confirm:
            assert answer.outcome is Outcome.RETAKEN
        else:
            assert answer.outcome is Outcome.EXPIRED
            assert bought.outcome is Outcome.DEDUCTED


async def test_a_refusal_for_another_reason_than_shortage_is_not_repeated_as_one(
    orders: Orders, stock: Stock, load: LoadProduct, order_id: int
) -> None:
    product, limited = await load(5), next(_limited)
    await stock.load(LoadPlan(limited, 1, Layout(1, 1), (9,), 0, 0, max_per_user=2))
    lines = [Line(product, 1), Line(limited, 3)]
    first = await orders.reserve(order_id, user_id=7, lines=lines, ttl_s=TTL_S)
    again = await orders.reserve(order_id, user_id=7, lines=lines, ttl_s=TTL_S)
    assert (first.outcome, again.outcome) == (Outcome.USER_LIMIT, Outcome.RELEASED)
    assert await held(stock, product) == (5, 0, 0)


@pytest.mark.parametrize("junk", ["xyz", "h1:7", "h9:7:4:1", "f1:7:4:1", "", "h1:8:4:1"])
async def test_an_order_whose_hold_makes_no_sense_is_not_said_to_be_sold(
    orders: Orders, stock: Stock, cluster: Cluster, load: LoadProduct, order_id: int, junk: str
) -> None:
    product = await load(5)
    await orders.reserve(order_id, user_id=7, lines=[Line(product, 1)], ttl_s=TTL_S)
    field = f"{product}:{request_id_of(order_id, product)}"
    await _spoil(cluster, product, field, junk)
    answer = await orders.confirm(order_id)
    assert (answer.outcome, answer.reason) == (Outcome.UNAVAILABLE, Reason.SHARD_CORRUPT)
    assert await held(stock, product) == (4, 1, 0)


@pytest.mark.parametrize("junk", ["xyz", "H 5", "H 9999999999999999999 1 7 0 1:1:-", ""])
async def test_an_order_whose_record_makes_no_sense_is_left_alone(
    orders: Orders, stock: Stock, cluster: Cluster, load: LoadProduct, order_id: int, junk: str
) -> None:
    product = await load(5)
    await orders.reserve(order_id, user_id=7, lines=[Line(product, 1)], ttl_s=TTL_S)
    await _spoil(cluster, product, f"order {order_id}", junk.replace("1:1:-", f"{product}:1:-"))
    for call in (orders.confirm, orders.get):
        assert (await call(order_id)).outcome in (Outcome.UNAVAILABLE, Outcome.UNKNOWN_ORDER)
    assert await held(stock, product) == (4, 1, 0)


async def test_a_users_count_that_makes_no_sense_sells_nothing(
    stock: Stock, cluster: Cluster
) -> None:
    product = next(_limited)
    await stock.load(LoadPlan(product, 1, Layout(1, 1), (9,), 0, 0, max_per_user=2))
    partition = base_partition(product, PARTITIONS)
    users = keys.users(cluster.tags[partition], product)
    await cluster.command(partition, "HSET", users, "7", "junk", lane=LaneKind.WRITE)
    (answer,) = await stock.deduct([Deduction("x", product, 1, 7)])
    assert (answer.outcome, answer.reason) == (Outcome.UNAVAILABLE, Reason.SHARD_CORRUPT)
    assert await held(stock, product) == (9, 0, 0)


async def test_a_decision_that_was_told_late_does_not_close_what_came_after_it(
    orders: Orders, keeper: Orders, stock: Stock, load: LoadProduct
) -> None:
    products = sorted([await load(5), await load(5)])
    order_id = await expired(orders, [Line(each, 1) for each in products])
    (place,) = await orders._finder.likely(order_id, 0)
    retaken = await orders.confirm(order_id)
    assert retaken.outcome is Outcome.RETAKEN
    late = Want(order_id, Wish.CLOSE, lines="E")
    assert not (await keeper._coordinator.decide(*place, late)).has_changed
    assert [await held(stock, each) for each in products] == [(4, 0, 1), (4, 0, 1)]


async def _buy(stock: Stock, product: int, name: str) -> Answer:
    (answer,) = await stock.deduct([Deduction(f"{name}-{product}", product, 1, attempt=1)])
    return answer


async def _spoil(cluster: Cluster, product: int, field: str, junk: str) -> None:
    partition = base_partition(product, PARTITIONS)
    tag = cluster.tags[partition]
    current = await cluster.command(
        partition, "HGET", keys.head(tag), "records", lane=LaneKind.READ
    )
    assert isinstance(current, bytes)
    key = keys.records(tag, int(current) % keys.RECORD_GENERATIONS)
    await cluster.command(partition, "HSET", key, field, junk, lane=LaneKind.WRITE)


async def test_what_became_of_a_lost_decision_is_never_worded_as_nothing(
    orders: Orders, load: LoadProduct, order_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    product = await load(5)
    await orders.reserve(order_id, user_id=0, lines=[Line(product, 1)], ttl_s=TTL_S)

    async def lost(*_: object) -> None:
        raise StockUnavailableError(Reason.OUTCOME_UNKNOWN, "lost")

    async def away(*_: object) -> None:
        raise StockUnavailableError(Reason.SHARDS_UNREACHABLE, "away")

    with monkeypatch.context() as broken:
        broken.setattr(orders._coordinator, "decide", lost)
        broken.setattr(orders._finder, "find", away)
        for call in (orders.confirm, orders.release):
            answer = await call(order_id)
            assert (answer.outcome, answer.reason) == (
                Outcome.UNAVAILABLE,
                Reason.OUTCOME_UNKNOWN,
            )
    assert (await orders.confirm(order_id)).outcome is Outcome.CONFIRMED


async def test_a_release_that_may_have_barred_the_order_is_never_worded_as_nothing(
    orders: Orders, load: LoadProduct, order_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reached some partitions, and another does not answer."""
    product = await load(5)
    away = (base_partition(product, PARTITIONS) + 1) % PARTITIONS
    bar = orders._coordinator.bar
    finder = Finder(orders._coordinator._cluster, orders._coordinator, orders._tasks)
    monkeypatch.setattr(orders, "_finder", finder)

    async def partly(partition: int, order_ids: Sequence[int]) -> list[bytes]:
        if partition == away:
            raise StockUnavailableError(Reason.NOT_EXECUTED, "away")
        return await bar(partition, order_ids)

    monkeypatch.setattr(
        finder, "_barring", Desk(partial(finder._everywhere, partly), orders._tasks, size_max=1)
    )
    released = await orders.release(order_id)
    late = await orders.reserve(order_id, user_id=0, lines=[Line(product, 1)], ttl_s=TTL_S)
    assert (released.outcome, released.reason) == (Outcome.UNAVAILABLE, Reason.OUTCOME_UNKNOWN)
    assert late.outcome is not Outcome.HELD


async def test_a_retake_that_has_begun_is_never_worded_as_nothing(
    orders: Orders, stock: Stock, load: LoadProduct, monkeypatch: pytest.MonkeyPatch
) -> None:
    products = [await load(5), await load(5)]
    order_id = await expired(orders, [Line(each, 1) for each in products])
    decide = orders._coordinator.decide

    async def no_verdict(partition: int, product_id: int, want: Want) -> Decided | None:
        if want.what is Wish.SELL_RETAKEN:
            raise StockUnavailableError(Reason.NOT_EXECUTED, "away")
        return await decide(partition, product_id, want)

    with monkeypatch.context() as broken:
        broken.setattr(orders._coordinator, "decide", no_verdict)
        answer = await orders.confirm(order_id)
    assert (answer.outcome, answer.reason) == (Outcome.UNAVAILABLE, Reason.OUTCOME_UNKNOWN)
    assert (await orders.confirm(order_id)).outcome is Outcome.RETAKEN
    assert [await held(stock, each) for each in products] == [(4, 0, 1), (4, 0, 1)]


async def test_who_repeats_a_decision_whose_answer_was_lost_tells_the_lines(
    orders: Orders, keeper: Orders, stock: Stock, load: LoadProduct, order_id: int
) -> None:
    products = sorted([await load(5), await load(5)])
    lines = [Line(each, 1) for each in products]
    await orders.reserve(order_id, user_id=0, lines=lines, ttl_s=0.02)
    (place,) = await orders._finder.likely(order_id, 0)
    for _ in range(500):
        decided = await keeper._coordinator.decide(*place, Want(order_id, Wish.LOOK))
        if decided is not None and decided.has_changed:
            break
        await asyncio.sleep(0.005)
    assert (await held(stock, products[1]))[1] == 1
    assert (await orders.get(order_id)).outcome is Outcome.EXPIRED
    assert [await held(stock, each) for each in products] == [(5, 0, 0), (5, 0, 0)]


async def test_a_product_of_neither_order_chooses_none(
    orders: Orders, keeper: Orders, load: LoadProduct, order_id: int
) -> None:
    for process in (orders, keeper):
        lines = [Line(await load(5), 1)]
        await process.reserve(order_id, user_id=0, lines=lines, ttl_s=TTL_S, attempt=1)
    newcomer = Orders(keeper._stock, keeper._coordinator._cluster, grace_s=0)
    answer = await newcomer.confirm(order_id, product_id=await load(1))
    assert (answer.outcome, answer.reason) == (Outcome.REQUEST_MISMATCH, Reason.ORDER_AMBIGUOUS)


async def test_an_order_that_was_given_up_was_never_held(
    orders: Orders, load: LoadProduct, order_id: int
) -> None:
    lines = canonical([Line(await load(5), 1), Line(await load(5), 1)])
    wanted = Wanted(order_id, user_id=0, lines=lines, ttl_ms=60_000, sells=False, attempt=1)
    await orders._reserving._take_first(wanted)
    released = await orders.release(order_id)
    assert released.outcome is Outcome.RELEASED
    assert released.order is not None
    assert released.order.deadline_ms == released.order.created_ms


async def test_a_line_is_not_called_settled_while_its_late_copy_could_be_held(
    services: LocalStack, orders: Orders, stock: Stock, load: LoadProduct, order_id: int
) -> None:
    """There is no room for the tombstone that would keep the copy out."""
    products = sorted([await load(5), await load(5)])
    lines = canonical([Line(each, 1) for each in products])
    wanted = Wanted(order_id, user_id=0, lines=lines, ttl_ms=60_000, sells=False, attempt=1)
    first = await orders._reserving._take_first(wanted)
    settings = settings_for(services, tombstone_cap=1_000)
    cramped = await Cluster.connect(settings, stock.metrics)
    try:
        await _fill_tombstones(cramped, products[1], 1_000)
        elsewhere = Stock(cramped, stock.metrics)
        keeper = Orders(elsewhere, cramped, grace_s=0)
        released = await keeper.release(order_id)
        assert released.outcome is Outcome.RELEASED
        due = DueOrder(str(order_id), 0, released.order)
        found = await keeper.look_after(first.shard, DueOrders(1, (due,)))
        assert found == {ordering.UNFINISHED: 1}
        await keeper.drain()
        await elsewhere.drain()
    finally:
        await cramped.close()
    assert await held(stock, products[0]) == (5, 0, 0)


async def test_the_units_of_a_users_second_effect_do_not_count_against_the_limit(
    stock: Stock, partitions: Partitions
) -> None:
    product = next(_limited)
    await stock.load(LoadPlan(product, 1, Layout(1, 1), (9,), 0, 0, max_per_user=2))
    assert (await _take(stock, product, "twice", user=7)).outcome is Outcome.DEDUCTED
    assert (await _take(stock, product, "more", user=7)).outcome is Outcome.USER_LIMIT
    (event,) = [each for each in await events_of(partitions, product) if each.sales]
    assert await stock.undo(
        product,
        epoch=1,
        partition=base_partition(product, PARTITIONS),
        request_id="twice",
        quantity=2,
        undone=event.id,
    )
    assert (await _take(stock, product, "again", user=7)).outcome is Outcome.DEDUCTED


async def test_a_request_of_a_limited_product_is_resolved_after_its_shards_have_changed(
    stock: Stock,
) -> None:
    product = next(_limited)
    await stock.load(LoadPlan(product, 1, Layout(1, 6), (2,) * 6, 0, 0, max_per_user=2))
    assert (await _take(stock, product, "sold", user=7)).outcome is Outcome.DEDUCTED
    await stock.close(product, 1)
    again = LoadPlan(product, 2, Layout(2, 4), (2,) * 4, 0, 2, former_shards=(6,), max_per_user=2)
    await stock.load(again)
    assert await stock.resolve(product, "sold") == Resolved(Resolution.DEDUCTED, 2)


async def test_users_who_were_refused_leave_nothing_behind(stock: Stock, cluster: Cluster) -> None:
    product = next(_limited)
    await stock.load(LoadPlan(product, 1, Layout(1, 1), (2,), 0, 0, max_per_user=2))
    requests = [Deduction(f"r{user}", product, 2, user) for user in range(1, 20)]
    answers = await stock.deduct(requests)
    partition = base_partition(product, PARTITIONS)
    users = keys.users(cluster.tags[partition], product)
    known = await cluster.command(partition, "HLEN", users, lane=LaneKind.READ)
    assert [answer.outcome for answer in answers].count(Outcome.DEDUCTED) == 1
    assert known == 2  # the buyer and the sentinel


async def _take(stock: Stock, product: int, name: str, *, user: int) -> Answer:
    (answer,) = await stock.deduct([Deduction(name, product, 2, user)])
    return answer


async def _fill_tombstones(cluster: Cluster, product: int, number: int) -> None:
    partition = base_partition(product, PARTITIONS)
    tag = cluster.tags[partition]
    for generation in range(keys.RECORD_GENERATIONS):
        fields = [part for i in range(number) for part in (f"filled {product} {i}", "n")]
        key = keys.tombstones(tag, generation)
        await cluster.command(partition, "HSET", key, *fields, lane=LaneKind.WRITE)
