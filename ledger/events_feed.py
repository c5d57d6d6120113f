"""Reads the events for callers, from a cursor on, and forgets old ones."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ledger.database import Database, Row, Transaction
from ledger.service_events import ServiceEventKind
from ledger.statements import statement

PRUNED_AT_ONCE = 2_000
ROUNDS_MAX = 50
IDS_AT_ONCE = 50_000
"""Ids that one look for some kinds or products is to go through: a small part of a second."""
ID_MAX = 2**63 - 1
"""What the column can hold."""


@dataclass(frozen=True, slots=True)
class ServiceEvent:
    """One event. Fields that its kind does not have are 0."""

    id: int
    """The cursor of whoever has dealt with it."""
    kind: ServiceEventKind
    product_id: int
    order_id: int
    user_id: int
    available: int
    """Units of the product as the ledger had them then; can be below zero, see ProductRow."""
    at_ms: int
    """Milliseconds since 1970 UTC."""


class EventsFeed:
    """Events in the order of the ledger's commits. LedgerUnavailableError while MySQL is away."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def last(self) -> int:
        """The cursor of the latest event; 0: there was none yet."""

        async def run(transaction: Transaction) -> int:
            row = await transaction.row(statement("event_sequence_get"))
            return int(row[0]) if row else 0

        return await self._database.transaction(run)

    async def oldest(self) -> int:
        """The id of the oldest event that is kept; 0: there is none."""

        async def run(transaction: Transaction) -> int:
            row = await transaction.row(statement("service_event_oldest"))
            return int(row[0] or 0) if row else 0

        return await self._database.transaction(run)

    async def after(
        self,
        cursor: int,
        *,
        until: int = ID_MAX,
        kinds: Collection[ServiceEventKind] = (),
        product_ids: Collection[int] = (),
        limit: int,
    ) -> Sequence[ServiceEvent]:
        """The next events of these kinds and products, at most `limit`; empty collections: of all.

        `until` is the last id that is looked at. Whoever gets fewer than `limit` has read everything up
        to it that was there when the call began, and may move the cursor there unless it is above what
        `last` said before. What is not wanted is read, too: who wants some of many events asks for
        IDS_AT_ONCE ids at a time.
        """
        wanted = [kind.value for kind in kinds]
        values = (cursor, until, *wanted, *product_ids, limit)
        sql = _after(len(wanted), len(product_ids))

        async def run(transaction: Transaction) -> Sequence[ServiceEvent]:
            return [_event(row) for row in await transaction.rows(sql, values)]

        return await self._database.transaction(run)

    async def prune(self, *, older_than_s: int) -> int:
        """Forget old events, a bounded number; returns how many."""

        async def run(transaction: Transaction) -> int:
            values = (older_than_s, PRUNED_AT_ONCE)
            return await transaction.execute(statement("service_event_prune"), values)

        pruned = 0
        for _ in range(ROUNDS_MAX):
            piece = await self._database.transaction(run)
            pruned += piece
            if piece < PRUNED_AT_ONCE:
                break
        return pruned


def _after(kinds: int, product_ids: int) -> str:
    sql = statement("service_event_after")
    return sql.replace("{kinds}", _one_of("kind", kinds)).replace(
        "{products}", _one_of("product_id", product_ids)
    )


def _one_of(column: str, values: int) -> str:
    return f"AND {column} IN ({', '.join(['%s'] * values)})" if values else ""


def _event(row: Row) -> ServiceEvent:
    id_, kind, product_id, order_id, user_id, available, at_ms = row
    return ServiceEvent(
        id_, ServiceEventKind(kind), product_id, order_id, user_id, available, int(at_ms)
    )
