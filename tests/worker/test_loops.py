"""The worker's loops against partitions that fail on purpose; the ledger is real."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from ledger.checkpoints import Checkpoints
from ledger.database import Database, Transaction
from ledger.errors import LedgerUnavailableError
from ledger.events_feed import EventsFeed
from ledger.failpoints import Failpoints
from ledger.freezes import Freezes
from ledger.journal import Journal
from ledger.merge import Chunk
from ledger.migrate import migrate
from ledger.openings import Openings
from ledger.products import Products
from ledger.raw_events import RawEvents
from ledger.servers import PerServer
from ledger.service_events import Notice, ServiceEventKind, publish
from sharding.errors import NotOpenableError, StockUnavailableError
from sharding.events import BEFORE_ALL, EventId
from sharding.lane import Node
from sharding.outcomes import Reason
from sharding.partitions import NOTHING_APPLIED, Checkpoint, Entry, PartitionHead, StreamState
from sharding.restoring import checkpoint_at
from tests.ledger.conftest import (
    create_database,
    fetch,
    new_metrics,
    settings_of,
    write,
)
from tests.ledger.streams import FakeStream, fresh_request_ids
from tests.waiting import eventually
from tests.worker.conftest import World
from worker.applier import Applier
from worker.degraded import Replicas
from worker.drain import Drain
from worker.freezes import PartitionFreezes
from worker.keeper import Keeper
from worker.metrics import WorkerMetrics
from worker.opening import PASSING_PAUSE_MAX_S, PAUSE_MAX_S, Opener, _Refusal
from worker.restoring import Case
from worker.settings import WorkerSettings
from worker.share import Share, Shares
from worker.upkeep import LedgerUpkeep

PARTITIONS = 4
PRODUCT = 1


class FakePartitions:
    """What `Partitions` does, from lists; sets of partitions say what fails."""

    record_ttl_s = 3_600

    def __init__(self) -> None:
        self.streams = [FakeStream(partition) for partition in range(PARTITIONS)]
        self.entries: list[list[Entry]] = [[] for _ in range(PARTITIONS)]
        self.away: set[int] = set()
        self.closed: set[int] = set()
        self.unreplicated: set[int] = set()
        self.without_the_last: set[int] = set()
        self.learned: Mapping[int, Checkpoint] = {}
        self.openable: set[int] = set()
        self.seen_last: dict[int, EventId] = {}
        self.told_last: dict[int, EventId] = {}
        self.opening_attempts = 0
        self.read_attempts = 0
        self.applied: dict[int, int] = {}
        self.notes = 0
        self.behind: set[int] = set()
        self.nodes: dict[int, Node] = {}
        self.moved = asyncio.Event()

    def _reach(self, partition: int) -> None:
        if partition in self.away:
            raise StockUnavailableError(Reason.NOT_EXECUTED, f"p{partition}")

    async def head(self, partition: int, *, opening: int = 0) -> PartitionHead:
        self._reach(partition)
        stream = self.streams[partition]
        reason = "NEW_OWNER" if partition in self.closed else ""
        if not reason and stream.generation < opening:
            reason = "WENT_BACK"
        last = EventId(stream.generation, stream.number)
        applied, is_behind = self.applied.get(partition), partition in self.behind
        state = StreamState(last, applied, is_behind=is_behind)
        return PartitionHead(not reason, reason, *last, PARTITIONS, [state])

    async def read(self, partition: int, *, ledger: int, after: EventId, count: int) -> list[Entry]:
        self.read_attempts += 1
        self._reach(partition)
        return [entry for entry in self.entries[partition] if entry.id > after][:count]

    async def open(
        self,
        partition: int,
        checkpoints: Sequence[Checkpoint],
        *,
        opening: int,
        degraded: bool,
        judged: int,
    ) -> PartitionHead:
        self.opening_attempts += 1
        if partition not in self.openable:
            raise NotOpenableError(f"partition {partition}: behind")
        stream = self.streams[partition]
        stream.generation, stream.number = opening, stream.number + 1
        self.closed.discard(partition)
        # Before the answer is here, the worker's own drain may have read the opening.
        self.seen_last[partition] = EventId(opening, stream.number)
        return (await self.head(partition))._replace(was_opened=True)

    async def replicated(self, partition: int, *, ledger: int, last: Checkpoint) -> bool:
        self._reach(partition)
        if partition in self.unreplicated:
            raise StockUnavailableError(Reason.NOT_REPLICATED, f"p{partition}")
        has_it = last in map(checkpoint_at, self.entries[partition])
        return has_it and partition not in self.without_the_last

    async def note_applied(self, partition: int, applied: EventId, *, ledger: int) -> None:
        self.notes += 1
        self._reach(partition)
        self.applied[partition] = applied.number

    async def trim(self, partition: int, *, ledger: int, below: EventId) -> int:
        return 0

    def node(self, partition: int) -> Node:
        return self.nodes.get(partition, ("127.0.0.1", 1))

    def seen(self, partition: int) -> EventId:
        return self.seen_last.get(partition, BEFORE_ALL)

    async def told(self, partition: int) -> EventId:
        return self.told_last.get(partition, BEFORE_ALL)

    def learn(self, checkpoints: Mapping[int, Checkpoint]) -> None:
        self.learned = {**self.learned, **checkpoints}

    async def rotate_records(self, partition: int, *, record_ttl_s: int) -> bool:
        return False

    def load(self, partition: int) -> None:
        self.entries[partition].append(self.streams[partition].load(PRODUCT, 1_000))

    def sell(self, partition: int, requests: int = 1) -> None:
        sales = [(request_id, 1) for request_id in fresh_request_ids(requests)]
        self.entries[partition].append(self.streams[partition].deduct(PRODUCT, sales))


class InSync:
    """What `Replicas` says where every node has one."""

    async def opens_degraded(self, partition: int, head: PartitionHead) -> bool:
        return False

    async def changes(self, partition: int, head: PartitionHead) -> bool:
        return False


class HopelessRestorer:
    """Of nodes that take nothing."""

    async def restore(self, case: Case) -> None:
        raise StockUnavailableError(Reason.NOT_EXECUTED, f"p{case.partition}")


class Bench:
    """One worker's loops on the fakes."""

    def __init__(self, database: Database, partitions: FakePartitions) -> None:
        self.registry = CollectorRegistry()
        metrics, settings = WorkerMetrics(self.registry), WorkerSettings(batch_age_ms_max=0)
        failpoints, checkpoints = Failpoints({}), Checkpoints(database)
        self.share = Share(metrics, trim_lag_s=60, partitions=PARTITIONS)
        applier = Applier(Journal(database, new_metrics(), failpoints))
        self.drain = Drain(
            self.share,
            partitions,
            checkpoints,
            applier,
            settings,
            metrics,
            failpoints,  # type: ignore[arg-type]
        )
        shares = Shares([self.share])
        opener = Opener(
            shares,
            partitions,  # type: ignore[arg-type]
            Openings(database),
            PerServer([checkpoints]),
            PerServer([PartitionFreezes(Freezes(database), cast(Any, None))]),
            HopelessRestorer(),  # type: ignore[arg-type]
            metrics,
            failpoints,
        )
        self.keeper = Keeper(
            shares,
            partitions,  # type: ignore[arg-type]
            Openings(database),
            opener,
            cast(Replicas, InSync()),
            metrics,
            failpoints,
        )
        self.upkeep = LedgerUpkeep(
            self.share,
            database,
            RawEvents(database),
            EventsFeed(database),
            Products(database),
            settings,
            metrics,
        )
        self.share.lease(frozenset(range(PARTITIONS)), float("inf"))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.drain.run(stop))
            tasks.create_task(self.keeper.run(stop))
            tasks.create_task(self.upkeep.run(stop))
            try:
                yield
            finally:
                stop.set()

    async def tick(self) -> None:
        """One look of the keeper, with all that it begins."""
        async with asyncio.TaskGroup() as chores:
            await self.keeper._tick(chores)

    def metric(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"inventory_worker_{name}", labels) or 0


