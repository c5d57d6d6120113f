"""Deductions over a stream, on asyncio."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

import grpc

from inventory.client.async_transport import AsyncLane, completed
from inventory.client.failures import Failure, failure_of, stream_ended, timed_out
from inventory.client.outcomes import Deduction, DeductItem
from inventory.client.retrier import Retrier
from inventory.client.rpcs import STREAM_DEDUCT
from inventory.client.steps import AnySend
from inventory.v1 import inventory_pb2

FAREWELL_S = 2.0
"""How long a closing stream waits for the service to end it; cancelling one costs memory."""

_Call = grpc.aio.StreamStreamCall[
    inventory_pb2.StreamDeductRequest, inventory_pb2.StreamDeductResponse
]
_ENDED = (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError)
"""What writing raises on a call that has just ended."""

_Answer = inventory_pb2.StreamDeductResponse | Failure


class AsyncDeductStream:
    """Batches of deductions over one long call. Several tasks may use it at once; when it breaks,
    what was under way travels again, with the same ids, on a new one."""

    def __init__(self, retrier: Retrier, lane: Callable[[int], AsyncLane]) -> None:
        self._retrier = retrier
        self._lane = lane
        self._pipe: _Pipe | None = None

    async def deduct(
        self, items: Sequence[DeductItem], *, deadline_s: float | None = None
    ) -> tuple[Deduction, ...]:
        """Takes units for up to 2,000 items; one outcome per item, in their order."""
        steps = self._retrier.deduct_on_stream(items, deadline_s=deadline_s)
        return await completed(steps, self._carry)

    async def close(self) -> None:
        """Ends the stream after the answers that are under way."""
        if self._pipe:
            await self._pipe.close()

    async def _carry(self, send: AnySend) -> _Answer:
        if self._pipe is None or self._pipe.broken:
            self._pipe = _Pipe(self._lane(send.turn).stream_stream(STREAM_DEDUCT)())
        return await self._pipe.exchange(send.request, timeout_s=send.timeout_s)


class _Pipe:
    """One StreamDeduct call: answers come in the order of the batches."""

    def __init__(self, call: _Call) -> None:
        self._call = call
        self._writing = asyncio.Lock()
        self._waiting: deque[asyncio.Future[_Answer]] = deque()
        self._reader = asyncio.create_task(self._read(), name="inventory-stream")
        self.broken = False

    async def exchange(
        self, request: inventory_pb2.StreamDeductRequest, *, timeout_s: float
    ) -> _Answer:
        """One batch and its answer. A late answer breaks the pipe: what is stuck stays stuck."""
        try:
            async with asyncio.timeout(timeout_s):
                return await (await self._written(request))
        except TimeoutError:
            self.broken = True
            self._call.cancel()
            return timed_out(may_have_acted=True)

    async def close(self) -> None:
        if not self.broken:
            with suppress(*_ENDED):
                await self._call.done_writing()
            await asyncio.wait({self._reader}, timeout=FAREWELL_S)
        self._call.cancel()
        await asyncio.wait({self._reader})

    async def _written(self, request: inventory_pb2.StreamDeductRequest) -> asyncio.Future[_Answer]:
        answer: asyncio.Future[_Answer] = asyncio.get_running_loop().create_future()
        async with self._writing:
            if self.broken:
                answer.set_result(stream_ended())
                return answer
            self._waiting.append(answer)
            try:
                await self._call.write(request)
            except _ENDED:
                self.broken = True  # the reader learns why, and tells those who wait
        return answer

    async def _read(self) -> None:
        end = stream_ended()
        try:
            while isinstance(
                message := await self._call.read(), inventory_pb2.StreamDeductResponse
            ):
                self._hand_over(message)
        except grpc.RpcError as error:
            end = failure_of(error)
        finally:
            self.broken = True
            while self._waiting:
                self._hand_over(end)

    def _hand_over(self, answer: _Answer) -> None:
        if self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(answer)
