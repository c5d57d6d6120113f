"""A TCP proxy that delays, loses or cuts what a test wants delayed, lost or cut."""

import asyncio
import struct
from asyncio import StreamReader, StreamWriter
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from functools import partial
from math import inf
from random import Random
from socket import SO_LINGER, SOL_SOCKET
from typing import Self

from tests.waiting import eventually

HOST = "127.0.0.1"
CHUNK_BYTES = 65_536
CHUNKS_WAITING_MAX = 1_000
COMMIT = b"\x03COMMIT"
"""How a MySQL client asks for a commit; the packet's header stands before it."""
FROM_REPLICA = b"REPLCONF"
"""What a Redis replica says first to its master, and no client ever."""

Target = Callable[[], tuple[str, int]]


class Way(Enum):
    """The two directions of a connection."""

    REQUESTS = "requests"
    REPLIES = "replies"


class Link:
    """One connection through the proxy: both of its halves."""

    def __init__(self, *halves: StreamWriter) -> None:
        self.halves = halves
        self.spared = False
        """Nothing is done to it: it is a replica's."""
        self.torn = False
        """Bytes of it were lost, so what comes after them means nothing."""
        self.loses_replies = False

    def close(self) -> None:
        for half in self.halves:
            half.close()

    def reset(self) -> None:
        """End it as a host does that has forgotten it: without a word, by a reset."""
        for half in self.halves:
            at_once = struct.pack("ii", 1, 0)
            if socket := half.get_extra_info("socket"):  # none where uvloop has closed it already
                with suppress(OSError):  # or where it is just being closed
                    socket.setsockopt(SOL_SOCKET, SO_LINGER, at_once)
            half.transport.abort()


class Proxy:
    """Passes bytes on, but for what its fields say. Links of replicas are left alone."""

    def __init__(self, target: Target, *, port: int = 0, choice: Random | None = None) -> None:
        """`target` is asked for host and port at each connection; port 0: any free one, then kept."""
        self._target = target
        self._choice = choice or Random(0)
        self._links: set[Link] = set()
        self._server: asyncio.Server | None = None
        self.port = port
        self.connections = 0
        self.flowing = asyncio.Event()
        self.flowing.set()
        self.heal()

    def heal(self) -> None:
        """Pass everything on again; connections that lost bytes end."""
        self.latency_s = 0.0
        """By so much later do replies arrive."""
        self.drops: frozenset[Way] = frozenset()
        """What is sent these ways is never seen again; both of them make a black hole."""
        self.lost_replies = 0.0
        """The share of replies that are lost, each with its connection."""
        self.cut_after_bytes: float = inf
        """So many bytes of replies later all connections break, once."""
        self.lost = 0
        """Replies that were."""
        for link in self._links:
            if link.torn:
                link.reset()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.shut()

    async def open(self) -> None:
        """Take connections, on the same port as before."""
        self._server = await asyncio.start_server(self._serve, HOST, self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    @property
    def is_open(self) -> bool:
        return self._server is not None and self._server.is_serving()

    def refuse(self) -> None:
        """Take no more connections, as the port of a program that has died."""
        if self._server is not None:
            self._server.close()

    async def shut(self) -> None:
        """Refuse connections and drop those that there are."""
        self.refuse()
        for link in self._links:
            link.close()
        self.flowing.set()
        await eventually(lambda: not self._links)

    def reset(self) -> None:
        """End all connections by a reset."""
        for link in self._links:
            if not link.spared:
                link.reset()

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        self.connections += 1
        try:
            up_reader, up_writer = await asyncio.open_connection(*self._target())
        except OSError:
            writer.close()
            return
        link = Link(writer, up_writer)
        self._links.add(link)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._carry(link, Way.REQUESTS, reader, up_writer))
                both.create_task(self._carry(link, Way.REPLIES, up_reader, writer))
        finally:
            link.close()
            self._links.discard(link)

    async def _carry(
        self, link: Link, way: Way, reader: StreamReader, writer: StreamWriter
    ) -> None:
        delivery = _Delivery(writer)
        with suppress(OSError):
            while chunk := await reader.read(CHUNK_BYTES):
                await self.flowing.wait()
                link.spared |= way is Way.REQUESTS and FROM_REPLICA in chunk
                if link.spared or not self._is_dropped(link, way):
                    if not link.spared and not self._may_pass(link, way, chunk):
                        break
                    await delivery.take(chunk, self._due_s(link, way))
        await delivery.end()
        link.close()

    def _is_dropped(self, link: Link, way: Way) -> bool:
        link.torn |= way in self.drops
        return way in self.drops

    def _due_s(self, link: Link, way: Way) -> float:
        if way is Way.REQUESTS or link.spared or not self.latency_s:
            return 0.0
        return asyncio.get_running_loop().time() + self.latency_s

    def _may_pass(self, link: Link, way: Way, chunk: bytes) -> bool:
        """Whether the link goes on with this chunk; if not, it ends without it."""
        if way is Way.REQUESTS:
            return True
        if self.lost_replies and self._choice.random() < self.lost_replies:
            self.lost += 1
            return False
        self.cut_after_bytes -= len(chunk)
        if self.cut_after_bytes <= 0:
            self.cut_after_bytes = inf
            self.reset()
            return False
        return True


class _Delivery:
    """Chunks on their way, in order; what is due at once and overtakes nothing is written at once."""

    def __init__(self, writer: StreamWriter) -> None:
        self._writer = writer
        self._late: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(CHUNKS_WAITING_MAX)
        self._under_way = 0
        self._task: asyncio.Task[None] | None = None

    async def take(self, chunk: bytes, due_s: float) -> None:
        if not due_s and not self._under_way:
            await self._write(chunk)
            return
        self._task = self._task or asyncio.create_task(self._run())
        self._under_way += 1
        await self._late.put((due_s, chunk))

    async def end(self) -> None:
        """Return when everything was written."""
        if self._task is not None:
            await self._late.join()
            self._task.cancel()

    async def _run(self) -> None:
        """A task of its own, so that a delay is none of the rate."""
        loop = asyncio.get_running_loop()
        while True:
            due_s, chunk = await self._late.get()
            if due_s > loop.time():
                await asyncio.sleep(due_s - loop.time())
            await self._write(chunk)
            self._under_way -= 1
            self._late.task_done()

    async def _write(self, chunk: bytes) -> None:
        """To nobody if nobody listens any more."""
        with suppress(OSError, RuntimeError):  # the latter of uvloop, where it was closed already
            self._writer.write(chunk)
            await self._writer.drain()


class MysqlProxy(Proxy):
    """Loses COMMITs or the replies to them, too."""

    def __init__(self, host: str, target_port: int, *, port: int = 0) -> None:
        super().__init__(partial(_same, (host, target_port)), port=port)
        self.cut_after_commit = 0
        """So many replies to COMMIT are lost, with their connections."""
        self.cut_before_commit = 0
        """So many COMMITs never reach the server."""

    def _may_pass(self, link: Link, way: Way, chunk: bytes) -> bool:
        if way is Way.REPLIES:
            return not link.loses_replies and super()._may_pass(link, way, chunk)
        if COMMIT in chunk and self.cut_before_commit:
            self.cut_before_commit -= 1
            return False
        if COMMIT in chunk and self.cut_after_commit:
            self.cut_after_commit -= 1
            link.loses_replies = True
        return True


def _same(address: tuple[str, int]) -> tuple[str, int]:
    return address
