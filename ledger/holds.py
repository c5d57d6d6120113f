"""Units that orders hold, as far as the ledger knows, and what operators do about them."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ledger.database import Database, Transaction
from ledger.products import JournalKind, JournalType
from ledger.statements import statement
from sharding.orders import request_id_of
from sharding.reminding import HeldLine

PAGE_MAX = 1_000


@dataclass(frozen=True, slots=True)
class HoldRow:
    """Units of one product that an order holds at one shard."""

    id: int
    product_id: int
    partition: int
    order_id: int
    user_id: int
    """0: none."""
    quantity: int
    created_ms: int
    """Milliseconds since 1970 UTC, by the live stock's clock."""
    age_ms: int
    """By the database's clock; below zero where the two clocks differ by more."""


class FurtherHold(NamedTuple):
    """Units that are held by another line than an order's first one."""

    id: int
    line: HeldLine
    is_undecided: bool
    """The first line is held, too, so the order is undecided as far as is known here."""


class Holds:
    """Reads holds; `Journal.apply` alone adds and ends them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def page(
        self, *, product_id: int = 0, user_id: int = 0, after_id: int = 0, limit: int = 100
    ) -> Sequence[HoldRow]:
        """Holds with greater ids than `after_id`, by id: in the order in which the ledger heard of them.

        Of one product, one user, or both; 0: of all. At most PAGE_MAX at once.
        """
        filters = [each for each in (product_id, user_id) if each]
        name = _page(by_product=bool(product_id), by_user=bool(user_id))
        values = (after_id, *filters, min(limit, PAGE_MAX))

        async def run(transaction: Transaction) -> Sequence[HoldRow]:
            rows = await transaction.rows(statement(name), values)
            return [HoldRow(*row) for row in rows]

        return await self._database.transaction(run)

    async def further(self, *, after_id: int, limit: int) -> Sequence[FurtherHold]:
        """Further lines that are held, with greater ids than `after_id`, by id."""

        async def run(transaction: Transaction) -> Sequence[FurtherHold]:
            rows = await transaction.rows(statement("hold_further"), (after_id, limit))
            return [FurtherHold(row[0], HeldLine(*row[1:-1]), bool(row[-1])) for row in rows]

        return await self._database.transaction(run)

    async def note_force_release(
        self,
        order_id: int,
        *,
        user_id: int,
        first_product: int,
        product_ids: Collection[int],
        actor: str,
        reason: str,
    ) -> None:
        """Say in the journal of some of an order's products who had it released, and why.

        `first_product`: of all that the order has. Safe to repeat: the first who says so stays.
        """
        request_id = request_id_of(order_id, first_product)
        kind, type_ = JournalKind.FORCE_RELEASE.value, JournalType.FORCE_RELEASE.value

        async def run(transaction: Transaction) -> None:
            for product_id in sorted(product_ids):
                what = (product_id, request_id, kind, type_, order_id, user_id)
                values = (*what, product_id, reason, actor)
                await transaction.execute(statement("force_release_insert"), values)

        await self._database.transaction(run)


def _page(*, by_product: bool, by_user: bool) -> str:
    if by_user:
        return "hold_page_product_user" if by_product else "hold_page_user"
    return "hold_page_product" if by_product else "hold_page"
