"""Products as the ledger has them: settings, units, and the steps of going on sale and off it."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum

from ledger.database import Database, Row, Transaction
from ledger.errors import (
    Conflict,
    DuplicateEffectsError,
    LedgerConflictError,
    UnknownProductError,
)
from ledger.service_events import publish, stock_notices
from ledger.statements import placeholders, statement
from sharding.outcomes import State
from sharding.placement import Layout
from sharding.plans import Freeze, LoadPlan, split_evenly


class JournalKind(StrEnum):
    """What a journal row is about; part of its unique key."""

    DEDUCT = "deduct"
    RESTOCK = "restock"
    REMOVE = "remove"
    LAYOUT = "layout"
    RESERVE = "reserve"
    """Units are held for an order."""
    CONFIRM = "confirm"
    """Held units were sold."""
    RELEASE = "release"
    """Held units came back; the remark says why."""
    REFUND = "refund"
    """An order was confirmed too late and its units are gone. Moves none."""
    BUFFER = "buffer"
    """Units left the buffer for the shards."""
    FORCE_RELEASE = "force_release"
    """Somebody had an order released; the remark says why. Moves no units."""
    ROLLBACK = "rollback"
    """Units of a request's second effect went back to the shard that they had been taken from."""
    REPAIR = "repair"
    """A difference between a shard and the ledger was compensated."""
    FREEZE = "freeze"
    """The sale was stopped. Moves no units."""
    UNFREEZE = "unfreeze"
    """The sale was resumed. Moves no units."""
    RESTORE = "restore"
    """A shard was given the ledger's counts, because its node had lost something. Moves no units."""


class JournalType(IntEnum):
    """The journal's `type` column; 1 to 4 are the business's own numbers."""

    RESERVE = 1
    CONFIRM = 2
    RELEASE = 3
    ROLLBACK = 4
    DEDUCT = 5
    RESTOCK = 6
    REMOVE = 7
    LAYOUT = 8
    REFUND = 9
    FORCE_RELEASE = 10
    REPAIR = 11
    BUFFER = 12
    FREEZE = 13
    UNFREEZE = 14
    RESTORE = 15


@dataclass(frozen=True, slots=True)
class ProductRow:
    """One row of product_inventory; counts in units.

    total_stock = available_stock + held_stock + buffer_stock + sold_count, always.
    """

    product_id: int
    name: str
    status: State
    total_stock: int
    available_stock: int
    """Neither sold, held nor in the buffer; the units in the live shards are among them.

    Below zero while a shard's stream is applied ahead of the one that tells where its units came from.
    """
    held_stock: int
    buffer_stock: int
    sold_count: int
    buffer_percent: int
    max_per_user: int
    """0: no limit."""
    low_stock: int
    """0: never low."""
    buffer_release_below: int
    """With fewer units available in the shards the buffer is released by itself; 0: never."""
    shards: int
    """Wanted; 0: the service's default."""
    layout_version: int
    layout_shards: int
    """Of the layout in force; 0: never loaded."""
    epoch: int
    load_pool: int
    """Units that the last load split over the shards."""
    sold_before: int
    """Units sold when the product was last closed."""
    sold_from_buffer: int
    """Units sold since it was loaded that no shard knows of."""
    released_stock: int
    """Units that left the buffer for the shards since it was loaded."""
    former_shards: str
    """Other shard counts that it had, with spaces between them."""
    version: int
    frozen_reason: str = ""
    """Why nothing is sold; empty: it is not frozen."""
    frozen_by: str = ""
    freeze_version: int = 0
    """Grows with every decision to stop or to resume the sale."""

    @property
    def freeze(self) -> Freeze:
        """The last of these decisions."""
        return Freeze(self.freeze_version, frozen=bool(self.frozen_reason))

    @property
    def plan(self) -> LoadPlan:
        """The last load, as it was stored before any shard saw it."""
        return LoadPlan(
            product_id=self.product_id,
            epoch=self.epoch,
            layout=Layout(self.layout_version, self.layout_shards),
            amounts=split_evenly(self.load_pool, self.layout_shards),
            buffer=self.buffer_stock + self.released_stock + self.sold_from_buffer,
            sold_before=self.sold_before,
            former_shards=tuple(map(int, self.former_shards.split())),
            max_per_user=self.max_per_user,
            freeze=self.freeze,
        )


@dataclass(frozen=True, slots=True)
class ProductSettings:
    """What an operator says about a product."""

    product_id: int
    name: str
    total_stock: int
    buffer_percent: int
    shards: int
    max_per_user: int
    low_stock: int
    buffer_release_below: int = 0


