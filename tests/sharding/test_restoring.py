"""One attempt at a time restores a partition, and nobody else is obeyed meanwhile."""

from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import count

import pytest
from prometheus_client import CollectorRegistry

from deploy.local.stack import LocalStack
from sharding import keys
from sharding.cluster import Cluster, LaneKind
from sharding.errors import NotOpenableError, RestorationPassedError, StockUnavailableError
from sharding.memories import Memory, What
from sharding.metrics import StockMetrics
from sharding.outcomes import Deduction, Outcome
from sharding.partitions import NOTHING_APPLIED, Partitions
from sharding.placement import Layout, base_partition
from sharding.plans import NEVER_FROZEN
from sharding.readings import Given
from sharding.restoring import (
    Restoring,
    ShardState,
    Shut,
    Transfers,
    checkpoint_at,
    opened_entry,
)
from sharding.shards import Known, Shards
from sharding.stock import Stock
from tests.sharding.conftest import entries_of, plan_for, settings_for

# Other partitions than those of the other tests.
PARTITIONS = 192
_fresh_partition = count(1, 2)
_product_ids = count(7_800_001)
AT_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
async def lonely(services: LocalStack) -> AsyncIterator[Cluster]:
    settings = settings_for(
        services, partitions=PARTITIONS, default_shards=1, redis_patience_ms=300
    )
    cluster = await Cluster.connect(settings, StockMetrics(CollectorRegistry()))
    yield cluster
    await cluster.close()


@pytest.fixture
def partitions(lonely: Cluster) -> Partitions:
    return Partitions(lonely, partitions=PARTITIONS)


@pytest.fixture
def restoring(lonely: Cluster) -> Restoring:
    return Restoring(lonely)


@pytest.fixture
async def opened(partitions: Partitions) -> int:
    partition = next(_fresh_partition)
    await partitions.open(partition, [NOTHING_APPLIED], opening=1)
    return partition


def shard(product_id: int, **changes: object) -> ShardState:
    known: dict[str, object] = {
        "product_id": product_id,
        "epoch": 1,
        "layout_version": 1,
        "state": "open",
        "serves": True,
        "available": 7,
        "held": 0,
        "sold": 3,
        "loaded": 10,
        "released": 0,
        "max_per_user": 0,
        "repaired": 0,
        "freeze": NEVER_FROZEN,
        "transfers": {},
        "listing": {
            "layout": 1,
            "shards": 1,
            "epoch": 1,
            "former": "",
            "earlier": "",
            "buffer": 0,
            "sold_before": 0,
            "max_per_user": 0,
            "next_layout": 0,
        },
    }
    return ShardState(**(known | changes))  # type: ignore[arg-type]


def product_of_an_even_partition() -> int:
    """Of which no test above leaves a partition shut."""
    return next(each for each in _product_ids if base_partition(each, PARTITIONS) % 2 == 0)


async def opened_by(cluster: Cluster, partition: int) -> str:
    """What a refused opening has found."""
    head = keys.head(cluster.tags[partition])
    reply = await cluster.command(
        partition, "HMGET", head, "generation", "owner", lane=LaneKind.READ
    )
    assert isinstance(reply, list)
    return " ".join((each or b"").decode() for each in reply)


async def shut_now(
    cluster: Cluster, restoring: Restoring, partition: int, attempt: int, *, number: int = 0
) -> Shut:
    """By an attempt that has just looked."""
    found = await opened_by(cluster, partition)
    return await restoring.shut(
        partition, attempt=attempt, found=found, number=number, forgets=True
    )


async def restored(cluster: Cluster, restoring: Restoring, partition: int, attempt: int) -> Shut:
    """Shut, given nothing, and opened again."""
    shut = await shut_now(cluster, restoring, partition, attempt)
    await restoring.reopen(partition, shut, opened_entry(shut, AT_MS))
    return shut


async def test_a_partition_that_is_being_restored_obeys_nobody(
    lonely: Cluster, partitions: Partitions, restoring: Restoring, opened: int
) -> None:
    await shut_now(lonely, restoring, opened, 2)
    head = await partitions.head(opened)
    assert (head.is_open, head.reason) == (False, "RESTORING")
    with pytest.raises(StockUnavailableError, match="RESTORING"):
        await partitions.replicated(opened, ledger=0, last=NOTHING_APPLIED)
    with pytest.raises(NotOpenableError, match="being restored"):
        await partitions.open(opened, [NOTHING_APPLIED], opening=3)


