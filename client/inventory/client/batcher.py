"""Deductions that arrive while batches are out travel together in the next one. No timer."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from itertools import count

from inventory.client.failures import Failure, client_closed, crowded, malformed, timed_out
from inventory.client.rpcs import BATCH_DEDUCT
from inventory.client.steps import Send
from inventory.v1 import inventory_pb2

BATCH_ITEMS_MAX = 2_000
WAITING_MAX = 100_000

_Single = Send[inventory_pb2.DeductRequest, inventory_pb2.DeductResponse]
_Batch = Send[inventory_pb2.BatchDeductRequest, inventory_pb2.BatchDeductResponse]
_Answer = inventory_pb2.DeductResponse | Failure


class _Parcel:
    """A request that waits for its batch, then for its answer."""

    __slots__ = ("answer", "request", "sent", "timeout_s")

    def __init__(self, single: _Single, answer: asyncio.Future[_Answer]) -> None:
        self.request = single.request
        self.timeout_s = single.timeout_s
        self.answer = answer
        self.sent = False


class Batcher:
    """Carries single deductions in batches, at most `batches_out_max` of them at a time."""

    def __init__(
        self,
        send: Callable[[_Batch], Awaitable[inventory_pb2.BatchDeductResponse | Failure]],
        *,
        batches_out_max: int,
    ) -> None:
        self._send = send
        self._batches_out_max = batches_out_max
        self._waiting: deque[_Parcel] = deque()
        self._out: set[asyncio.Task[None]] = set()
        self._turns = count()
        self._departure_due = False
        self._closed = False

    async def carry(self, single: _Single) -> _Answer:
        """One try of one deduction, in whatever batch leaves next."""
        if self._closed:
            return client_closed()
        if len(self._waiting) >= WAITING_MAX:
            return crowded()
        parcel = _Parcel(single, asyncio.get_running_loop().create_future())
        self._waiting.append(parcel)
        self._depart_soon()
        try:
            async with asyncio.timeout(single.timeout_s):
                return await parcel.answer
        except TimeoutError:
            return timed_out(may_have_acted=parcel.sent)

    async def close(self) -> None:
        """Answers what was not sent, then waits for the batches that are out."""
        self._closed = True
        while self._waiting:
            parcel = self._waiting.popleft()
            if not parcel.answer.done():
                parcel.answer.set_result(client_closed())
        while self._out:
            await asyncio.wait(self._out)

    def _depart_soon(self) -> None:
        """After this turn of the loop, so that what is called together travels together."""
        if not self._departure_due:
            self._departure_due = True
            asyncio.get_running_loop().call_soon(self._depart)

    def _depart(self) -> None:
        self._departure_due = False
        while len(self._out) < self._batches_out_max and (parcels := self._loaded()):
            task = asyncio.create_task(self._travel(parcels), name="inventory-batch")
            self._out.add(task)
            task.add_done_callback(self._returned)

    def _loaded(self) -> list[_Parcel]:
        """The next batch; those who stopped waiting are left behind, unsent."""
        parcels: list[_Parcel] = []
        while self._waiting and len(parcels) < BATCH_ITEMS_MAX:
            parcel = self._waiting.popleft()
            if not parcel.answer.done():
                parcel.sent = True
                parcels.append(parcel)
        return parcels

    async def _travel(self, parcels: Sequence[_Parcel]) -> None:
        batch = inventory_pb2.BatchDeductRequest(items=[parcel.request for parcel in parcels])
        timeout_s = max(parcel.timeout_s for parcel in parcels)
        reply = await self._send(Send(BATCH_DEDUCT, batch, timeout_s, next(self._turns)))
        for parcel, answer in zip(parcels, _unpacked(reply, len(parcels)), strict=True):
            if not parcel.answer.done():
                parcel.answer.set_result(answer)

    def _returned(self, task: asyncio.Task[None]) -> None:
        self._out.discard(task)
        self._depart_soon()


def _unpacked(reply: inventory_pb2.BatchDeductResponse | Failure, items: int) -> Sequence[_Answer]:
    if isinstance(reply, Failure):
        return [reply] * items
    if len(reply.results) != items:
        return [malformed(f"{items} items were sent and {len(reply.results)} answered")] * items
    return reply.results
