"""Connecting to the cluster and leaving it."""

import asyncio
import gc

import pytest
from prometheus_client import CollectorRegistry

from deploy.local.stack import LocalStack
from sharding.cluster import Cluster
from sharding.errors import StockUnavailableError
from sharding.metrics import StockMetrics
from tests.sharding.conftest import settings_for


async def test_a_closed_cluster_leaves_no_connection_open(services: LocalStack) -> None:
    complaints: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: complaints.append(context["message"]))
    try:
        cluster = await Cluster.connect(settings_for(services), StockMetrics(CollectorRegistry()))
        await cluster.close()
        del cluster
        gc.collect()
    finally:
        loop.set_exception_handler(None)
    assert complaints == []


async def test_a_cluster_that_is_not_there_is_named_with_what_to_check(
    services: LocalStack,
) -> None:
    settings = settings_for(services, redis_nodes="127.0.0.1:1", redis_timeout_ms=200)
    with pytest.raises(StockUnavailableError, match=r"127\.0\.0\.1:1.*INVENTORY_REDIS_NODES"):
        await Cluster.connect(settings, StockMetrics(CollectorRegistry()))
