"""Ends transfers that whoever began them has left open, or of which one side has forgotten its part.

The ledger notes what was given when it applies the take and forgets it with the ack, so the note
outlives workers, and what ends in time is never looked at. What a node has forgotten is found where the
sums of two shards differ, which is looked for when a partition was opened anew, and once a minute.
"""

import asyncio
import time
from collections.abc import Collection

from ledger.errors import LedgerError
from ledger.outbox import Outbox, OutboxKind, OutboxRow
from ledger.products import Products
from ledger.transfers import UnevenPairs
from sharding.outcomes import State
from sharding.stock import Stock
from worker.metrics import WorkerMetrics
from worker.share import Share
from worker.waiting import wait_until

STUCK_AFTER_S = 10
TICK_S = 0.5
LOOKS_AFTER_S = (0.0, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
"""After a partition was opened: what happened just before may be applied some moments later."""
LOOK_EVERY_S = 60.0


class OpenTransfers:
    """Work for the loop in worker/outbox.py: lets units arrive at the shard that they were taken for."""

    kind = OutboxKind.TRANSFER

    def __init__(
        self, stock: Stock, products: Products, outbox: Outbox, metrics: WorkerMetrics
    ) -> None:
        self._stock = stock
        self._products = products
        self._outbox = outbox
        self._metrics = metrics

    async def carry_out(self, row: OutboxRow) -> None:
        """The row goes at once: where somebody else ended the transfer, or the product was closed, no
        other event tells of it."""
        product = await self._products.get(row.product_id)
        if product.epoch == row.epoch and product.status is not State.CLOSED:
            await self._stock.finish_transfers(row.product_id, row.partition, row.peer)
        await self._outbox.remove(row)
        self._metrics.transfers_finished.inc()

    def note_failure(self, result: str) -> None:
        self._metrics.transfers_put_off.labels(result).inc()

    async def show(self, partitions: Collection[int]) -> None:
        stuck = await self._outbox.count_open(self.kind, partitions, older_than_s=STUCK_AFTER_S)
        self._metrics.transfers_stuck.set(stuck)


class Evenness:
    """Has shards made even that may have lost a step of a transfer: those of each partition that was
    opened anew, or that this worker has not served before, and of all of them once a minute."""

    def __init__(self, share: Share, transfers: UnevenPairs, metrics: WorkerMetrics) -> None:
        self._share = share
        self._transfers = transfers
        self._metrics = metrics
        self._generations: dict[int, int] = {}
        self._due_s: dict[int, list[float]] = {}

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`."""
        while not stop.is_set():
            if self._share.is_leased:
                await self._tick(time.monotonic())
            await wait_until(stop, TICK_S)

    async def _tick(self, now_s: float) -> None:
        owned = self._share.owned
        for partition, known in list(self._share.applied.items()):
            if self._generations.get(partition) != known.id.generation:
                self._generations[partition] = known.id.generation
                self._due_s[partition] = [now_s + each for each in LOOKS_AFTER_S]
        for lost in self._generations.keys() - owned:
            del self._generations[lost]
            self._due_s.pop(lost, None)
        for partition in [each for each, due in self._due_s.items() if due[0] <= now_s]:
            await self._look(partition)

    async def _look(self, partition: int) -> None:
        """A ledger that is away is only counted: the look is due again."""
        try:
            await self._transfers.want_even(partition)
        except LedgerError:
            self._metrics.failures.labels("transfers").inc()
            return
        _, *left = self._due_s[partition]
        self._due_s[partition] = left or [time.monotonic() + LOOK_EVERY_S]
