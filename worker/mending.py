"""Brings restored shards what they lack and no event will bring, because it was lost."""

from collections.abc import Collection
from contextlib import suppress
from functools import partial

from ledger.buffer_releases import Buffers
from ledger.outbox import Outbox, OutboxKind, OutboxRow
from ledger.products import ProductRow, Products
from ledger.restoring import PartitionStates
from sharding.errors import (
    LayoutPassedError,
    LoadConflictError,
    RetiredAwayError,
    StockUnavailableError,
)
from sharding.outcomes import Reason, State
from sharding.plans import Freeze
from sharding.stock import Stock
from worker.metrics import WorkerMetrics


class Mends:
    """Work for the loop in worker/outbox.py: shards get their load, their layout, units of a buffer.

    Nothing is taken from the moment of the restoration but the product: the steps are those that do
    these things otherwise, and each finds out by itself what is still to be done.
    """

    kind = OutboxKind.MEND

    def __init__(
        self,
        stock: Stock,
        products: Products,
        buffers: Buffers,
        states: PartitionStates,
        outbox: Outbox,
        metrics: WorkerMetrics,
    ) -> None:
        self._stock = stock
        self._products = products
        self._buffers = buffers
        self._states = states
        self._outbox = outbox
        self._metrics = metrics

    async def carry_out(self, row: OutboxRow) -> None:
        """The row goes at once where the product was closed, or loaded again, since."""
        product = await self._products.get(row.product_id)
        if product.epoch == row.epoch and product.status is State.LOADING:
            raise StockUnavailableError(Reason.NOT_EXECUTED, "the product is still being loaded")
        if product.epoch == row.epoch and product.status in (State.OPEN, State.CLOSING):
            try:
                await self._mend(product)
            except (LayoutPassedError, LoadConflictError) as error:
                # Live it has gone on, and the ledger will hear of that.
                raise StockUnavailableError(Reason.NOT_EXECUTED, str(error)) from error
        await self._outbox.remove(row)
        self._metrics.mends.labels("ended").inc()

    def note_failure(self, result: str) -> None:
        self._metrics.mends.labels(result).inc()

    async def show(self, partitions: Collection[int]) -> None:
        self._metrics.mends_open.set(await self._outbox.count_open(self.kind, partitions))

    async def _mend(self, product: ProductRow) -> None:
        """A load is repeated only into the layout that was loaded: to shards that a change of it made
        their units have come, or will, from others."""
        if await self._states.is_resharded(product.product_id):
            with suppress(RetiredAwayError):  # the change itself waits for that one
                await self._stock.change_layout(
                    product.product_id,
                    version=product.layout_version,
                    shards=product.layout_shards,
                    cause="restored",
                )
        else:
            await self._stock.load(
                product.plan, before_opening=partial(self._known_to_ledger, product)
            )
        epoch, released = await self._buffers.progress(product.product_id)
        if released and epoch == product.epoch:
            await self._stock.bring_buffer(product.product_id, epoch=epoch, released=released)

    async def _known_to_ledger(self, product: ProductRow) -> Freeze:
        """The last freeze. A shard that is lost before has its load repeated once more, with all its
        units: none may have been sold."""
        known = await self._products.loaded_shards(product.product_id, epoch=product.epoch)
        if known < product.layout_shards:
            raise StockUnavailableError(Reason.NOT_EXECUTED, "the ledger is to know all shards")
        return (await self._products.get(product.product_id)).freeze
