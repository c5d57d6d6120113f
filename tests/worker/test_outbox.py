"""The loops that carry out what the ledger has left to do, on a stock that fails on purpose."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from prometheus_client import CollectorRegistry

from deploy.local.stack import LocalStack
from ledger.database import Database
from ledger.errors import LedgerUnavailableError
from ledger.migrate import migrate
from ledger.outbox import Outbox, OutboxKind
from ledger.products import Products
from ledger.settings import parse_url
from sharding.errors import StockUnavailableError
from sharding.events import EventId
from sharding.outcomes import Reason
from tests.ledger.conftest import create_database, fetch, new_metrics, settings_of, write
from tests.waiting import eventually
from tests.worker.conftest import PARTITIONS
from worker.metrics import WorkerMetrics
from worker.outbox import NOTHING_TO_RETURN, PAUSE_MAX_S, RETURNED, Errands, Undos, pause_s
from worker.share import Share
from worker.transfers import OpenTransfers

PRODUCT = 1


class FakeStock:
    """What the loops ask of `Stock`; sets of partitions and requests say what fails."""

    def __init__(self) -> None:
        self.away: set[int] = set()
        self.closed: set[int] = set()
        self.broken: set[int] = set()
        self.undone: list[tuple[int, str, int, EventId]] = []
        self.finished: list[tuple[int, int]] = []
        self.attempts = 0

    async def undo(
        self,
        product_id: int,
        *,
        epoch: int,
        partition: int,
        request_id: str,
        quantity: int,
        undone: EventId,
    ) -> bool:
        self._reach(partition)
        assert (product_id, epoch) == (PRODUCT, 3)
        if partition in self.closed:
            return False
        self.undone.append((partition, request_id, quantity, undone))
        return True

    async def finish_transfers(self, product_id: int, donor: int, receiver: int) -> None:
        self._reach(donor)
        assert product_id == PRODUCT
        self.finished.append((donor, receiver))

    def _reach(self, partition: int) -> None:
        self.attempts += 1
        if partition in self.away:
            raise StockUnavailableError(Reason.OUTCOME_UNKNOWN, f"p{partition}")
        if partition in self.broken:
            raise RuntimeError("a shard's key is gone")


class Bench:
    """Both loops of one worker that serves the partitions 0 to 3."""

    def __init__(self, database: Database) -> None:
        self.registry = CollectorRegistry()
        metrics = WorkerMetrics(self.registry)
        self.database = database
        self.stock = FakeStock()
        self.share = Share(metrics, trim_lag_s=60, partitions=PARTITIONS)
        outbox = Outbox(database)
        undos = Undos(self.stock, outbox, metrics)  # type: ignore[arg-type]
        transfers = OpenTransfers(self.stock, Products(database), outbox, metrics)  # type: ignore[arg-type]
        self.loops = [Errands(self.share, outbox, work, metrics) for work in (undos, transfers)]
        self.share.lease(frozenset(range(4)), float("inf"))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            for loop in self.loops:
                tasks.create_task(loop.run(stop))
            try:
                yield
            finally:
                stop.set()

    def metric(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"inventory_worker_{name}", labels) or 0

    async def add_undo(self, partition: int, request_id: str) -> None:
        await write(
            self.database,
            "INSERT INTO outbox (kind, product_id, partition_id, epoch, request_id, quantity, "
            "event_generation, event_number) VALUES ('undo', %s, %s, 3, %s, 2, 5, 100)",
            PRODUCT,
            partition,
            request_id,
        )

    async def add_transfer(self, partition: int, *, age_s: int, epoch: int = 3) -> None:
        await write(
            self.database,
            "INSERT INTO outbox (kind, product_id, partition_id, request_id, peer, epoch, transfer, "
            "create_time) "
            "VALUES ('transfer', %s, %s, '9', 9, %s, 7, CURRENT_TIMESTAMP(3) - INTERVAL %s SECOND)",
            PRODUCT,
            partition,
            epoch,
            age_s,
        )

    async def rows(self) -> list[tuple[object, ...]]:
        sql = "SELECT partition_id, state, remark, attempts FROM outbox ORDER BY id"
        return await fetch(self.database, sql)

    async def ended(self, partition: int) -> object:
        """The remark of a partition's first row, once it is done."""
        sql = "SELECT state, remark FROM outbox WHERE partition_id = %s"
        state, remark = (await fetch(self.database, sql, partition))[0]
        return remark if state == "done" else None


@pytest.fixture
async def bench(services: LocalStack) -> AsyncIterator[Bench]:
    url = await create_database(parse_url(services.mysql_url))
    database = Database(url, new_metrics())
    await migrate(database)
    await Products(database).put(settings_of(PRODUCT, 9))
    await write(database, "UPDATE product_inventory SET status = 'open', epoch = 3")
    yield Bench(database)
    await database.close()


async def test_units_of_second_effects_go_back_and_those_of_a_closed_product_stay(
    bench: Bench,
) -> None:
    await bench.add_undo(0, "a")
    await bench.add_undo(1, "b")
    bench.stock.closed = {1}
    async with bench.running():
        assert await eventually(lambda: bench.ended(0)) == RETURNED
        assert await eventually(lambda: bench.ended(1)) == NOTHING_TO_RETURN
    assert bench.stock.undone == [(0, "a", 2, EventId(5, 100))]
    assert bench.metric("undos_total", result="returned") == 1
    assert bench.metric("undos_total", result="nothing") == 1