@pytest.fixture
async def database(world: World) -> AsyncIterator[Database]:
    opened = Database(await create_database(world.mysql), new_metrics(), connections=16)
    await migrate(opened)
    await Checkpoints(opened).prepare(PARTITIONS)
    await Products(opened).put(settings_of(PRODUCT, 100_000))
    yield opened
    await opened.close()


@pytest.fixture
def partitions() -> FakePartitions:
    fakes = FakePartitions()
    for partition in range(PARTITIONS):
        fakes.load(partition)
    return fakes


async def sold(database: Database) -> int:
    return (await Products(database).get(PRODUCT)).sold_count


async def until_sold(database: Database, units: int) -> None:
    async def is_sold() -> bool:
        return await sold(database) == units

    await eventually(is_sold)


async def test_a_node_that_is_away_stops_only_its_own_partitions(
    database: Database, partitions: FakePartitions
) -> None:
    bench = Bench(database, partitions)
    partitions.away = {1}
    async with bench.running():
        for partition in range(PARTITIONS):
            partitions.sell(partition, 10)
        await until_sold(database, 30)
        await eventually(lambda: bench.metric("partitions_fenced", reason="AWAY") == 1)
        partitions.away = set()
        await until_sold(database, 40)
        await eventually(lambda: bench.metric("partitions_fenced", reason="AWAY") == 0)
    assert bench.metric("redis_failures_total", reason="NOT_EXECUTED") >= 1


