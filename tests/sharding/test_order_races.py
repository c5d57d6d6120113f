"""What of orders goes wrong only when calls break off, come twice or come late."""

import asyncio
from functools import partial
from itertools import count

import pytest

from sharding.cluster import Cluster
from sharding.coordinator import BARRED, Coordinator, LineEnd, Want, Wish
from sharding.events import Kind, Status
from sharding.ordering import Orders
from sharding.orders import Line, Order, OrderState, request_id_of
from sharding.outcomes import Answer, Deduction, Outcome, Reason, Resolution, Resolved
from sharding.partitions import Partitions
from sharding.placement import Layout, home_shard
from sharding.plans import LoadPlan
from sharding.shards import Shards, Tombstone
from sharding.stock import Stock
from tests.sharding.conftest import LoadProduct, events_of

_order_ids = count(2_000_001)
_limited = count(7_950_001)
TTL_S = 600.0


@pytest.fixture
async def orders(stock: Stock, cluster: Cluster) -> Orders:
    return Orders(stock, cluster, grace_s=0)


@pytest.fixture
def coordinator(orders: Orders) -> Coordinator:
    return orders._coordinator


@pytest.fixture
def order_id() -> int:
    return next(_order_ids)


@pytest.fixture
async def limited(stock: Stock) -> int:
    """A product of which a user may have four units, in three shards."""
    product = next(_limited)
    await stock.load(LoadPlan(product, 1, Layout(1, 3), (10, 10, 10), 0, 0, max_per_user=4))
    return product


async def counts(stock: Stock, product_id: int) -> tuple[int, int, int]:
    """Available, held, sold."""
    seen = await stock.read(product_id)
    assert seen is not None
    return seen.available, seen.held, seen.sold


async def held(orders: Orders, order_id: int, *lines: Line, ttl_s: float = TTL_S) -> Order:
    """The order, which is held now."""
    answer = await orders.reserve(order_id, user_id=7, lines=lines, ttl_s=ttl_s)
    assert answer.outcome is Outcome.HELD
    assert answer.order is not None
    return answer.order


async def home_of(stock: Stock, product_id: int) -> int:
    """The partition of a product's only shard."""
    seen = await stock.read(product_id)
    assert seen is not None
    return seen.shards[0].partition


async def until_expired(orders: Orders, order_id: int) -> None:
    for _ in range(500):
        if (await orders.get(order_id)).outcome is not Outcome.HELD:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the hold does not end")


async def test_an_end_that_is_told_twice_ends_a_hold_once(
    orders: Orders, stock: Stock, coordinator: Coordinator, load: LoadProduct, order_id: int
) -> None:
    product, other = await load(5, 5), await load(5, 5)
    order = await held(orders, order_id, Line(product, 2), Line(other, 2))
    await held(orders, next(_order_ids), Line(other, 5))
    assert (await orders.release(order_id)).outcome is Outcome.RELEASED
    place = int(order.held[1].place)
    end = LineEnd(request_id_of(order_id, product), OrderState.RELEASED, 2, 7)
    assert await coordinator.settle(place, other, end) is Status.REPLAYED
    otherwise = end._replace(why=OrderState.CONFIRMED)
    assert await coordinator.settle(place, other, otherwise) is Status.MISMATCH
    assert await counts(stock, other) == (5, 5, 0)


async def test_a_word_of_delivery_that_was_held_up_says_nothing_of_a_later_state(
    orders: Orders, stock: Stock, coordinator: Coordinator, load: LoadProduct, order_id: int
) -> None:
    product, other = await load(5), await load(5)
    partition = await home_of(stock, product)
    await held(orders, order_id, Line(product, 1), Line(other, 1), ttl_s=0.05)
    await until_expired(orders, order_id)
    for what in (Wish.RETAKE, Wish.SELL_RETAKEN):
        lines = f"{product}:1:{partition},{other}:1:{partition}"
        decided = await coordinator.decide_known(partition, product, Want(order_id, what, 0, lines))
        assert decided.has_changed
    for state, is_open in (("E", True), ("K", False)):
        word = Want(order_id, Wish.CLOSE, lines=state)
        decided = await coordinator.decide_known(partition, product, word)
        assert decided.order is not None
        assert decided.order.is_open is is_open


