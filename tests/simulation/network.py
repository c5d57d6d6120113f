"""The way between server processes and nodes: a seed decides at each call what becomes of it.

A lane here has the interface of sharding.lane.Lane and ends a call in the same ways. Unlike a connection
it keeps no order, so it is the harsher of the two.
"""

import asyncio
from collections.abc import Callable, Mapping
from enum import StrEnum
from math import inf
from random import Random
from typing import NamedTuple, Protocol

from hiredis import Reader, ReplyError

from sharding.breaker import Breaker
from sharding.lane import LaneError, LostError, NotReplicatedError, NotSentError
from tests.simulation.nodes import FakeNode, script_names
from tests.simulation.trace import Trace

FIRST_PORT = 7000
"""Node i listens on this and i."""
TIMEOUT_S = 1.0
"""How long a lane waits for the replies of a round, and as long again for replicas."""
PROMPT_S = (0.0001, 0.002)
SLOW_S = (0.002, 0.9)
GHOST_S = 20.0
"""The mean of how long a call stays on its way after its caller gave up."""


GHOST_MAX_S = 60.0


class Fate(StrEnum):
    """What becomes of one call."""

    PROMPT = "prompt"
    SLOW = "slow"
    LATE_REPLY = "late reply"
    LOST_BEFORE = "lost before it ran"
    LOST_AFTER = "ran, reply lost"
    GHOST = "lost, ran later"
    TWICE = "ran twice"
    NOT_SENT = "not sent"
    NOT_REPLICATED = "ran, not replicated"
    REFUSED = "refused by the node"
    SCRIPTS_FLUSHED = "scripts flushed"


REFUSALS = (
    "OOM command not allowed when used memory > 'maxmemory'.",
    "LOADING Redis is loading the dataset in memory",
    "CLUSTERDOWN The cluster is down",
    "TRYAGAIN Multiple keys request during rehashing of slot",
    "BUSY Redis is busy running a script.",
    "MISCONF Errors writing to the AOF file",
    "READONLY You can't write against a read only replica.",
    "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
    "ASK 0 node:{}",
    "MOVED 0 node:{}",
)
"""What a node answers that did not carry out a call."""


class Faults(NamedTuple):
    """How often what happens; all of them are probabilities of one call."""

    fates: Mapping[Fate, float]
    stall: float = 0.0
    """The node stands still for a while: what reaches it meanwhile runs afterwards."""
    cut: float = 0.0
    """The node cannot be reached for a while."""
    crash: float = 0.0
    """The process that calls or is called back ends."""


CALM = Faults({})


NO_REPLY = object()


class Caller(Protocol):
    """A server process, as the network knows it."""

    name: str
    is_dead: bool

    def crash(self) -> None:
        """End: all its tasks are cancelled."""


class Call:
    """One call on its way."""

    __slots__ = ("caller", "fate", "future", "is_confirmed", "node", "number", "reply", "words")

    def __init__(
        self, number: int, caller: Caller, node: FakeNode, words: list[bytes], fate: Fate
    ) -> None:
        self.number = number
        self.caller = caller
        self.node = node
        self.words = words
        self.fate = fate
        self.future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self.reply: object = NO_REPLY
        self.is_confirmed = False
        """Whether the caller hears its reply only after a replica has what it wrote."""

    @property
    def name(self) -> str:
        """The script's name, or the command's."""
        if self.words[0] == b"EVALSHA":
            return script_names().get(self.words[1], "unknown")
        return "with its text" if self.words[0] == b"EVAL" else self.words[0].decode()


class Course(NamedTuple):
    """When a call runs and when its caller hears of it, as delays, and what he hears if no reply."""

    runs_s: tuple[float, ...]
    heard_s: float
    error: LaneError | ReplyError | None = None


Executed = Callable[[FakeNode, list[bytes], object, bool], None]
"""Takes the node, the call's words, the reply, and whether it is a second delivery of a call that was
answered: no connection makes one, so a caller need not reckon with what only that one does."""


Redirection = Callable[[FakeNode, list[bytes]], str]
"""Takes a node and a call's words; the error by which the node sends the call elsewhere, or ""."""


