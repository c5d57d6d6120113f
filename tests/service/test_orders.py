"""Calls on orders as a caller sees them."""

import asyncio
from typing import Any

import grpc
import pytest
from grpc import StatusCode

from inventory.v1 import inventory_pb2
from inventory.v1.inventory_pb2 import (
    BatchConfirmRequest,
    BatchDeductOrderRequest,
    BatchExtendHoldRequest,
    BatchGetOrderRequest,
    BatchReleaseRequest,
    BatchReserveRequest,
    ConfirmRequest,
    DeductOrderRequest,
    ExtendHoldRequest,
    GetOrderRequest,
    OrderLine,
    ReleaseRequest,
    ReserveRequest,
)
from server.wire import OUTCOMES
from sharding.orders import Held, Line, Order, OrderAnswer, OrderState
from sharding.outcomes import Outcome, Reason
from tests.service.conftest import CALL_S, Limits, Service, details_of, failure_of, until

HELD_ORDER = Order(
    5, 9, OrderState.HELD, 61_000, 1_000, is_open=True, held=(Held(1, 2, "-"), Held(2, 3, "7"))
)
LINES = [OrderLine(product_id=1, quantity=2), OrderLine(product_id=2, quantity=3)]

CALLS = {
    "Reserve": ReserveRequest(order_id=5, lines=LINES),
    "DeductOrder": DeductOrderRequest(order_id=5, lines=LINES),
    "Confirm": ConfirmRequest(order_id=5),
    "Release": ReleaseRequest(order_id=5),
    "ExtendHold": ExtendHoldRequest(order_id=5, ttl_s=60),
}
SOLD = {Outcome.CONFIRMED, Outcome.RETAKEN}
VALUES = {
    "Reserve": {Outcome.HELD, Outcome.INSUFFICIENT_STOCK, *SOLD},
    "DeductOrder": {Outcome.INSUFFICIENT_STOCK, *SOLD},
    "Confirm": {Outcome.REFUND_REQUIRED, *SOLD},
    "Release": {Outcome.RELEASED, Outcome.EXPIRED, Outcome.INSUFFICIENT_STOCK},
    "ExtendHold": {Outcome.HELD, *SOLD},
}
REFUSALS = {
    Outcome.INSUFFICIENT_STOCK: (StatusCode.FAILED_PRECONDITION, "INSUFFICIENT_STOCK"),
    Outcome.UNKNOWN_PRODUCT: (StatusCode.NOT_FOUND, "UNKNOWN_PRODUCT"),
    Outcome.FROZEN: (StatusCode.FAILED_PRECONDITION, "FROZEN"),
    Outcome.REQUEST_MISMATCH: (StatusCode.ALREADY_EXISTS, "REQUEST_MISMATCH"),
    Outcome.INVALID: (StatusCode.INVALID_ARGUMENT, "INVALID"),
    Outcome.USER_LIMIT: (StatusCode.FAILED_PRECONDITION, "USER_LIMIT"),
    Outcome.OVERLOADED: (StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED"),
    Outcome.UNAVAILABLE: (StatusCode.UNAVAILABLE, "UNAVAILABLE"),
    Outcome.HELD: (StatusCode.FAILED_PRECONDITION, "ORDER_HELD"),
    Outcome.CONFIRMED: (StatusCode.FAILED_PRECONDITION, "ORDER_CONFIRMED"),
    Outcome.RELEASED: (StatusCode.FAILED_PRECONDITION, "ORDER_RELEASED"),
    Outcome.EXPIRED: (StatusCode.FAILED_PRECONDITION, "ORDER_EXPIRED"),
    Outcome.RETAKEN: (StatusCode.FAILED_PRECONDITION, "ORDER_CONFIRMED"),
    Outcome.REFUND_REQUIRED: (StatusCode.FAILED_PRECONDITION, "REFUND_REQUIRED"),
    Outcome.UNKNOWN_ORDER: (StatusCode.NOT_FOUND, "UNKNOWN_ORDER"),
}


async def call(service: Service, name: str, request: Any, **options: Any) -> Any:
    return await getattr(service.inventory, name)(request, timeout=CALL_S, **options)


async def reserve(service: Service, order_id: int = 5, **fields: Any) -> Any:
    request = ReserveRequest(**{"order_id": order_id, "lines": LINES, **fields})
    return await call(service, "Reserve", request)


async def test_an_order_is_held_with_its_lines_and_its_time(service: Service) -> None:
    answer = await reserve(service, user_id=9)
    order = answer.order
    assert (answer.outcome, answer.replayed) == (inventory_pb2.OUTCOME_HELD, False)
    assert (order.order_id, order.user_id, order.state) == (5, 9, inventory_pb2.ORDER_STATE_HELD)
    assert list(order.lines) == LINES
    assert (order.created_ms, order.expires_ms) == (1_000, 60_000)


async def test_lines_of_one_product_are_one_line_and_lines_go_by_product(service: Service) -> None:
    lines = [(2, 3), (1, 2), (2, 4)]
    await reserve(service, lines=[OrderLine(product_id=p, quantity=q) for p, q in lines])
    ((_, _, fields),) = service.orders.calls
    assert fields["lines"] == (Line(1, 2), Line(2, 7))


@pytest.mark.parametrize(("ttl_s", "meant_s"), [(0, 1_800), (1, 1), (43_200, 43_200)])
async def test_a_time_of_nothing_is_the_default(
    service: Service, ttl_s: int, meant_s: float
) -> None:
    await reserve(service, ttl_s=ttl_s)
    ((_, _, fields),) = service.orders.calls
    assert fields["ttl_s"] == meant_s


@pytest.mark.parametrize(
    ("metadata", "attempt", "meant"),
    [
        ((), 1, 1),
        ((("x-envoy-attempt-count", "2"),), 1, 2),
        ((("x-envoy-attempt-count", "1"),), 1, 1),
        ((("x-envoy-attempt-count", "2"),), 0, 0),
    ],
)
@pytest.mark.parametrize("name", ["Reserve", "DeductOrder", "BatchReserve"])
async def test_an_order_that_was_resent_on_its_way_is_no_first_try(
    service: Service, name: str, metadata: Any, attempt: int, meant: int
) -> None:
    requests = {
        "Reserve": ReserveRequest(order_id=5, lines=LINES, attempt=attempt),
        "DeductOrder": DeductOrderRequest(order_id=5, lines=LINES, attempt=attempt),
    }
    requests["BatchReserve"] = BatchReserveRequest(items=[requests["Reserve"]])
    await call(service, name, requests[name], metadata=metadata)
    ((_, _, fields),) = service.orders.calls
    assert fields["attempt"] == meant


async def test_an_order_is_sold_at_once(service: Service) -> None:
    answer = await call(service, "DeductOrder", CALLS["DeductOrder"])
    assert answer.outcome == inventory_pb2.OUTCOME_CONFIRMED
    assert answer.order.state == inventory_pb2.ORDER_STATE_CONFIRMED


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("outcome", sorted(set(Outcome) - {Outcome.DEDUCTED}))
async def test_an_outcome_is_a_value_or_a_status_as_the_contract_says(
    service: Service, name: str, outcome: Outcome
) -> None:
    service.orders.answers = [OrderAnswer(outcome, HELD_ORDER)]
    if outcome in VALUES[name]:
        answer = await call(service, name, CALLS[name])
        assert answer.order.order_id == 5
        if name != "ExtendHold":
            assert answer.outcome == OUTCOMES[outcome]
        return
    error = await failure_of(call(service, name, CALLS[name]))
    details = details_of(error)
    assert (error.code(), details.info.reason) == REFUSALS[outcome]
    retryable = error.code() in (StatusCode.UNAVAILABLE, StatusCode.RESOURCE_EXHAUSTED)
    assert (details.retry is not None) == retryable


@pytest.mark.parametrize("outcome", sorted(set(Outcome) - {Outcome.DEDUCTED}))
async def test_every_outcome_is_a_value_in_a_batch(service: Service, outcome: Outcome) -> None:
    batches = {
        "BatchReserve": BatchReserveRequest(items=[CALLS["Reserve"]]),
        "BatchConfirm": BatchConfirmRequest(items=[CALLS["Confirm"]]),
        "BatchRelease": BatchReleaseRequest(items=[CALLS["Release"]]),
        "BatchDeductOrder": BatchDeductOrderRequest(items=[CALLS["DeductOrder"]]),
        "BatchExtendHold": BatchExtendHoldRequest(items=[CALLS["ExtendHold"]]),
        "BatchGetOrder": BatchGetOrderRequest(items=[GetOrderRequest(order_id=5)]),
    }
    for name, batch in batches.items():
        service.orders.answers = [OrderAnswer(outcome, reason=Reason.PRODUCT_CLOSED)]
        (result,) = (await call(service, name, batch)).results
        assert (result.outcome, result.reason) == (OUTCOMES[outcome], "PRODUCT_CLOSED")
        assert not result.HasField("order")


async def test_short_lines_are_named(service: Service) -> None:
    for name in ("Reserve", "DeductOrder"):
        service.orders.answers = [
            OrderAnswer(Outcome.INSUFFICIENT_STOCK, short=(Line(2, 3),)),
        ]
        answer = await call(service, name, CALLS[name])
        assert list(answer.short_lines) == LINES[1:]
        assert not answer.HasField("order")


@pytest.mark.parametrize(
    ("reason", "code", "said", "field"),
    [
        (Reason.USER_REQUIRED, StatusCode.INVALID_ARGUMENT, "USER_REQUIRED", "user_id"),
        (Reason.TTL_TOO_LONG, StatusCode.INVALID_ARGUMENT, "TTL_TOO_LONG", "ttl_s"),
    ],
)
async def test_a_bound_that_the_stock_knows_names_its_field(
    service: Service, reason: Reason, code: StatusCode, said: str, field: str
) -> None:
    service.orders.answers = [OrderAnswer(Outcome.INVALID, reason=reason)]
    error = await failure_of(reserve(service))
    assert (error.code(), details_of(error).info.reason) == (code, said)
    assert details_of(error).fields == [(field, said)]


async def test_what_may_have_happened_has_one_name(service: Service) -> None:
    answer = OrderAnswer(Outcome.UNAVAILABLE, reason=Reason.NOT_REPLICATED)
    service.orders.answers = [answer, answer]
    error = await failure_of(reserve(service))
    batch = await call(service, "BatchReserve", BatchReserveRequest(items=[CALLS["Reserve"]]))
    assert details_of(error).info.reason == "OUTCOME_UNKNOWN"
    assert batch.results[0].reason == "OUTCOME_UNKNOWN"


BAD_ORDERS = [
    ({"order_id": 0}, "INVALID_ORDER_ID"),
    ({"order_id": -5}, "INVALID_ORDER_ID"),
    ({"user_id": -1}, "INVALID_USER_ID"),
    ({"lines": []}, "INVALID_LINES"),
    ({"lines": [OrderLine(product_id=i + 1, quantity=1) for i in range(51)]}, "INVALID_LINES"),
    ({"lines": [OrderLine(product_id=0, quantity=1)]}, "INVALID_LINES"),
    ({"lines": [OrderLine(product_id=1, quantity=0)]}, "INVALID_LINES"),
    ({"lines": [OrderLine(product_id=1, quantity=1_000_001)]}, "INVALID_LINES"),
    ({"lines": [OrderLine(product_id=1, quantity=600_000)] * 2}, "INVALID_LINES"),
    ({"attempt": -1}, "INVALID_ATTEMPT"),
]
BAD_TTLS = [({"ttl_s": -1}, "INVALID_TTL_S"), ({"ttl_s": 43_201}, "INVALID_TTL_S")]


@pytest.mark.parametrize(("fields", "reason"), BAD_ORDERS + BAD_TTLS)
async def test_an_order_out_of_bounds_reaches_no_stock(
    service: Service, fields: dict[str, Any], reason: str
) -> None:
    error = await failure_of(reserve(service, **fields))
    good, bad = CALLS["Reserve"], ReserveRequest(**{"order_id": 5, "lines": LINES, **fields})
    batch = await call(service, "BatchReserve", BatchReserveRequest(items=[bad, good]))
    assert error.code() is StatusCode.INVALID_ARGUMENT
    assert details_of(error).info.reason == reason
    assert batch.results[0].outcome == inventory_pb2.OUTCOME_INVALID
    assert batch.results[0].reason == reason
    assert batch.results[1].outcome == inventory_pb2.OUTCOME_HELD
    assert len(service.orders.calls) == 1


@pytest.mark.parametrize(("fields", "reason"), BAD_ORDERS)
async def test_an_order_out_of_bounds_is_not_sold(
    service: Service, fields: dict[str, Any], reason: str
) -> None:
    request = DeductOrderRequest(**{"order_id": 5, "lines": LINES, **fields})
    error = await failure_of(call(service, "DeductOrder", request))
    assert details_of(error).info.reason == reason
    assert service.orders.calls == []


@pytest.mark.parametrize(
    ("name", "request_", "reason"),
    [
        ("Confirm", ConfirmRequest(), "INVALID_ORDER_ID"),
        ("Confirm", ConfirmRequest(order_id=1, product_id=-1), "INVALID_PRODUCT_ID"),
        ("Release", ReleaseRequest(), "INVALID_ORDER_ID"),
        ("GetOrder", GetOrderRequest(order_id=-1), "INVALID_ORDER_ID"),
        ("ExtendHold", ExtendHoldRequest(order_id=1), "INVALID_TTL_S"),
        ("ExtendHold", ExtendHoldRequest(order_id=1, ttl_s=43_201), "INVALID_TTL_S"),
        ("BatchReserve", BatchReserveRequest(), "INVALID_ITEMS"),
        ("BatchConfirm", BatchConfirmRequest(items=[ConfirmRequest()] * 501), "INVALID_ITEMS"),
        ("BatchRelease", BatchReleaseRequest(), "INVALID_ITEMS"),
        ("BatchDeductOrder", BatchDeductOrderRequest(), "INVALID_ITEMS"),
        ("BatchExtendHold", BatchExtendHoldRequest(), "INVALID_ITEMS"),
        ("BatchGetOrder", BatchGetOrderRequest(items=[GetOrderRequest()] * 501), "INVALID_ITEMS"),
    ],
)
async def test_a_call_out_of_bounds_reaches_no_stock(
    service: Service, name: str, request_: Any, reason: str
) -> None:
    error = await failure_of(call(service, name, request_))
    assert (error.code(), details_of(error).info.reason) == (StatusCode.INVALID_ARGUMENT, reason)
    assert service.orders.calls == []


@pytest.mark.parametrize("state", OrderState)
async def test_an_order_is_read_in_every_state(service: Service, state: OrderState) -> None:
    service.orders.kept[5] = HELD_ORDER._replace(state=state)
    order = (await call(service, "GetOrder", GetOrderRequest(order_id=5))).order
    shown = inventory_pb2.OrderState.Name(order.state).removeprefix("ORDER_STATE_")
    otherwise = {OrderState.RETAKEN: "CONFIRMED", OrderState.QUESTIONED: "PENDING"}
    assert shown == otherwise.get(state, state.name)
    assert order.retaken == (state is OrderState.RETAKEN)
    was_held = state not in (OrderState.PENDING, OrderState.REFUSED)
    assert order.expires_ms == (60_000 if was_held else 0)


async def test_an_order_that_is_undecided_is_shown_all_the_same(service: Service) -> None:
    pending = HELD_ORDER._replace(state=OrderState.PENDING)
    answer = OrderAnswer(Outcome.UNAVAILABLE, pending, reason=Reason.ORDER_PENDING)
    service.orders.answers = [answer]
    order = (await call(service, "GetOrder", GetOrderRequest(order_id=5))).order
    assert order.state == inventory_pb2.ORDER_STATE_PENDING


@pytest.mark.parametrize("state", [OrderState.PENDING, OrderState.RETAKING])
async def test_an_order_that_is_undecided_is_said_to_be(
    service: Service, state: OrderState
) -> None:
    order = HELD_ORDER._replace(state=state)
    answer = OrderAnswer(Outcome.UNAVAILABLE, order, reason=Reason.ORDER_PENDING)
    service.orders.answers = [answer]
    error = await failure_of(call(service, "Release", CALLS["Release"]))
    assert (error.code(), details_of(error).info.reason) == (
        StatusCode.UNAVAILABLE,
        "ORDER_PENDING",
    )
    assert error.details() == "the order is being decided just now"


async def test_an_order_that_nobody_knows_is_not_found(service: Service) -> None:
    error = await failure_of(call(service, "GetOrder", GetOrderRequest(order_id=5)))
    assert error.code() is StatusCode.NOT_FOUND
    assert details_of(error).info.reason == "UNKNOWN_ORDER"


async def test_a_release_of_an_unknown_order_is_a_release(service: Service) -> None:
    answer = await call(service, "Release", CALLS["Release"])
    assert answer.outcome == inventory_pb2.OUTCOME_RELEASED
    assert not answer.HasField("order")


async def test_hints_reach_the_stock(service: Service) -> None:
    service.orders.kept[5] = HELD_ORDER
    for name, request in (
        ("ExtendHold", ExtendHoldRequest(order_id=5, ttl_s=7, product_id=2)),
        ("GetOrder", GetOrderRequest(order_id=5, product_id=2)),
        ("Confirm", ConfirmRequest(order_id=5, product_id=2)),
        ("Release", ReleaseRequest(order_id=5, product_id=2)),
    ):
        await call(service, name, request)
    assert {fields["product_id"] for _, _, fields in service.orders.calls} == {2}


async def test_orders_of_a_batch_run_at_the_same_time_and_answer_in_order(
    service: Service,
) -> None:
    service.orders.open_gate.clear()
    items = [ReserveRequest(order_id=number, lines=LINES) for number in range(1, 501)]
    calling = asyncio.create_task(call(service, "BatchReserve", BatchReserveRequest(items=items)))
    await until(lambda: len(service.orders.calls) == 500)
    service.orders.open_gate.set()
    results = (await calling).results
    assert [result.order.order_id for result in results] == list(range(1, 501))


async def test_a_defect_met_by_one_order_of_a_batch_fails_no_other(service: Service) -> None:
    service.orders.failures = [RuntimeError("hunter2")]
    items = [ReserveRequest(order_id=number, lines=LINES) for number in (1, 2, 3)]
    batch = await call(service, "BatchReserve", BatchReserveRequest(items=items))
    assert [result.outcome for result in batch.results] == [
        inventory_pb2.OUTCOME_UNAVAILABLE,
        inventory_pb2.OUTCOME_HELD,
        inventory_pb2.OUTCOME_HELD,
    ]
    assert batch.results[0].reason == "OUTCOME_UNKNOWN"
    assert [entry["event"] for entry in service.log.entries] == ["order_failed"]


async def test_a_caller_who_leaves_cuts_no_work(service: Service) -> None:
    service.orders.open_gate.clear()
    calling = service.inventory.Reserve(CALLS["Reserve"])
    await until(lambda: len(service.orders.calls) == 1)
    calling.cancel()
    await until(lambda: service.sample("inventory_rpc_in_flight", method=RESERVE) == 0)
    assert service.sample("inventory_queued_items") == 2
    service.orders.open_gate.set()
    await until(lambda: service.orders.ended == 1)
    assert service.sample("inventory_queued_items") == 0


RESERVE = "inventory.v1.InventoryService/Reserve"


class TestLimit:
    @pytest.fixture
    def limits(self) -> Limits:
        return Limits(items=3)

    async def test_an_order_too_many_is_overloaded_and_not_begun(self, service: Service) -> None:
        service.orders.open_gate.clear()
        first = asyncio.create_task(reserve(service, 1))
        await until(lambda: len(service.orders.calls) == 1)
        error = await failure_of(reserve(service, 2))
        items = [ConfirmRequest(order_id=3), ConfirmRequest(order_id=4)]
        batch = asyncio.create_task(call(service, "BatchConfirm", BatchConfirmRequest(items=items)))
        await until(lambda: len(service.orders.calls) == 2)
        service.orders.open_gate.set()
        await first
        outcomes = [result.outcome for result in (await batch).results]
        assert error.code() is StatusCode.RESOURCE_EXHAUSTED
        assert outcomes == [
            inventory_pb2.OUTCOME_UNKNOWN_ORDER,
            inventory_pb2.OUTCOME_OVERLOADED,
        ]
        assert [order_id for _, order_id, _ in service.orders.calls] == [1, 3]


async def test_answers_are_counted_by_call_and_outcome(service: Service) -> None:
    await reserve(service)
    service.orders.answers = [OrderAnswer(Outcome.REFUND_REQUIRED, HELD_ORDER)]
    await call(service, "Confirm", CALLS["Confirm"])
    counted = {
        (name, outcome): service.sample("inventory_orders_total", call=name, outcome=outcome)
        for name, outcome in (("reserve", "held"), ("confirm", "refund_required"))
    }
    assert set(counted.values()) == {1}


async def test_an_internal_defect_is_not_shown(service: Service) -> None:
    service.orders.failures = [RuntimeError("hunter2")]
    error = await failure_of(reserve(service))
    assert isinstance(error, grpc.aio.AioRpcError)
    assert (error.code(), error.details()) == (StatusCode.INTERNAL, "internal error")
