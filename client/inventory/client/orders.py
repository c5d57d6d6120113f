"""Orders, holds and events as records; field for field the messages of inventory.v1."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from inventory.client.outcomes import Outcome
from inventory.v1 import admin_pb2, inventory_pb2

SOLD = frozenset({Outcome.CONFIRMED, Outcome.RETAKEN})


@dataclass(frozen=True, slots=True)
class OrderLine:
    """Units of one product that an order wants."""

    product_id: int
    quantity: int


class OrderState(StrEnum):
    """Where an order is in its life."""

    UNSPECIFIED = "unspecified"
    PENDING = "pending"
    HELD = "held"
    CONFIRMED = "confirmed"
    RELEASED = "released"
    EXPIRED = "expired"
    RETAKING = "retaking"
    REFUND_REQUIRED = "refund_required"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """An order as the live stock has it; times in milliseconds since 1970 UTC.

    `lines`: by product, each product once. `retaken`: confirmed too late, and its units taken again.
    """

    order_id: int
    user_id: int
    state: OrderState
    lines: tuple[OrderLine, ...]
    expires_ms: int
    created_ms: int
    retaken: bool


@dataclass(frozen=True, slots=True)
class Reservation:
    """An order to hold units for. `ttl_s` 0: the service's default.

    `attempt` is 1 for an order_id that was never sent before, 2 or more for one that may have been,
    0 for unknown.
    """

    order_id: int
    lines: tuple[OrderLine, ...]
    user_id: int = 0
    ttl_s: int = 0
    attempt: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderResult:
    """What a call on an order came to.

    `order` is None where it holds nothing and never did, or nothing is known of it; `short_lines`:
    of INSUFFICIENT_STOCK, the lines of which there were too few units.
    """

    order_id: int
    outcome: Outcome
    replayed: bool = False
    order: Order | None = None
    short_lines: tuple[OrderLine, ...] = ()
    reason: str = ""
    message: str = ""
    """What the service said to people; empty where the outcome says it all."""

    @property
    def held(self) -> bool:
        """The units are held for the order."""
        return self.outcome is Outcome.HELD

    @property
    def sold(self) -> bool:
        """The units are sold to the order, in time or after all."""
        return self.outcome in SOLD


class EventKind(StrEnum):
    """What an event tells of. UNSPECIFIED: nothing, or something that this client does not know."""

    UNSPECIFIED = "unspecified"
    ORDER_EXPIRED = "order_expired"
    REFUND_REQUIRED = "refund_required"
    SOLD_OUT = "sold_out"
    BACK_IN_STOCK = "back_in_stock"
    LOW_STOCK = "low_stock"
    FROZEN = "frozen"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened. Whoever has dealt with it goes on from its `cursor`.

    `order_id` 0: it is of a product. `available`: units of the product as the ledger had them then.
    """

    cursor: str
    kind: EventKind
    product_id: int
    order_id: int
    user_id: int
    available: int
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """Units of one product that an order holds, as the ledger knows it."""

    id: int
    order_id: int
    product_id: int
    user_id: int
    quantity: int
    partition: int
    created_ms: int
    age_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldPage:
    """Holds, oldest first; `next_after_id` starts the next page, 0: this was the last."""

    holds: tuple[Hold, ...]
    next_after_id: int


def order_of(message: inventory_pb2.Order) -> Order:
    return Order(
        order_id=message.order_id,
        user_id=message.user_id,
        state=_STATES.get(message.state, OrderState.UNSPECIFIED),
        lines=lines_of(message.lines),
        expires_ms=message.expires_ms,
        created_ms=message.created_ms,
        retaken=message.retaken,
    )


def lines_of(messages: Iterable[inventory_pb2.OrderLine]) -> tuple[OrderLine, ...]:
    return tuple(OrderLine(line.product_id, line.quantity) for line in messages)


def event_of(message: inventory_pb2.WatchEventsResponse) -> Event:
    return Event(
        cursor=message.cursor,
        kind=_KINDS.get(message.kind, EventKind.UNSPECIFIED),
        product_id=message.product_id,
        order_id=message.order_id,
        user_id=message.user_id,
        available=message.available,
        at_ms=message.at_ms,
    )


def hold_page_of(message: admin_pb2.ListHoldsResponse) -> HoldPage:
    return HoldPage(
        holds=tuple(hold_of(hold) for hold in message.holds), next_after_id=message.next_after_id
    )


def hold_of(message: admin_pb2.Hold) -> Hold:
    return Hold(
        id=message.id,
        order_id=message.order_id,
        product_id=message.product_id,
        user_id=message.user_id,
        quantity=message.quantity,
        partition=message.partition,
        created_ms=message.created_ms,
        age_ms=message.age_ms,
    )


_STATES = {
    inventory_pb2.ORDER_STATE_PENDING: OrderState.PENDING,
    inventory_pb2.ORDER_STATE_HELD: OrderState.HELD,
    inventory_pb2.ORDER_STATE_CONFIRMED: OrderState.CONFIRMED,
    inventory_pb2.ORDER_STATE_RELEASED: OrderState.RELEASED,
    inventory_pb2.ORDER_STATE_EXPIRED: OrderState.EXPIRED,
    inventory_pb2.ORDER_STATE_RETAKING: OrderState.RETAKING,
    inventory_pb2.ORDER_STATE_REFUND_REQUIRED: OrderState.REFUND_REQUIRED,
    inventory_pb2.ORDER_STATE_REFUSED: OrderState.REFUSED,
}

_KINDS = {
    inventory_pb2.EVENT_KIND_ORDER_EXPIRED: EventKind.ORDER_EXPIRED,
    inventory_pb2.EVENT_KIND_REFUND_REQUIRED: EventKind.REFUND_REQUIRED,
    inventory_pb2.EVENT_KIND_SOLD_OUT: EventKind.SOLD_OUT,
    inventory_pb2.EVENT_KIND_BACK_IN_STOCK: EventKind.BACK_IN_STOCK,
    inventory_pb2.EVENT_KIND_LOW_STOCK: EventKind.LOW_STOCK,
    inventory_pb2.EVENT_KIND_FROZEN: EventKind.FROZEN,
}
