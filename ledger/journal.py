"""Applies merged events to the ledger: all of a batch in one transaction, or nothing of it."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import structlog

from ledger import literals
from ledger.batch import (
    ENDS,
    EffectKey,
    LedgerBatch,
    Move,
    NewLayout,
    ProductChange,
    SecondEffect,
    ShardChange,
    ShardKey,
    Undone,
)
from ledger.database import Database, Transaction
from ledger.drifts import Drift, ShardRow, note_drifts, note_repairs, shard_row
from ledger.errors import BatchRefusedError, CheckpointMovedError, DuplicateEffectsError
from ledger.failpoints import Failpoints
from ledger.metrics import LedgerMetrics
from ledger.outbox import REMARK_CHARS_MAX
from ledger.products import JournalKind, JournalType
from ledger.service_events import Notice, publish, stock_notices
from ledger.statements import UNION, placeholders, statement, with_rows
from ledger.values import in_pieces
from sharding.events import EventId

STATEMENT_BYTES_MAX = 4 << 20
"""Below a quarter of the smallest default of max_allowed_packet."""
LOOKUP_KEYS_MAX = 500
"""Longer IN lists are rewritten by MariaDB into joins that miss the index."""
UNION_ROWS_MAX = 500

log = structlog.get_logger()


class Findings(NamedTuple):
    """What a batch shows that should not be."""

    drifts: Sequence[Drift] = ()
    unasked: Sequence[Undone] = ()
    """Units that came back although the ledger knows of no second effect."""


class Journal:
    """Writes batches. Safe to use from several workers at once: the checkpoints decide."""

    def __init__(self, database: Database, metrics: LedgerMetrics, failpoints: Failpoints) -> None:
        self._database = database
        self._metrics = metrics
        self._failpoints = failpoints

    async def apply(self, batch: LedgerBatch) -> None:
        """Write a whole batch and move its checkpoints, exactly once however often it is called.

        CheckpointMovedError: another worker was faster. DuplicateEffectsError: see `existing`.
        BatchRefusedError: the ledger cannot hold what one of the events says. In these cases
        nothing was written. LedgerUnavailableError: it may have been; calling again decides it.
        """
        if not batch.moves:
            return

        async def run(transaction: Transaction) -> Findings:
            if await _is_applied(transaction, batch.moves):
                return Findings()
            return await write(transaction, batch, self._failpoints)

        with self._metrics.apply_seconds.time():
            found = await self._database.transaction(run)
        self._failpoints.hit("worker.after_commit")
        self._tell(batch, found)

    async def existing(self, batch: LedgerBatch) -> set[EffectKey]:
        """Which effects the journal has already that rule out one of the batch's."""

        async def run(transaction: Transaction) -> set[EffectKey]:
            return await rivals(transaction, batch)

        return await self._database.transaction(run)

    def _tell(self, batch: LedgerBatch, found: Findings) -> None:
        self._metrics.journal_rows.inc(batch.rows)
        for letter in batch.letters:
            self._metrics.dead_letters.labels(letter.reason_class).inc()
        self._metrics.second_effects.inc(len(batch.seconds))
        for drift in found.drifts:
            self._tell_drift(drift)
        for undone in found.unasked:
            self._tell_unasked(undone)

    def _tell_drift(self, drift: Drift) -> None:
        """Once per shard until the difference changes: the ledger remembers it."""
        self._metrics.drift.inc()
        log.error(
            "ledger and stream differ",
            product_id=drift.shard.product_id,
            partition=drift.shard.partition,
            event_id=str(drift.first_event),
            live_less_ledger=drift.units._asdict(),
            damaged=drift.damaged,
        )

    def _tell_unasked(self, undone: Undone) -> None:
        self._metrics.unasked_undos.inc()
        log.error(
            "units came back that no second effect had taken",
            product_id=undone.product_id,
            partition=undone.partition,
            event_id=str(undone.event_id),
            undone=str(undone.undone),
            request_id=undone.request_id,
        )


async def write(transaction: Transaction, batch: LedgerBatch, failpoints: Failpoints) -> Findings:
    """All that a batch says, and its checkpoints if it has any; whoever calls has locked them.

    DuplicateEffectsError, BatchRefusedError: the transaction must be rolled back.
    """
    await _require_products(transaction, batch)
    failpoints.hit("worker.before_insert")
    await _insert(transaction, batch)
    await _require_single_ends(transaction, batch)
    failpoints.hit("worker.after_insert")
    await _change_holds(transaction, batch)
    unasked = await _change_outbox(transaction, batch)
    await note_repairs(transaction, batch.repairs)
    drifts = await _change_shards(transaction, batch)
    notices = batch.notices + await _change_products(transaction, batch)
    moved = (literals.checkpoint_row(move).encode() for move in batch.moves)
    await _insert_rows(transaction, "checkpoint_move", moved)
    await publish(transaction, notices)
    failpoints.hit("worker.before_commit")
    return Findings(drifts, unasked)


