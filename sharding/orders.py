"""Orders as callers and the live stock know them. Pure: no I/O, no clock.

An order's decision is one record at its coordinator, the partition where its first line is held. All its
other lines follow that record.
"""

import re
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple, Self

from sharding.outcomes import Outcome, Reason

LINES_MAX = 50
HOLD_S_MAX = 43_200
HOLD_S = 1_800

HERE = "-"
"""The place of a line that is held by the coordinator itself."""
SOMEWHERE = "?"
"""The place of a line that nobody has noted: an undecided order's."""

NOWHERE = "!"
"""The place of a line that could not be held."""

_RECORD = re.compile(r"([PHCREAKTFQ]) (\d{1,15}) (\d{1,15}) (\d{1,19}) ([01]) (\S+)")
_LINE = re.compile(r"(\d{1,19}):(\d{1,7}):([-?!]|\d{1,4})")


class OrderState(StrEnum):
    """Where an order is in its life, as the coordinator's record begins."""

    PENDING = "P"
    """Its lines are being held."""
    HELD = "H"
    CONFIRMED = "C"
    RELEASED = "R"
    EXPIRED = "E"
    REFUSED = "A"
    """A line was short; what had been held goes back."""
    RETAKING = "T"
    """Confirmed too late; it is being found out whether its lines can be held again."""
    RETAKEN = "K"
    """Confirmed too late, and sold all the same."""
    REFUND_REQUIRED = "F"
    """Confirmed too late; it could not be sold any more."""
    QUESTIONED = "Q"
    """Undecided as far as the ledger knew that it was restored from; its lines may know more."""

    @property
    def is_sold(self) -> bool:
        return self in (OrderState.CONFIRMED, OrderState.RETAKEN)


class Line(NamedTuple):
    """Units of one product that an order wants."""

    product_id: int
    quantity: int


class Held(NamedTuple):
    """A line and the partition that holds it: a number, HERE, SOMEWHERE or NOWHERE."""

    product_id: int
    quantity: int
    place: str

    def __str__(self) -> str:
        return f"{self.product_id}:{self.quantity}:{self.place}"


class Order(NamedTuple):
    """What a coordinator remembers. Times in milliseconds since 1970 by its node's clock.

    `deadline_ms` includes the grace that a late confirmation is given. `is_open`: lines elsewhere have
    not been told of the decision yet, as far as the coordinator knows.
    """

    order_id: int
    user_id: int
    state: OrderState
    deadline_ms: int
    created_ms: int
    is_open: bool
    held: tuple[Held, ...]

    @property
    def first_product(self) -> int:
        return self.held[0].product_id

    @property
    def lines(self) -> tuple[Line, ...]:
        return tuple(Line(each.product_id, each.quantity) for each in self.held)

    @classmethod
    def parse(cls, order_id: int, record: bytes) -> Self:
        """ValueError if it is no record of an order."""
        found = _RECORD.fullmatch(record.decode())
        if not found:
            raise ValueError(f"record of order {order_id}: {record[:60]!r}")
        state, deadline_ms, created_ms, user_id, is_open, lines = found.groups()
        return cls(
            order_id,
            int(user_id),
            OrderState(state),
            int(deadline_ms),
            int(created_ms),
            is_open == "1",
            held_of(lines),
        )


def held_of(text: str) -> tuple[Held, ...]:
    """The lines of an order as its record has them, with commas between them; ValueError."""
    return tuple(map(_held, text.split(",")))


def _held(text: str) -> Held:
    found = _LINE.fullmatch(text)
    if not found:
        raise ValueError(f"line {text[:60]!r}")
    return Held(int(found[1]), int(found[2]), found[3])


class OrderAnswer(NamedTuple):
    """What a call on an order came to.

    `short`: the lines of which there were too few units, of INSUFFICIENT_STOCK.
    """

    outcome: Outcome
    order: Order | None = None
    replayed: bool = False
    short: tuple[Line, ...] = ()
    reason: Reason = Reason.NONE


def outcome_of(order: Order) -> Outcome:
    """An order's state as an outcome."""
    return OUTCOMES[order.state]


def answer_of(order: Order, *, replayed: bool) -> OrderAnswer:
    """An order's state as an answer."""
    outcome = outcome_of(order)
    if outcome is Outcome.UNAVAILABLE:
        return OrderAnswer(outcome, order, reason=Reason.ORDER_PENDING)
    if order.state is OrderState.REFUSED:
        short = tuple(
            Line(each.product_id, each.quantity) for each in order.held if each.place == NOWHERE
        )
        return OrderAnswer(outcome, order, replayed=replayed, short=short)
    return OrderAnswer(outcome, order, replayed=replayed)


OUTCOMES = {
    OrderState.PENDING: Outcome.UNAVAILABLE,
    OrderState.HELD: Outcome.HELD,
    OrderState.CONFIRMED: Outcome.CONFIRMED,
    OrderState.RELEASED: Outcome.RELEASED,
    OrderState.EXPIRED: Outcome.EXPIRED,
    OrderState.REFUSED: Outcome.INSUFFICIENT_STOCK,
    OrderState.RETAKING: Outcome.UNAVAILABLE,
    OrderState.RETAKEN: Outcome.RETAKEN,
    OrderState.REFUND_REQUIRED: Outcome.REFUND_REQUIRED,
    OrderState.QUESTIONED: Outcome.UNAVAILABLE,
}
"""What a state is called in an answer."""


def canonical(lines: Sequence[Line]) -> tuple[Line, ...]:
    """By product, each product once."""
    units: dict[int, int] = {}
    for product_id, quantity in lines:
        units[product_id] = units.get(product_id, 0) + quantity
    return tuple(Line(product_id, units[product_id]) for product_id in sorted(units))


def hold_s_max(record_ttl_s: int, grace_s: float) -> float:
    """How long an order may be held in all, its grace included: it must end well before its lines are
    forgotten."""
    return min(HOLD_S_MAX + grace_s, record_ttl_s * 3 / 4)


def request_id_of(order_id: int, first_product: int) -> str:
    """Under which an order takes its lines. No caller's own id has a space."""
    return f"order {order_id} {first_product}"


def first_product_of(request_id: str) -> int:
    """The first product of the order whose line is taken under an id."""
    return int(request_id.rsplit(" ", 1)[1])


def retake_id_of(order_id: int, first_product: int) -> str:
    """Under which it takes them again when it is confirmed too late."""
    return f"{_RETAKE}{order_id} {first_product}"


def is_retake(request_id: str) -> bool:
    """Whether an order takes a line again; of such a line no copy is ever a first try."""
    return request_id.startswith(_RETAKE)


_RETAKE = "retake "
