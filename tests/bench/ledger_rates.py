"""How fast events become journal rows, next to inserting the same rows and nothing else."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from prometheus_client import CollectorRegistry

from deploy.demo.families import family
from deploy.local.errors import StackError
from deploy.local.stack import LocalStack
from inventory.client import AsyncInventoryClient, DeductItem
from ledger import literals
from ledger.checkpoints import Checkpoints
from ledger.database import Database, Transaction
from ledger.failpoints import Failpoints
from ledger.journal import Journal
from ledger.merge import Chunk, cut, merge, received
from ledger.metrics import LedgerMetrics
from ledger.migrate import migrate
from ledger.products import Products, ProductSettings
from ledger.settings import MysqlUrl, parse_url
from ledger.statements import with_rows
from sharding.cluster import Cluster
from sharding.events import BEFORE_ALL
from sharding.metrics import StockMetrics
from sharding.partitions import Entry, Partitions
from sharding.settings import StockSettings
from tests.bench.cpu import Watched, since, spent_s
from tests.bench.window import Measured
from worker.applier import Applier

PARTITIONS = 48
ROWS_A_TRANSACTION = 5_000
ENTRIES_MAX = 100_000
PLAIN_TABLE = b"plain_log"
BATCH_ITEMS = 500
POLL_S = 0.05
FIRST_ROW_WITHIN_S = 20.0
STOP_GRACE_S = 12.0

Recording = dict[int, list[Entry]]
"""What every partition's stream has of one product."""


@dataclass(frozen=True, slots=True)
class Sold:
    """A product and what was sold of it before anything else happened."""

    product_id: int
    total: int
    recording: Recording


async def sell_and_record(stack: LocalStack, product_id: int, *, total: int, rows: int) -> Sold:
    """Sell units of a product that was just loaded; return all events that it has by then."""
    async with AsyncInventoryClient(stack.grpc_address()) as client:
        for _ in range(0, rows, BATCH_ITEMS):
            await client.batch_deduct([DeductItem(product_id, 1)] * BATCH_ITEMS)
    nodes = ",".join(stack.redis_nodes)
    settings = StockSettings.model_validate({"redis_nodes": nodes, "partitions": PARTITIONS})
    cluster = await Cluster.connect(settings, StockMetrics(CollectorRegistry()))
    try:
        partitions = Partitions(cluster, partitions=PARTITIONS)
        recording = {
            partition: [
                entry
                for entry in await partitions.read(
                    partition, ledger=0, after=BEFORE_ALL, count=ENTRIES_MAX
                )
                if _is_of(product_id, entry)
            ]
            for partition in range(PARTITIONS)
        }
    finally:
        await cluster.close()
    return Sold(product_id, total, recording)


class JournalRates:
    """Writes one recording again and again, each time into a database of its own."""

    def __init__(self, mysql_url: str, sold: Sold, watched: Watched) -> None:
        self._url = parse_url(mysql_url)
        self._sold = sold
        self._watched = watched
        self._databases = 0
        batches = list(cut(_chunks(sold.recording), ROWS_A_TRANSACTION))
        self._rows = sum(map(_rows, batches))
        self._inserts = [_plain_insert(batch) for batch in batches if _rows(batch)]

    async def applied(self) -> Measured:
        """Decode, merge and apply the events as the worker does."""
        return await self._in_new_database(self._apply)

    async def inserted(self) -> Measured:
        """Insert the same journal rows, as many at a time, without anything else."""
        return await self._in_new_database(self._insert)

    async def _apply(self, database: Database) -> int:
        applier = Applier(Journal(database, _metrics(), Failpoints({})))
        rows = 0
        for batch in cut(_chunks(self._sold.recording), ROWS_A_TRANSACTION):
            await applier.apply(batch)
            rows += _rows(batch)
        return rows

    async def _insert(self, database: Database) -> int:
        for sql in self._inserts:
            await _committed(database, sql)
        return self._rows

    async def _in_new_database(self, work: Callable[[Database], Awaitable[int]]) -> Measured:
        self._databases += 1
        url = replace(self._url, database=f"{self._url.database}_bench_{self._databases}")
        main = Database(self._url, _metrics())
        await _committed(main, f"CREATE DATABASE {url.database}".encode())
        database = Database(url, _metrics())
        try:
            await self._prepare(database)
            start_s, spent = time.perf_counter(), spent_s(self._watched)
            rows = await work(database)
            elapsed_s = time.perf_counter() - start_s
        finally:
            await database.close()
            await _committed(main, f"DROP DATABASE {url.database}".encode())
            await main.close()
        cpu_s = since(spent, spent_s(self._watched))
        return Measured(elapsed_s=elapsed_s, accepted=rows, cpu_s=cpu_s)

    async def _prepare(self, database: Database) -> None:
        await migrate(database)
        await Checkpoints(database).prepare(PARTITIONS)
        await _committed(database, b"CREATE TABLE %b LIKE inventory_log" % PLAIN_TABLE)
        await Products(database).put(
            ProductSettings(
                product_id=self._sold.product_id,
                name="",
                total_stock=self._sold.total,
                buffer_percent=0,
                shards=0,
                max_per_user=0,
                low_stock=0,
            )
        )


