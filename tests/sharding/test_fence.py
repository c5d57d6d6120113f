"""A partition obeys only where it was opened, and only while nothing of it went back."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import pytest
from hiredis import ReplyError
from prometheus_client import CollectorRegistry

from deploy.local.redis_cluster import RedisNode
from deploy.local.stack import LocalStack
from sharding import keys
from sharding.cluster import Cluster, LaneKind
from sharding.errors import NotOpenableError, PartitionCountError, StockUnavailableError
from sharding.events import BEFORE_ALL, EventId, Kind, anchor, decode
from sharding.lane import Lane, LostError
from sharding.metrics import StockMetrics
from sharding.outcomes import MAY_HAVE_RUN, Answer, Deduction, Outcome, Reason
from sharding.partitions import NOTHING_APPLIED, Checkpoint, Entry, Partitions
from sharding.restoring import checkpoint_at
from sharding.stock import Stock
from tests.sharding.conftest import entries_of, plan_for, settings_for
from tests.waiting import eventually

# A cluster's partitions are told apart by tag only, so tests can have partitions of their own.
PARTITIONS = 96
_fresh_partition = count(1, 2)
_product_ids = count(7_500_001)


@pytest.fixture(scope="module")
async def impatient(services: LocalStack) -> AsyncIterator[Cluster]:
    """A client that gives up soon, on partitions that no other test uses."""
    settings = settings_for(
        services, partitions=PARTITIONS, default_shards=1, redis_patience_ms=300
    )
    cluster = await Cluster.connect(settings, StockMetrics(CollectorRegistry()))
    yield cluster
    await cluster.close()


@pytest.fixture
def partitions(impatient: Cluster) -> Partitions:
    return Partitions(impatient, partitions=PARTITIONS)


@pytest.fixture
async def opened(partitions: Partitions) -> int:
    partition = next(_fresh_partition)
    await partitions.open(partition, [NOTHING_APPLIED], opening=1)
    return partition


async def newest(partitions: Partitions, partition: int) -> Entry:
    return (await entries_of(partitions, partition))[-1]


async def test_a_partition_that_was_never_opened_is_shut_and_opens_once_asked(
    partitions: Partitions,
) -> None:
    partition = next(_fresh_partition)
    before = await partitions.head(partition)
    opened = await partitions.open(partition, [NOTHING_APPLIED], opening=1)
    after = await partitions.head(partition)
    assert (before.is_open, before.reason) == (False, "NO_HEAD")
    assert (after.is_open, after.generation, after.number) == (True, 1, 1)
    assert opened == after._replace(was_opened=True)


async def test_opening_leaves_an_event_and_every_key_that_scripts_declare(
    partitions: Partitions, impatient: Cluster, opened: int
) -> None:
    entry = await newest(partitions, opened)
    fields = dict(zip(entry.fields[::2], entry.fields[1::2], strict=True))
    assert decode(entry.id, fields).kind is Kind.OPENED
    tag = impatient.tags[opened]
    declared = [keys.head(tag), keys.events(tag, 0), *keys.memory(tag)]
    existing = await impatient.command(opened, "EXISTS", *declared, lane=LaneKind.READ)
    assert existing == len(declared)


async def test_opening_again_raises_the_generation_and_goes_on_counting(
    partitions: Partitions, opened: int
) -> None:
    entry = await newest(partitions, opened)
    checkpoint = Checkpoint(entry.id, anchor(entry.fields))
    again = await partitions.open(opened, [checkpoint], opening=2)
    assert (again.generation, again.number) == (2, 2)


async def test_one_opening_whose_answer_was_lost_is_repeated_without_another_generation(
    partitions: Partitions, opened: int
) -> None:
    before = await partitions.head(opened)
    again = await partitions.open(opened, [NOTHING_APPLIED], opening=1)
    assert again == before._replace(was_opened=True)
    assert await partitions.head(opened) == before


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("owner", "0" * 40, "NEW_OWNER"),
        ("run", "0" * 40, "RESTARTED"),
        ("number", "0", "WENT_BACK"),
    ],
)
async def test_a_head_of_another_node_or_run_or_of_the_past_refuses_everything(
    partitions: Partitions, impatient: Cluster, opened: int, field: str, value: str, why: str
) -> None:
    entry = await newest(partitions, opened)
    assert await partitions.replicated(opened, ledger=0, last=checkpoint_at(entry))
    head = keys.head(impatient.tags[opened])
    right = await impatient.command(opened, "HGET", head, field, lane=LaneKind.READ)
    assert isinstance(right, bytes)
    await impatient.command(opened, "HSET", head, field, value, lane=LaneKind.WRITE)
    with pytest.raises(StockUnavailableError, match=why) as failure:
        await partitions.replicated(opened, ledger=0, last=checkpoint_at(entry))
    assert failure.value.reason is Reason.PARTITION_FENCED
    assert not (await partitions.head(opened)).is_open
    await impatient.command(opened, "HSET", head, field, right.decode(), lane=LaneKind.WRITE)
    assert await partitions.replicated(opened, ledger=0, last=checkpoint_at(entry))


async def test_a_new_process_is_not_obeyed_where_a_partition_has_gone_back_behind_the_ledger(
    services: LocalStack, partitions: Partitions, impatient: Cluster, opened: int
) -> None:
    fresh = await Cluster.connect(impatient.settings, StockMetrics(CollectorRegistry()))
    seen_by_fresh = Partitions(fresh, partitions=PARTITIONS)
    entry = await newest(partitions, opened)
    assert (await seen_by_fresh.head(opened)).is_open
    ahead = Checkpoint(EventId(entry.id.generation, entry.id.number + 1), "")
    seen_by_fresh.learn({opened: ahead})
    seen_by_fresh.learn({opened: NOTHING_APPLIED})
    assert (await seen_by_fresh.head(opened)).reason == "WENT_BACK"
    with pytest.raises(StockUnavailableError, match="WENT_BACK") as failure:
        await seen_by_fresh.replicated(opened, ledger=0, last=checkpoint_at(entry))
    assert failure.value.reason is Reason.PARTITION_FENCED
    assert (await partitions.head(opened)).is_open
    await fresh.close()


async def test_a_cluster_that_was_not_there_at_the_start_is_found_later(
    impatient: Cluster, opened: int
) -> None:
    late = Cluster.unconnected(impatient.settings, StockMetrics(CollectorRegistry()))
    assert not late.masters()
    await eventually(late.masters)
    found = Partitions(late, partitions=PARTITIONS)
    assert (await found.head(opened)).is_open
    await late.close()


async def test_an_emptied_partition_is_shut_and_not_opened_over_the_ledgers_events(
    partitions: Partitions, impatient: Cluster, opened: int
) -> None:
    entry = await newest(partitions, opened)
    tag = impatient.tags[opened]
    gone = [keys.head(tag), keys.events(tag, 0), *keys.memory(tag)]
    await impatient.command(opened, "DEL", *gone, lane=LaneKind.WRITE)
    with pytest.raises(StockUnavailableError, match="NO_HEAD"):
        await partitions.replicated(opened, ledger=0, last=checkpoint_at(entry))
    with pytest.raises(NotOpenableError, match="empty"):
        await partitions.open(opened, [Checkpoint(entry.id, anchor(entry.fields))], opening=1)
    assert (await partitions.head(opened)).reason == "NO_HEAD"


async def test_an_entry_that_a_promoted_node_lacks_is_not_replicated(
    partitions: Partitions, opened: int
) -> None:
    entry = await newest(partitions, opened)
    lost = Checkpoint(EventId(1, 2), anchor(entry.fields))
    assert not await partitions.replicated(opened, ledger=0, last=lost)


async def test_another_entry_of_the_same_number_is_not_the_one_that_was_read(
    partitions: Partitions, opened: int
) -> None:
    entry = await newest(partitions, opened)
    read = Checkpoint(entry.id, anchor((*entry.fields, b"other")))
    assert not await partitions.replicated(opened, ledger=0, last=read)


async def _demand(masters: list[RedisNode], *, replicas: int) -> None:
    for master in masters:
        await master.call("CONFIG SET", "min-replicas-to-write", replicas)


async def test_what_no_replica_confirms_is_unknown_and_not_accepted(
    services: LocalStack, partitions: Partitions
) -> None:
    async with _product_of_two(services, partitions, redis_timeout_ms=200) as (
        stock,
        _,
        product,
        _,
    ):
        request = Deduction("alone", product, 1)
        # A node that does not know the script says so first, and that is then the end of a hasty call.
        first = await stock.deduct([Deduction(f"first-{i}", product, 1) for i in range(20)])
        assert {answer.outcome for answer in first} == {Outcome.DEDUCTED}
        replicas = [node for node in services.redis if not await node.is_master()]
        masters = [node for node in services.redis if node not in replicas]
        # By itself a master refuses what comes a while after its replica's last word.
        await _demand(masters, replicas=0)
        for replica in replicas:
            replica.process.pause()
        try:
            (unconfirmed,) = await stock.deduct([request])
        finally:
            for replica in replicas:
                replica.process.resume()
            await _demand(masters, replicas=1)
        (again,) = await stock.deduct([request._replace(attempt=2)])
    assert unconfirmed.outcome is Outcome.UNAVAILABLE
    assert unconfirmed.reason in MAY_HAVE_RUN
    assert (again.outcome, again.replayed) == (Outcome.DEDUCTED, True)


async def test_a_head_behind_the_ledger_is_not_opened(partitions: Partitions, opened: int) -> None:
    with pytest.raises(NotOpenableError, match="behind"):
        await partitions.open(opened, [Checkpoint(EventId(1, 9), "whatever")], opening=2)


async def test_another_entry_in_the_place_of_the_ledgers_last_one_is_not_opened(
    partitions: Partitions, opened: int
) -> None:
    entry = await newest(partitions, opened)
    with pytest.raises(NotOpenableError, match="last event"):
        await partitions.open(opened, [Checkpoint(entry.id, anchor((b"other",)))], opening=2)


async def test_an_entry_above_the_head_shuts_the_partition_until_it_is_opened_above_it(
    partitions: Partitions, impatient: Cluster, opened: int
) -> None:
    entry = await newest(partitions, opened)
    stream = keys.events(impatient.tags[opened], 0)
    await impatient.command(opened, "XADD", stream, "77-5", "junk", "1", lane=LaneKind.WRITE)
    assert (await partitions.head(opened)).reason == "EVENTS_AHEAD"
    again = await partitions.open(opened, [Checkpoint(entry.id, anchor(entry.fields))], opening=2)
    assert again.generation == 78
    assert (await partitions.head(opened)).is_open


async def test_another_partition_count_than_the_clusters_is_named(
    impatient: Cluster, opened: int
) -> None:
    mistaken = Partitions(impatient, partitions=PARTITIONS // 2)
    with pytest.raises(PartitionCountError, match=f"INVENTORY_PARTITIONS={PARTITIONS}"):
        await mistaken.head(opened)
    with pytest.raises(PartitionCountError, match=f"INVENTORY_PARTITIONS={PARTITIONS}"):
        await mistaken.open(opened, [NOTHING_APPLIED], opening=1)


async def test_a_partition_that_lost_its_latest_opening_is_not_open_and_opens_above_it(
    partitions: Partitions, impatient: Cluster, opened: int
) -> None:
    """A master opens a partition, sells, and ends before its replica has heard of it."""
    entry = await newest(partitions, opened)
    tag = impatient.tags[opened]
    before = await impatient.command(opened, "HGETALL", keys.head(tag), lane=LaneKind.READ)
    at_checkpoint = [Checkpoint(entry.id, anchor(entry.fields))]
    lost = await partitions.open(opened, at_checkpoint, opening=2)
    assert isinstance(before, list)
    await impatient.command(opened, "HSET", keys.head(tag), *before, lane=LaneKind.WRITE)
    await impatient.command(
        opened, "XDEL", keys.events(tag, 0), f"2-{lost.number}", lane=LaneKind.WRITE
    )
    head = await partitions.head(opened, opening=2)
    assert (head.is_open, head.reason) == (False, "WENT_BACK")
    again = await partitions.open(opened, at_checkpoint, opening=3)
    assert again.generation == 3
    assert (await partitions.head(opened, opening=3)).is_open
    entry = await newest(partitions, opened)
    assert entry.id == EventId(again.generation, again.number)
    assert await partitions.replicated(opened, ledger=0, last=checkpoint_at(entry))


async def test_an_opening_that_comes_after_a_later_one_changes_nothing(
    partitions: Partitions, impatient: Cluster, opened: int
) -> None:
    """Its worker was stopped between the number and the call; nobody has issued the one above."""
    entry = await newest(partitions, opened)
    checkpoint = Checkpoint(entry.id, anchor(entry.fields))
    later = await partitions.open(opened, [checkpoint], opening=7)
    late = await partitions.open(opened, [checkpoint], opening=6)
    assert (late.is_open, late.generation, late.number) == (True, 7, later.number)
    assert (later.was_opened, late.was_opened) == (True, False)
    head = keys.head(impatient.tags[opened])
    await impatient.command(opened, "HSET", head, "owner", "another node", lane=LaneKind.WRITE)
    elsewhere = await partitions.open(opened, [checkpoint], opening=7)
    assert (elsewhere.is_open, elsewhere.generation) == (False, 7)
    assert (await newest(partitions, opened)).id == EventId(7, later.number)
    assert (await partitions.open(opened, [checkpoint], opening=8)).is_open


async def test_trimming_keeps_the_entry_at_the_bound(partitions: Partitions, opened: int) -> None:
    for opening in (2, 3, 4):
        entry = await newest(partitions, opened)
        checkpoint = Checkpoint(entry.id, anchor(entry.fields))
        await partitions.open(opened, [checkpoint], opening=opening)
    bound = await newest(partitions, opened)
    assert await partitions.trim(opened, ledger=0, below=bound.id) == 3
    assert await entries_of(partitions, opened) == [bound]
    assert await partitions.read(opened, ledger=0, after=bound.id, count=10) == []
    assert await partitions.read(opened, ledger=0, after=BEFORE_ALL, count=10) == [bound]


async def test_records_outlive_one_rotation_and_not_three(
    services: LocalStack, partitions: Partitions
) -> None:
    settings = settings_for(services, partitions=PARTITIONS, default_shards=1)
    metrics = StockMetrics(CollectorRegistry())
    cluster = await Cluster.connect(settings, metrics)
    try:
        stock = Stock(cluster, metrics)
        product = next(_product_ids)
        plan = plan_for(product, 10)
        partition = plan.layout.partition(0, product_id=product, partitions=PARTITIONS)
        if not (await partitions.head(partition)).is_open:
            await partitions.open(partition, [NOTHING_APPLIED], opening=1)
        await stock.load(plan)
        request = Deduction("kept", product, 1)
        answers = []
        for _ in range(4):
            answers += await stock.deduct([request])
            await _age_records(cluster, partition)
            assert await partitions.rotate_records(partition, record_ttl_s=3_600)
        assert not await partitions.rotate_records(partition, record_ttl_s=3_600)
        await stock.drain()
    finally:
        await cluster.close()
    assert [answer.replayed for answer in answers] == [False, True, True, False]


@asynccontextmanager
async def _product_of_two(
    services: LocalStack, partitions: Partitions, **changes: object
) -> AsyncIterator[tuple[Stock, Cluster, int, int]]:
    """A product with 100 units in each of two shards; yields the partition of one of them, too."""
    settings = settings_for(
        services, partitions=PARTITIONS, default_shards=1, redis_patience_ms=300, **changes
    )
    metrics = StockMetrics(CollectorRegistry())
    cluster = await Cluster.connect(settings, metrics)
    stock = Stock(cluster, metrics)
    product = next(_product_ids)
    plan = plan_for(product, 100, 100)
    homes = plan.layout.all_partitions(product_id=product, partitions=PARTITIONS)
    try:
        for partition in homes:
            if not (await partitions.head(partition)).is_open:
                await partitions.open(partition, [NOTHING_APPLIED], opening=1)
        await stock.load(plan)
        assert (await stock.read(product)) is not None
        yield stock, cluster, product, homes[1]
        await stock.drain()
    finally:
        await cluster.close()


async def _age_records(cluster: Cluster, partition: int) -> None:
    head = keys.head(cluster.tags[partition])
    await cluster.command(partition, "HSET", head, "records_since_ms", "0", lane=LaneKind.WRITE)


@pytest.mark.parametrize(
    "field_value",
    [
        ("available", ""),
        ("available", "abc"),
        ("available", "10.0"),
        ("available", "1e1"),
        ("available", " 10"),
        ("available", "-5"),
        ("state", "strange"),
        ("epoch", "x"),
    ],
)
async def test_a_shard_with_a_damaged_field_answers_unavailable_and_the_others_go_on(
    services: LocalStack, partitions: Partitions, field_value: tuple[str, str]
) -> None:
    async with _product_of_two(services, partitions) as (stock, cluster, product, damaged):
        key = keys.stock(cluster.tags[damaged], product)
        await cluster.command(damaged, "HSET", key, *field_value, lane=LaneKind.WRITE)
        answers = await stock.deduct([Deduction(f"d-{i}", product, 1) for i in range(40)])
        by_outcome = {answer.outcome for answer in answers}
        reasons = {a.reason for a in answers if a.outcome is Outcome.UNAVAILABLE}
        errors = cluster.metrics.corrupt._value.get()
    assert by_outcome == {Outcome.DEDUCTED, Outcome.UNAVAILABLE}
    assert reasons == {Reason.SHARD_CORRUPT}
    assert errors > 0


@pytest.mark.parametrize("what", ["stock", "events", "records", "head", "deadlines"])
async def test_a_key_of_another_type_changes_nothing_and_after_repair_the_same_id_succeeds(
    services: LocalStack, partitions: Partitions, what: str
) -> None:
    async with _product_of_two(services, partitions) as (stock, cluster, product, damaged):
        tag = cluster.tags[damaged]
        key = {
            "stock": keys.stock(tag, product),
            "events": keys.events(tag, 0),
            "records": keys.records(tag, 0),
            "head": keys.head(tag),
            "deadlines": keys.deadlines(tag),
        }[what]
        await cluster.command(damaged, "RENAME", key, key + ":aside", lane=LaneKind.WRITE)
        await cluster.command(damaged, "SET", key, "a string", lane=LaneKind.WRITE)
        requests = [Deduction(f"t-{i}", product, 1) for i in range(40)]
        during = await stock.deduct(requests)
        await cluster.command(damaged, "RENAME", key + ":aside", key, lane=LaneKind.WRITE)
        after = await stock.deduct(requests)
        seen = await stock.read(product)
    assert {a.outcome for a in during} == {Outcome.DEDUCTED, Outcome.UNAVAILABLE}
    assert {a.reason for a in during if a.outcome is Outcome.UNAVAILABLE} == {Reason.SHARD_CORRUPT}
    assert [a.replayed for a in after] == [a.outcome is Outcome.DEDUCTED for a in during]
    assert seen is not None
    assert (seen.sold, seen.available) == (40, 160)


async def test_a_deleted_shard_is_unavailable_and_never_a_shortage(
    services: LocalStack, partitions: Partitions
) -> None:
    async with _product_of_two(services, partitions) as (stock, cluster, product, damaged):
        key = keys.stock(cluster.tags[damaged], product)
        await cluster.command(damaged, "DEL", key, lane=LaneKind.WRITE)
        answers = await stock.deduct([Deduction(f"g-{i}", product, 1) for i in range(40)])
    assert {a.outcome for a in answers} == {Outcome.DEDUCTED, Outcome.UNAVAILABLE}


async def test_a_full_node_refuses_without_a_trace_and_takes_the_same_ids_afterwards(
    services: LocalStack, partitions: Partitions
) -> None:
    async with _product_of_two(services, partitions) as (stock, cluster, product, full):
        requests = [Deduction(f"m-{i}", product, 1) for i in range(40)]
        await cluster.command(full, "CONFIG", "SET", "maxmemory", "1", lane=LaneKind.READ)
        try:
            during = await stock.deduct(requests)
        finally:
            await cluster.command(full, "CONFIG", "SET", "maxmemory", "0", lane=LaneKind.READ)
        after = await stock.deduct(requests)
        seen = await stock.read(product)
    refused = Answer(Outcome.UNAVAILABLE, reason=Reason.NOT_EXECUTED)
    assert refused in during
    assert {a.outcome for a in during} <= {Outcome.DEDUCTED, Outcome.UNAVAILABLE}
    assert [a.replayed for a in after] == [a.outcome is Outcome.DEDUCTED for a in during]
    assert seen is not None
    assert (seen.sold, seen.available) == (40, 160)


@pytest.mark.parametrize("kind", [LostError, None])
async def test_a_call_that_is_sent_again_knows_what_was_seen_since(
    partitions: Partitions,
    impatient: Cluster,
    opened: int,
    monkeypatch: pytest.MonkeyPatch,
    kind: type[LostError] | None,
) -> None:
    """Else a node that is back without its last events takes the call for one of before."""
    entry = await newest(partitions, opened)
    later = EventId(entry.id.generation, entry.id.number + 7)
    real = Lane.call
    tries = 0

    async def call(self: Lane, *args: Any, **others: Any) -> Any:
        nonlocal tries
        tries += 1
        if tries > 1:
            return await real(self, *args, **others)
        impatient.learn({opened: later})
        if kind:
            raise kind("lost")
        return ReplyError("NOSCRIPT No matching script.")

    with monkeypatch.context() as patch:
        patch.setattr(Lane, "call", call)
        with pytest.raises(StockUnavailableError, match="WENT_BACK"):
            await partitions.replicated(opened, ledger=0, last=checkpoint_at(entry))
    assert tries > 1


@pytest.mark.parametrize("found", [b"2-8", b"3-1", b"no id", None])
async def test_who_finds_a_partition_shut_says_what_the_last_event_was_and_nobody_unsays_it(
    services: LocalStack, impatient: Cluster, opened: int, found: bytes | None
) -> None:
    """Whoever opens it names by that what was lost."""
    seen, key = EventId(2, 9), keys.witness(impatient.tags[opened])
    if found is None:
        await impatient.command(opened, "HSET", key, "no", "string", lane=LaneKind.WRITE)
    else:
        await impatient.command(opened, "SET", key, found, lane=LaneKind.WRITE)
    fresh = await Cluster.connect(impatient.settings, StockMetrics(CollectorRegistry()))
    fresh.learn({opened: seen})
    with pytest.raises(StockUnavailableError, match="WENT_BACK"):
        await Partitions(fresh, partitions=PARTITIONS).replicated(
            opened, ledger=0, last=NOTHING_APPLIED
        )
    told = EventId(3, 1) if found == b"3-1" else seen

    async def is_told() -> bool:
        return await impatient.told(opened) == told

    await eventually(is_told)
    await fresh.close()
    assert await is_told()


@pytest.mark.parametrize("by", ["the partition", "the ledger"])
async def test_who_finds_a_partition_opened_anew_says_what_it_saw_before(
    partitions: Partitions, impatient: Cluster, opened: int, by: str
) -> None:
    """The node may have been opened without that."""
    fresh = await Cluster.connect(impatient.settings, StockMetrics(CollectorRegistry()))
    looking = Partitions(fresh, partitions=PARTITIONS)
    entry = await newest(partitions, opened)
    assert await looking.replicated(opened, ledger=0, last=checkpoint_at(entry))
    before = fresh.seen(opened)
    again = await partitions.open(opened, [checkpoint_at(entry)], opening=2)
    if by == "the ledger":
        fresh.learn({opened: EventId(again.generation, again.number)})
    else:
        entry = await newest(partitions, opened)
        assert await looking.replicated(opened, ledger=0, last=checkpoint_at(entry))
    assert before < EventId(again.generation, 0) <= fresh.seen(opened)

    async def is_told() -> bool:
        return await impatient.told(opened) == before

    await eventually(is_told)
    await fresh.close()
