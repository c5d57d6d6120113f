"""A partition with a stream for each of several MySQL servers."""

from collections.abc import AsyncIterator
from itertools import count

import pytest
from prometheus_client import CollectorRegistry

from deploy.local.stack import LocalStack
from sharding import keys
from sharding.cluster import Cluster, LaneKind
from sharding.errors import NotOpenableError, ServerCountError
from sharding.events import BEFORE_ALL, EventId, anchor
from sharding.metrics import StockMetrics
from sharding.outcomes import Deduction, Outcome, Reason
from sharding.partitions import NOTHING_APPLIED, Checkpoint, Entry, Partitions
from sharding.placement import base_partition, ledger_of
from sharding.stock import Stock
from tests.sharding.conftest import plan_for, settings_for

PARTITIONS, LEDGERS = 64, 3
_product_ids = count(7_900_001)


@pytest.fixture(scope="module")
async def clusters(services: LocalStack) -> AsyncIterator[dict[int, Cluster]]:
    """Partitions that no other test uses, as those see them who know of so many MySQL servers."""
    settings = settings_for(
        services, partitions=PARTITIONS, default_shards=1, redis_patience_ms=300
    )
    found = {
        ledgers: await Cluster.connect(settings, StockMetrics(CollectorRegistry()), ledgers=ledgers)
        for ledgers in (1, LEDGERS)
    }
    yield found
    for cluster in found.values():
        await cluster.close()


@pytest.fixture
def cluster(clusters: dict[int, Cluster]) -> Cluster:
    return clusters[LEDGERS]


@pytest.fixture
def partitions(cluster: Cluster) -> Partitions:
    return Partitions(cluster, partitions=PARTITIONS)


@pytest.fixture
async def stock(cluster: Cluster) -> AsyncIterator[Stock]:
    live = Stock(cluster, StockMetrics(CollectorRegistry()))
    yield live
    await live.drain()


async def of_each_ledger(partitions: Partitions) -> tuple[int, list[int]]:
    """A partition that was just opened, and a product of each ledger with its only shard there."""
    first = next(_product_ids)
    partition = base_partition(first, PARTITIONS)
    if not (await partitions.head(partition)).is_open:
        await partitions.open(partition, [NOTHING_APPLIED] * LEDGERS, opening=1)
    found: dict[int, int] = {}
    while len(found) < LEDGERS:
        product_id = next(_product_ids)
        if base_partition(product_id, PARTITIONS) == partition:
            found.setdefault(ledger_of(product_id, LEDGERS), product_id)
    return partition, [found[ledger] for ledger in range(LEDGERS)]


async def entries(partitions: Partitions, partition: int, ledger: int) -> list[Entry]:
    return await partitions.read(partition, ledger=ledger, after=BEFORE_ALL, count=1_000)


def products_of(found: list[Entry]) -> set[bytes]:
    fields = [dict(zip(entry.fields[::2], entry.fields[1::2], strict=True)) for entry in found]
    return {each[b"product"] for each in fields if b"product" in each}


async def sell(stock: Stock, product_id: int, number: int) -> None:
    for each in range(number):
        await stock.deduct([Deduction(f"r{each}", product_id, 1)])


async def test_a_product_s_events_are_in_its_server_s_stream_and_numbered_over_all(
    partitions: Partitions, stock: Stock
) -> None:
    partition, products = await of_each_ledger(partitions)
    for product_id in products:
        await stock.load(plan_for(product_id, 10))
    for turn in range(1, 3):
        for product_id in products:
            await sell(stock, product_id, turn)
    streams = [await entries(partitions, partition, ledger) for ledger in range(LEDGERS)]
    for product_id, stream in zip(products, streams, strict=True):
        assert str(product_id).encode() in products_of(stream)
        assert not products_of(stream) & {
            str(each).encode() for each in products if each != product_id
        }
    head = await partitions.head(partition)
    lasts = [stream.last for stream in head.streams]
    assert [stream[-1].id for stream in streams] == lasts
    assert max(lasts).number == head.number
    numbers = sorted({entry.id.number for stream in streams for entry in stream})
    assert numbers == list(range(numbers[0], head.number + 1))


async def test_opening_needs_the_proof_of_every_stream(
    partitions: Partitions, stock: Stock
) -> None:
    partition, products = await of_each_ledger(partitions)
    for product_id in products:
        await stock.load(plan_for(product_id, 10))
    lasts = [(await entries(partitions, partition, ledger))[-1] for ledger in range(LEDGERS)]
    proofs = [Checkpoint(last.id, anchor(last.fields)) for last in lasts]
    for ledger in range(LEDGERS):
        wrong = [*proofs]
        wrong[ledger] = proofs[ledger]._replace(anchor="0" * 40)
        with pytest.raises(NotOpenableError, match="is not in its stream"):
            await partitions.open(partition, wrong, opening=90)
        ahead = [*proofs]
        ahead[ledger] = Checkpoint(EventId(1, 10_000), "")
        with pytest.raises(NotOpenableError, match="behind"):
            await partitions.open(partition, ahead, opening=90)
    opened = await partitions.open(partition, proofs, opening=90)
    assert opened.generation == 90
    assert {stream.last for stream in opened.streams} == {EventId(90, opened.number)}
    assert opened.was_opened
    assert await partitions.head(partition, opening=90) == opened._replace(was_opened=False)


