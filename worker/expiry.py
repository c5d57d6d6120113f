"""The loop that ends orders whose time is over, and carries on those that were left half done."""

import asyncio
import time
from collections.abc import Iterable, Mapping
from typing import Protocol

import structlog

from sharding.coordinator import DueOrders
from sharding.errors import StockUnavailableError
from sharding.ordering import PARKED
from worker.metrics import WorkerMetrics
from worker.waiting import wait_until

TICK_S = 0.25
ORDERS_AT_ONCE = 500
STEPS_MAX = 8
"""Lists of orders that one tick looks after in one partition before others have their turn."""
PARKED_SAID_MAX = 1_000

log = structlog.get_logger()


class DueOrdersOf(Protocol):
    """What of `Orders` a sweep needs."""

    async def due(self, partition: int, *, limit: int) -> DueOrders: ...

    async def look_after(self, partition: int, due: DueOrders) -> Mapping[str, int]: ...


class CaredFor(Protocol):
    """What of `Shares` a sweep needs."""

    @property
    def is_leased(self) -> bool: ...
    @property
    def owned(self) -> frozenset[int]: ...
    @property
    def readable(self) -> list[int]: ...


class Expiry:
    """Sweeps the partitions of the share; one that hangs delays no other.

    Two workers may sweep one partition for a moment, when a lease moves: an order is decided once.
    """

    def __init__(self, share: CaredFor, orders: DueOrdersOf, metrics: WorkerMetrics) -> None:
        self._share = share
        self._orders = orders
        self._metrics = metrics
        self._busy: set[int] = set()
        self._late_since_s: dict[int, float] = {}
        """Since when the oldest order of a partition has been due, by this process's monotonic clock."""
        self._looked_s: dict[int, float] = {}
        """When a partition last said which orders are due, or came into the share."""
        self._said: set[str] = set()
        """Unreadable orders that the log knows."""

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`; what is in hand by then is finished."""
        async with asyncio.TaskGroup() as tasks:
            while not stop.is_set():
                self._show_lag()
                if self._share.is_leased:
                    self._tick(tasks)
                await wait_until(stop, TICK_S)

    def _tick(self, tasks: asyncio.TaskGroup) -> None:
        for partition in self._share.readable:
            if partition not in self._busy:
                self._busy.add(partition)
                tasks.create_task(self._sweep(partition), name=f"expiry {partition}")

    async def _sweep(self, partition: int) -> None:
        try:
            for _ in range(STEPS_MAX):
                if await self._step(partition) < ORDERS_AT_ONCE:
                    break
        except StockUnavailableError as error:
            self._metrics.redis_failures.labels(error.reason.value).inc()
        except Exception as error:  # one partition must not end the upkeep of all others
            self._metrics.failures.labels("expiry").inc()
            log.error("orders cannot be looked after", partition=partition, exc_info=error)
        finally:
            self._busy.discard(partition)

    async def _step(self, partition: int) -> int:
        """How many orders were due."""
        due = await self._orders.due(partition, limit=ORDERS_AT_ONCE)
        self._looked_s[partition] = time.monotonic()
        if not due.orders:
            self._late_since_s.pop(partition, None)
            return 0
        self._late_since_s[partition] = time.monotonic() - due.lag_s
        self._note(await self._orders.look_after(partition, due))
        self._say_unreadable(partition, (each.member for each in due.orders if not each.order))
        return len(due.orders)

    def _note(self, results: Mapping[str, int]) -> None:
        for result, orders in results.items():
            if result == PARKED:
                self._metrics.orders_parked.inc(orders)
            else:
                self._metrics.orders_swept.labels(result).inc(orders)

    def _say_unreadable(self, partition: int, members: Iterable[str]) -> None:
        """Once for each order, as long as they are not very many."""
        for member in members:
            if member not in self._said and len(self._said) < PARKED_SAID_MAX:
                self._said.add(member)
                log.error(
                    "an order's record makes no sense", partition=partition, order=member[:40]
                )

    def _show_lag(self) -> None:
        """An order that cannot be looked after grows older, whatever keeps the sweep from it.

        Nobody knows what is due in a partition that does not say, so it counts from the look that was
        missed.
        """
        now_s, owned = time.monotonic(), self._share.owned
        self._late_since_s = {
            partition: since_s
            for partition, since_s in self._late_since_s.items()
            if partition in owned
        }
        self._looked_s = {partition: self._looked_s.get(partition, now_s) for partition in owned}
        missed_s = [looked_s + 2 * TICK_S for looked_s in self._looked_s.values()]
        lags_s = [now_s - since_s for since_s in (*self._late_since_s.values(), *missed_s)]
        self._metrics.orders_lag_seconds.set(max([0.0, *lags_s]))
