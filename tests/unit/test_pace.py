"""How much a process takes on, by how its answers come."""

import asyncio
from collections.abc import Iterator, Sequence

import pytest
import structlog
from prometheus_client import CollectorRegistry

from server.errors import RefusedError
from server.gate import Gate, Gates
from server.intake import Intake
from server.metrics import Metrics
from server.pace import GROWTH, ITEMS_MIN, LATE_S, MOMENT_S, Pace
from sharding.answers import SOLD_OUT
from sharding.outcomes import Answer, Deduction

ITEMS_MAX = 40_000
QUICK_S, TOO_LATE_S = LATE_S * 0.6, LATE_S + MOMENT_S
HALF = ITEMS_MAX // 2


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def pace(clock: Clock) -> Pace:
    return Pace(clock, items_max=ITEMS_MAX)


def room(pace: Pace) -> int:
    """Items that may be under way at the same time."""
    return max(n for n in range(ITEMS_MAX + 1) if pace.has_room(n)) + pace.under_way


def serve_late(pace: Pace, clock: Clock, *, items: int) -> None:
    """So many are answered, each too late, while as many as there may be are under way."""
    begun_s = pace.begin(HALF)
    clock.now_s += TOO_LATE_S
    pace.end(items, begun_s)


def test_late_answers_leave_room_for_what_is_answered_in_time(pace: Pace, clock: Clock) -> None:
    serve_late(pace, clock, items=HALF - 100)
    assert pace.under_way == 100
    assert room(pace) == pytest.approx((HALF - 100) / TOO_LATE_S * LATE_S, abs=1)


def test_however_slow_it_is_one_batch_may_be_under_way(pace: Pace, clock: Clock) -> None:
    serve_late(pace, clock, items=1)
    assert not pace.has_room(1), "far more is under way"
    pace.end(HALF - 1 - 100, clock.now_s)
    assert pace.has_room(ITEMS_MIN - 100)


def test_late_answers_beside_quick_ones_take_no_room(pace: Pace, clock: Clock) -> None:
    late_s = pace.begin(HALF)
    for _ in range(10):
        quick_s = pace.begin(10)
        clock.now_s += QUICK_S
        pace.end(10, quick_s)
        pace.end(10, late_s)
    assert room(pace) == ITEMS_MAX


def test_room_grows_while_answers_are_quick(pace: Pace, clock: Clock) -> None:
    serve_late(pace, clock, items=HALF - 100)
    before = room(pace)
    begun_s = pace.begin(10)
    clock.now_s += QUICK_S
    pace.end(10, begun_s)
    assert room(pace) == pytest.approx(before * GROWTH, abs=1)


def test_all_room_is_back_when_nothing_is_under_way(pace: Pace, clock: Clock) -> None:
    serve_late(pace, clock, items=HALF)
    assert room(pace) < ITEMS_MAX
    pace.begin(1)
    assert room(pace) == ITEMS_MAX


class Counter:
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.waiting: list[tuple[int, asyncio.Future[list[Answer]]]] = []

    def deduct(self, deductions: Sequence[Deduction]) -> asyncio.Future[list[Answer]]:
        done: asyncio.Future[list[Answer]] = asyncio.get_running_loop().create_future()
        self.waiting.append((len(deductions), done))
        return done

    async def serve(self) -> None:
        """The one who has waited longest."""
        size, done = self.waiting.pop(0)
        done.set_result([SOLD_OUT] * size)
        await asyncio.sleep(0)


@pytest.fixture
def counter() -> Iterator[Counter]:
    counter = Counter()
    yield counter
    for _, done in counter.waiting:
        done.cancel()


async def test_deductions_are_refused_while_answers_are_late(
    clock: Clock, counter: Counter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asyncio.get_running_loop(), "time", clock)
    metrics = Metrics(CollectorRegistry())
    gates = Gates([Gate.always_open(counter, metrics, structlog.get_logger())])
    intake = Intake(gates, metrics, items_max=ITEMS_MAX)

    def ask(items: int) -> None:
        intake.submit([Deduction(f"r{each}", 1, 1, 0, 0, 1) for each in range(items)])

    ask(1)
    ask(ITEMS_MIN)
    clock.now_s += TOO_LATE_S
    await counter.serve()
    with pytest.raises(RefusedError) as refused:
        ask(1)
    assert refused.value.reason == "QUEUE_FULL"
    await counter.serve()
    ask(ITEMS_MIN)
    ask(ITEMS_MIN)
