"""The benchmark measures everything that it promises to; how fast is no test's business."""

import asyncio
import json
import subprocess
import sys
from typing import Any

import pytest

QUICK = (sys.executable, "-m", "tests.bench", "--quick", "--json")
WITHIN_S = 240.0
LATENCIES = {"p50", "p99", "p99.9", "max"}


@pytest.fixture(scope="module")
async def report() -> dict[str, Any]:
    run = await asyncio.to_thread(
        subprocess.run, QUICK, capture_output=True, text=True, check=False, timeout=WITHIN_S
    )
    assert run.returncode == 0, run.stderr
    return dict(json.loads(run.stdout))


async def test_every_rate_was_measured_and_has_a_range(report: dict[str, Any]) -> None:
    assert set(report) == {"machine", "settings", "figures"}
    for figure in report["figures"].values():
        rate = figure["per_s"]
        assert 0 < rate["min"] <= rate["median"] <= rate["max"]
        assert all(cpu["median"] >= 0 for cpu in figure["cpu_us"].values())


async def test_deductions_are_compared_with_an_echo_and_with_plain_redis(
    report: dict[str, Any],
) -> None:
    ratios = report["figures"]["BatchDeduct(500)"]["ratios"]
    assert set(ratios) == {"echo batch", "redis-benchmark -P 1", "redis-benchmark -P 64"}
    assert set(report["figures"]["Journal.apply"]["ratios"]) == {"bare INSERT"}


async def test_what_is_refused_is_never_counted_as_accepted(report: dict[str, Any]) -> None:
    counts = {name: figure["counts"] for name, figure in report["figures"].items()}
    refused = {name for name, what in counts.items() if what == "refused"}
    assert refused == {"Deduct, sold out", "BatchDeduct(500), sold out"}


async def test_latencies_are_told_at_three_loads(report: dict[str, Any]) -> None:
    latencies = [figure["latency_ms"] for figure in report["figures"].values()]
    told = [latency for latency in latencies if latency]
    assert [set(latency) for latency in told] == [LATENCIES] * 3
    assert all(latency["p50"]["median"] <= latency["max"]["median"] for latency in told)
