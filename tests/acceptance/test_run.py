"""`python -m deploy.local run --json` and `python -m deploy.demo`, as scripts start them."""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from deploy.demo.families import family
from inventory.client import AsyncInventoryClient, NewProduct

RUN = (sys.executable, "-m", "deploy.local", "run", "--json")
DEMO = (sys.executable, "-m", "deploy.demo")
READY_WITHIN_S, GONE_WITHIN_S, DEMO_WITHIN_S = 60.0, 40.0, 120.0
PRODUCT_ID = 5


def alive(pids: Iterable[int]) -> list[int]:
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


async def ready_line(run: subprocess.Popen[str]) -> dict[str, Any]:
    assert run.stdout is not None
    async with asyncio.timeout(READY_WITHIN_S):
        return dict(json.loads(await asyncio.to_thread(run.stdout.readline)))


def started(directory: Path) -> subprocess.Popen[str]:
    command = [*RUN, "--dir", str(directory), "--processes", "2", "--workers", "2"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


async def test_a_stack_that_runs_takes_calls_and_sigterm_leaves_no_process(tmp_path: Path) -> None:
    run = started(tmp_path)
    try:
        endpoints = await ready_line(run)
        everything = family(run.pid)
        await sell_one(endpoints["grpc"])
        for address in endpoints["metrics"]:
            assert "inventory_" in await asyncio.to_thread(fetched, address)
        run.send_signal(signal.SIGTERM)
        rest, complaint = await asyncio.to_thread(run.communicate, timeout=GONE_WITHIN_S)
    finally:
        run.kill()
        run.communicate()
    assert run.returncode == 0, complaint
    assert rest == ""
    assert alive(everything) == []
    assert len(endpoints["metrics"]) == 4


async def sell_one(target: str) -> None:
    async with AsyncInventoryClient(target) as client:
        await client.put_product(NewProduct(product_id=PRODUCT_ID, total_stock=1, buffer_percent=0))
        await client.load([PRODUCT_ID])
        assert (await client.deduct(PRODUCT_ID, 1)).accepted
        assert not (await client.deduct(PRODUCT_ID, 1)).accepted


def fetched(address: str) -> str:
    with urlopen(address, timeout=5) as reply:
        return str(reply.read().decode())


async def test_the_demo_ends_balanced() -> None:
    demo = await asyncio.to_thread(
        subprocess.run,
        [*DEMO, "--units", "3000", "--seed", "7"],
        capture_output=True,
        text=True,
        check=False,
        timeout=DEMO_WITHIN_S,
    )
    assert demo.returncode == 0, demo.stdout + demo.stderr
    assert "seed 7" in demo.stdout
    assert "killed server process" in demo.stdout
    assert "killed worker" in demo.stdout
    assert "killed Redis master" in demo.stdout
    assert "is back, as a replica" in demo.stdout
    assert "OFF" not in demo.stdout
    assert "balanced" in demo.stdout
