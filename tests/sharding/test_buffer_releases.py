"""Units of the buffer come on sale once, and every reading says where each unit is."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import count

import pytest

from sharding import keys
from sharding.cluster import Cluster, LaneKind
from sharding.errors import StockUnavailableError
from sharding.events import Counts, Kind
from sharding.metrics import StockMetrics
from sharding.outcomes import Answer, Deduction, Outcome, ProductStock, Reason
from sharding.partitions import Partitions
from sharding.stock import Stock
from tests.sharding.conftest import events_of, plan_for

BUFFER = 100
LoadBuffered = Callable[..., Awaitable[int]]
_product_ids = count(7_700_001)


@pytest.fixture
def load(stock: Stock) -> LoadBuffered:
    """`await load(1, 2)`: a product with these units in its shards and 100 in the buffer."""

    async def load_product(*amounts: int) -> int:
        product_id = next(_product_ids)
        await stock.load(replace(plan_for(product_id, *amounts), buffer=BUFFER))
        return product_id

    return load_product


@pytest.fixture
async def elsewhere(cluster: Cluster, partitions: Partitions, metrics: StockMetrics) -> Stock:
    """Another process's view of the stock."""
    return Stock(cluster, metrics)


async def read(stock: Stock, product_id: int) -> ProductStock:
    seen = await stock.read(product_id)
    assert seen is not None
    return seen


def accounted(seen: ProductStock) -> int:
    return seen.available + seen.held + seen.in_transit + seen.buffer + seen.sold


async def buy(stock: Stock, product_id: int, name: str, quantity: int = 1) -> Answer:
    (answer,) = await stock.deduct([Deduction(name, product_id, quantity, attempt=1)])
    return answer


async def test_what_was_released_comes_once_in_whichever_order(
    stock: Stock, load: LoadBuffered, elsewhere: Stock, partitions: Partitions
) -> None:
    product = await load(3, 4)
    came = [
        await process.bring_buffer(product, epoch=1, released=released)
        for process, released in (
            (stock, 30),
            (elsewhere, 30),
            (stock, 50),
            (elsewhere, 30),
            (stock, 50),
        )
    ]
    assert came == [30, 0, 20, 0, 0]
    seen = await read(stock, product)
    assert (seen.available, seen.buffer, seen.total, accounted(seen)) == (57, 50, 107, 107)
    told = [e for e in await events_of(partitions, product) if e.kind is Kind.BUFFER]
    assert [event.quantity for event in told] == [30, 20]
    assert [event.counts for event in told] == [Counts(33, 0, 0, 33), Counts(53, 0, 0, 53)]


async def test_calls_at_once_bring_it_once(
    stock: Stock, load: LoadBuffered, elsewhere: Stock
) -> None:
    product = await load(0)
    calls = (
        process.bring_buffer(product, epoch=1, released=60)
        for process in (stock, elsewhere)
        for _ in range(5)
    )
    assert sorted(await asyncio.gather(*calls)) == [0] * 9 + [60]  # type: ignore[type-var]


async def test_who_was_refused_is_served_by_every_process_once_it_has_come(
    stock: Stock, load: LoadBuffered, elsewhere: Stock
) -> None:
    product = await load(0, 0)
    for i in range(5):
        for name, process in (("a", stock), ("b", elsewhere)):
            refused = await buy(process, product, f"{name}{i}")
            assert refused.outcome is Outcome.INSUFFICIENT_STOCK
        await stock.bring_buffer(product, epoch=1, released=2 * i + 2)
        for name, process in (("b", elsewhere), ("a", stock)):
            assert (await buy(process, product, f"{name}{i}")).outcome is Outcome.DEDUCTED


async def test_every_exact_reading_has_every_unit_in_one_place(
    stock: Stock, load: LoadBuffered, elsewhere: Stock
) -> None:
    product = await load(20, 20, 20)
    readings = [await read(elsewhere, product)]
    is_over = asyncio.Event()

    async def watch() -> None:
        while not is_over.is_set():
            readings.append(await read(elsewhere, product))

    async def sell() -> None:
        for i in range(60):
            await buy(stock, product, f"s{i}")

    async def release() -> None:
        for released in range(5, BUFFER + 1, 5):
            await stock.bring_buffer(product, epoch=1, released=released)

    watching = asyncio.create_task(watch())
    await asyncio.gather(sell(), release())
    is_over.set()
    await watching
    exact = [seen for seen in readings if seen.exact]
    assert {(seen.total, accounted(seen)) for seen in exact} == {(160, 160)}
    assert {seen.buffer for seen in exact} > {0, BUFFER}
    last = await read(stock, product)
    assert (last.available, last.sold, last.buffer) == (100, 60, 0)


async def test_it_follows_the_product_through_changes_of_its_layout(
    stock: Stock, load: LoadBuffered, elsewhere: Stock
) -> None:
    product = await load(1, 1, 1, 1)
    await stock.bring_buffer(product, epoch=1, released=10)
    for version, shards in ((2, 6), (4, 1)):
        await stock.change_layout(product, version=version, shards=shards, cause="operator")
        await elsewhere.bring_buffer(product, epoch=1, released=10 + 10 * version)
        seen = await read(elsewhere, product)
        assert (seen.buffer, seen.total) == (90 - 10 * version, 104)
        assert accounted(seen) == 104


async def test_a_product_that_was_closed_or_loaded_anew_gets_nothing(
    stock: Stock, load: LoadBuffered
) -> None:
    product = await load(5, 5)
    await stock.bring_buffer(product, epoch=1, released=10)
    await stock.close(product, 1)
    assert await stock.bring_buffer(product, epoch=1, released=20) is None
    await stock.load(replace(plan_for(product, 8, 8, epoch=2), buffer=50))
    assert await stock.bring_buffer(product, epoch=1, released=20) is None
    assert await stock.bring_buffer(product, epoch=2, released=4) == 4
    seen = await read(stock, product)
    assert (seen.available, seen.buffer, seen.total) == (20, 46, 66)


async def test_a_shard_that_is_not_open_yet_waits_and_a_frozen_one_does_not(
    stock: Stock, load: LoadBuffered, cluster: Cluster
) -> None:
    product = await load(5)
    (shard,) = (await read(stock, product)).shards
    key = keys.stock(cluster.tags[shard.partition], product)
    write = ("HSET", key)
    await cluster.command(shard.partition, *write, "state", "loading", lane=LaneKind.WRITE)
    with pytest.raises(StockUnavailableError) as loading:
        await stock.bring_buffer(product, epoch=1, released=7)
    assert loading.value.reason is Reason.PRODUCT_LOADING
    fields = ("state", "open", "frozen", "1")
    await cluster.command(shard.partition, *write, *fields, lane=LaneKind.WRITE)
    assert await stock.bring_buffer(product, epoch=1, released=7) == 7
    assert (await buy(stock, product, "b")).reason is Reason.PRODUCT_FROZEN


@pytest.mark.parametrize("value", ["", "x", "-3"])
async def test_a_damaged_count_brings_nothing(
    stock: Stock, load: LoadBuffered, cluster: Cluster, value: str
) -> None:
    product = await load(5)
    (shard,) = (await read(stock, product)).shards
    key = keys.stock(cluster.tags[shard.partition], product)
    await cluster.command(shard.partition, "HSET", key, "released", value, lane=LaneKind.WRITE)
    with pytest.raises(StockUnavailableError) as damaged:
        await stock.bring_buffer(product, epoch=1, released=7)
    assert damaged.value.reason is Reason.SHARD_CORRUPT
    assert (await buy(stock, product, "b")).available == 4
