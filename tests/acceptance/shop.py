"""What the acceptance tests drive: a stack, clients of it, and the balance of a product."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from itertools import count
from types import TracebackType
from typing import Self

from deploy.demo.readings import LedgerReading, read_ledger, undos_owed
from deploy.local.process import Process
from deploy.local.stack import LocalStack
from deploy.local.waiting import until
from inventory.client import AsyncInventoryClient, NewProduct, RetryPolicy, Stock
from sharding.placement import ledger_of

SERVERS = WORKERS = (0, 1)
OPEN_WITHIN_S = 20.0
DRAINED_WITHIN_S = 30.0
PATIENT = RetryPolicy(deadline_s=60.0, try_timeout_s=30.0, tries_max=1_000)
"""A caller that only gives up when something is broken for good."""

_product_ids = count(1)


class Shop:
    """Two servers, two workers; `clients` has one client a server. `environment` adds settings."""

    def __init__(self, stack: LocalStack, environment: Mapping[str, str] | None = None) -> None:
        self.stack = stack
        self._environment = environment
        self._on_close = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self.clients = [await self.client(self.stack.grpc_address(each)) for each in SERVERS]
        # One caller that goes to the first server, and to the other one when that is away.
        addresses = ",".join(self.stack.grpc_address(each) for each in SERVERS)
        self.caller = await self.client(f"ipv4:{addresses}")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._on_close.aclose()

    async def client(self, target: str, policy: RetryPolicy = PATIENT) -> AsyncInventoryClient:
        """A client that lives as long as the shop."""
        made = AsyncInventoryClient(target, policy=policy)
        return await self._on_close.enter_async_context(made)

    async def start(self) -> None:
        """Start everything and wait until every partition takes sales."""
        await self.start_workers()
        for number in SERVERS:
            await self.start_server(number)

        async def all_open() -> bool:
            return all(each.open for each in (await self.caller.get_cluster()).partitions)

        await until(all_open, what="all partitions are open", within_s=OPEN_WITHIN_S)

    async def start_workers(self) -> None:
        for number in WORKERS:
            await self.stack.start_worker(number, environment=self._environment)

    async def start_server(self, number: int) -> None:
        await self.stack.start_server(number, environment=self._environment)

    async def on_sale(
        self,
        total: int,
        *,
        shards: int = 6,
        max_per_user: int = 0,
        buffer_percent: int = 0,
        server: int | None = None,
    ) -> int:
        """A new product on sale, of one MySQL server if that is said; returns its id."""
        servers = len(self.stack.databases)
        product_id = next(
            each for each in _product_ids if server in (None, ledger_of(each, servers))
        )
        await self.caller.put_product(
            NewProduct(
                product_id=product_id,
                total_stock=total,
                buffer_percent=buffer_percent,
                shards=shards,
                max_per_user=max_per_user,
            )
        )
        await self.caller.load([product_id])
        return product_id

    async def drained(self, product_id: int) -> tuple[Stock, LedgerReading]:
        """Both sides of a product when the ledger has applied all events, and has had undone what was
        done twice."""

        async def nothing_waits() -> bool:
            # The last event may have been the second effect, and an undo is an event as well.
            return (
                await self._all_applied()
                and not await undos_owed(self.stack, product_id)
                and await self._all_applied()
            )

        await until(nothing_waits, what="the ledger has all events", within_s=DRAINED_WITHIN_S)
        return await self.caller.get_stock(product_id), await read_ledger(self.stack, product_id)

    async def _all_applied(self) -> bool:
        return not any(each.backlog for each in (await self.caller.get_cluster()).partitions)

    async def assert_balanced(self, product_id: int, *, accepted: dict[str, int]) -> None:
        """Redis, MySQL and what callers were told agree, request by request and unit by unit."""
        stock, ledger = await self.drained(product_id)
        assert stock.total == stock.accounted
        assert ledger.deductions == accepted
        assert ledger.deduction_rows == len(accepted)
        sold = sum(accepted.values())
        assert (stock.sold, ledger.product.sold, ledger.shards.sold) == (sold, sold, sold)
        for counts in (ledger.product, ledger.shards):
            assert (counts.total, counts.available, counts.held) == (
                stock.total,
                stock.available,
                stock.held,
            )


async def ended(process: Process, *, within_s: float) -> int:
    """The exit code of a process that is on its way out."""
    async with asyncio.timeout(within_s):
        return await process.wait()


async def strike(process: Process, *, after_s: float) -> None:
    """SIGKILL in the middle of whatever it does, and its next life."""
    await asyncio.sleep(after_s)
    process.kill()
    await process.start()


def ids(prefix: str, number: int) -> Sequence[str]:
    return [f"{prefix}-{each}" for each in range(number)]
