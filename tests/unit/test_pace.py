"""How much a process takes on, by how its answers come."""

import asyncio
from collections.abc import Coroutine, Iterator, Sequence

import pytest
import structlog
from prometheus_client import CollectorRegistry

from server.errors import RefusedError
from server.gate import Gate, Gates
from server.intake import Intake
from server.metrics import Metrics
from server.pace import GROWTH, IDLE_S, ITEMS_MIN, LATE_S, MOMENT_S, SMOOTHING, WAIT_S, Pace
from sharding.orders import OrderAnswer
from sharding.outcomes import Answer, Deduction, Outcome

ITEMS_MAX = 40_000
QUICK_S, TOO_LATE_S = LATE_S * 0.9, LATE_S * 4
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
    """Something is under way."""
    pace = Pace(clock, items_max=ITEMS_MAX)
    pace.begin(1)
    return pace


NODE, OTHERS = "a", ("b", "c")


def serve(pace: Pace, clock: Clock, *, items: int, took_s: float) -> None:
    """So many are answered by their shards after that time."""
    pace.begin(items)
    since_s = clock.now_s
    clock.now_s += took_s
    pace.served(items, since_s, NODE)
    pace.end(items)


def test_late_answers_leave_room_for_what_is_answered_in_time(pace: Pace, clock: Clock) -> None:
    serve(pace, clock, items=HALF, took_s=TOO_LATE_S)
    limit = HALF / TOO_LATE_S * WAIT_S
    assert pace.limit == pytest.approx(limit)
    assert pace.has_room(int(limit) - 1)
    assert not pace.has_room(int(limit))


def test_however_slow_it_is_one_batch_may_be_under_way(pace: Pace, clock: Clock) -> None:
    serve(pace, clock, items=1, took_s=TOO_LATE_S)
    assert pace.limit == ITEMS_MIN


def test_many_late_answers_at_once_leave_no_more_than_the_setting(pace: Pace, clock: Clock) -> None:
    serve(pace, clock, items=100 * ITEMS_MAX, took_s=TOO_LATE_S)
    assert pace.limit == ITEMS_MAX


def test_one_moment_without_a_processor_takes_little_room(pace: Pace, clock: Clock) -> None:
    serve(pace, clock, items=HALF, took_s=TOO_LATE_S)
    before = pace.limit
    serve(pace, clock, items=1, took_s=TOO_LATE_S)
    assert pace.limit == pytest.approx(before * (1 - SMOOTHING), rel=0.001)


@pytest.mark.parametrize(("quick", "late", "limit"), [(10, 9, ITEMS_MAX), (9, 10, ITEMS_MIN)])
def test_what_most_items_waited_for_counts_and_not_what_the_quickest_did(
    pace: Pace, clock: Clock, quick: int, late: int, limit: int
) -> None:
    pace.served(quick, clock.now_s, NODE)
    clock.now_s += MOMENT_S * 1.01
    pace.served(late, clock.now_s - TOO_LATE_S, NODE)
    assert pace.limit == limit


@pytest.mark.parametrize(("slow", "limit"), [(OTHERS[:1], ITEMS_MAX), (OTHERS, ITEMS_MIN)])
def test_one_slow_node_of_three_takes_no_room_whatever_is_asked_of_it(
    pace: Pace, clock: Clock, slow: Sequence[str], limit: int
) -> None:
    for node in (NODE, *OTHERS):
        late = node in slow
        pace.served(100 if late else 1, clock.now_s - TOO_LATE_S * late, node)
    clock.now_s += MOMENT_S * 1.01
    pace.served(1, clock.now_s, NODE)
    assert pace.limit == limit


def test_who_is_answered_by_no_shard_of_theirs_says_nothing(pace: Pace, clock: Clock) -> None:
    pace.begin(10)
    clock.now_s += TOO_LATE_S
    pace.end(10)
    assert pace.limit == ITEMS_MAX
    serve(pace, clock, items=1, took_s=TOO_LATE_S)
    for _ in range(10):
        pace.begin(10)
        pace.end(10)
    assert pace.limit == ITEMS_MIN


def test_room_grows_while_answers_are_quick(pace: Pace, clock: Clock) -> None:
    serve(pace, clock, items=HALF, took_s=TOO_LATE_S)
    before = pace.limit
    serve(pace, clock, items=10, took_s=QUICK_S)
    assert pace.limit == pytest.approx(before * GROWTH)


def test_room_is_not_back_as_soon_as_nothing_is_under_way(pace: Pace, clock: Clock) -> None:
    """Else a limit of one batch would be none after each batch."""
    serve(pace, clock, items=1, took_s=TOO_LATE_S)
    pace.end(1)
    pace.begin(1)
    assert pace.limit == ITEMS_MIN
    pace.end(1)
    clock.now_s += IDLE_S
    pace.begin(1)
    assert pace.limit == ITEMS_MAX


class Counter:
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.waiting: list[tuple[int, asyncio.Future[list[Answer]]]] = []

    def deduct(self, deductions: Sequence[Deduction]) -> asyncio.Future[list[Answer]]:
        done: asyncio.Future[list[Answer]] = asyncio.get_running_loop().create_future()
        self.waiting.append((len(deductions), done))
        return done


@pytest.fixture
def counter() -> Iterator[Counter]:
    counter = Counter()
    yield counter
    for _, done in counter.waiting:
        done.cancel()


@pytest.fixture
async def intake(pace: Pace, clock: Clock, counter: Counter) -> Intake:
    """Of a process whose answers were late a moment ago, and which has as much to do as it takes on."""
    serve(pace, clock, items=1, took_s=TOO_LATE_S)
    metrics = Metrics(CollectorRegistry())
    gates = Gates([Gate.always_open(counter, metrics, structlog.get_logger())])
    intake = Intake(gates, metrics, pace)
    intake.submit(deductions(ITEMS_MIN))
    return intake


def deductions(number: int) -> list[Deduction]:
    return [Deduction(f"r{each}", 1, 1, 0, 0, 1) for each in range(number)]


def order() -> Coroutine[object, object, OrderAnswer]:
    async def confirmed() -> OrderAnswer:
        return OrderAnswer(Outcome.CONFIRMED)

    return confirmed()


async def test_deductions_and_new_orders_are_refused_while_answers_are_late(intake: Intake) -> None:
    with pytest.raises(RefusedError) as refused:
        intake.submit(deductions(1))
    made = await intake.new_order("reserve", order(), lines=1)
    assert refused.value.reason == "QUEUE_FULL"
    assert made.outcome is Outcome.OVERLOADED


async def test_what_was_begun_is_brought_to_an_end_while_answers_are_late(intake: Intake) -> None:
    ended = await intake.order("confirm", order())
    assert ended.outcome is Outcome.CONFIRMED
