"""Everything a call can raise. What a deduction came to is a value where it is a fact about stock.

Each error says whether units may have been taken: only `OutcomeUnknown` leaves that open.
"""

# ruff: noqa: N818  # `except Frozen` reads as what happened; all of them are InventoryErrors


class InventoryError(Exception):
    """A call without an answer; the reason is in UPPER_SNAKE_CASE, as the service has it."""

    code = "UNKNOWN"
    """The gRPC status that names this kind of error."""

    def __init__(
        self,
        message: str,
        *,
        reason: str,
        request_id: str | None = None,
        order_id: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason
        self.request_id = request_id
        self.order_id = order_id

    def __str__(self) -> str:
        named = f" (request {self.request_id})" if self.request_id else ""
        named = f" (order {self.order_id})" if self.order_id else named
        return f"{self.message}{named} [{self.reason}]"


class InvalidRequest(InventoryError):
    """A field is out of its bounds; nothing happened, and nothing will by sending it again."""

    code = "INVALID_ARGUMENT"


class CursorOutOfRange(InventoryError):
    """Events after the cursor are not kept any more (CURSOR_TOO_OLD), or there is none that far
    (CURSOR_AHEAD): look at what depends on them, then watch on from "0" or from now."""

    code = "OUT_OF_RANGE"


class UnknownProduct(InventoryError):
    """The service does not know the product; nothing happened."""

    code = "NOT_FOUND"


class RequestMismatch(InventoryError):
    """The request id was used for another quantity, buyer or kind of call; nothing happened."""

    code = "ALREADY_EXISTS"


class PreconditionFailed(InventoryError):
    """The product's state does not allow the call; nothing happened."""

    code = "FAILED_PRECONDITION"


class Frozen(PreconditionFailed):
    """The product is closed or frozen; the reason says which."""


class UserLimit(PreconditionFailed):
    """The buyer holds or bought as many units as the product allows."""


class NotEnoughStock(PreconditionFailed):
    """A removal asked for more units than are available, or an order never held any for that reason."""


class UnknownOrder(InventoryError):
    """Nobody has heard of the order, or it was forgotten long after its end."""

    code = "NOT_FOUND"


class UnknownDeadLetter(InventoryError):
    """The ledger has no dead letter of this number."""

    code = "NOT_FOUND"


class OrderEnded(PreconditionFailed):
    """The order has come to an end that the call does not fit; the subclass says which."""


class OrderConfirmed(OrderEnded):
    """The order's units are sold to it."""


class OrderReleased(OrderEnded):
    """The order was released and holds nothing."""


class OrderExpired(OrderEnded):
    """The order's time was over; it holds nothing."""


class RefundRequired(OrderEnded):
    """The order was confirmed too late and could not be sold to it any more."""


class Unavailable(InventoryError):
    """No answer within the deadline, and nothing happened; the same call can succeed later."""

    code = "UNAVAILABLE"


class NotExecuted(Unavailable):
    """The service could not do it within the deadline; it certainly did not."""


class Overloaded(Unavailable):
    """The service had more work than it takes on until the deadline; nothing happened."""

    code = "RESOURCE_EXHAUSTED"


class OutcomeUnknown(InventoryError):
    """The call may have taken effect: the same call again, with the same id, decides it."""

    code = "UNAVAILABLE"


class ServiceFault(InventoryError):
    """The service cannot answer this call at all: a defect, a missing method, a missing right."""

    code = "INTERNAL"
