"""The calls on orders: the contract's messages in, calls of the live orders out. Protobuf ends here."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from structlog.typing import FilteringBoundLogger

from inventory.v1 import inventory_pb2 as messages
from server import validation
from server.calls import Context, was_sent_before
from server.errors import RefusedError, public_reason, refused
from server.intake import Intake
from server.wire import OUTCOMES
from sharding.orders import Line, Order, OrderAnswer, OrderState
from sharding.outcomes import Outcome, Reason

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

_STATES: Mapping[OrderState, messages.OrderState.ValueType] = {
    OrderState.PENDING: messages.ORDER_STATE_PENDING,
    OrderState.HELD: messages.ORDER_STATE_HELD,
    OrderState.CONFIRMED: messages.ORDER_STATE_CONFIRMED,
    OrderState.RELEASED: messages.ORDER_STATE_RELEASED,
    OrderState.EXPIRED: messages.ORDER_STATE_EXPIRED,
    OrderState.REFUSED: messages.ORDER_STATE_REFUSED,
    OrderState.RETAKING: messages.ORDER_STATE_RETAKING,
    OrderState.RETAKEN: messages.ORDER_STATE_CONFIRMED,
    OrderState.REFUND_REQUIRED: messages.ORDER_STATE_REFUND_REQUIRED,
    OrderState.QUESTIONED: messages.ORDER_STATE_PENDING,
}

_NEVER_HELD = frozenset((OrderState.PENDING, OrderState.REFUSED))

# Outcomes that are values in the unary calls; the others end them with a status.
_SOLD = frozenset((Outcome.CONFIRMED, Outcome.RETAKEN))
_OF_RESERVE = _SOLD | {Outcome.HELD, Outcome.INSUFFICIENT_STOCK}
_OF_DEDUCT_ORDER = _SOLD | {Outcome.INSUFFICIENT_STOCK}
_OF_CONFIRM = _SOLD | {Outcome.REFUND_REQUIRED}
_OF_RELEASE = frozenset((Outcome.RELEASED, Outcome.EXPIRED, Outcome.INSUFFICIENT_STOCK))
_OF_EXTEND = _SOLD | {Outcome.HELD}

_INVALID = OrderAnswer(Outcome.INVALID)
_NOT_KNOWN = OrderAnswer(Outcome.UNAVAILABLE, reason=Reason.OUTCOME_UNKNOWN)


class LiveOrders(Protocol):
    """What carries out the calls."""

    async def reserve(
        self,
        order_id: int,
        *,
        user_id: int,
        lines: Sequence[Line],
        ttl_s: float,
        attempt: int = 0,
    ) -> OrderAnswer: ...

    async def sell(
        self, order_id: int, *, user_id: int, lines: Sequence[Line], attempt: int = 0
    ) -> OrderAnswer: ...

    async def confirm(self, order_id: int, *, product_id: int = 0) -> OrderAnswer: ...

    async def release(self, order_id: int, *, product_id: int = 0) -> OrderAnswer: ...

    async def extend(self, order_id: int, ttl_s: float, *, product_id: int = 0) -> OrderAnswer: ...

    async def get(self, order_id: int, *, product_id: int = 0) -> OrderAnswer: ...


@dataclass(frozen=True, slots=True)
class OrderService:
    """One method for each call of the contract on orders, by its name in snake_case."""

    orders: LiveOrders
    intake: Intake
    grace_s: float
    """What a deadline has beyond the time that callers are told, for confirmations on their way."""
    log: FilteringBoundLogger

    async def reserve(
        self, request: messages.ReserveRequest, context: Context
    ) -> messages.ReserveResponse:
        """Hold all lines of an order, or none."""
        answer = await self._reserve(request, resent=was_sent_before(context))
        return self._reserved(_value(answer, _OF_RESERVE), "")

    async def batch_reserve(
        self, request: messages.BatchReserveRequest, context: Context
    ) -> messages.BatchReserveResponse:
        """The same for many orders at once."""
        resent = was_sent_before(context)

        async def one(item: messages.ReserveRequest) -> OrderAnswer:
            return await self._reserve(item, resent=resent)

        results = await self._each(request.items, one, self._reserved)
        return messages.BatchReserveResponse(results=results)

    async def deduct_order(
        self, request: messages.DeductOrderRequest, context: Context
    ) -> messages.DeductOrderResponse:
        """Sell all lines of an order, or none."""
        answer = await self._deduct_order(request, resent=was_sent_before(context))
        return self._sold(_value(answer, _OF_DEDUCT_ORDER), "")

    async def batch_deduct_order(
        self, request: messages.BatchDeductOrderRequest, context: Context
    ) -> messages.BatchDeductOrderResponse:
        """The same for many orders at once."""
        resent = was_sent_before(context)

        async def one(item: messages.DeductOrderRequest) -> OrderAnswer:
            return await self._deduct_order(item, resent=resent)

        results = await self._each(request.items, one, self._sold)
        return messages.BatchDeductOrderResponse(results=results)

    async def confirm(
        self, request: messages.ConfirmRequest, _context: Context
    ) -> messages.ConfirmResponse:
        """Sell what an order holds."""
        return self._confirmed(_value(await self._confirm(request), _OF_CONFIRM), "")

    async def batch_confirm(
        self, request: messages.BatchConfirmRequest, _context: Context
    ) -> messages.BatchConfirmResponse:
        """The same for many orders at once."""
        results = await self._each(request.items, self._confirm, self._confirmed)
        return messages.BatchConfirmResponse(results=results)

    async def release(
        self, request: messages.ReleaseRequest, _context: Context
    ) -> messages.ReleaseResponse:
        """Give back what an order holds."""
        return self._released(_value(await self._release(request), _OF_RELEASE), "")

    async def batch_release(
        self, request: messages.BatchReleaseRequest, _context: Context
    ) -> messages.BatchReleaseResponse:
        """The same for many orders at once."""
        results = await self._each(request.items, self._release, self._released)
        return messages.BatchReleaseResponse(results=results)

    async def extend_hold(
        self, request: messages.ExtendHoldRequest, _context: Context
    ) -> messages.ExtendHoldResponse:
        """Move the deadline of a hold."""
        return self._extended(_value(await self._extend(request), _OF_EXTEND), "")

    async def batch_extend_hold(
        self, request: messages.BatchExtendHoldRequest, _context: Context
    ) -> messages.BatchExtendHoldResponse:
        """The same for many orders at once."""
        results = await self._each(request.items, self._extend, self._extended)
        return messages.BatchExtendHoldResponse(results=results)

    async def get_order(
        self, request: messages.GetOrderRequest, _context: Context
    ) -> messages.GetOrderResponse:
        """Read an order, in whatever state it is."""
        answer = await self._get(request)
        if answer.order is None:
            raise refused(answer)
        return self._read(answer, "")

    async def batch_get_order(
        self, request: messages.BatchGetOrderRequest, _context: Context
    ) -> messages.BatchGetOrderResponse:
        """The same for many orders at once."""
        results = await self._each(request.items, self._get, self._read)
        return messages.BatchGetOrderResponse(results=results)

    async def _deduct_order(
        self, item: messages.DeductOrderRequest, *, resent: bool
    ) -> OrderAnswer:
        wanted = validation.order(item, resent=resent)
        work = self.orders.sell(
            wanted.order_id, user_id=wanted.user_id, lines=wanted.lines, attempt=wanted.attempt
        )
        return await self.intake.new_order("deduct_order", work, lines=len(wanted.lines))

    async def _extend(self, item: messages.ExtendHoldRequest) -> OrderAnswer:
        validation.named_order(item, validation.extension(item.ttl_s))
        work = self.orders.extend(item.order_id, float(item.ttl_s), product_id=item.product_id)
        return await self.intake.order("extend_hold", work)

    async def _get(self, item: messages.GetOrderRequest) -> OrderAnswer:
        validation.named_order(item)
        work = self.orders.get(item.order_id, product_id=item.product_id)
        return await self.intake.order("get_order", work)

    async def _reserve(self, item: messages.ReserveRequest, *, resent: bool) -> OrderAnswer:
        wanted = validation.order(item, resent=resent, also=validation.ttl(item.ttl_s))
        work = self.orders.reserve(
            wanted.order_id,
            user_id=wanted.user_id,
            lines=wanted.lines,
            ttl_s=float(validation.ttl_s(item.ttl_s)),
            attempt=wanted.attempt,
        )
        return await self.intake.new_order("reserve", work, lines=len(wanted.lines))

    async def _confirm(self, item: messages.ConfirmRequest) -> OrderAnswer:
        validation.named_order(item)
        work = self.orders.confirm(item.order_id, product_id=item.product_id)
        return await self.intake.order("confirm", work)

    async def _release(self, item: messages.ReleaseRequest) -> OrderAnswer:
        validation.named_order(item)
        work = self.orders.release(item.order_id, product_id=item.product_id)
        return await self.intake.order("release", work)

    async def _each(
        self,
        items: Sequence[_Item],
        answer: Callable[[_Item], Awaitable[OrderAnswer]],
        worded: Callable[[OrderAnswer, str], _Result],
    ) -> Sequence[_Result]:
        """One result an item, in their order; what goes wrong with one is that one's result."""
        validation.orders(items)

        async def one(item: _Item) -> _Result:
            try:
                found = await answer(item)
            except RefusedError as refusal:
                return worded(_INVALID, refusal.reason)
            except Exception as error:
                self.log.error("order_failed", exc_info=error)
                return worded(_NOT_KNOWN, Reason.OUTCOME_UNKNOWN)
            return worded(found, public_reason(found.reason))

        return await asyncio.gather(*map(one, items))

    def _reserved(self, answer: OrderAnswer, reason: str) -> messages.ReserveResponse:
        return messages.ReserveResponse(
            outcome=OUTCOMES[answer.outcome],
            replayed=answer.replayed,
            order=self._order(answer.order),
            short_lines=map(_line, answer.short),
            reason=reason,
        )

    def _sold(self, answer: OrderAnswer, reason: str) -> messages.DeductOrderResponse:
        return messages.DeductOrderResponse(
            outcome=OUTCOMES[answer.outcome],
            replayed=answer.replayed,
            order=self._order(answer.order),
            short_lines=map(_line, answer.short),
            reason=reason,
        )

    def _extended(self, answer: OrderAnswer, reason: str) -> messages.ExtendHoldResponse:
        return messages.ExtendHoldResponse(
            order=self._order(answer.order), outcome=OUTCOMES[answer.outcome], reason=reason
        )

    def _read(self, answer: OrderAnswer, reason: str) -> messages.GetOrderResponse:
        return messages.GetOrderResponse(
            order=self._order(answer.order), outcome=OUTCOMES[answer.outcome], reason=reason
        )

    def _confirmed(self, answer: OrderAnswer, reason: str) -> messages.ConfirmResponse:
        return messages.ConfirmResponse(
            outcome=OUTCOMES[answer.outcome],
            replayed=answer.replayed,
            order=self._order(answer.order),
            reason=reason,
        )

    def _released(self, answer: OrderAnswer, reason: str) -> messages.ReleaseResponse:
        return messages.ReleaseResponse(
            outcome=OUTCOMES[answer.outcome],
            replayed=answer.replayed,
            order=self._order(answer.order),
            reason=reason,
        )

    def _order(self, order: Order | None) -> messages.Order | None:
        return None if order is None else order_message(order, grace_s=self.grace_s)


def order_message(order: Order, *, grace_s: float) -> messages.Order:
    """An order in the words of the contract."""
    return messages.Order(
        order_id=order.order_id,
        user_id=order.user_id,
        state=_STATES[order.state],
        lines=map(_line, order.lines),
        expires_ms=_expires_ms(order, grace_ms=round(grace_s * 1_000)),
        created_ms=order.created_ms,
        retaken=order.state is OrderState.RETAKEN,
    )


def _expires_ms(order: Order, *, grace_ms: int) -> int:
    """0: it was never held, and its deadline is another one."""
    expires_ms = order.deadline_ms - grace_ms
    is_of_hold = order.state not in _NEVER_HELD and expires_ms > order.created_ms
    return expires_ms if is_of_hold else 0


def _line(line: Line) -> messages.OrderLine:
    return messages.OrderLine(product_id=line.product_id, quantity=line.quantity)


def _value(answer: OrderAnswer, values: Collection[Outcome]) -> OrderAnswer:
    if answer.outcome not in values:
        raise refused(answer)
    return answer
