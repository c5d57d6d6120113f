"""Orders in one transaction: all lines or none, one end each, and the same answers as on Redis."""

import asyncio
from collections import Counter
from collections.abc import Sequence

import pytest

from ledger.engine.order_rows import due_orders
from ledger.holds import Holds
from ledger.settings import MysqlUrl
from sharding.orders import Line, OrderAnswer, OrderState
from sharding.outcomes import Outcome, Reason
from tests.engine.conftest import (
    NewProduct,
    Process,
    accepted,
    ask,
    assert_balanced,
    buying,
    order_ids,
    process,
    row_of,
)
from tests.ledger.conftest import fetch, write
from tests.waiting import eventually

Told = tuple[Outcome, bool]
PAST = (
    "UPDATE inventory_order SET deadline_time = create_time - INTERVAL 1 SECOND WHERE order_id = %s"
)


def told(answer: OrderAnswer) -> Told:
    return answer.outcome, answer.replayed


async def reserved(sender: Process, *lines: tuple[int, int], **fields: int) -> int:
    """An order that holds these lines; returns its id."""
    order_id = next(order_ids)
    answer = await reserve(sender, order_id, *lines, **fields)
    assert told(answer) == (Outcome.HELD, False)
    return order_id


async def reserve(
    sender: Process, order_id: int, *lines: tuple[int, int], attempt: int = 1, user_id: int = 0
) -> OrderAnswer:
    wanted = [Line(*line) for line in lines]
    return await sender.orders.reserve(
        order_id, user_id=user_id, lines=wanted, ttl_s=60, attempt=attempt
    )


async def make_late(sender: Process, order_id: int) -> None:
    """As if the time that the order is held for were over; nobody has looked yet."""
    assert await write(sender.database, PAST, order_id) == 1


async def journal(sender: Process, order_id: int) -> Sequence[tuple[object, ...]]:
    return await fetch(
        sender.database,
        "SELECT kind, type, quantity, remark FROM inventory_log WHERE order_id = %s ORDER BY id",
        order_id,
    )


async def test_lines_are_summed_by_product_held_and_sold_together(
    one: Process, other: Process, on_sale: NewProduct
) -> None:
    first, second = await on_sale(10), await on_sale(10)
    order_id = await reserved(one, (second, 1), (first, 2), (second, 2), user_id=7)
    (hold, _) = await Holds(one.database).page(user_id=7)
    stock = await one.stock.read(first)
    confirmed = await other.orders.confirm(order_id)
    assert (hold.order_id, hold.product_id, hold.quantity, hold.partition) == (
        order_id,
        first,
        2,
        0,
    )
    assert stock is not None
    assert (stock.available, stock.held, stock.total) == (8, 2, 10)
    assert confirmed.order is not None
    assert confirmed.order.lines == (Line(first, 2), Line(second, 3))
    assert told(confirmed) == (Outcome.CONFIRMED, False)
    assert told(await one.orders.confirm(order_id)) == (Outcome.CONFIRMED, True)
    assert await journal(one, order_id) == [
        ("reserve", 1, -2, ""),
        ("reserve", 1, -3, ""),
        ("confirm", 2, -2, ""),
        ("confirm", 2, -3, ""),
    ]
    assert await Holds(one.database).page(user_id=7) == []
    for product_id, units in ((first, 2), (second, 3)):
        assert (await assert_balanced(one, product_id)).sold_count == units


async def test_an_order_that_is_sold_at_once_was_never_held(
    one: Process, on_sale: NewProduct
) -> None:
    product_id, order_id = await on_sale(10), next(order_ids)
    lines = [Line(product_id, 4)]
    sold = await one.orders.sell(order_id, user_id=0, lines=lines, attempt=1)
    again = await one.orders.sell(order_id, user_id=0, lines=lines)
    assert (told(sold), told(again)) == ((Outcome.CONFIRMED, False), (Outcome.CONFIRMED, True))
    assert await journal(one, order_id) == [("deduct", 5, -4, "")]
    assert (await assert_balanced(one, product_id)).sold_count == 4


