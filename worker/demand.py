"""The loop that follows the demand: more shards for what is hot, fewer for what is cold, level ones."""

import asyncio
import time
from collections.abc import Sequence

import structlog

from ledger.demand import Demand, LiveProduct
from ledger.errors import LedgerConflictError, LedgerError
from ledger.layouts import Layouts
from sharding.errors import StockError
from sharding.stock import Stock
from worker.metrics import WorkerMetrics
from worker.scaling import AUTOMATIC_CHANGES_MAX, REPORT_AGE_S_MAX, Scaling, Wish, demand_of
from worker.settings import WorkerSettings
from worker.share import Share
from worker.waiting import wait_until

TICK_S = 1.0
REBALANCES_MAX = 200
"""Products whose shards are levelled in one tick, those first that something happened to last."""
AT_ONCE_MAX = 8
ROLLED_BACK_PAUSE_S = 30
"""For so long after a change was rolled back the product stays as it is."""
PRUNE_EVERY_S = 30.0
REPORT_TTL_S = 60

log = structlog.get_logger()


class DemandKeeper:
    """Looks once a second at the products on sale whose base partition this worker serves."""

    def __init__(
        self,
        share: Share,
        stock: Stock,
        demand: Demand,
        layouts: Layouts,
        settings: WorkerSettings,
        metrics: WorkerMetrics,
    ) -> None:
        self._share = share
        self._stock = stock
        self._demand = demand
        self._layouts = layouts
        self._settings = settings
        self._metrics = metrics
        self._scaling = Scaling(
            hot_rate_per_s=settings.hot_rate_per_s,
            cold_after_s=settings.cold_after_s,
            partitions=settings.partitions,
            default_shards=settings.default_shards,
        )
        self._room = asyncio.Semaphore(AT_ONCE_MAX)
        self._prune_due_s = 0.0
        self._levelling: asyncio.Task[None] | None = None
        self._held_back: set[int] = set()
        """Products that may not be changed again for now, as the log knows."""

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`; what is being levelled by then is finished."""
        async with asyncio.TaskGroup() as tasks:
            while not stop.is_set():
                if self._share.is_leased:
                    await self._tick(tasks)
                await wait_until(stop, TICK_S)

    async def _tick(self, tasks: asyncio.TaskGroup) -> None:
        try:
            products = await self._products()
            await self._scale(products)
            await self._prune()
        except LedgerError:
            self._metrics.failures.labels("demand").inc()
            return
        # Shards that do not answer hold levelling up, but not scaling.
        if self._levelling is None or self._levelling.done():
            chosen = [product.product_id for product in products[:REBALANCES_MAX]]
            self._levelling = tasks.create_task(self._level_all(chosen), name="level")

    async def _level_all(self, product_ids: Sequence[int]) -> None:
        await asyncio.gather(*map(self._level, product_ids))

    async def _products(self) -> list[LiveProduct]:
        found = await self._demand.products(
            within_s=REPORT_AGE_S_MAX,
            shards_above=self._settings.default_shards,
            pause_s=ROLLED_BACK_PAUSE_S,
        )
        return [product for product in found if self._share.owns(product.product_id)]

    async def _scale(self, products: list[LiveProduct]) -> None:
        demand = demand_of(await self._demand.reports(within_s=REPORT_AGE_S_MAX))
        now_s = time.monotonic()
        for product in products:
            wish = self._scaling.decide(product, demand.get(product.product_id, 0), now_s)
            if wish:
                await self._carry_out(wish, demand.get(product.product_id, 0))
        self._scaling.forget_unseen(now_s)

    async def _carry_out(self, wish: Wish, requests_per_s: int) -> None:
        product_id, shards, cause = wish
        recent = await self._layouts.recent_automatic(
            product_id, within_s=self._settings.record_ttl_s
        )
        if recent >= AUTOMATIC_CHANGES_MAX:
            self._hold_back(wish, requests_per_s)
            return
        self._held_back.discard(product_id)
        try:
            aim = await self._layouts.want(
                product_id, shards, cause, partitions=self._settings.partitions
            )
        except LedgerConflictError:
            return  # it is being changed already, and is looked at again
        if not aim.in_force:
            log.info("layout wanted", version=aim.version, **_fields(wish, requests_per_s))

    def _hold_back(self, wish: Wish, requests_per_s: int) -> None:
        """Said once per product; an operator can still set its shards."""
        self._metrics.layout_changes_held_back.inc()
        if wish.product_id not in self._held_back:
            self._held_back.add(wish.product_id)
            log.warning(
                "layout stays: it was changed too often lately", **_fields(wish, requests_per_s)
            )

    async def _prune(self) -> None:
        now_s = time.monotonic()
        if now_s >= self._prune_due_s:
            self._prune_due_s = now_s + PRUNE_EVERY_S
            await self._demand.prune(older_than_s=REPORT_TTL_S)

    async def _level(self, product_id: int) -> None:
        async with self._room:
            try:
                self._metrics.units_levelled.inc(await self._stock.rebalance(product_id))
            except StockError:
                self._metrics.failures.labels("rebalance").inc()
            except Exception as error:  # one product must not end the upkeep of all others
                self._metrics.failures.labels("rebalance").inc()
                log.error("levelling failed", product_id=product_id, exc_info=error)


def _fields(wish: Wish, requests_per_s: int) -> dict[str, object]:
    return wish._asdict() | {"cause": wish.cause.value, "requests_per_s": requests_per_s}
