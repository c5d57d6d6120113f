"""The queue of requests that wait for one shard, and how they are served together.

What queued up while the last script call was out goes in the next one. A group's answers are written
straight into its batch, so a request costs no task and no future of its own.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import NamedTuple

from sharding.answers import CLOSED, INSUFFICIENT, MISSING, STALE, answers, unavailable
from sharding.errors import StockUnavailableError
from sharding.metrics import StockMetrics
from sharding.outcomes import Answer, Deduction, Outcome, Reason
from sharding.packing import pack
from sharding.placement import home_shard
from sharding.shards import MissingShardError, Shards
from sharding.shortage import Shortage

CALL_REQUESTS_MAX = 1_000
"""A script call of this size keeps a node busy for about two milliseconds. A larger group of one batch
goes alone; the contract bounds it to 2,000."""


FORMER_DOUBT_S = 600
"""So long after a load even a first try is looked up under former layouts: it may have been sent, and
sent again and sold, before the load, and have been held up since. No call is open for longer."""


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


Spawn = Callable[[Coroutine[object, object, None], str], object]


class Home:
    """One shard's queue in this process, and a second one for requests that it was short for.

    They are served apart: who waits for other shards keeps nobody waiting for this one.
    """

    def __init__(
        self,
        shards: Shards,
        shard: int,
        former: Sequence[Shards],
        loaded_s: float,
        shortage: Shortage,
        metrics: StockMetrics,
        *,
        reroute: Callable[[Group], None],
        spawn: Spawn,
    ) -> None:
        self._shards = shards
        self._shard = shard
        self._partition = shards.partitions[shard]
        self._former = former
        self._doubt_until_s = loaded_s + FORMER_DOUBT_S
        self._shortage = shortage
        self._metrics = metrics
        self._reroute = reroute
        self._served = _Queue(self._ask, self._hand_back, spawn)
        self._spawn = spawn
        self._settled = _Queue(self._settle, self._hand_back_settled, spawn)

    def put(self, group: Group) -> None:
        """Serve a group with what comes next."""
        if not self._former:
            self._served.put(group)
            return
        all_doubtful = time.time() < self._doubt_until_s
        doubts = [all_doubtful or request.attempt != 1 for request in group.requests]
        sure = [i for i, doubtful in enumerate(doubts) if not doubtful]
        doubtful = [i for i, doubtful in enumerate(doubts) if doubtful]
        if sure:
            self._served.put(group.part(sure))
        if doubtful:
            self._spawn(self._serve_after_looking_up(group.part(doubtful)), "look up")

    async def _ask(self, requests: Sequence[Deduction]) -> list[Answer]:
        return await self._served_at(self._shards, self._partition, requests, shard=self._shard)

    async def _serve_after_looking_up(self, group: Group) -> None:
        """For requests that may have been sent under a former layout.

        Its shards accept nothing new, so what they do not know now they will never know. Each group
        looks for itself: a shard that does not answer delays nobody who does not ask it.
        """
        try:
            known = await self._known_before(group.requests)
        except Exception:  # noqa: BLE001 - the top of a task: whoever waits must be answered
            _LOG.exception("looking requests up failed")
            refuse(group, Reason.OUTCOME_UNKNOWN)
            return
        fresh = [i for i in range(len(group.requests)) if i not in known]
        if known:
            group.part(list(known)).answer(list(known.values()))
        if fresh:
            self._served.put(group.part(fresh))

    async def _known_before(self, requests: Sequence[Deduction]) -> dict[int, Answer]:
        """Answers, by position, that shards of former layouts have; the first layout's counts."""
        lookups = [
            self._look_up(former, shard, requests, positions)
            for former in self._former
            for shard, positions in _by_shard(requests, former.layout.shards).items()
        ]
        known: dict[int, Answer] = {}
        for found in await asyncio.gather(*lookups):
            known = found | known
        return known

    async def _look_up(
        self, former: Shards, shard: int, requests: Sequence[Deduction], positions: Sequence[int]
    ) -> dict[int, Answer]:
        wanted = [requests[i] for i in positions]
        given = await self._served_at(former, former.partitions[shard], wanted, shard=shard)
        pairs = zip(positions, given, strict=True)
        return {i: answer for i, answer in pairs if not _knows_nothing(answer)}

    async def _served_at(
        self, shards: Shards, partition: int, requests: Sequence[Deduction], *, shard: int
    ) -> list[Answer]:
        self._metrics.script_requests.observe(len(requests))
        try:
            served = await shards.deduct(partition, pack(requests))
        except StockUnavailableError as failure:
            return [unavailable(failure.reason)] * len(requests)
        except MissingShardError:
            return [MISSING] * len(requests)
        return answers(requests, served, shard=shard)

    async def _settle(self, requests: Sequence[Deduction]) -> list[Answer]:
        return await self._shortage.settle(self._partition, requests)

    def _hand_back(self, group: Group, given: Sequence[Answer]) -> None:
        short = [i for i, answer in enumerate(given) if answer is INSUFFICIENT]
        if short:
            self._settled.put(group.part(short))
            others = [i for i, answer in enumerate(given) if answer is not INSUFFICIENT]
            group, given = group.part(others), [given[i] for i in others]
        self._hand_back_settled(group, given)

    def _hand_back_settled(self, group: Group, given: Sequence[Answer]) -> None:
        astray = [i for i, answer in enumerate(given) if _leads_astray(answer)]
        if astray:
            why = given[astray[-1]].reason
            self._reroute(group.part(astray)._replace(reroutes=group.reroutes + 1, why=why))
            kept = [i for i, answer in enumerate(given) if not _leads_astray(answer)]
            group, given = group.part(kept), [given[i] for i in kept]
        if given:
            group.answer(given)


