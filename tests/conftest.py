"""One real Redis Cluster and MySQL for each process of the run, started for the first test that asks."""

import os
from collections.abc import AsyncIterator

import pytest

from deploy.local.errors import StackError
from deploy.local.programs import INSTALLED, TEST_REDIS, find_redis
from deploy.local.stack import LocalStack


def pytest_configure() -> None:
    """Who asks for a Redis that is not there learns it before the first test."""
    chosen = os.environ.get(TEST_REDIS, "")
    if chosen not in ("", INSTALLED):
        try:
            find_redis(chosen)
        except StackError as error:
            raise pytest.UsageError(str(error)) from None


def pytest_report_header() -> str:
    """Which Redis is tested."""
    try:
        return f"redis: {find_redis(os.environ.get(TEST_REDIS, ''))}"
    except StackError as error:
        return f"redis: {error}"  # many tests need none


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Short tests come last, so that processes that share the run end at the same time."""
    items.sort(key=lambda item: item.path.parent.name == "unit")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Keep together what shares something, where several processes share the run."""
    from tests.sharing import ByGroup  # noqa: PLC0415  # who runs in one process needs no xdist

    return ByGroup(config, log)


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
