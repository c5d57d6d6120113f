"""Programs of the benchmark's own: generators of load, the echo server, a bare Redis."""

import asyncio
import csv
import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from redis.asyncio import Redis

from deploy.demo.families import family
from deploy.local.errors import StackError
from deploy.local.ports import HOST
from deploy.local.probes import accepting
from deploy.local.process import Process
from deploy.local.programs import SEARCH_PATH, Programs
from deploy.local.stack import PROJECT, LocalStack
from tests.bench.cpu import since, spent_s
from tests.bench.direct import DirectPlan
from tests.bench.load import LoadPlan
from tests.bench.window import Measured

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

STOCK = "stock"
STOCK_UNITS = 1_000_000_000_000
PLAIN_DEDUCTION = """
local left = tonumber(redis.call('GET', KEYS[1]))
if left < tonumber(ARGV[1]) then return -1 end
return redis.call('DECRBY', KEYS[1], ARGV[1])
"""
"""What a deduction is without idempotency, events, shards and a fence."""
REDIS_CLIENTS = 50


async def generated(plan: LoadPlan | DirectPlan, environment: Mapping[str, str]) -> Measured:
    """Carry out a plan in a process of its own."""
    return Measured(**json.loads(await carried_out(plan, environment)))


async def carried_out(plan: "DataclassInstance", environment: Mapping[str, str]) -> bytes:
    """What the module of a plan writes when it carries it out, in a process of its own."""
    module = type(plan).__module__
    process = _started([sys.executable, "-m", module, json.dumps(asdict(plan))], environment)
    try:
        report, complaint = await asyncio.to_thread(process.communicate)
    finally:
        if process.poll() is None:
            process.kill()
    if process.returncode:
        why = complaint.decode().strip() or f"it ended with {process.returncode}"
        raise StackError(f"{module} failed: {why}")
    return report


def _started(command: list[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Not by the loop: uvloop's fork runs gRPC's handlers, by which a child crashes now and then."""
    return subprocess.Popen(
        command, cwd=PROJECT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


async def start_echo(stack: LocalStack) -> tuple[Process, str]:
    """The echo server and its address."""
    port = _free_port()
    echo = Process(
        "echo",
        [sys.executable, "-m", "tests.bench.echo", f"{HOST}:{port}"],
        log=stack.directory / "logs" / "echo.log",
        directory=PROJECT,
        environment=stack.environment(),
        ready=accepting(port),
    )
    await echo.start()
    return echo, f"{HOST}:{port}"


class BareRedis:
    """A Redis without cluster, replicas and log, and `redis-benchmark` on it."""

    def __init__(self, programs: Programs, directory: Path) -> None:
        self._port = _free_port()
        self._benchmark = shutil.which("redis-benchmark", path=SEARCH_PATH)
        self.process = Process(
            "bare-redis",
            [str(programs.redis), "--port", str(self._port), "--bind", HOST, "--save", ""],
            log=directory / "logs" / "bare-redis.log",
            directory=directory,
            ready=accepting(self._port),
        )

    async def start(self) -> None:
        if self._benchmark is None:
            raise StackError("no redis-benchmark on this machine: run deploy/bootstrap")
        await self.process.start()
        async with Redis(host=HOST, port=self._port) as client:
            await client.set(STOCK, STOCK_UNITS)
            self._digest = str(await client.script_load(PLAIN_DEDUCTION))

    async def deductions(self, *, pipelined: int, calls: int) -> Measured:
        """That many calls of the plain script, `pipelined` of them at a time on each connection."""
        watched = {"redis": family(self.process.pid)}
        before = spent_s(watched)
        report = await self._run(
            "-c", str(REDIS_CLIENTS), "-n", str(calls), "-P", str(pipelined),
            "EVALSHA", self._digest, "1", STOCK, "1",
        )  # fmt: skip
        per_s = float(next(csv.DictReader(report.splitlines()))["rps"])
        cpu_s = since(before, spent_s(watched))
        return Measured(elapsed_s=calls / per_s, accepted=calls, cpu_s=cpu_s)

    async def _run(self, *arguments: str) -> str:
        assert self._benchmark is not None
        process = await asyncio.create_subprocess_exec(
            self._benchmark, "-h", HOST, "-p", str(self._port), "--csv", *arguments,
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        report, _ = await process.communicate()
        if process.returncode:
            raise StackError(f"redis-benchmark ended with exit code {process.returncode}")
        return report.decode()


def _free_port() -> int:
    with socket.create_server((HOST, 0)) as listener:
        return int(listener.getsockname()[1])
