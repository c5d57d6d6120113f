"""The orders of the inventory in this process: all or nothing, ended once, expired by its clock."""

import time
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc

from inventory.v1 import admin_pb2, inventory_pb2

HELD = inventory_pb2.ORDER_STATE_HELD
CONFIRMED = inventory_pb2.ORDER_STATE_CONFIRMED
RELEASED = inventory_pb2.ORDER_STATE_RELEASED
EXPIRED = inventory_pb2.ORDER_STATE_EXPIRED
REFUND_REQUIRED = inventory_pb2.ORDER_STATE_REFUND_REQUIRED

_NAMES = {
    HELD: "HELD",
    CONFIRMED: "CONFIRMED",
    RELEASED: "RELEASED",
    EXPIRED: "EXPIRED",
    REFUND_REQUIRED: "REFUND_REQUIRED",
}


@dataclass(slots=True)
class Kept:
    """An order, and when it ends by the clock of this process."""

    message: inventory_pb2.Order
    ends_s: float


@dataclass(slots=True)
class Orders:
    """What became of orders. `answers` replaces the next ones of an order, as (outcome, reason)."""

    products: dict[int, Any]
    kept: dict[int, Kept] = field(default_factory=dict)
    answers: defaultdict[int, deque[tuple[str, str]]] = field(
        default_factory=lambda: defaultdict(deque)
    )
    requests: list[Any] = field(default_factory=list)
    events: list[inventory_pb2.WatchEventsResponse] = field(default_factory=list)
    watches: list[inventory_pb2.WatchEventsRequest] = field(default_factory=list)
    pruned: int = 0
    """Cursor of the last event that is not kept any more; 0: all are."""

    def reserve(self, request: Any, *, sells: bool) -> tuple[str, bool, Sequence[Any]]:
        """Outcome, whether it is a replay, short lines."""
        self.sweep()
        known = self.kept.get(request.order_id)
        if known:
            return _outcome(known.message), True, ()
        short = [line for line in request.lines if self._left(line) < line.quantity]
        if short:
            return "INSUFFICIENT_STOCK", False, short
        ttl_s = getattr(request, "ttl_s", 0) or 1_800
        message = inventory_pb2.Order(
            order_id=request.order_id,
            user_id=request.user_id,
            state=CONFIRMED if sells else HELD,
            lines=request.lines,
            expires_ms=0 if sells else 1_000 * ttl_s,
            created_ms=1,
        )
        self.kept[request.order_id] = Kept(message, time.monotonic() + ttl_s)
        self._move(message, "available", "sold" if sells else "held")
        return _outcome(message), False, ()

    def confirm(self, order_id: int) -> tuple[str, bool]:
        self.sweep()
        kept = self.kept.get(order_id)
        if kept is None:
            return "UNKNOWN_ORDER", False
        order = kept.message
        if order.state == HELD:
            self._end(order, CONFIRMED, "held", "sold")
            return "CONFIRMED", False
        if order.state == EXPIRED:
            return self._retake(order), False
        return _outcome(order), True

    def release(self, order_id: int) -> tuple[str, bool]:
        self.sweep()
        kept = self.kept.get(order_id)
        if kept is None:
            return "RELEASED", False
        if kept.message.state != HELD:
            return _outcome(kept.message), True
        self._end(kept.message, RELEASED, "held", "available")
        return "RELEASED", False

    def expire(self, order_id: int) -> None:
        """The time of an order is over."""
        self.kept[order_id].ends_s = 0.0
        self.sweep()

    def sweep(self) -> None:
        now_s = time.monotonic()
        for kept in self.kept.values():
            if kept.message.state == HELD and kept.ends_s <= now_s:
                self._end(kept.message, EXPIRED, "held", "available")

    def happen(self, kind: inventory_pb2.EventKind, **fields: int) -> None:
        """Something that a watch is told of."""
        cursor = str(len(self.events) + 1)
        event = inventory_pb2.WatchEventsResponse(cursor=cursor, kind=kind, **fields)
        self.events.append(event)

    def _retake(self, order: inventory_pb2.Order) -> str:
        if any(self._left(line) < line.quantity for line in order.lines):
            order.state = REFUND_REQUIRED
            return "REFUND_REQUIRED"
        self._end(order, CONFIRMED, "available", "sold")
        order.retaken = True
        return "RETAKEN"

    def _left(self, line: inventory_pb2.OrderLine) -> int:
        return self.products[line.product_id].available

    def _end(self, order: inventory_pb2.Order, state: Any, source: str, target: str) -> None:
        order.state = state
        self._move(order, source, target)

    def _move(self, order: inventory_pb2.Order, source: str, target: str) -> None:
        for line in order.lines:
            product = self.products[line.product_id]
            setattr(product, source, getattr(product, source) - line.quantity)
            setattr(product, target, getattr(product, target) + line.quantity)


