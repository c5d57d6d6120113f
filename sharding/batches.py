"""Requests that were asked together and are answered in parts."""

import asyncio
from collections.abc import Callable, Sequence

from sharding.outcomes import Answer, Outcome, Reason

_UNANSWERED = Answer(Outcome.UNAVAILABLE, reason=Reason.OUTCOME_UNKNOWN)


class Batch:
    """Requests that were asked together; `done` holds their answers in order.

    `answered` is told the batch's size when the last of them has come.
    """

    __slots__ = ("_answered", "_answers", "_missing", "done")

    def __init__(
        self, size: int, done: asyncio.Future[list[Answer]], answered: Callable[[int], None]
    ) -> None:
        self.done = done
        self._answered = answered
        self._answers: list[Answer] = [_UNANSWERED] * size
        self._missing = size

    def answer(self, positions: Sequence[int], given: Sequence[Answer]) -> None:
        """Fill in answers; the last one completes the batch, whoever still waits for it."""
        for position, answer in zip(positions, given, strict=True):
            self._answers[position] = answer
        self._missing -= len(positions)
        if self._missing:
            return
        self._answered(len(self._answers))
        if not self.done.done():
            self.done.set_result(self._answers)
