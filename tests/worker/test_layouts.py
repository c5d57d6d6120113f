"""The loops that change layouts, on a stock that answers as told; the ledger is real."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from deploy.local.stack import LocalStack
from ledger.database import Database
from ledger.demand import Demand
from ledger.layouts import Cause, ChangeState, Layouts
from ledger.migrate import migrate
from ledger.products import Products
from ledger.settings import parse_url
from sharding.errors import LayoutPassedError, RetiredAwayError, StockUnavailableError
from sharding.outcomes import Reason
from sharding.placement import base_partition
from tests.ledger.conftest import create_database, new_metrics, settings_of, write
from tests.waiting import eventually
from worker import layouts as loop
from worker.demand import DemandKeeper
from worker.layouts import PASSED_MAX, Reshaper
from worker.metrics import WorkerMetrics
from worker.settings import WorkerSettings
from worker.share import Share

PARTITIONS = 48
HOT = 1_000
AWAY = StockUnavailableError(Reason.NOT_EXECUTED, "p03")
QUIET_S = 0.5
"""So long nothing may happen where nothing is to happen; several turns of a loop."""

_product_ids = count(1)


class FakeStock:
    """Answers calls by the lists, then with success, of which the ledger hears; the calls are noted."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.calls: list[tuple[object, ...]] = []
        self.changes: list[bool | Exception] = []
        self.drains: list[bool | Exception] = []
        self.levelled: list[int] = []
        self.gates: dict[int, asyncio.Event] = {}
        self.is_heard_of = True

    async def change_layout(
        self, product_id: int, *, version: int, shards: int, cause: str
    ) -> bool:
        self.calls.append((product_id, version, shards, cause))
        if product_id in self.gates:
            await self.gates[product_id].wait()
        if not _next(self.changes):
            return False
        if self.is_heard_of:
            sql = "UPDATE product_inventory SET layout_version = %s WHERE product_id = %s"
            await write(self._database, sql, version, product_id)
        return True

    async def drain_retired(self, product_id: int) -> bool:
        self.calls.append((product_id, "drain"))
        return _next(self.drains)

    async def rebalance(self, product_id: int) -> int:
        self.levelled.append(product_id)
        if self.drains:
            _next(self.drains)
        return 5


def _next(answers: list[bool | Exception]) -> bool:
    answer = answers.pop(0) if answers else True
    if isinstance(answer, Exception):
        raise answer
    return answer


