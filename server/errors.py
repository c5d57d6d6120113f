"""Failures as callers see them: one table of gRPC codes, and the details of google.rpc."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Protocol

from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc.error_details_pb2 import (  # type: ignore[import-untyped]  # ships no annotations
    BadRequest,
    ErrorInfo,
    RetryInfo,
)
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]  # ships no annotations
from grpc import StatusCode

from ledger.errors import (
    Conflict,
    LedgerConflictError,
    LedgerUnavailableError,
    UnknownProductError,
)
from sharding.errors import StockUnavailableError
from sharding.outcomes import Answer, Outcome, Reason

DOMAIN = "inventory"
DETAILS_METADATA = "grpc-status-details-bin"
"""Where gRPC libraries look for google.rpc.Status."""

CODES: Final[Mapping[Outcome, StatusCode]] = {
    Outcome.DEDUCTED: StatusCode.OK,
    Outcome.INSUFFICIENT_STOCK: StatusCode.FAILED_PRECONDITION,  # of Remove; a value in Deduct
    Outcome.UNKNOWN_PRODUCT: StatusCode.NOT_FOUND,
    Outcome.FROZEN: StatusCode.FAILED_PRECONDITION,
    Outcome.REQUEST_MISMATCH: StatusCode.ALREADY_EXISTS,
    Outcome.INVALID: StatusCode.INVALID_ARGUMENT,
    Outcome.USER_LIMIT: StatusCode.FAILED_PRECONDITION,
    Outcome.OVERLOADED: StatusCode.RESOURCE_EXHAUSTED,
    Outcome.UNAVAILABLE: StatusCode.UNAVAILABLE,
    # Of orders, in the calls of which they are no value; see server/orders.py.
    Outcome.HELD: StatusCode.FAILED_PRECONDITION,
    Outcome.CONFIRMED: StatusCode.FAILED_PRECONDITION,
    Outcome.RELEASED: StatusCode.FAILED_PRECONDITION,
    Outcome.EXPIRED: StatusCode.FAILED_PRECONDITION,
    Outcome.RETAKEN: StatusCode.FAILED_PRECONDITION,
    Outcome.REFUND_REQUIRED: StatusCode.FAILED_PRECONDITION,
    Outcome.UNKNOWN_ORDER: StatusCode.NOT_FOUND,
}

_MESSAGES: Final[Mapping[Outcome, str]] = {
    Outcome.INSUFFICIENT_STOCK: "fewer units are available",
    Outcome.UNKNOWN_PRODUCT: "the product was never loaded",
    Outcome.FROZEN: "the product is not on sale",
    Outcome.REQUEST_MISMATCH: "this id was used for another quantity, user or kind of call",
    Outcome.INVALID: "a field is out of its bounds",
    Outcome.USER_LIMIT: "the user has as many units as the product allows",
    Outcome.OVERLOADED: "more work is queued than the service takes on",
    Outcome.UNAVAILABLE: "the service cannot do this now",
    Outcome.HELD: "the order's units are held",
    Outcome.CONFIRMED: "the order is confirmed: its units are sold",
    Outcome.RELEASED: "the order was released",
    Outcome.EXPIRED: "the order's time was over",
    Outcome.RETAKEN: "the order is confirmed: its units are sold",
    Outcome.REFUND_REQUIRED: "the order was confirmed too late and could not be sold any more",
    Outcome.UNKNOWN_ORDER: "nobody has heard of this order",
}

_OUTCOME_REASONS: Final[Mapping[Outcome, str]] = {
    Outcome.HELD: "ORDER_HELD",
    Outcome.CONFIRMED: "ORDER_CONFIRMED",
    Outcome.RELEASED: "ORDER_RELEASED",
    Outcome.EXPIRED: "ORDER_EXPIRED",
    Outcome.RETAKEN: "ORDER_CONFIRMED",
}
"""Where the outcome's own name is not the reason."""