def _leads_astray(answer: Answer) -> bool:
    """Whether the shard may not be the one that the request belongs to any more."""
    return answer is STALE or answer is MISSING or answer is CLOSED


def _by_shard(requests: Sequence[Deduction], shards: int) -> dict[int, list[int]]:
    """Positions of the requests by the shard that their ids select."""
    positions: dict[int, list[int]] = {}
    for i, request in enumerate(requests):
        positions.setdefault(home_shard(request.request_id, shards), []).append(i)
    return positions


def _knows_nothing(answer: Answer) -> bool:
    """Whether a shard of a former layout said only that it takes nothing any more."""
    return answer is STALE or answer is MISSING or answer.outcome is Outcome.FROZEN


class _Queue:
    """Groups that are worked on together, as many as wait, one lot after the other."""

    def __init__(
        self,
        work: Callable[[Sequence[Deduction]], Awaitable[list[Answer]]],
        hand_back: Callable[[Group, Sequence[Answer]], None],
        spawn: Spawn,
    ) -> None:
        self._work = work
        self._hand_back = hand_back
        self._spawn = spawn
        self._groups: deque[Group] = deque()
        self._is_served = False

    def put(self, group: Group) -> None:
        self._groups.append(group)
        if not self._is_served:
            self._is_served = True
            self._spawn(self._serve(), "serve")

    async def _serve(self) -> None:
        while self._groups:
            groups = self._next_groups()
            requests = [request for group in groups for request in group.requests]
            try:
                given = await self._work(requests)
            except Exception:  # noqa: BLE001 - the top of the loop: whoever waits must be answered
                _LOG.exception("serving a shard failed")
                given = [unavailable(Reason.OUTCOME_UNKNOWN)] * len(requests)
            start = 0
            for group in groups:
                end = start + len(group.requests)
                self._hand_back(group, given[start:end])
                start = end
        self._is_served = False

    def _next_groups(self) -> list[Group]:
        groups = [self._groups.popleft()]
        size = len(groups[0].requests)
        while self._groups and size + len(self._groups[0].requests) <= CALL_REQUESTS_MAX:
            size += len(self._groups[0].requests)
            groups.append(self._groups.popleft())
        return groups


_LOG = logging.getLogger(__name__)


def refuse(group: Group, reason: Reason) -> None:
    """Answer a whole group that was not sent."""
    group.answer([unavailable(reason)] * len(group.requests))
