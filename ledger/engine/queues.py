"""Requests that wait for their product's row: what queued up while the last transaction ran goes in the
next one."""

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from sharding.batches import Batch
from sharding.outcomes import Answer, Deduction, Outcome, Reason
from sharding.tasks import Tasks

_LOG = logging.getLogger(__name__)

LOT_REQUESTS_MAX = 1_000
"""Requests of one transaction, some fifty milliseconds of it. A larger group of one batch goes alone;
the contract bounds it to 2,000."""
_NOT_KNOWN = Answer(Outcome.UNAVAILABLE, reason=Reason.OUTCOME_UNKNOWN)

Work = Callable[[int, Sequence[Deduction]], Awaitable[list[Answer]]]


class Group(NamedTuple):
    """The requests of one batch for one product."""

    requests: list[Deduction]
    positions: list[int]
    batch: Batch


class Queues:
    """One queue a product, as long as somebody waits in it."""

    def __init__(self, work: Work, tasks: Tasks) -> None:
        self._work = work
        self._tasks = tasks
        self._waiting: dict[int, deque[Group]] = {}

    def put(self, product_id: int, group: Group) -> None:
        """Serve a group with what comes next."""
        waiting = self._waiting.get(product_id)
        if waiting is None:
            self._waiting[product_id] = waiting = deque((group,))
            self._tasks.spawn(self._serve(product_id, waiting), f"sales {product_id}")
        else:
            waiting.append(group)

    async def _serve(self, product_id: int, waiting: deque[Group]) -> None:
        while waiting:
            await _serve_lot(self._work, product_id, _next_lot(waiting))
        del self._waiting[product_id]


class Singly:
    """No queue: every request has a transaction of its own, as many at once as there are connections."""

    def __init__(self, work: Work, tasks: Tasks) -> None:
        self._work = work
        self._tasks = tasks

    def put(self, product_id: int, group: Group) -> None:
        """Serve each request of a group by itself."""
        for request, position in zip(group.requests, group.positions, strict=True):
            alone = Group([request], [position], group.batch)
            work = _serve_lot(self._work, product_id, [alone])
            self._tasks.spawn(work, f"sale {product_id}")


async def _serve_lot(work: Work, product_id: int, lot: Sequence[Group]) -> None:
    requests = [request for group in lot for request in group.requests]
    try:
        answers = await work(product_id, requests)
    except Exception:  # noqa: BLE001 - the top of a task: whoever waits must be answered
        _LOG.exception("a transaction failed")
        answers = [_NOT_KNOWN] * len(requests)
    start = 0
    for group in lot:
        end = start + len(group.requests)
        group.batch.answer(group.positions, answers[start:end])
        start = end


def _next_lot(waiting: deque[Group]) -> list[Group]:
    """At least one group, and no more requests than go into one transaction."""
    lot = [waiting.popleft()]
    room = LOT_REQUESTS_MAX - len(lot[0].requests)
    while waiting and len(waiting[0].requests) <= room:
        room -= len(waiting[0].requests)
        lot.append(waiting.popleft())
    return lot
