"""What a deduction asks for, and what deductions and calls on orders can come to."""

from dataclasses import dataclass
from enum import StrEnum

OUTCOME_UNKNOWN = "OUTCOME_UNKNOWN"
"""The reason that says: this may have taken effect. Every other reason says that it did not."""


class Outcome(StrEnum):
    """What a request came to.

    Of a deduction the first two are facts about stock, and all but DEDUCTED and UNKNOWN took nothing.
    From HELD to UNKNOWN_ORDER: where an order is in its life.
    """

    DEDUCTED = "deducted"
    INSUFFICIENT_STOCK = "insufficient_stock"
    UNKNOWN_PRODUCT = "unknown_product"
    FROZEN = "frozen"
    REQUEST_MISMATCH = "request_mismatch"
    INVALID = "invalid"
    USER_LIMIT = "user_limit"
    HELD = "held"
    CONFIRMED = "confirmed"
    RELEASED = "released"
    EXPIRED = "expired"
    RETAKEN = "retaken"
    REFUND_REQUIRED = "refund_required"
    UNKNOWN_ORDER = "unknown_order"
    OVERLOADED = "overloaded"
    NOT_EXECUTED = "not_executed"
    UNKNOWN = "unknown"


OF_ORDERS = frozenset(
    {
        Outcome.HELD,
        Outcome.CONFIRMED,
        Outcome.RELEASED,
        Outcome.EXPIRED,
        Outcome.RETAKEN,
        Outcome.REFUND_REQUIRED,
        Outcome.UNKNOWN_ORDER,
    }
)
"""Outcomes that no deduction comes to."""


class Resolution(StrEnum):
    """The end that `resolve` found or made for a request whose answer was lost."""

    DEDUCTED = "deducted"
    REFUSED = "refused"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class DeductItem:
    """One request for units.

    Without a request_id the client makes one for this item. `attempt` is 1 for an id that was never
    sent before, 2 or more for one that may have been, 0 for unknown. None: 1 if made here, else 0.
    """

    product_id: int
    quantity: int
    request_id: str | None = None
    order_id: int = 0
    user_id: int = 0
    attempt: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Deduction:
    """What became of one DeductItem; `shard` and `shard_available`: 0 where nothing was taken."""

    request_id: str
    outcome: Outcome
    replayed: bool = False
    shard: int = 0
    shard_available: int = 0
    reason: str = ""
    message: str = ""
    """What the service said to people; empty where the outcome says it all."""

    @property
    def accepted(self) -> bool:
        """The units are the caller's, by this copy of the request or by an earlier one."""
        return self.outcome is Outcome.DEDUCTED


@dataclass(frozen=True, slots=True)
class Resolved:
    """How a request ended; `quantity` is what it took, 0 unless DEDUCTED."""

    resolution: Resolution
    quantity: int