_REASON_MESSAGES: Final[Mapping[Reason, str]] = {
    Reason.RESOLVED_NEVER: "this is a late copy of a request that was resolved: it takes nothing, ever",
    Reason.LEDGER_BEHIND: "too many sales wait for the ledger; nothing is sold until it has caught up",
    Reason.LIVE_STOCK_AWAY: "no Redis node can be reached; the ledger cannot do this in its place",
    Reason.LIVE_STOCK_RETURNING: "Redis is back and is told what was sold meanwhile",
    Reason.BUFFER_EMPTY: "no Redis node can be reached, and the buffer has fewer units than that",
    Reason.ORDER_PENDING: "the order is being decided just now",
    Reason.ORDER_AMBIGUOUS: "several orders have this id; name a product of the one that is meant",
}
"""Where the outcome's message would mislead."""

_CONFLICT_CODES: Final[Mapping[Conflict, StatusCode]] = {
    Conflict.REQUEST_MISMATCH: StatusCode.ALREADY_EXISTS,
    Conflict.LAYOUT_CHANGING: StatusCode.UNAVAILABLE,
    Conflict.STATUS_CHANGING: StatusCode.UNAVAILABLE,
    Conflict.DEAD_LETTER_UNKNOWN: StatusCode.NOT_FOUND,
}
"""What is not named here is FAILED_PRECONDITION."""

_PUBLIC_REASONS: Final[Mapping[Reason, Reason]] = {
    Reason.NOT_REPLICATED: Reason.OUTCOME_UNKNOWN,
}
"""The contract has one reason that means "may have taken effect"; everything else had no effect."""

_RETRY_AFTER_MS: Final[Mapping[StatusCode, int]] = {
    StatusCode.UNAVAILABLE: 100,
    StatusCode.RESOURCE_EXHAUSTED: 100,
}
_LONGER_RETRY_AFTER_MS: Final[Mapping[str, int]] = {Reason.LEDGER_BEHIND: 1_000}
"""Reasons that do not pass in a moment."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A field of a request that is out of its bounds."""

    field: str
    reason: str
    description: str


_VIOLATIONS: Final[Mapping[Reason, Violation]] = {
    reason: Violation(field, reason.value, description)
    for reason, field, description in (
        (Reason.USER_REQUIRED, "user_id", "must be set: a product has a limit per user"),
        (Reason.TTL_TOO_LONG, "ttl_s", "must be shorter than what is remembered of the order"),
    )
}
"""Bounds that only the live stock knows."""