async def test_what_no_replica_has_is_not_applied(
    database: Database, partitions: FakePartitions
) -> None:
    bench = Bench(database, partitions)
    partitions.unreplicated = {2}
    async with bench.running():
        for partition in range(PARTITIONS):
            partitions.sell(partition, 10)
        await until_sold(database, 30)
        await eventually(lambda: bench.metric("redis_failures_total", reason="NOT_REPLICATED"))
        assert (await Checkpoints(database).all())[2].id.number == 0
        partitions.unreplicated = set()
        await until_sold(database, 40)


async def test_what_was_read_of_a_master_that_is_gone_is_not_applied(
    database: Database, partitions: FakePartitions, capsys: pytest.CaptureFixture[str]
) -> None:
    bench = Bench(database, partitions)
    partitions.without_the_last = {2}
    async with bench.running():
        for partition in range(PARTITIONS):
            partitions.sell(partition, 10)
        await until_sold(database, 30)
        await eventually(lambda: bench.metric("reads_undone_total") >= 2)
        assert (await Checkpoints(database).all())[2].id.number == 0
        del partitions.entries[2][-1]  # as the promoted one has it, reopened
        partitions.streams[2].generation += 1
        partitions.sell(2, 7)
        partitions.without_the_last = set()
        await until_sold(database, 37)
    assert capsys.readouterr().out.count("events that had been read are gone") == 1