class Network:
    """Carries calls. `executed` is told of every call that a node carried out."""

    def __init__(
        self, rng: Random, trace: Trace, executed: Executed, redirection: Redirection
    ) -> None:
        self.faults = CALM
        self.calls = 0
        self.troubled_s: dict[int, float] = {}
        """When a node was last not reached at once."""
        self._redirection = redirection
        self._rng = rng
        self._trace = trace
        self._executed = executed
        self._stalled_until: dict[int, float] = {}
        self._cut_until: dict[int, float] = {}
        self._refusing_until: dict[tuple[int, str], float] = {}
        self._alone: set[int] = set()

    def leave_alone(self, node: FakeNode) -> None:
        """From here on no replica confirms what a node writes."""
        self._alone.add(node.number)

    def refuse(self, node: FakeNode, seconds: float, *, caller: str = "") -> None:
        """A node takes no connection for so long, of one process or of all; whoever calls it knows that
        it did nothing."""
        until_s = asyncio.get_running_loop().time() + seconds
        self._refusing_until[node.number, caller] = until_s

    def send(
        self, caller: Caller, node: FakeNode, words: list[bytes], *, waits: bool
    ) -> asyncio.Future[object]:
        """Carry one call; the future ends as a lane's does."""
        loop = asyncio.get_running_loop()
        self.calls += 1
        self._disturb(caller, node, loop.time())
        call = Call(
            self.calls, caller, node, words, self._fate(caller, node, loop.time(), waits=waits)
        )
        self._trace.note("send", caller.name, call.number, node.number, call.name, call.fate)
        course = self._bounded(self._course(call), node, loop.time(), waits=waits)
        call.is_confirmed = waits and course.error is None
        if course.error or course.heard_s > 2 * PROMPT_S[1] + 1e-3:
            self.troubled_s[node.number] = loop.time() + course.heard_s
        for delay_s in course.runs_s:
            loop.call_later(delay_s, self._run, call)
        loop.call_later(course.heard_s, self._answer, call, course.error)
        return call.future

    def heal(self) -> None:
        """From here on every new call is prompt; what is on its way stays so."""
        self.faults = CALM
        self._stalled_until.clear()
        self._cut_until.clear()
        self._refusing_until.clear()

    def _disturb(self, caller: Caller, node: FakeNode, now_s: float) -> None:
        rng, faults = self._rng, self.faults
        if faults.stall and rng.random() < faults.stall:
            self._stalled_until[node.number] = now_s + rng.uniform(0.1, 6.0)
        if faults.cut and rng.random() < faults.cut:
            self._cut_until[node.number] = now_s + rng.uniform(0.1, 6.0)
        self._perhaps_crash(caller)

    def _perhaps_crash(self, caller: Caller) -> None:
        crash = self.faults.crash
        if crash and not caller.is_dead and self._rng.random() < crash:
            self._trace.note("crash", caller.name)
            # It finishes the step that it is in: a process ends at an await.
            asyncio.get_running_loop().call_soon(caller.crash)

    def _fate(self, caller: Caller, node: FakeNode, now_s: float, *, waits: bool) -> Fate:
        refused = ((node.number, caller.name), (node.number, ""))
        if any(self._refusing_until.get(key, -inf) > now_s for key in refused):
            return Fate.NOT_SENT
        if node.is_dead or self._cut_until.get(node.number, -inf) > now_s:
            return self._rng.choice((Fate.NOT_SENT, Fate.LOST_BEFORE))
        if waits and node.number in self._alone:
            return Fate.NOT_REPLICATED
        drawn = self._rng.random()
        for fate, share in self.faults.fates.items():
            drawn -= share
            if drawn < 0:
                return fate if waits or fate is not Fate.NOT_REPLICATED else Fate.PROMPT
        return Fate.PROMPT

    def _course(self, call: Call) -> Course:
        draw = self._rng.uniform
        run_s = draw(*PROMPT_S)
        reply_s = run_s + draw(*PROMPT_S)
        match call.fate:
            case Fate.SLOW:
                run_s = draw(*SLOW_S)
                return Course((run_s,), run_s + draw(*PROMPT_S))
            case Fate.LATE_REPLY:
                return Course((run_s,), draw(0.5, 3.0))
            case Fate.TWICE:
                return Course((run_s, run_s + draw(0.0, GHOST_S)), reply_s)
            case Fate.REFUSED:
                text = self._rng.choice(REFUSALS).format(call.node.number + FIRST_PORT)
                return Course((), reply_s, ReplyError(text))
            case Fate.SCRIPTS_FLUSHED:
                call.node.forget_scripts()
        return self._course_without_reply(call.fate, run_s) or Course((run_s,), reply_s)

    def _course_without_reply(self, fate: Fate, run_s: float) -> Course | None:
        """What ends as a LaneError; None for every other fate."""
        draw = self._rng.uniform
        given_up_s = draw(0.001, TIMEOUT_S)
        match fate:
            case Fate.LOST_BEFORE:
                return Course((), given_up_s, LostError("connection lost"))
            case Fate.LOST_AFTER:
                return Course((run_s,), run_s + given_up_s, LostError("connection lost"))
            case Fate.GHOST:
                later_s = given_up_s + min(self._rng.expovariate(1 / GHOST_S), GHOST_MAX_S)
                return Course((later_s,), given_up_s, LostError("connection lost"))
            case Fate.NOT_SENT:
                return Course((), draw(0.0, 0.05), NotSentError("connection refused"))
            case Fate.NOT_REPLICATED:
                return Course((run_s,), run_s + TIMEOUT_S, NotReplicatedError())
        return None

    def _bounded(self, course: Course, node: FakeNode, now_s: float, *, waits: bool) -> Course:
        """What a stalled node and a lane's patience make of it."""
        stalled_s = self._stalled_until.get(node.number, -inf) - now_s
        if stalled_s > 0 and course.runs_s:
            moved = tuple(max(run_s, stalled_s) + run_s for run_s in course.runs_s)
            course = course._replace(runs_s=moved, heard_s=max(course.heard_s, moved[0] + 1e-4))
        limit_s = TIMEOUT_S * (2 if waits else 1)
        if course.heard_s > limit_s:
            return course._replace(heard_s=limit_s, error=LostError("timed out"))
        return course

    def _run(self, call: Call) -> None:
        if call.node.is_dead:
            return
        moved = self._redirection(call.node, call.words)
        reply = ReplyError(moved) if moved else call.node.run(call.words)
        self._trace.note("run", call.number, reply)
        is_surplus = call.reply is not NO_REPLY
        if not is_surplus:
            call.reply = reply
            if call.is_confirmed and call.node.has_written and not moved:
                call.node.confirm()
        if not isinstance(reply, ReplyError):
            self._executed(call.node, call.words, reply, is_surplus)

    def _answer(self, call: Call, error: LaneError | ReplyError | None) -> None:
        self._perhaps_crash(call.caller)
        if error is None and call.reply is NO_REPLY:
            error = LostError("the node is gone")
        self._trace.note("heard", call.caller.name, call.number, repr(error) if error else "")
        if call.future.done():
            return
        if isinstance(error, LaneError):
            call.future.set_exception(error)
        else:
            call.future.set_result(call.reply if error is None else error)