async def drained(stack: LocalStack, *, seconds: float, masters: Watched) -> Measured:
    """Start a worker on the backlog that there is and see how fast it gets smaller."""
    database = Database(_url(stack), _metrics())
    try:
        worker = await stack.start_worker()
        watched = {
            "worker": family(worker.pid),
            "mysql": family(stack.database.process.pid),
            **masters,
        }
        try:
            return await _watch_drain(database, seconds=seconds, watched=watched)
        finally:
            await worker.stop(grace_s=STOP_GRACE_S)
    finally:
        await database.close()


async def _watch_drain(database: Database, *, seconds: float, watched: Watched) -> Measured:
    """Rows between the first that is seen and the last, or the end of the time."""
    idle = first = last = await _sold_units(database)
    deadline_s = time.perf_counter() + FIRST_ROW_WITHIN_S
    while first == idle:
        if time.perf_counter() > deadline_s:
            raise StackError("the worker applies nothing")
        await asyncio.sleep(POLL_S)
        first = last = await _sold_units(database)
    start_s = last_s = time.perf_counter()
    before = after = spent_s(watched)
    while time.perf_counter() < start_s + seconds:
        await asyncio.sleep(POLL_S)
        now = await _sold_units(database)
        if now > last:
            last, last_s, after = now, time.perf_counter(), spent_s(watched)
    return Measured(
        elapsed_s=max(last_s - start_s, POLL_S), accepted=last - first, cpu_s=since(before, after)
    )


async def _sold_units(database: Database) -> int:
    """Every request of the benchmark takes one unit, so this counts journal rows, too."""

    async def run(transaction: Transaction) -> int:
        row = await transaction.row("SELECT COALESCE(SUM(sold_count), 0) FROM product_inventory")
        assert row is not None
        return int(row[0])

    return await database.transaction(run)


async def _committed(database: Database, sql: bytes) -> None:
    async def run(transaction: Transaction) -> None:
        await transaction.bulk(sql)

    await database.transaction(run)


def _is_of(product_id: int, entry: Entry) -> bool:
    """The ledgers that are measured know one product, and would set events of others aside."""
    event = received(entry).event
    return event is not None and event.product_id == product_id


def _chunks(recording: Recording) -> Sequence[Chunk]:
    return [
        Chunk(partition, BEFORE_ALL, [received(entry) for entry in entries])
        for partition, entries in recording.items()
        if entries
    ]


def _rows(batch: Sequence[Chunk]) -> int:
    """Journal rows; a recording holds no other events that make some than sales."""
    events = [delivery.event for chunk in batch for delivery in chunk.deliveries]
    return sum(len(event.sales) for event in events if event)


def _plain_insert(batch: Sequence[Chunk]) -> bytes:
    rows = [row for each in merge(batch).effects for row in literals.journal_rows(each)]
    insert = with_rows("journal_insert", [row.encode() for row in rows])
    return insert.replace(b"inventory_log", PLAIN_TABLE)


def _url(stack: LocalStack) -> MysqlUrl:
    return parse_url(stack.mysql_url)


def _metrics() -> LedgerMetrics:
    return LedgerMetrics(CollectorRegistry())
