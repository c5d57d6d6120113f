"""Brings what left the buffer into the shards, and releases it where a product's rule says so."""

import asyncio
from collections.abc import Collection

import structlog

from ledger.buffer_releases import Buffers, Release, Rule
from ledger.errors import LedgerConflictError, LedgerError
from ledger.failpoints import Failpoints
from ledger.outbox import Outbox, OutboxKind, OutboxRow
from sharding.errors import StockUnavailableError
from sharding.outcomes import ProductStock, State
from sharding.stock import Stock
from worker.metrics import WorkerMetrics
from worker.pages import pages
from worker.share import Share
from worker.waiting import wait_until

TICK_S = 1.0
AT_ONCE_MAX = 8
ACTOR = "service"
BROUGHT = "on sale"
KEPT = "nothing to bring: the product was closed meanwhile"

log = structlog.get_logger()


class Releases:
    """Work for the loop in worker/outbox.py: units that left a buffer arrive in the shards."""

    kind = OutboxKind.BUFFER

    def __init__(
        self,
        stock: Stock,
        buffers: Buffers,
        outbox: Outbox,
        metrics: WorkerMetrics,
        failpoints: Failpoints,
    ) -> None:
        self._stock = stock
        self._buffers = buffers
        self._outbox = outbox
        self._metrics = metrics
        self._failpoints = failpoints

    async def carry_out(self, row: OutboxRow) -> None:
        """Bring all that was released by now; whatever other rows there are find it done."""
        self._failpoints.hit("worker.before_buffer")
        epoch, released = await self._buffers.progress(row.product_id)
        units = None
        if epoch == row.epoch:
            units = await self._stock.bring_buffer(row.product_id, epoch=epoch, released=released)
        self._failpoints.hit("worker.after_buffer")
        await self._outbox.done(row, KEPT if units is None else BROUGHT)
        self._metrics.buffer_releases.labels("kept" if units is None else "brought").inc()
        self._metrics.buffer_units.inc(units or 0)

    def note_failure(self, result: str) -> None:
        self._metrics.buffer_releases.labels(result).inc()

    async def show(self, partitions: Collection[int]) -> None:
        open_rows = await self._outbox.count_open(self.kind, partitions)
        self._metrics.buffer_releases_open.set(open_rows)


class BufferKeeper:
    """Looks once a second at the products with a rule whose base partition this worker serves."""

    def __init__(
        self,
        share: Share,
        stock: Stock,
        buffers: Buffers,
        metrics: WorkerMetrics,
    ) -> None:
        self._share = share
        self._stock = stock
        self._buffers = buffers
        self._metrics = metrics
        self._room = asyncio.Semaphore(AT_ONCE_MAX)

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`."""
        while not stop.is_set():
            if self._share.is_leased:
                await self._tick()
            await wait_until(stop, TICK_S)

    async def _tick(self) -> None:
        try:
            async for rules in pages(self._buffers.rules, _product_of):
                ours = [rule for rule in rules if self._share.owns(rule.product_id)]
                await asyncio.gather(*map(self._follow, ours))
        except LedgerError:
            self._metrics.failures.labels("buffer").inc()

    async def _follow(self, rule: Rule) -> None:
        async with self._room:
            try:
                seen = await self._stock.read(rule.product_id)
            except StockUnavailableError:
                return  # a part of it does not answer: what it holds is not known
            if seen is not None and is_low(seen, rule):
                await self._release(rule, seen)

    async def _release(self, rule: Rule, seen: ProductStock) -> None:
        reason = f"{seen.available} units available, fewer than {rule.below}"
        wanted = Release(rule.product_id, f"buffer {rule.epoch}", 0, reason, ACTOR)
        try:
            released = await self._buffers.release(wanted, epoch=rule.epoch)
        except LedgerConflictError:
            return  # it was closed or released just now
        if not released.replayed:
            self._metrics.buffers_released.inc()
            log.info(
                "buffer released",
                product_id=rule.product_id,
                epoch=rule.epoch,
                units=released.quantity,
                why=reason,
            )


def _product_of(rule: Rule) -> int:
    return rule.product_id


def is_low(seen: ProductStock, rule: Rule) -> bool:
    """Whether a product sells and has few units left. Every shard has answered, or it was not read."""
    sells = seen.state is State.OPEN and not seen.frozen and seen.epoch == rule.epoch
    return sells and seen.available + seen.in_transit < rule.below
