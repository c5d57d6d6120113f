"""Calls on orders and the watch on events, of both clients, against a real server in this process."""

from collections.abc import AsyncIterator, Iterator

import grpc
import pytest

from inventory.client import (
    AsyncInventoryClient,
    CursorOutOfRange,
    EventKind,
    InvalidRequest,
    InventoryClient,
    NotEnoughStock,
    NotExecuted,
    OrderConfirmed,
    OrderExpired,
    OrderLine,
    OrderReleased,
    OrderState,
    Outcome,
    OutcomeUnknown,
    Overloaded,
    PreconditionFailed,
    RefundRequired,
    RequestMismatch,
    Reservation,
    RetryPolicy,
    UnknownOrder,
    UnknownProduct,
    UserLimit,
)
from inventory.v1 import inventory_pb2
from tests.unit.client_service import Fault, Health, Inventory, Product, serving

PATIENT = RetryPolicy(deadline_s=30.0, try_timeout_s=20.0, pause_s=0.001, pause_s_max=0.002)
BRIEF = RetryPolicy(deadline_s=30.0, try_timeout_s=20.0, pause_s=0.001, tries_max=3)
HASTY = RetryPolicy(deadline_s=30.0, try_timeout_s=0.2, pause_s=0.001, tries_max=3)
TWO_LINES = (OrderLine(1, 2), OrderLine(2, 3))


@pytest.fixture
def inventory() -> Inventory:
    own = Inventory()
    own.products[1] = Product(total=100, available=100)
    own.products[2] = Product(total=100, available=100)
    return own


@pytest.fixture
def target(inventory: Inventory) -> Iterator[str]:
    with serving(inventory, Health()) as address:
        yield address


@pytest.fixture
async def client(target: str) -> AsyncIterator[AsyncInventoryClient]:
    async with AsyncInventoryClient(target, policy=PATIENT) as own:
        yield own


async def test_an_order_is_held_then_sold(client, inventory):
    held = await client.reserve(5, TWO_LINES, user_id=9, ttl_s=60)
    sold = await client.confirm(5)
    assert (held.held, held.sold, held.order.state) == (True, False, OrderState.HELD)
    assert held.order.lines == TWO_LINES
    assert (sold.outcome, sold.sold, sold.order.user_id) == (Outcome.CONFIRMED, True, 9)
    assert (inventory.products[1].sold, inventory.products[2].sold) == (2, 3)


async def test_an_order_that_is_short_names_its_short_lines(client, inventory):
    inventory.products[2].available = 1
    result = await client.reserve(5, TWO_LINES)
    assert (result.outcome, result.short_lines) == (
        Outcome.INSUFFICIENT_STOCK,
        (OrderLine(2, 3),),
    )
    assert result.order is None
    assert inventory.products[1].held == 0


async def test_an_order_is_sold_in_one_call(client, inventory):
    first = await client.deduct_order(5, TWO_LINES)
    again = await client.deduct_order(5, TWO_LINES)
    assert (first.outcome, first.replayed) == (Outcome.CONFIRMED, False)
    assert (again.outcome, again.replayed) == (Outcome.CONFIRMED, True)
    assert inventory.products[2].sold == 3


async def test_what_was_held_is_given_back_once(client, inventory):
    await client.reserve(5, TWO_LINES)
    first = await client.release(5, product_id=1)
    again = await client.release(5)
    assert (first.outcome, first.replayed) == (Outcome.RELEASED, False)
    assert (again.outcome, again.replayed) == (Outcome.RELEASED, True)
    assert inventory.products[1].available == 100


async def test_a_late_confirmation_is_a_verdict_and_no_error(client, inventory):
    for order_id in (5, 6):
        await client.reserve(order_id, [OrderLine(1, 60 if order_id == 5 else 40)])
        inventory.orders.expire(order_id)
    retaken = await client.confirm(5)
    inventory.products[1].available = 0
    refund = await client.confirm(6)
    assert (retaken.outcome, retaken.sold, retaken.order.retaken) == (Outcome.RETAKEN, True, True)
    assert (refund.outcome, refund.sold) == (Outcome.REFUND_REQUIRED, False)