async def test_a_restored_partition_has_one_entry_above_all_that_anybody_knew(
    lonely: Cluster, partitions: Partitions, restoring: Restoring, opened: int
) -> None:
    shut = await shut_now(lonely, restoring, opened, 5, number=70)
    assert (shut.number, shut.known) == (70, 1)
    entry = opened_entry(shut, AT_MS)
    await restoring.reopen(opened, shut, entry)
    assert await entries_of(partitions, opened) == [entry]
    head = await partitions.head(opened, opening=5)
    assert (head.is_open, head.generation, head.number) == (True, 5, 71)
    assert head.stream(0).applied == 71
    again = await partitions.open(opened, [checkpoint_at(entry)], opening=6)
    assert (again.generation, again.number) == (6, 72)


Step = Callable[[Restoring, int, Shut], Awaitable[object]]
STEPS: dict[str, Step] = {
    "shut": lambda restoring, partition, shut: restoring.shut(
        partition, attempt=shut.attempt, found=f"{shut.attempt} ", number=0, forgets=True
    ),
    "refill": lambda restoring, partition, shut: restoring.refill(
        partition, shut.attempt, shard(next(_product_ids))
    ),
    "clear": lambda restoring, partition, shut: restoring.clear(partition, shut.attempt, 1),
    "users": lambda restoring, partition, shut: restoring.count_users(
        partition, shut.attempt, 1, {1: 1}
    ),
    "remember": lambda restoring, partition, shut: restoring.remember(
        partition, shut.attempt, [Memory(What.RECORD, "1:x", "d1:0:0:0")], numbers=count(1)
    ),
    "reopen": lambda restoring, partition, shut: restoring.reopen(
        partition, shut, opened_entry(shut, AT_MS)
    ),
}


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("later", ["begun", "ended"])
async def test_an_attempt_that_was_overtaken_writes_nothing(
    lonely: Cluster,
    partitions: Partitions,
    restoring: Restoring,
    opened: int,
    step: str,
    later: str,
) -> None:
    early = await shut_now(lonely, restoring, opened, 2)
    if later == "begun":
        await shut_now(lonely, restoring, opened, 3)
    else:
        await restored(lonely, restoring, opened, 3)
    before = await partitions.head(opened)
    with pytest.raises(RestorationPassedError):
        await STEPS[step](restoring, opened, early)
    assert await partitions.head(opened) == before


@pytest.mark.parametrize("step", STEPS)
async def test_an_attempt_ends_with_the_run_of_the_node_that_it_began_in(
    lonely: Cluster, partitions: Partitions, restoring: Restoring, opened: int, step: str
) -> None:
    """The next one may have forgotten a part of what the attempt has written."""
    early = await shut_now(lonely, restoring, opened, 2)
    head = keys.head(lonely.tags[opened])
    await lonely.command(opened, "HSET", head, "run", "0" * 40, lane=LaneKind.WRITE)
    with pytest.raises(RestorationPassedError):
        await STEPS[step](restoring, opened, early)
    assert (await partitions.head(opened)).reason == "RESTORING"
    await restored(lonely, restoring, opened, 3)
    assert (await partitions.head(opened)).is_open


async def test_an_attempt_leaves_alone_what_another_has_opened_since_it_looked(
    lonely: Cluster, partitions: Partitions, restoring: Restoring, opened: int
) -> None:
    """What was sold there meanwhile is in no ledger yet."""
    early = await shut_now(lonely, restoring, opened, 2)
    with pytest.raises(NotOpenableError) as refused:
        await partitions.open(opened, [NOTHING_APPLIED], opening=3)
    await restoring.reopen(opened, early, opened_entry(early, AT_MS))
    before = await partitions.head(opened)
    found = refused.value.found
    with pytest.raises(RestorationPassedError):
        await restoring.shut(opened, attempt=3, found=found, number=0, forgets=True)
    assert await partitions.head(opened) == before
    assert before.is_open


async def test_each_step_whose_answer_was_lost_may_be_repeated(
    lonely: Cluster, partitions: Partitions, restoring: Restoring, opened: int
) -> None:
    first = await shut_now(lonely, restoring, opened, 2)
    shut = await shut_now(lonely, restoring, opened, 2)
    assert shut == first
    product = next(_product_ids)
    for _ in range(2):
        assert await restoring.refill(opened, 2, shard(product)) is None
    entry = opened_entry(shut, AT_MS)
    for _ in range(2):
        await restoring.reopen(opened, shut, entry)
    assert await entries_of(partitions, opened) == [entry]