async def test_an_order_that_is_held_can_be_sold_by_the_other_call(
    one: Process, on_sale: NewProduct
) -> None:
    product_id = await on_sale(10)
    order_id = await reserved(one, (product_id, 4))
    sold = await one.orders.sell(order_id, user_id=0, lines=[Line(product_id, 4)])
    assert told(sold) == (Outcome.CONFIRMED, False)
    assert (await assert_balanced(one, product_id)).sold_count == 4


async def test_the_same_order_is_held_once_and_another_content_is_a_mismatch(
    one: Process, other: Process, on_sale: NewProduct
) -> None:
    """One unit: Reserve of one, at once in two processes and once more; then of two."""
    product_id, order_id = await on_sale(1), next(order_ids)
    both = await asyncio.gather(
        *(reserve((one, other)[i % 2], order_id, (product_id, 1), attempt=0) for i in range(10))
    )
    assert Counter(map(told, both)) == {(Outcome.HELD, False): 1, (Outcome.HELD, True): 9}
    assert told(await reserve(one, order_id, (product_id, 1))) == (Outcome.HELD, True)
    for answer in (
        await reserve(other, order_id, (product_id, 2)),
        await reserve(other, order_id, (product_id, 1), user_id=5),
        await reserve(other, order_id, (await on_sale(1), 1)),
    ):
        assert told(answer) == (Outcome.REQUEST_MISMATCH, False)
    assert (await assert_balanced(one, product_id)).held_stock == 1


async def test_short_lines_are_all_named_and_nothing_of_the_order_is_held(
    one: Process, on_sale: NewProduct
) -> None:
    first, second, third = await on_sale(5), await on_sale(1), await on_sale(1)
    order_id = next(order_ids)
    lines = ((first, 2), (second, 2), (third, 3))
    refused = await reserve(one, order_id, *lines)
    assert told(refused) == (Outcome.INSUFFICIENT_STOCK, False)
    assert refused.short == (Line(second, 2), Line(third, 3))
    assert refused.order is not None
    assert refused.order.state is OrderState.REFUSED
    again = await reserve(one, order_id, *lines)
    assert (told(again), again.short) == ((Outcome.INSUFFICIENT_STOCK, True), refused.short)
    assert told(await one.orders.release(order_id)) == (Outcome.INSUFFICIENT_STOCK, True)
    assert told(await one.orders.confirm(order_id)) == (Outcome.INSUFFICIENT_STOCK, True)
    for product_id in (first, second, third):
        assert (await assert_balanced(one, product_id)).held_stock == 0


async def test_of_a_first_line_that_is_short_only_a_retrys_refusal_is_remembered(
    one: Process, on_sale: NewProduct
) -> None:
    first, second = await on_sale(1), await on_sale(1)
    fresh, retried = next(order_ids), next(order_ids)
    lines = ((first, 2), (second, 2))
    for order_id, attempt in ((fresh, 1), (retried, 2)):
        refused = await reserve(one, order_id, *lines, attempt=attempt)
        assert told(refused) == (Outcome.INSUFFICIENT_STOCK, False)
        assert (refused.order, refused.short) == (None, (Line(first, 2), Line(second, 2)))
    for product_id in (first, second):
        await one.stock.restock(product_id, request_id="more", quantity=5, reason="")
    assert told(await reserve(one, fresh, *lines)) == (Outcome.HELD, False)
    again = await reserve(one, retried, *lines)
    assert (told(again), again.short) == ((Outcome.INSUFFICIENT_STOCK, True), (Line(first, 2),))
    assert told(await reserve(one, retried, (first, 1))) == (Outcome.REQUEST_MISMATCH, False)
    assert told(await one.orders.confirm(retried)) == (Outcome.UNKNOWN_ORDER, False)


