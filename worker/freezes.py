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
from sharding.placement import base_partition
from sharding.plans import Freeze
from sharding.stock import Stock
from worker.metrics import WorkerMetrics
from worker.settings import WorkerSettings
from worker.share import Share
from worker.waiting import wait_until

TICK_S = 0.5
AGAIN_S = 2.0
"""How long what all shards know is left alone: a failover may have lost it since."""
PAGE = 1_000
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
        settings: WorkerSettings,
        metrics: WorkerMetrics,
    ) -> None:
        self._share = share
        self._stock = stock
        self._freezes = freezes
        self._partitions = settings.partitions
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
        found: list[Decision] = []
        after = 0
        while True:
            page = await self._freezes.page(after=after, limit=PAGE)
            found += [each for each in page if self._owns(each.product_id)]
            if len(page) < PAGE:
                return found
            after = page[-1].product_id

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

    def _owns(self, product_id: int) -> bool:
        return base_partition(product_id, self._partitions) in self._share.owned


class PartitionFreezes:
    """Tells the shards of one partition before it is opened again: none may sell what is frozen."""

    def __init__(self, freezes: Freezes, stock: Stock) -> None:
        self._freezes = freezes
        self._stock = stock

    async def apply(self, partition: int) -> None:
        """LedgerError, StockUnavailableError: the partition had better stay shut. A damaged shard, which
        sells nothing anyway, keeps no other from opening."""
        for product_id, freeze in (await self._freezes.at(partition)).items():
            try:
                await self._stock.freeze_at(partition, product_id, freeze)
            except StockUnavailableError as error:
                if error.reason is not Reason.SHARD_CORRUPT:
                    raise
