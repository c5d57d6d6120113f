"""The benchmark measures everything that it promises to; how fast is no test's business."""

import asyncio
import json
import subprocess
import sys
from typing import Any

import pytest

from inventory.v1.inventory_pb2 import BatchDeductRequest
from tests.bench import orders
from tests.bench.counters import added_up
from tests.bench.hot import name_of
from tests.bench.masters import ScriptLoad, largest_shares
from tests.bench.products import HOT, cold_ids
from tests.bench.requests import batch
from tests.bench.sales import BEGINNING, END, END_IN_DEMAND

QUICK = (sys.executable, "-m", "tests.bench", "--quick", "--json")
WITHIN_S = 240.0
pytestmark = [pytest.mark.timeout(WITHIN_S + 60.0), pytest.mark.flaky(reruns=0)]
"""All tests look at one run, and repeated looks at a bad one would each take its whole time again."""
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
    assert refused == {
        "Deduct, sold out",
        "Deduct, sold out, attempt 0",
        "BatchDeduct(500), sold out",
        "BatchDeduct(500), sold out, attempt 0",
    }


async def test_refusals_are_compared_with_an_echo(report: dict[str, Any]) -> None:
    figures = report["figures"]
    assert set(figures["Deduct, sold out"]["ratios"]) == {"echo unary"}
    assert set(figures["BatchDeduct(500), sold out"]["ratios"]) == {"echo batch"}


async def test_a_hot_product_is_sold_over_more_and_more_shards(report: dict[str, Any]) -> None:
    for shards in (1, 3, 6, 12, 24):
        ratio = report["figures"][name_of(shards)]["ratios"]["BatchDeduct(500)"]
        assert 0 < ratio["min"] <= ratio["max"]


async def test_orders_of_one_line_and_of_three_are_compared_with_deductions(
    report: dict[str, Any],
) -> None:
    for call in orders.SHAPES:
        one, three = [report["figures"][orders.name_of(call, lines)] for lines in (1, 3)]
        for figure in (one, three):
            assert figure["unit"] == "orders"
            assert set(figure["ratios"]) == {"Deduct"}
        assert three["work"]["Redis calls"]["min"] > one["work"]["Redis calls"]["max"]


async def test_sales_without_redis_are_compared_with_the_optimistic_way(
    report: dict[str, Any],
) -> None:
    for way in ("textbook", "pessimistic", "merged", "merged, 600 in flight"):
        ratio = report["figures"][f"MySQL, {way}"]["ratios"]["MySQL, optimistic"]
        assert 0 < ratio["min"] <= ratio["max"]


async def test_one_shard_is_on_one_master_and_three_are_on_all(report: dict[str, Any]) -> None:
    shares = {shards: report["figures"][name_of(shards)]["shares"] for shards in HOT}
    assert shares[1]["script time, hot alone"]["median"] > 0.9
    for each in shares.values():
        assert all(1 / 3 <= share["min"] <= share["max"] <= 1 for share in each.values())
    for shards in (3, 6, 12, 24):
        assert shares[shards]["script calls, hot alone"]["median"] < 0.6


async def test_work_is_told_for_each_request_and_a_batch_shares_it(report: dict[str, Any]) -> None:
    figures = report["figures"]
    single, batched = figures["Deduct"]["work"], figures["BatchDeduct(500)"]["work"]
    assert 0 < batched["script calls"]["median"] < 0.1 * single["script calls"]["median"]
    assert single["script calls"]["median"] <= single["Redis calls"]["median"]
    assert single["moves"]["max"] == batched["moves"]["max"] == 0
    for name in ("Deduct, sold out", "BatchDeduct(500), sold out"):
        assert figures[name]["work"]["Redis calls"]["min"] >= 0
    assert not figures["Stock.deduct in batches"]["work"]


async def test_the_end_of_a_sale_takes_moves(report: dict[str, Any]) -> None:
    work = {name: report["figures"][name]["work"] for name in (BEGINNING, END, END_IN_DEMAND)}
    assert work[END]["moves"]["min"] > work[BEGINNING]["moves"]["max"]
    assert work[END]["Redis calls"]["min"] > work[BEGINNING]["Redis calls"]["max"]
    assert all(each["Redis calls"]["min"] > 0 for each in work.values())


async def test_latencies_are_told_at_three_loads(report: dict[str, Any]) -> None:
    latencies = [figure["latency_ms"] for figure in report["figures"].values()]
    told = [latency for latency in latencies if latency]
    assert [set(latency) for latency in told] == [LATENCIES] * 3
    assert all(latency["p50"]["median"] <= latency["max"]["median"] for latency in told)


def test_counters_of_several_processes_are_added_up() -> None:
    text = (
        'inventory_deductions_total{outcome="deducted"} 3.0\n'
        'inventory_orders_total{call="reserve",outcome="held"} 9.0\n'
        'inventory_orders_total{call="confirm",outcome="confirmed"} 1.0\n'
        'inventory_shard_moves_total{step="put"} 2.0\n'
        'inventory_shard_moves_total{step="ack"} 1.0\n'
        "inventory_script_requests_count 3.0\n"
        "inventory_redis_round_calls_sum 7.0\n"
    )
    assert added_up([text, text]) == {
        "accepted": 8,
        "refused": 0,
        "script calls": 6,
        "Redis calls": 14,
        "moves": 4,
        "unavailable": 0,
    }


def test_the_busiest_master_is_found_by_what_was_added() -> None:
    before = [ScriptLoad(100, 5_000), ScriptLoad(0, 0), ScriptLoad(0, 0)]
    after = [ScriptLoad(110, 5_100), ScriptLoad(30, 500), ScriptLoad(10, 400)]
    assert largest_shares(before, after) == {"script calls": 0.6, "script time": 0.5}


def test_a_tenth_of_the_load_goes_over_all_cold_products_in_turn() -> None:
    cold = cold_ids(1_000)
    template = batch(HOT[6], 500, cold=cold)
    messages = [BatchDeductRequest.FromString(template.fresh()) for _ in range(20)]
    items = [item for message in messages for item in message.items]
    assert sorted(item.product_id for item in items if item.product_id != HOT[6]) == list(cold)
    assert len({item.request_id for item in items}) == len(items) == 10_000
    assert {item.attempt for item in items} == {1}