async def test_thirty_orders_of_three_lines_and_one_unit_too_few(
    one: Process, other: Process, on_sale: NewProduct
) -> None:
    products = [await on_sale(units) for units in (30, 29, 30)]

    async def order(i: int) -> OrderAnswer:
        lines = [(product_id, 1) for product_id in products[i % 3 :] + products[: i % 3]]
        return await reserve((one, other)[i % 2], next(order_ids), *lines)

    answers = await asyncio.gather(*(order(i) for i in range(30)))
    assert Counter(map(told, answers)) == {
        (Outcome.HELD, False): 29,
        (Outcome.INSUFFICIENT_STOCK, False): 1,
    }
    rows = [await assert_balanced(one, product_id) for product_id in products]
    assert [(row.held_stock, row.available_stock) for row in rows] == [(29, 1), (29, 0), (29, 1)]


async def test_twenty_releases_at_once_give_the_units_back_once(
    one: Process, other: Process, on_sale: NewProduct
) -> None:
    product_id = await on_sale(10)
    order_id = await reserved(one, (product_id, 3))
    answers = await asyncio.gather(
        *((one, other)[i % 2].orders.release(order_id) for i in range(20))
    )
    assert Counter(map(told, answers)) == {
        (Outcome.RELEASED, False): 1,
        (Outcome.RELEASED, True): 19,
    }
    row = await assert_balanced(one, product_id)
    assert (row.available_stock, row.held_stock) == (10, 0)


@pytest.mark.parametrize("winner", ["confirm", "release"])
async def test_the_first_end_of_an_order_stays_its_end(
    one: Process, other: Process, on_sale: NewProduct, winner: str
) -> None:
    product_id = await on_sale(10)
    order_id = await reserved(one, (product_id, 3))
    calls = {"confirm": one.orders.confirm, "release": other.orders.release}
    end = Outcome.CONFIRMED if winner == "confirm" else Outcome.RELEASED
    assert told(await calls.pop(winner)(order_id)) == (end, False)
    (loser,) = calls.values()
    assert told(await loser(order_id)) == (end, True)
    assert told(await one.orders.get(order_id)) == (end, True)
    row = await assert_balanced(one, product_id)
    assert (row.available_stock, row.sold_count) == ((7, 3) if winner == "confirm" else (10, 0))


async def test_confirms_and_releases_of_many_orders_at_once_end_each_once(
    one: Process, other: Process, on_sale: NewProduct
) -> None:
    product_id = await on_sale(60)
    ids = [await reserved(one, (product_id, 3)) for _ in range(20)]
    answers = await asyncio.gather(
        *(one.orders.confirm(order_id) for order_id in ids),
        *(other.orders.release(order_id) for order_id in ids),
    )
    for confirm, release in zip(answers[:20], answers[20:], strict=True):
        assert confirm.outcome is release.outcome
        assert sorted((confirm.replayed, release.replayed)) == [False, True]
    row = await assert_balanced(one, product_id)
    assert row.held_stock == 0


async def test_a_hold_whose_time_is_over_counts_as_expired_for_every_call(
    one: Process, on_sale: NewProduct
) -> None:
    product_id = await on_sale(30)
    got, released, extended, repeated = [await reserved(one, (product_id, 3)) for _ in range(4)]
    for order_id in (got, released, extended, repeated):
        await make_late(one, order_id)
    assert told(await one.orders.get(got)) == (Outcome.EXPIRED, False)
    assert told(await one.orders.get(got)) == (Outcome.EXPIRED, True)
    assert told(await one.orders.release(released)) == (Outcome.EXPIRED, False)
    assert told(await one.orders.extend(extended, 60)) == (Outcome.EXPIRED, False)
    assert told(await reserve(one, repeated, (product_id, 3))) == (Outcome.EXPIRED, True)
    row = await assert_balanced(one, product_id)
    assert (row.available_stock, row.held_stock) == (30, 0)


