"""The account of a simulated sale; the sale itself is held in test_cli.py."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inventory.cli.simulate import drawn
from inventory.client import AsyncInventoryClient, Outcome, ProductStatus, RetryPolicy, Stock
from inventory.simulation import Sale, histogram_of, imbalances_of, latency_of, simulate
from inventory.v1 import inventory_pb2
from tests.unit.client_service import Fault, Health, Inventory, Product, serving

BEFORE = Stock(
    product_id=1, available=6, held=1, in_transit=1, buffer=2, sold=0, total=10, frozen=False,
    layout_version=1, shards=(), inexact=False, status=ProductStatus.OPEN,
)  # fmt: skip
AFTER = replace(BEFORE, available=3, sold=3)
ONE_TRY = RetryPolicy(tries_max=1)


@pytest.fixture
def inventory() -> Inventory:
    own = Inventory()
    own.products[1] = Product(total=100, available=100)
    return own


@pytest.fixture
def target(inventory: Inventory) -> Iterator[str]:
    with serving(inventory, Health()) as address:
        yield address


def test_a_sale_that_adds_up_has_no_imbalance():
    assert list(imbalances_of(BEFORE, AFTER, accepted_units=3, unknown=0)) == []


@pytest.mark.parametrize(
    ("after", "accepted_units", "unknown", "said"),
    [
        (AFTER, 4, 0, "sold before 0 + accepted 4 = 4, but sold after is 3"),
        (AFTER, 2, 0, "sold before 0 + accepted 2 = 2, but sold after is 3"),
        (replace(AFTER, available=2), 3, 0, "9 units are accounted for, of 10"),
        (replace(AFTER, total=11, buffer=3), 3, 0, "total went from 10 to 11"),
        (replace(AFTER, inexact=True), 3, 0, "cannot be trusted"),
        (AFTER, 3, 2, "2 requests are still without an answer"),
    ],
)
def test_each_kind_of_imbalance_is_said(after, accepted_units, unknown, said):
    (sentence,) = imbalances_of(BEFORE, after, accepted_units=accepted_units, unknown=unknown)
    assert said in sentence


@given(st.lists(st.floats(0.001, 1e6), min_size=1))
def test_percentiles_are_measured_values_in_order(latencies_ms):
    latency = latency_of(latencies_ms)
    found = [latency.p50_ms, latency.p90_ms, latency.p99_ms, latency.p999_ms, latency.max_ms]
    assert found == sorted(found)
    assert set(found) <= set(latencies_ms)
    assert sum(each <= latency.p50_ms for each in latencies_ms) * 2 >= len(latencies_ms)


@given(st.lists(st.floats(0.001, 1e6), min_size=1))
def test_a_histogram_counts_every_answer_once_and_draws_every_bar(latencies_ms):
    bars = histogram_of(latencies_ms)
    assert sum(bar.answers for bar in bars) == len(latencies_ms)
    assert bars[-1].upto_ms >= max(latencies_ms)
    lines = drawn(bars)
    assert all(("#" in line) == (bar.answers > 0) for line, bar in zip(lines, bars, strict=True))


async def test_a_lost_reply_is_asked_for_again_and_counted_once(target, inventory):
    inventory.faults.extend([Fault(acts_first=True)] * 5)
    async with AsyncInventoryClient(target, policy=ONE_TRY) as client:
        report = await simulate(client, Sale(product_id=1, buyers=20, concurrency=4, quantity=2))
    assert report.balanced
    assert report.accepted_units == inventory.products[1].sold == 40
    assert report.outcomes[Outcome.UNKNOWN] == 0


async def test_equal_seeds_choose_equal_duplicates(target):
    async with AsyncInventoryClient(target) as client:
        sale = Sale(product_id=1, buyers=20, duplicates=0.5, seed=7)
        first = await simulate(client, sale)
        again = await simulate(client, sale)
    assert 0 < first.duplicates < 20
    assert first.duplicates == again.duplicates == first.replayed


async def test_a_duplicate_that_took_units_again_is_found(target, inventory, monkeypatch):
    twice = inventory_pb2.DeductResponse(outcome=inventory_pb2.OUTCOME_DEDUCTED)
    monkeypatch.setattr(inventory, "_taken", lambda *_: twice)
    async with AsyncInventoryClient(target) as client:
        report = await simulate(client, Sale(product_id=1, buyers=1, duplicates=1.0))
    assert not report.balanced
    assert any("took units twice" in each for each in report.imbalances)


async def test_progress_counts_every_buyer_once(target):
    served: list[int] = []
    async with AsyncInventoryClient(target, batch=True) as client:
        sale = Sale(product_id=1, buyers=130, concurrency=7, duplicates=0.2)
        await simulate(client, sale, on_answer=served.append)
    assert sum(served) == 130


def test_a_sale_of_nothing_is_no_sale():
    with pytest.raises(ValueError, match="at least 1"):
        Sale(product_id=1, buyers=0)
