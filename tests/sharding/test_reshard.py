"""Another number of shards while a product sells; units that move between them."""

import asyncio
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from sharding import keys
from sharding.balancing import Move, emptying, levelling
from sharding.cluster import Cluster, LaneKind
from sharding.directory import Directory
from sharding.errors import LayoutPassedError, RetiredAwayError, StockUnavailableError
from sharding.layouts import _Base
from sharding.metrics import StockMetrics
from sharding.outcomes import Answer, Deduction, Outcome, Reason, State
from sharding.partitions import Partitions
from sharding.placement import Layout, home_shard
from sharding.plans import NEVER_FROZEN, Freeze, split_evenly
from sharding.readings import ShardReading
from sharding.scripts import Script
from sharding.shards import Shards
from sharding.stock import Stock
from tests.sharding.conftest import LoadProduct, events_of


@pytest.fixture
async def elsewhere(cluster: Cluster, partitions: Partitions, metrics: StockMetrics) -> Stock:
    """Another process's view of the stock."""
    return Stock(cluster, metrics)


def requests_for(product: int, prefix: str, size: int, **fields: int) -> list[Deduction]:
    return [Deduction(f"{prefix}-{i}", product, 1, **fields) for i in range(size)]


def outcomes(answers: list[Answer]) -> set[tuple[Outcome, Reason]]:
    return {(answer.outcome, answer.reason) for answer in answers}


async def patiently(stock: Stock, requests: list[Deduction]) -> list[Answer]:
    """The answers to callers who ask again while a busy machine has them wait too long."""
    answers = await stock.deduct(requests)
    for _ in range(TRIES_MAX - 1):
        open_ones = [i for i, a in enumerate(answers) if a.outcome is Outcome.UNAVAILABLE]
        for i, answer in zip(
            open_ones, await stock.deduct([requests[i] for i in open_ones]), strict=True
        ):
            answers[i] = answer
    return answers


TRIES_MAX = 5
SOLD = {(Outcome.DEDUCTED, Reason.NONE)}


@pytest.mark.parametrize("way", [(1, 6, 24, 2), (48, 1, 3), (6, 1, 48)])
async def test_a_product_keeps_its_units_records_and_answers_through_every_layout(
    stock: Stock, load: LoadProduct, elsewhere: Stock, partitions: Partitions, way: tuple[int, ...]
) -> None:
    product = await load(*split_evenly(480, way[0]))
    asked = requests_for(product, "first", 20, attempt=1)
    firsts = dict(zip(asked, await stock.deduct(asked), strict=True))
    for version, shards in zip(count(3, 2), way[1:], strict=False):
        assert await stock.change_layout(product, version=version, shards=shards, cause="operator")
        while not await stock.drain_retired(product):
            pass
        again = [request._replace(attempt=0) for request in firsts]
        for process in (stock, elsewhere):
            expected = [answer._replace(replayed=True) for answer in firsts.values()]
            assert [a._replace(shard=0) for a in await process.deduct(again)] == [
                e._replace(shard=0) for e in expected
            ]
        fresh = requests_for(product, f"v{version}", 20, attempt=1)
        firsts |= dict(zip(fresh, await elsewhere.deduct(fresh), strict=True))
        assert outcomes(list(firsts.values())) == SOLD
        seen = await stock.read(product)
        assert seen is not None
        assert seen.exact
        assert (seen.available, seen.sold, seen.total) == (480 - len(firsts), len(firsts), 480)
        assert sum(shard.available for shard in seen.shards[:shards]) == seen.available
    rest = requests_for(product, "rest", 500)
    left = await patiently(stock, rest)
    assert sum(a.outcome is Outcome.DEDUCTED for a in left) == 480 - len(firsts)
    assert {a.outcome for a in left} == {Outcome.DEDUCTED, Outcome.INSUFFICIENT_STOCK}
    effects = [
        sale.request_id for event in await events_of(partitions, product) for sale in event.sales
    ]
    assert len(effects) == len(set(effects)) == 480


