"""More buyers than the service can serve, in batches, from a process of their own:
`python -m tests.chaos.crowd PLAN`.

First as many as it can serve, then so many times as many, whatever becomes of them. Messages are made
beforehand and answers are read when all is over, so that what is slow is the service.
"""

import asyncio
import json
import resource
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from itertools import count, cycle
from pathlib import Path

import grpc

from inventory.client.channels import OPTIONS
from inventory.v1 import inventory_pb2
from tests.bench import requests
from tests.bench.load import BATCH, call
from tests.bench.order_calls import Call
from tests.bench.window import report_of
from tests.chaos.processes import no_favour, served_last

SIZE = 1_000
LANES = 8
"""Batches at a time by which the service is as busy as it can be, and no busier."""
CHANNELS = 4
"""A server; each sits on one of its processes."""
UNDER_WAY_MAX = 2_000
TICK_S = 0.005
WARM_UP_S = 1.0
REFUSED = inventory_pb2.OUTCOME_OVERLOADED
ACCEPTED = inventory_pb2.OUTCOME_DEDUCTED


@dataclass(frozen=True, slots=True, kw_only=True)
class CrowdPlan:
    """What to send: the peak is found, then `times` as much is sent for `overload_s`."""

    targets: Sequence[str]
    product_id: int
    peak_s: float
    overload_s: float
    times: float
    deadline_s: float
    ids: str
    """The file that `Ids` are written to."""


@dataclass(slots=True, kw_only=True)
class Told:
    """What the crowd was told. Rates are units a second."""

    peak_per_s: float = 0.0
    offered_per_s: float = 0.0
    """What was sent during the overload."""
    goodput_per_s: float = 0.0
    ended_s: float = 0.0
    """When the overload was over, by the machine's monotonic clock."""
    cpu_part: float = 0.0
    """Of one processor, that the crowd itself used during the overload."""
    refused_for_load: int = 0
    undecided: int = 0


@dataclass(slots=True, kw_only=True)
class Ids:
    """Requests of all that the crowd sent, but for those that were refused for load."""

    accepted: list[str] = field(default_factory=list)
    undecided: list[str] = field(default_factory=list)
    """Whoever sent them does not know, or knows that nothing has happened, and may ask again."""


@dataclass(slots=True)
class _Batch:
    """One call, as it was sent, and its answer: bytes, or the code that ended it."""

    message: bytes
    answer: bytes | grpc.StatusCode | None = None
    answered_s: float = 0.0


class Crowd:
    """Sends, and keeps what it sent."""

    def __init__(self, plan: CrowdPlan, calls: Sequence[Call]) -> None:
        self._plan = plan
        self._calls = cycle(calls)
        self._template = requests.batch(plan.product_id, SIZE)
        self._batches: list[_Batch] = []
        self.told = Told()
        self._ids = Ids()

    async def act(self) -> Told:
        """All of it."""
        await self._wait_for_answers(WARM_UP_S)
        first = len(self._batches)
        begun_s = time.monotonic()
        await self._wait_for_answers(self._plan.peak_s)
        self.told.peak_per_s = self._accepted_per_s(first, begun_s, self._plan.peak_s)
        await self._overload(self._plan.times * self.told.peak_per_s)
        served_last()  # how quick the service is from now on is nothing of this
        self._sum_up()
        return self.told

    async def _wait_for_answers(self, seconds: float) -> None:
        """Each batch waits for one before it."""
        end_s = time.monotonic() + seconds

        async def lane() -> None:
            while time.monotonic() < end_s:
                await self._send()

        async with asyncio.TaskGroup() as lanes:
            for _ in range(LANES):
                lanes.create_task(lane())

    async def _overload(self, rate_per_s: float) -> None:
        """No batch waits for any other."""
        first, seconds = len(self._batches), self._plan.overload_s
        begun_s, cpu_s = time.monotonic(), _cpu_s()
        under_way: set[asyncio.Task[None]] = set()
        for due in count():
            if (wait_s := begun_s + due * SIZE / rate_per_s - time.monotonic()) > 0:
                await asyncio.sleep(max(wait_s, TICK_S))
            if time.monotonic() > begun_s + seconds:
                break
            if len(under_way) < UNDER_WAY_MAX:
                task = asyncio.create_task(self._send(), name="batch")
                under_way.add(task)
                task.add_done_callback(under_way.discard)
        self.told.ended_s = time.monotonic()
        self.told.cpu_part = (_cpu_s() - cpu_s) / seconds
        self.told.offered_per_s = (len(self._batches) - first) * SIZE / seconds
        await asyncio.gather(*under_way)
        self.told.goodput_per_s = self._accepted_per_s(first, begun_s, seconds)

    async def _send(self) -> None:
        batch = _Batch(self._template.fresh())
        self._batches.append(batch)
        try:
            batch.answer = await next(self._calls)(batch.message)
        except grpc.aio.AioRpcError as error:
            batch.answer = error.code()
        batch.answered_s = time.monotonic()

    def _accepted_per_s(self, first: int, begun_s: float, seconds: float) -> float:
        """Of the batches from `first` on, what was answered within so many seconds."""
        within = [each for each in self._batches[first:] if each.answered_s < begun_s + seconds]
        return sum(outcomes_of(each).count(ACCEPTED) for each in within) / seconds

    def _sum_up(self) -> None:
        for batch in self._batches:
            for item, outcome in zip(_items(batch.message), outcomes_of(batch), strict=True):
                if outcome == ACCEPTED:
                    self._ids.accepted.append(item)
                elif outcome == REFUSED:
                    self.told.refused_for_load += 1
                else:
                    self._ids.undecided.append(item)
        self.told.undecided = len(self._ids.undecided)
        Path(self._plan.ids).write_text(json.dumps(asdict(self._ids)))


def outcomes_of(batch: _Batch) -> Sequence[int]:
    """What each of its items came to; a call that ended with a code has said nothing of any."""
    if isinstance(batch.answer, bytes):
        results = inventory_pb2.BatchDeductResponse.FromString(batch.answer).results
        return [result.outcome for result in results]
    is_refused = batch.answer is grpc.StatusCode.RESOURCE_EXHAUSTED
    return [REFUSED if is_refused else inventory_pb2.OUTCOME_UNSPECIFIED] * SIZE


def _items(message: bytes) -> Sequence[str]:
    return [item.request_id for item in inventory_pb2.BatchDeductRequest.FromString(message).items]


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


@asynccontextmanager
async def _calling(plan: CrowdPlan) -> AsyncIterator[Sequence[Call]]:
    channels = [
        grpc.aio.insecure_channel(target, options=OPTIONS)
        for _ in range(CHANNELS)
        for target in plan.targets
    ]
    try:
        await asyncio.gather(*(channel.channel_ready() for channel in channels))
        yield [call(BATCH, channel, timeout_s=plan.deadline_s) for channel in channels]
    finally:
        for channel in channels:
            await channel.close()


async def measure(plan: CrowdPlan) -> Told:
    """Carry out a plan."""
    no_favour()
    async with _calling(plan) as calls:
        return await Crowd(plan, calls).act()


if __name__ == "__main__":
    report_of(CrowdPlan, measure)
