"""`inventoryctl` as the README shows it, and what it says when something is wrong."""

import asyncio
import io
import json
import shutil
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from deploy.local.waiting import until
from inventory.cli.__main__ import run
from sharding import keys
from sharding.cluster import Cluster, LaneKind
from sharding.metrics import StockMetrics
from sharding.placement import base_partition
from sharding.settings import StockSettings
from tests.acceptance.shop import Shop

PROGRAM = shutil.which("inventoryctl", path=str(Path(sys.executable).parent))
NOBODY = "127.0.0.1:9"
"""Nothing listens on the discard port here."""
REFUSED, USAGE, REJECTED, UNAVAILABLE = 1, 2, 3, 4
FROZEN_WITHIN_S = 20.0
HEALTHY_WITHIN_S = 30.0

_product_ids = map(str, count(900_001))


@dataclass(frozen=True, slots=True)
class Result:
    """What one run came to."""

    code: int
    output: str
    complaint: str

    @property
    def message(self) -> dict[str, Any]:
        """The one JSON object that it printed."""
        (line,) = self.output.splitlines()
        return dict(json.loads(line))


async def inventoryctl(target: str, *arguments: str) -> Result:
    """One command in this process: to start a process for each costs more than all that it does."""
    return await asyncio.to_thread(_run, ["--target", target, *arguments])


def _run(arguments: list[str]) -> Result:
    with redirect_stdout(io.StringIO()) as output, redirect_stderr(io.StringIO()) as complaint:
        code = run(arguments)
    return Result(code, output.getvalue(), complaint.getvalue())


