"""MySQL away: sales go on up to the limit, and again once the ledger has caught up by half of it."""

from collections.abc import AsyncIterator, Callable
from itertools import count

import pytest
from prometheus_client import CollectorRegistry

from sharding.cluster import Cluster
from sharding.metrics import StockMetrics
from sharding.ordering import Orders
from sharding.orders import Line
from sharding.outcomes import Answer, Deduction, Outcome, Reason
from sharding.placement import base_partition
from sharding.settings import StockSettings
from sharding.stock import Stock
from tests.chaos.proxy import MysqlProxy
from tests.ledger.streams import fresh_request_ids
from tests.waiting import eventually
from tests.worker.conftest import PARTITIONS, StartWorker, World, free_port, plain

LIMIT = 100
UNITS = 400
_order_ids = count(9_500_001)


@pytest.fixture
async def limited(world: World) -> AsyncIterator[Stock]:
    """The stock as a server with a small limit sees it."""
    nodes = world.environment["INVENTORY_REDIS_NODES"]
    settings = StockSettings.model_validate(
        {"redis_nodes": nodes, "partitions": PARTITIONS, "backlog_max": LIMIT}
    )
    metrics = StockMetrics(CollectorRegistry())
    cluster = await Cluster.connect(settings, metrics)
    stock = Stock(cluster, metrics)
    yield stock
    await stock.drain()
    await cluster.close()


async def buy(stock: Stock, product_id: int) -> Answer:
    (request_id,) = fresh_request_ids(1)
    (answer,) = await stock.deduct([Deduction(request_id, product_id, 1)])
    return answer


async def buy_until_refused(stock: Stock, product_id: int) -> int:
    """How many were sold before the ledger was too far behind."""
    for sold in range(LIMIT + 1):
        answer = await buy(stock, product_id)
        if answer.outcome is not Outcome.DEDUCTED:
            assert (answer.outcome, answer.reason) == (Outcome.UNAVAILABLE, Reason.LEDGER_BEHIND)
            return sold
    raise AssertionError("there is no limit")


async def elsewhere(world: World, product_id: int) -> int:
    """Another product on sale, in another partition."""
    while True:
        other = await world.on_sale(UNITS, shards=1)
        if base_partition(other, PARTITIONS) != base_partition(product_id, PARTITIONS):
            return other


def knows_all(world: World, partition: int) -> Callable[[], object]:
    async def is_told() -> bool:
        head = await world.partitions.head(partition)
        return head.stream(0).applied == head.number

    return is_told


async def test_without_mysql_a_partition_sells_up_to_the_limit_and_goes_on_when_it_is_back(
    opened: World, start_worker: StartWorker, limited: Stock
) -> None:
    port, orders = free_port(), Orders(limited, limited._cluster, grace_s=0)
    proxy = MysqlProxy(opened.mysql.host, opened.mysql.port, port=port)
    url = plain(opened.mysql).replace(f":{opened.mysql.port}/", f":{port}/")
    await proxy.open()
    worker = start_worker(MYSQL_URLS=url, BACKLOG_MAX=str(LIMIT))
    product_id = await opened.on_sale(UNITS, shards=1)
    other = await elsewhere(opened, product_id)
    kept, dropped, refused = (next(_order_ids) for _ in range(3))
    lines = [Line(product_id, 3)]
    for order_id in (kept, dropped):
        await orders.reserve(order_id, user_id=7, lines=lines, ttl_s=600)
    partition = base_partition(product_id, PARTITIONS)
    await eventually(knows_all(opened, partition))
    await proxy.shut()

    assert await buy_until_refused(limited, product_id) == LIMIT
    assert (await buy(limited, other)).outcome is Outcome.DEDUCTED
    answer = await orders.reserve(refused, user_id=7, lines=lines, ttl_s=600)
    assert (answer.outcome, answer.reason) == (Outcome.UNAVAILABLE, Reason.LEDGER_BEHIND)
    assert (await orders.confirm(kept)).outcome is Outcome.CONFIRMED
    assert (await orders.release(dropped)).outcome is Outcome.RELEASED
    await eventually(lambda: is_shown(worker, "inventory_worker_partitions_behind", 1))
    await eventually(lambda: is_shown(worker, lag_of(partition), LIMIT + 2))

    await proxy.open()
    await eventually(lambda: sells(limited, product_id))
    while (answer := await buy(limited, product_id)).outcome is not Outcome.INSUFFICIENT_STOCK:
        assert answer.outcome is Outcome.DEDUCTED or answer.reason is Reason.LEDGER_BEHIND
    row = await eventually(lambda: opened.is_sold(product_id, UNITS))
    assert (row.available_stock, row.held_stock) == (0, 0)
    rows = UNITS - 3 + 2 + 2  # a sale a unit but the order's; two holds and their ends
    assert await opened.journal_rows(product_id) == rows
    await eventually(lambda: is_shown(worker, "inventory_worker_partitions_behind", 0))
    assert await worker.metric("inventory_ledger_drift_total") == 0
    assert await worker.stop() == 0
    await proxy.shut()


async def test_a_limit_that_is_reached_without_any_worker_ends_with_the_first_one(
    opened: World, start_worker: StartWorker, limited: Stock
) -> None:
    product_id = await opened.on_sale(UNITS, shards=1)
    worker = start_worker()
    await eventually(knows_all(opened, base_partition(product_id, PARTITIONS)))
    assert await worker.stop() == 0
    assert await buy_until_refused(limited, product_id) == LIMIT
    start_worker(BACKLOG_MAX=str(LIMIT))
    await eventually(lambda: sells(limited, product_id))
    await eventually(lambda: opened.is_sold(product_id, LIMIT + 1))


async def sells(stock: Stock, product_id: int) -> bool:
    return (await buy(stock, product_id)).outcome is Outcome.DEDUCTED


async def is_shown(worker: object, name: str, value: float) -> bool:
    return await worker.metric(name) == value  # type: ignore[attr-defined,no-any-return]


def lag_of(partition: int) -> str:
    return f'inventory_worker_stream_lag_entries{{partition="{partition}"}}'
