"""Requests that are decided for good: refused retries, resolved ones, second effects; and proofs."""

import asyncio
from dataclasses import replace

import pytest

from deploy.local.stack import LocalStack
from sharding import keys
from sharding.cluster import Cluster, LaneKind
from sharding.events import Kind, Status
from sharding.metrics import StockMetrics
from sharding.notes import NOTE_S
from sharding.outcomes import Answer, Deduction, Outcome, Reason, Resolution, Resolved
from sharding.packing import pack
from sharding.partitions import Partitions
from sharding.placement import Layout, alternate_shard, home_shard
from sharding.shards import Mode, Shards, Tombstone
from sharding.stock import Stock
from tests.sharding.conftest import LoadProduct, events_of, plan_for, settings_for

INSUFFICIENT = Answer(Outcome.INSUFFICIENT_STOCK)


@pytest.fixture
async def elsewhere(cluster: Cluster, partitions: Partitions, metrics: StockMetrics) -> Stock:
    """Another process's view of the stock."""
    return Stock(cluster, metrics)


async def ask(stock: Stock, request: Deduction) -> Answer:
    (answer,) = await stock.deduct([request])
    return answer


async def restock(stock: Stock, product: int, units: int, name: str = "in") -> None:
    answer = await stock.restock(product, request_id=name, quantity=units, reason="")
    assert answer.outcome is Outcome.DEDUCTED


async def test_a_refused_retry_stays_refused_and_other_refusals_are_forgotten(
    stock: Stock, load: LoadProduct, elsewhere: Stock
) -> None:
    product = await load(1, 1, 0)
    retry = Deduction("retry", product, 3, attempt=2)
    first = Deduction("first", product, 3, attempt=1)
    unsure = Deduction("unsure", product, 3)
    for request in (retry, first, unsure):
        assert await ask(stock, request) == INSUFFICIENT
    await restock(stock, product, 20)
    assert await ask(elsewhere, retry) == INSUFFICIENT._replace(replayed=True)
    assert await ask(stock, retry._replace(attempt=1)) == INSUFFICIENT._replace(replayed=True)
    mismatch = await ask(stock, retry._replace(quantity=1))
    assert mismatch.outcome is Outcome.REQUEST_MISMATCH
    assert (await ask(stock, first)).outcome is Outcome.DEDUCTED
    assert (await ask(stock, unsure)).outcome is Outcome.DEDUCTED


async def test_resolving_says_what_became_of_a_request(
    stock: Stock, load: LoadProduct, elsewhere: Stock
) -> None:
    product = await load(5, 5)
    await ask(stock, Deduction("sold", product, 3))
    await ask(stock, Deduction("refused", product, 100, attempt=3))
    await restock(stock, product, 7, "restocked")
    assert await elsewhere.resolve(product, "sold") == Resolved(Resolution.DEDUCTED, 3)
    assert await elsewhere.resolve(product, "refused") == Resolved(Resolution.REFUSED)
    assert await elsewhere.resolve(product, "restocked") == Answer(Outcome.REQUEST_MISMATCH)
    for _ in range(2):
        assert await elsewhere.resolve(product, "lost") == Resolved(Resolution.NEVER)
    assert await elsewhere.resolve(1, "x") == Answer(Outcome.UNKNOWN_PRODUCT)
    seen = await stock.read(product)
    assert seen is not None
    assert (seen.available, seen.sold) == (14, 3)


@pytest.mark.parametrize("attempt", [0, 1, 2])
@pytest.mark.parametrize("shards", [1, 2, 6])
async def test_a_late_copy_of_a_resolved_request_takes_nothing(
    stock: Stock, load: LoadProduct, elsewhere: Stock, attempt: int, shards: int
) -> None:
    product = await load(*[5] * shards)
    assert await elsewhere.resolve(product, "late") == Resolved(Resolution.NEVER)
    late = await ask(stock, Deduction("late", product, 1, attempt=attempt))
    assert late == Answer(Outcome.REQUEST_MISMATCH, reason=Reason.RESOLVED_NEVER)
    await stock.change_layout(product, version=3, shards=3, cause="operator")
    late = await ask(elsewhere, Deduction("late", product, 1, attempt=attempt))
    assert late == Answer(Outcome.REQUEST_MISMATCH, reason=Reason.RESOLVED_NEVER)
    assert await elsewhere.resolve(product, "late") == Resolved(Resolution.NEVER)


async def test_of_a_request_and_its_resolution_only_one_wins(
    stock: Stock, load: LoadProduct, elsewhere: Stock
) -> None:
    product = await load(20, 20, 20)
    ends = await asyncio.gather(
        *(
            asyncio.gather(
                ask(stock, Deduction(f"race-{i}", product, 1, attempt=1)),
                elsewhere.resolve(product, f"race-{i}"),
            )
            for i in range(40)
        )
    )
    for answer, resolved in ends:
        if answer.outcome is Outcome.DEDUCTED:
            assert resolved == Resolved(Resolution.DEDUCTED, 1)
        else:
            assert answer.reason is Reason.RESOLVED_NEVER
            assert resolved == Resolved(Resolution.NEVER)


