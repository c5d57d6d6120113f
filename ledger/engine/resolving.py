"""Deciding what became of a request whose answer was lost."""

from ledger.database import Database, Transaction
from ledger.engine import admission
from ledger.engine.failures import unavailable
from ledger.engine.records import Buried, Record, Tombstone, bury, find_records
from ledger.engine.rows import move
from ledger.engine.shelves import Shelf
from ledger.errors import LedgerError, LedgerUnavailableError
from ledger.products import JournalKind, product_rows
from sharding.outcomes import Answer, Outcome, Reason, Resolution, Resolved

_ENDS = {
    JournalKind.DEDUCT.value: Resolution.DEDUCTED,
    Tombstone.REFUSED.value: Resolution.REFUSED,
    Tombstone.NEVER.value: Resolution.NEVER,
}
_NEVER = Record(Tombstone.NEVER, 0, 0)


class Resolving:
    """Looks a request up, and leaves a tombstone where it had no effect."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def resolve(self, product_id: int, request_id: str) -> Resolved | Answer:
        """The request's end, or why it cannot be told now: every failure is an answer.

        The product's row is locked, so nobody sells the request meanwhile; its version rises, so whoever
        has read the row before loses the race for it.
        """

        async def run(transaction: Transaction) -> Resolved | Answer:
            row = (await product_rows(transaction, [product_id], locks=True)).get(product_id)
            if row is None or row.epoch == 0:
                return admission.UNKNOWN_PRODUCT
            known = await find_records(transaction, product_id, [request_id])
            if request_id not in known:
                await move(transaction, [Shelf(row, row.available_stock)])
                await bury(transaction, [Buried(product_id, request_id, _NEVER)])
            return _end(known.get(request_id, _NEVER))

        try:
            return await self._database.transaction(run)
        except LedgerUnavailableError:
            # Whatever became of a tombstone, the same call again finds it.
            return Answer(Outcome.UNAVAILABLE, reason=Reason.NOT_EXECUTED)
        except LedgerError as error:
            return unavailable(error, product_id=product_id)


def _end(record: Record) -> Resolved | Answer:
    if record.kind not in _ENDS:
        return Answer(Outcome.REQUEST_MISMATCH)
    resolution = _ENDS[record.kind]
    quantity = record.quantity if resolution is Resolution.DEDUCTED else 0
    return Resolved(resolution, quantity)