class Bench:
    """Both loops of one worker that serves all partitions but those of `others`."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.registry = CollectorRegistry()
        self.stock, self.layouts = FakeStock(database), Layouts(database)
        self.demand, self.products = Demand(database), Products(database)
        self.metrics = WorkerMetrics(self.registry)
        self.share = Share(self.metrics, trim_lag_s=60, partitions=PARTITIONS)
        self.serve(range(PARTITIONS))
        self.settings = WorkerSettings(hot_rate_per_s=HOT, cold_after_s=1)

    def serve(self, partitions: Sequence[int]) -> None:
        self.share.lease(frozenset(partitions), float("inf"))

    @property
    def reshaper(self) -> Reshaper:
        stock = cast(Any, self.stock)
        return Reshaper(self.share, stock, self.layouts, self.metrics)

    @property
    def keeper(self) -> DemandKeeper:
        stock = cast(Any, self.stock)
        return DemandKeeper(
            self.share, stock, self.demand, self.layouts, self.settings, self.metrics
        )

    async def on_sale(self, *, pin: int = 0, shards: int = 6) -> int:
        product_id = next(_product_ids)
        await self.products.put(settings_of(product_id, 100, shards=pin))
        plan, _ = await self.products.begin_load(
            product_id, partitions=PARTITIONS, default_shards=shards
        )
        await self.products.finish_load(plan)
        return product_id

    async def want(self, product_id: int, shards: int, cause: Cause = Cause.OPERATOR) -> int:
        aim = await self.layouts.want(product_id, shards, cause, partitions=PARTITIONS)
        return aim.version

    async def state(self, product_id: int, version: int) -> ChangeState | None:
        return await self.layouts.state(product_id, version)

    async def reaches(self, product_id: int, version: int, state: ChangeState) -> None:
        async def reached() -> bool:
            return await self.state(product_id, version) is state

        await eventually(reached)

    def sample(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(name, labels) or 0


@pytest.fixture
async def bench(services: LocalStack) -> AsyncIterator[Bench]:
    database = Database(
        await create_database(parse_url(services.mysql_url)), new_metrics(), connections=4
    )
    await migrate(database)
    yield Bench(database)
    await database.close()


@asynccontextmanager
async def running(run: Callable[[asyncio.Event], Awaitable[None]]) -> AsyncIterator[None]:
    stop = asyncio.Event()
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        tasks.create_task(run(stop))  # type: ignore[arg-type]
        yield
        stop.set()


async def test_a_change_is_brought_about_and_the_shards_that_left_are_emptied(
    bench: Bench,
) -> None:
    product_id = await bench.on_sale()
    version = await bench.want(product_id, 12)
    bench.stock.drains = [False, False]
    async with running(bench.reshaper.run):
        await bench.reaches(product_id, version, ChangeState.DONE)
    assert bench.stock.calls == [
        *[(product_id, version, 12, "operator")] * 2,
        *[(product_id, "drain")] * 3,
    ]
    for result in ("active", "done"):
        name = "inventory_layout_changes_total"
        assert bench.sample(name, cause="operator", result=result) == 1


async def test_a_change_of_which_the_ledger_has_not_heard_is_not_done(bench: Bench) -> None:
    """Its base may be restored from the ledger, and know nothing of it."""
    product_id = await bench.on_sale()
    version = await bench.want(product_id, 12)
    bench.stock.is_heard_of = False
    again = (product_id, version, 12, "operator")

    async def is_asked_again() -> bool:
        return bench.stock.calls.count(again) >= 3

    async with running(bench.reshaper.run):
        await eventually(is_asked_again)
        assert await bench.state(product_id, version) is ChangeState.ACTIVE
        bench.stock.is_heard_of = True
        await bench.reaches(product_id, version, ChangeState.DONE)


async def test_shards_that_keep_their_units_are_told_of_the_layout_once_more(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As is one that is not there: both were restored before the ledger had heard of the layout."""
    monkeypatch.setattr(loop, "TOLD_AGAIN_S", 0.1)
    product_id = await bench.on_sale()
    version = await bench.want(product_id, 12)
    corrupt = StockUnavailableError(Reason.SHARD_CORRUPT, "its key is gone")
    bench.stock.drains = [False, corrupt, False]
    async with running(bench.reshaper.run):
        await bench.reaches(product_id, version, ChangeState.DONE)
    told, drain = (product_id, version, 12, "operator"), (product_id, "drain")
    assert bench.stock.calls.count(told) >= 4
    assert bench.stock.calls[-1] == drain


async def test_a_telling_that_failed_is_made_once_more_before_the_change_is_done(
    bench: Bench,
) -> None:
    """A shard that was shut meanwhile may be back from before the ledger had heard of the layout."""
    product_id = await bench.on_sale()
    version = await bench.want(product_id, 12)
    bench.stock.changes = [True, AWAY]
    async with running(bench.reshaper.run):
        await bench.reaches(product_id, version, ChangeState.DONE)
    told = (product_id, version, 12, "operator")
    assert bench.stock.calls == [told, told, told, (product_id, "drain")]


async def test_a_shard_that_left_and_is_away_keeps_a_change_from_its_end_and_not_the_next_one(
    bench: Bench,
) -> None:
    product_id = await bench.on_sale()
    version = await bench.want(product_id, 12)
    away = RetiredAwayError(Reason.NOT_EXECUTED, "p03")
    bench.stock.changes = [away] * 10_000
    async with running(bench.reshaper.run):
        await bench.reaches(product_id, version, ChangeState.ACTIVE)
        assert await bench.want(product_id, 24) > version
        assert (product_id, "drain") not in bench.stock.calls
        bench.stock.changes = []
        await bench.reaches(product_id, version, ChangeState.DONE)


