"""Sells units from one column of a product's row, many requests in one transaction.

In order of precedence a request is replayed or refused by what is remembered of its id, refused because
the product takes none, refused for the user's limit, sold, or refused for shortage.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from ledger.database import Database, Transaction, backoff_s
from ledger.engine import admission
from ledger.engine.entries import Entry, enter
from ledger.engine.failures import unavailable
from ledger.engine.metrics import SalesMetrics
from ledger.engine.records import Buried, Record, Tombstone, bury, find_records, repeated
from ledger.engine.shelves import SHORT, Shelf, read_users, write_users
from ledger.errors import DuplicateEffectsError, LedgerError, LostRaceError
from ledger.products import JournalKind, ProductRow, product_rows
from ledger.service_events import publish
from ledger.statements import statement
from sharding.outcomes import Answer, Deduction, Outcome, Reason

RACES_MAX = 3
"""How often a request is tried again that lost a race for its row."""


class Column(StrEnum):
    """Units of a product's row that can be sold."""

    AVAILABLE = "available_stock"
    BUFFER = "buffer_stock"


_TAKES = {Column.AVAILABLE: ("product_take", 2), Column.BUFFER: ("buffer_take", 3)}
"""The statement that takes units, and how many counts of the row it changes by them."""

Note = Callable[[Transaction, Sequence[Entry]], Awaitable[None]]
Objection = Callable[[Transaction, ProductRow], Awaitable[Answer | None]]


async def _on_sale(_transaction: Transaction, row: ProductRow) -> Answer | None:
    return admission.objection(row)


async def _nothing_more(_transaction: Transaction, _sold: Sequence[Entry]) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Source:
    """Where units are sold from.

    `objection` is asked in the same transaction, with the row in hand: what every request ends as that
    nobody has heard of, or None. `short`: what a request comes to that wants more units than there are;
    a retry's is remembered where that is a refusal. `note` is told in the same transaction of what was
    sold; `remark` is what the journal says of it.
    """

    column: Column = Column.AVAILABLE
    objection: Objection = _on_sale
    short: Answer = SHORT
    note: Note = _nothing_more
    remark: str = ""

    def shelf(self, row: ProductRow) -> Shelf:
        """The row with what can be sold of it from here."""
        units = row.available_stock if self.column is Column.AVAILABLE else row.buffer_stock
        return Shelf(row, units, self.short)


class Sales:
    """Serves requests for one product at a time. Safe in any number of processes at once.

    `locks`: the row is locked before anything is looked up, so transactions on one product come one
    after the other. Without, it is read, and its version compared when it is changed: who comes late
    begins anew. Whatever is written raises the version, so the two go together.
    """

    def __init__(
        self, database: Database, metrics: SalesMetrics, source: Source, *, locks: bool
    ) -> None:
        self._database = database
        self._metrics = metrics
        self._source = source
        self._locks = locks

    async def serve(self, product_id: int, requests: Sequence[Deduction]) -> list[Answer]:
        """One answer a request, in their order. Never raises for what can happen."""
        self._metrics.transaction_requests.observe(len(requests))

        async def run(transaction: Transaction) -> list[Answer]:
            return await self._serve(transaction, product_id, requests)

        may_have_run = False
        for race in range(1, RACES_MAX + 2):
            try:
                answers = await self._database.transaction(run)
            except LostRaceError as lost:
                may_have_run |= lost.may_have_run
            except DuplicateEffectsError:
                pass  # somebody wrote an effect of one of them after our look: look again
            except LedgerError as error:
                answer = unavailable(error, product_id=product_id, may_have_run=may_have_run)
                return [answer] * len(requests)
            else:
                self._database.failpoints.hit("sale.after_commit")
                return answers
            self._metrics.lost_races.inc()
            await asyncio.sleep(backoff_s(race))
        reason = Reason.OUTCOME_UNKNOWN if may_have_run else Reason.NOT_EXECUTED
        return [Answer(Outcome.UNAVAILABLE, reason=reason)] * len(requests)

    async def _serve(
        self, transaction: Transaction, product_id: int, requests: Sequence[Deduction]
    ) -> list[Answer]:
        rows = await product_rows(transaction, [product_id], locks=self._locks)
        row = rows.get(product_id)
        if row is None or row.epoch == 0:
            return [admission.UNKNOWN_PRODUCT] * len(requests)
        shelf = self._source.shelf(row)
        await read_users(transaction, shelf, {request.user_id for request in requests})
        known = await find_records(transaction, product_id, [each.request_id for each in requests])
        objection = await self._source.objection(transaction, row)
        deal = _Deal(shelf, known, objection, self._source.remark)
        answers = [deal.serve(request) for request in requests]
        await self._write(transaction, deal)
        self._database.failpoints.hit("sale.before_commit")
        return answers

    async def _write(self, transaction: Transaction, deal: "_Deal") -> None:
        """The row first: who has lost the race for it writes nothing else."""
        if not deal.entries and not deal.buried:
            return
        await self._change_row(transaction, deal.shelf)
        await enter(transaction, deal.entries)
        await self._source.note(transaction, deal.entries)
        await bury(transaction, deal.buried)
        await write_users(transaction, [deal.shelf])
        if self._source.column is Column.AVAILABLE:
            await publish(transaction, deal.shelf.notices())

    async def _change_row(self, transaction: Transaction, shelf: Shelf) -> None:
        row, sold = shelf.row, shelf.change.sold
        name, counts = _TAKES[self._source.column]
        values = (*[sold] * counts, row.product_id, row.version, sold)
        if not await transaction.execute(statement(name), values):
            text = f"product {row.product_id} was changed meanwhile"
            raise LostRaceError(text, may_have_run=transaction.may_have_run)


@dataclass(slots=True)
class _Deal:
    """What becomes of the requests of one transaction. Pure."""

    shelf: Shelf
    known: dict[str, Record]
    objection: Answer | None
    remark: str
    entries: list[Entry] = field(default_factory=list)
    buried: list[Buried] = field(default_factory=list)

    def serve(self, request: Deduction) -> Answer:
        if self.shelf.has_limit and not request.user_id:
            return admission.NAMELESS
        record = self.known.get(request.request_id)
        if record is not None:
            return repeated(record, request.quantity, request.user_id)
        if self.objection is not None:
            return self.objection
        refusal = self.shelf.refusal(request.quantity, request.user_id)
        if refusal is None:
            return self._sell(request)
        if refusal.outcome is Outcome.INSUFFICIENT_STOCK and request.attempt >= 2:
            self._refuse_for_good(request)
        return refusal

    def _sell(self, request: Deduction) -> Answer:
        request_id, product_id, quantity, user_id, order_id, _ = request
        assert isinstance(order_id, int)  # lines of orders are taken in book.py
        shelf = self.shelf
        shelf.sell(quantity, user_id)
        left = shelf.available
        kind = JournalKind.DEDUCT
        self.known[request_id] = Record(kind, quantity, user_id, left)
        whose = (user_id, order_id)
        self.entries.append(
            Entry(product_id, request_id, kind, quantity, left, *whose, self.remark)
        )
        return Answer(Outcome.DEDUCTED, available=left)

    def _refuse_for_good(self, request: Deduction) -> None:
        record = Record(Tombstone.REFUSED, request.quantity, request.user_id)
        self.known[request.request_id] = record
        self.buried.append(Buried(request.product_id, request.request_id, record))