@dataclass(frozen=True, slots=True)
class Adjustment:
    """A restock or removal that the journal has; or, to whom its id was news, what else it was."""

    kind: JournalKind
    quantity: int
    replayed: bool


class Products:
    """Reads and changes product rows; every change is safe to repeat."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def put(self, wanted: ProductSettings) -> ProductRow:
        """Create a product, or change the settings of one that is closed.

        The total of a product that was loaded once changes by restock and remove alone: here it
        must be the present one or 0. LedgerConflictError NOT_CLOSED, TOTAL_FIXED.
        """

        async def run(transaction: Transaction) -> ProductRow:
            await transaction.execute(statement("product_create"), (wanted.product_id,))
            row = await locked_product(transaction, wanted.product_id)
            total = _agreed_total(row, wanted.total_stock)
            await transaction.execute(
                statement("product_put"),
                (
                    wanted.name,
                    total,
                    row.available_stock + total - row.total_stock,
                    wanted.buffer_percent,
                    wanted.max_per_user,
                    wanted.low_stock,
                    wanted.buffer_release_below,
                    wanted.shards,
                    wanted.product_id,
                ),
            )
            return await _read(transaction, wanted.product_id)

        return await self._database.transaction(run)

    async def get(self, product_id: int) -> ProductRow:
        """One product; UnknownProductError."""

        async def run(transaction: Transaction) -> ProductRow:
            return await _read(transaction, product_id)

        return await self._database.transaction(run)

    async def list(self, *, after: int, limit: int) -> Sequence[ProductRow]:
        """Products with greater ids than `after`, by id."""

        async def run(transaction: Transaction) -> Sequence[ProductRow]:
            rows = await transaction.rows(statement("product_list"), (after, limit))
            return [_product(row) for row in rows]

        return await self._database.transaction(run)

    async def on_sale(self, *, after: int, limit: int) -> Sequence[int]:
        """Ids of products that are open, greater than `after`, in their order."""

        async def run(transaction: Transaction) -> Sequence[int]:
            rows = await transaction.rows(statement("product_on_sale"), (after, limit))
            return [int(product_id) for (product_id,) in rows]

        return await self._database.transaction(run)

    async def count_below_zero(self) -> int:
        """Products of whose available units more were used than came in, as far as is known."""

        async def run(transaction: Transaction) -> int:
            row = await transaction.row(statement("product_below_zero"))
            assert row is not None
            return int(row[0])

        return await self._database.transaction(run)

    async def begin_load(
        self, product_id: int, *, partitions: int, default_shards: int, has_buffer: bool = True
    ) -> tuple[LoadPlan, bool]:
        """Decide what a closed product's shards are to hold, once; the buffer is set aside here, unless
        all units stay in the ledger anyway (`has_buffer` False).

        Returns the plan and whether it is to be carried out: True from CLOSED and from LOADING,
        which resumes the stored plan; False from OPEN, where nothing changes.
        LedgerConflictError NOT_CLOSED while it is being closed, INSUFFICIENT_STOCK below zero,
        DEAD_LETTERS_OPEN while one of its events is set aside.
        """

        async def run(transaction: Transaction) -> tuple[LoadPlan, bool]:
            row = await locked_product(transaction, product_id)
            if row.status is State.OPEN:
                return row.plan, False
            if row.status is State.LOADING:
                return row.plan, True
            require_status(row, State.CLOSED, Conflict.NOT_CLOSED)
            _require_units(row, 0)
            await _require_no_letters(transaction, row)
            shards = min(row.shards or default_shards, partitions)
            percent = row.buffer_percent if has_buffer else 0
            buffer = row.available_stock * percent // 100
            pool = row.available_stock - buffer
            version = max(row.layout_version, await _last_version(transaction, product_id)) + 1
            values = (version, shards, buffer, buffer, pool, _former(row, shards), product_id)
            await transaction.execute(statement("product_begin_load"), values)
            return (await _read(transaction, product_id)).plan, True

        return await self._database.transaction(run)

    async def finish_load(self, plan: LoadPlan) -> ProductRow:
        """LOADING to OPEN, once all shards are; the same again is harmless.

        LedgerConflictError OTHER_EPOCH, NOT_OPEN.
        """

        async def run(transaction: Transaction) -> ProductRow:
            row = await locked_product(transaction, plan.product_id, epoch=plan.epoch)
            if row.status is State.OPEN:
                return row
            require_status(row, State.LOADING, Conflict.NOT_OPEN)
            return await _set_status(transaction, row, State.OPEN)

        return await self._database.transaction(run)

    async def begin_close(self, product_id: int) -> ProductRow:
        """OPEN to CLOSING; CLOSING and CLOSED stay.

        LedgerConflictError NOT_OPEN while loading, LAYOUT_CHANGING while its shard count changes.
        """

        async def run(transaction: Transaction) -> ProductRow:
            row = await locked_product(transaction, product_id)
            if row.status in (State.CLOSING, State.CLOSED):
                return row
            require_status(row, State.OPEN, Conflict.NOT_OPEN)
            await _require_layout(transaction, row)
            return await _set_status(transaction, row, State.CLOSING)

        return await self._database.transaction(run)

    async def loaded_shards(self, product_id: int, *, epoch: int) -> int:
        """How many shards of the epoch are there, as far as their events have been applied."""

        async def run(transaction: Transaction) -> int:
            row = await transaction.row(statement("loaded_shards"), (product_id, epoch))
            return int(row[0]) if row else 0

        return await self._database.transaction(run)

    async def closed_shards(self, product_id: int, *, epoch: int) -> int:
        """How many of the epoch's shards have closed, as far as their events have been applied.

        0 while the ledger knows one of the epoch that has not.
        """

        async def run(transaction: Transaction) -> int:
            row = await transaction.row(statement("closed_shards"), (product_id, epoch))
            return int(row[0]) if row else 0

        return await self._database.transaction(run)

    async def find_request(self, product_id: int, request_id: str) -> Adjustment | None:
        """What the journal knows a request for: the deduction, or else what it was."""

        async def run(transaction: Transaction) -> Adjustment | None:
            row = await transaction.row(statement("request_find"), (product_id, request_id))
            return Adjustment(JournalKind(row[0]), abs(row[1]), replayed=True) if row else None

        return await self._database.transaction(run)

    async def finish_close(self, product_id: int, *, epoch: int) -> ProductRow:
        """CLOSING to CLOSED, the buffer back to the available units; the same again is harmless.

        LedgerConflictError OTHER_EPOCH, NOT_CLOSING.
        """

        async def run(transaction: Transaction) -> ProductRow:
            row = await locked_product(transaction, product_id, epoch=epoch)
            if row.status is State.CLOSED:
                return row
            require_status(row, State.CLOSING, Conflict.NOT_CLOSING)
            await transaction.execute(statement("product_finish_close"), (product_id,))
            await transaction.execute(statement("drift_pass"), (product_id,))
            return await _read(transaction, product_id)

        return await self._database.transaction(run)

    async def find_adjustment(self, product_id: int, request_id: str) -> Adjustment | None:
        """What the journal knows a request for: the restock or removal, or else what it was."""

        async def run(transaction: Transaction) -> Adjustment | None:
            return await _adjustment(transaction, product_id, request_id)

        return await self._database.transaction(run)

    async def adjust_closed(
        self,
        kind: JournalKind,
        product_id: int,
        *,
        request_id: str,
        quantity: int,
        reason: str,
        actor: str = "",
    ) -> Adjustment:
        """Restock or remove units of a closed product, once per request id.

        LedgerConflictError REQUEST_MISMATCH (the id was used with another kind or quantity),
        NOT_CLOSED, INSUFFICIENT_STOCK.
        """
        assert kind in (JournalKind.RESTOCK, JournalKind.REMOVE)
        signed = quantity if kind is JournalKind.RESTOCK else -quantity

        async def run(transaction: Transaction) -> Adjustment:
            row = await locked_product(transaction, product_id)
            if earlier := await _adjustment(transaction, product_id, request_id):
                return _same(earlier, kind, quantity, request_id)
            require_status(row, State.CLOSED, Conflict.NOT_CLOSED)
            if kind is JournalKind.REMOVE:
                _require_units(row, quantity)
            what = (product_id, request_id, kind.value, JournalType[kind.name].value, signed)
            values = (*what, row.available_stock + signed, reason, actor)
            await transaction.execute(statement("adjustment_insert"), values)
            await transaction.execute(statement("product_adjust"), (signed, signed, product_id))
            await tell_of_units(transaction, row, signed)
            return Adjustment(kind, quantity, replayed=False)

        try:
            return await self._database.transaction(run)
        except DuplicateEffectsError:
            # A worker wrote the same effect between our look and our insert.
            return await self._database.transaction(run)


def _former(row: ProductRow, shards: int) -> str:
    """All counts that the product was split into, but the one that it gets now."""
    counts = {*map(int, row.former_shards.split()), row.layout_shards} - {0, shards}
    return " ".join(map(str, sorted(counts)))


def _product(row: Row) -> ProductRow:
    product_id, name, status, *rest = row
    return ProductRow(product_id, name, State(status), *rest)


async def _read(transaction: Transaction, product_id: int) -> ProductRow:
    row = await transaction.row(statement("product_get"), (product_id,))
    if row is None:
        raise UnknownProductError(product_id)
    return _product(row)


async def locked_product(
    transaction: Transaction, product_id: int, *, epoch: int | None = None
) -> ProductRow:
    """The row, held until the transaction ends, and of that epoch if one is given."""
    found = await transaction.row(statement("product_lock"), (product_id,))
    if found is None:
        raise UnknownProductError(product_id)
    row = _product(found)
    if epoch is not None and row.epoch != epoch:
        text = f"product {product_id} was loaded again: epoch {row.epoch}, not {epoch}"
        raise LedgerConflictError(Conflict.OTHER_EPOCH, text)
    return row


async def product_rows(
    transaction: Transaction, product_ids: Collection[int], *, locks: bool
) -> dict[int, ProductRow]:
    """Rows by product, without those that are unknown.

    `locks`: each is held until the transaction ends; they are taken in the order of the ids, so that no
    two transactions wait for each other.
    """
    if not product_ids:
        return {}
    sql = placeholders("product_lock_some" if locks else "product_some", len(product_ids))
    rows = await transaction.rows(sql, sorted(product_ids))
    return {product.product_id: product for product in map(_product, rows)}


async def _last_version(transaction: Transaction, product_id: int) -> int:
    """The highest layout version that a change of the shard count may have used; 0: none did."""
    row = await transaction.row(statement("layout_change_last"), (product_id,))
    return int(row[1]) + 1 if row else 0


async def _require_layout(transaction: Transaction, row: ProductRow) -> None:
    if await transaction.row(statement("layout_change_wanted"), (row.product_id,)):
        raise LedgerConflictError(
            Conflict.LAYOUT_CHANGING,
            f"the shard count of product {row.product_id} is being changed; call again",
        )


async def _require_no_letters(transaction: Transaction, row: ProductRow) -> None:
    """What an event sold that was set aside is among the available units: it would be sold again."""
    letter = await transaction.row(statement("dead_letter_of"), (row.product_id,))
    if letter is not None:
        raise LedgerConflictError(
            Conflict.DEAD_LETTERS_OPEN,
            f"dead letter {letter[0]} of product {row.product_id} is open, and its units would be sold "
            "again: retry or discard it first",
        )


async def _set_status(transaction: Transaction, row: ProductRow, status: State) -> ProductRow:
    await transaction.execute(statement("product_status"), (status.value, row.product_id))
    return await _read(transaction, row.product_id)


async def _adjustment(
    transaction: Transaction, product_id: int, request_id: str
) -> Adjustment | None:
    row = await transaction.row(statement("adjustment_find"), (product_id, request_id))
    return Adjustment(JournalKind(row[0]), abs(row[1]), replayed=True) if row else None


async def tell_of_units(transaction: Transaction, before: ProductRow, change: int) -> None:
    """Tell callers of a change of the available units, as the last that a transaction does."""
    notices = stock_notices(
        before.product_id,
        before=before.available_stock,
        after=before.available_stock + change,
        low_stock=before.low_stock,
    )
    await publish(transaction, list(notices))


def require_status(row: ProductRow, status: State, conflict: Conflict) -> None:
    """LedgerConflictError unless the product is in that state."""
    if row.status is not status:
        text = f"product {row.product_id} is {row.status.value}, not {status.value}"
        raise LedgerConflictError(conflict, text)


def _require_units(row: ProductRow, units: int) -> None:
    if row.available_stock < units:
        text = f"product {row.product_id} has {row.available_stock} units available, not {units}"
        raise LedgerConflictError(Conflict.INSUFFICIENT_STOCK, text)


def _agreed_total(row: ProductRow, wanted: int) -> int:
    require_status(row, State.CLOSED, Conflict.NOT_CLOSED)
    if row.epoch == 0:
        return wanted
    if wanted not in (0, row.total_stock):
        text = (
            f"product {row.product_id} has been loaded: its total stays {row.total_stock} here and "
            "changes by restock and remove"
        )
        raise LedgerConflictError(Conflict.TOTAL_FIXED, text)
    return row.total_stock


def _same(earlier: Adjustment, kind: JournalKind, quantity: int, request_id: str) -> Adjustment:
    if (earlier.kind, earlier.quantity) != (kind, quantity):
        text = f"request {request_id} was {earlier.kind.value} of {earlier.quantity} units"
        raise LedgerConflictError(Conflict.REQUEST_MISMATCH, text)
    return earlier
