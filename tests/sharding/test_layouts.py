"""Close and Load with another shard count, while other processes still know the earlier layout."""

import asyncio
from dataclasses import replace

import pytest

from sharding import keys
from sharding.cluster import Cluster, LaneKind
from sharding.errors import LoadConflictError
from sharding.metrics import StockMetrics
from sharding.outcomes import Answer, Deduction, Outcome, Reason, State
from sharding.partitions import Partitions
from sharding.placement import home_shard
from sharding.plans import split_evenly
from sharding.stock import Stock
from tests.moving import begin
from tests.sharding.conftest import LoadProduct, plan_for


@pytest.fixture
async def elsewhere(cluster: Cluster, partitions: Partitions, metrics: StockMetrics) -> Stock:
    """Another process's view of the stock."""
    return Stock(cluster, metrics)


async def reload(stock: Stock, product: int, shards: int, *, units: int, former: int) -> None:
    await stock.close(product, 1)
    plan = plan_for(product, *split_evenly(units, shards), epoch=2)
    await stock.load(replace(plan, former_shards=(former,)))


@pytest.mark.parametrize(("before", "after"), [(6, 3), (6, 1), (3, 6), (1, 48), (48, 2)])
async def test_an_id_of_the_earlier_layout_gets_its_first_answer(
    stock: Stock, load: LoadProduct, elsewhere: Stock, before: int, after: int
) -> None:
    product = await load(*split_evenly(960, before))
    requests = [Deduction(f"early-{i}", product, 1) for i in range(20)]
    first = await stock.deduct(requests)
    await reload(stock, product, after, units=940, former=before)
    for process in (stock, elsewhere):
        again = await process.deduct(requests)
        assert again == [answer._replace(replayed=True) for answer in first]
    mismatch = await stock.deduct([requests[0]._replace(quantity=2)])
    assert mismatch[0].outcome is Outcome.REQUEST_MISMATCH
    seen = await stock.read(product)
    assert seen is not None
    assert seen.available == 940


@pytest.mark.parametrize(("before", "after"), [(6, 3), (3, 6), (1, 6), (6, 1)])
async def test_a_process_with_the_earlier_layout_finds_the_new_one_by_itself(
    stock: Stock,
    load: LoadProduct,
    elsewhere: Stock,
    before: int,
    after: int,
) -> None:
    product = await load(*[10] * before)
    await elsewhere.deduct([Deduction("warm", product, 1)])
    await reload(stock, product, after, units=60, former=before)
    answers = await elsewhere.deduct(
        [Deduction(f"late-{i}", product, 1, attempt=1) for i in range(40)]
    )
    assert {answer.outcome for answer in answers} == {Outcome.DEDUCTED}
    restocked = await elsewhere.restock(product, request_id="in", quantity=5, reason="")
    assert restocked.outcome is Outcome.DEDUCTED


@pytest.mark.parametrize("attempt", [0, 1, 2])
async def test_a_first_copy_that_was_held_up_across_a_load_meets_its_record(
    stock: Stock, load: LoadProduct, elsewhere: Stock, attempt: int
) -> None:
    product = await load(*[10] * 6)
    retried = await stock.deduct([Deduction("held-up", product, 1, attempt=2)])
    await reload(stock, product, 1, units=59, former=6)
    late = await elsewhere.deduct([Deduction("held-up", product, 1, attempt=attempt)])
    assert late == [retried[0]._replace(replayed=True)]


async def test_a_take_that_a_failover_undid_creates_no_units(
    stock: Stock, load: LoadProduct, cluster: Cluster
) -> None:
    product = await load(5, 0)
    found = await stock._catalogue.find(product)
    assert found is not None
    donor, receiver = found.shards.partitions
    await begin(found.shards, donor, receiver, 5)
    # The node that takes over has neither the take nor all of the units: two were sold meanwhile.
    key = keys.stock(cluster.tags[donor], product)
    await cluster.command(donor, "HDEL", key, f"out:{receiver}", lane=LaneKind.WRITE)
    await cluster.command(donor, "HSET", key, "available", "3", "sold", "2", lane=LaneKind.WRITE)
    await stock.finish_transfers(product, donor, receiver)
    seen = await stock.read(product)
    assert seen is not None
    assert (seen.available, seen.sold, seen.in_transit) == (3, 2, 0)


@pytest.mark.parametrize("kind", ["restock", "remove"])
async def test_a_correction_that_was_held_up_across_a_load_is_applied_once(
    stock: Stock, load: LoadProduct, elsewhere: Stock, kind: str
) -> None:
    product = await load(*[10] * 6)
    first = await getattr(stock, kind)(product, request_id="c", quantity=5, reason="")
    units = 65 if kind == "restock" else 55
    await reload(stock, product, 1, units=units, former=6)
    late = await getattr(elsewhere, kind)(product, request_id="c", quantity=5, reason="")
    assert (first.replayed, late.replayed) == (False, True)
    seen = await stock.read(product)
    assert seen is not None
    assert seen.available == units


async def test_a_product_that_was_just_loaded_again_is_not_called_closed(
    stock: Stock, load: LoadProduct, elsewhere: Stock
) -> None:
    product = await load(10, 10)
    await stock.close(product, 1)
    (closed,) = await elsewhere.deduct([Deduction("early", product, 1)])
    await stock.load(replace(plan_for(product, 20, epoch=2), former_shards=(2,)))
    (sold,) = await elsewhere.deduct([Deduction("late", product, 1)])
    assert closed == Answer(Outcome.FROZEN, reason=Reason.PRODUCT_CLOSED)
    assert sold.outcome is Outcome.DEDUCTED