@pytest.mark.parametrize(
    ("end", "kind"),
    [("confirm", OrderConfirmed), ("expire", None)],
)
async def test_a_release_says_how_else_the_order_ended(client, inventory, end, kind):
    await client.reserve(5, TWO_LINES)
    if kind:
        await client.confirm(5)
        with pytest.raises(kind) as caught:
            await client.release(5)
        assert caught.value.order_id == 5
    else:
        inventory.orders.expire(5)
        assert (await client.release(5)).outcome is Outcome.EXPIRED


@pytest.mark.parametrize(
    ("outcome", "reason", "kind"),
    [
        ("RELEASED", "", OrderReleased),
        ("EXPIRED", "", OrderExpired),
        ("REFUND_REQUIRED", "", RefundRequired),
        ("UNKNOWN_PRODUCT", "", UnknownProduct),
        ("UNKNOWN_ORDER", "", UnknownOrder),
        ("REQUEST_MISMATCH", "", RequestMismatch),
        ("USER_LIMIT", "", UserLimit),
        ("INVALID", "USER_REQUIRED", InvalidRequest),
        ("FROZEN", "PRODUCT_CLOSED", PreconditionFailed),
    ],
)
async def test_a_refusal_is_raised_at_once_and_names_the_order(
    client, inventory, outcome, reason, kind
):
    inventory.orders.answers[5].append((outcome, reason))
    with pytest.raises(kind) as caught:
        await client.reserve(5, TWO_LINES)
    assert caught.value.order_id == 5
    assert "order 5" in str(caught.value)
    assert len(inventory.orders.requests) == 1


async def test_what_was_refused_cannot_be_confirmed_and_need_not_be_released(client, inventory):
    inventory.orders.answers[5].extend([("INSUFFICIENT_STOCK", "")] * 2)
    with pytest.raises(NotEnoughStock):
        await client.confirm(5)
    assert (await client.release(5)).outcome is Outcome.INSUFFICIENT_STOCK


@pytest.mark.parametrize(
    ("outcome", "reason", "kind"),
    [
        ("UNAVAILABLE", "NOT_EXECUTED", NotExecuted),
        ("UNAVAILABLE", "OUTCOME_UNKNOWN", OutcomeUnknown),
        ("OVERLOADED", "QUEUE_FULL", Overloaded),
    ],
)
async def test_what_passes_is_raised_after_the_last_try(target, inventory, outcome, reason, kind):
    inventory.orders.answers[5].extend([(outcome, reason)] * 3)
    async with AsyncInventoryClient(target, policy=BRIEF) as client:
        with pytest.raises(kind) as caught:
            await client.confirm(5)
    assert caught.value.reason == reason
    assert len(inventory.orders.requests) == 3


@pytest.mark.parametrize(("attempt", "sent"), [(0, [0, 2, 2]), (1, [1, 2, 3]), (5, [5, 6, 7])])
async def test_a_retry_has_the_same_order_and_a_rising_attempt(client, inventory, attempt, sent):
    inventory.orders.answers[5].extend([("UNAVAILABLE", "NOT_EXECUTED")] * 2)
    await client.reserve(5, TWO_LINES, attempt=attempt)
    assert [request.attempt for request in inventory.orders.requests] == sent
    assert {request.order_id for request in inventory.orders.requests} == {5}


@pytest.mark.parametrize("hangs", [False, True])
async def test_a_lost_reply_holds_the_units_once(target, inventory, hangs):
    inventory.order_faults.append(Fault(acts_first=True, hangs=hangs))
    async with AsyncInventoryClient(target, policy=HASTY) as client:
        result = await client.reserve(5, TWO_LINES)
    assert (result.outcome, result.replayed) == (Outcome.HELD, True)
    assert inventory.products[1].held == 2