class SimulatedLane:
    """Stands where a sharding.lane.Lane would."""

    def __init__(self, network: Network, caller: Caller, node: FakeNode, *, waits: bool) -> None:
        self._network = network
        self._caller = caller
        self._node = node
        self._waits = waits
        self.breaker = Breaker(asyncio.get_running_loop().time)

    def call(
        self,
        command: bytes,
        *,
        is_script: bool = False,
        asking: bool = False,
        deadline: float = inf,
    ) -> asyncio.Future[object]:
        """As Lane.call; a dead process sends nothing."""
        if self._caller.is_dead:
            future = asyncio.get_running_loop().create_future()
            future.set_exception(NotSentError("closed"))
            return future
        reader = Reader()
        reader.feed(command)
        if is_script:
            reader.feed(b"$%d\r\n%s\r\n" % (len(self._node.run_id), self._node.run_id))
        words = reader.gets()
        assert isinstance(words, list)
        future = self._network.send(self._caller, self._node, words, waits=self._waits)
        future.add_done_callback(self._note_down)
        return future

    async def close(self) -> None:
        """There is no connection to drop."""

    def _note_down(self, future: asyncio.Future[object]) -> None:
        if not future.cancelled() and isinstance(future.exception(), NotSentError):
            self.breaker.fail("not sent")
