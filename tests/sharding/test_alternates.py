"""A home whose node refuses connections: what its alternate does, and what is told apart."""

import asyncio
from collections.abc import AsyncIterator
from itertools import count

import pytest

from deploy.local.stack import LocalStack
from sharding.cluster import Cluster
from sharding.lane import Node
from sharding.metrics import StockMetrics
from sharding.outcomes import (
    Answer,
    Deduction,
    Outcome,
    Reason,
    Resolution,
    Resolved,
    State,
)
from sharding.packing import pack
from sharding.partitions import Partitions
from sharding.placement import Layout, alternate_shard, base_partition, home_shard
from sharding.shards import Mode, Served, Shards
from sharding.stock import Stock
from tests.sharding.conftest import LoadProduct, events_of, settings_for

NOBODY_LISTENS = Node("127.0.0.1", 1)
SHARDS = 6


class Half:
    """A process that cannot reach the nodes of some partitions, until `heal`."""

    def __init__(self, cluster: Cluster, metrics: StockMetrics) -> None:
        self.cluster = cluster
        self.stock = Stock(cluster, metrics)
        self._healthy = list(cluster._nodes)

    def lose(self, node: Node) -> None:
        """All partitions of a master."""
        for partition, found in enumerate(self._healthy):
            if found == node:
                self.cluster._nodes[partition] = NOBODY_LISTENS

    def heal(self) -> None:
        self.cluster._nodes[:] = self._healthy


@pytest.fixture
async def half(
    services: LocalStack, metrics: StockMetrics, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Half]:
    async def keep(self: Cluster) -> str:
        return ""

    connected = await Cluster.connect(settings_for(services, redis_patience_ms=300), metrics)
    monkeypatch.setattr(connected, "_refresh", keep.__get__(connected))
    found = Half(connected, metrics)
    yield found
    await found.stock.drain()
    await connected.close()


