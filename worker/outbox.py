"""The loop that carries out what the ledger has left to do, and one such work: second effects."""

import asyncio
import time
from collections.abc import Collection
from typing import Protocol

import structlog

from ledger.errors import LedgerError
from ledger.outbox import RETURNED, Outbox, OutboxKind, OutboxRow
from sharding.errors import StockUnavailableError
from sharding.stock import Stock
from worker.metrics import WorkerMetrics
from worker.share import Share
from worker.waiting import wait_until

TICK_S = 0.2
ROWS_AT_ONCE = 50
SHOW_EVERY_S = 1.0
PAUSE_FIRST_S = 0.5
PAUSE_MAX_S = 30.0
"""Well below the shortest record_ttl_s: an undo whose answer was lost is known by its repeat."""
DOUBLINGS_MAX = 10
FAILING_AFTER = 3
"""Attempts after which work that is put off once more counts as failing."""
NOTHING_TO_RETURN = "nothing to return: the product was closed meanwhile"

log = structlog.get_logger()


class Work(Protocol):
    """One kind of row and what is done for it."""

    kind: OutboxKind

    async def carry_out(self, row: OutboxRow) -> None:
        """Do it and end the row; whatever it raises puts the row off. Safe to repeat."""

    def note_failure(self, result: str) -> None:
        """Count a row that was put off: `unavailable` or `failed`."""

    async def show(self, partitions: Collection[int]) -> None:
        """Show how much of it is open in these partitions. LedgerError."""


class Errands:
    """Carries out the due rows of one kind in the partitions of the share."""

    def __init__(self, share: Share, outbox: Outbox, work: Work, metrics: WorkerMetrics) -> None:
        self._share = share
        self._outbox = outbox
        self._work = work
        self._metrics = metrics
        self._show_due_s = 0.0

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`; what is in hand by then is finished."""
        while not stop.is_set():
            if self._share.is_leased:
                await self._tick()
            await wait_until(stop, TICK_S)

    async def _tick(self) -> None:
        try:
            rows = await self._outbox.due(self._work.kind, self._share.readable, limit=ROWS_AT_ONCE)
            await asyncio.gather(*(self._drive(row) for row in rows))
            if time.monotonic() >= self._show_due_s:
                self._show_due_s = time.monotonic() + SHOW_EVERY_S
                await self._show()
        except LedgerError:
            self._note_ledger_failure()

    async def _show(self) -> None:
        owned, kind = self._share.owned, self._work.kind
        failing = await self._outbox.count_failing(kind, owned, attempts=FAILING_AFTER)
        self._metrics.outbox_failing.labels(kind.value).set(failing)
        await self._work.show(owned)

    async def _drive(self, row: OutboxRow) -> None:
        try:
            await self._carry_out_or_put_off(row)
        except LedgerError:
            self._note_ledger_failure()  # the row is as it was, and due

    async def _carry_out_or_put_off(self, row: OutboxRow) -> None:
        try:
            await self._work.carry_out(row)
        except LedgerError:
            raise
        except StockUnavailableError as error:
            self._work.note_failure("unavailable")
            await self._put_off(row, str(error))
        except Exception as error:
            # One row must not keep the others waiting.
            self._work.note_failure("failed")
            log.error(
                "work on the live stock failed",
                kind=self._work.kind.value,
                product_id=row.product_id,
                partition=row.partition,
                event_id=str(row.event_id),
                exc_info=error,
            )
            await self._put_off(row, repr(error))

    async def _put_off(self, row: OutboxRow, why: str) -> None:
        await self._outbox.postpone(row, why, pause_s=pause_s(row.attempts))

    def _note_ledger_failure(self) -> None:
        """Only counted: the drain says that the ledger is away."""
        self._metrics.failures.labels("outbox").inc()


class Undos:
    """Returns the units of second effects to the shards that they were taken from."""

    kind = OutboxKind.UNDO

    def __init__(self, stock: Stock, outbox: Outbox, metrics: WorkerMetrics) -> None:
        self._stock = stock
        self._outbox = outbox
        self._metrics = metrics

    async def carry_out(self, row: OutboxRow) -> None:
        """The row ends with the answer: long after it, the shard would not know a repeat for one."""
        is_back = await self._stock.undo(
            row.product_id,
            epoch=row.epoch,
            partition=row.partition,
            request_id=row.request_id,
            quantity=row.quantity,
            undone=row.event_id,
        )
        await self._outbox.done(row, RETURNED if is_back else NOTHING_TO_RETURN)
        self._metrics.undos.labels("returned" if is_back else "nothing").inc()

    def note_failure(self, result: str) -> None:
        self._metrics.undos.labels(result).inc()

    async def show(self, partitions: Collection[int]) -> None:
        self._metrics.undos_open.set(await self._outbox.count_open(self.kind, partitions))


def pause_s(attempts: int) -> float:
    """How long a row rests that was put off so often before."""
    return min(PAUSE_MAX_S, PAUSE_FIRST_S * 2.0 ** min(attempts, DOUBLINGS_MAX))
