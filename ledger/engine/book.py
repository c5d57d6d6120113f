"""What the orders of one transaction come to. Pure: rows were read before, and are written afterwards.

The states and answers are those of sharding/orders.py. A hold whose deadline has passed counts as
expired for every call, whether or not a sweep has been there.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple

from ledger.batch import Hold, HoldKey
from ledger.engine import admission
from ledger.engine.entries import Entry
from ledger.engine.records import Buried, Record, Tombstone
from ledger.engine.shelves import Shelf
from ledger.products import JournalKind
from ledger.service_events import Notice, ServiceEventKind
from sharding.orders import (
    HERE,
    NOWHERE,
    Held,
    Line,
    Order,
    OrderAnswer,
    OrderState,
    answer_of,
    request_id_of,
    retake_id_of,
)
from sharding.outcomes import Answer, Outcome

PARTITION = 0
"""Where rows say that units are held: there is one place only."""


class Call(Enum):
    """What is asked of an order."""

    RESERVE = auto()
    SELL = auto()
    CONFIRM = auto()
    RELEASE = auto()
    EXTEND = auto()
    LOOK = auto()

    @property
    def takes(self) -> bool:
        """Whether it makes the order, if there is none."""
        return self in (Call.RESERVE, Call.SELL)


class Ask(NamedTuple):
    """One call on an order; `lines` by product, each product once, and `ttl_ms` with its grace."""

    call: Call
    order_id: int
    user_id: int = 0
    lines: tuple[Line, ...] = ()
    ttl_ms: int = 0
    attempt: int = 0

    @property
    def line_id(self) -> str:
        """Under which the order takes its lines."""
        return request_id_of(self.order_id, self.lines[0].product_id)


_UNKNOWN = OrderAnswer(Outcome.UNKNOWN_ORDER)
_BARRED = OrderAnswer(Outcome.RELEASED, replayed=True)
_MISMATCH = OrderAnswer(Outcome.REQUEST_MISMATCH)
_WHY = {
    OrderState.CONFIRMED: "",
    OrderState.RELEASED: "released",
    OrderState.EXPIRED: "expired",
}
"""What the end of a hold is called in the journal."""


@dataclass(slots=True)
class Book:
    """The orders and products that a transaction has in hand, and what it is to write."""

    now_ms: int
    hold_ms_max: int
    orders: dict[int, Order]
    barred: set[int]
    """Orders that were released before they came."""
    shelves: Mapping[int, Shelf]
    """Products that were loaded once."""
    refused: dict[tuple[int, str], Record]
    """Tombstones of orders' first lines."""
    made: set[int] = field(default_factory=set)
    changed: set[int] = field(default_factory=set)
    newly_barred: set[int] = field(default_factory=set)
    entries: list[Entry] = field(default_factory=list)
    held: dict[HoldKey, Hold] = field(default_factory=dict)
    freed: list[HoldKey] = field(default_factory=list)
    buried: list[Buried] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)

    def answer(self, ask: Ask) -> OrderAnswer:
        """What one call comes to, after those that were answered before it."""
        order = self.orders.get(ask.order_id)
        if order is None:
            return self._of_none(ask)
        order, has_expired = self._look(order)
        match ask.call:
            case Call.RESERVE | Call.SELL:
                return self._again(ask, order)
            case Call.CONFIRM if order.state is OrderState.EXPIRED:
                return self._retake(order)
            case Call.CONFIRM if order.state is OrderState.HELD:
                return answer_of(self._end(order, OrderState.CONFIRMED), replayed=False)
            case Call.RELEASE if order.state is OrderState.HELD:
                return answer_of(self._end(order, OrderState.RELEASED), replayed=False)
            case Call.EXTEND if order.state is OrderState.HELD:
                return self._extend(ask, order)
        return answer_of(order, replayed=not has_expired)

    def _of_none(self, ask: Ask) -> OrderAnswer:
        is_barred = ask.order_id in self.barred
        if ask.call.takes:
            return self._begin(ask, is_barred=is_barred)
        if ask.call is Call.RELEASE:
            self.barred.add(ask.order_id)
            if not is_barred:
                self.newly_barred.add(ask.order_id)
            return _BARRED._replace(replayed=is_barred)
        return _BARRED if is_barred else _UNKNOWN

    def _begin(self, ask: Ask, *, is_barred: bool) -> OrderAnswer:
        for line in ask.lines:
            objection = self._objection_for_good(line, ask.user_id)
            if objection is not None:
                return OrderAnswer(objection.outcome, reason=objection.reason)
        record = self.refused.get((ask.lines[0].product_id, ask.line_id))
        if record is not None:
            return self._refused_before(ask, record)
        if is_barred:
            return _BARRED
        return self._take_all(ask)

    def _take_all(self, ask: Ask) -> OrderAnswer:
        first, *others = [self._refusal(line, ask.user_id) for line in ask.lines]
        if first is not None:
            return self._refuse_first(ask, first)
        for refusal in others:
            if refusal is not None and refusal.outcome is not Outcome.INSUFFICIENT_STOCK:
                return OrderAnswer(refusal.outcome, reason=refusal.reason)
        if any(others):
            return self._refuse(ask)
        return self._take(ask)

    def _take(self, ask: Ask) -> OrderAnswer:
        sells = ask.call is Call.SELL
        state = OrderState.CONFIRMED if sells else OrderState.HELD
        order = self._make(ask, state, short=(), deadline_ms=self.now_ms + ask.ttl_ms)
        for line in order.lines:
            if sells:
                self._shelf(line).sell(line.quantity, order.user_id)
                self._enter(order, ask.line_id, line, JournalKind.DEDUCT)
            else:
                self._hold(order, ask.line_id, line)
        return answer_of(order, replayed=False)

    def _hold(self, order: Order, line_id: str, line: Line) -> None:
        self._shelf(line).hold(line.quantity, order.user_id)
        self._enter(order, line_id, line, JournalKind.RESERVE)
        key = HoldKey(line.product_id, PARTITION, line_id)
        self.held[key] = Hold(order.order_id, order.user_id, line.quantity, self.now_ms)

    def _refuse_first(self, ask: Ask, refusal: Answer) -> OrderAnswer:
        """The first line cannot be had. Nothing is remembered but a retry's shortage."""
        if refusal.outcome is not Outcome.INSUFFICIENT_STOCK:
            return OrderAnswer(refusal.outcome, reason=refusal.reason)
        if ask.attempt >= 2:
            product_id, quantity = ask.lines[0]
            record = Record(Tombstone.REFUSED, quantity, ask.user_id)
            self.refused[product_id, ask.line_id] = record
            self.buried.append(Buried(product_id, ask.line_id, record))
        return OrderAnswer(refusal.outcome, short=self._short(ask.lines))

    def _refused_before(self, ask: Ask, record: Record) -> OrderAnswer:
        first = ask.lines[0]
        if (record.quantity, record.user_id) != (first.quantity, ask.user_id):
            return _MISMATCH
        others = [line for line in self._short(ask.lines) if line != first]
        return OrderAnswer(Outcome.INSUFFICIENT_STOCK, replayed=True, short=(first, *others))

    def _refuse(self, ask: Ask) -> OrderAnswer:
        """The first line could be had, and another one cannot: for good, as callers are told."""
        short = self._short(ask.lines)
        order = self._make(ask, OrderState.REFUSED, short=short, deadline_ms=self.now_ms)
        return answer_of(order, replayed=False)

    def _again(self, ask: Ask, order: Order) -> OrderAnswer:
        """The order is there already."""
        if (order.user_id, order.lines) != (ask.user_id, ask.lines):
            return _MISMATCH
        if order.state is OrderState.HELD and ask.call is Call.SELL:
            return answer_of(self._end(order, OrderState.CONFIRMED), replayed=False)
        return answer_of(order, replayed=True)

    def _look(self, order: Order) -> tuple[Order, bool]:
        """The order as it is now, and whether its time was over and nobody had noticed."""
        if order.state is not OrderState.HELD or self.now_ms <= order.deadline_ms:
            return order, False
        self._tell(ServiceEventKind.ORDER_EXPIRED, order)
        return self._end(order, OrderState.EXPIRED), True

    def _end(self, order: Order, state: OrderState) -> Order:
        """End the holds of an order's lines."""
        line_id = request_id_of(order.order_id, order.first_product)
        for line in order.lines:
            if state is OrderState.CONFIRMED:
                self._shelf(line).sell_held(line.quantity)
                self._enter(order, line_id, line, JournalKind.CONFIRM)
            else:
                self._shelf(line).free(line.quantity, order.user_id)
                self._enter(order, line_id, line, JournalKind.RELEASE, _WHY[state])
            self._forget_hold(HoldKey(line.product_id, PARTITION, line_id))
        return self._change(order._replace(state=state))

    def _forget_hold(self, key: HoldKey) -> None:
        if self.held.pop(key, None) is None:
            self.freed.append(key)

    def _retake(self, order: Order) -> OrderAnswer:
        """Confirmed too late: all lines once more, or the money goes back. Final, either way."""
        if any(self._refusal(line, order.user_id) for line in order.lines):
            return self._refund(order)
        line_id = retake_id_of(order.order_id, order.first_product)
        for line in order.lines:
            shelf = self._shelf(line)
            shelf.hold(line.quantity, order.user_id)
            self._enter(order, line_id, line, JournalKind.RESERVE)
            shelf.sell_held(line.quantity)
            self._enter(order, line_id, line, JournalKind.CONFIRM, "retaken")
        changed = self._change(order._replace(state=OrderState.RETAKEN))
        return answer_of(changed, replayed=False)

    def _refund(self, order: Order) -> OrderAnswer:
        line_id = request_id_of(order.order_id, order.first_product)
        self._enter(order, line_id, Line(order.first_product, 0), JournalKind.REFUND)
        self._tell(ServiceEventKind.REFUND_REQUIRED, order)
        changed = self._change(order._replace(state=OrderState.REFUND_REQUIRED))
        return answer_of(changed, replayed=False)

    def _extend(self, ask: Ask, order: Order) -> OrderAnswer:
        """Only ever to a later time, and never beyond what an order may be held for in all."""
        until_ms = min(self.now_ms + ask.ttl_ms, order.created_ms + self.hold_ms_max)
        if until_ms <= order.deadline_ms:
            return answer_of(order, replayed=True)
        return answer_of(self._change(order._replace(deadline_ms=until_ms)), replayed=False)

    def _make(
        self, ask: Ask, state: OrderState, *, short: Collection[Line], deadline_ms: int
    ) -> Order:
        order = Order(
            ask.order_id,
            ask.user_id,
            state,
            deadline_ms,
            self.now_ms,
            is_open=False,
            held=tuple(Held(*line, NOWHERE if line in short else HERE) for line in ask.lines),
        )
        self.orders[ask.order_id] = order
        self.made.add(ask.order_id)
        return order

    def _change(self, order: Order) -> Order:
        self.orders[order.order_id] = order
        if order.order_id not in self.made:
            self.changed.add(order.order_id)
        return order

    def _objection_for_good(self, line: Line, user_id: int) -> Answer | None:
        """Why nobody of this user's can ever have the line as things are, whatever is remembered."""
        shelf = self.shelves.get(line.product_id)
        if shelf is None:
            return admission.UNKNOWN_PRODUCT
        return admission.NAMELESS if shelf.has_limit and not user_id else None

    def _refusal(self, line: Line, user_id: int) -> Answer | None:
        shelf = self._shelf(line)
        return admission.objection(shelf.row) or shelf.refusal(line.quantity, user_id)

    def _short(self, lines: Sequence[Line]) -> tuple[Line, ...]:
        return tuple(line for line in lines if line.quantity > self._shelf(line).available)

    def _shelf(self, line: Line) -> Shelf:
        return self.shelves[line.product_id]

    def _enter(
        self, order: Order, line_id: str, line: Line, kind: JournalKind, remark: str = ""
    ) -> None:
        self.entries.append(
            Entry(
                line.product_id,
                line_id,
                kind,
                line.quantity,
                self._shelf(line).available,
                order.user_id,
                order.order_id,
                remark,
            )
        )

    def _tell(self, kind: ServiceEventKind, order: Order) -> None:
        """Of the order as the live stock tells of it: by its first product."""
        who = (order.order_id, order.user_id)
        self.notices.append(Notice(kind, order.first_product, *who, at_ms=self.now_ms))


def products_of(asks: Sequence[Ask], orders: Mapping[int, Order], now_ms: int) -> set[int]:
    """The products whose rows the answers need: a call that only reads an order keeps nobody waiting."""
    needed: set[int] = set()
    for ask in asks:
        order = orders.get(ask.order_id)
        if order is None:
            needed.update(line.product_id for line in ask.lines)
        elif _moves_units(ask.call, order, now_ms):
            needed.update(line.product_id for line in order.lines)
    return needed


_ENDS_HOLDS = frozenset((Call.SELL, Call.CONFIRM, Call.RELEASE))


def _moves_units(call: Call, order: Order, now_ms: int) -> bool:
    if order.state is OrderState.HELD:
        return call in _ENDS_HOLDS or now_ms > order.deadline_ms
    return order.state is OrderState.EXPIRED and call is Call.CONFIRM