def node_of(cluster: Cluster, product: int, shard: int) -> Node:
    partition = (base_partition(product, 48) + shard * 48 // SHARDS) % 48
    node = cluster._nodes[partition]
    assert node is not None
    return node


def ids_at(shard: int) -> list[str]:
    """Ten ids whose home is that shard."""
    ids = (f"id-{i}" for i in count())
    return [name for name, _ in zip((n for n in ids if home_shard(n, SHARDS) == shard), range(10))]  # noqa: B905


async def ask(stock: Stock, request: Deduction) -> Answer:
    (answer,) = await stock.deduct([request])
    return answer


async def test_a_first_try_whose_home_is_away_goes_to_its_alternate_and_is_found_there(
    half: Half, stock: Stock, load: LoadProduct, partitions: Partitions
) -> None:
    product = await load(*[30] * SHARDS)
    await half.stock.read(product)
    half.lose(node_of(half.cluster, product, 1))
    wanted = [Deduction(name, product, 1, attempt=1) for name in ids_at(1)]
    answers = [await ask(half.stock, request) for request in wanted]
    assert {(a.outcome, a.shard) for a in answers} == {(Outcome.DEDUCTED, alternate_shard(1, 6))}
    for attempt in (0, 2):
        again = await asyncio.gather(*(ask(stock, r._replace(attempt=attempt)) for r in wanted))
        assert again == [answer._replace(replayed=True) for answer in answers]
    half.heal()
    assert (await ask(half.stock, wanted[0]._replace(attempt=2))).replayed
    sales = [sale for event in await events_of(partitions, product) for sale in event.sales]
    assert len(sales) == len(wanted)


async def test_any_other_try_is_not_executed_and_says_so(half: Half, load: LoadProduct) -> None:
    product = await load(*[30] * SHARDS)
    await half.stock.read(product)
    half.lose(node_of(half.cluster, product, 1))
    (name, *_) = ids_at(1)
    for attempt in (0, 2):
        answer = await ask(half.stock, Deduction(name, product, 1, attempt=attempt))
        assert answer == Answer(Outcome.UNAVAILABLE, reason=Reason.NOT_EXECUTED)
    half.heal()
    assert await ask(half.stock, Deduction(name, product, 1, attempt=2)) == Answer(
        Outcome.DEDUCTED, shard=1, available=29
    )


async def test_the_other_shards_sell_whatever_the_attempt(half: Half, load: LoadProduct) -> None:
    product = await load(*[30] * SHARDS)
    await half.stock.read(product)
    lost = node_of(half.cluster, product, 1)
    half.lose(lost)
    alive = [s for s in range(SHARDS) if node_of(half.cluster, product, s) != NOBODY_LISTENS]
    assert len(alive) == 4
    for attempt in (0, 1, 2):
        for shard in alive:
            wanted = Deduction(f"{attempt}{ids_at(shard)[0]}", product, 1, attempt=attempt)
            if home_shard(wanted.request_id, SHARDS) in alive:
                assert (await ask(half.stock, wanted)).outcome is Outcome.DEDUCTED


async def test_nothing_is_refused_while_a_shard_cannot_be_asked(
    half: Half, load: LoadProduct
) -> None:
    product = await load(1, 1, 1, 1, 1, 1)
    await half.stock.read(product)
    half.lose(node_of(half.cluster, product, 1))
    for shard in range(SHARDS):
        answer = await ask(half.stock, Deduction(ids_at(shard)[1], product, 5, attempt=1))
        assert answer == Answer(Outcome.UNAVAILABLE, reason=Reason.SHARDS_UNREACHABLE)


async def test_nobody_stands_in_for_a_home_that_knew_the_request_before(
    half: Half, stock: Stock, load: LoadProduct
) -> None:
    product = await load(30)
    (name, *_) = ids_at(0)  # the base, in every layout
    assert await stock.resolve(product, name) == Resolved(Resolution.NEVER)
    await stock.change_layout(product, version=3, shards=SHARDS, cause="operator")
    await half.stock.read(product)
    half.lose(node_of(half.cluster, product, 0))
    late = await ask(half.stock, Deduction(name, product, 1, attempt=1))
    assert late == Answer(Outcome.UNAVAILABLE, reason=Reason.NOT_EXECUTED)


async def test_what_a_lost_try_may_still_change_is_not_said_for_a_fact(
    stock: Stock, load: LoadProduct, monkeypatch: pytest.MonkeyPatch
) -> None:
    product = await load(*[30] * SHARDS)

    async def repeated(self: Shards, *args: object, **kwargs: object) -> Served:
        return Served(0, b"F", (), State.LOADING, may_echo=True)

    monkeypatch.setattr(Shards, "deduct", repeated)
    answer = await ask(stock, Deduction("id", product, 1, attempt=1))
    assert answer == Answer(Outcome.UNAVAILABLE, reason=Reason.OUTCOME_UNKNOWN)


async def test_a_refusal_after_a_lost_try_is_final(
    stock: Stock, load: LoadProduct, monkeypatch: pytest.MonkeyPatch
) -> None:
    product = await load(0, 0)
    real = Shards.deduct

    async def repeated(self: Shards, *args: object, **kwargs: object) -> Served:
        return (await real(self, *args, **kwargs))._replace(may_echo=True)  # type: ignore[arg-type]

    monkeypatch.setattr(Shards, "deduct", repeated)
    wanted = Deduction("id", product, 1, attempt=1)
    assert await ask(stock, wanted) == Answer(Outcome.INSUFFICIENT_STOCK)
    monkeypatch.undo()
    await stock.restock(product, request_id="in", quantity=5, reason="")
    # The try that was lost arrives now: it meets the tombstone.
    late = await ask(stock, wanted)
    assert late == Answer(Outcome.INSUFFICIENT_STOCK, replayed=True)


async def test_a_resolution_waits_until_every_place_can_be_asked(
    half: Half, load: LoadProduct
) -> None:
    product = await load(*[30] * SHARDS)
    await half.stock.read(product)
    half.lose(node_of(half.cluster, product, 1))
    resolved = await half.stock.resolve(product, ids_at(1)[0])
    assert resolved == Answer(Outcome.UNAVAILABLE, reason=Reason.NOT_EXECUTED)


async def test_a_resolution_finds_what_a_stand_in_sold_though_home_refused_it(
    stock: Stock, load: LoadProduct, cluster: Cluster
) -> None:
    product = await load(0, 1)
    shards = Shards(cluster, product, Layout(1, 2))
    name = next(f"id-{i}" for i in range(99) if home_shard(f"id-{i}", 2) == 0)
    wanted = Deduction(name, product, 1, attempt=2)
    refused = await shards.deduct(shards.partitions[0], pack([wanted]), mode=Mode.FINAL)
    sold = await shards.deduct(shards.partitions[1], pack([wanted]), mode=Mode.VISIT)
    assert (refused.statuses, sold.statuses) == (b"T", b"D")
    assert await stock.resolve(product, name) == Resolved(Resolution.DEDUCTED, 1)
