"""Markers, repairs and freezing at the shards themselves."""

import asyncio

import pytest

from sharding import keys
from sharding.cluster import Cluster, LaneKind
from sharding.errors import RepairImpossibleError
from sharding.events import Counts, Event, Kind, Repair
from sharding.outcomes import Answer, Deduction, Outcome, Reason
from sharding.partitions import Partitions
from sharding.placement import Layout
from sharding.plans import Freeze
from sharding.shards import Shards
from sharding.stock import Stock
from tests.sharding.conftest import LoadProduct, events_of, plan_for

FROZEN = Answer(Outcome.FROZEN, reason=Reason.PRODUCT_FROZEN)
NOTHING = Counts(0, 0, 0, 0)


def shards_of(cluster: Cluster, product: int, shards: int, version: int = 1) -> Shards:
    return Shards(cluster, product, Layout(version, shards))


async def command(cluster: Cluster, product: int, partition: int, *words: str) -> object:
    """A command on a shard's key, as somebody who bypasses the service would give it."""
    name, *args = words
    key = keys.stock(cluster.tags[partition], product)
    return await cluster.command(partition, name, key, *args, lane=LaneKind.WRITE)


async def buy(stock: Stock, product: int, name: str, attempt: int = 1) -> Answer:
    (answer,) = await stock.deduct([Deduction(name, product, 1, attempt=attempt)])
    return answer


async def told(partitions: Partitions, product: int, kind: Kind) -> list[Event]:
    return [event for event in await events_of(partitions, product) if event.kind is kind]


async def test_a_marker_tells_every_shards_counts_and_changes_nothing(
    stock: Stock, load: LoadProduct, partitions: Partitions
) -> None:
    product = await load(5, 4, 3)
    assert (await buy(stock, product, "a")).outcome is Outcome.DEDUCTED
    before = await stock.read(product)
    marked = await stock.mark(product)
    assert marked is not None
    assert not marked.faults
    assert sum(marker.counts.available for marker in marked.markers) == 11
    marks = await told(partitions, product, Kind.MARK)
    assert {event.id for event in marks} == {marker.event_id for marker in marked.markers}
    assert sorted(event.counts for event in marks if event.counts) == sorted(
        marker.counts for marker in marked.markers
    )
    assert await stock.read(product) == before
    assert await stock.mark(product + 1_000_000) is None


async def test_shards_that_left_the_layout_are_marked_too(stock: Stock, load: LoadProduct) -> None:
    product = await load(1, 1, 1, 1, 1, 1)
    assert await stock.change_layout(product, version=3, shards=2, cause="operator")
    marked = await stock.mark(product)
    assert marked is not None
    assert len(marked.markers) == 6


@pytest.mark.parametrize(
    ("value", "counted"), [("-5", -5), ("abc", 0), ("10.0", 0), (" 10", 0), ("", 0)]
)
async def test_a_damaged_count_is_found_and_not_stumbled_over(
    stock: Stock, load: LoadProduct, cluster: Cluster, value: str, counted: int
) -> None:
    product = await load(10)
    (partition,) = shards_of(cluster, product, 1).partitions
    await command(cluster, product, partition, "HSET", "available", value)
    marked = await stock.mark(product)
    assert marked is not None
    (marker,) = marked.markers
    assert (marker.damaged, marker.counts) == ("available", Counts(counted, 0, 0, 10))
    assert not marked.faults
    repair = Repair(7, Counts(10 - counted, 0, 0, 0), NOTHING, "somebody")
    assert await stock.repair(product, partition, repair, epoch=1, reason="it was damaged")
    assert (await buy(stock, product, "a")).available == 9


async def test_a_shard_whose_key_is_gone_or_of_another_type_is_a_fault(
    stock: Stock, load: LoadProduct, cluster: Cluster
) -> None:
    product = await load(10, 10, 10)
    gone, odd, _ = shards_of(cluster, product, 3).partitions
    await command(cluster, product, gone, "DEL")
    await command(cluster, product, odd, "DEL")
    await command(cluster, product, odd, "RPUSH", "x")
    marked = await stock.mark(product)
    assert marked is not None
    assert len(marked.markers) == 1
    faults = {fault.partition: fault.reason for fault in marked.faults}
    assert faults == {gone: Reason.SHARD_CORRUPT, odd: Reason.SHARD_CORRUPT}


async def test_a_difference_is_compensated_once_whoever_calls_and_however_often(
    stock: Stock, load: LoadProduct, cluster: Cluster, partitions: Partitions
) -> None:
    product = await load(10)
    (partition,) = shards_of(cluster, product, 1).partitions
    await command(cluster, product, partition, "HINCRBY", "available", "3")
    repair = Repair(41, Counts(-3, 0, 0, 0), NOTHING, "somebody")
    entered = await asyncio.gather(
        *(stock.repair(product, partition, repair, epoch=1, reason="counted") for _ in range(5))
    )
    assert sum(entered) == 1
    assert not await stock.repair(
        product, partition, repair._replace(drift_id=40), epoch=1, reason="an older one"
    )
    (event,) = await told(partitions, product, Kind.REPAIR)
    assert (event.repair, event.reason, event.counts) == (repair, "counted", Counts(10, 0, 0, 10))
    live = await stock.read(product)
    assert live is not None
    assert (live.available, live.total) == (10, 10)
    assert await stock.repair(
        product, partition, repair._replace(drift_id=42), epoch=1, reason="a later one"
    )