async def test_closing_uses_the_layout_in_force_and_not_the_one_it_knew(
    stock: Stock, load: LoadProduct, elsewhere: Stock
) -> None:
    product = await load(10, 10, 10)
    await elsewhere.deduct([Deduction("warm", product, 1)])
    await reload(stock, product, 6, units=29, former=3)
    await elsewhere.close(product, 2)
    seen = await stock.read(product)
    assert seen is not None
    assert (seen.state, seen.available) == (State.CLOSED, 0)
    with pytest.raises(LoadConflictError):
        await elsewhere.close(product, 1)


async def test_a_delayed_take_of_an_earlier_layout_moves_nothing(
    stock: Stock, load: LoadProduct
) -> None:
    product = await load(*[1] * 6)
    found = await stock._catalogue.find(product)
    assert found is not None
    old = found.shards
    await reload(stock, product, 1, units=6, former=6)
    donor, receiver = old.partitions[0], old.partitions[1]
    taken = await old.take(donor, receiver=receiver, before=0, quantity=6)
    assert taken.word == "stale"
    seen = await stock.read(product)
    assert seen is not None
    assert (seen.available, seen.in_transit) == (6, 0)


@pytest.mark.parametrize("attempt", [0, 1, 2])
async def test_a_shortage_while_the_product_closes_is_no_sell_out(
    stock: Stock, load: LoadProduct, elsewhere: Stock, metrics: StockMetrics, attempt: int
) -> None:
    product = await load(*[1] * 48)
    taken = metrics.moves.labels("taken")._value
    before = taken.get()
    selling = elsewhere.deduct([Deduction("forty", product, 40, attempt=attempt)])
    async with asyncio.timeout(10):
        while taken.get() == before and not selling.done():  # noqa: ASYNC110 - a counter has no event
            await asyncio.sleep(0)
    await stock.close(product, 1)
    (answer,) = await selling
    assert answer.outcome is not Outcome.INSUFFICIENT_STOCK


async def test_a_damaged_listing_is_unavailable_and_forgotten_once_it_is_repaired(
    stock: Stock, load: LoadProduct, elsewhere: Stock, cluster: Cluster
) -> None:
    product = await load(5)
    found = await stock._catalogue.find(product)
    assert found is not None
    (partition,) = found.shards.partitions
    key = keys.product_info(cluster.tags[partition], product)
    await cluster.command(partition, "HSET", key, "shards", "0", lane=LaneKind.WRITE)
    (during,) = await elsewhere.deduct([Deduction("a", product, 1)])
    await cluster.command(partition, "HSET", key, "shards", "1", lane=LaneKind.WRITE)
    (after,) = await elsewhere.deduct([Deduction("a", product, 1)])
    assert during == Answer(Outcome.UNAVAILABLE, reason=Reason.SHARD_CORRUPT)
    assert (after.outcome, after.replayed) == (Outcome.DEDUCTED, False)


async def test_a_damaged_transfer_note_is_unavailable_and_never_a_shortage(
    stock: Stock, load: LoadProduct, cluster: Cluster
) -> None:
    product = await load(5, 5)
    found = await stock._catalogue.find(product)
    assert found is not None
    partition = found.shards.partitions[0]
    key = keys.stock(cluster.tags[partition], product)
    await cluster.command(partition, "HSET", key, "out:9", "abc", lane=LaneKind.WRITE)
    (answer,) = await stock.deduct([Deduction("all", product, 10)])
    assert answer == Answer(Outcome.UNAVAILABLE, reason=Reason.SHARD_CORRUPT)


async def test_a_shortage_keeps_nobody_waiting_for_what_home_has(
    stock: Stock, load: LoadProduct, cluster: Cluster
) -> None:
    product = await load(50, 50)
    ids = (f"q-{i}" for i in range(1_000))
    large, *small = [i for i in ids if home_shard(i, 2) == 0][:11]
    found = await stock._catalogue.find(product)
    assert found is not None
    other = found.shards.partitions[1]
    key = keys.head(cluster.tags[other])
    owner = await cluster.command(other, "HGET", key, "owner", lane=LaneKind.READ)
    assert isinstance(owner, bytes)
    await cluster.command(other, "HSET", key, "owner", "nobody", lane=LaneKind.WRITE)
    try:
        waiting = stock.deduct([Deduction(large, product, 80)])
        answers = await stock.deduct([Deduction(i, product, 1) for i in small])
        assert not waiting.done()
        assert {answer.outcome for answer in answers} == {Outcome.DEDUCTED}
        (refused,) = await waiting
    finally:
        await cluster.command(other, "HSET", key, "owner", owner.decode(), lane=LaneKind.WRITE)
    assert refused.outcome is Outcome.UNAVAILABLE


async def test_removes_that_need_each_others_units_are_served_one_after_the_other(
    stock: Stock, load: LoadProduct
) -> None:
    product = await load(*[1] * 24)
    answers = await asyncio.gather(
        *(stock.remove(product, request_id=f"r-{i}", quantity=10, reason="") for i in range(4))
    )
    outcomes = sorted(answer.outcome for answer in answers)
    assert outcomes == [Outcome.DEDUCTED] * 2 + [Outcome.INSUFFICIENT_STOCK] * 2
    seen = await stock.read(product)
    assert seen is not None
    assert (seen.available, seen.in_transit) == (4, 0)


async def test_no_requests_are_answered_with_no_answers(stock: Stock) -> None:
    assert await stock.deduct([]) == []
