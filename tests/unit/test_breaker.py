"""When a node is asked, and by how many."""

import pytest

from sharding.breaker import OPEN_S, PROBE_S, PROBES_MAX, Breaker, BreakerState
from sharding.pending import means_the_node


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class World:
    """A breaker, its clock, and how often it has opened."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.opened = 0
        self.breaker = Breaker(self.clock, on_open=self._count)

    def _count(self) -> None:
        self.opened += 1

    def half_open(self) -> None:
        self.breaker.fail("gone")
        self.clock.now_s += OPEN_S

    def admitted(self, calls: int = 200) -> list[int]:
        """The tickets of those of so many calls that are let through."""
        tickets = (self.breaker.admit() for _ in range(calls))
        return [each for each in tickets if each is not None]


@pytest.fixture
def world() -> World:
    return World()


def test_closed_it_lets_every_call_through(world: World) -> None:
    assert len(world.admitted(200)) == 200
    assert world.breaker.state is BreakerState.CLOSED


def test_one_failure_opens_it_and_nobody_passes_until_its_time_is_over(world: World) -> None:
    world.breaker.fail("gone")
    assert (world.breaker.state, world.breaker.why) == (BreakerState.OPEN, "gone")
    world.clock.now_s += OPEN_S * 0.99
    assert not world.breaker.has_room
    assert world.admitted() == []
    world.clock.now_s += OPEN_S * 0.02
    assert world.breaker.state is BreakerState.HALF_OPEN
    assert world.breaker.has_room


def test_half_open_a_few_of_two_hundred_calls_pass(world: World) -> None:
    world.half_open()
    assert len(world.admitted(200)) == PROBES_MAX
    assert not world.breaker.has_room


def test_a_probe_that_is_over_without_a_word_frees_its_place_once(world: World) -> None:
    world.half_open()
    first, *_ = world.admitted()
    world.breaker.hand_back(first)
    world.breaker.hand_back(first)
    assert len(world.admitted()) == 1


def test_probes_that_hang_free_their_places_in_a_while(world: World) -> None:
    world.half_open()
    hanging = world.admitted()
    world.clock.now_s += PROBE_S
    later = world.admitted()
    assert len(later) == PROBES_MAX
    for ticket in hanging:  # they come back at last, and free nobody else's place
        world.breaker.hand_back(ticket)
    assert world.admitted() == []


def test_an_answer_closes_it(world: World) -> None:
    world.half_open()
    world.admitted()
    world.breaker.succeed()
    assert world.breaker.state is BreakerState.CLOSED
    assert len(world.admitted(200)) == 200


def test_a_probe_that_fails_opens_it_again_for_as_long(world: World) -> None:
    world.half_open()
    world.admitted()
    world.breaker.fail("still gone")
    assert world.admitted() == []
    world.clock.now_s += OPEN_S
    assert len(world.admitted()) == PROBES_MAX
    assert world.opened == 2


def test_failures_while_it_is_open_are_one_opening(world: World) -> None:
    for _ in range(50):
        world.breaker.fail("gone")
    assert world.opened == 1


def test_a_wait_that_is_over_early_lets_probes_out_at_once(world: World) -> None:
    world.breaker.fail("does not answer", open_s=60)
    assert world.admitted() == []
    world.breaker.retry()
    assert len(world.admitted()) == PROBES_MAX


@pytest.mark.parametrize(
    "text",
    [
        "CLUSTERDOWN The cluster is down",
        "LOADING Redis is loading the dataset in memory",
        "MASTERDOWN Link with MASTER is down",
        "MISCONF Errors writing to the AOF file: No space left on device",
        "NOREPLICAS Not enough good replicas to write.",
        "READONLY You can't write against a read only replica.",
    ],
)
def test_these_errors_speak_against_the_node(text: str) -> None:
    assert means_the_node(text)


@pytest.mark.parametrize(
    "text",
    [
        "CLUSTERDOWN Hash slot not served",
        "MOVED 1 127.0.0.1:7001",
        "ASK 1 127.0.0.1:7001",
        "TRYAGAIN Multiple keys request during rehashing of slot",
        "OOM command not allowed when used memory > 'maxmemory'.",
        "BUSY Redis is busy running a script.",
        "NOSCRIPT No matching script.",
        "NOAUTH Authentication required.",
        "ERR something",
    ],
)
def test_these_speak_of_the_call_its_slot_or_its_caller(text: str) -> None:
    assert not means_the_node(text)
