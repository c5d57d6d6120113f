"""The loop that ends orders whose time is over, and forgets what is remembered for a time only.

Any number of processes may sweep at once: an order ends once, whoever comes first.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

import structlog

from ledger.database import Database
from ledger.engine.book import Ask, Call
from ledger.engine.bookkeeping import Bookkeeping
from ledger.engine.metrics import EngineMetrics
from ledger.engine.order_rows import due_orders, park_order, prune_barred
from ledger.engine.records import prune_tombstones
from ledger.errors import LedgerError, LedgerUnavailableError
from ledger.events_feed import EventsFeed

TICK_S = 0.25
ORDERS_AT_ONCE = 200
STEPS_MAX = 20
"""Lots of orders that one tick ends before the loop rests."""
PARK_S = 3_600
"""So long an order rests whose rows contradict each other."""
UPKEEP_S = 60.0

log = structlog.get_logger()


class Expiry:
    """Sweeps four times a second; `record_ttl_s`, `event_ttl_s`: how long tombstones and events last."""

    def __init__(
        self,
        database: Database,
        bookkeeping: Bookkeeping,
        metrics: EngineMetrics,
        *,
        record_ttl_s: int,
        event_ttl_s: int,
    ) -> None:
        self._database = database
        self._bookkeeping = bookkeeping
        self._metrics = metrics
        self._record_ttl_s = record_ttl_s
        self._event_ttl_s = event_ttl_s
        self._events = EventsFeed(database)

    async def run(self, ended: asyncio.Event) -> None:
        """Until `ended`, or cancelled."""
        tidied_s = time.monotonic()
        while not ended.is_set():
            await self._safely(self.sweep)
            if time.monotonic() - tidied_s >= UPKEEP_S:
                tidied_s = time.monotonic()
                await self._safely(self.tidy)
            await asyncio.sleep(TICK_S)

    async def sweep(self) -> None:
        """End what is due, a bounded number. LedgerError."""
        for _ in range(STEPS_MAX):
            due, lag_s = await due_orders(self._database, limit=ORDERS_AT_ONCE)
            self._metrics.orders_lag_seconds.set(lag_s)
            if due:
                await self._end(due)
            if len(due) < ORDERS_AT_ONCE:
                break

    async def tidy(self) -> None:
        """Forget what is old, a bounded number of each. LedgerError."""
        await prune_tombstones(self._database, older_than_s=self._record_ttl_s)
        await prune_barred(self._database, older_than_s=self._record_ttl_s)
        await self._events.prune(older_than_s=self._event_ttl_s)

    async def _end(self, order_ids: list[int]) -> None:
        try:
            await self._bookkeeping.answer([Ask(Call.LOOK, each) for each in order_ids])
        except LedgerUnavailableError:
            raise
        except LedgerError as error:
            await self._end_singly(order_ids, error)
        else:
            self._metrics.orders_swept.inc(len(order_ids))

    async def _end_singly(self, order_ids: list[int], error: LedgerError) -> None:
        """One that makes no sense must not keep the units of the others."""
        if len(order_ids) > 1:
            for order_id in order_ids:
                await self._end([order_id])
            return
        self._metrics.orders_parked.inc()
        log.error("an order contradicts its rows", order_id=order_ids[0], detail=str(error))
        await park_order(self._database, order_ids[0], pause_s=PARK_S)

    async def _safely(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except LedgerError as error:
            self._metrics.failures.inc()
            log.warning("orders cannot be looked after", detail=str(error))