async def test_a_late_payment_is_retaken_where_units_are_left_and_else_refunded(
    one: Process, on_sale: NewProduct
) -> None:
    """Hold all, let it expire, somebody else takes them, confirm: never sold twice."""
    lucky, unlucky = await on_sale(3), await on_sale(3)
    retaken, refunded = [await reserved(one, (each, 3), user_id=7) for each in (lucky, unlucky)]
    for order_id in (retaken, refunded):
        await make_late(one, order_id)
        await one.orders.get(order_id)
    assert accepted(await ask(one, *buying(unlucky, 3))) == 3
    answers = [await one.orders.confirm(order_id) for order_id in (retaken, refunded)]
    again = [await one.orders.confirm(order_id) for order_id in (retaken, refunded)]
    assert list(map(told, answers)) == [(Outcome.RETAKEN, False), (Outcome.REFUND_REQUIRED, False)]
    assert list(map(told, again)) == [(Outcome.RETAKEN, True), (Outcome.REFUND_REQUIRED, True)]
    assert (await journal(one, retaken))[1:] == [
        ("release", 3, 3, "expired"),
        ("reserve", 1, -3, ""),
        ("confirm", 2, -3, "retaken"),
    ]
    assert (await journal(one, refunded))[2:] == [("refund", 9, 0, "")]
    for product_id in (lucky, unlucky):
        assert (await assert_balanced(one, product_id)).sold_count == 3
    events = await fetch(
        one.database,
        "SELECT kind, product_id, order_id, user_id FROM service_event WHERE order_id IN (%s, %s)"
        " ORDER BY id",
        retaken,
        refunded,
    )
    assert events == [
        ("order_expired", lucky, retaken, 7),
        ("order_expired", unlucky, refunded, 7),
        ("refund_required", unlucky, refunded, 7),
    ]


async def test_a_late_payment_of_a_product_off_sale_is_refunded(
    one: Process, on_sale: NewProduct
) -> None:
    product_id = await on_sale(3)
    order_id = await reserved(one, (product_id, 3))
    await make_late(one, order_id)
    await one.orders.get(order_id)
    await one.lifecycle.close(product_id, wait_s=1)
    assert told(await one.orders.confirm(order_id)) == (Outcome.REFUND_REQUIRED, False)


async def test_a_confirmation_within_the_grace_counts(
    engine_url: MysqlUrl, on_sale: NewProduct
) -> None:
    product_id = await on_sale(3)
    async with process(engine_url, grace_s=30) as patient:
        order_id = await reserved(patient, (product_id, 3))
        late = "UPDATE inventory_order SET deadline_time = deadline_time - INTERVAL %s SECOND"
        await write(patient.database, f"{late} WHERE order_id = %s", 70, order_id)
        assert told(await patient.orders.confirm(order_id)) == (Outcome.CONFIRMED, False)


async def test_an_order_that_is_released_before_it_comes_holds_nothing(
    one: Process, other: Process, on_sale: NewProduct
) -> None:
    product_id, order_id = await on_sale(3), next(order_ids)
    assert told(await one.orders.confirm(order_id)) == (Outcome.UNKNOWN_ORDER, False)
    assert told(await one.orders.release(order_id)) == (Outcome.RELEASED, False)
    assert told(await other.orders.release(order_id)) == (Outcome.RELEASED, True)
    late = await reserve(other, order_id, (product_id, 1))
    assert (told(late), late.order) == ((Outcome.RELEASED, True), None)
    assert told(await one.orders.get(order_id)) == (Outcome.RELEASED, True)
    assert (await assert_balanced(one, product_id)).held_stock == 0


