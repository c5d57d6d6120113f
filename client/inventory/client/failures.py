"""gRPC's errors, translated once: what went wrong, may it have acted, is it worth another try."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar, cast

import grpc
from google.protobuf.message import DecodeError, Message
from google.rpc import (  # type: ignore[import-untyped]  # has no stubs
    error_details_pb2,
    status_pb2,
)

from inventory.client.errors import (
    CursorOutOfRange,
    InvalidRequest,
    InventoryError,
    NotEnoughStock,
    NotExecuted,
    OrderConfirmed,
    OrderExpired,
    OrderReleased,
    OutcomeUnknown,
    Overloaded,
    PreconditionFailed,
    RefundRequired,
    RequestMismatch,
    ServiceFault,
    Unavailable,
    UnknownDeadLetter,
    UnknownOrder,
    UnknownProduct,
    UserLimit,
)
from inventory.client.outcomes import OUTCOME_UNKNOWN

UNREACHABLE = "UNREACHABLE"
"""No connection to the service could be made, so nothing was sent."""

NO_CONNECTION = "no connection to the service can be made"

PENDING = frozenset({"LOAD_PENDING", "CLOSE_PENDING", "RESHARD_PENDING"})
"""The change has begun and is not done; the same call again continues it."""

_MessageT = TypeVar("_MessageT", bound=Message)

_DOMAIN = "inventory"
_DETAILS_TRAILER = "grpc-status-details-bin"

_REFUSALS = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.ALREADY_EXISTS,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)
"""Answers, not accidents: nothing happened, and another try gets the same."""

_WORDED_PASSING = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.CANCELLED,
    }
)
"""Worded by the service itself, these pass; INTERNAL, say, would be the same again."""

_NEVER_CONNECTED = ("failed to connect", "dns resolution failed", "name resolution")
"""How gRPC words, in lower case, that no connection existed; anything else may have been sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One try that brought no answer; `asked_s` is the pause that the service asked for, or 0."""

    code: grpc.StatusCode
    reason: str
    message: str
    may_have_acted: bool
    passing: bool
    asked_s: float = 0.0


def failure_of(error: grpc.RpcError) -> Failure:
    """Translates the error of a call, synchronous or not."""
    details = _details_of(error)
    info = _detail(details, error_details_pb2.ErrorInfo())
    worded = info is not None and info.domain == _DOMAIN
    reason = info.reason if info and worded else error.code().name
    # With that reason the service says no more than what outcome_unknown says.
    message = "" if reason == OUTCOME_UNKNOWN else error.details() or ""
    unreachable = not worded and message.lower().startswith(_NEVER_CONNECTED)
    return Failure(
        code=error.code(),
        reason=UNREACHABLE if unreachable else reason,
        message=NO_CONNECTION if unreachable else _named_violations(details) or message,
        may_have_acted=not unreachable and _may_have_acted(error.code(), reason, worded=worded),
        passing=_passes(error.code(), worded=worded),
        asked_s=_asked_s(details),
    )


def timed_out(*, may_have_acted: bool) -> Failure:
    """A try whose time ran out in this process."""
    return Failure(
        code=grpc.StatusCode.DEADLINE_EXCEEDED,
        reason=grpc.StatusCode.DEADLINE_EXCEEDED.name,
        message="no answer in time",
        may_have_acted=may_have_acted,
        passing=True,
    )


def stream_ended() -> Failure:
    """A stream that the service ended before this answer."""
    return Failure(
        code=grpc.StatusCode.UNAVAILABLE,
        reason="STREAM_ENDED",
        message="the stream ended before the answer",
        may_have_acted=True,
        passing=True,
    )


def crowded() -> Failure:
    """A deduction that found this client's own queue full; it was never sent."""
    return Failure(
        code=grpc.StatusCode.RESOURCE_EXHAUSTED,
        reason="CLIENT_QUEUE_FULL",
        message="too many deductions are waiting in this client",
        may_have_acted=False,
        passing=True,
    )


def client_closed() -> Failure:
    """A deduction that still waited when its client was closed; it was never sent."""
    return Failure(
        code=grpc.StatusCode.CANCELLED,
        reason="CLIENT_CLOSED",
        message="the client was closed",
        may_have_acted=False,
        passing=False,
    )


def malformed(message: str) -> Failure:
    """An answer that breaks the contract."""
    return Failure(
        code=grpc.StatusCode.INTERNAL,
        reason="MALFORMED_ANSWER",
        message=message,
        may_have_acted=True,
        passing=False,
    )


