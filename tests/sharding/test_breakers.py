"""A process that finds a node not serving: who is let through to it, who waits, who goes elsewhere."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
from prometheus_client import CollectorRegistry

from deploy.local.stack import LocalStack
from sharding import lane as lanes
from sharding.breaker import OPEN_S, PROBES_MAX, Breaker, BreakerState
from sharding.cluster import Cluster, LaneKind
from sharding.errors import StockUnavailableError
from sharding.lane import Node
from sharding.metrics import StockMetrics
from sharding.outcomes import Deduction, Outcome, Reason
from sharding.scripts import script
from sharding.stock import Stock
from tests.sharding.conftest import LoadProduct, settings_for
from tests.sharding.test_alternates import ALTERNATE, HOME, SHARDS, ids_at, node_of, partition_of
from tests.sharding.test_lane import FakeNode
from tests.waiting import eventually

_CONFIRM = script("confirm")
LOADING = b"-LOADING Redis is loading the dataset in memory\r\n"
PATIENCE_MS = 1_000


@dataclass
class Alone:
    """A process all of whose partitions are at one node, which is a script."""

    cluster: Cluster
    node: Node
    fake: FakeNode
    registry: CollectorRegistry

    async def ask(self, *, hasty: bool = False, partition: int = 0) -> object:
        return await self.cluster.command(partition, "PING", lane=LaneKind.WRITE, hasty=hasty)

    async def outcome(self, *, hasty: bool = False, partition: int = 0) -> object:
        """The reply, or the reason of the failure."""
        try:
            return await self.ask(hasty=hasty, partition=partition)
        except StockUnavailableError as failure:
            return failure.reason

    @property
    def breaker(self) -> Breaker:
        return self.cluster._lanes[self.node, LaneKind.WRITE].breaker

    @property
    def pings(self) -> int:
        return sum(command == [b"PING"] for command in self.fake.received)

    def sample(self, name: str) -> float | None:
        return self.registry.get_sample_value(name, {"node": str(self.node), "lane": "write"})


@pytest.fixture
async def alone(services: LocalStack, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Alone]:
    fake, registry = FakeNode(), CollectorRegistry()
    server = await asyncio.start_server(fake.serve, "127.0.0.1", 0)
    node = Node("127.0.0.1", server.sockets[0].getsockname()[1])
    settings = settings_for(services, durability="fast", redis_patience_ms=PATIENCE_MS)
    cluster = Cluster.unconnected(settings, StockMetrics(registry))
    cluster._nodes = [node] * settings.partitions

    async def keep(self: Cluster) -> str:
        return ""

    monkeypatch.setattr(cluster, "_refresh", keep.__get__(cluster))
    yield Alone(cluster, node, fake, registry)
    await cluster.close()
    server.close()
    fake.hang_up()


@pytest.mark.parametrize(
    "error",
    [
        LOADING,
        b"-CLUSTERDOWN The cluster is down\r\n",
        b"-NOREPLICAS Not enough good replicas to write.\r\n",
        b"-READONLY You can't write against a read only replica.\r\n",
        b"-MASTERDOWN Link with MASTER is down\r\n",
    ],
)
async def test_whoever_can_go_elsewhere_learns_at_once_that_the_node_cannot_serve(
    alone: Alone, error: bytes
) -> None:
    alone.fake.answering = lambda _: error
    assert await alone.outcome(hasty=True) is Reason.NOT_EXECUTED
    assert alone.cluster.is_down(0)
    sent = alone.pings
    assert await alone.outcome(hasty=True) is Reason.NOT_EXECUTED
    assert alone.pings == sent == 1


async def test_of_two_hundred_calls_a_few_go_through_while_it_is_half_open(alone: Alone) -> None:
    alone.fake.answering = lambda _: LOADING
    await alone.outcome(hasty=True)
    began_s = asyncio.get_running_loop().time()
    outcomes = await asyncio.gather(*(alone.outcome() for _ in range(200)))
    windows = (asyncio.get_running_loop().time() - began_s) / OPEN_S + 1
    assert set(outcomes) == {Reason.NOT_EXECUTED}
    assert 1 < alone.pings <= 1 + windows * PROBES_MAX


async def test_calls_that_wait_go_through_once_a_probe_is_answered(alone: Alone) -> None:
    alone.fake.answering = lambda _: LOADING
    await alone.outcome(hasty=True)
    assert alone.sample("inventory_redis_breaker_state") == BreakerState.OPEN
    waiting = [asyncio.create_task(alone.outcome()) for _ in range(50)]
    await asyncio.sleep(0)
    alone.fake.answering = lambda _: b"+OK\r\n"
    assert await asyncio.gather(*waiting) == [b"OK"] * 50
    assert not alone.cluster.is_down(0)
    assert alone.sample("inventory_redis_breaker_state") == BreakerState.CLOSED
    assert alone.sample("inventory_redis_breaker_opened_total") == 1


async def test_a_probe_whose_caller_leaves_frees_its_place(alone: Alone) -> None:
    alone.fake.answering = lambda _: LOADING
    await alone.outcome(hasty=True)
    alone.fake.answering = lambda _: None
    await eventually(lambda: alone.breaker.has_room)
    probes = [asyncio.create_task(alone.outcome()) for _ in range(PROBES_MAX)]
    await asyncio.sleep(0)
    assert not alone.breaker.has_room
    assert alone.breaker.state is BreakerState.HALF_OPEN
    for probe in probes:
        probe.cancel()
    await asyncio.gather(*probes, return_exceptions=True)
    assert alone.breaker.has_room


@pytest.mark.parametrize(
    "answer",
    [
        b"-OOM command not allowed when used memory > 'maxmemory'.\r\n",
        b"-CLUSTERDOWN Hash slot not served\r\n",
        b"-TRYAGAIN Multiple keys request during rehashing of slot\r\n",
        b"-ERR something\r\n",
    ],
)
async def test_an_error_that_is_the_calls_own_keeps_nobody_from_the_node(
    alone: Alone, answer: bytes
) -> None:
    alone.fake.answering = lambda _: answer
    assert isinstance(await alone.outcome(), Reason)
    assert alone.breaker.is_closed


async def test_our_own_full_queue_keeps_nobody_from_the_node(
    alone: Alone, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await alone.outcome() == b"OK"
    monkeypatch.setattr(lanes, "QUEUE_CALLS_MAX", 0)
    assert await alone.outcome() is Reason.QUEUE_FULL
    monkeypatch.undo()
    assert alone.breaker.is_closed
    assert await alone.outcome() == b"OK"


async def test_a_node_that_has_no_partitions_any_more_is_nobodys_trouble(
    alone: Alone, cluster: Cluster
) -> None:
    alone.fake.answering = lambda _: LOADING
    await alone.outcome(hasty=True)
    assert not alone.breaker.is_closed
    assert await Cluster._refresh(alone.cluster) == ""  # finds the real masters
    assert alone.cluster._nodes == cluster._nodes
    assert alone.breaker.is_closed
    assert not alone.cluster.is_down(0)


@pytest.fixture
async def watched(services: LocalStack) -> AsyncIterator[tuple[Cluster, Stock]]:
    """A process of its own on the real cluster."""
    metrics = StockMetrics(CollectorRegistry())
    cluster = await Cluster.connect(settings_for(services), metrics)
    stock = Stock(cluster, metrics)
    yield cluster, stock
    await stock.drain()
    await cluster.close()


async def test_a_node_that_stalls_for_a_moment_keeps_what_was_sent_and_nothing_else(
    services: LocalStack, watched: tuple[Cluster, Stock], stock: Stock, load: LoadProduct
) -> None:
    cluster, ours = watched
    product = await load(*[30] * SHARDS)
    await ours.read(product)
    node = node_of(cluster, product, HOME)
    stalled = next(each for each in services.redis if each.address == str(node))
    first, *others = ids_at(HOME)
    # The connection is there before the node stalls.
    (warm,) = await ours.deduct([Deduction(others.pop(), product, 1, attempt=1)])
    stalled.process.pause()
    try:
        sent = ours.deduct([Deduction(first, product, 1, attempt=1)])
        await eventually(lambda: cluster.is_down(partition_of(product, HOME)))
        elsewhere = await ours.deduct([Deduction(each, product, 1, attempt=1) for each in others])
        assert not sent.done()
    finally:
        stalled.process.resume()
    (answer,) = await sent
    assert warm.shard == answer.shard == HOME
    assert {(each.outcome, each.shard) for each in elsewhere} == {(Outcome.DEDUCTED, ALTERNATE)}
    assert (answer.outcome, answer.replayed) == (Outcome.DEDUCTED, False)
    assert not cluster.is_down(partition_of(product, HOME))
    (later,) = await ours.deduct([Deduction("later", product, 1, attempt=1)])
    assert later.outcome is Outcome.DEDUCTED
    again = await stock.deduct(
        [Deduction(each, product, 1, attempt=2) for each in (first, *others)]
    )
    assert all(each.replayed for each in again)
    found = await stock.read(product)
    assert found is not None
    assert found.sold == 2 + len(others) + 1


@pytest.mark.parametrize("durability", ["replicated", "fast"])
async def test_who_is_in_a_hurry_does_not_wait_for_a_silent_node_that_is_in_doubt(
    services: LocalStack, metrics: StockMetrics, durability: str
) -> None:
    newcomer = await Cluster.connect(settings_for(services, durability=durability), metrics)
    node, (partition, *_) = next(iter(newcomer.masters().items()))
    (silent,) = (each for each in services.redis if each.port == node.port)
    silent.process.pause()

    async def confirm() -> object:
        return await newcomer.run(_CONFIRM, partition, [], [], lane=LaneKind.WRITE, hasty=True)

    first = asyncio.create_task(confirm())
    try:
        await eventually(lambda: newcomer.is_down(partition))
        with pytest.raises(StockUnavailableError) as failed:
            await confirm()
    finally:
        silent.process.resume()
        await asyncio.gather(first, return_exceptions=True)
        await newcomer.close()
    assert failed.value.reason is Reason.NOT_EXECUTED
