"""ListHolds and ForceRelease."""

from typing import Any

import pytest
from grpc import StatusCode

from inventory.v1 import inventory_pb2
from inventory.v1.admin_pb2 import ForceReleaseRequest, ListHoldsRequest
from ledger.errors import LedgerUnavailableError
from ledger.holds import HoldRow
from sharding.orders import Held, Order, OrderAnswer, OrderState
from sharding.outcomes import Outcome
from tests.service.conftest import CALL_S, Service, details_of, failure_of

ORDER = Order(
    5, 9, OrderState.HELD, 61_000, 1_000, is_open=True, held=(Held(1, 2, "-"), Held(2, 3, "7"))
)


def force(**fields: Any) -> ForceReleaseRequest:
    return ForceReleaseRequest(**{"order_id": 5, "reason": "stuck", "actor": "ops", **fields})


async def test_holds_come_in_pages(service: Service) -> None:
    service.holds.rows = [
        HoldRow(number, 1, 7, 50 + number, 9, 2, 1_000, -3) for number in range(1, 6)
    ]
    first = await service.admin.ListHolds(ListHoldsRequest(page_size=3), timeout=CALL_S)
    rest = await service.admin.ListHolds(
        ListHoldsRequest(after_id=first.next_after_id, product_id=1, user_id=9), timeout=CALL_S
    )
    assert [hold.order_id for hold in [*first.holds, *rest.holds]] == [51, 52, 53, 54, 55]
    assert (first.next_after_id, rest.next_after_id) == (3, 0)
    assert service.holds.pages[1] == {
        "product_id": 1, "user_id": 9, "after_id": 3, "limit": 100,
    }  # fmt: skip
    hold = first.holds[0]
    assert (hold.id, hold.product_id, hold.partition, hold.user_id, hold.quantity) == (
        1,
        1,
        7,
        9,
        2,
    )
    assert (hold.created_ms, hold.age_ms) == (1_000, 0)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"product_id": -1}, "INVALID_PRODUCT_ID"),
        ({"user_id": -1}, "INVALID_USER_ID"),
        ({"after_id": -1}, "INVALID_AFTER_ID"),
        ({"page_size": 1_001}, "INVALID_PAGE_SIZE"),
    ],
)
async def test_a_page_out_of_bounds_is_not_read(
    service: Service, fields: dict[str, Any], reason: str
) -> None:
    error = await failure_of(service.admin.ListHolds(ListHoldsRequest(**fields)))
    assert (error.code(), details_of(error).info.reason) == (StatusCode.INVALID_ARGUMENT, reason)
    assert service.holds.pages == []


async def test_a_release_by_force_is_told_to_the_journal_for_each_product(
    service: Service,
) -> None:
    service.orders.kept[5] = ORDER
    order = (await service.admin.ForceRelease(force(), timeout=CALL_S)).order
    assert order.state == inventory_pb2.ORDER_STATE_RELEASED
    ((order_id, note),) = service.holds.notes
    assert (order_id, note) == (
        5,
        {
            "user_id": 9,
            "first_product": 1,
            "product_ids": [1, 2],
            "actor": "ops",
            "reason": "stuck",
        },
    )


async def test_a_release_whose_journal_was_lost_is_told_by_the_same_call_again(
    service: Service,
) -> None:
    service.orders.kept[5] = ORDER
    service.holds.failures = [LedgerUnavailableError("away")]
    error = await failure_of(service.admin.ForceRelease(force(), timeout=CALL_S))
    await service.admin.ForceRelease(force(), timeout=CALL_S)
    assert details_of(error).info.reason == "OUTCOME_UNKNOWN"
    assert len(service.holds.notes) == 1


async def test_what_expired_before_was_not_released_by_force(service: Service) -> None:
    expired = ORDER._replace(state=OrderState.EXPIRED)
    service.orders.answers = [OrderAnswer(Outcome.EXPIRED, expired, replayed=True)]
    order = (await service.admin.ForceRelease(force(), timeout=CALL_S)).order
    assert order.state == inventory_pb2.ORDER_STATE_EXPIRED
    assert service.holds.notes == []


@pytest.mark.parametrize(
    ("answer", "code", "reason"),
    [
        (OrderAnswer(Outcome.RELEASED), StatusCode.NOT_FOUND, "UNKNOWN_ORDER"),
        (
            OrderAnswer(Outcome.CONFIRMED, ORDER),
            StatusCode.FAILED_PRECONDITION,
            "ORDER_CONFIRMED",
        ),
    ],
)
async def test_an_order_that_holds_nothing_is_not_released(
    service: Service, answer: OrderAnswer, code: StatusCode, reason: str
) -> None:
    service.orders.answers = [answer]
    error = await failure_of(service.admin.ForceRelease(force(), timeout=CALL_S))
    assert (error.code(), details_of(error).info.reason) == (code, reason)
    assert service.holds.notes == []


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"order_id": 0}, "INVALID_ORDER_ID"),
        ({"reason": ""}, "INVALID_REASON"),
        ({"reason": "  "}, "INVALID_REASON"),
        ({"reason": "x" * 201}, "INVALID_REASON"),
        ({"actor": ""}, "INVALID_ACTOR"),
        ({"actor": "x" * 65}, "INVALID_ACTOR"),
        ({"actor": "a\nb"}, "INVALID_ACTOR"),
    ],
)
async def test_force_has_a_reason_and_a_name(
    service: Service, fields: dict[str, Any], reason: str
) -> None:
    error = await failure_of(service.admin.ForceRelease(force(**fields), timeout=CALL_S))
    assert (error.code(), details_of(error).info.reason) == (StatusCode.INVALID_ARGUMENT, reason)
    assert service.orders.calls == []