async def test_another_number_of_servers_finds_nothing_open(
    clusters: dict[int, Cluster], partitions: Partitions
) -> None:
    partition, _ = await of_each_ledger(partitions)
    alone = Partitions(clusters[1], partitions=PARTITIONS)
    with pytest.raises(ServerCountError, match=r"was 3 when .* names 1"):
        await alone.head(partition)
    with pytest.raises(ServerCountError, match="names 1"):
        await alone.open(partition, [NOTHING_APPLIED], opening=91)


async def test_a_partition_that_was_opened_before_there_could_be_several_has_one(
    clusters: dict[int, Cluster], partitions: Partitions
) -> None:
    alone = Partitions(clusters[1], partitions=PARTITIONS)
    partition, _ = await of_each_ledger(partitions)
    tag = clusters[1].tags[partition]
    await clusters[1].command(partition, "HDEL", keys.head(tag), "ledgers", lane=LaneKind.WRITE)
    assert (await alone.head(partition)).is_open
    with pytest.raises(ServerCountError, match="servers was 1 when"):
        await partitions.head(partition)
    with pytest.raises(ServerCountError, match="servers was 1 when"):
        await partitions.open(partition, [NOTHING_APPLIED] * LEDGERS, opening=91)
    await clusters[1].command(
        partition, "HSET", keys.head(tag), "ledgers", str(LEDGERS), lane=LaneKind.WRITE
    )


async def test_what_was_removed_from_a_stream_after_an_entry_is_known(
    partitions: Partitions, stock: Stock, cluster: Cluster
) -> None:
    partition, products = await of_each_ledger(partitions)
    await stock.load(plan_for(products[1], 20))
    await sell(stock, products[1], 6)
    found = await entries(partitions, partition, 1)
    stream = keys.events(cluster.tags[partition], 1)

    async def is_whole_after(entry: EventId) -> bool:
        return await partitions.is_whole(partition, ledger=1, after=entry)

    await partitions.trim(partition, ledger=1, below=found[1].id)
    assert await is_whole_after(found[1].id)
    assert not await is_whole_after(found[0].id)
    assert await is_whole_after(BEFORE_ALL)
    await cluster.command(partition, "XDEL", stream, str(found[4].id), lane=LaneKind.WRITE)
    assert not await is_whole_after(found[1].id)
    assert not await is_whole_after(found[3].id)
    assert await is_whole_after(found[5].id)
    await sell(stock, products[1], 8)
    assert await is_whole_after(found[5].id)


async def test_a_server_that_is_behind_stops_the_sale_of_its_own_products_only(
    services: LocalStack,
) -> None:
    limit = 100
    settings = settings_for(
        services,
        partitions=PARTITIONS,
        default_shards=1,
        redis_patience_ms=300,
        backlog_max=limit,
    )
    cluster = await Cluster.connect(settings, StockMetrics(CollectorRegistry()), ledgers=LEDGERS)
    stock = Stock(cluster, StockMetrics(CollectorRegistry()))
    partitions = Partitions(cluster, partitions=PARTITIONS)
    partition, (first, behind, last) = await of_each_ledger(partitions)
    for product_id in (first, behind, last):
        await stock.load(plan_for(product_id, 1_000))

    async def outcome(product_id: int) -> tuple[Outcome, Reason]:
        (answer,) = await stock.deduct([Deduction(f"r{next(_product_ids)}", product_id, 1)])
        return answer.outcome, answer.reason

    async def catch_up(*ledgers: int) -> None:
        head = await partitions.head(partition)
        for ledger in ledgers:
            await partitions.note_applied(
                partition, EventId(head.generation, head.number), ledger=ledger
            )

    await catch_up(0, 1, 2)
    for _ in range(limit):
        assert await outcome(first) == (Outcome.DEDUCTED, Reason.NONE)
        await catch_up(0, 2)
    assert await outcome(behind) == (Outcome.UNAVAILABLE, Reason.LEDGER_BEHIND)
    assert await outcome(first) == await outcome(last) == (Outcome.DEDUCTED, Reason.NONE)
    streams = (await partitions.head(partition)).streams
    assert [stream.is_behind for stream in streams] == [False, True, False]
    await catch_up(1)
    assert await outcome(behind) == (Outcome.DEDUCTED, Reason.NONE)
    await stock.drain()
    await cluster.close()
