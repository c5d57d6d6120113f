"""A lane: one connection to one Redis node that many callers share.

Calls that queue up while a round is under way make the next round: they are written at once and, on a
lane with `replicas`, followed by one WAIT, whose reply covers them all. No timer decides about a batch.

A call ends in one of three ways, and the difference matters to whoever may not do a thing twice:
a reply (an error reply among them), NotSentError (certainly not executed), LostError (perhaps executed).

A script is told in which run of the node it is executed: a node that comes back by itself may have
forgotten what it said before. The lane asks for that whenever it connects, and ends each script's call
with it.
"""

import asyncio
import re
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from ssl import SSLContext
from typing import NamedTuple, cast

from hiredis import ProtocolError, Reader, ReplyError, pack_command

from sharding.breaker import Breaker
from sharding.metrics import StockMetrics


def packed(command: Sequence[str | bytes]) -> bytes:
    """A command as it goes over the wire."""
    # hiredis says that it takes a tuple of one; it takes any.
    wire: bytes = pack_command(tuple(command))  # type: ignore[arg-type]
    return wire


def packed_script(command: Sequence[str | bytes]) -> bytes:
    """A script's call without its last argument, which the lane adds."""
    return packed((*command, b""))[: -len(_argument(b""))]


def _argument(value: bytes) -> bytes:
    return b"$%d\r\n%s\r\n" % (len(value), value)


STUCK_S = 0.25
"""After so long without the end of a round, or without a connection, nothing more goes to the node."""
LATE_S = 0.05
"""A process whose timer is later than this stood still, and has not read yet what came meanwhile."""
QUEUE_CALLS_MAX = 10_000
ROUND_CALLS_MAX = 128
_ASKING = packed(("ASKING",))
_WHICH_RUN = packed(("INFO", "server"))
_RUN = re.compile(rb"^run_id:(\w+)", re.MULTILINE)


class LaneError(Exception):
    """Base of the ways in which a call gets no reply."""


class NotSentError(LaneError):
    """The call never left this process."""


class QueueFullError(NotSentError):
    """More calls wait for this node than it will serve in time."""


class TooLateError(NotSentError):
    """The call waited so long for its turn that nobody waits for it any more."""


class LostError(LaneError):
    """The call was sent and its reply did not come; it may have been executed."""


class NotReplicatedError(LaneError):
    """The call was executed, but too few replicas confirmed it in time."""


class Node(NamedTuple):
    """Where a Redis node listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class LaneOptions:
    """How lanes connect and when they give up."""

    timeout_s: float
    username: str
    password: str
    tls: SSLContext | None
    replicas: int
    """Replicas that must confirm each round; 0: none."""


class _Call(NamedTuple):
    command: bytes
    reply: asyncio.Future[object]
    asking: bool = False
    is_script: bool = False
    deadline: float = inf


class _Round:
    """Calls that were written together and the replies that have come so far."""

    __slots__ = ("calls", "expected", "is_plain", "replies", "waits")

    def __init__(self, calls: list[_Call], *, waits: bool) -> None:
        self.calls = calls
        self.waits = waits
        self.replies: list[object] = []
        asking = sum(call.asking for call in calls)
        self.is_plain = asking == 0
        self.expected = len(calls) + asking + waits

    def take(self, reply: object) -> None:
        """A call that did nothing needs no replica's word: it is answered at once."""
        position = len(self.replies)
        self.replies.append(reply)
        if isinstance(reply, ReplyError) and self.is_plain and position < len(self.calls):
            _answer(self.calls[position].reply, reply, replicated=False)

    def finish(self, replicas: int) -> None:
        replies = iter(self.replies)
        confirmed = self.replies[-1] if self.waits else replicas
        replicated = isinstance(confirmed, int) and confirmed >= replicas
        for call in self.calls:
            if call.asking:
                next(replies)
            _answer(call.reply, next(replies), replicated=replicated)

    def fail(self, error: LaneError) -> None:
        for call in self.calls:
            _fail(call.reply, error)