def _outcome(order: inventory_pb2.Order) -> str:
    return "RETAKEN" if order.retaken else _NAMES[order.state]


_OK = {
    inventory_pb2.ReserveResponse: {"HELD", "CONFIRMED", "RETAKEN", "INSUFFICIENT_STOCK"},
    inventory_pb2.DeductOrderResponse: {"CONFIRMED", "RETAKEN", "INSUFFICIENT_STOCK"},
    inventory_pb2.ConfirmResponse: {"CONFIRMED", "RETAKEN", "REFUND_REQUIRED"},
    inventory_pb2.ReleaseResponse: {"RELEASED", "EXPIRED", "INSUFFICIENT_STOCK"},
}
_CODES = {
    "UNKNOWN_PRODUCT": grpc.StatusCode.NOT_FOUND,
    "UNKNOWN_ORDER": grpc.StatusCode.NOT_FOUND,
    "REQUEST_MISMATCH": grpc.StatusCode.ALREADY_EXISTS,
    "INVALID": grpc.StatusCode.INVALID_ARGUMENT,
    "OVERLOADED": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "UNAVAILABLE": grpc.StatusCode.UNAVAILABLE,
}
_REASONS = {
    "CONFIRMED": "ORDER_CONFIRMED",
    "RETAKEN": "ORDER_CONFIRMED",
    "RELEASED": "ORDER_RELEASED",
    "EXPIRED": "ORDER_EXPIRED",
}


