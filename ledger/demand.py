"""How much is asked of which product, as the server processes report it."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ledger.database import Database, Transaction
from ledger.statements import placeholders, statement

REPORTS_MAX = 10_000
PRODUCTS_MAX = 1_000
PRUNED_AT_ONCE = 2_000


class Report(NamedTuple):
    """What one server process said about one product."""

    product_id: int
    requests_per_s: int
    age_s: float


class LiveProduct(NamedTuple):
    """A product on sale whose layout is not being changed just now."""

    product_id: int
    pin: int
    """The shard count that an operator asked for; 0: the demand decides."""
    shards: int
    is_fixed: bool = False
    """It has a limit per user: its shard count does not change while it is on sale."""


class Demand:
    """Keeps reports for a moment."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def report(self, server: str, rates: Mapping[int, int]) -> None:
        """Say how many requests a second one process is asked for, by product. Tried once."""
        if not rates:
            return
        sql = placeholders("demand_report", len(rates))
        sql = sql.replace("%s", "(%s, %s, %s, CURRENT_TIMESTAMP(3))")
        values = [part for product_id, rate in rates.items() for part in (product_id, server, rate)]

        async def run(transaction: Transaction) -> None:
            await transaction.execute(sql, values)

        await self._database.transaction(run, attempts=1)

    async def reports(self, *, within_s: int) -> Sequence[Report]:
        """Reports of that time, the greatest first."""

        async def run(transaction: Transaction) -> Sequence[Report]:
            rows = await transaction.rows(statement("demand_recent"), (within_s, REPORTS_MAX))
            return [Report(product_id, rate, float(age_s)) for product_id, rate, age_s in rows]

        return await self._database.transaction(run)

    async def products(
        self, *, within_s: int, shards_above: int, pause_s: int
    ) -> Sequence[LiveProduct]:
        """Products on sale with events or reports of that time, and those without a pin that have
        more shards than `shards_above`. Without those whose change is under way, has not reached their
        row yet, or was rolled back less than `pause_s` ago."""
        values = (within_s, shards_above, within_s, pause_s, PRODUCTS_MAX)

        async def run(transaction: Transaction) -> Sequence[LiveProduct]:
            rows = await transaction.rows(statement("demand_products"), values)
            return [LiveProduct(*row)._replace(is_fixed=bool(row[-1])) for row in rows]

        return await self._database.transaction(run)

    async def prune(self, *, older_than_s: int) -> int:
        """Forget old reports, a bounded number; returns how many."""

        async def run(transaction: Transaction) -> int:
            values = (older_than_s, PRUNED_AT_ONCE)
            return await transaction.execute(statement("demand_prune"), values)

        return await self._database.transaction(run)
