"""Brings decisions to stop or to resume sales to shards that were away when they were made."""

import asyncio
import time
from collections import Counter
from typing import NamedTuple

import structlog

from ledger.errors import LedgerError
from ledger.freezes import BREAKER, Decision, Freezes
from sharding.errors import StockUnavailableError
from sharding.outcomes import Reason
from sharding.plans import Freeze
from sharding.stock import Stock
from worker.metrics import WorkerMetrics
from worker.pages import pages
from worker.share import Share
from worker.waiting import wait_until

TICK_S = 0.5
AGAIN_S = 2.0
"""How long what all shards know is left alone: a failover may have lost it since."""
AT_ONCE_MAX = 64
CAUSES = (BREAKER, "operator")

log = structlog.get_logger()


class _Told(NamedTuple):
    """What all shards of a product were told, and when."""

    freeze: Freeze
    at_s: float


class FreezeKeeper:
    """Looks after the products whose base partition this worker serves."""

    def __init__(
        self,
        share: Share,
        stock: Stock,
        freezes: Freezes,
        metrics: WorkerMetrics,
    ) -> None:
        self._share = share
        self._stock = stock
        self._freezes = freezes
        self._metrics = metrics
        self._told: dict[int, _Told] = {}
        self._busy: set[int] = set()

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`; what is being told by then is finished."""
        async with asyncio.TaskGroup() as tasks:
            while not stop.is_set():
                if self._share.is_leased:
                    await self._tick(tasks)
                await wait_until(stop, TICK_S)

    async def _tick(self, tasks: asyncio.TaskGroup) -> None:
        try:
            decisions = await self._decisions()
        except LedgerError:
            self._metrics.failures.labels("freeze").inc()
            return
        self._show(decisions)
        products = {decision.product_id for decision in decisions}
        self._told = {each: told for each, told in self._told.items() if each in products}
        for decision in filter(self._is_due, decisions):
            if len(self._busy) < AT_ONCE_MAX:
                self._busy.add(decision.product_id)
                tasks.create_task(self._tell(decision), name=f"freeze {decision.product_id}")

    async def _decisions(self) -> list[Decision]:
        return [
            each
            async for page in pages(self._freezes.page, _product_of)
            for each in page
            if self._share.owns(each.product_id)
        ]

    def _is_due(self, decision: Decision) -> bool:
        if decision.product_id in self._busy:
            return False
        told = self._told.get(decision.product_id)
        is_known = told is not None and told.freeze == decision.freeze
        return not (is_known and told and time.monotonic() < told.at_s + AGAIN_S)

    async def _tell(self, decision: Decision) -> None:
        product_id, freeze, _ = decision
        try:
            if not await self._stock.freeze(product_id, freeze):
                self._told[product_id] = _Told(freeze, time.monotonic())
        except StockUnavailableError as error:
            self._metrics.redis_failures.labels(error.reason.value).inc()
        except Exception as error:  # one product must not end the upkeep of all others
            self._metrics.failures.labels("freeze").inc()
            log.error(
                "a product cannot be told of a decision", product_id=product_id, exc_info=error
            )
        finally:
            self._busy.discard(product_id)

    def _show(self, decisions: list[Decision]) -> None:
        frozen = [each for each in decisions if each.freeze.frozen]
        causes = Counter(BREAKER if each.by == BREAKER else "operator" for each in frozen)
        for cause in CAUSES:
            self._metrics.frozen.labels(cause).set(causes[cause])


def _product_of(decision: Decision) -> int:
    return decision.product_id


class PartitionFreezes:
    """Tells the shards of one partition before it is opened again: none may sell what is frozen."""

    def __init__(self, freezes: Freezes, stock: Stock) -> None:
        self._freezes = freezes
        self._stock = stock

    async def apply(self, partition: int) -> None:
        """LedgerError, StockUnavailableError: the partition had better stay shut. A damaged shard, which
        sells nothing anyway, keeps no other from opening."""
        room = asyncio.Semaphore(AT_ONCE_MAX)

        async def tell(product_id: int, freeze: Freeze) -> None:
            async with room:
                await self._tell(partition, product_id, freeze)

        decisions = await self._freezes.at(partition)
        told = await asyncio.gather(
            *(tell(*decision) for decision in decisions.items()), return_exceptions=True
        )
        for failure in told:
            if failure is not None:
                raise failure

    async def _tell(self, partition: int, product_id: int, freeze: Freeze) -> None:
        try:
            await self._stock.freeze_at(partition, product_id, freeze)
        except StockUnavailableError as error:
            if error.reason is not Reason.SHARD_CORRUPT:
                raise
