"""Deductions over a stream, in the calling thread."""

import threading
from collections.abc import Callable, Iterator, Sequence
from queue import Empty, SimpleQueue
from typing import TypeAlias

import grpc

from inventory.client.failures import Failure, failure_of, stream_ended, timed_out
from inventory.client.outcomes import Deduction, DeductItem
from inventory.client.retrier import Retrier
from inventory.client.rpcs import STREAM_DEDUCT
from inventory.client.steps import AnySend
from inventory.client.sync_transport import Lane, completed
from inventory.v1 import inventory_pb2

FAREWELL_S = 2.0
"""How long a closing stream waits for the service to end it; cancelling one costs memory."""

_Request = inventory_pb2.StreamDeductRequest
_Response = inventory_pb2.StreamDeductResponse
_Method: TypeAlias = "grpc.StreamStreamMultiCallable[_Request, _Response]"
_Answer = _Response | Failure


class DeductStream:
    """Batches of deductions over one long call, one after the other. When the call breaks, what was
    under way travels again, with the same ids, on a new one. For one thread."""

    def __init__(
        self, retrier: Retrier, lane: Callable[[int], Lane], sleep: Callable[[float], None]
    ) -> None:
        self._retrier = retrier
        self._lane = lane
        self._sleep = sleep
        self._pipe: _Pipe | None = None

    def deduct(
        self, items: Sequence[DeductItem], *, deadline_s: float | None = None
    ) -> tuple[Deduction, ...]:
        """Takes units for up to 2,000 items; one outcome per item, in their order."""
        steps = self._retrier.deduct_on_stream(items, deadline_s=deadline_s)
        return completed(steps, self._carry, self._sleep)

    def close(self) -> None:
        """Ends the stream."""
        if self._pipe:
            self._pipe.close()

    def _carry(self, send: AnySend) -> _Answer:
        if self._pipe is None or self._pipe.broken:
            self._pipe = _Pipe(self._lane(send.turn).stream_stream(STREAM_DEDUCT))
        return self._pipe.exchange(send.request, timeout_s=send.timeout_s)


class _Pipe:
    """One StreamDeduct call; a thread reads it, because reading cannot be timed otherwise."""

    def __init__(
        self,
        method: _Method,
    ) -> None:
        self._requests: SimpleQueue[_Request | None] = SimpleQueue()
        self._answers: SimpleQueue[_Answer] = SimpleQueue()
        self._call = method(self._written())
        self._reader = threading.Thread(target=self._read, name="inventory-stream", daemon=True)
        self._reader.start()
        self.broken = False

    def exchange(self, request: _Request, *, timeout_s: float) -> _Answer:
        """One batch and its answer. A late one breaks the pipe: it would be taken for the next."""
        self._requests.put(request)
        try:
            answer = self._answers.get(timeout=timeout_s)
        except Empty:
            answer = timed_out(may_have_acted=True)
            self._call.cancel()
        self.broken |= isinstance(answer, Failure)
        return answer

    def close(self) -> None:
        self._requests.put(None)
        self._reader.join(FAREWELL_S)
        self._call.cancel()

    def _written(self) -> Iterator[_Request]:
        while (request := self._requests.get()) is not None:
            yield request

    def _read(self) -> None:
        end = stream_ended()
        try:
            for response in self._call:
                self._answers.put(response)
        except grpc.RpcError as error:
            end = failure_of(error)
        self._answers.put(end)
        self._requests.put(None)
