"""Failures as callers see them: one table of gRPC codes, and the details of google.rpc."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

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
}

_MESSAGES: Final[Mapping[Outcome, str]] = {
    Outcome.INSUFFICIENT_STOCK: "fewer units are available",
    Outcome.UNKNOWN_PRODUCT: "the product was never loaded",
    Outcome.FROZEN: "the product is not on sale",
    Outcome.REQUEST_MISMATCH: "this request_id was used for another quantity, user or kind of call",
    Outcome.INVALID: "a field is out of its bounds",
    Outcome.USER_LIMIT: "the user has as many units as the product allows",
    Outcome.OVERLOADED: "more work is queued than the service takes on",
    Outcome.UNAVAILABLE: "the service cannot do this now",
}

_REASON_MESSAGES: Final[Mapping[Reason, str]] = {
    Reason.RESOLVED_NEVER: "this is a late copy of a request that was resolved: it takes nothing, ever",
}
"""Where the outcome's message would mislead."""

_CONFLICT_CODES: Final[Mapping[Conflict, StatusCode]] = {
    Conflict.REQUEST_MISMATCH: StatusCode.ALREADY_EXISTS,
    Conflict.LAYOUT_CHANGING: StatusCode.UNAVAILABLE,
    Conflict.STATUS_CHANGING: StatusCode.UNAVAILABLE,
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


@dataclass(frozen=True, slots=True)
class Violation:
    """A field of a request that is out of its bounds."""

    field: str
    reason: str
    description: str


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


def public_reason(reason: Reason) -> str:
    """A reason in the words of the contract."""
    return _PUBLIC_REASONS.get(reason, reason).value


def refused(answer: Answer) -> RefusedError:
    """The status for an answer that is no value in a unary call."""
    reason = public_reason(answer.reason) or answer.outcome.value.upper()
    message = _REASON_MESSAGES.get(answer.reason) or _MESSAGES[answer.outcome]
    if reason == Reason.OUTCOME_UNKNOWN:
        return unknown_outcome()
    return RefusedError(CODES[answer.outcome], reason, message)


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
    status = Status(
        code=refusal.code.value[0],
        message=refusal.message,
        details=[_packed(detail) for detail in _details(refusal)],
    )
    return ((DETAILS_METADATA, status.SerializeToString()),)


def _details(refusal: RefusedError) -> list[Message]:
    details: list[Message] = [ErrorInfo(reason=refusal.reason, domain=DOMAIN)]
    if refusal.code in _RETRY_AFTER_MS:
        details.append(RetryInfo(retry_delay=_milliseconds(_RETRY_AFTER_MS[refusal.code])))
    if refusal.violations:
        details.append(BadRequest(field_violations=map(_field_violation, refusal.violations)))
    return details


def _milliseconds(value: int) -> Duration:
    return Duration(nanos=value * 1_000_000)


def _field_violation(violation: Violation) -> Message:
    found: Message = BadRequest.FieldViolation(
        field=violation.field, description=violation.description, reason=violation.reason
    )
    return found


def _packed(detail: Message) -> AnyMessage:
    packed = AnyMessage()
    packed.Pack(detail)
    return packed