async def test_the_alternate_of_a_resolved_request_does_not_accept_it_either(
    stock: Stock, load: LoadProduct, cluster: Cluster
) -> None:
    product = await load(5, 5, 5, 5)
    await stock.resolve(product, "gone")
    shards = Shards(cluster, product, Layout(1, 4))
    alternate = alternate_shard(home_shard("gone", 4), 4)
    assert alternate is not None
    partition = shards.partitions[alternate]
    found = await shards.resolve(partition, "gone", Tombstone.NONE, epoch=1)
    assert found.status is Status.BARRED


async def test_a_repeat_finds_what_an_alternate_accepted(
    stock: Stock, load: LoadProduct, elsewhere: Stock, cluster: Cluster
) -> None:
    product = await load(5, 5, 5, 5, 5, 5)
    shards = Shards(cluster, product, Layout(1, 6))
    alternate = alternate_shard(home_shard("moved", 6), 6)
    assert alternate is not None
    wanted = Deduction("moved", product, 2, attempt=1)
    served = await shards.deduct(shards.partitions[alternate], pack([wanted]), mode=Mode.VISIT)
    assert served.statuses == b"D"
    for attempt in (0, 2):
        again = await ask(elsewhere, wanted._replace(attempt=attempt))
        assert again == Answer(Outcome.DEDUCTED, replayed=True, shard=alternate, available=3)
    assert await elsewhere.resolve(product, "moved") == Resolved(Resolution.DEDUCTED, 2)


async def test_units_that_come_back_are_sold_at_once_in_every_process(
    stock: Stock, load: LoadProduct, elsewhere: Stock
) -> None:
    product = await load(1, 0)
    for i in range(5):
        assert (await ask(stock, Deduction(f"s{i}", product, 1, attempt=1))).outcome is (
            Outcome.DEDUCTED
        )
        for process in (stock, elsewhere):
            refused = await ask(process, Deduction(f"r{i}", product, 1, attempt=1))
            assert refused == INSUFFICIENT
        await restock(stock, product, 1, f"in-{i}")
        sold = await ask(elsewhere, Deduction(f"e{i}", product, 1, attempt=1))
        assert sold.outcome is Outcome.DEDUCTED
        await restock(elsewhere, product, 1, f"in-again-{i}")


