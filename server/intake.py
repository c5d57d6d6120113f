"""Work on its way to the live stock: how much at most, and what became of it."""

import asyncio
from collections.abc import Coroutine, Sequence
from functools import partial

from server.errors import overloaded
from server.gate import Gates
from server.metrics import Metrics
from server.pace import Pace
from sharding.orders import OrderAnswer
from sharding.outcomes import Answer, Deduction, Outcome, Reason
from sharding.tasks import Tasks

Answers = asyncio.Future[list[Answer]]
_FULL = OrderAnswer(Outcome.OVERLOADED, reason=Reason.QUEUE_FULL)


class Intake:
    """Hands deductions through the gates and runs calls on orders while fewer than `items_max` items are
    unanswered, or as many as are answered in time: a deduction is one item, an order as many as the
    lines that are taken for it. The last batch of deductions that is taken on may go beyond that."""

    def __init__(self, gates: Gates, metrics: Metrics, *, items_max: int) -> None:
        self._gates = gates
        self._metrics = metrics
        self._pace = Pace(asyncio.get_running_loop().time, items_max=items_max)
        self._orders = Tasks()

    def admit(self) -> None:
        """RefusedError if too much is unanswered to take on more."""
        if not self._pace.has_room(1):
            raise overloaded()

    def submit(self, deductions: Sequence[Deduction]) -> Answers:
        """The answers to come, in order; RefusedError if too much is unanswered.

        Whoever awaits them may be cancelled: what was sent goes on, keeps its place, is counted.
        """
        self.admit()
        items = len(deductions)
        begun_s = self._begin(items)
        answers = self._gates.sales.deduct(deductions)
        answers.add_done_callback(partial(self._answered, items, begun_s))
        return asyncio.shield(answers)

    async def order(
        self, call: str, work: Coroutine[object, object, OrderAnswer], *, items: int = 1
    ) -> OrderAnswer:
        """What a call on an order comes to; OVERLOADED if too much is unanswered.

        Whoever awaits it may be cancelled: the work goes on, keeps its place, is counted.
        """
        refusal = self._refusal_of_order(items)
        if refusal is not None:
            work.close()
            self._metrics.order(call, refusal)
            return refusal
        begun_s = self._begin(items)
        return await self._orders.whole(self._ordered(call, work, items, begun_s), call)

    def _refusal_of_order(self, items: int) -> OrderAnswer | None:
        if not self._gates.are_live:
            return OrderAnswer(Outcome.UNAVAILABLE, reason=self._gates.objection)
        return None if self._pace.has_room(items) else _FULL

    async def drain(self) -> None:
        """Return once every call on an order that was begun has ended."""
        await self._orders.drain()

    async def _ordered(
        self, call: str, work: Coroutine[object, object, OrderAnswer], items: int, begun_s: float
    ) -> OrderAnswer:
        try:
            answer = await work
        finally:
            self._end(items, begun_s)
        self._metrics.order(call, answer)
        return answer

    def _answered(self, items: int, begun_s: float, answers: Answers) -> None:
        self._end(items, begun_s)
        if not answers.cancelled() and answers.exception() is None:
            self._metrics.answers(answers.result())

    def _begin(self, items: int) -> float:
        begun_s = self._pace.begin(items)
        self._metrics.queued_items.set(self._pace.under_way)
        return begun_s

    def _end(self, items: int, begun_s: float) -> None:
        self._pace.end(items, begun_s)
        self._metrics.queued_items.set(self._pace.under_way)
