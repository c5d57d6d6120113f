"""One call on an order through all of its tries: what is sent, and what the answers add up to."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TypeAlias

from inventory.client.deductions import KINDS, MESSAGES, outcome_of, outcome_of_failure
from inventory.client.errors import (
    InventoryError,
    NotEnoughStock,
    OrderConfirmed,
    OrderExpired,
    OrderReleased,
    PreconditionFailed,
    RefundRequired,
    ServiceFault,
    UnknownOrder,
)
from inventory.client.failures import Failure, outcome_unknown
from inventory.client.messages import later
from inventory.client.orders import SOLD, OrderResult, lines_of, order_of
from inventory.client.outcomes import OUTCOME_UNKNOWN, Outcome
from inventory.client.rpcs import CONFIRM, DEDUCT_ORDER, RELEASE, RESERVE, AnyRpc
from inventory.v1 import inventory_pb2

OrderRequest: TypeAlias = (
    inventory_pb2.ReserveRequest
    | inventory_pb2.DeductOrderRequest
    | inventory_pb2.ConfirmRequest
    | inventory_pb2.ReleaseRequest
)
_Response: TypeAlias = (
    inventory_pb2.ReserveResponse
    | inventory_pb2.DeductOrderResponse
    | inventory_pb2.ConfirmResponse
    | inventory_pb2.ReleaseResponse
)


@dataclass(frozen=True, slots=True)
class OrderCall:
    """A call on one order; outcomes other than `values` are raised."""

    alone: AnyRpc
    values: frozenset[Outcome]


RESERVING = OrderCall(RESERVE, SOLD | {Outcome.HELD, Outcome.INSUFFICIENT_STOCK})
SELLING = OrderCall(DEDUCT_ORDER, SOLD | {Outcome.INSUFFICIENT_STOCK})
CONFIRMING = OrderCall(CONFIRM, SOLD | {Outcome.REFUND_REQUIRED})
RELEASING = OrderCall(
    RELEASE, frozenset({Outcome.RELEASED, Outcome.EXPIRED, Outcome.INSUFFICIENT_STOCK})
)

_PASSING = frozenset({Outcome.OVERLOADED, Outcome.NOT_EXECUTED, Outcome.UNKNOWN})
"""Outcomes that another try can change."""

_OF_THE_COPY = _PASSING | {Outcome.FROZEN, Outcome.USER_LIMIT}
"""Outcomes that tell only what became of the copy that they answer; the others are the order's own."""


class OrderTicket:
    """One call on its way to an answer."""

    __slots__ = ("_doubtful", "_request", "asked_s", "open", "result")

    def __init__(self, request: OrderRequest) -> None:
        self._request = request
        self._doubtful = False
        self.open = True
        self.asked_s = 0.0
        self.result = self._word(Outcome.NOT_EXECUTED, reason="NOT_SENT")

    def request(self, tries: int) -> OrderRequest:
        """The message of the next try, after so many that failed."""
        return later(self._request, tries)

    def answered(self, response: _Response) -> None:
        """Takes what the service said about this order."""
        self.asked_s = 0.0
        result = _result_of(self._request.order_id, response)
        self._take(result, passing=result.outcome in _PASSING)

    def failed(self, failure: Failure) -> None:
        """Takes what went wrong with the call that carried this request."""
        self.asked_s = failure.asked_s
        outcome = _outcome_of_failure(failure)
        word = self._word(outcome, reason=failure.reason, message=failure.message)
        self._take(word, passing=failure.passing)

    def _take(self, result: OrderResult, *, passing: bool) -> None:
        self._doubtful |= result.outcome is Outcome.UNKNOWN
        if self._doubtful and result.outcome in _OF_THE_COPY:
            result = replace(result, outcome=Outcome.UNKNOWN, reason=OUTCOME_UNKNOWN)
        self.result = result
        self.open = passing

    def _word(self, outcome: Outcome, *, reason: str, message: str = "") -> OrderResult:
        return OrderResult(
            order_id=self._request.order_id, outcome=outcome, reason=reason, message=message
        )


def settled_order(result: OrderResult, values: Collection[Outcome]) -> OrderResult:
    """The result if it is one of the values, else its error is raised."""
    if result.outcome in values:
        return result
    if result.outcome is Outcome.UNKNOWN:
        raise outcome_unknown(result.message, None, result.order_id)
    kind = _KINDS.get(result.outcome, ServiceFault)
    message = result.message or _MESSAGES.get(result.outcome, "an answer that this call has not")
    reason = result.reason or result.outcome.name
    raise kind(message, reason=reason, order_id=result.order_id)


def _result_of(order_id: int, response: _Response) -> OrderResult:
    short = () if isinstance(response, _WithoutLines) else lines_of(response.short_lines)
    return OrderResult(
        order_id=order_id,
        outcome=outcome_of(response.outcome, response.reason),
        replayed=response.replayed,
        order=order_of(response.order) if response.HasField("order") else None,
        short_lines=short,
        reason=response.reason,
    )


_WithoutLines = inventory_pb2.ConfirmResponse | inventory_pb2.ReleaseResponse

_KINDS: dict[Outcome, type[InventoryError]] = {
    **KINDS,
    Outcome.INSUFFICIENT_STOCK: NotEnoughStock,
    Outcome.HELD: PreconditionFailed,
    Outcome.CONFIRMED: OrderConfirmed,
    Outcome.RELEASED: OrderReleased,
    Outcome.EXPIRED: OrderExpired,
    Outcome.RETAKEN: OrderConfirmed,
    Outcome.REFUND_REQUIRED: RefundRequired,
    Outcome.UNKNOWN_ORDER: UnknownOrder,
}

_MESSAGES = {
    **MESSAGES,
    Outcome.REQUEST_MISMATCH: "this order_id was used for another order",
    Outcome.INSUFFICIENT_STOCK: "the order was refused for shortage",
    Outcome.HELD: "the order's units are held",
    Outcome.CONFIRMED: "the order's units are sold to it",
    Outcome.RELEASED: "the order was released",
    Outcome.EXPIRED: "the order's time was over",
    Outcome.RETAKEN: "the order's units are sold to it",
    Outcome.REFUND_REQUIRED: "the order was confirmed too late and could not be sold any more",
    Outcome.UNKNOWN_ORDER: "nobody has heard of the order",
}

_OUTCOMES_OF_REASONS = {
    "ORDER_HELD": Outcome.HELD,
    "ORDER_CONFIRMED": Outcome.CONFIRMED,
    "ORDER_RELEASED": Outcome.RELEASED,
    "ORDER_EXPIRED": Outcome.EXPIRED,
    "REFUND_REQUIRED": Outcome.REFUND_REQUIRED,
    "UNKNOWN_ORDER": Outcome.UNKNOWN_ORDER,
    "INSUFFICIENT_STOCK": Outcome.INSUFFICIENT_STOCK,
}


def _outcome_of_failure(failure: Failure) -> Outcome:
    return _OUTCOMES_OF_REASONS.get(failure.reason) or outcome_of_failure(failure)
