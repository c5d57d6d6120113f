"""What surrounds every call: decoding, metrics, errors as statuses.

Handlers are wrapped here once each, when they are added, and not by a gRPC interceptor on every call.
Which methods there are comes from the contract's own descriptors.
"""

# grpcio's stubs make RpcMethodHandler generic; the class itself is not.
from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from math import inf
from time import perf_counter
from typing import Any, NoReturn, TypeVar

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.descriptor_pb2 import MethodOptions
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from grpc import StatusCode
from structlog.typing import FilteringBoundLogger

from server.errors import (
    RefusedError,
    internal,
    trailing_metadata,
    translate,
    unavailable,
    unknown_outcome,
)
from server.metrics import Meter, Metrics
from sharding.outcomes import Reason

T = TypeVar("T")
Context = grpc.aio.ServicerContext[Any, Any]
Behaviour = Callable[[Any, Context], Awaitable[Any]]
"""Takes a message, or a reader of them; returns a message, its bytes, or None where it streams."""
Parser = Callable[[bytes], Message]

ANSWER_S = 1.0
"""What is left of a caller's deadline for the answer, when a call waits for something."""
ENDS_BEFORE_S = 0.5
"""So long before its caller's deadline a call ends at the latest, or a tenth of a short one: the caller
is to have our word for it, and not gRPC's."""
ON_THE_WAY_S = 0.1
"""A caller's deadline passes before the same one does here, by the time that the call was on its way."""

_ATTEMPTS_BEFORE = "grpc-previous-rpc-attempts"
_ATTEMPT_OF_ENVOY = "x-envoy-attempt-count"


_WAIT_FOR_WORKERS = frozenset(("Audit", "Close", "Load", "Repair", "SetShards"))


@dataclass(frozen=True, slots=True)
class Bounds:
    """How long a call without a deadline takes at the longest, and one that waits for workers. Streams
    have bounds of their own, see server/streams.py."""

    call_s: float = 30.0
    worker_s: float = 65.0

    def of(self, method: MethodDescriptor) -> float:
        """In seconds; infinite for a stream."""
        if method.client_streaming or method.server_streaming:
            return inf
        return self.worker_s if method.name in _WAIT_FOR_WORKERS else self.call_s


class Calls(grpc.GenericRpcHandler):
    """Finds the handler of a call."""

    def __init__(
        self, metrics: Metrics, log: FilteringBoundLogger, bounds: Bounds | None = None
    ) -> None:
        self._metrics = metrics
        self._log = log
        self._bounds = bounds or Bounds()
        self._handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}
        self._meters: dict[str, Meter] = {}

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """The handler of a method; gRPC answers UNIMPLEMENTED where there is none."""
        return self._handlers.get(handler_call_details.method)

    def hold(self, service: ServiceDescriptor) -> None:
        """Answer all methods of a service with UNAVAILABLE until `serve` is called for it."""
        for method in service.methods:
            self._add(method, _starting)

    def serve(self, service: ServiceDescriptor, *implementations: object) -> None:
        """Answer a service's methods by the implementations' own, named in snake_case.

        What none of them has is answered UNIMPLEMENTED. Where one has a method of that name with
        `before_`, calls go through it before they are parsed: to refuse most of them costs little then.
        """
        for method in service.methods:
            name = _snake_case(method.name)
            before = _found(implementations, f"before_{name}")
            self._add(method, _found(implementations, name) or _unimplemented, before=before)

    def _add(
        self,
        method: MethodDescriptor,
        behaviour: Behaviour,
        *,
        before: Callable[[], None] | None = None,
    ) -> None:
        service = method.containing_service.full_name
        name = f"{service}/{method.name}"
        meter = self._meters.get(name) or self._metrics.meter(name)
        self._meters[name] = meter
        level = method.GetOptions().idempotency_level
        only_reads = level == MethodOptions.NO_SIDE_EFFECTS
        bound_s = self._bounds.of(method)
        guard = _Guard(meter, self._log, only_reads=only_reads, bound_s=bound_s)
        parse = _parser(GetMessageClass(method.input_type), before)
        self._handlers[f"/{name}"] = _handler(method, guard, behaviour, parse)


