"""Ends transfers that whoever began them has left open, or of which one side has forgotten its part.

The ledger notes a transfer when it applies its take and forgets it with its ack, so the note outlives
workers, and one that ends in time is never looked at.
"""

from collections.abc import Collection

from ledger.outbox import Outbox, OutboxKind, OutboxRow
from sharding.shards import OpenTransfer
from sharding.stock import Stock
from worker.metrics import WorkerMetrics

STUCK_AFTER_S = 10
TOLD_WITHIN_S = 1.0
"""In which the ledger hears of what was made up for, as a rule."""


class Transfers:
    """Work for the loop in worker/outbox.py: lets units arrive at the shard that they were taken for."""

    kind = OutboxKind.TRANSFER

    def __init__(self, stock: Stock, outbox: Outbox, metrics: WorkerMetrics) -> None:
        self._stock = stock
        self._outbox = outbox
        self._metrics = metrics

    async def carry_out(self, row: OutboxRow) -> None:
        """The row goes at once: where somebody else ended the transfer, no other event tells of it."""
        transfer = OpenTransfer(row.partition, row.peer, row.transfer, row.quantity)
        await self._stock.finish_transfer(row.product_id, transfer)
        await self._outbox.remove(row)
        self._metrics.transfers_finished.inc()

    def note_failure(self, result: str) -> None:
        self._metrics.transfers_put_off.labels(result).inc()

    async def show(self, partitions: Collection[int]) -> None:
        stuck = await self._outbox.count_open(self.kind, partitions, older_than_s=STUCK_AFTER_S)
        self._metrics.transfers_stuck.set(stuck)


class MadeUp:
    """Work for the loop in worker/outbox.py: a shard that has forgotten its part of a transfer is made
    up for that. Units whose take was lost leave it again; units whose put was lost arrive again."""

    def __init__(
        self, kind: OutboxKind, stock: Stock, outbox: Outbox, metrics: WorkerMetrics
    ) -> None:
        """`kind`: FORGO or REGAIN."""
        self.kind = kind
        self._stock = stock
        self._outbox = outbox
        self._metrics = metrics

    async def carry_out(self, row: OutboxRow) -> None:
        """The shard's own event ends the row, when the ledger has it: if that is lost, this is to be
        done once more."""
        if self.kind is OutboxKind.FORGO:
            transfer = OpenTransfer(row.partition, row.peer, row.transfer, row.quantity)
            is_done = await self._stock.forgo(row.product_id, transfer, epoch=row.epoch)
        else:
            transfer = OpenTransfer(row.peer, row.partition, row.transfer, row.quantity)
            is_done = await self._stock.regain(row.product_id, transfer, epoch=row.epoch)
        if is_done:
            await self._outbox.postpone(row, "made up for", pause_s=TOLD_WITHIN_S)
        else:
            await self._outbox.remove(row)

    def note_failure(self, result: str) -> None:
        self._metrics.transfers_put_off.labels(result).inc()

    async def show(self, partitions: Collection[int]) -> None:
        """Open for a second, as a rule; what fails is shown with all other kinds."""
