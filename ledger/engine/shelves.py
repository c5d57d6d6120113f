"""A product's row in the hands of a transaction: what it has, and what is to be added to it."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from ledger.batch import ProductChange
from ledger.database import Transaction
from ledger.products import ProductRow
from ledger.service_events import Notice, stock_notices
from ledger.statements import placeholders, with_rows
from sharding.outcomes import Answer, Outcome

SHORT = Answer(Outcome.INSUFFICIENT_STOCK)
_AT_THE_LIMIT = Answer(Outcome.USER_LIMIT)


@dataclass(slots=True)
class Shelf:
    """Units of one product. Pure: whoever has decided writes `change` and `users_changed`."""

    row: ProductRow
    available: int
    """Left to sell."""
    short: Answer = SHORT
    """What a request comes to that wants more."""
    change: ProductChange = field(default_factory=ProductChange)
    users: dict[int, int] = field(default_factory=dict)
    """Units that users hold and have bought, of a product with a limit."""
    users_changed: set[int] = field(default_factory=set)
    has_changed: bool = False

    @property
    def has_limit(self) -> bool:
        return self.row.max_per_user > 0

    def refusal(self, quantity: int, user_id: int) -> Answer | None:
        """Why units cannot be had; None: they can."""
        if self.has_limit and self.users.get(user_id, 0) + quantity > self.row.max_per_user:
            return _AT_THE_LIMIT
        return self.short if quantity > self.available else None

    def sell(self, quantity: int, user_id: int) -> None:
        """Take units for good."""
        self._take(quantity, user_id)
        self.change.sold += quantity

    def hold(self, quantity: int, user_id: int) -> None:
        """Take units for an order that is not decided."""
        self._take(quantity, user_id)
        self.change.held += quantity

    def sell_held(self, quantity: int) -> None:
        """Sell what an order held."""
        self.change.held -= quantity
        self.change.sold += quantity
        self.has_changed = True

    def free(self, quantity: int, user_id: int) -> None:
        """Take back what an order held."""
        self.change.held -= quantity
        self._add(quantity)
        self._count(user_id, -quantity)

    def adjust(self, units: int) -> None:
        """Units come in from outside, or leave for it where `units` is below zero."""
        self.change.total += units
        self._add(units)

    def notices(self) -> list[Notice]:
        """What callers are to be told of."""
        before = self.available - self.change.available
        return list(
            stock_notices(
                self.row.product_id,
                before=before,
                after=self.available,
                low_stock=self.row.low_stock,
            )
        )

    def _take(self, quantity: int, user_id: int) -> None:
        self._add(-quantity)
        self._count(user_id, quantity)

    def _add(self, units: int) -> None:
        self.available += units
        self.change.available += units
        self.has_changed = True

    def _count(self, user_id: int, units: int) -> None:
        if self.has_limit:
            self.users[user_id] = self.users.get(user_id, 0) + units
            self.users_changed.add(user_id)


async def read_users(transaction: Transaction, shelf: Shelf, user_ids: Collection[int]) -> None:
    """Have a shelf know what these users hold and have bought, if the product has a limit."""
    if not shelf.has_limit or not user_ids:
        return
    sql = placeholders("user_units", len(user_ids))
    row = shelf.row
    found = await transaction.rows(sql, (row.product_id, row.epoch, *sorted(user_ids)))
    shelf.users.update(dict(found))


async def write_users(transaction: Transaction, shelves: Iterable[Shelf]) -> None:
    """Write what users hold and have bought now; the products' rows are in our hands meanwhile."""
    rows = [
        b"(%d,%d,%d,%d)" % (shelf.row.product_id, user_id, shelf.row.epoch, shelf.users[user_id])
        for shelf in shelves
        for user_id in sorted(shelf.users_changed)
    ]
    if rows:
        await transaction.bulk(with_rows("user_units_set", rows))