@pytest.mark.parametrize("later", [("USER_LIMIT", ""), ("FROZEN", ""), ("OVERLOADED", "")])
async def test_a_doubt_outlives_what_later_copies_say_of_themselves(target, inventory, later):
    inventory.orders.answers[5].extend([("UNAVAILABLE", "OUTCOME_UNKNOWN"), *[later] * 3])
    async with AsyncInventoryClient(target, policy=BRIEF) as client:
        with pytest.raises(OutcomeUnknown) as caught:
            await client.reserve(5, TWO_LINES)
    assert caught.value.order_id == 5
    assert "send the same order_id again" in str(caught.value)


@pytest.mark.parametrize("outcome", ["RELEASED", "EXPIRED", "UNKNOWN_ORDER"])
async def test_how_an_order_ended_ends_a_doubt(target, inventory, outcome):
    inventory.orders.answers[5].extend([("UNAVAILABLE", "OUTCOME_UNKNOWN"), (outcome, "")])
    async with AsyncInventoryClient(target, policy=BRIEF) as client:
        with pytest.raises((OrderReleased, OrderExpired, UnknownOrder)):
            await client.confirm(5)


async def test_a_batch_has_an_outcome_for_each_order_and_sends_again_what_passes(client, inventory):
    inventory.orders.answers[6].append(("UNAVAILABLE", "NOT_EXECUTED"))
    inventory.orders.answers[7].append(("USER_LIMIT", ""))
    items = [Reservation(each, TWO_LINES, ttl_s=60, attempt=1) for each in (5, 6, 7)]
    held = await client.batch_reserve(items)
    assert [each.order_id for each in held] == [5, 6, 7]
    assert [each.outcome for each in held] == [Outcome.HELD, Outcome.HELD, Outcome.USER_LIMIT]
    sent = [(request.order_id, request.attempt) for request in inventory.orders.requests]
    assert sent == [(5, 1), (6, 1), (7, 1), (6, 2)]
    confirmed = await client.batch_confirm([5, 9])
    assert [each.outcome for each in confirmed] == [Outcome.CONFIRMED, Outcome.UNKNOWN_ORDER]
    sold = await client.batch_deduct_order([Reservation(8, TWO_LINES)])
    assert [each.outcome for each in sold] == [Outcome.CONFIRMED]
    released = await client.batch_release([6, 5])
    assert [each.outcome for each in released] == [Outcome.RELEASED, Outcome.CONFIRMED]


async def test_a_batch_of_orders_that_never_arrived_says_so_of_each():
    async with AsyncInventoryClient("127.0.0.1:1", policy=BRIEF) as client:
        results = await client.batch_release([5, 6])
    assert [each.outcome for each in results] == [Outcome.NOT_EXECUTED] * 2


async def test_a_hold_is_extended_and_read(client):
    await client.reserve(5, TWO_LINES, ttl_s=60)
    assert (await client.extend_hold(5, 90)).expires_ms == 90_000
    assert (await client.get_order(5)).expires_ms == 90_000
    await client.release(5)
    with pytest.raises(OrderReleased):
        await client.extend_hold(5, 90)
    with pytest.raises(UnknownOrder):
        await client.get_order(6)


async def test_an_end_of_the_order_is_known_though_an_earlier_extension_was_lost(client, inventory):
    await client.reserve(5, TWO_LINES)
    await client.release(5)
    inventory.order_faults.append(Fault(grpc.StatusCode.DEADLINE_EXCEEDED))
    with pytest.raises(OrderReleased):
        await client.extend_hold(5, 90)