async def test_a_repeated_call_knows_its_own_repair(load: LoadProduct, cluster: Cluster) -> None:
    product = await load(10)
    shards = shards_of(cluster, product, 1)
    (partition,) = shards.partitions
    repair = Repair(5, Counts(-1, 0, 0, -1), NOTHING, "somebody")
    for call, is_first in (("mine", True), ("mine", True), ("other", False)):
        word, is_this = await shards.repair(partition, repair, epoch=1, call=call, reason="x")
        assert (word, is_this) == ("done", is_first)


async def test_a_repair_that_would_take_more_than_there_is_changes_nothing(
    stock: Stock, load: LoadProduct, cluster: Cluster, partitions: Partitions
) -> None:
    product = await load(2)
    (partition,) = shards_of(cluster, product, 1).partitions
    repair = Repair(5, Counts(-3, 0, 0, 0), NOTHING, "somebody")
    with pytest.raises(RepairImpossibleError):
        await stock.repair(product, partition, repair, epoch=1, reason="x")
    assert not await stock.repair(product, partition, repair, epoch=2, reason="another epoch")
    assert await told(partitions, product, Kind.REPAIR) == []


async def test_a_frozen_product_sells_nothing_and_answers_repeats(
    stock: Stock, load: LoadProduct
) -> None:
    product = await load(3, 3)
    first = await buy(stock, product, "a")
    assert await stock.freeze(product, Freeze(1, frozen=True)) == frozenset()
    assert await buy(stock, product, "b") == FROZEN
    assert await buy(stock, product, "a", attempt=2) == first._replace(replayed=True)
    assert await stock.freeze(product, Freeze(0, frozen=False)) == frozenset()
    assert await buy(stock, product, "b") == FROZEN
    live = await stock.read(product)
    assert live is not None
    assert live.frozen
    assert await stock.freeze(product, Freeze(2, frozen=False)) == frozenset()
    assert (await buy(stock, product, "b")).outcome is Outcome.DEDUCTED


async def test_a_frozen_product_is_never_called_sold_out(stock: Stock, load: LoadProduct) -> None:
    """Nor is one that was sold out before, once whoever has frozen it has its answer."""
    product = await load(1)
    await buy(stock, product, "a")
    assert (await buy(stock, product, "b")).outcome is Outcome.INSUFFICIENT_STOCK
    await stock.freeze(product, Freeze(1, frozen=True))
    await stock.outlive_notes([product])
    for attempt in (0, 1, 2):
        assert await buy(stock, product, f"c{attempt}", attempt=attempt) == FROZEN


async def test_a_layout_that_a_frozen_product_gets_is_frozen(
    stock: Stock, load: LoadProduct
) -> None:
    product = await load(6, 6)
    await stock.freeze(product, Freeze(3, frozen=True))
    assert await stock.change_layout(product, version=3, shards=6, cause="operator")
    answers = [await buy(stock, product, f"r{i}") for i in range(20)]
    assert set(answers) == {FROZEN}
    await stock.freeze(product, Freeze(4, frozen=False))
    assert (await buy(stock, product, "r0")).outcome is Outcome.DEDUCTED


async def test_a_product_that_is_loaded_anew_stays_frozen(stock: Stock, load: LoadProduct) -> None:
    product = await load(6, 6)
    await stock.freeze(product, Freeze(3, frozen=True))
    await stock.close(product, 1)
    await stock.load(plan_for(product, 4, 4, epoch=2))
    assert await buy(stock, product, "a") == FROZEN


async def test_a_decision_that_falls_between_plan_and_load_counts(
    stock: Stock, load: LoadProduct
) -> None:
    product = await load(6, 6)
    await stock.close(product, 1)

    async def frozen_meanwhile() -> Freeze:
        return Freeze(1, frozen=True)

    await stock.load(plan_for(product, 4, 4, epoch=2), before_opening=frozen_meanwhile)
    assert await buy(stock, product, "a") == FROZEN


async def test_a_partition_that_is_shut_is_told_and_one_without_the_shard_is_not_made(
    stock: Stock, load: LoadProduct, cluster: Cluster
) -> None:
    product = await load(6)
    (partition,) = shards_of(cluster, product, 1).partitions
    head = keys.head(cluster.tags[partition])
    owner = await cluster.command(partition, "HGET", head, "owner", lane=LaneKind.READ)
    assert isinstance(owner, bytes)
    await cluster.command(partition, "HSET", head, "owner", "0" * 40, lane=LaneKind.WRITE)
    try:
        await stock.freeze_at(partition, product, Freeze(1, frozen=True))
    finally:
        await cluster.command(partition, "HSET", head, "owner", owner.decode(), lane=LaneKind.WRITE)
    assert await buy(stock, product, "a") == FROZEN
    other = (partition + 1) % cluster.settings.partitions
    await stock.freeze_at(other, product, Freeze(1, frozen=True))
    assert await command(cluster, product, other, "EXISTS") == 0