async def as_process(target: str, *arguments: str) -> Result:
    """The program as `make install` put it there."""
    assert PROGRAM is not None, "the client is not installed: make install"
    command = [PROGRAM, "--target", target, *arguments]
    done = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, check=False
    )
    return Result(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def target(shop: Shop) -> str:
    return shop.stack.grpc_address()


@pytest.fixture
async def product(target: str) -> str:
    """On sale with 100 units in 6 shards, put there by the commands of the README."""
    product_id = next(_product_ids)
    put = await inventoryctl(
        target, "product", "put", product_id, "--name", "Gold watch",
        "--total", "100", "--shards", "6", "--buffer-percent", "0",
    )  # fmt: skip
    load = await inventoryctl(target, "product", "load", product_id)
    assert (put.code, load.code) == (0, 0), put.complaint + load.complaint
    return product_id


async def test_the_installed_program_prints_and_ends_as_its_commands_do(target: str) -> None:
    product_id = next(_product_ids)
    put = await as_process(target, "--json", "product", "put", product_id, "--total", "50")
    unknown = await as_process(target, "stock", next(_product_ids))
    away = await as_process(NOBODY, "stock", product_id)
    assert (put.code, put.message["total_stock"], put.complaint) == (0, 50, "")
    assert (unknown.code, away.code) == (REJECTED, UNAVAILABLE)
    for failed in (unknown, away):
        assert failed.output == ""
        assert_one_line(failed)


async def test_settings_that_are_not_named_stay_as_they_are(target: str) -> None:
    product_id = next(_product_ids)
    put = ("--json", "product", "put", product_id)
    first = await inventoryctl(
        target, *put, "--total", "50", "--name", "Watch", "--shards", "2",
        "--buffer-percent", "0", "--low-stock", "5",
    )  # fmt: skip
    changed = await inventoryctl(target, *put, "--max-per-user", "3")
    assert (first.code, changed.code) == (0, 0), first.complaint + changed.complaint
    told = {**first.message, "max_per_user": 3}
    assert {**changed.message, "version": 0} == {**told, "version": 0}


async def test_a_repeated_deduction_says_the_same_and_takes_nothing_twice(
    target: str, product: str
) -> None:
    deduct = ("--json", "deduct", product, "2", "--request-id", "r1")
    first, again = await inventoryctl(target, *deduct), await inventoryctl(target, *deduct)
    assert (first.code, again.code) == (0, 0)
    assert first.message["outcome"] == "OUTCOME_DEDUCTED"
    assert not first.message["replayed"]
    assert again.message == {**first.message, "replayed": True}
    stock = (await inventoryctl(target, "stock", product, "--json")).message
    assert (stock["available"], stock["sold"], stock["total"]) == (98, 2, 100)
    assert sum(shard["available"] for shard in stock["shards"]) == 98


async def test_the_ledgers_row_and_the_balance_of_a_simulated_sale(
    target: str, product: str
) -> None:
    show = await inventoryctl(target, "--json", "product", "show", product)
    sale = await inventoryctl(target, "--json", "simulate", product, "--buyers", "150")
    assert (show.code, sale.code) == (0, 0)
    assert show.message["status"] == "PRODUCT_STATUS_OPEN"
    assert (show.message["total_stock"], show.message["shards"]) == (100, 6)
    assert (sale.message["accepted"], sale.message["refused"]) == (100, 50)
    assert sale.message["balanced"]
    await until(
        partial(is_healthy, target), what="the doctor finds nothing", within_s=HEALTHY_WITHIN_S
    )


async def is_healthy(target: str) -> bool:
    """What other tests stopped may be on its way back."""
    doctor = await inventoryctl(target, "--json", "doctor")
    return doctor.code == 0 and bool(doctor.message["healthy"])


async def test_a_unit_from_nowhere_stops_a_sale_until_it_is_repaired(
    shop: Shop, target: str, product: str
) -> None:
    who = ("--reason", "counted", "--actor", "ann")
    before = await inventoryctl(target, "audit", product)
    assert before.code == 0, before.output
    assert "loaded 100 + restocked 0 - removed 0 = available 100 + held 0" in before.output
    await add_by_hand(shop, int(product), 1)
    found = await inventoryctl(target, "--json", "audit", product)
    (drift,) = found.message["drifts"]
    assert (found.code, found.message["balanced"], found.message["shards"]) == (REFUSED, False, 6)
    assert (drift["available"], drift["side"]) == (1, "REPAIR_SIDE_LIVE")
    assert found.message["live"]["difference"] == -1

    async def is_stopped() -> bool:
        return (await shop.caller.get_product(int(product))).frozen

    await until(is_stopped, what="the breaker has tripped", within_s=FROZEN_WITHIN_S)
    shown = await inventoryctl(target, "audit", product)
    assert shown.code == REFUSED
    assert "NOT BALANCED" in shown.output
    dry = await inventoryctl(target, "repair", product, *who)
    assert "--apply would repair 1 shard" in dry.output
    done = await inventoryctl(target, "--json", "repair", product, *who, "--apply")
    assert (done.code, done.message["applied"]) == (0, True)
    assert (await inventoryctl(target, "audit", product)).code == 0
    assert "nothing to repair" in (await inventoryctl(target, "repair", product, *who)).output
    frozen = await inventoryctl(target, "deduct", product, "1")
    resumed = await inventoryctl(target, "--json", "product", "unfreeze", product, *who)
    sold = await inventoryctl(target, "deduct", product, "1")
    assert (frozen.code, resumed.code, sold.code) == (REJECTED, 0, 0)
    again = await inventoryctl(target, "product", "freeze", product, *who)
    assert f"product {product} is FROZEN: counted" in again.output


async def add_by_hand(shop: Shop, product_id: int, units: int) -> None:
    """Change a shard as somebody who bypasses the service would."""
    settings = StockSettings.model_validate({"redis_nodes": ",".join(shop.stack.redis_nodes)})
    cluster = await Cluster.connect(settings, StockMetrics(CollectorRegistry()))
    base = base_partition(product_id, settings.partitions)
    key = keys.stock(cluster.tags[base], product_id)
    await cluster.command(base, "HINCRBY", key, "available", str(units), lane=LaneKind.WRITE)
    await cluster.close()


async def test_shards_are_changed_on_sale_and_a_request_is_resolved(
    target: str, product: str
) -> None:
    await inventoryctl(target, "deduct", product, "2", "--request-id", "r1")
    changed = await inventoryctl(target, "--json", "product", "shards", product, "12")
    resolved = await inventoryctl(target, "--json", "resolve", product, "r1")
    never = await inventoryctl(target, "resolve", product, "r2")
    late = await inventoryctl(target, "--json", "deduct", product, "2", "--request-id", "r2")
    stock = (await inventoryctl(target, "stock", product, "--json")).message
    assert (changed.code, resolved.code, never.code, late.code) == (0, 0, 0, REJECTED)
    assert len(stock["shards"]) == 12
    assert stock["layout_version"] == changed.message["layout_version"]
    assert resolved.message == {"resolution": "RESOLUTION_DEDUCTED", "quantity": 2}
    assert late.message["error"]["reason"] == "RESOLVED_NEVER"
    assert (stock["available"], stock["sold"]) == (98, 2)


async def test_people_read_sentences_and_tables(target: str, product: str) -> None:
    deducted = await inventoryctl(target, "deduct", product, "2", "--request-id", "people")
    stock = await inventoryctl(target, "stock", product)
    listed = await inventoryctl(target, "product", "list", "--after", str(int(product) - 1))
    assert "deducted 2 of product" in deducted.output
    assert "total 100 = available 98" in stock.output
    assert "Gold watch" in listed.output


async def test_a_refusal_for_shortage_has_an_exit_code_of_its_own(
    target: str, product: str
) -> None:
    refused = await inventoryctl(target, "--json", "deduct", product, "101")
    assert refused.code == REFUSED
    assert refused.message["outcome"] == "OUTCOME_INSUFFICIENT_STOCK"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("deduct", "1", "none"), USAGE),
        (("deduct", "1"), USAGE),
        (("no-such-command",), USAGE),
        (("deduct", "1", "0"), REJECTED),
        (("deduct", "-1", "1"), USAGE),
        (("deduct", "1", "1", "--request-id", "not an id"), REJECTED),
        (("product", "show", "987654321"), REJECTED),
        (("product", "load", "987654321"), REJECTED),
        (("product", "shards", "987654321", "12"), REJECTED),
        (("product", "shards", "987654321", "7"), REJECTED),
        (("product", "shards", "987654321", "many"), USAGE),
        (("resolve", "987654321", "r1"), REJECTED),
        (("product", "put", "987654321", "--total", "1", "--shards", "7"), REJECTED),
        (("stock", "987654321"), REJECTED),
    ],
    ids=str,
)
async def test_bad_input_is_one_clear_line(
    target: str, arguments: tuple[str, ...], code: int
) -> None:
    result = await inventoryctl(target, *arguments)
    assert result.code == code
    assert result.output == ""
    assert_one_line(result)
    as_json = await inventoryctl(target, "--json", *arguments)
    assert as_json.code == code
    assert as_json.message["error"]["message"]


@pytest.mark.parametrize(
    "arguments", [("stock", "1"), ("deduct", "1", "1"), ("product", "show", "1"), ("simulate", "1")]
)
async def test_a_service_that_is_not_there_is_one_clear_line(arguments: tuple[str, ...]) -> None:
    result = await inventoryctl(NOBODY, *arguments)
    assert result.code == UNAVAILABLE
    assert_one_line(result)


def assert_one_line(result: Result) -> None:
    (line,) = result.complaint.splitlines()
    assert line.startswith("inventoryctl: ")
    assert "Traceback" not in result.complaint