async def test_a_shard_that_is_away_is_asked_again_and_delays_no_other(bench: Bench) -> None:
    await bench.add_undo(0, "a")
    await bench.add_undo(1, "b")
    bench.stock.away = {0}
    async with bench.running():
        await eventually(lambda: bench.ended(1))
        await eventually(lambda: bench.metric("undos_total", result="unavailable") >= 2)
        await eventually(lambda: bench.metric("undos_open") == 1)
        bench.stock.away = set()
        assert await eventually(lambda: bench.ended(0)) == RETURNED
        await eventually(lambda: bench.metric("undos_open") == 0)


async def test_work_that_was_put_off_three_times_is_shown_until_it_is_done(bench: Bench) -> None:
    await bench.add_undo(0, "a")
    await bench.add_undo(1, "b")
    await bench.add_undo(5, "c")
    await write(bench.database, "UPDATE outbox SET attempts = 2")
    bench.stock.away = {0, 1}
    async with bench.running():
        await eventually(lambda: bench.metric("outbox_failing", kind="undo") == 2)
        bench.stock.away = {0}
        await write(bench.database, "UPDATE outbox SET due_time = CURRENT_TIMESTAMP(3)")
        await eventually(lambda: bench.metric("outbox_failing", kind="undo") == 1)
    assert bench.metric("outbox_failing", kind="transfer") == 0


async def test_work_that_fails_for_any_reason_is_told_and_stops_no_loop(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    await bench.add_undo(0, "a")
    await bench.add_transfer(0, age_s=0)
    bench.stock.broken = {0}
    async with bench.running():
        await eventually(lambda: bench.metric("undos_total", result="failed"))
        await eventually(lambda: bench.metric("transfers_put_off_total", reason="failed"))
        await bench.add_undo(1, "b")
        await eventually(lambda: bench.ended(1))
    (row, *_) = await bench.rows()
    assert row[:3] == (0, "open", 'RuntimeError("a shard\'s key is gone")')
    assert capsys.readouterr().out.count("work on the live stock failed") >= 2


async def test_other_workers_partitions_and_those_that_are_away_are_left_alone(
    bench: Bench,
) -> None:
    for partition, request_id in enumerate("abcdef"):
        await bench.add_undo(partition, request_id)
    bench.share.found(2, is_open=False)
    async with bench.running():
        for partition in (0, 1, 3):
            await eventually(lambda partition=partition: bench.ended(partition))
        await eventually(lambda: bench.metric("undos_open") == 1)
    assert {row[0] for row in bench.stock.undone} == {0, 1, 3}
    bench.share.leased_until_s = 0
    bench.share.found(2, is_open=True)
    async with bench.running():
        pass
    assert bench.stock.attempts == 3


async def test_a_ledger_that_fails_is_counted_and_asked_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = 3

    async def fail(*_: object, **__: object) -> None:
        nonlocal failures
        failures -= 1
        if not failures:
            monkeypatch.undo()
        raise LedgerUnavailableError("the reply is lost")

    await bench.add_undo(0, "a")
    monkeypatch.setattr(Outbox, "done", fail)
    async with bench.running():
        assert await eventually(lambda: bench.ended(0)) == RETURNED
    assert bench.metric("failures_total", source="outbox") == 3
    assert bench.stock.attempts == 4


async def test_transfers_that_nobody_ended_are_ended_and_forgotten(bench: Bench) -> None:
    """Those of an earlier epoch are forgotten alone."""
    await bench.add_transfer(0, age_s=2)
    await bench.add_transfer(1, age_s=20)
    await bench.add_transfer(2, age_s=2, epoch=2)
    bench.stock.away = {1}
    async with bench.running():
        await eventually(lambda: bench.stock.finished == [(0, 9)])
        await eventually(lambda: bench.metric("transfers_put_off_total", reason="unavailable"))
        await eventually(lambda: bench.metric("transfers_stuck") == 1)
        bench.stock.away = set()
        await eventually(lambda: bench.metric("transfers_finished_total") == 3)
        await eventually(lambda: bench.metric("transfers_stuck") == 0)
    assert bench.stock.finished == [(0, 9), (1, 9)]
    assert await bench.rows() == []


async def test_many_rows_are_carried_out_a_bounded_number_at_a_time(bench: Bench) -> None:
    values = ",".join(f"('undo', 1, {i % 4}, 3, 'r{i}', 1)" for i in range(130))
    columns = "kind, product_id, partition_id, epoch, request_id, quantity"
    await write(bench.database, f"INSERT INTO outbox ({columns}) VALUES {values}")
    outbox = Outbox(bench.database)
    assert len(await outbox.due(OutboxKind.UNDO, range(4), limit=50)) == 50
    async with bench.running():
        await eventually(lambda: bench.metric("undos_total", result="returned") == 130)
    assert len({row[1] for row in bench.stock.undone}) == 130


def test_pauses_grow_up_to_a_bound() -> None:
    pauses = [pause_s(attempts) for attempts in (0, 1, 2, 3, 50, 10**6)]
    assert pauses == [0.5, 1.0, 2.0, 4.0, PAUSE_MAX_S, PAUSE_MAX_S]
