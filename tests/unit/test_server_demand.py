"""Rates of requests as one server process keeps them, and what it does with them."""

import asyncio
from collections.abc import Mapping
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from ledger.errors import LedgerUnavailableError
from ledger.servers import PerServer
from server import demand
from server.demand import HALF_LIFE_S, PRODUCTS_MAX, DemandReporter, Rates
from server.metrics import Metrics
from tests.waiting import eventually


def after(*seconds: Mapping[int, int]) -> Rates:
    rates = Rates()
    for requests in seconds:
        rates.count(requests, elapsed_s=1.0)
    return rates


def test_a_steady_rate_is_found() -> None:
    assert after(*[{1: 1_000}] * 60).hottest(at_least=1) == {1: 1_000}


def test_half_of_a_rate_is_known_after_its_half_life_and_forgotten_after_another() -> None:
    seconds = int(HALF_LIFE_S)
    assert after(*[{1: 1_000}] * seconds).hottest(at_least=1) == {1: 500}
    assert after(*[{1: 1_000}] * 60, *[{}] * seconds).hottest(at_least=1) == {1: 500}


@given(st.lists(st.floats(0.01, 30), min_size=1, max_size=20))
def test_the_rate_does_not_depend_on_when_it_is_looked_at(pauses_s: list[float]) -> None:
    rates, once = Rates(), Rates()
    for pause_s in pauses_s:
        rates.count({1: int(1_000_000 * pause_s)}, elapsed_s=pause_s)
    once.count({1: int(1_000_000 * sum(pauses_s))}, elapsed_s=sum(pauses_s))
    assert rates.hottest(at_least=0)[1] == pytest.approx(once.hottest(at_least=0)[1], rel=1e-3)


def test_what_nobody_asks_for_is_forgotten() -> None:
    rates = after({1: 1_000}, *[{}] * 120)
    assert rates.hottest(at_least=0) == {}


def test_only_the_hottest_are_told() -> None:
    rates = after({product: product for product in range(1, PRODUCTS_MAX * 2)})
    hottest = rates.hottest(at_least=0)
    assert len(hottest) == PRODUCTS_MAX
    assert min(hottest) == PRODUCTS_MAX
    assert rates.hottest(at_least=1_000_000) == {}


class FakeDemand:
    def __init__(self) -> None:
        self.told: list[dict[int, int]] = []
        self.away = False

    async def report(self, server: str, rates: dict[int, int]) -> None:
        if self.away:
            raise LedgerUnavailableError("away")
        self.told.append(rates)


class FakeStock:
    def take_rates(self) -> dict[int, int]:
        return {1: 500, 2: 1}


async def test_a_ledger_that_is_away_misses_reports_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(demand, "REPORT_S", 0.01)
    registry, ledger, ended = CollectorRegistry(), FakeDemand(), asyncio.Event()
    reporter = DemandReporter(
        cast(Any, FakeStock()),
        PerServer([cast(Any, ledger)]),
        Metrics(registry),
        hot_rate_per_s=20_000,
    )
    ledger.away = True
    running = asyncio.create_task(reporter.run(ended))
    name = "inventory_demand_unreported_total"
    await eventually(lambda: (registry.get_sample_value(name) or 0) >= 2)
    ledger.away = False
    await eventually(lambda: len(ledger.told) >= 2)
    ended.set()
    await running
    assert set(ledger.told[-1]) <= {1}