class _Guard:
    """Runs one method's calls: counts them, ends them in time, and what fails with a status."""

    def __init__(
        self, meter: Meter, log: FilteringBoundLogger, *, only_reads: bool, bound_s: float
    ) -> None:
        self._meter = meter
        self._log = log
        self._only_reads = only_reads
        self._bound_s = bound_s

    async def run(self, answer: Awaitable[T], context: Context) -> T:
        began_s = perf_counter()
        self._meter.begin()
        code = StatusCode.OK
        try:
            return await self._in_time(answer, context)
        except asyncio.CancelledError:
            code = StatusCode.UNAVAILABLE
            try:
                await _end(context, self._worded(unknown_outcome()))
            except asyncio.CancelledError:
                code = _why_the_caller_left(context)
                raise
        except Exception as error:  # noqa: BLE001 - the top of a call: nothing may pass it
            refusal = self._worded(translate(error) or self._unforeseen(error))
            code = refusal.code
            try:
                await _end(context, refusal)
            finally:
                del refusal  # or this frame and the error keep each other
        finally:
            self._meter.end(code, perf_counter() - began_s)

    async def _in_time(self, answer: Awaitable[T], context: Context) -> T:
        """What comes of a call is told without being cut short by its own timer."""
        timer = self._cancelled_in_time(context)
        try:
            return await answer
        finally:
            if timer is not None:
                timer.cancel()

    def _cancelled_in_time(self, context: Context) -> asyncio.TimerHandle | None:
        """What ends this call as one of an unknown outcome; a stream is left to end itself."""
        if self._bound_s == inf:
            return None
        left_s = remaining_s(context)
        limit_s = self._bound_s
        if left_s is not None:
            limit_s = max(left_s - ENDS_BEFORE_S, left_s * 0.9)
        task = asyncio.current_task()
        assert task is not None
        return asyncio.get_running_loop().call_later(limit_s, task.cancel)

    def _worded(self, refusal: RefusedError) -> RefusedError:
        """What only reads has no effect that could be unknown."""
        if self._only_reads and refusal.reason == Reason.OUTCOME_UNKNOWN:
            return unavailable(Reason.NOT_EXECUTED, "the service cannot read this now")
        return refusal

    def _unforeseen(self, error: Exception) -> RefusedError:
        self._log.error("call_failed", method=self._meter.method, exc_info=error)
        return internal()


async def _end(context: Context, refusal: RefusedError) -> NoReturn:
    """End a call with a status. If the caller has gone, there is nobody to tell.

    It is tried for a cancelled call as well: gRPC ends no call whose handler was cancelled by anything
    but the caller, who would wait for ever.
    """
    code, message, details = refusal.code, refusal.message, trailing_metadata(refusal)
    del refusal
    try:
        await context.abort(code, message, trailing_metadata=details)
    except grpc.aio.AbortError as aborted:
        # gRPC's part of the call keeps this error, whose way keeps that, with the request and all that
        # was made of it: garbage until it is looked for, which takes longer than to refuse.
        aborted.__context__ = None
        asyncio.get_running_loop().call_soon(aborted.with_traceback, None)
        raise
    except grpc.aio.BaseError:
        raise asyncio.CancelledError from None


def _why_the_caller_left(context: Context) -> StatusCode:
    left_s = remaining_s(context)
    if left_s is not None and left_s <= ON_THE_WAY_S:
        return StatusCode.DEADLINE_EXCEEDED
    return StatusCode.CANCELLED


def was_sent_before(context: Context) -> bool:
    """Whether the client's library or a proxy has sent this call before, unknown to its maker."""
    for key, value in context.invocation_metadata() or ():
        if key == _ATTEMPTS_BEFORE:
            return True
        if key == _ATTEMPT_OF_ENVOY and value != "1":
            return True
    return False


def remaining_s(context: Context) -> float | None:
    """What is left of the caller's deadline; None if there is none."""
    return context.time_remaining()


def wait_s(context: Context, at_most_s: float) -> float:
    """How long a call may wait for a worker; what is left of a short deadline is shared."""
    left_s = remaining_s(context)
    if left_s is None:
        return at_most_s
    return min(at_most_s, max(left_s - ANSWER_S, left_s / 2))


def _handler(
    method: MethodDescriptor,
    guard: _Guard,
    behaviour: Behaviour,
    parse: Parser,
) -> grpc.RpcMethodHandler[Any, Any]:
    """Requests are decoded inside the guard, so that a malformed one has a status of ours."""

    async def answer(raw: bytes, context: Context) -> Any:
        return await behaviour(parse(raw), context)

    async def unary(raw: bytes, context: Context) -> Any:
        answering = answer(raw, context)
        del raw  # see _end
        return await guard.run(answering, context)

    async def streaming(requests: Any, context: Context) -> None:
        await guard.run(behaviour(requests, context), context)

    if method.client_streaming:
        return grpc.stream_stream_rpc_method_handler(
            streaming, request_deserializer=parse, response_serializer=_serialized
        )
    if method.server_streaming:
        return grpc.unary_stream_rpc_method_handler(unary, response_serializer=_serialized)
    return grpc.unary_unary_rpc_method_handler(unary, response_serializer=_serialized)


def _found(implementations: Sequence[object], name: str) -> Any:
    return next((getattr(each, name) for each in implementations if hasattr(each, name)), None)


def _parser(message: type[Message], before: Callable[[], None] | None) -> Parser:
    decode = message.FromString

    def parse(raw: bytes) -> Message:
        if before is not None:
            before()
        try:
            return decode(raw)
        except DecodeError:
            raise _malformed() from None

    return parse


def _serialized(message: Message | bytes) -> bytes:
    return message if isinstance(message, bytes) else message.SerializeToString()


def _malformed() -> RefusedError:
    return RefusedError(
        StatusCode.INVALID_ARGUMENT, "MALFORMED", "the bytes are not what the contract says"
    )


async def _starting(_request: object, _context: Context) -> NoReturn:
    raise unavailable("STARTING", "this process has not reached the live stock yet")


async def _unimplemented(_request: object, _context: Context) -> NoReturn:
    raise RefusedError(
        StatusCode.UNIMPLEMENTED, "UNIMPLEMENTED", "this version of the service has no such call"
    )


def _snake_case(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
