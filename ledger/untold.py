"""Requests that were sold from the buffer and that the live stock has not been told of."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from ledger.database import Database, Row, Transaction
from ledger.statements import placeholders, statement
from sharding.outcomes import Deduction
from sharding.placement import Layout

PAGE_MAX = 1_000
PRUNED_AT_ONCE = 2_000


class UntoldSale(NamedTuple):
    """One of them, and its product's layout; `id` in the order in which they were sold."""

    id: int
    request: Deduction
    layout: Layout


class UntoldSales:
    """Reads and ends them; `ledger.buffer` alone adds."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def page(self, *, after_id: int) -> Sequence[UntoldSale]:
        """Those with greater ids, by id, at most PAGE_MAX."""

        async def run(transaction: Transaction) -> Sequence[UntoldSale]:
            rows = await transaction.rows(statement("buffer_sale_page"), (after_id, PAGE_MAX))
            return [_sale(row) for row in rows]

        return await self._database.transaction(run)

    async def told(self, ids: Collection[int]) -> None:
        """The live stock knows these, at most PAGE_MAX of them."""
        if not ids:
            return
        sql = placeholders("buffer_sale_told", len(ids))

        async def run(transaction: Transaction) -> None:
            await transaction.execute(sql, sorted(ids))

        await self._database.transaction(run)

    async def prune(self, *, older_than_s: int) -> int:
        """Forget what the live stock would have forgotten by now, a bounded number; returns how many."""

        async def run(transaction: Transaction) -> int:
            values = (older_than_s, PRUNED_AT_ONCE)
            return await transaction.execute(statement("buffer_sale_prune"), values)

        return await self._database.transaction(run)


def _sale(row: Row) -> UntoldSale:
    id_, product_id, request_id, quantity, user_id, version, shards = row
    request = Deduction(request_id, product_id, quantity, user_id)
    return UntoldSale(id_, request, Layout(version, shards))
