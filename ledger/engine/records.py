"""What is remembered of requests: their effects in the journal, and tombstones of those without any."""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from ledger.database import Database, Transaction
from ledger.journal import LOOKUP_KEYS_MAX
from ledger.products import JournalKind
from ledger.statements import placeholders, statement, with_rows
from ledger.values import text
from sharding.outcomes import Answer, Outcome, Reason

PRUNED_AT_ONCE = 2_000


class Tombstone(StrEnum):
    """Why a request takes nothing, for good."""

    REFUSED = "refused"
    """It was a retry's, and there were too few units."""
    NEVER = "never"
    """ResolveRequest found that it had not come."""


class Record(NamedTuple):
    """What an id stands for: `kind` is a JournalKind or a Tombstone, `quantity` in units.

    `available`: units that were left just after it.
    """

    kind: str
    quantity: int
    user_id: int
    available: int = 0


class Buried(NamedTuple):
    """A tombstone that is to be written."""

    product_id: int
    request_id: str
    record: Record


async def find_records(
    transaction: Transaction, product_id: int, request_ids: Sequence[str]
) -> dict[str, Record]:
    """What is known of some of a product's requests; an id's deduction before whatever else it was."""
    known: dict[str, Record] = {}
    for start in range(0, len(request_ids), LOOKUP_KEYS_MAX):
        piece = request_ids[start : start + LOOKUP_KEYS_MAX]
        sql = placeholders("request_records", len(piece))
        values = (product_id, *piece, product_id, *piece)
        for request_id, *fields in await transaction.rows(sql, values):
            record = Record(*fields)
            if record.kind == JournalKind.DEDUCT or request_id not in known:
                known[request_id] = record
    return known


def repeated(record: Record, quantity: int, user_id: int) -> Answer:
    """The answer to a deduction whose id is known."""
    if record.kind == Tombstone.NEVER:
        return Answer(Outcome.REQUEST_MISMATCH, reason=Reason.RESOLVED_NEVER)
    if (record.quantity, record.user_id) == (quantity, user_id):
        if record.kind == JournalKind.DEDUCT:
            return Answer(Outcome.DEDUCTED, replayed=True, available=record.available)
        if record.kind == Tombstone.REFUSED:
            return Answer(Outcome.INSUFFICIENT_STOCK, replayed=True)
    return Answer(Outcome.REQUEST_MISMATCH)


async def bury(transaction: Transaction, buried: Sequence[Buried]) -> None:
    """Write tombstones. DuplicateEffectsError where there is one already."""
    if buried:
        await transaction.bulk(with_rows("tombstone_insert", map(_row, buried)))


async def prune_tombstones(database: Database, *, older_than_s: int) -> int:
    """Forget old ones, a bounded number; returns how many."""

    async def run(transaction: Transaction) -> int:
        values = (older_than_s, PRUNED_AT_ONCE)
        return await transaction.execute(statement("tombstone_prune"), values)

    return await database.transaction(run)


def _row(buried: Buried) -> bytes:
    """One row in the columns of tombstone_insert.sql."""
    record = buried.record
    return (
        f"({buried.product_id},{text(buried.request_id)},'{record.kind}',"
        f"{record.quantity},{record.user_id})"
    ).encode()