async def rivals(transaction: Transaction, batch: LedgerBatch) -> set[EffectKey]:
    """Which effects the journal has that rule out one of the batch's."""
    return {
        EffectKey(product_id, request_id, kind)
        for (product_id, kind), ids in _rivals_by_product(batch).items()
        for request_id in await found_effects(transaction, product_id, kind, ids)
    }


async def _is_applied(transaction: Transaction, moves: list[Move]) -> bool:
    """Hold the checkpoints; whether all stand at the batch's end, as after a lost reply."""
    sql = placeholders("checkpoint_lock", len(moves))
    rows = await transaction.rows(sql, sorted(move.partition for move in moves))
    found = {partition: EventId(generation, number) for partition, generation, number in rows}
    if all(found.get(move.partition) == move.end.id for move in moves):
        return True
    moved = [move.partition for move in moves if found.get(move.partition) != move.start]
    if moved:
        raise CheckpointMovedError(moved)
    return False


async def _require_products(transaction: Transaction, batch: LedgerBatch) -> None:
    wanted = batch.product_ids
    found: set[int] = set()
    for start in range(0, len(wanted), LOOKUP_KEYS_MAX):
        piece = wanted[start : start + LOOKUP_KEYS_MAX]
        rows = await transaction.rows(placeholders("product_exists", len(piece)), piece)
        found |= {product_id for (product_id,) in rows}
    if unknown := set(wanted) - found:
        raise BatchRefusedError("unknown_product", ", ".join(map(str, sorted(unknown))))


async def _insert(transaction: Transaction, batch: LedgerBatch) -> None:
    rows = (row.encode() for effects in batch.effects for row in literals.journal_rows(effects))
    await _insert_rows(transaction, "journal_insert", rows)
    raw = (literals.raw_row(partition, entry) for partition, entry in batch.raw)
    await _insert_rows(transaction, "raw_event_insert", raw)
    letters = (literals.letter_row(letter) for letter in batch.letters)
    await _insert_rows(transaction, "dead_letter_insert", letters)
    refusals = (literals.refusal_row(refusal) for refusal in sorted(batch.refusals))
    await _insert_rows(transaction, "tombstone_keep", refusals)


async def _require_single_ends(transaction: Transaction, batch: LedgerBatch) -> None:
    """Refuse a batch after which a hold would have been both sold and given back.

    The unique key cannot tell: the two are of different kinds. The rows of the batch are in by now, so a
    pair within it is found, too.
    """
    ids: dict[tuple[int, JournalKind], list[str]] = {}
    for effects in batch.effects:
        if effects.kind in ENDS:
            of_product = ids.setdefault((effects.product_id, effects.kind), [])
            of_product.extend(sale.request_id for sale in effects.sales)
    for (product_id, kind), ended in ids.items():
        (other,) = set(ENDS) - {kind}
        if twice := await found_effects(transaction, product_id, other.value, ended):
            raise DuplicateEffectsError(f"{twice[0]} of product {product_id} ended both ways")


async def _change_holds(transaction: Transaction, batch: LedgerBatch) -> None:
    """What was freed goes first: its request may hold units anew."""
    freed = [literals.hold_end_row(key) for key in batch.freed]
    for start in range(0, len(freed), UNION_ROWS_MAX):
        piece = freed[start : start + UNION_ROWS_MAX]
        await transaction.bulk(with_rows("hold_end", piece, UNION))
    held = (literals.hold_row(*held) for held in batch.held.items())
    await _insert_rows(transaction, "hold_insert", held)
    decisions = [literals.decision_row(*decided) for decided in batch.decisions.items()]
    for start in range(0, len(decisions), UNION_ROWS_MAX):
        piece = decisions[start : start + UNION_ROWS_MAX]
        await transaction.bulk(with_rows("hold_decision", piece, UNION))


async def _change_outbox(transaction: Transaction, batch: LedgerBatch) -> list[Undone]:
    """Note what is to be done and what has been; returns what nobody had asked for."""
    rows = [literals.undo_row(second) for second in batch.seconds]
    await _insert_rows(transaction, "outbox_insert", (row.encode() for row in rows))
    for second in batch.seconds:
        await _mark_first(transaction, second)
    ended = [literals.transfer_end_row(*each) for each in sorted(batch.ended.items())]
    for start in range(0, len(ended), UNION_ROWS_MAX):
        piece = ended[start : start + UNION_ROWS_MAX]
        await transaction.bulk(with_rows("transfer_end", piece, UNION))
    opened = (literals.transfer_row(*each) for each in sorted(batch.opened.items()))
    await _insert_rows(transaction, "transfer_open", opened)
    notes = (literals.transfer_note_row(*note) for note in sorted(batch.transfers.items()))
    await _insert_rows(transaction, "transfer_note", notes)
    for undone in batch.undone:
        await _note_return(transaction, undone)
    return [undone for undone in batch.undone if not await _end_undo(transaction, undone)]


async def _mark_first(transaction: Transaction, second: SecondEffect) -> None:
    """Say beside a request's first effect that there was another one."""
    remark = f"second effect p{second.partition:02d} {second.event_id} goes back"
    kept = REMARK_CHARS_MAX - len(f"; {remark}")
    values = (kept, remark, second.product_id, second.request_id)
    await transaction.execute(statement("journal_remark"), values)


