"""The journal as people read it: what happened to a product, an order or a request, newest first."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ledger.database import Database, Row, Transaction
from ledger.products import JournalKind
from ledger.statements import statement
from sharding.events import EventId

ID_MAX = 2**63 - 1
_MOVE_NOTHING_AVAILABLE = frozenset(
    (
        JournalKind.CONFIRM.value,
        JournalKind.LAYOUT.value,
        JournalKind.REFUND.value,
        JournalKind.FORCE_RELEASE.value,
    )
)
"""A confirmation has a quantity all the same: that of the held units that it sold."""


@dataclass(frozen=True, slots=True)
class TimelineRow:
    """One row of the journal."""

    id: int
    product_id: int
    kind: str
    """A JournalKind, or what a later version writes."""
    request_id: str
    order_id: int
    """0: none."""
    user_id: int
    """0: none."""
    quantity: int
    """Negative where units left the available stock, or the held ones for the sold ones."""
    partition: int | None
    """None: it did not come by a stream, and `event_id` says nothing."""
    event_id: EventId
    remark: str
    actor: str
    available_after: int | None
    """Of the shard; of the product where it did not come by a stream; None: not known."""
    created_ms: int
    """Milliseconds since 1970 UTC."""

    @property
    def available_before(self) -> int | None:
        """As `available_after`, just before the operation."""
        if self.available_after is None or self.kind in _MOVE_NOTHING_AVAILABLE:
            return self.available_after
        return self.available_after - self.quantity


class Timeline:
    """Reads the journal."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def page(
        self,
        *,
        product_id: int = 0,
        request_id: str = "",
        order_id: int = 0,
        before_id: int = 0,
        limit: int,
    ) -> Sequence[TimelineRow]:
        """Rows with smaller ids than `before_id` (0: the newest), the newest first.

        What is 0 or empty is of no account. One of product and order must be named, and the product
        where a request is.
        """
        named = {"product_id": product_id, "request_id": request_id, "order_id": order_id}
        filters = {column: value for column, value in named.items() if value}
        sql = page_sql(filters)
        values = (*filters.values(), before_id or ID_MAX, limit)

        async def run(transaction: Transaction) -> Sequence[TimelineRow]:
            return [_timeline_row(row) for row in await transaction.rows(sql, values)]

        return await self._database.transaction(run)


def page_sql(columns: Collection[str]) -> str:
    """The statement for the columns that are asked for.

    Of an order the newest rows stand at the end of what its index finds; of a product all ids are read
    from the index and sorted, before the rows are.
    """
    of_order = "order_id" in columns and "request_id" not in columns
    filters = " AND ".join(f"{column} = %s" for column in columns)
    return (
        statement("timeline")
        .replace("{index}", "by_order" if of_order else "one_effect")
        .replace("{filters}", filters)
    )


def _timeline_row(row: Row) -> TimelineRow:
    id_, product_id, kind, request_id, order_id, user_id, quantity, partition, *rest = row
    generation, number, remark, actor, available_after, created_ms = rest
    return TimelineRow(
        id=id_,
        product_id=product_id,
        kind=kind,
        request_id=request_id,
        order_id=order_id,
        user_id=user_id,
        quantity=quantity,
        partition=partition,
        event_id=EventId(generation, number),
        remark=remark,
        actor=actor,
        available_after=available_after,
        created_ms=created_ms,
    )
