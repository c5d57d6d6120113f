"""What the three sides say at the end: buyers, Redis, MySQL."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from deploy.local.stack import LocalStack
from ledger.database import Database, Transaction
from ledger.metrics import LedgerMetrics
from ledger.products import JournalKind, Products
from ledger.settings import parse_url
from sharding.placement import ledger_of

SHARDS = """\
SELECT SUM(available), SUM(held), SUM(in_transit), SUM(sold), SUM(loaded)
FROM shard_stock WHERE product_id = %s
"""
JOURNAL = """\
SELECT request_id, quantity FROM inventory_log WHERE product_id = %s AND kind = %s
"""
OWED = """\
SELECT COUNT(*) FROM outbox WHERE product_id = %s AND kind = 'undo' AND state = 'open'
"""


@dataclass(frozen=True, slots=True)
class Counts:
    """A product's units by place; None: this side does not know that place."""

    total: int
    available: int | None = None
    held: int | None = None
    in_transit: int | None = None
    buffer: int | None = None
    sold: int | None = None


@dataclass(frozen=True, slots=True)
class LedgerReading:
    """What MySQL has about one product."""

    product: Counts
    shards: Counts
    deductions: Mapping[str, int]
    """Units by request id."""
    deduction_rows: int
    restocked: int
    removed: int


@asynccontextmanager
async def _ledger(stack: LocalStack, product_id: int) -> AsyncIterator[Database]:
    url = stack.mysql_urls[ledger_of(product_id, len(stack.mysql_urls))]
    database = Database(parse_url(url), LedgerMetrics(CollectorRegistry()))
    try:
        yield database
    finally:
        await database.close()


async def undos_owed(stack: LocalStack, product_id: int) -> int:
    """Second effects of requests that the ledger knows of, and whose units have not gone back yet."""

    async def run(transaction: Transaction) -> int:
        row = await transaction.row(OWED, (product_id,))
        assert row is not None
        return int(row[0])

    async with _ledger(stack, product_id) as database:
        return await database.transaction(run)


async def read_ledger(stack: LocalStack, product_id: int) -> LedgerReading:
    """The product's row, the sums of its shards' rows, and its journal."""
    async with _ledger(stack, product_id) as database:
        row = await Products(database).get(product_id)
        available, held, in_transit, sold, loaded = await _shards(database, product_id)
        deductions = await _journal(database, product_id, JournalKind.DEDUCT)
        restocks = await _journal(database, product_id, JournalKind.RESTOCK)
        removals = await _journal(database, product_id, JournalKind.REMOVE)
    return LedgerReading(
        product=Counts(
            total=row.total_stock,
            available=row.available_stock,
            held=row.held_stock,
            buffer=row.buffer_stock,
            sold=row.sold_count,
        ),
        shards=Counts(
            total=loaded, available=available, held=held, in_transit=in_transit, sold=sold
        ),
        deductions={request_id: -quantity for request_id, quantity in deductions},
        deduction_rows=len(deductions),
        restocked=sum(quantity for _, quantity in restocks),
        removed=-sum(quantity for _, quantity in removals),
    )


async def _shards(database: Database, product_id: int) -> list[int]:
    async def run(transaction: Transaction) -> list[int]:
        row = await transaction.row(SHARDS, (product_id,))
        assert row is not None
        return [int(total or 0) for total in row]

    return await database.transaction(run)


async def _journal(database: Database, product_id: int, kind: JournalKind) -> list[tuple[str, int]]:
    async def run(transaction: Transaction) -> list[tuple[str, int]]:
        rows = await transaction.rows(JOURNAL, (product_id, kind.value))
        return [(str(request_id), int(quantity)) for request_id, quantity in rows]

    return await database.transaction(run)