def error_of(
    failure: Failure,
    *,
    acts: bool,
    doubtful: bool,
    request_id: str | None = None,
    order_id: int | None = None,
) -> InventoryError:
    """The exception for a call that ends with this failure.

    doubtful: an earlier try may have acted. What the last one says about itself then decides
    nothing, unless it shows that no copy of the call can have acted.
    """
    if acts and failure.reason in PENDING:
        return OutcomeUnknown(failure.message, reason=failure.reason, request_id=request_id)
    if acts and (failure.may_have_acted or (doubtful and not _decides(failure))):
        return outcome_unknown(failure.message, request_id, order_id)
    kind = _kind_of(failure, acts=acts)
    message = failure.message or failure.code.name.lower().replace("_", " ")
    return kind(message, reason=failure.reason, request_id=request_id, order_id=order_id)


def outcome_unknown(
    last: str, request_id: str | None, order_id: int | None = None
) -> OutcomeUnknown:
    again = "look before you send it again"
    if request_id or order_id:
        again = f"send the same {'request_id' if request_id else 'order_id'} again"
    message = f"the call may have taken effect; {again}" + (f": {last}" if last else "")
    return OutcomeUnknown(message, reason=OUTCOME_UNKNOWN, request_id=request_id, order_id=order_id)


_DECIDING = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.ALREADY_EXISTS,
    }
)

_KINDS: dict[grpc.StatusCode, type[InventoryError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequest,
    grpc.StatusCode.OUT_OF_RANGE: InvalidRequest,
    grpc.StatusCode.NOT_FOUND: UnknownProduct,
    grpc.StatusCode.ALREADY_EXISTS: RequestMismatch,
    grpc.StatusCode.FAILED_PRECONDITION: PreconditionFailed,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Overloaded,
}

_TOLD_APART = frozenset(
    {
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.OUT_OF_RANGE,
    }
)
"""Statuses of several kinds; the reason says which."""

_KINDS_OF_ENDS: dict[str, type[InventoryError]] = {
    "ORDER_CONFIRMED": OrderConfirmed,
    "ORDER_RELEASED": OrderReleased,
    "ORDER_EXPIRED": OrderExpired,
    "REFUND_REQUIRED": RefundRequired,
}
"""How an order has ended is the same for every copy of a call."""

_KINDS_OF_REASONS: dict[str, type[InventoryError]] = {
    "USER_LIMIT": UserLimit,
    "INSUFFICIENT_STOCK": NotEnoughStock,
    "UNKNOWN_ORDER": UnknownOrder,
    "DEAD_LETTER_UNKNOWN": UnknownDeadLetter,
    "CURSOR_TOO_OLD": CursorOutOfRange,
    "CURSOR_AHEAD": CursorOutOfRange,
    **_KINDS_OF_ENDS,
}
"""Where the status alone does not name the kind."""


def _decides(failure: Failure) -> bool:
    return failure.code in _DECIDING or failure.reason in _KINDS_OF_ENDS


def _kind_of(failure: Failure, *, acts: bool) -> type[InventoryError]:
    kind = _KINDS.get(failure.code)
    if failure.code in _TOLD_APART and kind is not None:
        return _KINDS_OF_REASONS.get(failure.reason, kind)
    if kind is not None:
        return kind
    if failure.passing:
        return NotExecuted if acts else Unavailable
    return ServiceFault


def _may_have_acted(code: grpc.StatusCode, reason: str, *, worded: bool) -> bool:
    if code in _REFUSALS:
        return False
    if worded and code is grpc.StatusCode.UNAVAILABLE:
        return reason == OUTCOME_UNKNOWN or reason in PENDING
    return not (worded and code is grpc.StatusCode.RESOURCE_EXHAUSTED)


def _passes(code: grpc.StatusCode, *, worded: bool) -> bool:
    if worded:
        return code in _WORDED_PASSING
    return code not in _REFUSALS


def _details_of(error: grpc.RpcError) -> status_pb2.Status:
    """google.rpc.Status of an error; empty where it carries none that can be read."""
    trailers = cast("Iterable[tuple[str, str | bytes]]", error.trailing_metadata() or ())
    for key, value in trailers:
        if key == _DETAILS_TRAILER and isinstance(value, bytes):
            try:
                return status_pb2.Status.FromString(value)
            except DecodeError:
                break
    return status_pb2.Status()


def _detail(details: status_pb2.Status, wanted: _MessageT) -> _MessageT | None:
    return next((wanted for packed in details.details if packed.Unpack(wanted)), None)


def _asked_s(details: status_pb2.Status) -> float:
    retry = _detail(details, error_details_pb2.RetryInfo())
    return retry.retry_delay.ToTimedelta().total_seconds() if retry else 0.0


def _named_violations(details: status_pb2.Status) -> str:
    bad = _detail(details, error_details_pb2.BadRequest())
    violations = bad.field_violations if bad else ()
    return "; ".join(f"{each.field}: {each.description}" for each in violations)