class RefusedError(Exception):
    """A call that ends with a status. Everything in it is meant for the caller's eyes."""

    def __init__(
        self,
        code: StatusCode,
        reason: str,
        message: str,
        *,
        violations: Sequence[Violation] = (),
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.violations = violations


class Answered(Protocol):
    """What a request or a call on an order came to."""

    @property
    def outcome(self) -> Outcome: ...
    @property
    def reason(self) -> Reason: ...


def public_reason(reason: Reason) -> str:
    """A reason in the words of the contract."""
    return _PUBLIC_REASONS.get(reason, reason).value


def refused(answer: Answered) -> RefusedError:
    """The status for an answer that is no value in a unary call."""
    reason = public_reason(answer.reason) or _reason_of(answer.outcome)
    if reason == Reason.OUTCOME_UNKNOWN:
        return unknown_outcome()
    if answer.reason in _VIOLATIONS:
        return invalid(_VIOLATIONS[answer.reason])
    message = _REASON_MESSAGES.get(answer.reason) or _MESSAGES[answer.outcome]
    return RefusedError(CODES[answer.outcome], reason, message)


def _reason_of(outcome: Outcome) -> str:
    return _OUTCOME_REASONS.get(outcome) or outcome.value.upper()


def invalid(*violations: Violation) -> RefusedError:
    """The status for a request with fields out of their bounds; at least one."""
    return RefusedError(
        StatusCode.INVALID_ARGUMENT,
        violations[0].reason,
        "; ".join(f"{found.field}: {found.description}" for found in violations),
        violations=violations,
    )


def unavailable(reason: str, message: str) -> RefusedError:
    """The status for a call that had no effect and can succeed later."""
    return RefusedError(StatusCode.UNAVAILABLE, reason, message)


def unknown_outcome() -> RefusedError:
    """The status for a call that may have had an effect."""
    return unavailable(
        Reason.OUTCOME_UNKNOWN, "the call may have taken effect; the same call again decides it"
    )


def overloaded() -> RefusedError:
    """The status for work that was not taken on."""
    return refused(Answer(Outcome.OVERLOADED, reason=Reason.QUEUE_FULL))


def cursor_too_old() -> RefusedError:
    """The status for a watch that would miss events: those after its cursor are not kept any more."""
    message = "events after this cursor are not kept any more"
    return RefusedError(StatusCode.OUT_OF_RANGE, "CURSOR_TOO_OLD", message)


def cursor_ahead() -> RefusedError:
    """The status for a watch from a cursor that this ledger has not given out."""
    message = "no event has reached this cursor"
    return RefusedError(StatusCode.OUT_OF_RANGE, "CURSOR_AHEAD", message)


def internal() -> RefusedError:
    """The status for a mistake of ours. What it was stands in the log only."""
    return RefusedError(StatusCode.INTERNAL, "INTERNAL", "internal error")


def translate(error: Exception) -> RefusedError | None:
    """The status for a failure that is foreseen; None for one that is not."""
    match error:
        case RefusedError():
            return error
        case StockUnavailableError(reason=Reason.QUEUE_FULL):
            return overloaded()
        case StockUnavailableError():
            return refused(Answer(Outcome.UNAVAILABLE, reason=error.reason))
        case UnknownProductError():
            return RefusedError(
                StatusCode.NOT_FOUND, "UNKNOWN_PRODUCT", "the ledger has no such product"
            )
        case LedgerConflictError():
            code = _CONFLICT_CODES.get(error.conflict, StatusCode.FAILED_PRECONDITION)
            return RefusedError(code, error.conflict.value.upper(), str(error))
        case LedgerUnavailableError():
            return unknown_outcome()
        case ExceptionGroup(exceptions=(first, *_)):
            return translate(first)
    return None


def trailing_metadata(refusal: RefusedError) -> tuple[tuple[str, bytes], ...]:
    """What goes beside the code and the message: the same once more, with details."""
    violations = tuple(refusal.violations)
    return ((DETAILS_METADATA, _status(refusal.code, refusal.reason, refusal.message, violations)),)


@lru_cache(maxsize=128)
def _status(
    code: StatusCode, reason: str, message: str, violations: tuple[Violation, ...]
) -> bytes:
    """google.rpc.Status. Remembered: under overload most calls end with the same one."""
    details: list[Message] = [ErrorInfo(reason=reason, domain=DOMAIN)]
    if code in _RETRY_AFTER_MS:
        after_ms = _LONGER_RETRY_AFTER_MS.get(reason, _RETRY_AFTER_MS[code])
        details.append(RetryInfo(retry_delay=_milliseconds(after_ms)))
    if violations:
        details.append(BadRequest(field_violations=map(_field_violation, violations)))
    packed = [_packed(detail) for detail in details]
    encoded: bytes = Status(code=code.value[0], message=message, details=packed).SerializeToString()
    return encoded


def _milliseconds(value: int) -> Duration:
    seconds, rest = divmod(value, 1_000)
    return Duration(seconds=seconds, nanos=rest * 1_000_000)


def _field_violation(violation: Violation) -> Message:
    found: Message = BadRequest.FieldViolation(
        field=violation.field, description=violation.description, reason=violation.reason
    )
    return found


def _packed(detail: Message) -> AnyMessage:
    packed = AnyMessage()
    packed.Pack(detail)
    return packed
