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
    """Hands deductions through the gates and runs calls on orders, as many as the pace allows: a
    deduction is one item, an order as many as the lines that are taken for it. The last batch of
    deductions that is taken on may go beyond that."""

    def __init__(self, gates: Gates, metrics: Metrics, pace: Pace) -> None:
        self._gates = gates
        self._metrics = metrics
        self._pace = pace
        metrics.watch_queue(pace)
        self._orders = Tasks()

    @property
    def has_room(self) -> bool:
        """Whether more deductions are taken on now."""
        return self._pace.has_room(1)

    def admit(self) -> None:
        """RefusedError if too much is unanswered to take on more deductions."""
        if not self.has_room:
            raise overloaded()

    def submit(self, deductions: Sequence[Deduction]) -> Answers:
        """The answers to come, in order; RefusedError if too much is unanswered.

        Whoever awaits them may be cancelled: what was sent goes on, keeps its place, is counted.
        """
        self.admit()
        items = len(deductions)
        self._pace.begin(items)
        answers = self._gates.sales.deduct(deductions)
        answers.add_done_callback(partial(self._answered, items))
        return asyncio.shield(answers)

    async def new_order(
        self, call: str, work: Coroutine[object, object, OrderAnswer], *, lines: int
    ) -> OrderAnswer:
        """What a call comes to that makes an order; OVERLOADED if too much is unanswered.

        Whoever awaits it may be cancelled: the work goes on, keeps its place, is counted.
        """
        return await self._order(call, work, lines, has_room=self._pace.has_room(lines))

    async def order(self, call: str, work: Coroutine[object, object, OrderAnswer]) -> OrderAnswer:
        """The same of a call on an order that there is: it has a place while new ones are refused."""
        return await self._order(call, work, 1, has_room=self._pace.has_place(1))

    async def _order(
        self,
        call: str,
        work: Coroutine[object, object, OrderAnswer],
        items: int,
        *,
        has_room: bool,
    ) -> OrderAnswer:
        refusal = self._refusal_of_order(has_room=has_room)
        if refusal is not None:
            work.close()
            self._metrics.order(call, refusal)
            return refusal
        self._pace.begin(items)
        return await self._orders.whole(self._ordered(call, work, items), call)

    def _refusal_of_order(self, *, has_room: bool) -> OrderAnswer | None:
        if not self._gates.are_live:
            return OrderAnswer(Outcome.UNAVAILABLE, reason=self._gates.objection)
        return None if has_room else _FULL

    async def drain(self) -> None:
        """Return once every call on an order that was begun has ended."""
        await self._orders.drain()

    async def _ordered(
        self, call: str, work: Coroutine[object, object, OrderAnswer], items: int
    ) -> OrderAnswer:
        try:
            answer = await work
        finally:
            self._pace.end(items)
        self._metrics.order(call, answer)
        return answer

    def _answered(self, items: int, answers: Answers) -> None:
        self._pace.end(items)
        if not answers.cancelled() and answers.exception() is None:
            self._metrics.answers(answers.result())