async def test_reserves_and_releases_of_new_orders_at_once_agree(
    one: Process, other: Process, on_sale: NewProduct
) -> None:
    product_id = await on_sale(100)
    ids = [next(order_ids) for _ in range(30)]
    await asyncio.gather(
        *(reserve(one, order_id, (product_id, 1)) for order_id in ids),
        *(other.orders.release(order_id) for order_id in ids),
    )
    ends = [told(await one.orders.release(order_id)) for order_id in ids]
    assert set(ends) == {(Outcome.RELEASED, True)}
    row = await assert_balanced(one, product_id)
    assert (row.available_stock, row.held_stock) == (100, 0)


async def test_an_extension_moves_a_deadline_only_to_a_later_time_and_not_beyond_the_bound(
    one: Process, on_sale: NewProduct
) -> None:
    order_id = await reserved(one, (await on_sale(3), 1))
    before = (await one.orders.get(order_id)).order
    shorter = await one.orders.extend(order_id, 1)
    longer = await one.orders.extend(order_id, 3_600)
    longest = await one.orders.extend(order_id, 43_200)
    too_long = await one.orders.extend(order_id, 43_201)
    orders = [answer.order for answer in (shorter, longer, longest)]
    assert before is not None
    deadlines = [order.deadline_ms for order in orders if order]
    assert deadlines[0] == before.deadline_ms < deadlines[1] < deadlines[2]
    assert deadlines[2] <= before.created_ms + 43_200_000
    assert told(longer) == (Outcome.HELD, False)
    assert (too_long.outcome, too_long.reason) == (Outcome.INVALID, Reason.TTL_TOO_LONG)
    await one.orders.release(order_id)
    assert told(await one.orders.extend(order_id, 60)) == (Outcome.RELEASED, True)


async def test_a_limit_per_user_counts_holds_and_sales_and_gives_back_what_ended(
    one: Process, other: Process, on_sale: NewProduct
) -> None:
    product_id = await on_sale(100, max_per_user=3)
    answers = await asyncio.gather(
        *(
            reserve((one, other)[i % 2], next(order_ids), (product_id, 1), user_id=7)
            for i in range(10)
        )
    )
    assert Counter(answer.outcome for answer in answers) == {
        Outcome.HELD: 3,
        Outcome.USER_LIMIT: 7,
    }
    held = [answer.order.order_id for answer in answers if answer.order]
    await one.orders.release(held[0])
    await make_late(one, held[1])
    await one.orders.get(held[1])
    await one.orders.confirm(held[2])
    lines = [Line(product_id, 3)]
    too_many = await one.orders.sell(next(order_ids), user_id=7, lines=lines)
    fitting = await one.orders.sell(next(order_ids), user_id=7, lines=[Line(product_id, 2)])
    nameless = await reserve(one, next(order_ids), (product_id, 1))
    assert too_many.outcome is Outcome.USER_LIMIT
    assert fitting.outcome is Outcome.CONFIRMED
    assert (nameless.outcome, nameless.reason) == (Outcome.INVALID, Reason.USER_REQUIRED)
    late = await one.orders.confirm(held[1])
    assert late.outcome is Outcome.REFUND_REQUIRED
    assert (await assert_balanced(one, product_id)).sold_count == 3


async def test_products_off_sale_and_unknown_ones_are_named_and_nothing_is_remembered(
    one: Process, on_sale: NewProduct
) -> None:
    sold, closed = await on_sale(5), await on_sale(5)
    await one.lifecycle.close(closed, wait_s=1)
    order_id = next(order_ids)
    frozen = await reserve(one, order_id, (sold, 1), (closed, 1))
    unknown = await reserve(one, order_id, (sold, 1), (closed + 10**6, 1))
    assert (frozen.outcome, frozen.reason) == (Outcome.FROZEN, Reason.PRODUCT_CLOSED)
    assert unknown.outcome is Outcome.UNKNOWN_PRODUCT
    assert told(await reserve(one, order_id, (sold, 1))) == (Outcome.HELD, False)


