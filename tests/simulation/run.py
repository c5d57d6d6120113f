"""One seed from its beginning to its end."""

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from traceback import format_exception
from typing import Any
from unittest.mock import patch

from sharding.errors import StockError
from sharding.lane import LaneError
from tests.simulation.loop import StuckError, VirtualLoop
from tests.simulation.network import Executed
from tests.simulation.nodes import FakeNode
from tests.simulation.observed import ViolationError
from tests.simulation.oracle import Oracle
from tests.simulation.scenario import play
from tests.simulation.trace import Trace
from tests.simulation.world import CrashedError, Equipment, World, owner_of

_EXPECTED = (StockError, LaneError, CrashedError)
"""Failures of calls; a task that nobody waits for any more may end with one."""


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one seed; `failure` is empty if every promise was kept."""

    seed: int
    failure: str
    calls: int
    answers: Counter[str]
    late_effects: Counter[str]
    counts: Counter[str]
    trace: Trace


def _token(size: int) -> str:
    return random.randbytes(size).hex()


class _Troubles(logging.Handler):
    """Collects exceptions that the kernel logs, because it answers them as an unknown outcome."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(self.format(record))


def run(seed: int, equipment: Equipment, *, watch: Executed | None = None) -> Result:
    """Play a seed. The same seed gives the same trace, in any process.

    `watch` is told of every call that a node carries out.
    """
    rng = random.Random(seed)
    loop = VirtualLoop(owner_of)
    judge = _Judge(loop, watch)
    world = World(equipment, rng, loop, judge.executed)
    judge.oracle = oracle = Oracle(equipment.engine, world.tags, loop.time, world.troubled_s)
    with _replaced_nondeterminism(rng, loop), _troubles() as troubles:
        loop.set_exception_handler(lambda _, context: _note_unexpected(troubles, context))
        failure = _outcome(loop, world, oracle, judge.failures)
        failure = failure or next(iter(troubles.found), "")
        _close(loop)
    return Result(
        seed,
        failure,
        world.network.calls,
        oracle.answers,
        oracle.late_effects,
        oracle.counts,
        world.trace,
    )


class _Judge:
    """Has the oracle look at every call; the first broken promise ends the simulation."""

    def __init__(self, loop: VirtualLoop, watch: Executed | None) -> None:
        self.oracle: Oracle | None = None
        self.failures: list[BaseException] = []
        self._loop = loop
        self._watch = watch

    def executed(self, node: FakeNode, words: list[bytes], reply: object, is_surplus: bool) -> None:
        """A node has carried out a call."""
        assert self.oracle is not None
        if self.failures:
            return
        if self._watch:
            self._watch(node, words, reply, is_surplus)
        try:
            self.oracle.executed(node, words, reply, is_surplus)
        except ViolationError as violation:
            self.failures.append(violation)
            self._loop.stop()


def _outcome(loop: VirtualLoop, world: World, oracle: Oracle, failures: list[BaseException]) -> str:
    task = loop.create_task(play(world, oracle))

    def stop(_: object) -> None:
        loop.stop()

    task.add_done_callback(stop)
    try:
        loop.run_forever()
    except StuckError:
        return "everybody waits, and nothing will ever happen"
    finally:
        # What is cancelled later must not stop the loop that it is cancelled in.
        task.remove_done_callback(stop)
    if failures:
        return str(failures[0])
    error = task.exception()
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if error is None or isinstance(error, ViolationError):
        return str(error or "")
    return "".join(format_exception(error))


@contextmanager
def _replaced_nondeterminism(rng: random.Random, loop: VirtualLoop) -> Iterator[None]:
    """The kernel's own dice and wall clock are the seed's for as long as it plays."""
    state = random.getstate()
    random.seed(rng.getrandbits(64))
    try:
        with patch("time.time", loop.wall_s), patch("sharding.auditing.token_hex", _token):
            yield
    finally:
        random.setstate(state)


@contextmanager
def _troubles() -> Iterator[_Troubles]:
    log = logging.getLogger("sharding")
    troubles = _Troubles()
    propagate, log.propagate = log.propagate, False
    log.addHandler(troubles)
    try:
        yield troubles
    finally:
        log.removeHandler(troubles)
        log.propagate = propagate


def _note_unexpected(troubles: _Troubles, context: dict[str, Any]) -> None:
    error = context.get("exception")
    if not isinstance(error, _EXPECTED):
        troubles.found.append(f"{context.get('message')}: {error!r}")


def _close(loop: VirtualLoop) -> None:
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
    loop.close()