async def test_after_a_failure_of_the_ledger_the_worker_asks_it_what_was_applied(
    database: Database, partitions: FakePartitions, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(database, partitions)
    apply, failures = Applier.apply, 0
    in_a_row: list[float] = []

    async def apply_and_lose_the_reply(applier: Applier, chunks: Sequence[Chunk]) -> None:
        nonlocal failures
        await apply(applier, chunks)
        in_a_row.append(bench.metric("ledger_failures_in_a_row"))
        if failures < 3:
            failures += 1
            for chunk in chunks:
                partitions.sell(chunk.partition)
            raise LedgerUnavailableError("the reply is lost")

    for partition in range(PARTITIONS):
        partitions.sell(partition)
    monkeypatch.setattr(Applier, "apply", apply_and_lose_the_reply)
    async with bench.running():
        await until_sold(database, PARTITIONS * 4)
    assert bench.metric("failures_total", source="ledger") == 3
    assert in_a_row[:4] == [0, 1, 2, 3]
    assert bench.metric("ledger_failures_in_a_row") == 0
    assert bench.metric("batches_lost_total") == 0


async def test_failures_in_a_row_end_when_nothing_waits_to_be_written(
    database: Database, partitions: FakePartitions, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(database, partitions)
    async with bench.running():
        await eventually(lambda: len(bench.share.applied) == PARTITIONS)
        monkeypatch.setattr(Checkpoints, "of", _away)
        monkeypatch.setattr(Applier, "apply", _away)
        partitions.sell(0)
        await eventually(lambda: bench.metric("ledger_failures_in_a_row") >= 3)
        partitions.entries[0].clear()
        monkeypatch.undo()
        await eventually(lambda: bench.metric("ledger_failures_in_a_row") == 0)


async def _away(*_: object) -> None:
    raise LedgerUnavailableError("MySQL is away")


async def test_an_idle_worker_reads_rarely_and_is_still_awake(
    database: Database, partitions: FakePartitions, capsys: pytest.CaptureFixture[str]
) -> None:
    bench = Bench(database, partitions)
    async with bench.running():
        await eventually(lambda: partitions.read_attempts >= 20 * PARTITIONS)
        partitions.sell(0)
        await until_sold(database, 1)
    assert capsys.readouterr().out == ""


async def test_partitions_are_told_how_far_the_ledger_is_until_they_know(
    database: Database, partitions: FakePartitions
) -> None:
    bench = Bench(database, partitions)
    numbers = dict.fromkeys(range(PARTITIONS), 6)
    for partition in range(PARTITIONS):
        for _ in range(5):
            partitions.sell(partition)
    async with bench.running():
        await eventually(lambda: partitions.applied == numbers)
        del partitions.applied[1]  # in a failover
        await eventually(lambda: partitions.applied == numbers)
    notes = partitions.notes
    await bench.tick()
    assert partitions.notes == notes


async def test_a_partition_that_cannot_be_told_so_is_read_all_the_same(
    database: Database, partitions: FakePartitions, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(database, partitions)

    async def refuse(_partition: int, _applied: EventId, *, ledger: int) -> None:
        raise StockUnavailableError(Reason.NOT_EXECUTED, "no replica")

    monkeypatch.setattr(partitions, "note_applied", refuse)
    partitions.sell(0)
    async with bench.running():
        await eventually(lambda: bench.metric("redis_failures_total", reason="NOT_EXECUTED") > 1)
        partitions.sell(0)
        await until_sold(database, 2)
    assert bench.share.away == set()


async def test_without_leases_the_worker_shows_how_far_the_ledger_is_behind(
    database: Database, partitions: FakePartitions
) -> None:
    bench = Bench(database, partitions)
    for partition in range(PARTITIONS):
        partitions.applied[partition] = partitions.streams[partition].number
    bench.share.lease(bench.share.owned, 0.0)  # over: the ledger is away
    partitions.away, partitions.behind = {3}, {2}
    for _ in range(7):
        partitions.sell(2)
    async with bench.running():
        await eventually(lambda: bench.metric("partitions_behind") == 1)
        assert bench.metric("stream_lag_entries", partition="2") == 7
        partitions.behind = set()
        await eventually(lambda: bench.metric("partitions_behind") == 0)


async def test_products_below_zero_are_shown(
    database: Database, partitions: FakePartitions
) -> None:
    bench = Bench(database, partitions)
    await write(database, "UPDATE product_inventory SET total_stock = -1, available_stock = -1")
    async with bench.running():
        await eventually(lambda: bench.metric("products_below_zero") == 1)


async def test_events_for_callers_are_forgotten_after_a_while(
    database: Database, partitions: FakePartitions
) -> None:
    feed = EventsFeed(database)

    async def tell(transaction: Transaction) -> None:
        old, new = Notice(ServiceEventKind.SOLD_OUT, PRODUCT, at_ms=1), 2
        await publish(transaction, [old, *[old._replace(at_ms=0)] * new])

    await database.transaction(tell)
    async with Bench(database, partitions).running():

        async def is_pruned() -> bool:
            return len(await feed.after(0, limit=10)) == 2

        await eventually(is_pruned)


async def test_what_buffer_sales_are_looked_up_in_is_kept_as_long_as_requests_are_remembered(
    database: Database, partitions: FakePartitions
) -> None:
    ttl_s = WorkerSettings().record_ttl_s
    stated = {
        "buffer_sale": ("quantity, user_id, mode_epoch", "1, 0, 1"),
        "request_tombstone": ("kind", "'never'"),
    }

    async def kept() -> list[list[tuple[object, ...]]]:
        sql = "SELECT request_id FROM {} WHERE product_id = 77 ORDER BY request_id"
        return [await fetch(database, sql.format(table)) for table in stated]

    for table, (columns, values) in stated.items():
        for name, age_s in (("old", ttl_s + 60), ("new", ttl_s - 600)):
            await write(
                database,
                f"INSERT INTO {table} (product_id, request_id, {columns}, create_time)"
                f" VALUES (77, %s, {values}, CURRENT_TIMESTAMP(3) - INTERVAL %s SECOND)",
                name,
                age_s,
            )

    async def are_pruned() -> bool:
        return await kept() == [[("new",)]] * 2

    async with Bench(database, partitions).running():
        await eventually(are_pruned)


async def test_what_is_learnt_of_a_partition_after_it_was_lost_is_not_kept(
    database: Database, partitions: FakePartitions
) -> None:
    bench = Bench(database, partitions)
    bench.share.lease(frozenset({0}), float("inf"))
    for partition in (0, 1):
        bench.share.lose(partition, StockUnavailableError(Reason.NOT_EXECUTED, ""))
        bench.share.found(partition, is_open=False)
        bench.share.advance(partition, NOTHING_APPLIED)
    assert (bench.share.away, bench.share.applied.keys()) == ({0}, {0})
    bench.share.found(0, is_open=True)
    assert bench.share.away == set()


async def test_a_partition_that_lost_its_latest_opening_is_opened_again(
    database: Database, partitions: FakePartitions
) -> None:
    bench, stream = Bench(database, partitions), partitions.streams[3]
    issued = (await Openings(database).begin(3, above=stream.generation)).generation
    await bench.tick()
    assert partitions.opening_attempts == 1
    assert bench.metric("partitions_fenced", reason="WENT_BACK") == 1
    stream.generation = issued + 1
    await bench.tick()
    assert partitions.opening_attempts == 1
    assert bench.metric("partitions_fenced", reason="WENT_BACK") == 0


async def test_a_partition_that_comes_back_is_opened_without_its_old_pause(
    database: Database, partitions: FakePartitions
) -> None:
    bench = Bench(database, partitions)
    partitions.closed = {3}
    await bench.tick()
    await bench.tick()
    assert partitions.opening_attempts == 1
    bench.share.lease(frozenset(), float("inf"))
    await bench.tick()
    bench.share.lease(frozenset({3}), float("inf"))
    await bench.tick()
    assert partitions.opening_attempts == 2


async def test_a_partition_that_is_on_another_node_is_opened_without_its_old_pause(
    database: Database, partitions: FakePartitions
) -> None:
    bench = Bench(database, partitions)
    partitions.closed = {3}
    await bench.tick()
    await bench.tick()
    assert partitions.opening_attempts == 1
    partitions.nodes[3] = ("127.0.0.1", 2)
    await bench.tick()
    assert partitions.opening_attempts == 2


def test_what_passes_by_itself_is_tried_again_every_two_seconds() -> None:
    refusal = _Refusal(("NEW_OWNER", None))
    for _ in range(10):
        refusal.again("its node does not answer", 100.0, pause_max_s=PASSING_PAUSE_MAX_S)
    assert refusal.until_s == 102.0
    refusal.again("its head is behind the ledger", 100.0, pause_max_s=PAUSE_MAX_S)
    assert refusal.until_s == 104.0


async def test_a_partition_that_cannot_be_opened_is_told_once_and_tried_more_and_more_rarely(
    database: Database, partitions: FakePartitions, capsys: pytest.CaptureFixture[str]
) -> None:
    bench, stream = Bench(database, partitions), partitions.streams[3]
    stream.generation = (await Openings(database).begin(3, above=0)).generation
    partitions.closed = {3}
    async with bench.running():
        await eventually(lambda: partitions.opening_attempts >= 2)
        assert bench.metric("partitions_fenced", reason="NEW_OWNER") == 1
        assert bench.metric("partitions_owned") == PARTITIONS
    assert capsys.readouterr().out.count("partition cannot be opened") == 1


@pytest.mark.parametrize(
    ("more", "told", "told_before", "lost"),
    [(0, 0, 0, 0), (3, 0, 0, 3), (3, 5, 0, 5), (0, 5, 1, 0)],
)
async def test_what_an_opened_partition_lacks_is_counted_and_not_its_own_opening(
    database: Database,
    partitions: FakePartitions,
    more: int,
    told: int,
    told_before: int,
    lost: int,
) -> None:
    """Nor what others tell of events that an earlier opening knew to be lost."""
    bench = Bench(database, partitions)
    stream = partitions.streams[1]
    partitions.seen_last[1] = EventId(stream.generation, stream.number + more)
    partitions.told_last[1] = EventId(stream.generation - told_before, stream.number + told)
    partitions.openable, partitions.closed = {1}, {1}
    async with bench.running():
        await eventually(lambda: 1 not in partitions.closed)
        await eventually(lambda: bench.metric("partitions_fenced", reason="NEW_OWNER") == 0)
    assert bench.metric("restored_events_lost_total") == lost


async def test_who_comes_by_after_an_opening_names_what_was_lost_before_it_once(
    database: Database, partitions: FakePartitions
) -> None:
    bench, stream = Bench(database, partitions), partitions.streams[1]
    stream.generation = (await Openings(database).begin(1, above=0)).generation
    seen = EventId(stream.generation, stream.number)
    partitions.openable, partitions.closed = {1}, {1}
    await bench.tick()
    assert 1 not in partitions.closed
    for more, lost in ((0, 0), (2, 2), (2, 2), (5, 5)):
        partitions.told_last[1] = seen._replace(number=seen.number + more)
        await bench.tick()
        assert bench.metric("restored_events_lost_total") == lost
    # Of its own events, and of one that an earlier opening knew to be lost.
    for told in (EventId(stream.generation, 99), seen._replace(generation=seen.generation - 1)):
        partitions.told_last[1] = told._replace(number=99)
        await bench.tick()
    assert bench.metric("restored_events_lost_total") == 5


async def test_workers_that_overlap_on_all_partitions_apply_everything_once(
    database: Database, partitions: FakePartitions
) -> None:
    first, second, third = (Bench(database, partitions) for _ in range(3))
    async with first.running(), second.running(), third.running():
        for position in range(200):
            partitions.sell(position % PARTITIONS)
            await asyncio.sleep(0)
        await until_sold(database, 200)
    lost = sum(bench.metric("batches_lost_total") for bench in (first, second, third))
    assert lost >= 1
    assert await sold(database) == 200


async def test_a_backlog_is_carried_in_batches_of_the_set_size(
    database: Database, partitions: FakePartitions
) -> None:
    bench = Bench(database, partitions)
    bench.drain._settings = WorkerSettings(batch_rows_max=50, batch_age_ms_max=0)
    for partition in range(PARTITIONS):
        for _ in range(20):
            partitions.sell(partition, 10)
    async with bench.running():
        await until_sold(database, PARTITIONS * 200)
    batches = bench.metric("batch_rows_count")
    assert bench.metric("batch_rows_bucket", le="50.0") == batches
    assert batches >= PARTITIONS * 200 / 50


async def test_partitions_that_are_lost_in_the_middle_of_their_upkeep_end_nothing(
    database: Database, partitions: FakePartitions, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(database, partitions)

    async def lose_all(_partition: int, *, record_ttl_s: int) -> bool:
        bench.share.lease(frozenset(), float("inf"))
        return False

    monkeypatch.setattr(partitions, "rotate_records", lose_all)
    async with bench.running():
        await eventually(lambda: not bench.share.owned)
        bench.share.lease(frozenset(range(PARTITIONS)), float("inf"))
        for partition in range(PARTITIONS):
            partitions.sell(partition)
        await until_sold(database, PARTITIONS)
