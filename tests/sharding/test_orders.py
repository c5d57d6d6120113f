"""Orders on a real Redis Cluster: all lines or none, and each hold ends once."""

import asyncio
from collections import Counter
from itertools import count

import pytest

from sharding import keys, ordering, reserving
from sharding.cluster import Cluster, LaneKind
from sharding.ordering import Orders
from sharding.orders import Line, canonical
from sharding.outcomes import Deduction, Outcome, Reason
from sharding.placement import Layout
from sharding.plans import LoadPlan
from sharding.reserving import Wanted
from sharding.stock import Stock
from tests.sharding.conftest import LoadProduct

ORDER_IDS = 1_000_000
_order_ids = count(ORDER_IDS + 1)
_limited = count(7_900_001)
TTL_S = 600.0


@pytest.fixture
async def orders(stock: Stock, cluster: Cluster) -> Orders:
    return Orders(stock, cluster, grace_s=0)


@pytest.fixture
def order_id() -> int:
    return next(_order_ids)


async def counts(stock: Stock, product_id: int) -> tuple[int, int, int]:
    """Available, held, sold; everything adds up."""
    seen = await stock.read(product_id)
    assert seen is not None
    assert seen.total == seen.available + seen.held + seen.in_transit + seen.buffer + seen.sold
    return seen.available, seen.held, seen.sold


