"""`python -m server` as a process, with neither Redis nor MySQL: start, refusals, end."""

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import StatusCode
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from inventory.v1.inventory_pb2 import DeductRequest
from inventory.v1.inventory_pb2_grpc import InventoryServiceStub
from tests.service.conftest import CALL_S, details_of, failure_of, until

ROOT = Path(__file__).parents[2]
START_S = 30
NOWHERE = {
    "INVENTORY_REDIS_NODES": "127.0.0.1:1",
    "INVENTORY_MYSQL_URLS": "mysql://nobody:secret@127.0.0.1:1/nothing",
    "INVENTORY_GRPC_ADDRESS": "127.0.0.1:0",
    "INVENTORY_METRICS_ADDRESS": "127.0.0.1:0",
    "INVENTORY_SERVER_PROCESSES": "2",
    "INVENTORY_DRAIN_NOTICE_S": "0",
}


class Server:
    """A server process; `log` is what it has said so far."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.log = ""

    @classmethod
    async def start(cls, **settings: str) -> "Server":
        path = os.pathsep.join((str(ROOT), str(ROOT / "client"), *sys.path))
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "server",
            cwd=ROOT,
            env={**os.environ, **NOWHERE, **settings, "PYTHONPATH": path},
            stderr=asyncio.subprocess.PIPE,
        )
        return cls(process)

    async def said(self, pattern: str) -> str:
        """Read on until the log matches; returns the first group."""
        assert self.process.stderr
        async with asyncio.timeout(START_S):
            while not (found := re.search(pattern, self.log)):
                line = await self.process.stderr.readline()
                assert line, f"ended without {pattern}: {self.log}"
                self.log += line.decode()
        return found.group(1)

    async def ended(self) -> int:
        assert self.process.stderr
        async with asyncio.timeout(START_S):
            self.log += (await self.process.stderr.read()).decode()
            return await self.process.wait()


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = await Server.start()
    yield server
    if server.process.returncode is None:
        server.process.kill()
        await server.ended()


async def address_of(server: Server) -> str:
    """Once a child listens."""
    address = await server.said(r'"grpc": "([^"]+)"')
    await server.said("(redis_away)")
    async with grpc.aio.insecure_channel(address) as channel, asyncio.timeout(START_S):
        await channel.channel_ready()
    return address


async def refused_start(**settings: str) -> list[str]:
    server = await Server.start(**settings)
    assert await server.ended() == 2
    return server.log.splitlines()


async def test_without_redis_it_lives_is_not_ready_and_says_so_once(server: Server) -> None:
    async with grpc.aio.insecure_channel(await address_of(server)) as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        states = {
            name: (await health.Check(health_pb2.HealthCheckRequest(service=name))).status
            for name in ("", "live", "inventory.v1.InventoryService", "inventory.v1.AdminService")
        }
        stub: Any = InventoryServiceStub(channel)
        error = await failure_of(stub.Deduct(DeductRequest(), timeout=CALL_S))
    server.process.send_signal(signal.SIGTERM)
    assert await server.ended() == 0
    assert [name for name, state in states.items() if state == 1] == ["live"]
    assert error.code() is StatusCode.UNAVAILABLE
    assert details_of(error).info.reason == "STARTING"
    assert "secret" not in server.log


async def test_redis_that_stays_away_is_worth_one_line() -> None:
    attempts = 0

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal attempts
        attempts += 1
        await reader.read(65_536)
        writer.write(b"-LOADING not yet\r\n" * 9)
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as redis:
        port = redis.sockets[0].getsockname()[1]
        server = await Server.start(
            INVENTORY_REDIS_NODES=f"127.0.0.1:{port}", INVENTORY_SERVER_PROCESSES="1"
        )
        await server.said("(redis_away)")
        of_one_look = attempts
        await until(lambda: attempts > 2 * of_one_look)
        server.process.send_signal(signal.SIGTERM)
        assert await server.ended() == 0
    assert server.log.count("redis_away") == 1


async def test_reflection_knows_the_services(server: Server) -> None:
    address = await address_of(server)

    def services() -> set[str]:
        with grpc.insecure_channel(address) as channel:
            return set(ProtoReflectionDescriptorDatabase(channel).get_services())

    assert {
        "inventory.v1.InventoryService",
        "inventory.v1.AdminService",
        "grpc.health.v1.Health",
    } <= await asyncio.to_thread(services)


async def test_a_port_in_use_is_one_line_and_no_start(server: Server) -> None:
    address = await address_of(server)
    (line,) = await refused_start(INVENTORY_GRPC_ADDRESS=address)
    assert address in line
    assert "INVENTORY_GRPC_ADDRESS" in line


async def test_a_metrics_port_in_use_is_one_line_and_no_start(server: Server) -> None:
    metrics = await server.said(r'"metrics": \["([^"]+)"')
    await address_of(server)
    (line,) = await refused_start(INVENTORY_METRICS_ADDRESS=metrics)
    assert metrics in line
    assert "INVENTORY_METRICS_ADDRESS" in line


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("INVENTORY_GRPC_ADDRESS", "nonsense"),
        ("INVENTORY_GRPC_ADDRESS", "no-such-host.invalid:50051"),
        ("INVENTORY_DEFAULT_SHARDS", "7"),
        ("INVENTORY_SERVER_PROCESSES", "many"),
        ("INVENTORY_GRPC_TLS_CERT_FILE", "/no/such/file"),
        ("INVENTORY_MYSQL_URLS", "postgres://secret@there"),
    ],
)
async def test_a_wrong_setting_is_one_line_and_no_start(name: str, value: str) -> None:
    (line,) = await refused_start(**{name: value})
    assert name in line
    assert "secret" not in line


async def test_a_missing_certificate_is_named() -> None:
    (line,) = await refused_start(
        INVENTORY_GRPC_TLS_CERT_FILE=str(ROOT / "pyproject.toml"),
        INVENTORY_GRPC_TLS_KEY_FILE="/no/such/key",
    )
    assert "/no/such/key" in line


async def test_a_child_that_dies_is_replaced(server: Server) -> None:
    await address_of(server)
    os.kill(_a_child_of(server.process.pid), signal.SIGKILL)
    await server.said(r'"event": "(child_died)"')
    await server.said(r"child_died(?s:.*)(redis_away)")
    server.process.send_signal(signal.SIGTERM)
    assert await server.ended() == 0


async def test_children_end_with_their_parent(server: Server) -> None:
    address = await address_of(server)
    server.process.kill()
    await server.ended()  # the children share its stderr: it closes when the last of them has ended
    again = await Server.start(INVENTORY_GRPC_ADDRESS=address)
    await again.said("(redis_away)")
    again.process.send_signal(signal.SIGINT)
    assert await again.ended() == 0


@pytest.mark.parametrize("setting", ["grpc", "metrics"])
async def test_a_child_whose_port_is_taken_ends_by_itself_with_one_line(setting: str) -> None:
    ours, its = socket.socketpair()
    with socket.create_server(("127.0.0.1", 0)) as taken, ours:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        addresses = {"grpc": "127.0.0.1:0", "metrics": "127.0.0.1:0", setting: address}
        with its:
            options = ["--child", "0", "--lifeline", str(its.fileno())]
            for name, value in addresses.items():
                options += [f"--{name}", value]
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "server.serve", *options),
                cwd=ROOT,
                env={**os.environ, **NOWHERE},
                stderr=asyncio.subprocess.PIPE,
                pass_fds=[its.fileno()],
            )
        try:
            child = Server(process)
            assert await child.ended() == 2
        finally:
            if process.returncode is None:
                process.kill()
        line = ours.recv(4_096).decode()
    assert line.startswith(f"cannot listen on {address} (INVENTORY_{setting.upper()}_ADDRESS")
    assert "Traceback" not in child.log


async def test_an_interrupt_at_the_start_leaves_no_traceback() -> None:
    server = await Server.start()
    await server.said('"event": "(starting)"')
    await until(lambda: len(_children_of(server.process.pid)) == 2)
    children = _children_of(server.process.pid)
    await until(lambda: all("uvloop" in Path(f"/proc/{pid}/maps").read_text() for pid in children))
    for pid in (*children, server.process.pid):  # as Ctrl-C does
        os.kill(pid, signal.SIGINT)
    assert await server.ended() == 0
    assert "Traceback" not in server.log


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a certificate, its key, and the key once more under a password."""
    folder = tmp_path_factory.mktemp("tls")
    made = "req -x509 -newkey rsa:2048 -nodes -keyout key -out cert -subj /CN=localhost -days 1"
    locked = "rsa -aes256 -in key -out locked -passout pass:secret"
    for command in (made, locked):
        subprocess.run(["openssl", *command.split()], cwd=folder, check=True, capture_output=True)
    return folder


async def test_a_key_under_a_password_is_one_line_and_no_start(tls: Path) -> None:
    (line,) = await refused_start(
        INVENTORY_GRPC_TLS_CERT_FILE=str(tls / "cert"),
        INVENTORY_GRPC_TLS_KEY_FILE=str(tls / "locked"),
    )
    assert "INVENTORY_GRPC_TLS" in line
    assert str(tls / "locked") in line


async def test_authorities_that_are_none_are_one_line_and_no_start(tls: Path) -> None:
    (line,) = await refused_start(
        INVENTORY_GRPC_TLS_CERT_FILE=str(tls / "cert"),
        INVENTORY_GRPC_TLS_KEY_FILE=str(tls / "key"),
        INVENTORY_GRPC_TLS_CA_FILE=str(ROOT / "pyproject.toml"),
    )
    assert str(ROOT / "pyproject.toml") in line


def _children_of(pid: int) -> list[int]:
    return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def _a_child_of(pid: int) -> int:
    return _children_of(pid)[0]
