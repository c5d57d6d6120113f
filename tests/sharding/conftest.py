"""The live stock on a real Redis Cluster; every test has products of its own."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import count

import pytest
from prometheus_client import CollectorRegistry

from deploy.local.stack import LocalStack
from sharding.cluster import Cluster
from sharding.events import BEFORE_ALL, Event, decode
from sharding.metrics import StockMetrics
from sharding.partitions import NOTHING_APPLIED, Entry, Partitions
from sharding.placement import Layout
from sharding.plans import LoadPlan
from sharding.settings import StockSettings
from sharding.stock import Stock

LoadProduct = Callable[..., Awaitable[int]]

_product_ids = count(7_000_001)


def settings_for(services: LocalStack, **changes: object) -> StockSettings:
    return StockSettings.model_validate(
        {"redis_nodes": ",".join(services.redis_nodes), "redis_timeout_ms": 1_000, **changes}
    )


@pytest.fixture(scope="session")
async def metrics() -> StockMetrics:
    return StockMetrics(CollectorRegistry())


@pytest.fixture(scope="session")
async def cluster(services: LocalStack, metrics: StockMetrics) -> AsyncIterator[Cluster]:
    connected = await Cluster.connect(settings_for(services), metrics)
    yield connected
    await connected.close()


@pytest.fixture(scope="session")
async def partitions(cluster: Cluster) -> Partitions:
    """All partitions, open."""
    all_of_them = Partitions(cluster, partitions=cluster.settings.partitions)
    await asyncio.gather(
        *(_open_if_shut(all_of_them, i) for i in range(cluster.settings.partitions))
    )
    return all_of_them


async def _open_if_shut(partitions: Partitions, partition: int) -> None:
    if not (await partitions.head(partition)).is_open:
        await partitions.open(partition, [NOTHING_APPLIED], opening=1)


@pytest.fixture
async def stock(
    cluster: Cluster, partitions: Partitions, metrics: StockMetrics
) -> AsyncIterator[Stock]:
    live = Stock(cluster, metrics)
    yield live
    await live.drain()


@pytest.fixture
def load(stock: Stock) -> LoadProduct:
    """`await load(1, 2, 3)`: a new product on sale with these units in its shards; returns its id."""

    async def load_product(*amounts: int) -> int:
        product_id = next(_product_ids)
        await stock.load(plan_for(product_id, *amounts))
        return product_id

    return load_product


def plan_for(product_id: int, *amounts: int, epoch: int = 1) -> LoadPlan:
    return LoadPlan(product_id, epoch, Layout(epoch, len(amounts)), amounts, 0, 0)


async def entries_of(partitions: Partitions, partition: int) -> list[Entry]:
    return await partitions.read(partition, ledger=0, after=BEFORE_ALL, count=100_000)


async def events_of(partitions: Partitions, product_id: int) -> list[Event]:
    """Every event of a product, partition by partition."""
    found = []
    for partition in range(48):
        for entry in await entries_of(partitions, partition):
            fields = dict(zip(entry.fields[::2], entry.fields[1::2], strict=True))
            if fields.get(b"product") == str(product_id).encode():
                found.append(decode(entry.id, fields))
    return found
