"""Keeps this worker's leases and tells the share what it has."""

import asyncio
import time

import structlog

from ledger.errors import LedgerError
from ledger.leases import Leases
from worker.metrics import WorkerMetrics
from worker.share import Share
from worker.waiting import wait_until

RENEWALS_PER_TTL = 4
RENEWAL_PAUSE_MAX_S = 1.0
"""However long leases are: this is also how soon a share is evened out."""
RELEASE_TIMEOUT_S = 2.0

log = structlog.get_logger()


class Tenancy:
    """Renews leases until it is stopped."""

    def __init__(
        self, share: Share, leases: Leases, metrics: WorkerMetrics, *, ttl_s: float
    ) -> None:
        self._share = share
        self._leases = leases
        self._metrics = metrics
        self._ttl_s = ttl_s

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`. While the ledger is away the last known share stays: it moves nothing then."""
        pause_s = min(self._ttl_s / RENEWALS_PER_TTL, RENEWAL_PAUSE_MAX_S)
        while not stop.is_set():
            await self._renew()
            await wait_until(stop, pause_s)

    async def end(self) -> None:
        """Give all leases back, so that others need not wait for their end."""
        try:
            async with asyncio.timeout(RELEASE_TIMEOUT_S):
                await self._leases.release()
        except (LedgerError, TimeoutError) as error:
            log.warning("leases run out by themselves", error=str(error))

    async def _renew(self) -> None:
        asked_s = time.monotonic()
        try:
            owned = await self._leases.renew()
        except LedgerError:
            self._metrics.failures.labels("lease").inc()
            return
        self._share.lease(owned, asked_s + self._ttl_s)
