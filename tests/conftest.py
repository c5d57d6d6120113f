"""One real Redis Cluster and MySQL for the whole run, started when the first test asks for them."""

from collections.abc import AsyncIterator

import pytest

from deploy.local.stack import LocalStack


@pytest.fixture(scope="session")
async def services() -> AsyncIterator[LocalStack]:
    """Six Redis nodes and a MySQL server; no server or worker runs, and no table exists."""
    async with LocalStack() as stack:
        await stack.start_services()
        yield stack


@pytest.fixture(scope="session")
async def stack(services: LocalStack) -> LocalStack:
    """The services, with the ledger's tables."""
    await services.migrate()
    return services


@pytest.fixture(scope="session")
async def redis_nodes(services: LocalStack) -> list[str]:
    """`host:port` of the cluster's nodes."""
    return services.redis_nodes


@pytest.fixture(scope="session")
async def mysql_url(stack: LocalStack) -> str:
    """The ledger's database, migrated."""
    return stack.mysql_url
