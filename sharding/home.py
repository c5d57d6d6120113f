"""The queue of requests that wait for one shard, and how they are served together.

What queued up while the last script call was out goes in the next one. A group's answers are written
straight into its batch, so a request costs no task and no future of its own.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from sharding.answers import INSUFFICIENT, MISSING, STALE, answers, unavailable
from sharding.errors import StockUnavailableError
from sharding.metrics import StockMetrics
from sharding.outcomes import Answer, Deduction, Reason
from sharding.packing import pack
from sharding.shards import MissingShardError, Shards
from sharding.shortage import Shortage

CALL_REQUESTS_MAX = 1_000
"""A script call of this size keeps a node busy for about two milliseconds."""


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
        self._answers: list[Answer] = [INSUFFICIENT] * size
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


class Group(NamedTuple):
    """The requests of one batch for one home.

    `reroutes`: how often they were sent on, the last time because of `why`.
    """

    requests: list[Deduction]
    positions: list[int]
    batch: Batch
    reroutes: int = 0
    why: Reason = Reason.NONE

    def answer(self, given: Sequence[Answer]) -> None:
        self.batch.answer(self.positions, given)

    def part(self, indices: Sequence[int]) -> "Group":
        """Some of its requests."""
        requests = [self.requests[i] for i in indices]
        return self._replace(requests=requests, positions=[self.positions[i] for i in indices])


class Home:
    """One shard's queue in this process."""

    def __init__(
        self,
        shards: Shards,
        shard: int,
        shortage: Shortage,
        metrics: StockMetrics,
        reroute: Callable[[Group], None],
    ) -> None:
        self._shards = shards
        self._shard = shard
        self._partition = shards.partitions[shard]
        self._shortage = shortage
        self._metrics = metrics
        self._reroute = reroute
        self._queue: deque[Group] = deque()

    def put(self, group: Group) -> None:
        self._queue.append(group)

    async def serve_queue(self) -> None:
        """Serve until nothing waits any more."""
        while self._queue:
            groups = self._next_groups()
            requests = [request for group in groups for request in group.requests]
            try:
                given = await self._decide(requests)
            except Exception:  # noqa: BLE001 - the top of the loop: whoever waits must be answered
                _LOG.exception("serving a shard failed")
                given = [unavailable(Reason.OUTCOME_UNKNOWN)] * len(requests)
            start = 0
            for group in groups:
                end = start + len(group.requests)
                self._hand_back(group, given[start:end])
                start = end

    def _next_groups(self) -> list[Group]:
        groups = [self._queue.popleft()]
        size = len(groups[0].requests)
        while self._queue and size + len(self._queue[0].requests) <= CALL_REQUESTS_MAX:
            size += len(self._queue[0].requests)
            groups.append(self._queue.popleft())
        return groups

    async def _decide(self, requests: Sequence[Deduction]) -> list[Answer]:
        given = await self._ask(requests)
        short = [i for i, answer in enumerate(given) if answer is INSUFFICIENT]
        if short:
            settled = await self._shortage.settle(self._partition, [requests[i] for i in short])
            for i, answer in zip(short, settled, strict=True):
                given[i] = answer
        return given

    async def _ask(self, requests: Sequence[Deduction]) -> list[Answer]:
        self._metrics.script_requests.observe(len(requests))
        try:
            served = await self._shards.deduct(self._partition, pack(requests))
        except StockUnavailableError as failure:
            return [unavailable(failure.reason)] * len(requests)
        except MissingShardError:
            return [MISSING] * len(requests)
        return answers(requests, served, shard=self._shard)

    def _hand_back(self, group: Group, given: list[Answer]) -> None:
        astray = [i for i, answer in enumerate(given) if answer is STALE or answer is MISSING]
        if not astray:
            group.answer(given)
            return
        kept = [i for i, answer in enumerate(given) if not (answer is STALE or answer is MISSING)]
        if kept:
            group.part(kept).answer([given[i] for i in kept])
        why = given[astray[-1]].reason
        self._reroute(group.part(astray)._replace(reroutes=group.reroutes + 1, why=why))


_LOG = logging.getLogger(__name__)


def refuse(group: Group, reason: Reason) -> None:
    """Answer a whole group that was not sent."""
    group.answer([unavailable(reason)] * len(group.requests))
