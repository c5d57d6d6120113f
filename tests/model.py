"""The contract as one small counter: what a product answers who is asked one thing after another.

It knows no shards, no scripts and no time. Whatever the kernel does to keep its promises, its answers
must be these.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from sharding.orders import OrderState, request_id_of
from sharding.outcomes import Answer, Deduction, Outcome, Reason, Resolution, Resolved


class Record(NamedTuple):
    """What an id stands for: `kind` is deduct, restock, remove, refused or never."""

    kind: str
    quantity: int = 0
    user_id: int = 0


class Reply(NamedTuple):
    """The part of an answer that does not depend on where units lie."""

    outcome: Outcome
    replayed: bool = False
    reason: Reason = Reason.NONE


class Content(NamedTuple):
    """What an order wants: units of the product, and perhaps `more`, one unit of another that is never
    short."""

    quantity: int
    user_id: int
    more: int = 0


@dataclass(slots=True)
class Ordered:
    """An order. `is_late`: its time is over, and nobody has looked at it since."""

    content: Content
    state: OrderState
    is_late: bool = False


STATES = {
    OrderState.HELD: Outcome.HELD,
    OrderState.CONFIRMED: Outcome.CONFIRMED,
    OrderState.RELEASED: Outcome.RELEASED,
    OrderState.EXPIRED: Outcome.EXPIRED,
    OrderState.RETAKEN: Outcome.RETAKEN,
    OrderState.REFUND_REQUIRED: Outcome.REFUND_REQUIRED,
}
INSUFFICIENT = Reply(Outcome.INSUFFICIENT_STOCK)
MISMATCH = Reply(Outcome.REQUEST_MISMATCH)
CLOSED = Reply(Outcome.FROZEN, reason=Reason.PRODUCT_CLOSED)


@dataclass(slots=True)
class Model:
    """One product. Counts are units and only grow; what is left follows from them."""

    loaded: int = 0
    restocked: int = 0
    removed: int = 0
    given_back: int = 0
    sold: int = 0
    held: int = 0
    more_held: int = 0
    more_sold: int = 0
    product_id: int = 0
    shards: int = 0
    is_open: bool = False
    records: dict[str, Record] = field(default_factory=dict)
    orders: dict[int, Ordered] = field(default_factory=dict)
    barred: set[int] = field(default_factory=set)
    """Orders that were released before they came."""
    expired: int = 0
    """Orders of which the units came back without a word to anybody."""

    @property
    def available(self) -> int:
        """Units that can be sold, wherever they are."""
        left = self.loaded + self.restocked - self.removed - self.given_back
        return left - self.sold - self.held

    @property
    def total(self) -> int:
        """Units of which the live stock still gives account."""
        return self.available + self.sold + self.held

    def deduct(self, request: Deduction) -> Reply:
        """Take units for one request. In order of precedence: record, state, stock."""
        wanted = Record("deduct", request.quantity, request.user_id)
        record = self.records.get(request.request_id)
        if record is not None:
            return _repeated(record, wanted)
        if not self.is_open:
            return CLOSED
        if request.quantity > self.available:
            if request.attempt >= 2:
                self.records[request.request_id] = wanted._replace(kind="refused")
            return INSUFFICIENT
        self.sold += request.quantity
        self.records[request.request_id] = wanted
        return Reply(Outcome.DEDUCTED)

    def deduct_all(self, requests: Sequence[Deduction], given: Sequence[Answer]) -> list[Reply]:
        """Take units for requests that were asked at once, of which not all can be served perhaps.

        Each stands alone, so which of them are is the kernel's choice: they are asked here in the order
        that explains what was `given`, if any does. Equal requests keep their order. Exact where at most
        one id stands for several contents.
        """
        replies: dict[int, Reply] = {}
        for position in self._order(requests, given):
            replies[position] = self.deduct(requests[position])
        return [replies[position] for position in range(len(requests))]

    def restock(self, request_id: str, quantity: int) -> Reply:
        """Add units once per id."""
        reply = self._adjustable(request_id, Record("restock", quantity))
        if reply == Reply(Outcome.DEDUCTED):
            self.restocked += quantity
        return reply

    def remove(self, request_id: str, quantity: int) -> Reply:
        """Take unsold units away once per id, never more than there are."""
        reply = self._adjustable(request_id, Record("remove", quantity))
        if reply == Reply(Outcome.DEDUCTED):
            self.removed += quantity
        return reply

    def load(self, units: int, shards: int) -> None:
        """Put a closed product on sale."""
        assert not self.is_open
        self.loaded += units
        self.shards = shards
        self.is_open = True

    def close(self) -> None:
        """Take a product off sale; its units go back, its records stay."""
        self.given_back += self.available
        self.is_open = False

    def set_shards(self, shards: int) -> None:
        """Split the product anew. Callers see nothing of it."""
        self.shards = shards

    def resolve(self, request_id: str) -> Resolved:
        """Decide a request of unknown outcome; what was never seen will never take effect."""
        record = self.records.setdefault(request_id, Record("never"))
        if record.kind == "deduct":
            return Resolved(Resolution.DEDUCTED, record.quantity)
        return Resolved(Resolution(record.kind))

    def reserve(self, order_id: int, wanted: Content, *, sells: bool, attempt: int) -> Reply:
        """Hold an order's units, or sell them at once. In order of precedence: record, state, stock."""
        order = self.orders.get(order_id)
        if order is not None:
            return self._reserve_again(order, wanted, sells=sells)
        refused = Record("refused", wanted.quantity, wanted.user_id)
        record = self.records.get(self.line_id(order_id))
        if record is not None:
            return INSUFFICIENT._replace(replayed=True) if record == refused else MISMATCH
        if order_id in self.barred:
            return Reply(Outcome.RELEASED, replayed=True)
        if not self.is_open:
            return CLOSED
        if wanted.quantity > self.available:
            if attempt >= 2:
                self.records[self.line_id(order_id)] = refused
            return INSUFFICIENT
        order = self.orders[order_id] = Ordered(wanted, OrderState.HELD)
        self._hold(wanted, 1)
        if sells:
            self._sell(order, OrderState.CONFIRMED)
        return Reply(STATES[order.state])

    def confirm(self, order_id: int) -> Reply:
        """Sell what an order holds; what it held before, if that is still there."""
        order = self.orders.get(order_id)
        if order is None:
            return self._unknown(order_id)
        self.look(order_id)
        if order.state is OrderState.HELD:
            return self._sell(order, OrderState.CONFIRMED)
        if order.state is not OrderState.EXPIRED:
            return Reply(STATES[order.state], replayed=True)
        if not self.is_open or order.content.quantity > self.available:
            order.state = OrderState.REFUND_REQUIRED
            return Reply(Outcome.REFUND_REQUIRED)
        self._hold(order.content, 1)
        return self._sell(order, OrderState.RETAKEN)

    def release(self, order_id: int) -> Reply:
        """Give back what an order holds; one that never came never will."""
        order = self.orders.get(order_id)
        if order is None:
            was_barred = order_id in self.barred
            self.barred.add(order_id)
            return Reply(Outcome.RELEASED, replayed=was_barred)
        has_expired = self.look(order_id)
        if order.state is not OrderState.HELD:
            return Reply(STATES[order.state], replayed=not has_expired)
        order.state = OrderState.RELEASED
        self._hold(order.content, -1)
        return Reply(Outcome.RELEASED)

    def get(self, order_id: int) -> Reply:
        """What an order has come to."""
        order = self.orders.get(order_id)
        if order is None:
            return self._unknown(order_id)
        has_expired = self.look(order_id)
        return Reply(STATES[order.state], replayed=not has_expired)

    def look(self, order_id: int) -> bool:
        """Have an order end whose time is over; whether it did so now."""
        order = self.orders[order_id]
        if not order.is_late:
            return False
        order.is_late = False
        order.state = OrderState.EXPIRED
        self.expired += 1
        self._hold(order.content, -1)
        return True

    def late_orders(self) -> list[int]:
        """Those whose time is over."""
        return [order_id for order_id, order in self.orders.items() if order.is_late]

    def held_orders(self) -> list[int]:
        """Those that hold units, late or not."""
        held = OrderState.HELD
        return [order_id for order_id, order in self.orders.items() if order.state is held]

    def _reserve_again(self, order: Ordered, wanted: Content, *, sells: bool) -> Reply:
        if order.content[:2] != wanted[:2]:
            return MISMATCH
        self.look(next(order_id for order_id, each in self.orders.items() if each is order))
        if order.content != wanted:
            return MISMATCH
        if sells and order.state is OrderState.HELD:
            return self._sell(order, OrderState.CONFIRMED)
        return Reply(STATES[order.state], replayed=True)

    def line_id(self, order_id: int) -> str:
        """The id under which an order takes the product's units."""
        return request_id_of(order_id, self.product_id)

    def _unknown(self, order_id: int) -> Reply:
        if order_id in self.barred:
            return Reply(Outcome.RELEASED, replayed=True)
        return Reply(Outcome.UNKNOWN_ORDER)

    def _hold(self, content: Content, sign: int) -> None:
        self.held += sign * content.quantity
        self.more_held += sign * content.more

    def _sell(self, order: Ordered, state: OrderState) -> Reply:
        self._hold(order.content, -1)
        self.sold += order.content.quantity
        self.more_sold += order.content.more
        order.state = state
        order.is_late = False
        return Reply(STATES[state])

    def _adjustable(self, request_id: str, wanted: Record) -> Reply:
        record = self.records.get(request_id)
        if record is not None:
            return _repeated(record, wanted)
        if not self.is_open:
            return CLOSED
        if wanted.kind == "remove" and wanted.quantity > self.available:
            return INSUFFICIENT
        self.records[request_id] = wanted
        return Reply(Outcome.DEDUCTED)

    def _order(self, requests: Sequence[Deduction], given: Sequence[Answer]) -> list[int]:
        """Accepted requests before refused ones, because units only become fewer; but a refused one just
        before another content of its own id that was accepted. Refusals that are forgotten before those
        that are remembered."""
        ids = [request.request_id for request in requests]
        accepted: dict[str, int] = {}
        refused: list[int] = []
        for i, answer in enumerate(given):
            if answer.outcome is Outcome.DEDUCTED and ids[i] not in self.records:
                accepted.setdefault(ids[i], i)
            elif answer.outcome is Outcome.INSUFFICIENT_STOCK:
                refused.append(i)
        refused.sort(key=lambda i: (given[i].replayed, requests[i].attempt >= 2))
        torn = {ids[i] for i in refused} & accepted.keys()
        order = [i for i in accepted.values() if ids[i] not in torn]
        order += [i for i in refused if ids[i] in torn]
        order += [i for i in accepted.values() if ids[i] in torn]
        order += [i for i in refused if ids[i] not in torn]
        return order + [i for i in range(len(requests)) if i not in set(order)]


def _repeated(record: Record, wanted: Record) -> Reply:
    if record.kind == "never" and wanted.kind == "deduct":
        return MISMATCH._replace(reason=Reason.RESOLVED_NEVER)
    if record == wanted:
        return Reply(Outcome.DEDUCTED, replayed=True)
    if record == wanted._replace(kind="refused") and wanted.kind == "deduct":
        return INSUFFICIENT._replace(replayed=True)
    return MISMATCH
