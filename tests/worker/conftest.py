"""Workers on the session's Redis Cluster and MySQL, with partitions and a database of their own.

Tags depend on the partition count, so 12 partitions share no key with the 48 of other tests.
"""

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from deploy.local.stack import LocalStack
from ledger.checkpoints import Checkpoints
from ledger.database import Database
from ledger.migrate import migrate
from ledger.products import ProductRow, Products, ProductSettings
from ledger.settings import MysqlUrl, parse_url
from sharding.cluster import Cluster
from sharding.metrics import StockMetrics
from sharding.outcomes import Deduction, Outcome
from sharding.partitions import Partitions
from sharding.settings import StockSettings
from sharding.stock import Stock
from tests.ledger.conftest import create_database, fetch, new_metrics
from tests.ledger.streams import fresh_request_ids
from tests.waiting import eventually

PARTITIONS = 12
LEASE_TTL_S = 1
METRICS_S = 2.0

_product_ids = count(8_000_001)


class WorkerProcess:
    """One `python -m worker` and its log."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, metrics_port: int) -> None:
        self.process = process
        self.log = log
        self._metrics_port = metrics_port

    def said(self, text: str) -> bool:
        return text in self.log.read_text()

    def complaints(self, product_id: int) -> list[Mapping[str, object]]:
        """What it said, but for what it said of other products: tests before this one broke some."""
        said = map(json.loads, self.log.read_text().splitlines())
        return [each for each in said if each.get("product_id", product_id) == product_id]

    async def ended(self) -> int:
        """Its exit code, once it has one."""
        await eventually(lambda: self.process.poll() is not None)
        code = self.process.poll()
        assert code is not None
        return code

    @contextmanager
    def paused(self) -> Iterator[None]:
        """It does nothing within the block, and is none the wiser after it."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    async def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return await self.ended()

    async def metric(self, name: str) -> float | None:
        """A figure by its name and labels as the metrics page shows them; None: not there yet, or the
        process does nothing now."""
        try:
            async with asyncio.timeout(METRICS_S):
                reader, writer = await asyncio.open_connection("127.0.0.1", self._metrics_port)
                with closing(writer):
                    writer.write(b"GET /metrics HTTP/1.0\r\n\r\n")
                    page = (await reader.read()).decode()
        except OSError:
            return None
        found = re.search(rf"^{re.escape(name)} (\S+)$", page, flags=re.MULTILINE)
        return float(found[1]) if found else None

    async def owns(self, partitions: int) -> bool:
        return await self.metric("inventory_worker_partitions_owned") == partitions


StartWorker = Callable[..., WorkerProcess]


@dataclass
class World:
    """The stock, the ledger and what leads to them."""

    environment: Mapping[str, str]
    mysql: MysqlUrl
    cluster: Cluster
    partitions: Partitions
    stock: Stock
    database: Database
    products: Products
    checkpoints: Checkpoints

    async def on_sale(
        self,
        units: int,
        *,
        shards: int = 6,
        buffer_percent: int = 0,
        release_below: int = 0,
        max_per_user: int = 0,
    ) -> int:
        """A fresh product in the ledger and in its shards; returns its id."""
        product_id = next(_product_ids)
        settings = ProductSettings(
            product_id, "", units, buffer_percent, shards, max_per_user, 0, release_below
        )
        await self.products.put(settings)
        plan, _ = await self.products.begin_load(
            product_id, partitions=PARTITIONS, default_shards=shards
        )
        await self.stock.load(plan)
        await self.products.finish_load(plan)
        return product_id

    async def sell(self, product_id: int, requests: int) -> None:
        """So many requests of one unit each, all accepted."""
        answers = await asyncio.gather(
            *(
                self.stock.deduct([Deduction(request_id, product_id, 1)])
                for request_id in fresh_request_ids(requests)
            )
        )
        assert {answer.outcome for (answer,) in answers} == {Outcome.DEDUCTED}

    async def is_sold(self, product_id: int, units: int) -> ProductRow | None:
        """The product's row, once the ledger has so many units sold of it."""
        row = await self.products.get(product_id)
        return row if row.sold_count == units else None

    async def journal_rows(self, product_id: int) -> object:
        sql = "SELECT COUNT(*) FROM inventory_log WHERE product_id = %s"
        return (await fetch(self.database, sql, product_id))[0][0]

    async def owners(self) -> set[object]:
        return {name for (name,) in await fetch(self.database, "SELECT name FROM worker")}


