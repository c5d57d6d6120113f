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


async def test_a_cluster_that_is_not_there_is_named_with_what_to_check(
    services: LocalStack,
) -> None:
    settings = settings_for(services, redis_nodes="127.0.0.1:1", redis_timeout_ms=200)
    with pytest.raises(StockUnavailableError, match=r"127\.0\.0\.1:1.*INVENTORY_REDIS_NODES"):
        await Cluster.connect(settings, StockMetrics(CollectorRegistry()))
