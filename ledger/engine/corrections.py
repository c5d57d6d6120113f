"""Restock and remove, whether the product is on sale or not."""

from typing import NamedTuple

from ledger.database import Database, Transaction
from ledger.engine import admission
from ledger.engine.entries import Entry, enter
from ledger.engine.failures import unavailable
from ledger.engine.records import Record, find_records
from ledger.engine.rows import move
from ledger.engine.shelves import SHORT, Shelf
from ledger.errors import LedgerError
from ledger.products import JournalKind, product_rows
from ledger.service_events import publish
from sharding.outcomes import Answer, Outcome


class Correction(NamedTuple):
    """Units to add or to take away, once per request id; `kind` is restock or remove."""

    kind: JournalKind
    product_id: int
    request_id: str
    quantity: int
    reason: str
    actor: str


class Corrections:
    """Applies corrections."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def apply(self, wanted: Correction) -> Answer:
        """DEDUCTED means that it was applied, now or before. Never raises for what can happen."""

        async def run(transaction: Transaction) -> Answer:
            return await _apply(transaction, wanted)

        try:
            return await self._database.transaction(run)
        except LedgerError as error:
            return unavailable(error, product_id=wanted.product_id)


async def _apply(transaction: Transaction, wanted: Correction) -> Answer:
    product_id, request_id = wanted.product_id, wanted.request_id
    row = (await product_rows(transaction, [product_id], locks=True)).get(product_id)
    if row is None or row.epoch == 0:
        return admission.UNKNOWN_PRODUCT
    known = (await find_records(transaction, product_id, [request_id])).get(request_id)
    if known is not None:
        return _repeated(known, wanted)
    shelf = Shelf(row, row.available_stock)
    units = wanted.quantity if wanted.kind is JournalKind.RESTOCK else -wanted.quantity
    if shelf.available + units < 0:
        return SHORT
    shelf.adjust(units)
    await move(transaction, [shelf])
    await enter(transaction, [_entry(wanted, shelf)])
    await publish(transaction, shelf.notices())
    return Answer(Outcome.DEDUCTED, available=shelf.available)


def _entry(wanted: Correction, shelf: Shelf) -> Entry:
    return Entry(
        wanted.product_id,
        wanted.request_id,
        wanted.kind,
        wanted.quantity,
        shelf.available,
        remark=wanted.reason,
        actor=wanted.actor,
    )


def _repeated(known: Record, wanted: Correction) -> Answer:
    if (known.kind, known.quantity) != (wanted.kind, wanted.quantity):
        return Answer(Outcome.REQUEST_MISMATCH)
    return Answer(Outcome.DEDUCTED, replayed=True, available=known.available)
