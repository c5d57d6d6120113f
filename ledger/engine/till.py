"""Where batches of requests come in and are shared out by product."""

import asyncio
from collections.abc import Sequence

from ledger.engine.queues import Group, Queues, Singly
from sharding.batches import Batch
from sharding.outcomes import Answer, Deduction, Outcome, Reason

QUEUED_REQUESTS_MAX = 50_000
"""Requests in this process that are not answered yet; beyond it new ones are refused."""
_FULL = Answer(Outcome.OVERLOADED, reason=Reason.QUEUE_FULL)


class Till:
    """Takes batches while not too much is unanswered. Lives in one event loop."""

    def __init__(self, serving: Queues | Singly) -> None:
        self._serving = serving
        self._queued = 0

    def deduct(self, deductions: Sequence[Deduction]) -> asyncio.Future[list[Answer]]:
        """Take units for each request that stands alone; the answers come in the same order.

        Never raises for a request: a failure is its answer.
        """
        done: asyncio.Future[list[Answer]] = asyncio.get_running_loop().create_future()
        size = len(deductions)
        if not size or self._queued + size > QUEUED_REQUESTS_MAX:
            done.set_result([_FULL] * size)
            return done
        self._queued += size
        batch = Batch(size, done, self._release)
        for product_id, group in _by_product(deductions, batch).items():
            self._serving.put(product_id, group)
        return done

    def _release(self, size: int) -> None:
        self._queued -= size


def _by_product(deductions: Sequence[Deduction], batch: Batch) -> dict[int, Group]:
    groups: dict[int, Group] = {}
    for position, deduction in enumerate(deductions):
        group = groups.get(deduction.product_id)
        if group is None:
            group = groups[deduction.product_id] = Group([], [], batch)
        group.requests.append(deduction)
        group.positions.append(position)
    return groups