async def test_callers_notice_nothing_of_a_change_under_load(
    stock: Stock, load: LoadProduct, elsewhere: Stock
) -> None:
    product = await load(*split_evenly(3_000, 1))
    changed = asyncio.Event()
    sold: list[Answer] = []

    async def buy(process: Stock, name: str) -> None:
        for i in count():
            request = Deduction(f"{name}-{i}", product, 1, attempt=1)
            (answer,) = await process.deduct([request])
            sold.append(answer)
            if i % 10 == 0:
                (again,) = await elsewhere.deduct([request._replace(attempt=2)])
                assert again._replace(shard=0) == answer._replace(shard=0, replayed=True)
            if changed.is_set():
                return

    async def change() -> None:
        for version, shards in ((3, 6), (5, 24), (7, 2)):
            await stock.change_layout(product, version=version, shards=shards, cause="operator")
            while not await stock.drain_retired(product):
                pass
        changed.set()

    async with asyncio.TaskGroup() as group:
        for i in range(8):
            group.create_task(buy((stock, elsewhere)[i % 2], f"buyer-{i}"))
        group.create_task(change())
    assert outcomes(sold) == SOLD
    seen = await stock.read(product)
    assert seen is not None
    assert (seen.available, seen.sold) == (3_000 - len(sold), len(sold))


