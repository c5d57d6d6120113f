"""Real nodes are asked how they are set up, and what can lose units lets nothing start."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from prometheus_client import CollectorRegistry

from deploy.local.stack import LocalStack
from sharding import inspection
from sharding.cluster import Cluster
from sharding.errors import NodeUnfitError
from sharding.inspection import Inspection
from sharding.metrics import StockMetrics
from sharding.settings import Durability
from tests.sharding.conftest import settings_for
from tests.waiting import eventually


@asynccontextmanager
async def inspected(
    services: LocalStack, durability: Durability = "replicated", **changes: object
) -> AsyncIterator[tuple[Inspection, CollectorRegistry]]:
    registry = CollectorRegistry()
    settings = settings_for(services, durability=durability, **changes)
    cluster = await Cluster.connect(settings, StockMetrics(registry))
    try:
        yield Inspection(cluster), registry
    finally:
        await cluster.close()


@asynccontextmanager
async def set_to(services: LocalStack, number: int, setting: str, value: str) -> AsyncIterator[str]:
    """One node is set up otherwise; gives where it listens."""
    node = services.redis[number]
    before = (await node.call("CONFIG", "GET", setting))[setting]
    await node.call("CONFIG", "SET", setting, value)
    try:
        yield node.address
    finally:
        await node.call("CONFIG", "SET", setting, before)


@pytest.mark.parametrize("durability", ["replicated", "fast"])
async def test_the_file_that_comes_with_the_service_has_no_flaw(
    services: LocalStack, durability: Durability
) -> None:
    async with inspected(services, durability) as (nodes, registry):
        assert not await nodes.flaws()
        await nodes.require_fit()
        for kind in ("loses_units", "unwise"):
            assert registry.get_sample_value("inventory_redis_node_flaws", {"kind": kind}) == 0


async def test_replicas_are_asked_as_masters_are(services: LocalStack) -> None:
    for number in (0, 3):
        async with (
            set_to(services, number, "maxmemory-policy", "allkeys-lru") as address,
            inspected(services) as (nodes, _),
        ):
            with pytest.raises(NodeUnfitError, match=f"{address}: maxmemory-policy is"):
                await nodes.require_fit()


async def test_synced_wants_every_node_to_sync_always(services: LocalStack) -> None:
    async with inspected(services, "synced") as (nodes, registry):
        flaws = await nodes.flaws()
        assert {flaw.node for flaw in flaws} == set(services.redis_nodes)
        assert {(flaw.what, flaw.loses_units) for flaw in flaws} == {("appendfsync", True)}
        losing = {"kind": "loses_units"}
        assert registry.get_sample_value("inventory_redis_node_flaws", losing) == 6


async def test_a_node_that_may_not_be_asked_is_a_warning(services: LocalStack) -> None:
    node = services.redis[1]
    await node.call("ACL", "SETUSER", "default", "-config")
    try:
        async with inspected(services, "synced") as (nodes, _):
            found = [flaw for flaw in await nodes.flaws() if flaw.node == node.address]
    finally:
        await node.call("ACL", "SETUSER", "default", "+config")
    assert [(flaw.what, flaw.loses_units) for flaw in found] == [("answer", False)]
    assert "NOPERM" in found[0].value


@pytest.mark.parametrize(
    ("was_asked_before", "said"), [(True, "no answer in time"), (False, "the node does not answer")]
)
async def test_a_node_that_hangs_keeps_no_start_waiting(
    services: LocalStack, monkeypatch: pytest.MonkeyPatch, said: str, *, was_asked_before: bool
) -> None:
    monkeypatch.setattr(inspection, "ANSWER_S", 0.5)
    monkeypatch.setattr(inspection, "FRESH_S", 0.0)
    node = services.redis[5]
    async with inspected(services, redis_timeout_ms=60_000) as (nodes, _):
        if was_asked_before:
            await nodes.flaws()
        node.process.pause()
        try:
            found = await nodes.flaws()
        finally:
            node.process.resume()
    silent = {flaw.node: flaw.reason for flaw in found if flaw.what == "node"}
    assert said in silent[node.address]


async def test_what_changes_later_is_found_and_said_once(
    services: LocalStack, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("LOOK_S", "AGAIN_S", "FRESH_S"):
        monkeypatch.setattr(inspection, name, 0.02)
    stop = asyncio.Event()
    async with inspected(services) as (nodes, registry):

        def unwise() -> float | None:
            return registry.get_sample_value("inventory_redis_node_flaws", {"kind": "unwise"})

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(nodes.run(stop))
            async with set_to(services, 2, "cluster-require-full-coverage", "yes"):
                await eventually(lambda: unwise() == 1)
            await eventually(lambda: unwise() == 0)
            stop.set()
    assert caplog.text.count("cluster-require-full-coverage is 'yes'") == 1
