"""Requests that were sold from the ledger's buffer, once the live stock has been told of them."""

import pytest

from sharding import keys
from sharding.cluster import Cluster, LaneKind
from sharding.metrics import StockMetrics
from sharding.outcomes import Answer, Deduction, Outcome, Resolution, Resolved
from sharding.partitions import Partitions
from sharding.placement import Layout, home_shard
from sharding.stock import Stock
from tests.sharding.conftest import LoadProduct, events_of
from tests.waiting import eventually

SHARDS = 3


@pytest.fixture
async def elsewhere(cluster: Cluster, partitions: Partitions, metrics: StockMetrics) -> Stock:
    """Another process's view of the stock."""
    return Stock(cluster, metrics)


async def ask(stock: Stock, request: Deduction) -> Answer:
    (answer,) = await stock.deduct([request])
    return answer


def sales(product_id: int, number: int) -> list[Deduction]:
    return [Deduction(f"sale-{i}", product_id, 2, user_id=7) for i in range(number)]


async def test_a_repeat_is_a_replay_and_takes_nothing(
    stock: Stock, load: LoadProduct, elsewhere: Stock, partitions: Partitions
) -> None:
    product = await load(5, 5, 5)
    sold = sales(product, 20)
    before = await events_of(partitions, product)
    for _ in range(2):
        assert sorted(await stock.recall(product, Layout(1, SHARDS), sold)) == sorted(sold)
    for process in (stock, elsewhere):
        for attempt in (0, 1, 2):
            again = await ask(process, sold[0]._replace(attempt=attempt))
            assert (again.outcome, again.replayed) == (Outcome.DEDUCTED, True)
        other = await ask(process, sold[1]._replace(quantity=1))
        assert other.outcome is Outcome.REQUEST_MISMATCH
    assert await stock.resolve(product, "sale-2") == Resolved(Resolution.DEDUCTED, 2)
    now = await stock.read(product)
    assert now is not None
    assert (now.available, now.sold, now.exact) == (15, 0, True)
    assert await events_of(partitions, product) == before


async def test_what_is_known_as_taken_keeps_its_first_answer(
    stock: Stock, load: LoadProduct
) -> None:
    product = await load(9)
    request = Deduction("both", product, 2)
    first = await ask(stock, request)
    assert await stock.recall(product, Layout(1, 1), [request]) == [request]
    assert await ask(stock, request) == first._replace(replayed=True)


async def test_what_was_refused_for_good_before_was_sold_after_all(
    stock: Stock, load: LoadProduct
) -> None:
    product = await load(1)
    request = Deduction("late", product, 2, attempt=2)
    assert (await ask(stock, request)).outcome is Outcome.INSUFFICIENT_STOCK
    await stock.recall(product, Layout(1, 1), [request])
    again = await ask(stock, request)
    assert (again.outcome, again.replayed) == (Outcome.DEDUCTED, True)


async def test_a_home_that_is_shut_keeps_nothing_from_the_others(
    stock: Stock, load: LoadProduct, cluster: Cluster
) -> None:
    product = await load(*[5] * SHARDS)
    sold = sales(product, 20)
    layout = Layout(1, SHARDS)
    shut = layout.partition(0, product_id=product, partitions=cluster.settings.partitions)
    head = keys.head(cluster.tags[shut])
    owner = await cluster.command(shut, "HGET", head, "owner", lane=LaneKind.READ)
    assert isinstance(owner, bytes)
    await cluster.command(shut, "HSET", head, "owner", "nobody", lane=LaneKind.WRITE)
    try:
        told = await stock.recall(product, Layout(1, SHARDS), sold)
    finally:
        await cluster.command(shut, "HSET", head, "owner", owner.decode(), lane=LaneKind.WRITE)
    at_shut = {request for request in sold if home_shard(request.request_id, SHARDS) == 0}
    assert at_shut
    assert set(told) == set(sold) - at_shut

    async def all_are_told() -> bool:
        return set(await stock.recall(product, Layout(1, SHARDS), sold)) == set(sold)

    await eventually(all_are_told)  # a home that was found shut is asked again in a moment