class OrderCalls:
    """Methods of both services on orders; `_book` and `_may_fail` come from the class beside it."""

    _book: Orders

    def _may_fail(self, context: Any, act: Any) -> None:
        raise NotImplementedError

    def _refuse(self, context: Any, code: grpc.StatusCode, reason: str) -> None:
        raise NotImplementedError

    def Reserve(self, request, context):  # noqa: N802
        return self._alone(request, context, self._reserved)

    def DeductOrder(self, request, context):  # noqa: N802
        return self._alone(request, context, self._sold)

    def Confirm(self, request, context):  # noqa: N802
        return self._alone(request, context, self._confirmed)

    def Release(self, request, context):  # noqa: N802
        return self._alone(request, context, self._released)

    def BatchReserve(self, request, context):  # noqa: N802
        return self._together(request, context, self._reserved, inventory_pb2.BatchReserveResponse)

    def BatchConfirm(self, request, context):  # noqa: N802
        return self._together(request, context, self._confirmed, inventory_pb2.BatchConfirmResponse)

    def BatchRelease(self, request, context):  # noqa: N802
        return self._together(request, context, self._released, inventory_pb2.BatchReleaseResponse)

    def BatchDeductOrder(self, request, context):  # noqa: N802
        return self._together(request, context, self._sold, inventory_pb2.BatchDeductOrderResponse)

    def ExtendHold(self, request, context):  # noqa: N802
        self._may_fail(context, lambda: None)
        order = self._found(request.order_id, context)
        if order.state != HELD:
            self._refuse(context, grpc.StatusCode.FAILED_PRECONDITION, _reason(_outcome(order)))
        order.expires_ms = 1_000 * request.ttl_s
        return inventory_pb2.ExtendHoldResponse(order=order)

    def GetOrder(self, request, context):  # noqa: N802
        self._book.sweep()
        return inventory_pb2.GetOrderResponse(order=self._found(request.order_id, context))

    def WatchEvents(self, request, context):  # noqa: N802
        """Where it begins, what there is, and then the stream is over."""
        watched = inventory_pb2.WatchEventsRequest()
        watched.CopyFrom(request)
        self._book.watches.append(watched)
        begin = int(request.cursor or len(self._book.events))
        if begin > len(self._book.events):
            self._refuse(context, grpc.StatusCode.OUT_OF_RANGE, "CURSOR_AHEAD")
        if 0 < begin < self._book.pruned:
            self._refuse(context, grpc.StatusCode.OUT_OF_RANGE, "CURSOR_TOO_OLD")
        yield inventory_pb2.WatchEventsResponse(cursor=str(begin))
        for event in self._book.events[max(begin, self._book.pruned) :]:
            if not request.kinds or event.kind in request.kinds:
                yield event

    def _alone(self, request, context, answer):
        responses = []
        self._may_fail(context, lambda: responses.append(answer(request)))
        response = responses[0] if responses else answer(request)
        outcome = _name(response.outcome)
        if outcome not in _OK[type(response)]:
            code = _CODES.get(outcome, grpc.StatusCode.FAILED_PRECONDITION)
            reason = getattr(response, "reason", "") or _reason(outcome)
            self._refuse(context, code, reason)
        return response

    def _together(self, request, context, answer, kind):
        self._may_fail(context, lambda: [answer(item) for item in request.items])
        return kind(results=[answer(item) for item in request.items])

    def _reserved(self, request):
        return self._worded(
            inventory_pb2.ReserveResponse, request, lambda: self._book.reserve(request, sells=False)
        )

    def _sold(self, request):
        return self._worded(
            inventory_pb2.DeductOrderResponse,
            request,
            lambda: self._book.reserve(request, sells=True),
        )

    def _confirmed(self, request):
        return self._worded(
            inventory_pb2.ConfirmResponse, request, lambda: self._book.confirm(request.order_id)
        )

    def _released(self, request):
        return self._worded(
            inventory_pb2.ReleaseResponse, request, lambda: self._book.release(request.order_id)
        )

    def _worded(self, kind, request, act):
        copy = type(request)()
        copy.CopyFrom(request)
        self._book.requests.append(copy)
        forced = self._book.answers[request.order_id]
        if forced:
            outcome, reason = forced.popleft()
            return kind(outcome=f"OUTCOME_{outcome}", reason=reason)
        outcome, replayed, *short = act()
        kept = self._book.kept.get(request.order_id)
        fields = {"short_lines": short[0]} if short else {}
        return kind(
            outcome=f"OUTCOME_{outcome}",
            replayed=replayed,
            order=kept.message if kept else None,
            **fields,
        )

    def _found(self, order_id, context):
        kept = self._book.kept.get(order_id)
        if kept is None:
            self._refuse(context, grpc.StatusCode.NOT_FOUND, "UNKNOWN_ORDER")
        return kept.message


class HoldCalls:
    """Methods of the operator's service on holds."""

    _book: Orders

    def ListHolds(self, request, context):  # noqa: N802
        holds = [
            admin_pb2.Hold(
                id=number,
                order_id=kept.message.order_id,
                product_id=line.product_id,
                user_id=kept.message.user_id,
                quantity=line.quantity,
                created_ms=1,
                age_ms=2_000,
            )
            for number, kept in enumerate(self._book.kept.values(), start=1)
            for line in kept.message.lines
            if kept.message.state == HELD
        ]
        wanted = [each for each in holds if request.product_id in (0, each.product_id)]
        return admin_pb2.ListHoldsResponse(holds=wanted)

    def ForceRelease(self, request, context):  # noqa: N802
        self._book.release(request.order_id)
        return admin_pb2.ForceReleaseResponse(order=self._book.kept[request.order_id].message)


def _name(outcome: inventory_pb2.Outcome) -> str:
    return inventory_pb2.Outcome.Name(outcome).removeprefix("OUTCOME_")


def _reason(outcome: str) -> str:
    return _REASONS.get(outcome, outcome)
