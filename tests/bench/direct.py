"""Deductions without gRPC, in a process of its own: `python -m tests.bench.direct PLAN`."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

from prometheus_client import CollectorRegistry

from sharding.cluster import Cluster
from sharding.metrics import StockMetrics
from sharding.outcomes import Answer, Deduction, Outcome
from sharding.settings import StockSettings
from sharding.stock import Stock
from tests.bench.cpu import Watched
from tests.bench.requests import FIRST_TRY
from tests.bench.window import Collector, Measured, report_of


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectPlan:
    """What to ask of `Stock.deduct`; the cluster's nodes come from the environment."""

    product_id: int
    size: int
    """Deductions in each call."""
    in_flight: int
    """Calls at a time."""
    warm_up_s: float
    seconds: float
    watched: Watched = field(default_factory=dict)


async def measure(plan: DirectPlan) -> Measured:
    """Carry out a plan."""
    metrics = StockMetrics(CollectorRegistry())
    cluster = await Cluster.connect(StockSettings(), metrics)
    stock = Stock(cluster, metrics)
    collector: Collector[Sequence[Answer]] = Collector(plan.watched)
    ids = _Ids()
    try:
        window = await collector.measure(
            [_lane(stock, plan, ids, collector) for _ in range(plan.in_flight)],
            warm_up_s=plan.warm_up_s,
            seconds=plan.seconds,
        )
        await stock.drain()
    finally:
        await cluster.close()
    outcomes = [answer.outcome for answers in window.answers for answer in answers]
    assert set(outcomes) == {Outcome.DEDUCTED}, set(outcomes)
    return Measured(elapsed_s=window.elapsed_s, accepted=len(outcomes), cpu_s=window.cpu_s)


class _Ids:
    def __init__(self) -> None:
        self._run = secrets.token_hex(4)
        self._numbers = count()

    def fresh(self) -> str:
        return f"{self._run}{next(self._numbers):08x}"


async def _lane(
    stock: Stock, plan: DirectPlan, ids: _Ids, collector: Collector[Sequence[Answer]]
) -> None:
    while not collector.is_over:
        call = ids.fresh()
        deductions = [
            Deduction(f"{call}-{item}", plan.product_id, 1, attempt=FIRST_TRY)
            for item in range(plan.size)
        ]
        collector.take(await stock.deduct(deductions))


if __name__ == "__main__":
    report_of(DirectPlan, measure)
