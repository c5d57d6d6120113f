"""The service as it is run: two servers and two workers, each a process of its own."""

from collections.abc import AsyncIterator

import pytest

from deploy.local.stack import LocalStack
from tests.acceptance.shop import Shop


@pytest.fixture(scope="package")
async def shop() -> AsyncIterator[Shop]:
    """Running and open for sales; a test that stops something starts it again.

    Gone with the last of these tests: idle servers and workers are load for all others.
    """
    async with LocalStack() as stack:
        await stack.start_services()
        await stack.migrate()
        async with Shop(stack) as shop:
            await shop.start()
            yield shop