@pytest.mark.parametrize("asks", ["confirm", "get", "extend", "release"])
async def test_who_is_told_of_a_release_that_broke_off_completes_it(
    orders: Orders,
    stock: Stock,
    coordinator: Coordinator,
    load: LoadProduct,
    order_id: int,
    asks: str,
) -> None:
    product = await load(3)
    await coordinator.bar((await home_of(stock, product) + 1) % 48, [order_id])
    asking = partial(orders.extend, ttl_s=TTL_S) if asks == "extend" else getattr(orders, asks)
    answer = await asking(order_id)
    late = await orders.reserve(order_id, user_id=7, lines=[Line(product, 1)], ttl_s=TTL_S)
    assert (answer.outcome, late.outcome) == (Outcome.RELEASED, Outcome.RELEASED)
    assert await counts(stock, product) == (3, 0, 0)


async def test_an_order_is_found_though_its_former_home_was_told_of_a_release(
    orders: Orders, stock: Stock, cluster: Cluster, coordinator: Coordinator, load: LoadProduct
) -> None:
    product = await load(9)
    former = await home_of(stock, product)
    assert await stock.change_layout(product, version=3, shards=3, cause="operator")
    order_id = next(i for i in _order_ids if home_shard(request_id_of(i, product), 3))
    await held(orders, order_id, Line(product, 2))
    # As by a release that came there first, and to the order's home after the order.
    assert await coordinator.bar(former, [order_id]) == [BARRED]
    elsewhere = Stock(cluster, stock.metrics)
    newcomer = Orders(elsewhere, cluster, grace_s=0)
    for attempt in (1, 2):  # a late first copy is looked for nowhere before it comes to its homes
        again = await newcomer.reserve(
            order_id, user_id=7, lines=[Line(product, 2)], ttl_s=TTL_S, attempt=attempt
        )
        assert (again.outcome, again.replayed) == (Outcome.HELD, True)
    await newcomer.drain()
    await elsewhere.drain()
    assert await counts(stock, product) == (7, 2, 0)


async def test_a_line_that_is_decided_never_to_come_is_an_event_that_can_be_read(
    stock: Stock, partitions: Partitions, load: LoadProduct, order_id: int
) -> None:
    product = await load(3)
    line_id = request_id_of(order_id, product)
    found = await stock.resolve(product, line_id)
    assert found == Resolved(Resolution.NEVER)
    *_, tombstone = await events_of(partitions, product)
    assert (tombstone.kind, tombstone.request_id) == (Kind.TOMBSTONE, line_id)


async def test_a_users_room_comes_back_with_a_hold(
    orders: Orders, stock: Stock, limited: int
) -> None:
    first, second = next(_order_ids), next(_order_ids)
    for order_id in (first, second):
        await held(orders, order_id, Line(limited, 2))
    (refused,) = await stock.deduct([Deduction("too-much", limited, 1, 7)])
    assert refused.outcome is Outcome.USER_LIMIT
    assert (await orders.release(first)).outcome is Outcome.RELEASED
    assert (await orders.confirm(second)).outcome is Outcome.CONFIRMED
    bought, refused = await stock.deduct(
        [Deduction("as-much", limited, 2, 7), Deduction("one-more", limited, 1, 7)]
    )
    assert (bought.outcome, refused.outcome) == (Outcome.DEDUCTED, Outcome.USER_LIMIT)


async def test_a_resolution_that_broke_off_at_one_shard_decides_nothing_at_the_others(
    stock: Stock, cluster: Cluster, limited: int
) -> None:
    shards = Shards(cluster, limited, Layout(1, 3))
    home = home_shard("7", 3)
    elsewhere = shards.partitions[(home + 1) % 3]
    for request_id in ("sold", "never-sent"):
        await shards.resolve(elsewhere, request_id, Tombstone.NEVER, epoch=1)
    sold = Deduction("sold", limited, 2, 7)
    assert (await stock.deduct([sold]))[0].outcome is Outcome.DEDUCTED
    assert await stock.resolve(limited, "sold") == Resolved(Resolution.DEDUCTED, 2)
    assert await stock.resolve(limited, "never-sent") == Resolved(Resolution.NEVER)
    (late,) = await stock.deduct([Deduction("never-sent", limited, 1, 7)])
    assert late == Answer(Outcome.REQUEST_MISMATCH, reason=Reason.RESOLVED_NEVER)