async def test_a_proof_refuses_first_tries_without_a_call_and_looks_others_up(
    stock: Stock, load: LoadProduct, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    product = await load(0, 0, 1)
    sold = Deduction("sold", product, 1, attempt=1)
    assert (await ask(stock, sold)).outcome is Outcome.DEDUCTED
    assert await ask(stock, Deduction("r", product, 1, attempt=1)) == INSUFFICIENT
    real, calls = Shards.deduct, []

    async def counting(self: Shards, *args: object, **kwargs: object) -> object:
        calls.append(args)
        return await real(self, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(Shards, "deduct", counting)
    monkeypatch.setattr("sharding.shortage.NOTE_S", 60)
    # The proof of the first refusal may be over by now; this one lasts.
    await asyncio.sleep(NOTE_S)
    assert await ask(stock, Deduction("r-0", product, 1, attempt=1)) == INSUFFICIENT
    calls.clear()
    answers = await stock.deduct([Deduction(f"r{i}", product, 1, attempt=1) for i in range(100)])
    assert answers == [INSUFFICIENT] * 100
    assert calls == []
    assert (await ask(stock, sold._replace(attempt=0))).replayed
    assert (await ask(stock, sold._replace(attempt=2))).replayed


async def test_a_second_effect_is_undone_once(
    stock: Stock, load: LoadProduct, elsewhere: Stock, partitions: Partitions, cluster: Cluster
) -> None:
    product = await load(5, 5)
    await ask(stock, Deduction("twice", product, 2))
    (event,) = [e for e in await events_of(partitions, product) if e.kind is Kind.DEDUCT]
    shards = Shards(cluster, product, Layout(1, 2))
    partition = shards.partitions[home_shard("twice", 2)]

    async def undo() -> bool:
        return await elsewhere.undo(
            product,
            epoch=1,
            partition=partition,
            request_id="twice",
            quantity=2,
            undone=event.id,
        )

    assert [await undo() for _ in range(3)] == [True] * 3
    seen = await stock.read(product)
    assert seen is not None
    assert (seen.available, seen.sold, seen.total) == (10, 0, 10)
    (undone,) = [e for e in await events_of(partitions, product) if e.kind is Kind.UNDO]
    assert (undone.undone, undone.request_id, undone.quantity) == (event.id, "twice", 2)
    await stock.close(product, 1)
    assert await undo() is True
    assert (
        await stock.undo(
            product, epoch=1, partition=partition, request_id="other", quantity=2, undone=event.id
        )
        is False
    )


async def test_tombstones_are_bounded(
    services: LocalStack, partitions: Partitions, metrics: StockMetrics, load: LoadProduct
) -> None:
    product = await load(1)
    small = await Cluster.connect(settings_for(services, tombstone_cap=1_000), metrics)
    stock = Stock(small, metrics)
    try:
        # Other products' tombstones are in the same partition; so it is filled until it is full.
        retries = (Deduction(f"x{i}", product, 2, attempt=2) for i in range(1_001))
        assert await ask(stock, next(retries)) == INSUFFICIENT
        outcomes = {(await ask(stock, retry)).outcome for retry in retries}
        assert outcomes == {Outcome.INSUFFICIENT_STOCK, Outcome.OVERLOADED}
        resolved = await stock.resolve(product, "one more")
        assert resolved == Answer(Outcome.OVERLOADED, reason=Reason.RECORDS_FULL)
        assert (await ask(stock, Deduction("fits", product, 1))).outcome is Outcome.DEDUCTED
    finally:
        await stock.drain()
        await small.close()


async def test_a_process_that_slept_over_a_reload_resolves_by_the_base(
    stock: Stock, load: LoadProduct, elsewhere: Stock, cluster: Cluster
) -> None:
    product = await load(*[1] * 12)
    await stock.read(product)
    await elsewhere.close(product, 1)
    await elsewhere.load(replace(plan_for(product, *[2] * 6, epoch=2), former_shards=(12,)))
    sold = [Deduction(f"sold-{i}", product, 1, attempt=1) for i in range(8)]
    assert {a.outcome for a in await elsewhere.deduct(sold)} == {Outcome.DEDUCTED}
    for request in sold:
        found = await stock.resolve(product, request.request_id)
        assert found == Resolved(Resolution.DEDUCTED, 1)
    # What such a process sends to a shard of the last epoch decides nothing there.
    stones = Shards(cluster, product, Layout(1, 12))
    for partition in stones.partitions:
        found = await stones.resolve(partition, "late", Tombstone.NEVER, epoch=1)
        assert found.status in (Status.STALE, Status.NEVER)
    for partition in Shards(cluster, product, Layout(2, 6)).partitions:
        found = await stones.resolve(partition, "late", Tombstone.NEVER, epoch=1)
        assert found.status is Status.STALE


async def test_the_newest_of_several_tombstones_counts(
    stock: Stock, load: LoadProduct, cluster: Cluster, partitions: Partitions
) -> None:
    product = await load(5, 5)
    shards = Shards(cluster, product, Layout(1, 2))
    for name in ("late-0", "late-1", "late-2"):
        at = shards.partitions[home_shard(name, 2)]
        barred = await shards.resolve(at, name, Tombstone.BARRED, epoch=1)
        assert barred.status is Status.BARRED
        tag = cluster.tags[at]
        age = ("HSET", keys.head(tag), "records_since_ms", "0")
        await cluster.command(at, *age, lane=LaneKind.WRITE)
        assert await partitions.rotate_records(at, record_ttl_s=3_600)
        assert await stock.resolve(product, name) == Resolved(Resolution.NEVER)
        late = await ask(stock, Deduction(name, product, 1, attempt=2))
        assert late.reason is Reason.RESOLVED_NEVER


async def test_what_bars_a_stand_in_bars_nobody_at_home(stock: Stock, load: LoadProduct) -> None:
    product = await load(10)
    names = [f"x-{i}" for i in range(40)]
    moved = [name for name in names if home_shard(name, 2) == 1]
    await stock.change_layout(product, version=3, shards=2, cause="operator")
    for name in moved[:3]:
        # The alternate of this home is the home that the request had before.
        assert await stock.resolve(product, name) == Resolved(Resolution.NEVER)
        late = await ask(stock, Deduction(name, product, 1, attempt=2))
        assert late == Answer(Outcome.REQUEST_MISMATCH, reason=Reason.RESOLVED_NEVER)
    shards = Shards(stock._cluster, product, Layout(3, 2))
    for name in moved[3:6]:
        # A resolution that broke off between the alternate and the home has decided nothing.
        found = await shards.resolve(shards.partitions[0], name, Tombstone.BARRED, epoch=1)
        assert found.status is Status.BARRED
        assert (await ask(stock, Deduction(name, product, 1))).outcome is Outcome.DEDUCTED


async def test_a_closed_product_says_so_to_everybody_at_once(
    stock: Stock, load: LoadProduct
) -> None:
    for _ in range(10):
        product = await load(5, 5, 5)
        await stock.close(product, 1)
        calls = [stock.deduct([Deduction(f"s-{i}", product, 1, attempt=i % 3)]) for i in range(24)]
        seen = {(a.outcome, a.reason) for answers in calls for a in await answers}
        assert seen == {(Outcome.FROZEN, Reason.PRODUCT_CLOSED)}


async def test_a_proof_does_not_outlive_the_sale(stock: Stock, load: LoadProduct) -> None:
    product = await load(1, 1)
    assert await ask(stock, Deduction("big", product, 5)) == INSUFFICIENT
    await stock.close(product, 1)
    late = await ask(stock, Deduction("late", product, 3, attempt=1))
    assert late.outcome is Outcome.FROZEN
