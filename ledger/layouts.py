"""Changes of a product's shard count while it is on sale: what is wanted, and how far each has come."""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from ledger.database import Database, Transaction
from ledger.errors import Conflict, LedgerConflictError
from ledger.products import ProductRow, locked_product
from ledger.statements import statement
from sharding.outcomes import State
from sharding.placement import Layout, is_shard_count

OPEN_CHANGES_MAX = 1_000
"""Changes that are looked at together, those first that nothing has happened to for longest."""
UNMET_PINS_MAX = 100
GIVEN_UP_REST_S = 5
"""For so long after a change was given up the same one is not begun anew, however often it is wanted."""


class Cause(StrEnum):
    """Who wants a change."""

    OPERATOR = "operator"
    HOT = "hot"
    COLD = "cold"


class ChangeState(StrEnum):
    """How far a change has come."""

    WANTED = "wanted"
    ACTIVE = "active"
    """All shards sell in the new layout; those that left may still hold units."""
    DONE = "done"
    ROLLED_BACK = "rolled_back"


_BEFORE = {
    ChangeState.ACTIVE: ("wanted",),
    # A base that was restored may have forgotten a change that was active.
    ChangeState.ROLLED_BACK: ("wanted", "active"),
    ChangeState.DONE: ("active",),
}


class LayoutChange(NamedTuple):
    """One change; a roll back of it uses `version` + 1."""

    product_id: int
    version: int
    shards: int
    cause: Cause
    state: ChangeState


class OpenChange(NamedTuple):
    """A change that there is something left to do for, and whether its product is on sale."""

    change: LayoutChange
    status: State
    is_known: bool
    """The ledger has heard that it, or a later one, is in force, and not that it was rolled back."""


class Aim(NamedTuple):
    """The layout that a wish leads to."""

    version: int
    in_force: bool


class Layouts:
    """Decides on changes; every call is safe to repeat."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def want(self, product_id: int, shards: int, cause: Cause, *, partitions: int) -> Aim:
        """Have a product split into so many shards; a product that is not on sale stays as it is.

        An operator's count is remembered and used by the next load, too; 0 leaves the count to the
        demand from now on and changes nothing else. Other causes change no product that has a count of
        an operator. LedgerConflictError STATUS_CHANGING while it is loaded or closed, LAYOUT_CHANGING
        while it is on its way to another count, LIMIT_FIXES_SHARDS if it is on sale with a limit per
        user; UnknownProductError.
        """
        assert is_shard_count(shards, partitions) or (shards == 0 and cause is Cause.OPERATOR)

        async def run(transaction: Transaction) -> Aim:
            row = await locked_product(transaction, product_id)
            if cause is Cause.OPERATOR:
                _require_settled(row)
                await transaction.execute(statement("product_pin"), (shards, product_id))
            elif row.shards:
                return Aim((await _present(transaction, row)).version, in_force=True)
            return await _aim(transaction, row, shards, cause)

        return await self._database.transaction(run)

    async def want_pin(self, product_id: int) -> Aim:
        """Want once more what an operator wanted; the same errors as `want`."""

        async def run(transaction: Transaction) -> Aim:
            row = await locked_product(transaction, product_id)
            return await _aim(transaction, row, row.shards, Cause.OPERATOR)

        return await self._database.transaction(run)

    async def unmet_pins(self, *, pause_s: int) -> Sequence[int]:
        """Products on sale whose change to an operator's count was rolled back, that long ago."""

        async def run(transaction: Transaction) -> Sequence[int]:
            values = (pause_s, UNMET_PINS_MAX)
            rows = await transaction.rows(statement("layout_change_unmet"), values)
            return [product_id for (product_id,) in rows]

        return await self._database.transaction(run)

    async def open_changes(self) -> Sequence[OpenChange]:
        """Changes that are wanted or active."""

        async def run(transaction: Transaction) -> Sequence[OpenChange]:
            rows = await transaction.rows(statement("layout_change_open"), (OPEN_CHANGES_MAX,))
            return [
                OpenChange(_change(*row), State(status), bool(known))
                for *row, status, known in rows
            ]

        return await self._database.transaction(run)

    async def state(self, product_id: int, version: int) -> ChangeState | None:
        """How far a change has come; None: there is none of that version."""

        async def run(transaction: Transaction) -> ChangeState | None:
            found = await _found(transaction, "layout_change_get", product_id, version)
            return found.state if found else None

        return await self._database.transaction(run)

    async def mark(self, product_id: int, version: int, state: ChangeState) -> bool:
        """Note that a change has come so far; whether this call did it and not an earlier one."""
        values = (state.value, product_id, version, ",".join(_BEFORE[state]))

        async def run(transaction: Transaction) -> bool:
            return await transaction.execute(statement("layout_change_mark"), values) == 1

        return await self._database.transaction(run)

    async def recent_automatic(self, product_id: int, *, within_s: int) -> int:
        """Changes of that time that no operator asked for, but those that were rolled back."""

        async def run(transaction: Transaction) -> int:
            sql = statement("layout_change_automatic")
            row = await transaction.row(sql, (product_id, within_s))
            assert row is not None
            return int(row[0])

        return await self._database.transaction(run)


async def _aim(transaction: Transaction, row: ProductRow, shards: int, cause: Cause) -> Aim:
    """The change that leads to so many shards: one under way, a new one, or none that is needed."""
    last = await _found(transaction, "layout_change_last", row.product_id)
    is_under_way = last is not None and last.state is ChangeState.WANTED
    if last and is_under_way and shards == last.shards:
        return Aim(last.version, in_force=False)
    if is_under_way and shards:
        raise LedgerConflictError(
            Conflict.LAYOUT_CHANGING,
            f"product {row.product_id} is on its way to another shard count; call again",
        )
    present = await _present(transaction, row)
    if shards in (0, present.shards) or row.status is not State.OPEN:
        return Aim(present.version, in_force=True)
    given_up = await transaction.row(
        statement("layout_change_given_up"), (row.product_id, shards, GIVEN_UP_REST_S)
    )
    if given_up:
        return Aim(given_up[0], in_force=False)
    _require_no_limit(row)
    version = max(row.layout_version, last.version + 1 if last else 0) + 1
    values = (row.product_id, version, shards, cause.value)
    await transaction.execute(statement("layout_change_insert"), values)
    return Aim(version, in_force=False)


async def _present(transaction: Transaction, row: ProductRow) -> Layout:
    """The layout in force; its event may not have reached the product's row yet."""
    active = await _found(transaction, "layout_change_active", row.product_id)
    if active and active.version > row.layout_version:
        return Layout(active.version, active.shards)
    return Layout(row.layout_version, row.layout_shards)


async def _found(transaction: Transaction, name: str, *values: int) -> LayoutChange | None:
    row = await transaction.row(statement(name), values)
    return _change(*row) if row else None


def _change(product_id: int, version: int, shards: int, cause: str, state: str) -> LayoutChange:
    return LayoutChange(product_id, version, shards, Cause(cause), ChangeState(state))


def _require_no_limit(row: ProductRow) -> None:
    """What a user has of a product is counted where the user's home is: it must not move."""
    if row.max_per_user:
        raise LedgerConflictError(
            Conflict.LIMIT_FIXES_SHARDS,
            f"product {row.product_id} is on sale: "
            "a product with a limit per user changes its shard count while it is closed",
        )


def _require_settled(row: ProductRow) -> None:
    if row.status in (State.LOADING, State.CLOSING):
        raise LedgerConflictError(
            Conflict.STATUS_CHANGING,
            f"product {row.product_id} is {row.status.value}; call again once it is not any more",
        )
