"""The proxy does to a connection what it is told, and nothing to those of replicas."""

import asyncio
from collections.abc import AsyncIterator
from random import Random

import pytest

from tests.chaos.proxy import FROM_REPLICA, HOST, Proxy, Way
from tests.waiting import eventually

SILENCE_S = 0.1
LATENCY_S = 0.2


class Echo:
    """A server that repeats each line, and keeps what it was told."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            self.heard.append(line)
            writer.write(line)
        writer.close()


class Caller:
    """One connection through the proxy."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def of(cls, proxy: Proxy) -> "Caller":
        return cls(*await asyncio.open_connection(HOST, proxy.port))

    async def ask(self, line: bytes) -> bytes:
        """b"" where the connection ends without an answer; TimeoutError where nothing happens."""
        self._writer.write(line)
        async with asyncio.timeout(10 * LATENCY_S):
            return await self._reader.readline()

    async def is_silent(self, line: bytes) -> bool:
        self._writer.write(line)
        try:
            async with asyncio.timeout(SILENCE_S):
                await self._reader.readline()
        except TimeoutError:
            return True
        return False


@pytest.fixture
async def echo() -> Echo:
    return Echo()


@pytest.fixture
async def proxy(echo: Echo) -> AsyncIterator[Proxy]:
    async with await asyncio.start_server(echo.serve, HOST, 0) as server:
        target = server.sockets[0].getsockname()
        async with Proxy(lambda: (target[0], target[1]), choice=Random(1)) as proxy:
            yield proxy


async def test_bytes_pass_in_order(proxy: Proxy) -> None:
    caller = await Caller.of(proxy)
    assert [await caller.ask(b"%d\n" % each) for each in range(20)] == [
        b"%d\n" % each for each in range(20)
    ]


async def test_replies_come_later_and_in_order(proxy: Proxy) -> None:
    caller = await Caller.of(proxy)
    proxy.latency_s = LATENCY_S
    loop = asyncio.get_running_loop()
    begun_s = loop.time()
    assert await caller.ask(b"a\nb\n") == b"a\n"
    assert loop.time() - begun_s >= LATENCY_S
    proxy.latency_s = 0.0
    assert await caller.ask(b"c\n") == b"b\n"


async def test_what_is_dropped_one_way_is_heard_and_not_answered(proxy: Proxy, echo: Echo) -> None:
    caller = await Caller.of(proxy)
    proxy.drops = frozenset({Way.REPLIES})
    assert await caller.is_silent(b"a\n")
    assert echo.heard == [b"a\n"]
    proxy.drops = frozenset({Way.REQUESTS})
    assert await caller.is_silent(b"b\n")
    assert echo.heard == [b"a\n"]


async def test_after_a_black_hole_no_connection_goes_on_in_the_middle(proxy: Proxy) -> None:
    caller = await Caller.of(proxy)
    proxy.drops = frozenset(Way)
    assert await caller.is_silent(b"a\n")
    proxy.heal()
    with pytest.raises(ConnectionError):
        await caller.ask(b"b\n")
    assert await (await Caller.of(proxy)).ask(b"c\n") == b"c\n"


async def test_a_lost_reply_takes_its_connection_along(proxy: Proxy, echo: Echo) -> None:
    caller = await Caller.of(proxy)
    proxy.lost_replies = 1.0
    assert await caller.ask(b"a\n") == b""
    assert (echo.heard, proxy.lost) == ([b"a\n"], 1)


async def test_connections_break_once_after_so_many_bytes(proxy: Proxy) -> None:
    first, second = await Caller.of(proxy), await Caller.of(proxy)
    proxy.cut_after_bytes = 3
    assert await first.ask(b"a\n") == b"a\n"
    with pytest.raises(ConnectionError):
        await second.ask(b"b\n")
    assert await (await Caller.of(proxy)).ask(b"cccc\n") == b"cccc\n"


async def test_a_reset_ends_all_connections_but_those_of_replicas(proxy: Proxy) -> None:
    caller, replica = await Caller.of(proxy), await Caller.of(proxy)
    await replica.ask(FROM_REPLICA + b"\n")
    await caller.ask(b"a\n")
    proxy.reset()
    with pytest.raises(ConnectionError):
        await caller.ask(b"b\n")
    proxy.drops = frozenset(Way)
    assert await replica.ask(b"c\n") == b"c\n"


async def test_a_port_that_refuses_takes_connections_again(proxy: Proxy) -> None:
    proxy.refuse()
    with pytest.raises(ConnectionRefusedError):
        await Caller.of(proxy)
    assert not proxy.is_open
    await proxy.open()
    assert await (await Caller.of(proxy)).ask(b"a\n") == b"a\n"


async def test_a_target_that_is_away_ends_the_connection(proxy: Proxy) -> None:
    nobody = await asyncio.start_server(lambda *_: None, HOST, 0)
    port = nobody.sockets[0].getsockname()[1]
    nobody.close()
    async with Proxy(lambda: (HOST, port)) as away:
        assert await (await Caller.of(away)).ask(b"a\n") == b""
        await eventually(lambda: away.connections == 1)