async def test_holds_are_listed_and_released_by_force(client):
    await client.reserve(5, TWO_LINES, user_id=9)
    page = await client.list_holds(product_id=2)
    assert [(each.order_id, each.quantity, each.user_id) for each in page.holds] == [(5, 3, 9)]
    assert (await client.force_release(5, reason="stuck", actor="ops")).state is OrderState.RELEASED


def happened(inventory: Inventory, *order_ids: int) -> None:
    for order_id in order_ids:
        inventory.orders.happen(inventory_pb2.EVENT_KIND_ORDER_EXPIRED, order_id=order_id)


async def test_a_watch_on_events_goes_on_from_its_last_cursor(client, inventory):
    happened(inventory, 5, 6)
    watch = client.watch_events(cursor="0")
    seen = [await anext(watch), await anext(watch)]
    happened(inventory, 7)
    seen.append(await anext(watch))
    await watch.aclose()
    assert [each.order_id for each in seen] == [5, 6, 7]
    assert [each.kind for each in seen] == [EventKind.ORDER_EXPIRED] * 3
    assert [each.cursor for each in inventory.orders.watches][:2] == ["0", "2"]


async def test_a_watch_without_a_cursor_misses_nothing_after_its_first_stream(client, inventory):
    happened(inventory, 5)
    watch = client.watch_events(cursors=True)
    begin = await anext(watch)
    happened(inventory, 6)
    async for event in watch:
        if event.kind is not EventKind.UNSPECIFIED:
            break
    await watch.aclose()
    assert (begin.cursor, begin.kind) == ("1", EventKind.UNSPECIFIED)
    assert event.order_id == 6


@pytest.mark.parametrize(("cursor", "reason"), [("1", "CURSOR_TOO_OLD"), ("4", "CURSOR_AHEAD")])
async def test_a_watch_from_a_cursor_that_is_not_kept_ends(client, inventory, cursor, reason):
    happened(inventory, 5, 6, 7)
    inventory.orders.pruned = 2
    with pytest.raises(CursorOutOfRange) as caught:
        await anext(client.watch_events(cursor=cursor))
    assert (caught.value.code, caught.value.reason) == ("OUT_OF_RANGE", reason)
    assert len(inventory.orders.watches) == 1


async def test_a_watch_names_the_kinds_and_products_that_it_wants(client, inventory):
    happened(inventory, 5)
    inventory.orders.happen(inventory_pb2.EVENT_KIND_SOLD_OUT, product_id=1)
    watch = client.watch_events(cursor="0", kinds=[EventKind.SOLD_OUT], product_ids=[1])
    event = await anext(watch)
    await watch.aclose()
    assert (event.kind, event.product_id, event.cursor) == (EventKind.SOLD_OUT, 1, "2")
    assert inventory.orders.watches[0].product_ids == [1]


def test_the_client_for_threads_has_the_same_orders(target, inventory):
    with InventoryClient(target, policy=PATIENT) as client:
        inventory.order_faults.append(Fault(acts_first=True))
        assert client.reserve(5, TWO_LINES).replayed
        assert client.extend_hold(5, 90).expires_ms == 90_000
        assert client.confirm(5).outcome is Outcome.CONFIRMED
        assert client.get_order(5).state is OrderState.CONFIRMED
        assert client.deduct_order(6, TWO_LINES).sold
        with pytest.raises(OrderConfirmed):
            client.release(6)
        assert [each.outcome for each in client.batch_reserve([Reservation(7, TWO_LINES)])] == [
            Outcome.HELD
        ]
        assert [each.outcome for each in client.batch_confirm([7])] == [Outcome.CONFIRMED]
        assert [each.outcome for each in client.batch_release([8])] == [Outcome.RELEASED]
        assert client.list_holds().holds == ()
        happened(inventory, 5, 6)
        watch = client.watch_events(cursor="0")
        assert [next(watch).order_id, next(watch).order_id] == [5, 6]
        watch.close()
        with pytest.raises(CursorOutOfRange):
            next(client.watch_events(cursor="3"))