async def _note_return(transaction: Transaction, undone: Undone) -> None:
    """The row that answers the mark beside the first effect; it has the second effect's event."""
    values = (
        *(undone.product_id, undone.request_id),
        *(JournalKind.ROLLBACK.value, JournalType.ROLLBACK.value),
        *(undone.quantity, undone.available_after),
        *(undone.partition, *undone.undone),
        *(undone.remark[:REMARK_CHARS_MAX], undone.actor, undone.at_ms),
        *(undone.product_id, undone.request_id, REMARK_CHARS_MAX),
    )
    await transaction.execute(statement("journal_rollback"), values)


async def _end_undo(transaction: Transaction, undone: Undone) -> bool:
    """Whether there was something to end."""
    remark = f"returned by event {undone.event_id}"
    where = (undone.product_id, undone.partition, *undone.undone)
    values = (remark, *where, undone.request_id)
    return await transaction.execute(statement("undo_end"), values) > 0


async def _insert_rows(transaction: Transaction, name: str, rows: Iterable[bytes]) -> None:
    for piece in in_pieces(rows, STATEMENT_BYTES_MAX):
        await transaction.bulk(with_rows(name, piece))


async def _change_shards(transaction: Transaction, batch: LedgerBatch) -> list[Drift]:
    shards = sorted(batch.shards.items())
    reset = [literals.shard_reset_row(*shard).encode() for shard in shards if shard[1].reset]
    await _insert_rows(transaction, "shard_reset", reset)
    found: dict[ShardKey, ShardRow] = {}
    for start in range(0, len(shards), UNION_ROWS_MAX):
        piece = shards[start : start + UNION_ROWS_MAX]
        rows = [literals.shard_change_row(*shard).encode() for shard in piece]
        await transaction.bulk(with_rows("shard_add", rows, UNION))
        found |= await _read_shards(transaction, piece)
    return await note_drifts(transaction, batch, found)


async def _read_shards(
    transaction: Transaction, shards: list[tuple[ShardKey, ShardChange]]
) -> dict[ShardKey, ShardRow]:
    keys = [key for key, _ in shards]
    sql = placeholders("shard_counts", len(keys)).replace("%s", "(%s, %s)")
    return dict(map(shard_row, await transaction.rows(sql, list(chain.from_iterable(keys)))))


async def _change_products(transaction: Transaction, batch: LedgerBatch) -> list[Notice]:
    """Late: a hot product's row is held by everybody's transactions in turn.

    Returns what callers are to be told of the products' units.
    """
    notices: list[Notice] = []
    for product_id, layout in sorted(batch.layouts.items()):
        await _change_layout(transaction, product_id, layout)
    products = sorted(batch.products.items())
    for start in range(0, len(products), UNION_ROWS_MAX):
        piece = products[start : start + UNION_ROWS_MAX]
        rows = [literals.product_change_row(*product).encode() for product in piece]
        changed = await transaction.bulk(with_rows("product_add", rows, UNION))
        assert changed == len(piece)  # their rows were found above and are never deleted
        notices += await _stock_notices(transaction, dict(piece))
    return notices


async def _stock_notices(
    transaction: Transaction, changes: Mapping[int, ProductChange]
) -> list[Notice]:
    """The rows are ours until the commit, so what they had before is known."""
    changed = [product_id for product_id, change in changes.items() if change.available]
    if not changed:
        return []
    sql = placeholders("product_available", len(changed))
    return [
        notice
        for product_id, after, low_stock in await transaction.rows(sql, changed)
        for notice in stock_notices(
            product_id,
            before=after - changes[product_id].available,
            after=after,
            low_stock=low_stock,
        )
    ]


async def _change_layout(transaction: Transaction, product_id: int, layout: NewLayout) -> None:
    """The layout is the product's unless the product has a later one."""
    values = (layout.version, layout.shards, layout.former_shards, product_id, layout.version)
    await transaction.execute(statement("product_layout"), values)


def _rivals_by_product(batch: LedgerBatch) -> dict[tuple[int, str], list[str]]:
    """Requests of each product and kind whose effect would rule out one of the batch's."""
    ids: dict[tuple[int, str], list[str]] = {}
    for effects in batch.effects:
        for kind in effects.rivals:
            of_product = ids.setdefault((effects.product_id, kind.value), [])
            of_product.extend(sale.request_id for sale in effects.sales)
    return ids


async def found_effects(
    transaction: Transaction, product_id: int, kind: str, ids: Sequence[str]
) -> list[str]:
    """Those of a product's requests of which the journal has an effect of this kind."""
    found: list[str] = []
    for start in range(0, len(ids), LOOKUP_KEYS_MAX):
        piece = ids[start : start + LOOKUP_KEYS_MAX]
        sql = placeholders("journal_existing", len(piece))
        found += [row[0] for row in await transaction.rows(sql, (product_id, kind, *piece))]
    return found
