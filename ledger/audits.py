"""What an audit reads from the ledger: a product's balance and the shards that differ, at one moment."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

from ledger.database import Database, Row, Transaction
from ledger.errors import Conflict, LedgerConflictError, UnknownProductError
from ledger.statements import statement
from sharding.events import Counts, EventId
from sharding.outcomes import State

DRIFTS_MAX = 1_000


class Side(StrEnum):
    """Which half of a shard a repair changes."""

    LIVE = "live"
    LEDGER = "ledger"


@dataclass(frozen=True, slots=True)
class DriftRow:
    """A shard that differs from the ledger."""

    id: int
    product_id: int
    partition: int
    epoch: int
    units: Counts
    """Live less ledger."""
    damaged: str
    """Live counts that no script has written, with spaces between their names; they count as none."""
    first_event: EventId
    changes: int
    """How often the difference has changed since it was noticed."""
    noticed_ms: int
    """Milliseconds since 1970 UTC."""

    @property
    def side(self) -> Side:
        """The ledger follows where operations that it does not have explain the live counts: then what
        is there fits what came in. Otherwise units have appeared or vanished in the live stock."""
        available, held, sold, loaded = self.units
        is_explained = not self.damaged and available + held + sold == loaded
        return Side.LEDGER if is_explained else Side.LIVE


@dataclass(frozen=True, slots=True)
class Units:
    """Where a product's units are: loaded + restocked - removed is the sum of the others."""

    loaded: int
    """Units that it was created with, those of repairs included."""
    restocked: int
    removed: int
    available: int
    held: int
    in_transit: int
    buffer: int
    sold: int

    @property
    def difference(self) -> int:
        """Units that vanished; below zero: that came from nowhere."""
        came_in = self.loaded + self.restocked - self.removed
        there = self.available + self.held + self.in_transit + self.buffer + self.sold
        return came_in - there

    def plus(self, counts: Counts) -> "Units":
        """The same with a shard's difference."""
        return replace(
            self,
            loaded=self.loaded + counts.loaded,
            available=self.available + counts.available,
            held=self.held + counts.held,
            sold=self.sold + counts.sold,
        )


@dataclass(frozen=True, slots=True)
class AuditReading:
    """One product at one moment of the ledger."""

    product_id: int
    status: State
    epoch: int
    shards: int
    """Shards of this epoch that the ledger has."""
    ledger: Units
    drifts: Sequence[DriftRow]
    read_ms: int

    @property
    def live(self) -> Units:
        """What the shards have where the ledger has what it has: each differs by just its drift."""
        units = self.ledger
        for drift in self.drifts:
            units = units.plus(drift.units)
        return units

    @property
    def balanced(self) -> bool:
        """Not where more units have arrived at shards than left others: they are at two places."""
        is_sound = self.ledger.in_transit >= 0 or self.status is not State.OPEN
        return is_sound and not (self.drifts or self.ledger.difference or self.live.difference)


class Audits:
    """Reads balances and differences; `Journal.apply` alone notes and ends differences."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def read(self, product_id: int) -> AuditReading:
        """One product, all of it in one statement and so of one moment. UnknownProductError.

        Goes through the product's part of the journal's index.
        """

        async def run(transaction: Transaction) -> list[Row]:
            return await transaction.rows(statement("audit_read"), (product_id,) * 3)

        rows = await self._database.transaction(run)
        if not rows:
            raise UnknownProductError(product_id)
        return _reading(product_id, rows)

    async def open_drifts(self) -> Sequence[DriftRow]:
        """Shards that differ just now, the oldest difference first, at most DRIFTS_MAX."""

        async def run(transaction: Transaction) -> Sequence[DriftRow]:
            return [
                _drift(row)
                for row in await transaction.rows(statement("drift_open"), (DRIFTS_MAX,))
            ]

        return await self._database.transaction(run)

    async def confirm(self, drift: DriftRow) -> bool:
        """Whether a difference is still as it was read.

        LedgerConflictError DEAD_LETTERS_OPEN while events of the shard are set aside that may explain
        it: retried after a repair, they would count twice.
        """

        async def run(transaction: Transaction) -> bool:
            shard = (drift.partition, drift.product_id)
            letter = await transaction.row(statement("dead_letter_missed"), shard)
            if letter is not None:
                text = f"dead letter {letter[0]} of product {drift.product_id} is open: "
                text += "retry or discard it first"
                raise LedgerConflictError(Conflict.DEAD_LETTERS_OPEN, text)
            row = await transaction.row(statement("drift_get"), (drift.id,))
            return row is not None and Counts(*row) == drift.units

        return await self._database.transaction(run)

    async def report(self, scope: str, *, differences: int, report: Mapping[str, object]) -> None:
        """Keep what audits found."""
        text = json.dumps(report, sort_keys=True)

        async def run(transaction: Transaction) -> None:
            values = (scope, 0, differences, text)
            await transaction.execute(statement("audit_report_insert"), values)

        await self._database.transaction(run)


class _Of(NamedTuple):
    """The columns of audit_read.sql before those of a drift."""

    status: str
    epoch: int
    total: int
    available: int
    held: int
    buffer: int
    sold: int
    sold_before: int
    restocked: int
    removed: int
    shards: int | None
    live_available: int | None
    live_held: int | None
    in_transit: int | None
    live_sold: int | None
    read_ms: int


def _reading(product_id: int, rows: Sequence[Row]) -> AuditReading:
    width = len(_Of._fields)
    found = _Of(*rows[0][:width])
    status = State(found.status)
    is_closed = status is State.CLOSED
    drifts = () if is_closed else tuple(_drift(row[width:]) for row in rows if row[width])
    return AuditReading(
        product_id=product_id,
        status=status,
        epoch=found.epoch,
        shards=0 if is_closed else found.shards or 0,
        ledger=_by_shards(found) if status is State.OPEN and found.shards else _by_product(found),
        drifts=drifts,
        read_ms=int(found.read_ms),
    )


def _by_shards(found: _Of) -> Units:
    """The total is the product's, what there is of it is added up from the shards: they must agree."""
    return Units(
        loaded=int(found.total - found.restocked + found.removed),
        restocked=int(found.restocked),
        removed=int(found.removed),
        available=int(found.live_available or 0),
        held=int(found.live_held or 0),
        in_transit=int(found.in_transit or 0),
        buffer=found.buffer,
        sold=int(found.sold_before + (found.live_sold or 0)),
    )


def _by_product(found: _Of) -> Units:
    """Of a product that is not on sale: shards give their units back one by one."""
    in_transit = 0 if found.status == State.CLOSED else int(found.in_transit or 0)
    return Units(
        loaded=int(found.total - found.restocked + found.removed),
        restocked=int(found.restocked),
        removed=int(found.removed),
        available=found.available - in_transit,
        held=found.held,
        in_transit=in_transit,
        buffer=found.buffer,
        sold=found.sold,
    )


def _drift(row: Row) -> DriftRow:
    id_, product_id, partition, epoch, *rest = row
    counts, (damaged, generation, number, changes, noticed_ms) = Counts(*rest[:4]), rest[4:]
    return DriftRow(
        id=id_,
        product_id=product_id,
        partition=partition,
        epoch=epoch,
        units=counts,
        damaged=damaged,
        first_event=EventId(generation, number),
        changes=changes,
        noticed_ms=int(noticed_ms),
    )