async def test_a_product_on_its_way_to_another_shard_count_keeps_no_other_from_being_looked_after(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    changing, other = await bench.on_sale(), await bench.on_sale()
    await bench.want(changing, 12, Cause.HOT)
    # The ledger has heard of it, and nobody has said yet that it is in force.
    sql = "UPDATE product_inventory SET layout_version = 2 WHERE product_id = %s"
    await write(bench.database, sql, changing)
    asked: list[int] = []
    want = bench.layouts.want

    async def noted(product_id: int, *args: Any, **others: Any) -> Any:
        asked.append(product_id)
        return await want(product_id, *args, **others)

    monkeypatch.setattr(bench.layouts, "want", noted)
    await bench.demand.report("a", {changing: 8 * HOT, other: 1})
    async with running(bench.keeper.run):
        await eventually(lambda: changing in asked)
        before = len(bench.stock.levelled)
        await eventually(lambda: other in bench.stock.levelled[before:])
    assert not bench.sample("inventory_worker_failures_total", source="demand")


async def test_a_change_that_its_base_has_forgotten_and_cannot_make_is_rolled_back(
    bench: Bench,
) -> None:
    product_id = await bench.on_sale()
    version = await bench.want(product_id, 12, Cause.HOT)
    bench.stock.is_heard_of, bench.stock.changes = False, [True, False]
    async with running(bench.reshaper.run):
        await bench.reaches(product_id, version, ChangeState.ROLLED_BACK)


async def test_a_stock_that_is_away_is_asked_again(bench: Bench) -> None:
    product_id = await bench.on_sale()
    version = await bench.want(product_id, 12)
    bench.stock.changes, bench.stock.drains = [AWAY, AWAY], [AWAY]
    with capture_logs() as said:
        async with running(bench.reshaper.run):
            await bench.reaches(product_id, version, ChangeState.DONE)
    stuck = [line for line in said if line["event"] == "layout change is stuck"]
    assert [line["state"] for line in stuck] == ["wanted"]
    assert len(bench.stock.calls) == 6


async def test_a_change_that_was_rolled_back_is_not_driven_again(bench: Bench) -> None:
    product_id = await bench.on_sale()
    version = await bench.want(product_id, 12, Cause.HOT)
    bench.stock.changes = [False]
    async with running(bench.reshaper.run):
        await bench.reaches(product_id, version, ChangeState.ROLLED_BACK)
        await asyncio.sleep(QUIET_S)
    assert bench.stock.calls == [(product_id, version, 12, "hot")]


async def test_a_pin_that_was_rolled_back_is_wanted_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "PIN_PAUSE_S", 0)
    monkeypatch.setattr(loop, "PINS_EVERY_S", 0)
    product_id = await bench.on_sale()
    version = await bench.want(product_id, 12)
    bench.stock.changes = [False, False]
    async with running(bench.reshaper.run):
        await bench.reaches(product_id, version + 4, ChangeState.DONE)
    changes = [call for call in bench.stock.calls if len(call) > 2]
    assert list(dict.fromkeys(call[1] for call in changes)) == [version, version + 2, version + 4]


async def test_a_change_that_comes_too_late_is_given_up_in_the_end(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "TICK_S", 0.01)
    product_id = await bench.on_sale()
    version = await bench.want(product_id, 12)
    bench.stock.changes = [LayoutPassedError("has layout 9")] * (PASSED_MAX + 1)
    async with running(bench.reshaper.run):
        await bench.reaches(product_id, version, ChangeState.ROLLED_BACK)
    assert len(bench.stock.calls) == PASSED_MAX
    assert (await bench.products.begin_close(product_id)).status.value == "closing"


async def test_products_of_others_are_left_to_them(bench: Bench) -> None:
    mine, others = await bench.on_sale(), await bench.on_sale()
    bench.serve([base_partition(mine, PARTITIONS)])
    assert base_partition(mine, PARTITIONS) != base_partition(others, PARTITIONS)
    version = await bench.want(others, 12)
    own = await bench.want(mine, 12)
    async with running(bench.reshaper.run):
        await bench.reaches(mine, own, ChangeState.DONE)
    assert await bench.state(others, version) is ChangeState.WANTED
    assert {call[0] for call in bench.stock.calls} == {mine}


async def test_a_worker_without_leases_changes_nothing(bench: Bench) -> None:
    product_id = await bench.on_sale()
    version = await bench.want(product_id, 12)
    bench.share.leased_until_s = 0
    async with running(bench.reshaper.run):
        await asyncio.sleep(QUIET_S)
    assert await bench.state(product_id, version) is ChangeState.WANTED


async def test_one_product_that_hangs_delays_no_other(bench: Bench) -> None:
    hanging, other = await bench.on_sale(), await bench.on_sale()
    gate = bench.stock.gates[hanging] = asyncio.Event()
    first, version = await bench.want(hanging, 12), await bench.want(other, 12)
    async with running(bench.reshaper.run):
        await bench.reaches(other, version, ChangeState.DONE)
        assert await bench.state(hanging, first) is ChangeState.WANTED
        assert bench.stock.calls.count((hanging, first, 12, "operator")) == 1
        gate.set()
        await bench.reaches(hanging, first, ChangeState.DONE)


