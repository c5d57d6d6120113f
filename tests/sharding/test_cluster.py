"""Connecting to the cluster and leaving it."""

import pytest
from prometheus_client import CollectorRegistry

from deploy.local.stack import LocalStack
from sharding.cluster import Cluster
from sharding.errors import StockUnavailableError
from sharding.metrics import StockMetrics
from tests.sharding.conftest import settings_for


async def test_a_closed_cluster_leaves_no_connection_open(services: LocalStack) -> None:
    cluster = await Cluster.connect(settings_for(services), StockMetrics(CollectorRegistry()))
    known = cluster._topology.nodes_manager
    nodes = [*known.nodes_cache.values(), *known.startup_nodes.values()]
    for node in nodes:
        await node.execute_command("PING")
    connections = [each for node in nodes for each in node._connections]
    assert all(connection.is_connected for connection in connections)
    await cluster.close()
    assert not any(connection.is_connected for connection in connections)


async def test_whoever_connects_asks_nodes_for_nothing_that_they_do_not_know(
    services: LocalStack,
) -> None:
    metrics = StockMetrics(CollectorRegistry())
    watching = await Cluster.connect(settings_for(services), metrics)
    await _errors(watching)  # has a connection to each node from now on
    before = await _errors(watching)
    await (await Cluster.connect(settings_for(services), metrics)).close()
    assert await _errors(watching) == before
    await watching.close()


async def _errors(cluster: Cluster) -> int:
    """Commands that nodes have called wrong so far."""
    nodes = cluster._topology.nodes_manager.nodes_cache.values()
    stats = [await node.execute_command("INFO", "errorstats") for node in nodes]
    return sum(each.get("errorstat_ERR", {}).get("count", 0) for each in stats)


async def test_a_cluster_that_is_not_there_is_named_with_what_to_check(
    services: LocalStack,
) -> None:
    settings = settings_for(services, redis_nodes="127.0.0.1:1", redis_timeout_ms=200)
    with pytest.raises(StockUnavailableError, match=r"127\.0\.0\.1:1.*INVENTORY_REDIS_NODES"):
        await Cluster.connect(settings, StockMetrics(CollectorRegistry()))
