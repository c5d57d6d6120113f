"""One measurement in a process of its own: warm up, then count what is answered within a window."""

import asyncio
import json
import resource
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

import uvloop

from tests.bench.cpu import Watched, since, spent_s

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Answer = TypeVar("Answer")
Plan = TypeVar("Plan")

GENERATOR = "generator"
"""The process that measures, among the groups of processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What came of one window. Accepted and refused are two numbers and never added up."""

    elapsed_s: float
    accepted: int = 0
    refused: int = 0
    cpu_s: Mapping[str, float] = field(default_factory=dict)
    """CPU seconds by group of processes."""
    latency_ms: Mapping[str, float] = field(default_factory=dict)
    """By percentile; only where requests were sent at times fixed beforehand."""
    work: Mapping[str, float] = field(default_factory=dict)
    """What servers did from before the warm-up to the last answer, see `counters`."""
    shares: Mapping[str, float] = field(default_factory=dict)
    """The busiest master's parts of what all of them did, 1 being all."""


@dataclass(frozen=True, slots=True)
class Window(Generic[Answer]):
    """Answers that came while it was open."""

    answers: Sequence[Answer]
    elapsed_s: float
    cpu_s: Mapping[str, float]


class Collector(Generic[Answer]):
    """Takes answers from lanes of work, which go on until it is over."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self.answers: list[Answer] = []
        self.is_over = False
        self._has_answer = asyncio.Event()

    def take(self, answer: Answer) -> None:
        self.answers.append(answer)
        self._has_answer.set()

    async def measure(
        self, lanes: Sequence[Coroutine[None, None, None]], *, warm_up_s: float, seconds: float
    ) -> Window[Answer]:
        """Run the lanes and return what came in the window in their middle.

        It stays open until there is an answer: a rate of none has no CPU for each.
        """
        async with asyncio.TaskGroup() as tasks:
            for number, lane in enumerate(lanes):
                tasks.create_task(lane, name=f"lane-{number}")
            await asyncio.sleep(warm_up_s)
            self.answers.clear()
            self._has_answer.clear()
            start_s, before = time.perf_counter(), self.cpu_s()
            await asyncio.sleep(seconds)
            await self._has_answer.wait()
            elapsed_s, after = time.perf_counter() - start_s, self.cpu_s()
            answers = self.answers[:]
            self.is_over = True
        return Window(answers, elapsed_s, since(before, after))

    def cpu_s(self) -> dict[str, float]:
        """CPU seconds of the watched processes and of this one."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        return {**spent_s(self._watched), GENERATOR: used.ru_utime + used.ru_stime}


def report_of(
    plan_type: type[Plan], measure: Callable[[Plan], Awaitable["DataclassInstance"]]
) -> None:
    """Entry point: the plan is the argument, the measurement the output, both JSON."""

    async def run() -> "DataclassInstance":
        return await measure(plan_type(**json.loads(sys.argv[1])))

    print(json.dumps(asdict(uvloop.run(run()))))
