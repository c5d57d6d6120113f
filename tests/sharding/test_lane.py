"""How a lane ends its calls when the node answers, errs, stalls, or goes away. The node is a script."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any, cast

import pytest
from hiredis import Reader, ReplyError
from prometheus_client import CollectorRegistry

from sharding.breaker import BreakerState
from sharding.lane import (
    LATE_S,
    STUCK_S,
    Lane,
    LaneError,
    LaneOptions,
    LostError,
    Node,
    NotReplicatedError,
    NotSentError,
    packed,
    packed_script,
)
from sharding.metrics import StockMetrics
from tests.waiting import eventually

Answering = Callable[[list[bytes]], bytes | None]
PING_WORDS = [b"PING"]
PING = packed(("PING",))


class FakeNode:
    """Speaks RESP; `answering` maps a command to the bytes of its reply, None for silence."""

    def __init__(self) -> None:
        self.answering: Answering = lambda _: b"+OK\r\n"
        self.run_id: bytes | None = b"of this run"
        self.received: list[list[bytes]] = []
        """But for what every connection begins with."""
        self.was_asked = asyncio.Event()
        self.hang_up_after = 10**9
        self._writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        parser = Reader()
        while data := await reader.read(1 << 20):
            parser.feed(data)
            while (command := parser.gets()) is not False:
                if command == [b"INFO", b"server"] and self.run_id:
                    said = b"# Server\r\nrun_id:%s\r\ntcp_port:1\r\n" % self.run_id
                    writer.write(b"$%d\r\n%s\r\n" % (len(said), said))
                    continue
                self.received.append(command)
                self.was_asked.set()
                if len(self.received) >= self.hang_up_after:
                    writer.transport.abort()
                    return
                reply = self.answering(command)
                if reply is not None:
                    writer.write(reply)

    def hang_up(self) -> None:
        for writer in self._writers:
            writer.transport.abort()


@pytest.fixture
async def fake() -> AsyncIterator[tuple[FakeNode, Node]]:
    node = FakeNode()
    server = await asyncio.start_server(node.serve, "127.0.0.1", 0)
    yield node, Node("127.0.0.1", server.sockets[0].getsockname()[1])
    server.close()
    node.hang_up()


def lane_to(node: Node, *, replicas: int = 0, timeout_s: float = 5.0, password: str = "") -> Lane:
    options = LaneOptions(
        timeout_s=timeout_s, username="", password=password, tls=None, replicas=replicas
    )
    return Lane(node, options, StockMetrics(CollectorRegistry()))


async def test_calls_of_one_turn_travel_together_and_get_their_own_replies(
    fake: tuple[FakeNode, Node],
) -> None:
    fake_node, node = fake
    fake_node.answering = lambda command: b"$%d\r\n%s\r\n" % (len(command[1]), command[1])
    lane = lane_to(node)
    replies = await asyncio.gather(*(lane.call(packed(("ECHO", f"n{i}"))) for i in range(50)))
    assert replies == [f"n{i}".encode() for i in range(50)]
    await lane.close()


async def test_a_script_is_told_in_which_run_of_the_node_it_is_executed(
    fake: tuple[FakeNode, Node],
) -> None:
    fake_node, node = fake
    lane = lane_to(node, replicas=1)
    fake_node.answering = lambda command: b":1\r\n" if command[0] == b"WAIT" else b"+OK\r\n"
    for run in (b"one", b"another"):
        fake_node.run_id = run
        calls = [(packed_script(("EVALSHA", "sha", "0", "a")), True), (packed(("GET", "a")), False)]
        await asyncio.gather(*(lane.call(call, is_script=each) for call, each in calls))
        scripts = [command for command in fake_node.received if command[0] == b"EVALSHA"]
        assert scripts[-1] == [b"EVALSHA", b"sha", b"0", b"a", run]
        fake_node.hang_up()
        with suppress(LaneError):
            await lane.call(PING)
    assert [b"GET", b"a"] in fake_node.received
    await lane.close()


@pytest.mark.parametrize("says", [b"-NOPERM no\r\n", b"$4\r\nnone\r\n", b":7\r\n"])
async def test_a_node_that_does_not_say_which_run_of_it_this_is_gets_nothing(
    fake: tuple[FakeNode, Node], says: bytes
) -> None:
    fake_node, node = fake
    fake_node.run_id = None
    fake_node.answering = lambda _: says
    lane = lane_to(node)
    with pytest.raises(NotSentError, match=r"INFO server must name the node's run_id"):
        await lane.call(PING)
    assert PING_WORDS not in fake_node.received
    await lane.close()


async def test_what_queues_up_during_a_round_makes_the_next_one(
    fake: tuple[FakeNode, Node],
) -> None:
    fake_node, node = fake
    lane = lane_to(node, replicas=1)
    fake_node.answering = lambda command: b":1\r\n" if command[0] == b"WAIT" else b"+OK\r\n"
    first = lane.call(PING)
    later = []
    while not fake_node.received:
        later.append(lane.call(PING))
        await asyncio.sleep(0)
    await asyncio.gather(first, *later)
    waits = sum(command[0] == b"WAIT" for command in fake_node.received)
    assert len(fake_node.received) - waits == 1 + len(later)
    assert waits < 1 + len(later)
    await lane.close()


async def test_an_error_reply_is_a_reply_and_spares_its_neighbours(
    fake: tuple[FakeNode, Node],
) -> None:
    fake_node, node = fake
    fake_node.answering = lambda command: (
        b"-MOVED 1 h:1\r\n" if command[0] == b"GET" else b"+OK\r\n"
    )
    lane = lane_to(node)
    moved, fine = await asyncio.gather(lane.call(packed(("GET", "a"))), lane.call(PING))
    assert isinstance(moved, ReplyError)
    assert fine == b"OK"
    await lane.close()


async def test_too_few_replicas_spoil_the_round_but_not_its_error_replies(
    fake: tuple[FakeNode, Node],
) -> None:
    fake_node, node = fake
    replies = {b"WAIT": b":0\r\n", b"GET": b"-NOREPLICAS no\r\n"}
    fake_node.answering = lambda command: replies.get(command[0], b"+OK\r\n")
    lane = lane_to(node, replicas=1)
    error, written = await asyncio.gather(
        lane.call(packed(("GET", "a"))), lane.call(PING), return_exceptions=True
    )
    assert isinstance(error, ReplyError)
    assert isinstance(written, NotReplicatedError)
    await lane.close()


async def test_asking_goes_before_its_own_call_only(fake: tuple[FakeNode, Node]) -> None:
    fake_node, node = fake
    fake_node.answering = lambda command: b"+%s\r\n" % command[0]
    lane = lane_to(node)
    first, second, third = await asyncio.gather(
        lane.call(PING), lane.call(packed(("ECHO", "x")), asking=True), lane.call(PING)
    )
    assert (first, second, third) == (b"PING", b"ECHO", b"PING")
    assert [c[0] for c in fake_node.received] == [b"PING", b"ASKING", b"ECHO", b"PING"]
    await lane.close()


async def test_silence_loses_what_was_sent_and_only_fails_what_was_not(
    fake: tuple[FakeNode, Node],
) -> None:
    fake_node, node = fake
    fake_node.answering = lambda _: None
    lane = lane_to(node, timeout_s=0.2)
    sent = lane.call(PING)
    await fake_node.was_asked.wait()
    queued = lane.call(PING)
    results = await asyncio.gather(sent, queued, return_exceptions=True)
    assert [type(result) for result in results] == [LostError, NotSentError]
    fake_node.answering = lambda _: b"+PONG\r\n"
    assert await lane.call(PING) == b"PONG"
    await lane.close()


async def test_a_node_that_falls_silent_opens_the_breaker_and_keeps_nobody_waiting_who_was_not_sent(
    fake: tuple[FakeNode, Node],
) -> None:
    fake_node, node = fake
    fake_node.answering = lambda _: None
    lane = lane_to(node, timeout_s=60)
    sent = lane.call(PING)
    await fake_node.was_asked.wait()
    queued = lane.call(PING)
    with pytest.raises(NotSentError):
        await queued
    assert lane.breaker.state is BreakerState.OPEN
    assert not sent.done()
    await lane.close()


async def test_a_node_that_connects_but_slowly_is_asked_as_soon_as_it_has(
    fake: tuple[FakeNode, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    connects = asyncio.Event()
    lane = lane_to(fake[1], timeout_s=60)
    real = lane._open

    async def slowly() -> None:
        await connects.wait()
        await real()

    monkeypatch.setattr(lane, "_open", slowly)
    with pytest.raises(NotSentError):
        await lane.call(PING)
    assert lane.breaker.state is BreakerState.OPEN
    connects.set()
    async with asyncio.timeout(5):
        while not lane.breaker.has_room:  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.005)
    assert await lane.call(PING) == b"OK"
    await lane.close()


async def test_a_connection_that_breaks_is_nothing_that_the_breaker_minds(
    fake: tuple[FakeNode, Node],
) -> None:
    lane = lane_to(fake[1])
    await lane.call(PING)
    fake[0].hang_up_after = len(fake[0].received) + 1
    with pytest.raises(LostError):
        await lane.call(PING)
    assert lane.breaker.is_closed
    await lane.close()


async def test_a_connection_that_breaks_in_mid_round_loses_the_whole_round(
    fake: tuple[FakeNode, Node],
) -> None:
    fake_node, node = fake
    fake_node.hang_up_after = 2
    lane = lane_to(node)
    calls = [lane.call(PING) for _ in range(3)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(result) for result in results} == {LostError}
    await lane.close()


async def test_a_node_that_is_not_there_executes_nothing(
    fake: tuple[FakeNode, Node],
) -> None:
    closed = await asyncio.start_server(fake[0].serve, "127.0.0.1", 0)
    port = closed.sockets[0].getsockname()[1]
    closed.close()
    await closed.wait_closed()
    lane = lane_to(Node("127.0.0.1", port))
    with pytest.raises(NotSentError):
        await lane.call(PING)
    assert lane.breaker.state is BreakerState.OPEN
    await lane.close()


async def test_credentials_go_first_and_their_refusal_executes_nothing(
    fake: tuple[FakeNode, Node],
) -> None:
    fake_node, node = fake
    fake_node.answering = lambda command: (
        b"-WRONGPASS no\r\n" if command[0] == b"AUTH" else b"+OK\r\n"
    )
    lane = lane_to(node, password="x")
    with pytest.raises(NotSentError, match="credentials"):
        await lane.call(PING)
    assert [command[0] for command in fake_node.received] == [b"AUTH"]
    await lane.close()


async def test_a_closed_lane_takes_nothing(fake: tuple[FakeNode, Node]) -> None:
    lane = lane_to(fake[1])
    await lane.call(PING)
    await lane.close()
    with pytest.raises(NotSentError):
        await lane.call(PING)


async def test_closing_a_lane_that_is_connecting_leaves_no_connection_behind(
    fake: tuple[FakeNode, Node],
) -> None:
    lane = lane_to(fake[1])
    call = lane.call(PING)
    await lane.close()
    with pytest.raises(NotSentError):
        await call
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("connect ")]


async def test_what_waits_past_its_deadline_is_never_sent(fake: tuple[FakeNode, Node]) -> None:
    fake_node, node = fake
    lane = lane_to(node)
    now = asyncio.get_running_loop().time()
    late, fine = lane.call(packed(("GET", "late")), deadline=now - 1), lane.call(PING)
    assert await fine == b"OK"
    with pytest.raises(NotSentError):
        await late
    assert [command[0] for command in fake_node.received] == [b"PING"]
    await lane.close()


async def test_a_call_after_a_break_in_the_same_turn_is_answered(
    fake: tuple[FakeNode, Node],
) -> None:
    lane = lane_to(fake[1])
    await lane.call(PING)
    first = lane.call(PING)  # its round is due at the end of this turn
    lane.connection_lost(None)
    second = lane.call(PING)
    results = await asyncio.wait_for(asyncio.gather(first, second, return_exceptions=True), 5)
    assert isinstance(results[0], NotSentError)
    assert results[1] == b"OK"
    await lane.close()


async def test_a_caller_that_gave_up_disturbs_no_other(fake: tuple[FakeNode, Node]) -> None:
    fake_node, node = fake
    fake_node.answering = lambda command: b"$1\r\n%s\r\n" % command[1]
    lane = lane_to(node)
    calls = [lane.call(packed(("ECHO", str(i)))) for i in range(5)]
    calls[2].cancel()
    replies = await asyncio.gather(*calls, return_exceptions=True)
    assert [r for r in replies if isinstance(r, bytes)] == [b"0", b"1", b"3", b"4"]
    await lane.close()


@pytest.mark.parametrize("connected", [True, False])
async def test_a_silence_that_the_process_slept_through_is_not_the_nodes(
    fake: tuple[FakeNode, Node], connected: bool
) -> None:
    fake_node, node = fake
    fake_node.answering = lambda _: b"+OK\r\n"
    lane = lane_to(node)
    if connected:
        await lane.call(PING)
    first = lane.call(PING)
    await asyncio.sleep(0)  # it is on its way
    behind = lane.call(PING)
    time.sleep(STUCK_S + 2 * LATE_S)  # noqa: ASYNC251 - the whole process stands still
    assert await asyncio.gather(first, behind) == [b"OK", b"OK"]
    assert lane.breaker.is_closed
    await lane.close()


class LosesAtOnce:
    """An event loop that is so busy that a connection is lost before whoever asked for it goes on."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    def __getattr__(self, name: str) -> object:
        return getattr(self._loop, name)

    async def create_connection(self, *args: Any, **options: Any) -> Any:
        transport, protocol = await self._loop.create_connection(*args, **options)
        transport.abort()
        await asyncio.sleep(0.01)  # until the protocol has heard of it
        return transport, protocol


async def test_a_connection_that_is_lost_as_soon_as_it_is_made_keeps_no_call(
    fake: tuple[FakeNode, Node],
) -> None:
    _, node = fake
    lane = lane_to(node, timeout_s=STUCK_S * 2)
    usual, lane._loop = lane._loop, cast(Any, LosesAtOnce())
    with pytest.raises(NotSentError):
        async with asyncio.timeout(10):
            await lane.call(PING)
    await eventually(lambda: lane._connecting is None)
    lane._loop = usual
    assert await lane.call(PING) == b"OK"
    await lane.close()
