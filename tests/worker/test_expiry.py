"""The sweep of orders: partitions that fail, and the real thing."""

import asyncio
import json
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from ledger.engine.metrics import EngineMetrics
from ledger.events_feed import EventsFeed
from ledger.holds import Holds
from ledger.service_events import ServiceEventKind
from server.metrics import Metrics
from sharding.coordinator import DueOrder, DueOrders
from sharding.errors import StockUnavailableError
from sharding.metrics import StockMetrics
from sharding.ordering import PARKED, UNFINISHED, Orders
from sharding.orders import HERE, Held, Line, Order, OrderState, request_id_of
from sharding.outcomes import Outcome, Reason
from tests.ledger.conftest import fetch
from tests.ledger.streams import fresh_order_ids
from tests.waiting import eventually
from tests.worker.conftest import StartWorker, World
from worker.expiry import ORDERS_AT_ONCE, STEPS_MAX, TICK_S, Expiry
from worker.metrics import WorkerMetrics
from worker.share import Share

ALERTS = Path(__file__).parents[2] / "deploy" / "alerts.yml"
UNAUDITED = "InventoryNotAudited"
LATE, UNWRITTEN, UNDONE = (
    "InventoryOrdersExpireLate",
    "InventoryLedgerWritesFail",
    "InventoryCompensationFails",
)
PARTITIONS = 4
NOW_MS = 1_700_000_060_000


SENSELESS, HALF_TOLD = 99, 98
"""Users: one's holds contradict their shard's counts, the other's have a line that cannot be told."""
RESULTS = {SENSELESS: PARKED, HALF_TOLD: UNFINISHED}


def due_order(
    order_id: int, *, late_ms: int = 1_000, readable: bool = True, user_id: int = 0
) -> DueOrder:
    held = (Held(1, 1, HERE),)
    order = Order(
        order_id, user_id, OrderState.HELD, NOW_MS - late_ms, NOW_MS - 60_000, False, held
    )
    return DueOrder(str(order_id), NOW_MS - late_ms, order if readable else None)


class FakeOrders:
    """What a sweep needs of `Orders`, from lists; sets of partitions say what fails."""

    def __init__(self) -> None:
        self.orders: dict[int, list[DueOrder]] = {each: [] for each in range(PARTITIONS)}
        self.away: set[int] = set()
        self.broken: set[int] = set()
        self.gates: dict[int, asyncio.Event] = {}
        self.asked: list[int] = []

    async def due(self, partition: int, *, limit: int) -> DueOrders:
        self.asked.append(partition)
        if partition in self.away:
            raise StockUnavailableError(Reason.NOT_EXECUTED, f"p{partition}")
        return DueOrders(NOW_MS, tuple(self.orders[partition][:limit]))

    async def look_after(self, partition: int, due: DueOrders) -> Counter[str]:
        if partition in self.gates:
            await self.gates[partition].wait()
        if partition in self.broken:
            raise ValueError("a bug")
        del self.orders[partition][: len(due.orders)]
        return Counter(
            RESULTS.get(each.order.user_id, "expired") if each.order else PARKED
            for each in due.orders
        )