async def sweep(orders: Orders) -> Counter[str]:
    """Look after the orders of this module that are due."""
    ended: Counter[str] = Counter()
    for partition in range(48):
        due = await orders.due(partition, limit=500)
        mine = tuple(each for each in due.orders if int(each.member) // ORDER_IDS == 1)
        ended += await orders.look_after(partition, due._replace(orders=mine))
    return ended


async def until_expired(orders: Orders, order_id: int) -> None:
    for _ in range(500):
        if (await orders.get(order_id)).outcome is not Outcome.HELD:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the hold does not end")


@pytest.mark.parametrize("units", [(10,), (4, 3, 3)])
async def test_a_hold_is_confirmed_once(
    orders: Orders, stock: Stock, load: LoadProduct, order_id: int, units: tuple[int, ...]
) -> None:
    product = await load(*units)
    held = await orders.reserve(order_id, user_id=7, lines=[Line(product, 9)], ttl_s=TTL_S)
    assert (held.outcome, held.replayed) == (Outcome.HELD, False)
    assert held.order is not None
    assert held.order.lines == (Line(product, 9),)
    assert held.order.deadline_ms - held.order.created_ms == TTL_S * 1_000
    assert await counts(stock, product) == (1, 9, 0)
    again = await orders.reserve(order_id, user_id=7, lines=[Line(product, 9)], ttl_s=TTL_S)
    assert (again.outcome, again.replayed) == (Outcome.HELD, True)
    assert again.order == held.order
    first, second = await asyncio.gather(orders.confirm(order_id), orders.confirm(order_id))
    assert {first.outcome, second.outcome} == {Outcome.CONFIRMED}
    assert sorted((first.replayed, second.replayed)) == [False, True]
    assert await counts(stock, product) == (1, 0, 9)
    assert (await orders.release(order_id)).outcome is Outcome.CONFIRMED
    assert (await orders.get(order_id)).outcome is Outcome.CONFIRMED
    assert await counts(stock, product) == (1, 0, 9)


async def test_the_first_end_of_a_hold_is_the_only_one(
    orders: Orders, stock: Stock, load: LoadProduct, order_id: int
) -> None:
    product = await load(5, 5)
    await orders.reserve(order_id, user_id=7, lines=[Line(product, 3)], ttl_s=TTL_S)
    released = await asyncio.gather(*(orders.release(order_id) for _ in range(20)))
    assert {answer.outcome for answer in released} == {Outcome.RELEASED}
    assert sum(not answer.replayed for answer in released) == 1
    assert await counts(stock, product) == (10, 0, 0)
    assert (await orders.confirm(order_id)).outcome is Outcome.RELEASED
    again = await orders.reserve(order_id, user_id=7, lines=[Line(product, 3)], ttl_s=TTL_S)
    assert (again.outcome, again.replayed) == (Outcome.RELEASED, True)
    assert await counts(stock, product) == (10, 0, 0)


async def test_an_order_of_several_products_is_held_whole_and_sold_whole(
    orders: Orders, stock: Stock, load: LoadProduct, order_id: int
) -> None:
    products = [await load(2, 2, 2), await load(5), await load(1, 1)]
    lines = [Line(products[0], 2), Line(products[1], 4), Line(products[0], 3), Line(products[2], 2)]
    held = await orders.reserve(order_id, user_id=0, lines=lines, ttl_s=TTL_S)
    assert held.outcome is Outcome.HELD
    assert held.order is not None
    assert held.order.lines == tuple(sorted([(products[0], 5), (products[1], 4), (products[2], 2)]))
    assert [await counts(stock, each) for each in products] == [(1, 5, 0), (1, 4, 0), (0, 2, 0)]
    again = await orders.reserve(order_id, user_id=0, lines=lines, ttl_s=TTL_S)
    assert (again.outcome, again.replayed) == (Outcome.HELD, True)
    assert (await orders.confirm(order_id)).outcome is Outcome.CONFIRMED
    assert [await counts(stock, each) for each in products] == [(1, 0, 5), (1, 0, 4), (0, 0, 2)]
    assert await sweep(orders) == Counter()


async def test_a_short_order_holds_nothing_and_every_short_line_is_named(
    orders: Orders, stock: Stock, load: LoadProduct
) -> None:
    products = [await load(5, 5), await load(1), await load(0)]
    lines = [Line(products[0], 6), Line(products[1], 2), Line(products[2], 1)]
    for order_id, wanted, short in (
        (next(_order_ids), lines, lines[1:]),
        (next(_order_ids), lines[1:], lines[1:]),
        (next(_order_ids), lines[:2], lines[1:2]),
    ):
        refused = await orders.reserve(order_id, user_id=0, lines=wanted, ttl_s=TTL_S)
        assert refused.outcome is Outcome.INSUFFICIENT_STOCK
        assert list(refused.short) == short
        sold = await orders.sell(order_id, user_id=0, lines=wanted)
        assert sold.outcome is Outcome.INSUFFICIENT_STOCK
    assert [await counts(stock, each) for each in products] == [(10, 0, 0), (1, 0, 0), (0, 0, 0)]
    assert await sweep(orders) == Counter()


async def test_an_order_is_sold_at_once(orders: Orders, stock: Stock, load: LoadProduct) -> None:
    one, other = await load(3, 3), await load(3, 3)
    for lines in ([Line(one, 4)], [Line(one, 1), Line(other, 6)]):
        order_id = next(_order_ids)
        sold = await orders.sell(order_id, user_id=0, lines=lines)
        again = await orders.sell(order_id, user_id=0, lines=lines)
        assert (sold.outcome, sold.replayed) == (Outcome.CONFIRMED, False)
        assert (again.outcome, again.replayed) == (Outcome.CONFIRMED, True)
        assert (await orders.release(order_id)).outcome is Outcome.CONFIRMED
    assert await counts(stock, one) == (1, 0, 5)
    assert await counts(stock, other) == (0, 0, 6)


async def test_a_hold_ends_when_its_time_is_over_whoever_looks_first(
    orders: Orders, stock: Stock, load: LoadProduct
) -> None:
    product, other = await load(2, 2, 2), await load(5)
    swept, met = next(_order_ids), next(_order_ids)
    for order_id in (swept, met):
        lines = [Line(product, 3), Line(other, 2)]
        await orders.reserve(order_id, user_id=0, lines=lines, ttl_s=0.05)
    await until_expired(orders, met)
    assert (await sweep(orders))["expired"] == 1
    assert (await orders.get(swept)).outcome is Outcome.EXPIRED
    assert await counts(stock, product) == (6, 0, 0)
    assert await counts(stock, other) == (5, 0, 0)
    late = await orders.release(swept)
    assert (late.outcome, late.replayed) == (Outcome.EXPIRED, True)
    assert await sweep(orders) == Counter()


@pytest.mark.parametrize("lines", [1, 2])
async def test_a_late_confirmation_takes_the_units_again_or_wants_a_refund(
    orders: Orders, stock: Stock, load: LoadProduct, lines: int
) -> None:
    products = [await load(1, 1, 1), await load(3)][:lines]
    wanted = [Line(product, 3) for product in products]
    lucky, unlucky = next(_order_ids), next(_order_ids)
    await orders.reserve(lucky, user_id=0, lines=wanted, ttl_s=0.05)
    await until_expired(orders, lucky)
    await orders.reserve(unlucky, user_id=0, lines=wanted, ttl_s=0.05)
    await until_expired(orders, unlucky)
    verdicts = await asyncio.gather(*(orders.confirm(lucky) for _ in range(5)))
    assert {answer.outcome for answer in verdicts} == {Outcome.RETAKEN}
    assert sum(not answer.replayed for answer in verdicts) == 1
    late = await orders.confirm(unlucky)
    again = await orders.confirm(unlucky)
    assert (late.outcome, again.outcome) == (Outcome.REFUND_REQUIRED, Outcome.REFUND_REQUIRED)
    assert (late.replayed, again.replayed) == (False, True)
    for product in products:
        assert await counts(stock, product) == (0, 0, 3)
    assert await sweep(orders) == Counter()


async def test_what_is_released_before_it_comes_holds_nothing(
    orders: Orders, stock: Stock, load: LoadProduct, order_id: int
) -> None:
    product, other = await load(3, 3), await load(9)
    assert (await orders.get(order_id)).outcome is Outcome.UNKNOWN_ORDER
    assert (await orders.confirm(order_id)).outcome is Outcome.UNKNOWN_ORDER
    assert (await orders.release(order_id)).outcome is Outcome.RELEASED
    lines = [Line(product, 1), Line(other, 1)]
    for wanted in (lines, lines[:1]):
        late = await orders.reserve(order_id, user_id=0, lines=wanted, ttl_s=TTL_S)
        assert (late.outcome, late.replayed) == (Outcome.RELEASED, True)
    assert await counts(stock, product) == (6, 0, 0)
    assert await counts(stock, other) == (9, 0, 0)


async def test_one_id_with_other_content_is_a_mismatch(
    orders: Orders, stock: Stock, load: LoadProduct, order_id: int
) -> None:
    product, other = await load(1), await load(5)
    held = await orders.reserve(order_id, user_id=1, lines=[Line(product, 1)], ttl_s=TTL_S)
    again = await orders.reserve(order_id, user_id=1, lines=[Line(product, 1)], ttl_s=TTL_S)
    assert (held.outcome, again.outcome) == (Outcome.HELD, Outcome.HELD)
    for user, lines in (
        (1, [Line(product, 2)]),
        (2, [Line(product, 1)]),
        (1, [Line(product, 1), Line(other, 1)]),
    ):
        wrong = await orders.reserve(order_id, user_id=user, lines=lines, ttl_s=TTL_S)
        assert wrong.outcome is Outcome.REQUEST_MISMATCH
    assert await counts(stock, product) == (0, 1, 0)
    assert await counts(stock, other) == (5, 0, 0)


async def test_a_hold_is_found_and_ends_after_the_shards_have_changed(
    orders: Orders, stock: Stock, cluster: Cluster, load: LoadProduct
) -> None:
    product = await load(20)
    held = [next(_order_ids) for _ in range(20)]
    for order_id in held:
        await orders.reserve(order_id, user_id=0, lines=[Line(product, 1)], ttl_s=TTL_S)
    assert await stock.change_layout(product, version=3, shards=6, cause="operator")
    elsewhere = Stock(cluster, stock.metrics)
    newcomer = Orders(elsewhere, cluster, grace_s=0)
    for order_id in held:
        again = await newcomer.reserve(order_id, user_id=0, lines=[Line(product, 1)], ttl_s=TTL_S)
        assert (again.outcome, again.replayed) == (Outcome.HELD, True)
    for order_id in held[:10]:
        assert (await newcomer.confirm(order_id, product_id=product)).outcome is Outcome.CONFIRMED
    for order_id in held[10:]:
        assert (await newcomer.release(order_id)).outcome is Outcome.RELEASED
    await newcomer.drain()
    await elsewhere.drain()
    assert await counts(stock, product) == (10, 0, 10)
    (rest,) = await stock.deduct([Deduction("the-rest", product, 10)])
    assert rest.outcome is Outcome.DEDUCTED


async def test_a_user_gets_no_more_than_the_limit_over_all_shards_and_orders(
    orders: Orders, stock: Stock
) -> None:
    product = next(_limited)
    await stock.load(LoadPlan(product, 1, Layout(1, 3), (10, 10, 10), 0, 0, max_per_user=4))
    ids = [next(_order_ids) for _ in range(12)]
    answers = await asyncio.gather(
        *(orders.reserve(i, user_id=5, lines=[Line(product, 1)], ttl_s=TTL_S) for i in ids[:6]),
        *(orders.sell(i, user_id=5, lines=[Line(product, 1)]) for i in ids[6:]),
    )
    outcomes = Counter(answer.outcome for answer in answers)
    assert outcomes[Outcome.USER_LIMIT] == 8
    (bought,) = await stock.deduct([Deduction("more", product, 1, 5)])
    assert bought.outcome is Outcome.USER_LIMIT
    (nameless,) = await stock.deduct([Deduction("nobody", product, 1)])
    assert (nameless.outcome, nameless.reason) == (Outcome.INVALID, Reason.USER_REQUIRED)
    (other,) = await stock.deduct([Deduction("other", product, 4, 6)])
    assert other.outcome is Outcome.DEDUCTED
    held = [i for i, a in zip(ids, answers, strict=True) if a.outcome is Outcome.HELD]
    for order_id in held:
        assert (await orders.release(order_id)).outcome is Outcome.RELEASED
    if held:
        (again,) = await stock.deduct([Deduction("again", product, len(held), 5)])
        assert again.outcome is Outcome.DEDUCTED
    (none,) = await stock.deduct([Deduction("none", product, 1, 5)])
    assert none.outcome is Outcome.USER_LIMIT


async def test_an_order_that_broke_off_is_given_up_and_its_late_lines_take_nothing(
    stock: Stock, cluster: Cluster, load: LoadProduct, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ordering, "PENDING_SLACK_MS", -4 * cluster.settings.redis_patience_ms + 50)
    orders = Orders(stock, cluster, grace_s=0)
    products = [await load(3, 3), await load(5), await load(5)]
    wanted = Wanted(
        next(_order_ids),
        user_id=0,
        lines=canonical([Line(each, 2) for each in products]),
        ttl_ms=60_000,
        sells=False,
        attempt=1,
    )
    first = await orders._reserving._take_first(wanted)
    second = reserving._further(wanted, wanted.lines[1])
    third = reserving._further(wanted, wanted.lines[2])
    assert first.outcome is Outcome.HELD
    assert (await stock.deduct([second]))[0].outcome is Outcome.HELD
    assert (await orders.get(wanted.order_id)).reason is Reason.ORDER_PENDING
    assert (await orders.confirm(wanted.order_id)).reason is Reason.ORDER_PENDING
    assert [(await counts(stock, each))[1] for each in products] == [2, 2, 0]
    await eventually_swept(orders, "released")
    assert [(await counts(stock, each))[1] for each in products] == [0, 0, 0]
    assert (await stock.deduct([third]))[0].reason is Reason.RESOLVED_NEVER
    assert (
        await orders.reserve(wanted.order_id, user_id=0, lines=wanted.lines, ttl_s=TTL_S)
    ).outcome is Outcome.RELEASED
    assert [await counts(stock, each) for each in products] == [(6, 0, 0), (5, 0, 0), (5, 0, 0)]


async def test_an_order_that_broke_off_is_finished_by_its_repeat(
    orders: Orders, stock: Stock, load: LoadProduct, order_id: int
) -> None:
    products = [await load(3, 3), await load(5)]
    lines = canonical([Line(each, 2) for each in products])
    wanted = Wanted(order_id, user_id=0, lines=lines, ttl_ms=60_000, sells=True, attempt=1)
    await orders._reserving._take_first(wanted)
    answers = await asyncio.gather(
        *(orders.sell(order_id, user_id=0, lines=lines) for _ in range(5))
    )
    assert {answer.outcome for answer in answers} == {Outcome.CONFIRMED}
    assert [await counts(stock, each) for each in products] == [(4, 0, 2), (3, 0, 2)]


async def test_a_hold_that_contradicts_its_shard_is_put_aside_and_keeps_nobody_waiting(
    orders: Orders, stock: Stock, cluster: Cluster, load: LoadProduct
) -> None:
    product = await load(10)
    held = [next(_order_ids) for _ in range(5)]
    for order_id in held:
        quantity = 6 if order_id == held[0] else 1
        await orders.reserve(order_id, user_id=0, lines=[Line(product, quantity)], ttl_s=0.05)
    (place,) = await orders._finder.likely(held[0], 0)
    tag = cluster.tags[place.partition]
    await cluster.command(
        place.partition, "HSET", keys.stock(tag, product), "held", "4", lane=LaneKind.WRITE
    )
    ended = Counter[str]()
    for _ in range(200):
        ended += await sweep(orders)
        if ended["expired"] + ended["parked"] >= len(held):
            break
        await asyncio.sleep(0.01)
    assert ended == Counter(expired=4, parked=1)
    assert (await orders.confirm(held[0])).reason is Reason.SHARD_CORRUPT
    assert await sweep(orders) == Counter()


async def test_a_hold_is_extended_but_not_for_ever(
    orders: Orders, load: LoadProduct, order_id: int
) -> None:
    product = await load(10)
    held = await orders.reserve(order_id, user_id=0, lines=[Line(product, 1)], ttl_s=1)
    earlier = await orders.extend(order_id, 0.1)
    later = await orders.extend(order_id, 43_200)
    too_long = await orders.extend(order_id, 43_201)
    assert held.order is not None
    assert later.order is not None
    assert earlier.order == held.order
    assert later.outcome is Outcome.HELD
    assert later.order.deadline_ms == held.order.created_ms + 43_200_000
    assert (too_long.outcome, too_long.reason) == (Outcome.INVALID, Reason.TTL_TOO_LONG)
    assert (await orders.confirm(order_id)).outcome is Outcome.CONFIRMED


async def test_a_confirmation_within_the_grace_counts(
    stock: Stock, cluster: Cluster, load: LoadProduct, order_id: int
) -> None:
    orders = Orders(stock, cluster, grace_s=30)
    product = await load(1)
    held = await orders.reserve(order_id, user_id=0, lines=[Line(product, 1)], ttl_s=0.01)
    assert held.order is not None
    assert held.order.deadline_ms == held.order.created_ms + 30_010
    await asyncio.sleep(0.02)
    assert (await orders.confirm(order_id)).outcome is Outcome.CONFIRMED


async def test_an_id_that_two_first_products_have_is_told_apart_by_a_product(
    orders: Orders, stock: Stock, cluster: Cluster, load: LoadProduct, order_id: int
) -> None:
    products = sorted([await load(2, 2, 2), await load(3)])
    for process, product in (
        (orders, products[0]),
        (Orders(stock, cluster, grace_s=0), products[1]),
    ):
        lines = [Line(product, 1)]
        held = await process.reserve(order_id, user_id=0, lines=lines, ttl_s=TTL_S, attempt=1)
        assert held.outcome is Outcome.HELD
    newcomer = Orders(stock, cluster, grace_s=0)
    assert (await newcomer.release(order_id)).reason is Reason.ORDER_AMBIGUOUS
    newcomer = Orders(stock, cluster, grace_s=0)
    released = await newcomer.release(order_id, product_id=products[0])
    assert released.outcome is Outcome.RELEASED
    assert [(await counts(stock, each))[1] for each in products] == [0, 1]


async def eventually_swept(orders: Orders, state: str) -> None:
    for _ in range(500):
        if (await sweep(orders))[state]:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"nothing was {state}")


async def test_a_line_that_was_refused_is_not_held_by_whoever_goes_on_with_the_order(
    orders: Orders, stock: Stock, load: LoadProduct, order_id: int
) -> None:
    products = [await load(3), await load(1)]
    lines = canonical([Line(each, 2) for each in products])
    wanted = Wanted(order_id, user_id=0, lines=lines, ttl_ms=60_000, sells=False, attempt=1)
    refused = await orders.reserve(order_id, user_id=0, lines=lines, ttl_s=TTL_S)
    assert refused.outcome is Outcome.INSUFFICIENT_STOCK
    await stock.restock(products[1], request_id="more", quantity=5, reason="")
    (late,) = await stock.deduct([reserving._further(wanted, wanted.lines[1])])
    again = await orders.reserve(order_id, user_id=0, lines=lines, ttl_s=TTL_S)
    assert late.outcome is Outcome.INSUFFICIENT_STOCK
    assert (again.outcome, again.replayed) == (Outcome.INSUFFICIENT_STOCK, True)
    assert list(again.short) == [lines[1]]
    assert [await counts(stock, each) for each in products] == [(3, 0, 0), (6, 0, 0)]
