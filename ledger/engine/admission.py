"""Whether a product takes requests: the one place that decides it."""

from ledger.products import ProductRow
from sharding.outcomes import Answer, Outcome, Reason, State

UNKNOWN_PRODUCT = Answer(Outcome.UNKNOWN_PRODUCT)
NAMELESS = Answer(Outcome.INVALID, reason=Reason.USER_REQUIRED)

_OFF_SALE = {
    State.LOADING: Answer(Outcome.FROZEN, reason=Reason.PRODUCT_LOADING),
    State.CLOSING: Answer(Outcome.FROZEN, reason=Reason.PRODUCT_CLOSED),
    State.CLOSED: Answer(Outcome.FROZEN, reason=Reason.PRODUCT_CLOSED),
}

_FROZEN = Answer(Outcome.FROZEN, reason=Reason.PRODUCT_FROZEN)


def objection(row: ProductRow) -> Answer | None:
    """What every request ends as that nobody has heard of before; None: nothing stands against it."""
    return _FROZEN if row.frozen_reason else _OFF_SALE.get(row.status)
