"""The stock of all products where MySQL is all there is; offers what sharding.stock.Stock does."""

import asyncio
from collections.abc import Iterable, Sequence
from enum import StrEnum

from ledger.database import Database, Transaction
from ledger.engine.corrections import Correction, Corrections
from ledger.engine.metrics import SalesMetrics
from ledger.engine.queues import Queues, Singly
from ledger.engine.resolving import Resolving
from ledger.engine.sales import Sales, Source
from ledger.engine.till import Till
from ledger.errors import LedgerUnavailableError
from ledger.products import JournalKind, ProductRow, product_rows
from sharding.errors import CloseBusyError, StockUnavailableError
from sharding.outcomes import (
    Answer,
    Deduction,
    ProductStock,
    Reason,
    Resolved,
    ShardStock,
)
from sharding.plans import Freeze, LoadPlan
from sharding.tasks import Tasks


class Manner(StrEnum):
    """How sales share transactions."""

    MERGED = "merged"
    """All that wait for one product's row go into one."""
    OPTIMISTIC = "optimistic"
    """One each, without a lock before the change."""
    PESSIMISTIC = "pessimistic"
    """One each, the row locked first."""


class LedgerStock:
    """Takes units and reads, loads, closes products. Lives in one event loop.

    Requests are worked on by tasks of this object: a caller that stops waiting for an answer cuts
    nothing in two. `drain` waits for all of them.
    """

    def __init__(self, database: Database, metrics: SalesMetrics, manner: Manner) -> None:
        self._database = database
        self._tasks = Tasks()
        locks = manner is not Manner.OPTIMISTIC
        sales = Sales(database, metrics, Source(), locks=locks)
        serving = Queues if manner is Manner.MERGED else Singly
        self._till = Till(serving(sales.serve, self._tasks))
        self._corrections = Corrections(database)
        self._resolving = Resolving(database)

    def deduct(self, deductions: Sequence[Deduction]) -> asyncio.Future[list[Answer]]:
        """Take units for each request that stands alone; the answers come in the same order.

        Never raises for a request: a failure is its answer.
        """
        return self._till.deduct(deductions)

    async def read(self, product_id: int) -> ProductStock | None:
        """The row's counts; None if the product was never loaded. StockUnavailableError."""

        async def run(transaction: Transaction) -> ProductRow | None:
            rows = await product_rows(transaction, [product_id], locks=False)
            return rows.get(product_id)

        try:
            row = await self._database.transaction(run)
        except LedgerUnavailableError as error:
            raise StockUnavailableError(Reason.NOT_EXECUTED, str(error)) from error
        return _stock(row) if row is not None and row.epoch else None

    async def restock(
        self, product_id: int, *, request_id: str, quantity: int, reason: str, actor: str = ""
    ) -> Answer:
        """Add units once per request id. DEDUCTED means that it was applied."""
        kind = JournalKind.RESTOCK
        wanted = Correction(kind, product_id, request_id, quantity, reason, actor)
        return await self._tasks.whole(self._corrections.apply(wanted), "restock")

    async def remove(
        self, product_id: int, *, request_id: str, quantity: int, reason: str, actor: str = ""
    ) -> Answer:
        """Take unsold units away once per request id. DEDUCTED means that it was applied."""
        kind = JournalKind.REMOVE
        wanted = Correction(kind, product_id, request_id, quantity, reason, actor)
        return await self._tasks.whole(self._corrections.apply(wanted), "remove")

    async def load(self, plan: LoadPlan, *, before_opening: object) -> None:
        """Nothing: the units of a product that goes on sale are where they are sold from."""

    async def freeze(self, product_id: int, freeze: Freeze) -> None:
        """Nothing: the decision is read with every request."""

    async def outlive_notes(self, product_ids: Iterable[int]) -> None:
        """Nothing: nobody is refused by what was read before."""

    async def close(self, product_id: int, epoch: int) -> int:
        """Make sure that no order holds units of a product that takes no requests any more; returns how
        many shards the ledger has to hear of, which is none.

        CloseBusyError while units are held; StockUnavailableError: call again.
        """
        stock = await self.read(product_id)
        if stock is not None and stock.held:
            raise CloseBusyError(
                f"product {product_id}, epoch {epoch}: {stock.held} units are held"
            )
        return 0

    async def resolve(self, product_id: int, request_id: str) -> Resolved | Answer:
        """Decide what became of a request; where nothing did, nothing ever will. Never raises."""
        return await self._tasks.whole(self._resolving.resolve(product_id, request_id), "resolve")

    async def drain(self) -> None:
        """Return once everything that was asked for is answered."""
        await self._tasks.drain()


def _stock(row: ProductRow) -> ProductStock:
    """All units as one shard's; its `loaded` follows from the column that adds all units up."""
    shard = ShardStock(
        shard=0,
        partition=0,
        available=row.available_stock,
        held=row.held_stock,
        sold=row.sold_count - row.sold_before,
        loaded=row.total_stock - row.buffer_stock - row.sold_before,
        in_transit=0,
    )
    return ProductStock(
        product_id=row.product_id,
        state=row.status,
        frozen=bool(row.frozen_reason),
        layout_version=row.layout_version,
        epoch=row.epoch,
        buffer=row.buffer_stock,
        sold_before=row.sold_before,
        shards=(shard,),
        serving=1,
        exact=True,
    )