async def test_nothing_is_emptied_while_a_product_is_closed(bench: Bench) -> None:
    product_id = await bench.on_sale()
    version = await bench.want(product_id, 12)
    await bench.layouts.mark(product_id, version, ChangeState.ACTIVE)
    row = await bench.products.begin_close(product_id)
    async with running(bench.reshaper.run):
        await asyncio.sleep(QUIET_S)
        assert await bench.state(product_id, version) is ChangeState.ACTIVE
        await bench.products.finish_close(product_id, epoch=row.epoch)
        await bench.reaches(product_id, version, ChangeState.DONE)
    assert bench.stock.calls == []


async def test_two_workers_at_once_count_a_change_once(bench: Bench) -> None:
    product_id = await bench.on_sale()
    version = await bench.want(product_id, 12)
    async with running(bench.reshaper.run), running(bench.reshaper.run):
        await bench.reaches(product_id, version, ChangeState.DONE)
    name = "inventory_layout_changes_total"
    assert bench.sample(name, cause="operator", result="done") == 1


async def test_a_hot_product_is_to_have_more_shards(bench: Bench) -> None:
    product_id, pinned = await bench.on_sale(), await bench.on_sale(pin=6)
    await bench.demand.report("a", dict.fromkeys((product_id, pinned), 4 * HOT))
    await bench.demand.report("b", dict.fromkeys((product_id, pinned), 4 * HOT))

    async def wanted() -> bool:
        return bool(await bench.layouts.open_changes())

    async with running(bench.keeper.run):
        await eventually(wanted)
        await eventually(lambda: pinned in bench.stock.levelled)
    (found,) = await bench.layouts.open_changes()
    assert found.change[:4] == (product_id, 2, 16, Cause.HOT)


async def test_a_cold_product_is_to_have_fewer_shards_after_a_while(bench: Bench) -> None:
    product_id = await bench.on_sale(shards=24)
    sql = (
        "UPDATE product_inventory SET update_time = NOW(3) - INTERVAL 1 HOUR WHERE product_id = %s"
    )
    await write(bench.database, sql, product_id)

    async def wanted() -> bool:
        return bool(await bench.layouts.open_changes())

    async with running(bench.keeper.run):
        await eventually(wanted)
    (found,) = await bench.layouts.open_changes()
    assert found.change[:4] == (product_id, 2, 6, Cause.COLD)


async def test_a_product_that_was_changed_often_stays_as_it_is(bench: Bench) -> None:
    product_id = await bench.on_sale()
    for turn in range(6):
        version = await bench.want(product_id, (12, 6)[turn % 2], Cause.HOT)
        await bench.layouts.mark(product_id, version, ChangeState.ACTIVE)
    sql = "UPDATE product_inventory SET layout_version = %s WHERE product_id = %s"
    await write(bench.database, sql, version, product_id)
    name = "inventory_layout_changes_held_back_total"
    with capture_logs() as said:
        async with running(bench.keeper.run):
            async with asyncio.timeout(20):
                while bench.sample(name) < 2:
                    await bench.demand.report("a", {product_id: 8 * HOT})
                    await asyncio.sleep(0.1)
    assert [line["event"] for line in said if line["log_level"] == "warning"] == [
        "layout stays: it was changed too often lately"
    ]
    assert await bench.state(product_id, version + 2) is None


async def test_shards_that_do_not_answer_are_levelled_another_time(bench: Bench) -> None:
    first, second = await bench.on_sale(), await bench.on_sale()
    bench.stock.drains = [AWAY]
    async with running(bench.keeper.run):
        await eventually(lambda: {first, second} <= set(bench.stock.levelled))
        await eventually(lambda: len(bench.stock.levelled) >= 4)
    assert bench.sample("inventory_worker_failures_total", source="rebalance") == 1
    assert bench.sample("inventory_levelled_units_total") == (len(bench.stock.levelled) - 1) * 5


async def test_a_ledger_that_is_away_stops_neither_loop(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = parse_url("mysql://nobody:x@127.0.0.1:9/nothing")
    away = Database(nowhere, new_metrics(), connections=1, connect_timeout_ms=100)
    bench.layouts, bench.demand = Layouts(away), Demand(away)
    async with running(bench.reshaper.run), running(bench.keeper.run):
        for source in ("layout", "demand"):
            name = "inventory_worker_failures_total"
            await eventually(lambda name=name, source=source: bench.sample(name, source=source))
    assert bench.stock.calls == []
