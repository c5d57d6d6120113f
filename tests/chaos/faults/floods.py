"""Callers who mean no good, or do not know better, beside the healthy ones."""

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import grpc.aio

from deploy.local.ports import HOST
from tests.acceptance.shop import SERVERS
from tests.chaos.faults.register import fault
from tests.chaos.scene import Scene

FLOOD_S = 3.0
CONNECTIONS = 300
SLOW_CONNECTIONS = 50
OVERSIZE_BYTES = 5 * 1024 * 1024
OVERSIZE_CALLS = 10
PINGS_A_WRITE = 1_000
DEDUCT = "/inventory.v1.InventoryService/Deduct"

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS, PING = 4, 6
"""Types of HTTP/2 frames."""
CLIENT_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(512)


def frame(kind: int, payload: bytes) -> bytes:
    """Of HTTP/2, on the connection as a whole."""
    return struct.pack(">I", len(payload))[1:] + bytes((kind, 0)) + bytes(4) + payload


@fault("F33", "floods of connections, oversize, slow HTTP/2, pings, bad TLS")
async def floods(scene: Scene) -> None:
    async with scene.selling():
        for flood in (_connections, _oversize, _slow, _pings, _bad_tls):
            since_s = scene.broke()
            ports = [scene.stage.stack.ports.grpc(server) for server in SERVERS]
            async with asyncio.timeout(10 * FLOOD_S):
                await asyncio.gather(*(flood(scene, port) for port in ports))
            scene.expect_selling(scene.all_shards, since_s)
            scene.expect_as_quick(scene.all_shards, since_s, times=3.0)
        scene.broke()


@asynccontextmanager
async def _opened(port: int, number: int) -> AsyncIterator[list[asyncio.StreamWriter]]:
    writers = [(await asyncio.open_connection(HOST, port))[1] for _ in range(number)]
    try:
        yield writers
    finally:
        for writer in writers:
            writer.close()


async def _connections(scene: Scene, port: int) -> None:
    async with _opened(port, CONNECTIONS):
        await asyncio.sleep(FLOOD_S)


async def _oversize(scene: Scene, port: int) -> None:
    async with grpc.aio.insecure_channel(f"{HOST}:{port}") as channel:
        call = channel.unary_unary(DEDUCT)
        for _ in range(OVERSIZE_CALLS):
            try:
                await call(bytes(OVERSIZE_BYTES), timeout=FLOOD_S)
            except grpc.aio.AioRpcError as error:
                code = error.code()
            else:
                code = grpc.StatusCode.OK
            scene.expect(
                code is grpc.StatusCode.RESOURCE_EXHAUSTED, f"too large a message: {code.name}"
            )


async def _slow(scene: Scene, port: int) -> None:
    """The first bytes of HTTP/2, one after the other."""
    async with _opened(port, SLOW_CONNECTIONS) as writers:
        for byte in PREFACE:
            for writer in writers:
                with suppress(OSError):
                    writer.write(bytes((byte,)))
            await asyncio.sleep(FLOOD_S / len(PREFACE))


async def _pings(scene: Scene, port: int) -> None:
    """As many as the server reads before it hangs up."""
    async with _opened(port, 1) as (writer,):
        end_s = scene.stage.now_s + FLOOD_S
        with suppress(OSError):
            writer.write(PREFACE + frame(SETTINGS, b""))
            while scene.stage.now_s < end_s:
                writer.write(frame(PING, bytes(8)) * PINGS_A_WRITE)
                await writer.drain()
                await asyncio.sleep(0.01)


async def _bad_tls(scene: Scene, port: int) -> None:
    async with _opened(port, CONNECTIONS) as writers:
        for writer in writers:
            writer.write(CLIENT_HELLO)
        await asyncio.sleep(FLOOD_S)
