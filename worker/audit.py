"""The loop that has every shard tell its counts again and again, to be compared with the ledger's."""

import asyncio
import time
from collections.abc import Collection, Sequence
from typing import NamedTuple

import structlog

from ledger.audits import Audits, DriftRow
from ledger.checkpoints import Checkpoints
from ledger.errors import LedgerError
from ledger.products import Products
from sharding.auditing import Marked
from sharding.errors import StockUnavailableError
from sharding.outcomes import Reason
from sharding.stock import Stock
from worker.breaker import Damage, Suspects
from worker.metrics import WorkerMetrics
from worker.pages import pages
from worker.rounds import ROUNDS_PER_PERIOD, Round
from worker.settings import WorkerSettings
from worker.share import Share
from worker.waiting import wait_until

TICK_S = 0.25
AT_ONCE_MAX = 16
SHOW_EVERY_S = 1.0
REPORT_EVERY_S = 3_600.0
SCOPE = "hourly"
LISTED_MAX = 100
"""Differences that a report names."""

log = structlog.get_logger()


class _Hour(NamedTuple):
    """What was done since the last report; times in milliseconds since 1970."""

    since_ms: int
    due_s: float
    rounds: int = 0
    markers: int = 0
    faults: int = 0


class Audit:
    """Marks the products on sale whose base partition this worker serves.

    Two workers may mark one product for a moment, when a lease moves: a marker more does no harm.
    """

    def __init__(
        self,
        share: Share,
        stock: Stock,
        products: Products,
        audits: Audits,
        checkpoints: Checkpoints,
        suspects: Suspects,
        settings: WorkerSettings,
        metrics: WorkerMetrics,
    ) -> None:
        self._share = share
        self._stock = stock
        self._products = products
        self._audits = audits
        self._checkpoints = checkpoints
        self._suspects = suspects
        self._round_s = settings.audit_every_s / ROUNDS_PER_PERIOD
        self._metrics = metrics
        self._room = asyncio.Semaphore(AT_ONCE_MAX)
        self._round: Round | None = None
        self._marked: Round | None = None
        """The last round that was over; the ledger may not have passed its markers yet."""
        self._hour = _new_hour()
        self._show_due_s = 0.0
        metrics.audit_success.set(time.time())  # nobody has waited for one yet

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`; what is being marked by then is finished."""
        async with asyncio.TaskGroup() as tasks:
            while not stop.is_set():
                if self._share.is_leased:
                    await self._tick(tasks)
                await wait_until(stop, TICK_S)

    async def _tick(self, tasks: asyncio.TaskGroup) -> None:
        now_s = time.monotonic()
        try:
            if self._round is None or self._round.is_over(now_s):
                await self._turn(now_s)
            await self._compare()
            await self._show(now_s)
        except LedgerError:
            self._metrics.failures.labels("audit").inc()
        if self._round is not None:
            for product_id in self._round.due(now_s):
                tasks.create_task(self._mark(self._round, product_id), name=f"audit {product_id}")

    async def _turn(self, now_s: float) -> None:
        """Begin a round with what is on sale now."""
        products = await self._on_sale()
        over = self._round
        if over is not None:
            self._marked = over
            self._hour = self._hour._replace(
                rounds=self._hour.rounds + 1,
                markers=self._hour.markers + over.shards,
                faults=self._hour.faults + over.faults,
            )
            if now_s >= self._hour.due_s:
                await self._report(over)
        self._round = Round(products, now_s, self._round_s)

    async def _on_sale(self) -> Sequence[int]:
        return [
            each
            async for page in pages(self._products.on_sale, int)
            for each in page
            if self._share.owns(each)
        ]

    async def _mark(self, within: Round, product_id: int) -> None:
        async with self._room:
            marked = await self._marked_shards(product_id)
            within.note(marked)
            if marked is None:
                return
            self._metrics.audit_markers.inc(len(marked.markers))
            if self._suspects.look(product_id, _damages(product_id, marked)):
                await self._look_again(product_id)

    async def _look_again(self, product_id: int) -> None:
        """What is damaged may only be on its way from one load to the next: a second look decides."""
        await asyncio.sleep(self._suspects.pause_s)
        marked = await self._marked_shards(product_id)
        if marked is not None:
            self._suspects.look(product_id, _damages(product_id, marked))

    async def _marked_shards(self, product_id: int) -> Marked | None:
        try:
            marked = await self._stock.mark(product_id)
        except StockUnavailableError as error:
            self._metrics.redis_failures.labels(error.reason.value).inc()
            return None
        except Exception as error:  # one product must not end the audit of all others
            self._metrics.failures.labels("audit").inc()
            log.error("a product cannot be audited", product_id=product_id, exc_info=error)
            return None
        for fault in marked.faults if marked else ():
            self._metrics.redis_failures.labels(fault.reason.value).inc()
        return marked

    async def _compare(self) -> None:
        """Note when the ledger has passed every marker of a round."""
        over = self._marked
        if over is None:
            return
        checkpoints = await self._checkpoints.of(over.markers)
        if over.is_compared({each: found.id for each, found in checkpoints.items()}):
            self._metrics.audit_success.set(time.time())
            self._marked = None

    async def _show(self, now_s: float) -> None:
        if now_s < self._show_due_s:
            return
        self._show_due_s = now_s + SHOW_EVERY_S
        drifts = self._ours(await self._audits.open_drifts())
        self._metrics.drifts_open.set(len(drifts))
        self._metrics.drift_units.set(sum(map(_size, drifts)))

    async def _report(self, over: Round) -> None:
        drifts = self._ours(await self._audits.open_drifts())
        report = {
            "partitions": sorted(self._share.owned),
            "from_ms": self._hour.since_ms,
            "to_ms": _now_ms(),
            "products": len(over.products),
            "shards": over.shards,
            "rounds": self._hour.rounds,
            "markers": self._hour.markers,
            "faults": self._hour.faults,
            "totals": over.totals._asdict(),
            "drifts": [_listed(drift) for drift in drifts[:LISTED_MAX]],
        }
        await self._audits.report(SCOPE, differences=len(drifts), report=report)
        self._hour = _new_hour()

    def _ours(self, drifts: Collection[DriftRow]) -> Sequence[DriftRow]:
        return [drift for drift in drifts if self._share.owns(drift.product_id)]


def _damages(product_id: int, marked: Marked) -> frozenset[Damage]:
    """Shards that make no sense; damaged counts tell of themselves in the stream."""
    return frozenset(
        Damage(product_id, marked.epoch, fault.partition, fault.detail)
        for fault in marked.faults
        if fault.reason is Reason.SHARD_CORRUPT
    )


def _size(drift: DriftRow) -> int:
    """Units that are not where the other half has them."""
    available, held, sold, _ = map(abs, drift.units)
    return max(available, held, sold)


def _listed(drift: DriftRow) -> dict[str, object]:
    return {
        "product_id": drift.product_id,
        "partition": drift.partition,
        "first_event": str(drift.first_event),
        "damaged": drift.damaged,
        **drift.units._asdict(),
    }


def _new_hour() -> _Hour:
    return _Hour(_now_ms(), time.monotonic() + REPORT_EVERY_S)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