async def test_a_call_that_was_held_up_takes_nothing_back(
    lonely: Cluster, partitions: Partitions, restoring: Restoring, opened: int
) -> None:
    """Each call of an attempt once more, after all of them."""
    product, user, numbers = next(_product_ids), 9, count(1)
    shut = await shut_now(lonely, restoring, opened, 2)

    async def refill() -> None:
        await restoring.refill(opened, 2, shard(product, max_per_user=5))

    await refill()
    await restoring.count_users(opened, 2, product, {user: 3})
    held, ended = (
        Memory(what, f"{product}:order 1 {product}", value)
        for what, value in ((What.RECORD, f"h3:{user}:7:0"), (What.ENDED, f"c3:{user}:"))
    )
    for memory in (held, ended):
        await restoring.remember(opened, 2, [memory], numbers=numbers)
    kept = await kept_of(lonely, opened, product)
    assert kept == {b"%d:order 1 %d" % (product, product): b"c3:9:7:0", b"9": b"3"}
    await restoring.shut(opened, attempt=2, found="1 ", number=0, forgets=True)
    await refill()
    await restoring.remember(opened, 2, [held], numbers=count(1))
    assert await kept_of(lonely, opened, product) == kept
    await restoring.reopen(opened, shut, opened_entry(shut, AT_MS))


async def kept_of(cluster: Cluster, partition: int, product: int) -> dict[bytes, bytes]:
    """What it remembers, and the units that users have."""
    tag = cluster.tags[partition]
    found: dict[bytes, bytes] = {}
    for key in (keys.records(tag, 0), keys.users(tag, product)):
        flat = await cluster.command(partition, "HGETALL", key, lane=LaneKind.READ)
        assert isinstance(flat, list)
        found |= dict(zip(flat[::2], flat[1::2], strict=True))
    return {name: value for name, value in found.items() if name != b"-"}


async def test_a_restored_shard_sells_what_it_was_given_and_replays_what_it_was_told(
    lonely: Cluster, partitions: Partitions, restoring: Restoring
) -> None:
    product = product_of_an_even_partition()
    plan = plan_for(product, 10)
    partition = plan.layout.partition(0, product_id=product, partitions=PARTITIONS)
    if not (await partitions.head(partition)).is_open:
        await partitions.open(partition, [NOTHING_APPLIED], opening=1)
    attempt = (await partitions.head(partition)).generation + 1
    shut = await shut_now(lonely, restoring, partition, attempt)
    assert await restoring.refill(partition, attempt, shard(product)) is None
    record = Memory(What.RECORD, f"{product}:known", "d3:9:7:0")
    await restoring.remember(partition, attempt, [record], numbers=count(1))
    await restoring.reopen(partition, shut, opened_entry(shut, AT_MS))
    stock = Stock(lonely, lonely.metrics)
    requests = [Deduction("known", product, 3, user_id=9), Deduction("new", product, 7)]
    answers = await stock.deduct([*requests, Deduction("more", product, 1)])
    await stock.drain()
    assert [(answer.outcome, answer.replayed, answer.available) for answer in answers] == [
        (Outcome.DEDUCTED, True, 7),
        (Outcome.DEDUCTED, False, 0),
        (Outcome.INSUFFICIENT_STOCK, False, 0),
    ]


async def test_a_restored_donor_gives_up_what_it_has_forgotten_to_have_given(
    lonely: Cluster, partitions: Partitions, restoring: Restoring
) -> None:
    """As much as it has; and what of that it gave before is not given twice."""
    product = product_of_an_even_partition()
    shards = Shards(lonely, product, Layout(1, 2))
    donor, receiver = shards.partitions
    if not (await partitions.head(donor)).is_open:
        await partitions.open(donor, [NOTHING_APPLIED], opening=1)
    attempt = (await partitions.head(donor)).generation + 1
    shut = await shut_now(lonely, restoring, donor, attempt)
    known = shard(product, transfers={receiver: Transfers(given=4, arrived=4)})
    await restoring.refill(donor, attempt, known)
    await restoring.reopen(donor, shut, opened_entry(shut, AT_MS))
    had = (await shards.read(donor)).available
    for arrived, given in ((3, 4), (9, 9), (9, 9), (9 + had, 4 + had)):
        told = Given(donor, receiver, known.epoch, arrived)
        assert await shards.ack(told) == Known(told._replace(units=given), max(arrived, 4))
        assert (await shards.read(donor)).available == had - (given - 4)
    await shards.put(Given(receiver, donor, known.epoch, 7))
    taken = await shards.take(donor, receiver=receiver, before=4 + had, quantity=5)
    assert taken.given == Given(donor, receiver, known.epoch, 9 + had)
    taken = await shards.take(donor, receiver=receiver, before=9 + had, quantity=5)
    assert (taken.word, taken.units) == ("taken", 2)
    taken = await shards.take(donor, receiver=receiver, before=11 + had, quantity=5)
    assert taken.word == "open"
