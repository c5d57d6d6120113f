"""Differences between a shard and its row in the ledger: noticed with each batch, kept until gone."""

from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import NamedTuple

from ledger.batch import LedgerBatch, Repaired, ShardChange, ShardKey
from ledger.database import Row, Transaction
from ledger.errors import BatchRefusedError
from ledger.products import JournalKind, JournalType
from ledger.statements import statement
from sharding.events import Counts, EventId


class DriftEnd(StrEnum):
    """How a difference came to its end."""

    REPAIRED = "repaired"
    PASSED = "passed"
    """The shard agrees again, or was loaded anew."""


class KnownDrift(NamedTuple):
    """A shard's open row."""

    id: int
    units: Counts
    """Live less ledger."""
    damaged: str


class ShardRow(NamedTuple):
    """What the ledger has of a shard after a batch; `drift` as it was before."""

    counts: Counts
    drift: KnownDrift | None


class Drift(NamedTuple):
    """A shard that began to differ from the ledger, or differs in another way than before."""

    shard: ShardKey
    epoch: int
    first_event: EventId
    last_event: EventId
    units: Counts
    """Live less ledger."""
    damaged: str


def shard_row(row: Row) -> tuple[ShardKey, ShardRow]:
    """One row of shard_counts.sql."""
    product_id, partition, *rest = row
    counts, (drift_id, *units, damaged) = Counts(*rest[:4]), rest[4:]
    known = None if drift_id is None else KnownDrift(drift_id, Counts(*units), damaged)
    return ShardKey(product_id, partition), ShardRow(counts, known)


async def note_drifts(
    transaction: Transaction, batch: LedgerBatch, found: Mapping[ShardKey, ShardRow]
) -> list[Drift]:
    """Keep what differs, end what agrees again; returns what is news.

    Nothing is asked and nothing is written while every shard is as the ledger has it.
    BatchRefusedError for a shard that the ledger does not have.
    """
    for key in batch.shards.keys() - found.keys():
        detail = f"of product {key.product_id} in partition {key.partition}"
        raise BatchRefusedError("unknown_shard", detail)
    repaired = {each.repair.drift_id for each in batch.repairs}
    news = []
    for key, change in batch.shards.items():
        row = found[key]
        if not batch.moves:
            await _make_up(transaction, change, row)
            continue
        if row.counts == change.counts and row.drift is None and not change.damaged:
            continue
        drift = await _follow(transaction, key, change, row, repaired)
        if drift:
            news.append(drift)
    return news


async def note_repairs(transaction: Transaction, repairs: Collection[Repaired]) -> None:
    """Say in the journal what was compensated, why, and who wanted it."""
    for shard, event_id, repair, reason, available_after in repairs:
        values = (
            shard.product_id,
            f"repair {repair.drift_id}",
            JournalKind.REPAIR.value,
            JournalType.REPAIR.value,
            repair.ledger.available,
            shard.partition,
            *event_id,
            reason,
            repair.actor,
            available_after,
        )
        await transaction.execute(statement("journal_note"), values)


async def _make_up(transaction: Transaction, change: ShardChange, row: ShardRow) -> None:
    """Of an event that was set aside and is applied after all: what it says of the shard's counts is not
    of now, but the ledger has come nearer to them by what it did."""
    known = row.drift
    if known is None:
        return
    if change.reset:  # the difference was one of the load before
        await transaction.execute(statement("drift_end"), (DriftEnd.PASSED.value, known.id))
        return
    done = (change.available, change.held, change.sold, change.loaded)
    left = _less(known.units, done)
    if any(left) or known.damaged:
        changed = (*left, known.damaged, *change.last_event, known.id)
        await transaction.execute(statement("drift_change"), changed)
    else:
        await transaction.execute(statement("drift_end"), (DriftEnd.PASSED.value, known.id))


async def _follow(
    transaction: Transaction,
    key: ShardKey,
    change: ShardChange,
    row: ShardRow,
    repaired: Collection[int],
) -> Drift | None:
    """Bring a shard's open row about; None if there is nothing new to tell."""
    units = _less(change.counts, row.counts)
    differs = any(units) or bool(change.damaged)
    known = row.drift
    if known and (known.id in repaired or not differs):
        end = DriftEnd.REPAIRED if known.id in repaired else DriftEnd.PASSED
        await transaction.execute(statement("drift_end"), (end.value, known.id))
        known = None
    if not differs or (known and (known.units, known.damaged) == (units, change.damaged)):
        return None
    first_event = _first_event(change, row)
    drift = Drift(key, change.epoch, first_event, change.last_event, units, change.damaged)
    await _write(transaction, drift, known)
    return drift


def _first_event(change: ShardChange, row: ShardRow) -> EventId:
    """The shard had something else than the ledger before the batch, or parted from it within."""
    done = (change.available, change.held, change.sold, change.loaded)
    is_parted = not change.reset and _less(row.counts, done) != change.base
    if is_parted or (change.reset and any(change.base)):
        return change.first_event
    return change.parted if any(change.parted) else change.last_event


async def _write(transaction: Transaction, drift: Drift, known: KnownDrift | None) -> None:
    if known:
        changed = (*drift.units, drift.damaged, *drift.last_event, known.id)
        await transaction.execute(statement("drift_change"), changed)
        return
    values = (
        *drift.shard,
        drift.epoch,
        *drift.units,
        drift.damaged,
        *drift.first_event,
        *drift.last_event,
    )
    await transaction.execute(statement("drift_insert"), values)


def _less(counts: tuple[int, ...], others: tuple[int, ...]) -> Counts:
    return Counts(*(a - b for a, b in zip(counts, others, strict=True)))
