"""The loop for what the ledger forgets after a while, and the figures that are read from it."""

import asyncio

from ledger.database import Database
from ledger.engine.records import prune_tombstones
from ledger.errors import LedgerError
from ledger.events_feed import EventsFeed
from ledger.products import Products
from ledger.raw_events import RawEvents
from ledger.untold import UntoldSales
from worker.metrics import WorkerMetrics
from worker.settings import WorkerSettings
from worker.share import Share
from worker.waiting import wait_until

EVERY_S = 10.0
LEASE_LOOK_S = 1.0


class LedgerUpkeep:
    """A bounded piece of housekeeping at a time."""

    def __init__(
        self,
        share: Share,
        database: Database,
        raw_events: RawEvents,
        events_feed: EventsFeed,
        products: Products,
        settings: WorkerSettings,
        metrics: WorkerMetrics,
    ) -> None:
        self._share = share
        self._database = database
        self._untold = UntoldSales(database)
        self._raw_events = raw_events
        self._events_feed = events_feed
        self._products = products
        self._settings = settings
        self._metrics = metrics

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`."""
        while not stop.is_set():
            if self._share.is_leased:
                await self._tidy()
            await wait_until(stop, EVERY_S if self._share.is_leased else LEASE_LOOK_S)

    async def _tidy(self) -> None:
        """A ledger that is away is only counted."""
        owned = self._share.owned
        try:
            await self._raw_events.prune(owned, older_than_s=self._settings.raw_event_ttl_s)
            await self._events_feed.prune(older_than_s=self._settings.event_ttl_s)
            await prune_tombstones(self._database, older_than_s=self._settings.record_ttl_s)
            await self._untold.prune(older_than_s=self._settings.record_ttl_s)
            self._metrics.below_zero.set(await self._products.count_below_zero())
        except LedgerError:
            self._metrics.failures.labels("upkeep").inc()