async def test_a_change_that_broke_off_at_any_step_is_taken_up_again(
    stock: Stock,
    load: LoadProduct,
    elsewhere: Stock,
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = Cluster.run
    for steps in range(0, 16, 3):
        product = await load(*split_evenly(60, 3))
        left = iter(range(steps))

        async def breaking_off(self: Cluster, script, *args, _left: Iterator[int] = left, **kw):  # type: ignore[no-untyped-def]
            if script.name in ("tell", "prepare", "commit", "inform") and next(_left, None) is None:
                raise asyncio.CancelledError
            return await real(self, script, *args, **kw)

        with monkeypatch.context() as patch:
            patch.setattr(Cluster, "run", breaking_off)
            change = stock.change_layout(product, version=3, shards=6, cause="operator")
            with pytest.raises(asyncio.CancelledError):
                await change
        await stock.drain()
        assert await elsewhere.change_layout(product, version=3, shards=6, cause="operator")
        answers = await stock.deduct(requests_for(product, "all", 61, attempt=1))
        assert sum(a.outcome is Outcome.DEDUCTED for a in answers) == 60


async def test_a_change_is_rolled_back_when_a_shard_cannot_be_fenced(
    stock: Stock, load: LoadProduct, elsewhere: Stock, monkeypatch: pytest.MonkeyPatch
) -> None:
    product = await load(*split_evenly(60, 3))
    await elsewhere.deduct(requests_for(product, "warm", 5))
    real = Shards.tell
    told: list[int] = []

    async def away(
        self: Shards,
        partition: int,
        *,
        epoch: int,
        version: int,
        serves: bool,
        freeze: Freeze = NEVER_FROZEN,
    ) -> str:
        if version == 3 and partition == self_partition and told:
            raise StockUnavailableError(Reason.NOT_EXECUTED, "away")
        told.append(partition)
        return await real(
            self, partition, epoch=epoch, version=version, serves=serves, freeze=freeze
        )

    found = await stock._catalogue.find(product)
    assert found is not None
    self_partition = found.shards.partitions[1]
    monkeypatch.setattr(Shards, "tell", away)
    with pytest.raises(StockUnavailableError):
        await stock.change_layout(product, version=3, shards=6, cause="operator")
    assert await stock.change_layout(product, version=3, shards=6, cause="operator") is False
    monkeypatch.undo()
    seen = await stock.read(product)
    assert seen is not None
    assert seen.layout_version == 4
    answers = await elsewhere.deduct(requests_for(product, "all", 60, attempt=1))
    assert sum(a.outcome is Outcome.DEDUCTED for a in answers) == 55
    assert await stock.close(product, 1) == 6
    with pytest.raises(LayoutPassedError):
        await stock.change_layout(product, version=5, shards=6, cause="operator")


async def test_a_shard_that_left_long_ago_and_is_away_keeps_no_new_one_without_units(
    cluster: Cluster,
    stock: Stock,
    load: LoadProduct,
    elsewhere: Stock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    product = await load(*split_evenly(24, 6))
    assert await stock.change_layout(product, version=2, shards=1, cause="operator")
    while not await stock.drain_retired(product):
        pass
    found = await stock._catalogue.find(product)
    assert found is not None
    comes_back = Layout(4, 3).all_partitions(product_id=product, partitions=len(cluster.tags))
    gone = next(each for each in found.shards.retired if each not in comes_back)
    real = Cluster.run_noting

    async def run(self: Cluster, script: Script, partition: int, *args: Any, **others: Any) -> Any:
        if partition == gone:
            raise StockUnavailableError(Reason.NOT_EXECUTED, "away")
        return await real(self, script, partition, *args, **others)

    with monkeypatch.context() as patch:
        patch.setattr(Cluster, "run_noting", run)
        with pytest.raises(RetiredAwayError):
            await stock.change_layout(product, version=4, shards=3, cause="operator")
        now = Shards(cluster, product, Layout(4, 3))
        assert [each.available for each in await now.read_all()] == [8, 8, 8]
        # Of the others it may know what was sent before, and is asked first.
        old = Shards(cluster, product, Layout(1, 6)).partitions
        wanted = [
            each
            for each in requests_for(product, "all", 99, attempt=1)
            if old[home_shard(each.request_id, 6)] != gone
        ]
        answers = await patiently(elsewhere, wanted[:6])
        assert outcomes(answers) == SOLD
    assert await stock.change_layout(product, version=4, shards=3, cause="operator")


async def test_a_delayed_fence_and_a_delayed_word_change_nothing(
    stock: Stock, load: LoadProduct, cluster: Cluster
) -> None:
    product = await load(*split_evenly(60, 3))
    await stock.change_layout(product, version=3, shards=6, cause="operator")
    coming = Shards(cluster, product, Layout(3, 6))
    for partition in coming.partitions:
        assert await coming.tell(partition, epoch=1, version=3, serves=False) == "done"
        assert await coming.tell(partition, epoch=1, version=2, serves=True) == "passed"
    answers = await stock.deduct(requests_for(product, "all", 60, attempt=1))
    assert outcomes(answers) == SOLD


async def test_a_shard_that_left_gives_its_units_and_closes_with_the_others(
    stock: Stock, load: LoadProduct, cluster: Cluster
) -> None:
    product = await load(*split_evenly(60, 6))
    await stock.change_layout(product, version=3, shards=2, cause="operator")
    while not await stock.drain_retired(product):
        pass
    assert await stock.close(product, 1) == 6
    old = Shards(cluster, product, Layout(0, 6))
    for reading in await old.read_all():
        assert (reading.available, reading.state) == (0, State.CLOSED)


def reading(partition: int, available: int) -> ShardReading:
    return ShardReading(
        partition, 1, available, 0, 0, available, 0, 1, 1, State.OPEN, False, True, {}, ()
    )


def test_levelling_lifts_what_has_fallen_behind_and_leaves_small_differences() -> None:
    assert levelling([reading(0, 100), reading(1, 60), reading(2, 80)]) == []
    moves = levelling([reading(0, 300), reading(1, 0), reading(2, 90)])
    assert moves == [Move(0, 1, 130)]


def test_little_that_is_left_is_gathered_in_one_shard() -> None:
    spread = [reading(i, 1 if i in (3, 7) else 0) for i in range(12)]
    assert levelling(spread) == [Move(7, 3, 1)]
    assert levelling([reading(i, 1) for i in range(12)]) == []


def test_emptying_fills_the_poorest_first() -> None:
    readings = [reading(0, 10), reading(1, 2), reading(2, 9), reading(3, 0), reading(4, 5)]
    assert emptying(readings, 2) == [Move(2, 1, 9), Move(4, 0, 5)]


async def test_rebalancing_levels_a_product_and_loses_nothing(
    stock: Stock, load: LoadProduct
) -> None:
    product = await load(900, 0, 3)
    assert await stock.rebalance(product) == 599
    seen = await stock.read(product)
    assert seen is not None
    assert [shard.available for shard in seen.shards] == [301, 301, 301]
    assert await stock.rebalance(product) == 0


def test_every_id_has_one_home_in_each_layout() -> None:
    assert {home_shard(f"id-{i}", 6) for i in range(200)} == set(range(6))


async def test_a_process_with_an_earlier_layout_and_a_retry_have_one_effect(
    stock: Stock, load: LoadProduct, elsewhere: Stock
) -> None:
    product = await load(*split_evenly(60, 6))
    await elsewhere.deduct(requests_for(product, "warm", 6, attempt=1))
    await stock.change_layout(product, version=3, shards=4, cause="operator")
    sold = await stock.deduct(requests_for(product, "held-up", 20, attempt=2))
    late = await elsewhere.deduct(requests_for(product, "held-up", 20, attempt=1))
    assert late == [answer._replace(replayed=True) for answer in sold]


async def test_a_product_that_version_0_1_loaded_sells_and_changes_its_layout(
    stock: Stock, load: LoadProduct, cluster: Cluster
) -> None:
    product = await load(*split_evenly(60, 3))
    for partition in Layout(1, 3).all_partitions(product_id=product, partitions=48):
        tag = cluster.tags[partition]
        await _without(cluster, partition, keys.stock(tag, product), "serves")
        new_fields = ("earlier", "next_layout", "since_ms")
        await _without(cluster, partition, keys.product_info(tag, product), *new_fields)
    assert outcomes(await stock.deduct(requests_for(product, "before", 5))) == SOLD
    assert await stock.change_layout(product, version=3, shards=6, cause="operator")
    assert outcomes(await stock.deduct(requests_for(product, "after", 55))) == SOLD


async def _without(cluster: Cluster, partition: int, key: str, *fields: str) -> None:
    await cluster.command(partition, "HDEL", key, *fields, lane=LaneKind.WRITE)


async def test_a_change_that_was_given_up_stays_so_for_whoever_comes_late(
    stock: Stock, load: LoadProduct, elsewhere: Stock, monkeypatch: pytest.MonkeyPatch
) -> None:
    product = await load(*split_evenly(60, 3))

    async def away(self: Shards, partition: int, *, has_shard: bool) -> None:
        raise StockUnavailableError(Reason.NOT_EXECUTED, f"p{partition} is away")

    with monkeypatch.context() as patch:
        patch.setattr(Shards, "reach", away)
        assert await stock.change_layout(product, version=3, shards=6, cause="hot") is False
    for process in (stock, elsewhere):
        assert await process.change_layout(product, version=3, shards=6, cause="hot") is False
    assert outcomes(await stock.deduct(requests_for(product, "a", 5))) == SOLD
    assert await elsewhere.change_layout(product, version=5, shards=6, cause="hot")


async def test_a_late_decision_for_a_change_that_is_not_prepared_any_more_changes_nothing(
    cluster: Cluster, stock: Stock, load: LoadProduct
) -> None:
    product = await load(*split_evenly(60, 3))
    directory = Directory(cluster)
    before = await directory.at_base(product)
    assert before is not None
    late = _Base(cluster, product, before.epoch)
    await late.prepare(Layout(3, 6))
    assert await stock.change_layout(product, version=3, shards=6, cause="hot")
    with pytest.raises(StockUnavailableError):
        await late.commit(prepared=4, layout=Layout(4, 3), earlier=[6], former=[6], reason="late")
    after = await directory.at_base(product)
    assert after is not None
    assert (after.layout, after.earlier) == (Layout(3, 6), (3,))
    assert outcomes(await stock.deduct(requests_for(product, "a", 5))) == SOLD


async def test_a_shard_that_has_forgotten_that_it_left_gives_its_units_to_the_others(
    cluster: Cluster, stock: Stock, load: LoadProduct
) -> None:
    """It was restored by a ledger that had not heard of the change."""
    product = await load(*split_evenly(90, 3))
    assert await stock.change_layout(product, version=2, shards=1, cause="operator")
    assert await stock.drain_retired(product)
    found = await stock._catalogue.find(product)
    assert found is not None
    left = found.shards.retired[0]
    shard = keys.stock(cluster.tags[left], product)
    back = ("HSET", shard, "serves", "1", "layout", "1", "available", "5", "loaded", "35")
    await cluster.command(left, *back, lane=LaneKind.MOVE)
    assert not await stock.drain_retired(product)
    assert await stock.change_layout(product, version=2, shards=1, cause="operator")
    assert await stock.drain_retired(product)
    seen = await stock.read(product)
    assert seen is not None
    assert [shard.available for shard in seen.shards] == [95, 0, 0]
