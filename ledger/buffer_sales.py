"""Sales from the buffer, while nobody reaches the live stock.

The mode's row is held from before a sale is decided until it is committed, so whoever stops these sales
waits for those under way, and none comes after.
"""

import asyncio
from collections.abc import Sequence

from ledger.database import Database, Transaction
from ledger.engine import admission
from ledger.engine.entries import Entry
from ledger.engine.metrics import SalesMetrics
from ledger.engine.queues import Queues
from ledger.engine.sales import Column, Sales, Source
from ledger.engine.till import Till
from ledger.journal import STATEMENT_BYTES_MAX
from ledger.products import ProductRow
from ledger.sales_mode import Mode, shared
from ledger.statements import with_rows
from ledger.values import in_pieces, text
from sharding.outcomes import Answer, Deduction, Outcome, Reason
from sharding.tasks import Tasks

REMARK = "buffer"
"""What the journal says of such a sale."""
_EMPTY = Answer(Outcome.UNAVAILABLE, reason=Reason.BUFFER_EMPTY)
_AWAY = Answer(Outcome.UNAVAILABLE, reason=Reason.LIVE_STOCK_AWAY)


class BufferSales:
    """Takes units from the buffer, once per request id, in the mode for that. Safe in any number of
    processes at once."""

    def __init__(self, database: Database, metrics: SalesMetrics) -> None:
        source = Source(Column.BUFFER, _objection, short=_EMPTY, note=_note, remark=REMARK)
        sales = Sales(database, metrics, source, locks=True)
        self._tasks = Tasks()
        self._till = Till(Queues(sales.serve, self._tasks))

    def deduct(self, deductions: Sequence[Deduction]) -> asyncio.Future[list[Answer]]:
        """One answer a request, in their order. Too few units are no refusal: there may be others.

        Never raises for a request: a failure is its answer.
        """
        return self._till.deduct(deductions)

    async def drain(self) -> None:
        """Return once everything that was asked for is answered."""
        await self._tasks.drain()


async def _objection(transaction: Transaction, row: ProductRow) -> Answer | None:
    mode, _ = await shared(transaction)
    if mode is not Mode.BUFFER:
        return _AWAY
    # What the users of a product with a limit have is known to the live stock alone.
    return admission.objection(row) or (_AWAY if row.max_per_user else None)


async def _note(transaction: Transaction, sold: Sequence[Entry]) -> None:
    """For the live stock, which is to know these requests when it is back."""
    _, epoch = await shared(transaction)
    rows = (
        f"({each.product_id},{text(each.request_id)},{each.quantity},{each.user_id},{epoch})"
        for each in sold
    )
    for piece in in_pieces((row.encode() for row in rows), STATEMENT_BYTES_MAX):
        await transaction.bulk(with_rows("buffer_sale_insert", piece))