async def test_sweeps_of_two_processes_end_each_order_once(
    one: Process, other: Process, on_sale: NewProduct
) -> None:
    product_id = await on_sale(300)
    ids = await asyncio.gather(*(reserved(one, (product_id, 1)) for _ in range(250)))
    places = ", ".join(["%s"] * len(ids))
    await write(
        one.database,
        "UPDATE inventory_order SET deadline_time = create_time - INTERVAL 1 SECOND"
        f" WHERE order_id IN ({places})",
        *ids,
    )
    assert (await one.stock.read(product_id)).held == 250
    await asyncio.gather(one.expiry.sweep(), other.expiry.sweep())
    row = await assert_balanced(one, product_id)
    assert (row.available_stock, row.held_stock) == (300, 0)
    told_of = await fetch(
        one.database,
        f"SELECT COUNT(*), COUNT(DISTINCT order_id) FROM service_event WHERE order_id IN ({places})",
        *ids,
    )
    assert told_of == [(250, 250)]


async def test_the_sweeping_loop_ends_an_order_by_itself(one: Process, on_sale: NewProduct) -> None:
    product_id = await on_sale(3)
    order_id = await reserved(one, (product_id, 3))
    await make_late(one, order_id)
    ended = asyncio.Event()

    async def is_back() -> bool:
        return (await row_of(one, product_id)).available_stock == 3

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(one.expiry.run(ended))
        await eventually(is_back)
        ended.set()
    assert told(await one.orders.get(order_id)) == (Outcome.EXPIRED, True)


async def test_an_order_that_makes_no_sense_is_parked_and_the_others_end(
    one: Process, on_sale: NewProduct
) -> None:
    product_id = await on_sale(10)
    broken, sound = [await reserved(one, (product_id, 1)) for _ in range(2)]
    for order_id in (broken, sound):
        await make_late(one, order_id)
    await write(
        one.database, "UPDATE inventory_order SET order_lines = 'x' WHERE order_id = %s", broken
    )
    parked = one.metric("inventory_engine_orders_parked_total")
    await one.expiry.sweep()
    assert one.metric("inventory_engine_orders_parked_total") == parked + 1
    assert await due_orders(one.database, limit=10) == ([], 0)
    answers = await asyncio.gather(one.orders.get(broken), one.orders.get(sound))
    assert (answers[0].outcome, answers[0].reason) == (Outcome.UNAVAILABLE, Reason.SHARD_CORRUPT)
    assert answers[1].outcome is Outcome.EXPIRED
    assert (await row_of(one, product_id)).held_stock == 1
    await write(one.database, "DELETE FROM inventory_order WHERE order_id = %s", broken)


async def test_orders_barred_long_ago_are_forgotten(one: Process) -> None:
    old, young = next(order_ids), next(order_ids)
    for order_id in (old, young):
        await one.orders.release(order_id)
    await write(
        one.database,
        "UPDATE inventory_order SET deadline_time = deadline_time - INTERVAL 2 DAY"
        " WHERE order_id = %s",
        old,
    )
    await one.expiry.tidy()
    assert told(await one.orders.confirm(old)) == (Outcome.UNKNOWN_ORDER, False)
    assert told(await one.orders.confirm(young)) == (Outcome.RELEASED, True)


async def test_callers_who_leave_cut_no_order_in_two(one: Process, on_sale: NewProduct) -> None:
    first, second = await on_sale(50), await on_sale(50)
    ids = [next(order_ids) for _ in range(40)]
    for delay_ms, order_id in enumerate(ids):
        calling = asyncio.create_task(reserve(one, order_id, (first, 1), (second, 1)))
        await asyncio.sleep(delay_ms / 4_000)
        calling.cancel()
    await one.orders.drain()
    answers = [await reserve(one, order_id, (first, 1), (second, 1)) for order_id in ids]
    assert {answer.outcome for answer in answers} == {Outcome.HELD}
    for product_id in (first, second):
        assert (await assert_balanced(one, product_id)).held_stock == 40