class Bench:
    """One worker's sweep on fakes."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        metrics = WorkerMetrics(self.registry)
        self.share = Share(metrics, trim_lag_s=60, partitions=PARTITIONS)
        self.share.lease(frozenset(range(PARTITIONS)), float("inf"))
        self.orders = FakeOrders()
        self.expiry = Expiry(self.share, self.orders, metrics)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        stop = asyncio.Event()
        async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
            tasks.create_task(self.expiry.run(stop))
            yield
            stop.set()

    def metric(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"inventory_worker_{name}", labels) or 0

    @property
    def expired(self) -> float:
        return self.metric("orders_swept_total", result="expired")

    @property
    def lag_s(self) -> float:
        return self.metric("orders_lag_seconds")


async def test_due_orders_of_every_partition_are_looked_after() -> None:
    bench = Bench()
    for partition in range(PARTITIONS):
        bench.orders.orders[partition] = [due_order(partition)]
    async with bench.running():
        await eventually(lambda: bench.expired == PARTITIONS)
        await eventually(lambda: bench.lag_s == 0)


async def test_a_node_that_is_away_and_one_that_hangs_delay_no_other() -> None:
    bench = Bench()
    bench.orders.away, bench.orders.broken = {0}, {1}
    gate = bench.orders.gates[2] = asyncio.Event()
    for partition in range(PARTITIONS):
        bench.orders.orders[partition] = [due_order(partition)]
    with capture_logs() as said:
        async with bench.running():
            await eventually(lambda: bench.expired == 1)
            bench.orders.orders[3].append(due_order(9))
            await eventually(lambda: bench.expired == 2)
            await eventually(lambda: bench.metric("failures_total", source="expiry") >= 2)
            bench.orders.away, bench.orders.broken = set(), set()
            gate.set()
            await eventually(lambda: bench.expired == PARTITIONS + 1)
    assert bench.metric("redis_failures_total", reason="NOT_EXECUTED") >= 1
    assert {line["partition"] for line in said} == {1}
    assert bench.orders.asked.count(2) >= 2


async def test_the_lag_is_that_of_the_oldest_order_and_grows_while_it_is_stuck() -> None:
    bench = Bench()
    bench.orders.gates[2] = asyncio.Event()
    bench.orders.orders[1] = [due_order(1, late_ms=500)]
    bench.orders.orders[2] = [due_order(2, late_ms=30_000), due_order(3, late_ms=10)]
    async with bench.running():
        await eventually(lambda: bench.lag_s >= 30)
        before = bench.lag_s
        await eventually(lambda: bench.lag_s > before)
        assert bench.lag_s < 40
        bench.share.lease(frozenset({0, 1}), float("inf"))
        await eventually(lambda: bench.lag_s == 0)
        bench.orders.gates[2].set()


@pytest.mark.parametrize("what", ["away", "broken stream", "no lease"])
async def test_a_partition_that_nobody_could_look_at_counts_as_late_though_nothing_was_due(
    what: str,
) -> None:
    bench = Bench()
    async with bench.running():
        await eventually(lambda: set(bench.orders.asked) == set(range(PARTITIONS)))
        assert bench.lag_s == 0
        match what:
            case "away":
                bench.orders.away = {1}
            case "broken stream":
                bench.share.found(1, is_open=False)
            case _:
                bench.share.leased_until_s = 0
        await eventually(lambda: bench.lag_s > 2 * TICK_S)
        assert bench.lag_s < 10
        bench.orders.away = set()
        bench.share.found(1, is_open=True)
        bench.share.leased_until_s = float("inf")
        await eventually(lambda: bench.lag_s == 0)


async def test_a_partition_that_never_answered_counts_from_when_it_came_and_until_it_goes() -> None:
    bench = Bench()
    bench.orders.away = {1}
    async with bench.running():
        await eventually(lambda: bench.lag_s > TICK_S)
        assert bench.lag_s < 10
        bench.share.lease(frozenset({0, 2}), float("inf"))
        await eventually(lambda: bench.lag_s == 0)
        bench.orders.away = set()
        bench.share.lease(frozenset(range(PARTITIONS)), float("inf"))
        await asyncio.sleep(2 * TICK_S)
        assert bench.lag_s == 0


async def test_a_tick_is_bounded_and_the_next_one_goes_on() -> None:
    bench = Bench()
    total = ORDERS_AT_ONCE * (STEPS_MAX + 1) + 1
    bench.orders.orders[0] = [due_order(order_id) for order_id in range(1, total + 1)]
    async with asyncio.TaskGroup() as tasks:
        bench.expiry._tick(tasks)
    assert bench.expired == ORDERS_AT_ONCE * STEPS_MAX
    async with bench.running():
        await eventually(lambda: bench.expired == total)


async def test_an_order_that_makes_no_sense_is_named_once() -> None:
    bench = Bench()
    with capture_logs() as said:
        async with bench.running():
            for turn in range(1, 4):
                bench.orders.orders[1] = [due_order(7, readable=False), due_order(8 + turn)]
                await eventually(
                    lambda turn=turn: bench.metric("orders_parked_total") == turn  # type: ignore[misc]
                )
    assert [(line["partition"], line["order"]) for line in said] == [(1, "7")]
    assert bench.expired == 3


async def test_holds_that_contradict_their_shard_are_counted_and_not_named_a_second_time() -> None:
    bench = Bench()
    bench.orders.orders[2] = [due_order(5, user_id=SENSELESS), due_order(6)]
    with capture_logs() as said:
        async with bench.running():
            await eventually(lambda: bench.metric("orders_parked_total") == 1)
    assert said == []
    assert bench.expired == 1


async def test_orders_with_a_line_that_cannot_be_told_are_counted_and_not_as_parked() -> None:
    bench = Bench()
    with capture_logs() as said:
        async with bench.running():
            for turn in range(1, 3):
                bench.orders.orders[2] = [due_order(5, user_id=HALF_TOLD), due_order(5 + turn)]
                await eventually(
                    lambda turn=turn: (  # type: ignore[misc]
                        bench.metric("orders_swept_total", result="unfinished") == turn
                    )
                )
    assert (bench.expired, bench.metric("orders_parked_total"), said) == (2, 0, [])


async def test_a_worker_without_leases_and_partitions_that_are_away_are_not_asked() -> None:
    bench = Bench()
    bench.share.found(2, is_open=False)
    async with bench.running():
        await eventually(lambda: set(bench.orders.asked) == {0, 1, 3})
        bench.share.leased_until_s = 0
        await asyncio.sleep(2 * TICK_S)
        asked = len(bench.orders.asked)
        await asyncio.sleep(2 * TICK_S)
        assert len(bench.orders.asked) == asked


async def test_a_worker_ends_orders_whose_time_is_over_and_the_ledger_is_told(
    opened: World, start_worker: StartWorker
) -> None:
    products = sorted([await opened.on_sale(50), await opened.on_sale(50)])
    orders = Orders(opened.stock, opened.cluster, grace_s=0.0)
    order_id, kept = fresh_order_ids(2)
    lines = [Line(product_id, 2) for product_id in products]
    for each, ttl_s in ((order_id, 1.0), (kept, 600.0)):
        answer = await orders.reserve(each, user_id=7, lines=lines, ttl_s=ttl_s)
        assert answer.outcome is Outcome.HELD
    worker = start_worker()

    async def counts() -> list[tuple[int, int, int]]:
        rows = [await opened.products.get(product_id) for product_id in products]
        return [(row.available_stock, row.held_stock, row.sold_count) for row in rows]

    async def are(expected: tuple[int, int, int]) -> bool:
        return await counts() == [expected] * 2

    await eventually(lambda: are((48, 2, 0)))
    assert (await orders.get(order_id)).outcome is Outcome.EXPIRED
    swept = 'inventory_worker_orders_swept_total{result="expired"}'

    async def is_counted() -> bool:
        return bool(await worker.metric(swept))

    await eventually(is_counted)
    assert (await orders.confirm(kept)).outcome is Outcome.CONFIRMED
    await eventually(lambda: are((48, 0, 2)))
    late = await orders.confirm(order_id)
    assert late.outcome is Outcome.RETAKEN
    await eventually(lambda: are((46, 0, 4)))
    assert await worker.stop() == 0
    await orders.drain()


async def test_callers_are_told_of_an_order_that_is_paid_when_its_units_are_gone(
    opened: World, start_worker: StartWorker
) -> None:
    product_id, feed = await opened.on_sale(3, shards=2), EventsFeed(opened.database)
    orders = Orders(opened.stock, opened.cluster, grace_s=0.0)
    late, quick, given_up = fresh_order_ids(3)
    lines = [Line(product_id, 3)]
    answer = await orders.reserve(given_up, user_id=7, lines=lines, ttl_s=600)
    assert answer.outcome is Outcome.HELD
    assert (await orders.release(given_up)).outcome is Outcome.RELEASED
    assert (await orders.reserve(late, user_id=7, lines=lines, ttl_s=1)).outcome is Outcome.HELD
    worker, cursor = start_worker(), await feed.last()
    wanted = {
        ServiceEventKind.ORDER_EXPIRED,
        ServiceEventKind.REFUND_REQUIRED,
        ServiceEventKind.SOLD_OUT,
    }

    async def told(kind: ServiceEventKind) -> bool:
        found = await feed.after(cursor, kinds=[kind], product_ids=[product_id], limit=10)
        return bool(found)

    await eventually(lambda: told(ServiceEventKind.ORDER_EXPIRED))
    answer = await orders.sell(quick, user_id=8, lines=lines)
    assert answer.outcome is Outcome.CONFIRMED
    assert (await orders.confirm(late)).outcome is Outcome.REFUND_REQUIRED
    await eventually(lambda: told(ServiceEventKind.REFUND_REQUIRED))
    await eventually(lambda: told(ServiceEventKind.SOLD_OUT))
    events = await feed.after(cursor, kinds=wanted, product_ids=[product_id], limit=100)
    of_orders = [(event.kind, event.order_id, event.user_id) for event in events if event.order_id]
    assert of_orders == [
        (ServiceEventKind.ORDER_EXPIRED, late, 7),
        (ServiceEventKind.REFUND_REQUIRED, late, 7),
    ]
    rows = await fetch(
        opened.database,
        "SELECT request_id, kind, quantity FROM inventory_log"
        " WHERE product_id = %s AND order_id = %s ORDER BY id",
        product_id,
        late,
    )
    assert rows == [
        (request_id_of(late, product_id), "reserve", -3),
        (request_id_of(late, product_id), "release", 3),
        (request_id_of(late, product_id), "refund", 0),
    ]
    assert await Holds(opened.database).page(product_id=product_id) == []
    row = await opened.products.get(product_id)
    assert (row.available_stock, row.held_stock, row.sold_count) == (0, 0, 3)
    assert await worker.stop() == 0
    await orders.drain()


def test_alerts_speak_of_figures_that_processes_have() -> None:
    registry = CollectorRegistry()
    WorkerMetrics(registry)
    EngineMetrics(registry)
    Metrics(registry)
    StockMetrics(registry)
    names = {
        sample.name + suffix
        for family in registry.collect()
        for sample in family.samples or [family]
        for suffix in ("", "_total")
    }
    wanted = set(re.findall(r"inventory_\w+", ALERTS.read_text()))
    assert wanted
    assert wanted <= names


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is not installed")
@pytest.mark.parametrize(
    ("alert", "series", "values", "alerts"),
    [
        (LATE, "inventory_worker_orders_lag_seconds", "0x20", 0),
        (LATE, "inventory_worker_orders_lag_seconds", "11x20", 1),
        (LATE, "inventory_worker_orders_lag_seconds", "_x20", 1),
        (LATE, "inventory_engine_orders_lag_seconds", "0x20", 0),
        (LATE, "inventory_engine_orders_lag_seconds", "11x20", 1),
        (LATE, "inventory_engine_orders_lag_seconds", "_x20", 1),
        (UNAUDITED, "inventory_worker_audit_last_success_timestamp_seconds", "0+15x20", 0),
        (UNAUDITED, "inventory_worker_audit_last_success_timestamp_seconds", "-301+0x20", 1),
        (UNAUDITED, "inventory_worker_audit_last_success_timestamp_seconds", "_x20", 1),
        (UNAUDITED, "inventory_engine_orders_lag_seconds", "0x20", 0),
        (UNWRITTEN, "inventory_worker_ledger_failures_in_a_row", "2x20", 0),
        (UNWRITTEN, "inventory_worker_ledger_failures_in_a_row", "0 1 2+1x20", 1),
        (UNDONE, 'inventory_worker_outbox_failing{kind="undo"}', "0x20", 0),
        (UNDONE, 'inventory_worker_outbox_failing{kind="undo"}', "0x4 1x20", 1),
    ],
)
def test_an_alert_tells_of_what_it_is_for(
    tmp_path: Path, alert: str, series: str, values: str, alerts: int
) -> None:
    """`values`: in promtool's notation, one every 15 seconds; `_`: no worker shows any."""
    case = {
        "interval": "15s",
        "input_series": [{"series": series, "values": values}],
        "promql_expr_test": [
            {
                "expr": f'count(ALERTS{{alertname="{alert}",alertstate="firing"}}) or vector(0)',
                "eval_time": "2m",
                "exp_samples": [{"labels": "{}", "value": alerts}],
            }
        ],
    }
    rules = {"rule_files": [str(ALERTS)], "evaluation_interval": "15s", "tests": [case]}
    (tmp_path / "test.yml").write_text(json.dumps(rules))
    answer = subprocess.run(
        ["promtool", "test", "rules", str(tmp_path / "test.yml")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
