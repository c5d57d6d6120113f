"""The service on two MySQL servers: two servers and two workers, each a process of its own."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack

import grpc
import pytest

from deploy.local.stack import LocalStack
from inventory.v1.admin_pb2_grpc import AdminServiceStub
from ledger.database import Database
from ledger.settings import parse_url
from tests.acceptance.shop import Shop
from tests.ledger.conftest import new_metrics

MYSQL_SERVERS = (0, 1)
LEASE_TTL_S = 1
HURRY: Mapping[str, str] = {
    "INVENTORY_LEASE_TTL_S": str(LEASE_TTL_S),
    "INVENTORY_MYSQL_TIMEOUT_MS": "2000",
    "INVENTORY_MYSQL_CONNECT_TIMEOUT_MS": "1000",
}
"""A MySQL server that hangs is given up soon."""


@pytest.fixture(scope="package")
async def twins() -> AsyncIterator[Shop]:
    """Running and open for sales; a test that stops something starts it again."""
    async with LocalStack(mysql_servers=len(MYSQL_SERVERS)) as stack:
        await stack.start_services()
        await stack.migrate()
        async with Shop(stack, HURRY) as shop:
            await shop.start()
            yield shop


@pytest.fixture
async def databases(twins: Shop) -> AsyncIterator[list[Database]]:
    """Of each MySQL server."""
    async with AsyncExitStack() as opened:
        found = [Database(parse_url(url), new_metrics()) for url in twins.stack.mysql_urls]
        for database in found:
            opened.push_async_callback(database.close)
        yield found


@pytest.fixture
async def admin(twins: Shop) -> AsyncIterator[AdminServiceStub]:
    """Calls without any retry."""
    async with grpc.aio.insecure_channel(twins.stack.grpc_address()) as channel:
        yield AdminServiceStub(channel)
