"""Deductions on their way to the live stock: how many at most, and what became of them."""

import asyncio
from collections.abc import Sequence
from functools import partial

from server.errors import overloaded
from server.metrics import Metrics
from sharding.outcomes import Answer, Deduction
from sharding.stock import Stock

Answers = asyncio.Future[list[Answer]]


class Intake:
    """Hands deductions to the stock while fewer than `items_max` are unanswered."""

    def __init__(self, stock: Stock, metrics: Metrics, *, items_max: int) -> None:
        self._stock = stock
        self._metrics = metrics
        self._items_max = items_max
        self._items = 0

    def submit(self, deductions: Sequence[Deduction]) -> Answers:
        """The answers to come, in order; RefusedError if too much is unanswered.

        Whoever awaits them may be cancelled: what was sent goes on, keeps its place, is counted.
        """
        items = len(deductions)
        if self._items + items > self._items_max:
            raise overloaded()
        self._count(items)
        answers = self._stock.deduct(deductions)
        answers.add_done_callback(partial(self._answered, items))
        return asyncio.shield(answers)

    def _answered(self, items: int, answers: Answers) -> None:
        self._count(-items)
        if not answers.cancelled() and answers.exception() is None:
            self._metrics.answers(answers.result())

    def _count(self, items: int) -> None:
        self._items += items
        self._metrics.queued_items.set(self._items)