@pytest.fixture(scope="session")
async def world(services: LocalStack) -> AsyncIterator[World]:
    async with world_on(services) as made:
        yield made


@asynccontextmanager
async def world_on(services: LocalStack) -> AsyncIterator[World]:
    """A database and a process of their own on a stack."""
    url = await create_database(parse_url(services.mysql_url))
    database = Database(url, new_metrics())
    await migrate(database)
    settings = StockSettings.model_validate(
        {"redis_nodes": ",".join(services.redis_nodes), "partitions": PARTITIONS}
    )
    metrics = StockMetrics(CollectorRegistry())
    cluster = await Cluster.connect(settings, metrics)
    stock = Stock(cluster, metrics)
    environment = {
        **services.environment(),
        "INVENTORY_MYSQL_URLS": plain(url),
        "INVENTORY_PARTITIONS": str(PARTITIONS),
        "INVENTORY_LEASE_TTL_S": str(LEASE_TTL_S),
    }
    yield World(
        environment=environment,
        mysql=url,
        cluster=cluster,
        partitions=Partitions(cluster, partitions=PARTITIONS),
        stock=stock,
        database=database,
        products=Products(database),
        checkpoints=Checkpoints(database),
    )
    await stock.drain()
    await cluster.close()
    await database.close()


@pytest.fixture
async def start_worker(world: World, tmp_path: Path) -> AsyncIterator[StartWorker]:
    """`start_worker(TRIM_LAG_S="0")`: a worker with these settings; it dies with the test."""
    started: list[WorkerProcess] = []

    def start(**settings: str) -> WorkerProcess:
        started.append(launch(world, tmp_path / f"worker-{len(started)}.log", settings))
        return started[-1]

    yield start
    for worker in started:
        worker.process.kill()
        worker.process.wait()


def launch(world: World, log: Path, settings: Mapping[str, str]) -> WorkerProcess:
    """A worker with these settings; whoever starts it ends it."""
    port = free_port()
    environment = {
        **world.environment,
        "INVENTORY_METRICS_ADDRESS": f"127.0.0.1:{port}",
        **{f"INVENTORY_{name}": value for name, value in settings.items()},
    }
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "worker"], env=environment, stdout=out, stderr=out
        )
    return WorkerProcess(process, log, port)


@asynccontextmanager
async def working(world: World, log: Path, **settings: str) -> AsyncIterator[WorkerProcess]:
    """A worker for several tests, with all partitions open."""
    worker = launch(world, log, settings)
    try:
        await eventually(lambda: worker.owns(PARTITIONS))
        await eventually(lambda: all_open(world.partitions))
        yield worker
    finally:
        worker.process.kill()
        worker.process.wait()


async def all_open(partitions: Partitions) -> bool:
    heads = await asyncio.gather(*map(partitions.head, range(PARTITIONS)))
    return all(head.is_open for head in heads)


@pytest.fixture
async def opened(world: World, start_worker: StartWorker) -> World:
    """The world after some worker has opened all its partitions."""
    if not await all_open(world.partitions):
        worker = start_worker()
        await eventually(lambda: all_open(world.partitions))
        assert await worker.stop() == 0
    return world


def plain(url: MysqlUrl) -> str:
    return f"mysql://{url.user}:{url.password}@{url.host}:{url.port}/{url.database}"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
