"""A database of its own for these tests, and what a server process has on it, twice."""

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import pytest
import structlog
from prometheus_client import CollectorRegistry

from deploy.local.stack import LocalStack
from ledger.database import Database
from ledger.engine.expiry import Expiry
from ledger.engine.metrics import EngineMetrics, SalesMetrics
from ledger.engine.orders import LedgerOrders
from ledger.engine.stock import LedgerStock, Manner
from ledger.engine_claim import claim_for_mysql
from ledger.metrics import LedgerMetrics
from ledger.migrate import migrate
from ledger.products import ProductRow, Products, ProductSettings
from ledger.servers import PerServer
from ledger.settings import MysqlUrl, parse_url
from server.gate import Gate, Gates
from server.lifecycle import Lifecycle
from server.metrics import Metrics
from sharding.outcomes import Answer, Deduction, Outcome
from tests.ledger.conftest import create_database, fetch, new_metrics

RECORD_TTL_S = 86_400
EVENT_TTL_S = 604_800

NewProduct = Callable[..., Awaitable[int]]

product_ids = count(7_000_001)
order_ids = count(8_000_001)


@dataclass(frozen=True, slots=True)
class Process:
    """What one server process sells with."""

    database: Database
    stock: LedgerStock
    orders: LedgerOrders
    expiry: Expiry
    lifecycle: Lifecycle
    registry: CollectorRegistry

    def metric(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(name, labels) or 0


@asynccontextmanager
async def process(
    url: MysqlUrl,
    *,
    manner: Manner = Manner.MERGED,
    grace_s: float = 0,
    **options: int,
) -> AsyncIterator[Process]:
    """`options` are those of a Database."""
    registry = CollectorRegistry()
    database = Database(url, LedgerMetrics(registry), **options)
    stock = LedgerStock(database, SalesMetrics(registry), manner)
    orders = LedgerOrders(database, record_ttl_s=RECORD_TTL_S, grace_s=grace_s)
    expiry = Expiry(
        database,
        orders.bookkeeping,
        EngineMetrics(registry),
        record_ttl_s=RECORD_TTL_S,
        event_ttl_s=EVENT_TTL_S,
    )
    gates = Gates([Gate.always_open(stock, Metrics(registry), structlog.get_logger())])
    products = PerServer([Products(database)])
    lifecycle = Lifecycle(stock, products, gates, partitions=1, default_shards=1, has_buffer=False)
    yield Process(database, stock, orders, expiry, lifecycle, registry)
    await orders.drain()
    await stock.drain()
    await database.close()


@pytest.fixture(scope="session")
async def engine_url(services: LocalStack) -> MysqlUrl:
    """A database that belongs to the engine, with all tables."""
    url = await create_database(parse_url(services.mysql_url))
    opened = Database(url, new_metrics())
    await migrate(opened)
    await claim_for_mysql(opened)
    await opened.close()
    return url


@pytest.fixture(scope="session")
async def one(engine_url: MysqlUrl) -> AsyncIterator[Process]:
    async with process(engine_url) as running:
        yield running


@pytest.fixture(scope="session")
async def other(engine_url: MysqlUrl) -> AsyncIterator[Process]:
    async with process(engine_url) as running:
        yield running


@pytest.fixture
def on_sale(one: Process) -> NewProduct:
    """`await on_sale(100)`: a product with so many units that is sold; returns its id."""

    async def create(units: int, **settings: Any) -> int:
        product_id = next(product_ids)
        await Products(one.database).put(settings_of(product_id, units, **settings))
        await one.lifecycle.load(product_id, wait_s=1)
        return product_id

    return create


def settings_of(product_id: int, units: int, **settings: Any) -> ProductSettings:
    plain = ProductSettings(
        product_id=product_id,
        name="",
        total_stock=units,
        buffer_percent=5,
        shards=0,
        max_per_user=0,
        low_stock=0,
    )
    return replace(plain, **settings)


def buying(product_id: int, number: int, *, attempt: int = 1) -> list[Deduction]:
    """Requests for a unit each under ids that nobody has used."""
    prefix = secrets.token_hex(4)
    return [Deduction(f"{prefix}-{i}", product_id, 1, attempt=attempt) for i in range(number)]


async def ask(sender: Process, *requests: Deduction) -> list[Answer]:
    """The answers to requests of one call."""
    return await sender.stock.deduct(requests)


async def row_of(reader: Process, product_id: int) -> ProductRow:
    return await Products(reader.database).get(product_id)


async def assert_balanced(reader: Process, product_id: int) -> ProductRow:
    """The row is the sum of its journal, with one row for each effect, and nothing is below zero."""
    row = await row_of(reader, product_id)
    sums = dict(
        await fetch(
            reader.database,
            "SELECT kind, CAST(SUM(quantity) AS SIGNED) FROM inventory_log"
            " WHERE product_id = %s GROUP BY kind",
            product_id,
        )
    )
    moved = {str(kind): int(str(units)) for kind, units in sums.items()}
    confirmed = -moved.get("confirm", 0)
    held = -moved.get("reserve", 0) - confirmed - moved.get("release", 0)
    assert row.sold_count == confirmed - moved.get("deduct", 0)
    assert row.held_stock == held == await _units_of_holds(reader, product_id)
    assert row.total_stock == row.available_stock + row.held_stock + row.sold_count
    assert min(row.available_stock, row.held_stock, row.sold_count) >= 0
    return row


async def _units_of_holds(reader: Process, product_id: int) -> int:
    ((units,),) = await fetch(
        reader.database,
        "SELECT CAST(COALESCE(SUM(quantity), 0) AS SIGNED) FROM hold WHERE product_id = %s",
        product_id,
    )
    return int(str(units))


async def assert_free(reader: Process, product_id: int) -> None:
    """No transaction that was left open holds the row."""
    await fetch(
        reader.database,
        "SELECT version FROM product_inventory WHERE product_id = %s FOR UPDATE NOWAIT",
        product_id,
    )


def accepted(answers: list[Answer]) -> int:
    return sum(answer.outcome is Outcome.DEDUCTED for answer in answers)