def _answer(future: asyncio.Future[object], reply: object, *, replicated: bool) -> None:
    if future.done():
        return
    if replicated or isinstance(reply, ReplyError):
        future.set_result(reply)
    else:
        future.set_exception(NotReplicatedError())


def _fail(future: asyncio.Future[object], error: LaneError) -> None:
    if not future.done():
        future.set_exception(error)


class _Patience:
    """Calls `act` once after a silence of `delay_s`, unless this process slept through the end of it."""

    __slots__ = ("_act", "_due_s", "_loop", "_timer")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, delay_s: float, act: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._act = act
        self._wait(delay_s)

    def cancel(self) -> None:
        self._timer.cancel()

    def _wait(self, delay_s: float) -> None:
        self._due_s = self._loop.time() + delay_s
        self._timer = self._loop.call_later(delay_s, self._end)

    def _end(self) -> None:
        if self._loop.time() - self._due_s > LATE_S:
            self._wait(LATE_S)
        else:
            self._act()


class Lane(asyncio.Protocol):
    """One connection; connects at the first call and again after it was lost.

    It opens its breaker where the node cannot be connected to or does not answer; whoever calls asks the
    breaker first, and judges the replies.
    """

    def __init__(
        self,
        node: Node,
        options: LaneOptions,
        metrics: StockMetrics,
        breaker: Breaker | None = None,
    ) -> None:
        self._node = node
        self._options = options
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self.breaker = breaker or Breaker(self._loop.time)
        self._queue: deque[_Call] = deque()
        self._transport: asyncio.Transport | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._run = b""
        """Of the node that is connected, as the last argument of scripts."""
        self._reader = Reader()
        self._round: _Round | None = None
        self._round_timer: _Patience | None = None
        self._send_is_due = False
        self._is_closed = False
        self._wait_s = options.timeout_s
        self._wait = packed(("WAIT", str(options.replicas), str(int(self._wait_s * 1_000))))

    def call(
        self,
        command: bytes,
        *,
        is_script: bool = False,
        asking: bool = False,
        deadline: float = inf,
    ) -> asyncio.Future[object]:
        """Queue one packed command; the future holds its reply or a LaneError.

        `is_script`: it is one of `packed_script`. `deadline`, in the loop's time: what still waits in
        the queue by then is never sent.
        """
        future: asyncio.Future[object] = self._loop.create_future()
        if self._is_closed:
            future.set_exception(NotSentError("closed"))
        elif len(self._queue) >= QUEUE_CALLS_MAX:
            future.set_exception(QueueFullError())
        else:
            self._queue.append(_Call(command, future, asking, is_script, deadline))
            self._wake()
        return future

    async def close(self) -> None:
        """Drop the connection; what is queued fails with NotSentError."""
        self._is_closed = True
        self._fail_queue("closed")
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.gather(self._connecting, return_exceptions=True)
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Here and not where it was asked for: by then it may be lost again, and would never say so.
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._cancel_round_timer()
        if self._round is not None:
            self._round.fail(LostError(str(exc or "connection closed")))
            self._round = None
        self._fail_queue("connection lost")

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        try:
            while (reply := self._reader.gets()) is not False:
                self._take_reply(reply)
        except ProtocolError:
            self._abort()

    def _take_reply(self, reply: object) -> None:
        if self._round is None:
            self._abort()
            return
        self._round.take(reply)
        if len(self._round.replies) == self._round.expected:
            finished, self._round = self._round, None
            self._cancel_round_timer()
            finished.finish(self._options.replicas)
            self._wake()

    def _wake(self) -> None:
        if self._connecting or self._round or self._send_is_due or not self._queue:
            return
        if self._is_closed:
            self._fail_queue("closed")
            return
        if self._transport is None:
            name = f"connect {self._node.host}:{self._node.port}"
            self._connecting = self._loop.create_task(self._connect(), name=name)
            return
        # Everything that is called for in this turn of the loop joins the round.
        self._send_is_due = True
        self._loop.call_soon(self._send_queue)

    def _send_queue(self) -> None:
        self._send_is_due = False
        if self._transport is None:
            # The connection broke after this was due; what has queued since needs another one.
            self._wake()
            return
        if self._round or not self._queue:
            return
        calls = self._next_calls()
        if calls:
            self._metrics.round_calls.observe(len(calls))
            self._send(calls, waits=self._options.replicas > 0)

    def _next_calls(self) -> list[_Call]:
        now = self._loop.time()
        calls: list[_Call] = []
        while self._queue and len(calls) < ROUND_CALLS_MAX:
            call = self._queue.popleft()
            if call.deadline < now:
                _fail(call.reply, TooLateError("waited too long for its turn"))
            else:
                calls.append(call)
        return calls

    def _send(self, calls: list[_Call], *, waits: bool) -> None:
        assert self._transport is not None
        assert self._round is None
        self._round = _Round(calls, waits=waits)
        parts: list[bytes] = []
        for call in calls:
            if call.asking:
                parts.append(_ASKING)
            parts.append(call.command)
            if call.is_script:
                parts.append(self._run)
        if waits:
            parts.append(self._wait)
        self._transport.writelines(parts)
        limit_s = self._options.timeout_s + (self._wait_s if waits else 0.0)
        left_s = max(0.0, limit_s - STUCK_S)
        note_stuck = partial(self._note_stuck, left_s)
        self._round_timer = _Patience(self._loop, min(STUCK_S, limit_s), note_stuck)

    def _note_stuck(self, left_s: float) -> None:
        self._give_up_waiting(left_s)
        self._round_timer = _Patience(self._loop, left_s, self._abort)

    def _give_up_waiting(self, left_s: float) -> None:
        """The node may answer within `left_s` yet; what waits behind that may go elsewhere."""
        self.breaker.fail("the node does not answer", open_s=left_s)
        self._fail_queue("the node does not answer")

    async def _connect(self) -> None:
        limit_s = self._options.timeout_s
        left_s = max(0.0, limit_s - STUCK_S)
        give_up = partial(self._give_up_waiting, left_s)
        slow = _Patience(self._loop, min(STUCK_S, limit_s), give_up)
        try:
            async with asyncio.timeout(limit_s):
                await self._open()
            self.breaker.retry()
        except (OSError, LaneError, TimeoutError, UnicodeError) as error:
            why = str(error) or "connecting timed out"
            self.breaker.fail(why)
            self._abort()
            self._fail_queue(why)
        finally:
            slow.cancel()
            self._connecting = None
            self._wake()

    async def _open(self) -> None:
        self._reader = Reader()
        await self._loop.create_connection(
            lambda: self, self._node.host, self._node.port, ssl=self._options.tls
        )
        if self._transport is None:
            raise NotSentError("connection lost")
        if self._options.password:
            await self._authenticate()
        await self._identify()

    async def _authenticate(self) -> None:
        user = (self._options.username,) if self._options.username else ()
        answer = await self._asked(packed(("AUTH", *user, self._options.password)))
        if isinstance(answer, ReplyError):
            raise NotSentError(f"the node refuses the credentials: {answer}")

    async def _identify(self) -> None:
        answer = await self._asked(_WHICH_RUN)
        run = _RUN.search(answer) if isinstance(answer, bytes) else None
        if run is None:
            raise NotSentError(f"INFO server must name the node's run_id; it says {answer!r:.200}")
        self._run = _argument(run[1])

    async def _asked(self, command: bytes) -> object:
        """The reply to one of the commands that a connection begins with."""
        reply: asyncio.Future[object] = self._loop.create_future()
        self._send([_Call(command, reply)], waits=False)
        return await reply

    def _abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _cancel_round_timer(self) -> None:
        if self._round_timer is not None:
            self._round_timer.cancel()
            self._round_timer = None

    def _fail_queue(self, why: str) -> None:
        while self._queue:
            _fail(self._queue.popleft().reply, NotSentError(why))
