"""Ends holds of further lines that nobody else will: a restoration set back the line, or its order.

It follows from the ledger alone which these are, so it does not matter who restored what, and when.
"""

import asyncio
from collections.abc import Sequence
from typing import Protocol

import structlog

from ledger.errors import LedgerError
from ledger.holds import FurtherHold, Holds
from sharding.errors import StockUnavailableError
from sharding.orders import OrderState
from sharding.reminding import HeldLine
from worker.metrics import WorkerMetrics
from worker.share import Share
from worker.waiting import wait_until

TICK_S = 1.0
LINES_AT_ONCE = 1_000
REMINDED_AT_ONCE = 50

log = structlog.get_logger()


class Reminds(Protocol):
    """What of `Orders` it needs."""

    async def remind(self, line: HeldLine) -> OrderState | None: ...


class Strays:
    """Walks through the holds of one MySQL server, a page a second, for the partitions of the share.

    An order whose first line is held is undecided. Of all other lines the order is asked; those that
    are told just now are found ended.
    """

    def __init__(self, share: Share, holds: Holds, orders: Reminds, metrics: WorkerMetrics) -> None:
        self._share = share
        self._holds = holds
        self._orders = orders
        self._metrics = metrics
        self._after_id = 0

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`."""
        while not stop.is_set():
            if self._share.is_leased:
                await self._step()
            await wait_until(stop, TICK_S)

    async def _step(self) -> None:
        try:
            found = await self._holds.further(after_id=self._after_id, limit=LINES_AT_ONCE)
        except LedgerError:
            self._metrics.failures.labels("strays").inc()
            return
        self._after_id = found[-1].id if len(found) == LINES_AT_ONCE else 0
        mine = self._mine(found)
        for start in range(0, len(mine), REMINDED_AT_ONCE):
            piece = mine[start : start + REMINDED_AT_ONCE]
            await asyncio.gather(*map(self._remind, piece))

    def _mine(self, found: Sequence[FurtherHold]) -> list[HeldLine]:
        return [
            each.line
            for each in found
            if not each.is_undecided and each.line.partition in self._share.owned
        ]

    async def _remind(self, line: HeldLine) -> None:
        try:
            state = await self._orders.remind(line)
        except StockUnavailableError as error:
            self._metrics.redis_failures.labels(error.reason.value).inc()
            return
        except Exception as error:  # one line must not end the upkeep of all others
            self._metrics.failures.labels("strays").inc()
            log.error("a held line cannot be looked after", order=line.order_id, exc_info=error)
            return
        if state is not None:
            self._metrics.lines_reminded.labels(state.name.lower()).inc()
