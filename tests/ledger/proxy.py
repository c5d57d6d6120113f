"""A TCP proxy before MySQL that loses or delays what a test wants lost."""

import asyncio
import struct
from collections.abc import Callable
from contextlib import suppress
from socket import SO_LINGER, SOL_SOCKET
from typing import Self

from tests.waiting import eventually

COMMIT = b"\x03COMMIT"
"""How the client asks for a commit; the packet's header stands before it."""


class MysqlProxy:
    """Passes bytes on until `cut_after_commit` or `stall` says otherwise."""

    def __init__(self, host: str, target_port: int, *, port: int = 0) -> None:
        self._target = (host, target_port)
        self._writers: set[asyncio.StreamWriter] = set()
        self.cut_after_commit = 0
        """So many replies to COMMIT are lost, with their connections."""
        self.cut_before_commit = 0
        """So many COMMITs never reach the server."""
        self.flowing = asyncio.Event()
        self.flowing.set()
        self.connections = 0
        self.port = port
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.shut()

    async def open(self) -> None:
        """Take connections, on the same port as before."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def shut(self) -> None:
        """Refuse connections and drop those that there are."""
        if self._server is not None:
            self._server.close()
        for writer in self._writers:
            writer.close()
        self.flowing.set()
        await eventually(lambda: not self._writers)

    def reset(self) -> None:
        """End all connections as a host does that has forgotten them: without a word, by a reset."""
        for writer in self._writers:
            at_once = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_LINGER, at_once)
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        up_reader, up_writer = await asyncio.open_connection(*self._target)
        self._writers |= {writer, up_writer}
        lost = asyncio.Event()

        def close() -> None:
            writer.close()
            up_writer.close()

        def on_request(chunk: bytes) -> bool:
            if COMMIT not in chunk:
                return True
            if self.cut_before_commit:
                self.cut_before_commit -= 1
                return False
            if self.cut_after_commit:
                self.cut_after_commit -= 1
                lost.set()
            return True

        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pass_on(reader, up_writer, on_request, close))
                both.create_task(
                    self._pass_on(up_reader, writer, lambda _: not lost.is_set(), close)
                )
        finally:
            close()
            self._writers -= {writer, up_writer}

    async def _pass_on(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        may_pass: Callable[[bytes], bool],
        close: Callable[[], None],
    ) -> None:
        with suppress(OSError):
            while chunk := await reader.read(65_536):
                await self.flowing.wait()
                if not may_pass(chunk):
                    break
                writer.write(chunk)
                await writer.drain()
        close()
