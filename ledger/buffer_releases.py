"""Units that the ledger keeps back while a product is on sale, and how they come into the shards.

The ledger decides: one transaction takes units out of the buffer and leaves the worker an errand. What
the errand brings is not that release's own units but all that were released since the product was
loaded, less what has come: so it can be repeated for ever, and the next one brings what a failover lost.
"""

from collections.abc import Sequence
from typing import NamedTuple

from ledger import literals
from ledger.database import Database, Transaction
from ledger.errors import Conflict, LedgerConflictError, UnknownProductError
from ledger.products import (
    JournalKind,
    JournalType,
    ProductRow,
    locked_product,
    require_status,
    tell_of_units,
)
from ledger.statements import statement, with_rows
from sharding.outcomes import State
from sharding.placement import base_partition


class Release(NamedTuple):
    """Units to bring on sale, once per request id; 0: all of the buffer."""

    product_id: int
    request_id: str
    quantity: int
    reason: str
    actor: str


class Released(NamedTuple):
    """Units that a release took out of the buffer, by this call or before."""

    quantity: int
    replayed: bool


class Progress(NamedTuple):
    """Units that left a product's buffer since its last load."""

    epoch: int
    units: int


class Rule(NamedTuple):
    """A product on sale whose buffer is to be released once its shards have fewer than `below` units."""

    product_id: int
    epoch: int
    below: int


class Buffers:
    """Releases buffers; every change is safe to repeat."""

    def __init__(self, database: Database, *, partitions: int) -> None:
        self._database = database
        self._partitions = partitions

    async def release(self, wanted: Release, *, epoch: int | None = None) -> Released:
        """Take units out of the buffer for the shards; the worker brings them there.

        LedgerConflictError REQUEST_MISMATCH (the id was used with another kind or quantity), NOT_OPEN,
        INSUFFICIENT_STOCK, OTHER_EPOCH if one is given and it is over; UnknownProductError.
        """

        async def run(transaction: Transaction) -> Released:
            row = await locked_product(transaction, wanted.product_id, epoch=epoch)
            if earlier := await _earlier(transaction, wanted):
                return earlier
            require_status(row, State.OPEN, Conflict.NOT_OPEN)
            units = wanted.quantity or row.buffer_stock
            _require_buffer(row, units)
            await self._release(transaction, row, wanted, units)
            return Released(units, replayed=False)

        return await self._database.transaction(run)

    async def progress(self, product_id: int) -> Progress:
        """How much left the buffer since the last load; UnknownProductError."""

        async def run(transaction: Transaction) -> Progress:
            row = await transaction.row(statement("buffer_released"), (product_id,))
            if row is None:
                raise UnknownProductError(product_id)
            return Progress(*row)

        return await self._database.transaction(run)

    async def rules(self, *, after: int, limit: int) -> Sequence[Rule]:
        """Products with greater ids than `after` that have a rule and a buffer, by id."""

        async def run(transaction: Transaction) -> Sequence[Rule]:
            rows = await transaction.rows(statement("buffer_rules"), (after, limit))
            return [Rule(*row) for row in rows]

        return await self._database.transaction(run)

    async def _release(
        self, transaction: Transaction, row: ProductRow, wanted: Release, units: int
    ) -> None:
        values = (
            row.product_id,
            wanted.request_id,
            JournalKind.BUFFER.value,
            JournalType.BUFFER.value,
            units,
            wanted.reason,
            wanted.actor,
            row.available_stock + units,
        )
        await transaction.execute(statement("buffer_insert"), values)
        base = base_partition(row.product_id, self._partitions)
        errand = literals.buffer_row(row.product_id, base, row.epoch, wanted.request_id, units)
        await transaction.bulk(with_rows("outbox_insert", [errand.encode()]))
        changed = (units, units, units, row.product_id)
        await transaction.execute(statement("buffer_release"), changed)
        await tell_of_units(transaction, row, units)


async def _earlier(transaction: Transaction, wanted: Release) -> Released | None:
    """What the id stands for already; a repeat that asks for all of the buffer means whatever it was."""
    found = await transaction.row(statement("buffer_find"), (wanted.product_id, wanted.request_id))
    if found is None:
        return None
    kind, quantity = JournalKind(found[0]), int(found[1])
    if kind is not JournalKind.BUFFER or wanted.quantity not in (0, quantity):
        text = f"request {wanted.request_id} was {kind.value} of {abs(quantity)} units"
        raise LedgerConflictError(Conflict.REQUEST_MISMATCH, text)
    return Released(quantity, replayed=True)


def _require_buffer(row: ProductRow, units: int) -> None:
    if not 0 < units <= row.buffer_stock:
        wanted = f", not {units}" if units else ""
        text = f"the buffer of product {row.product_id} has {row.buffer_stock} units{wanted}"
        raise LedgerConflictError(Conflict.INSUFFICIENT_STOCK, text)
