"""Callers who mean no good, or do not know better: `python -m tests.chaos.flooder PLAN`.

In a process of their own, so that what is slow meanwhile is the service, and not the buyers beside it.
"""

import asyncio
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import grpc.aio

from deploy.local.ports import HOST
from tests.bench.window import report_of
from tests.chaos.processes import no_favour

CONNECTIONS = 300
SLOW_CONNECTIONS = 50
OVERSIZE_BYTES = 5 * 1024 * 1024
OVERSIZE_CALLS = 10
PINGS_A_WRITE = 1_000
PAUSE_S = 0.01
DEDUCT = "/inventory.v1.InventoryService/Deduct"

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS, PING = 4, 6
"""Types of HTTP/2 frames."""
CLIENT_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(512)


@dataclass(frozen=True, slots=True, kw_only=True)
class FloodPlan:
    """One flood on each of these ports."""

    kind: str
    ports: Sequence[int]
    seconds: float


@dataclass(slots=True, kw_only=True)
class Flooded:
    """What came of it."""

    began_s: float = 0.0
    """Of the monotonic clock, once this process had started, which takes a processor for a second."""
    codes: list[str] = field(default_factory=list)
    """How calls ended, where there were any."""


def frame(kind: int, payload: bytes) -> bytes:
    """Of HTTP/2, on the connection as a whole."""
    return struct.pack(">I", len(payload))[1:] + bytes((kind, 0)) + bytes(4) + payload


@asynccontextmanager
async def _opened(port: int, number: int) -> AsyncIterator[list[asyncio.StreamWriter]]:
    writers = [(await asyncio.open_connection(HOST, port))[1] for _ in range(number)]
    try:
        yield writers
    finally:
        for writer in writers:
            writer.close()


async def _connections(port: int, seconds: float, _told: Flooded) -> None:
    async with _opened(port, CONNECTIONS):
        await asyncio.sleep(seconds)


async def _oversize(port: int, seconds: float, told: Flooded) -> None:
    async with grpc.aio.insecure_channel(f"{HOST}:{port}") as channel:
        call = channel.unary_unary(DEDUCT)
        for _ in range(OVERSIZE_CALLS):
            try:
                await call(bytes(OVERSIZE_BYTES), timeout=seconds)
            except grpc.aio.AioRpcError as error:
                told.codes.append(error.code().name)
            else:
                told.codes.append(grpc.StatusCode.OK.name)


async def _slow(port: int, seconds: float, _told: Flooded) -> None:
    """The first bytes of HTTP/2, one after the other."""
    async with _opened(port, SLOW_CONNECTIONS) as writers:
        for byte in PREFACE:
            for writer in writers:
                with suppress(OSError):
                    writer.write(bytes((byte,)))
            await asyncio.sleep(seconds / len(PREFACE))


async def _pings(port: int, seconds: float, _told: Flooded) -> None:
    """As many as the server reads before it hangs up; what they do to it is looked at for longer."""
    end_s = time.monotonic() + seconds
    with suppress(OSError):
        async with _opened(port, 1) as (writer,):
            writer.write(PREFACE + frame(SETTINGS, b""))
            while time.monotonic() < end_s:
                writer.write(frame(PING, bytes(8)) * PINGS_A_WRITE)
                await writer.drain()
                await asyncio.sleep(PAUSE_S)
    await asyncio.sleep(end_s - time.monotonic())


async def _bad_tls(port: int, seconds: float, _told: Flooded) -> None:
    async with _opened(port, CONNECTIONS) as writers:
        for writer in writers:
            writer.write(CLIENT_HELLO)
        await asyncio.sleep(seconds)


FLOODS: Mapping[str, Callable[[int, float, Flooded], Awaitable[None]]] = {
    "connections": _connections,
    "oversize": _oversize,
    "slow HTTP/2": _slow,
    "pings": _pings,
    "bad TLS": _bad_tls,
}


async def flood(plan: FloodPlan) -> Flooded:
    """Carry out a plan."""
    no_favour()
    told = Flooded(began_s=time.monotonic())
    await asyncio.gather(*(FLOODS[plan.kind](port, plan.seconds, told) for port in plan.ports))
    return told


if __name__ == "__main__":
    report_of(FloodPlan, flood)
