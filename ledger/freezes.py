"""Decisions to stop or to resume products' sales: here they are made, the live stock follows."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from ledger.database import Database, Row, Transaction
from ledger.products import JournalKind, JournalType, ProductRow, locked_product
from ledger.service_events import Notice, ServiceEventKind, publish
from ledger.statements import placeholders, statement
from sharding.outcomes import State
from sharding.plans import Freeze

BREAKER = "breaker"
"""The actor of decisions that no operator has made."""
DEFICITS_MAX = 100


class Verdict(StrEnum):
    """What a piece of evidence came to."""

    TRIPPED = "tripped"
    KNOWN = "known"
    """It was presented before, or while the product was frozen already."""
    NOT_ON_SALE = "not_on_sale"
    """The product is not open, or not in the epoch that is meant."""


class Deficit(NamedTuple):
    """Units that a product lacks, and the load that they lack of."""

    units: int
    epoch: int


class Decision(NamedTuple):
    """What was decided last of one product."""

    product_id: int
    freeze: Freeze
    by: str
    """Who has stopped the sale; empty where it goes on."""


class Freezes:
    """Every decision is a row of the journal and raises the product's version."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def freeze(self, product_id: int, *, reason: str, actor: str) -> Freeze:
        """Stop a product's sale; one that is frozen stays so for the reason that it has.

        UnknownProductError. Safe to repeat.
        """

        async def run(transaction: Transaction) -> Freeze:
            row = await locked_product(transaction, product_id)
            if row.frozen_reason:
                return row.freeze
            version = row.freeze_version + 1
            await _note(transaction, row, JournalKind.FREEZE, f"freeze {version}", reason, actor)
            return await _stop(transaction, row, reason, actor)

        return await self._database.transaction(run)

    async def unfreeze(self, product_id: int, *, reason: str, actor: str) -> Freeze:
        """Resume a product's sale, whoever has stopped it. UnknownProductError. Safe to repeat."""

        async def run(transaction: Transaction) -> Freeze:
            row = await locked_product(transaction, product_id)
            if not row.frozen_reason:
                return row.freeze
            freeze = Freeze(row.freeze_version + 1, frozen=False)
            request_id = f"unfreeze {freeze.version}"
            await _note(transaction, row, JournalKind.UNFREEZE, request_id, reason, actor)
            await transaction.execute(statement("product_freeze"), ("", "", product_id))
            return freeze

        return await self._database.transaction(run)

    async def trip(
        self, product_id: int, *, evidence: str, reason: str, epoch: int | None = None
    ) -> tuple[Verdict, Freeze]:
        """Stop a product's sale because of a piece of evidence, once for each.

        `evidence` names it for good, in at most 56 characters. What comes up while a product is frozen
        counts as known by whoever resumes the sale. UnknownProductError.
        """

        async def run(transaction: Transaction) -> tuple[Verdict, Freeze]:
            row = await locked_product(transaction, product_id)
            if row.status is not State.OPEN or epoch not in (None, row.epoch):
                return Verdict.NOT_ON_SALE, row.freeze
            if await _is_known(transaction, product_id, evidence):
                return Verdict.KNOWN, row.freeze
            await _note(transaction, row, JournalKind.FREEZE, f"freeze {evidence}", reason, BREAKER)
            if row.frozen_reason:
                return Verdict.KNOWN, row.freeze
            return Verdict.TRIPPED, await _stop(transaction, row, reason, BREAKER)

        return await self._database.transaction(run)

    async def page(self, *, after: int, limit: int) -> Sequence[Decision]:
        """The last decision of each product that has one and is not closed, by product."""

        async def run(transaction: Transaction) -> Sequence[Decision]:
            rows = await transaction.rows(statement("freeze_page"), (after, limit))
            return [_decision(row) for row in rows]

        return await self._database.transaction(run)

    async def at(self, partition: int) -> Mapping[int, Freeze]:
        """The last decision, by product, of those that have a shard in a partition."""

        async def run(transaction: Transaction) -> Mapping[int, Freeze]:
            rows = await transaction.rows(statement("freeze_at"), (partition,))
            return {each: Freeze(version, frozen=bool(is_on)) for each, version, is_on in rows}

        return await self._database.transaction(run)

    async def refused_letters(self, *, after: int) -> Mapping[int, int]:
        """The latest event, by product, that a bound on counts kept out of the ledger and nobody has
        dealt with: ids of dead letters greater than `after`."""

        async def run(transaction: Transaction) -> Mapping[int, int]:
            rows = await transaction.rows(statement("evidence_letters"), (after,))
            return {product_id: int(letter) for product_id, letter in rows}

        return await self._database.transaction(run)

    async def deficits(self) -> Mapping[int, Deficit]:
        """Units, by product, that are sold and held beyond all that came in, as far as events have been
        applied: streams are applied at different paces, so it may pass."""

        async def run(transaction: Transaction) -> Mapping[int, Deficit]:
            rows = await transaction.rows(statement("evidence_deficits"), (DEFICITS_MAX,))
            return {product_id: Deficit(int(units), epoch) for product_id, units, epoch in rows}

        return await self._database.transaction(run)


async def _stop(transaction: Transaction, row: ProductRow, reason: str, actor: str) -> Freeze:
    await transaction.execute(statement("product_freeze"), (reason, actor, row.product_id))
    notice = Notice(ServiceEventKind.FROZEN, row.product_id, available=row.available_stock)
    await publish(transaction, [notice])
    return Freeze(row.freeze_version + 1, frozen=True)


async def _note(
    transaction: Transaction,
    row: ProductRow,
    kind: JournalKind,
    request_id: str,
    reason: str,
    actor: str,
) -> None:
    type_ = JournalType[kind.name].value
    values = (
        row.product_id,
        request_id,
        kind.value,
        type_,
        0,
        None,
        0,
        0,
        reason,
        actor,
        row.available_stock,
    )
    await transaction.execute(statement("journal_note"), values)


async def _is_known(transaction: Transaction, product_id: int, evidence: str) -> bool:
    sql = placeholders("journal_existing", 1)
    values = (product_id, JournalKind.FREEZE.value, f"freeze {evidence}")
    return await transaction.row(sql, values) is not None


def _decision(row: Row) -> Decision:
    product_id, version, is_frozen, by = row
    return Decision(product_id, Freeze(version, frozen=bool(is_frozen)), by)
