"""A database of its own for these tests, beside the stack's; every test has products of its own."""

import dataclasses
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import count

import pytest
from prometheus_client import CollectorRegistry

from deploy.local.stack import LocalStack
from ledger.checkpoints import Checkpoints
from ledger.database import Database, Transaction
from ledger.failpoints import Failpoints
from ledger.journal import Journal
from ledger.metrics import LedgerMetrics
from ledger.migrate import migrate
from ledger.products import Products, ProductSettings
from ledger.settings import MysqlUrl, parse_url
from tests.ledger.streams import FakeStream
from worker.applier import Applier

PARTITIONS = 48

NewProduct = Callable[..., Awaitable[int]]
Stream = Callable[[], Awaitable[FakeStream]]

_product_ids = count(5_000_001)
_partitions = count()


def new_metrics() -> LedgerMetrics:
    return LedgerMetrics(CollectorRegistry())


async def create_database(url: MysqlUrl) -> MysqlUrl:
    """An empty database on the same server."""
    name = f"inventory_{secrets.token_hex(6)}"
    server = Database(url, new_metrics(), connections=1)

    async def run(transaction: Transaction) -> None:
        await transaction.execute(f"CREATE DATABASE {name}")

    await server.transaction(run)
    await server.close()
    return dataclasses.replace(url, database=name)


@pytest.fixture(scope="session")
async def server_url(services: LocalStack) -> MysqlUrl:
    return parse_url(services.mysql_url)


@pytest.fixture
async def empty_url(server_url: MysqlUrl) -> MysqlUrl:
    return await create_database(server_url)


@pytest.fixture
async def empty(empty_url: MysqlUrl) -> AsyncIterator[Database]:
    """A database without tables."""
    opened = Database(empty_url, new_metrics())
    yield opened
    await opened.close()


@pytest.fixture(scope="session")
async def ledger_url(server_url: MysqlUrl) -> MysqlUrl:
    """A database with the ledger's tables, for all tests here."""
    url = await create_database(server_url)
    opened = Database(url, new_metrics())
    await migrate(opened)
    await Checkpoints(opened).prepare(PARTITIONS)
    await opened.close()
    return url


@pytest.fixture
def metrics() -> LedgerMetrics:
    return new_metrics()


@pytest.fixture
async def database(ledger_url: MysqlUrl, metrics: LedgerMetrics) -> AsyncIterator[Database]:
    opened = Database(ledger_url, metrics, connections=20)
    yield opened
    await opened.close()


@pytest.fixture
async def products(database: Database) -> Products:
    return Products(database)


@pytest.fixture
async def checkpoints(database: Database) -> Checkpoints:
    return Checkpoints(database)


@pytest.fixture
async def journal(database: Database, metrics: LedgerMetrics) -> Journal:
    return Journal(database, metrics, Failpoints({}))


@pytest.fixture
async def applier(journal: Journal) -> Applier:
    return Applier(journal)


@pytest.fixture
def new_product(products: Products) -> NewProduct:
    """`await new_product(100)`: a closed product with so many units; returns its id."""

    async def create(units: int, *, buffer_percent: int = 0, shards: int = 0) -> int:
        product_id = next(_product_ids)
        await products.put(settings_of(product_id, units, buffer_percent, shards))
        return product_id

    return create


@pytest.fixture
def stream(checkpoints: Checkpoints) -> Stream:
    """`await stream()`: the stream of a partition that no other running test uses."""

    async def follow() -> FakeStream:
        partition = next(_partitions) % PARTITIONS
        checkpoint = (await checkpoints.of({partition}))[partition]
        return FakeStream(partition, after=checkpoint.id)

    return follow


def settings_of(
    product_id: int, units: int, buffer_percent: int = 0, shards: int = 0
) -> ProductSettings:
    return ProductSettings(
        product_id=product_id,
        name="",
        total_stock=units,
        buffer_percent=buffer_percent,
        shards=shards,
        max_per_user=0,
        low_stock=0,
    )


async def fetch(database: Database, sql: str, *values: object) -> list[tuple[object, ...]]:
    """Rows by a query of the test's own."""

    async def run(transaction: Transaction) -> list[tuple[object, ...]]:
        return await transaction.rows(sql, values)

    return await database.transaction(run)


async def write(database: Database, sql: str, *values: object) -> int:
    """A statement of the test's own."""

    async def run(transaction: Transaction) -> int:
        return await transaction.execute(sql, values)

    return await database.transaction(run)
