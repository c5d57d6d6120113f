"""Applies merged events to the ledger: all of a batch in one transaction, or nothing of it."""

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import NamedTuple

import structlog

from ledger import literals
from ledger.batch import EffectKey, LedgerBatch, Move, ShardChange, ShardKey
from ledger.database import Database, Transaction
from ledger.errors import BatchRefusedError, CheckpointMovedError
from ledger.failpoints import Failpoints
from ledger.metrics import LedgerMetrics
from ledger.statements import UNION, placeholders, with_rows
from sharding.events import Counts, EventId

STATEMENT_BYTES_MAX = 4 << 20
"""Below a quarter of the smallest default of max_allowed_packet."""
LOOKUP_KEYS_MAX = 500
"""Longer IN lists are rewritten by MariaDB into joins that miss the index."""
UNION_ROWS_MAX = 500

log = structlog.get_logger()


class Drift(NamedTuple):
    """A shard whose counts in the ledger differ from what it said itself after an event."""

    shard: ShardKey
    event_id: EventId
    ledger: Counts
    stream: Counts


class Journal:
    """Writes batches. Safe to use from several workers at once: the checkpoints decide."""

    def __init__(self, database: Database, metrics: LedgerMetrics, failpoints: Failpoints) -> None:
        self._database = database
        self._metrics = metrics
        self._failpoints = failpoints
        self._drifting: dict[ShardKey, tuple[int, ...]] = {}

    async def apply(self, batch: LedgerBatch) -> None:
        """Write a whole batch and move its checkpoints, exactly once however often it is called.

        CheckpointMovedError: another worker was faster. DuplicateEffectsError: see `existing`.
        BatchRefusedError: the ledger cannot hold what one of the events says. In these cases
        nothing was written. LedgerUnavailableError: it may have been; calling again decides it.
        """
        if not batch.moves:
            return

        async def run(transaction: Transaction) -> list[Drift]:
            if await _is_applied(transaction, batch.moves):
                return []
            await _require_products(transaction, batch)
            self._failpoints.hit("worker.before_insert")
            await _insert(transaction, batch)
            self._failpoints.hit("worker.after_insert")
            drifts = await _change_shards(transaction, batch)
            await _change_products(transaction, batch)
            moved = [literals.checkpoint_row(move).encode() for move in batch.moves]
            await transaction.bulk(with_rows("checkpoint_move", moved))
            self._failpoints.hit("worker.before_commit")
            return drifts

        with self._metrics.apply_seconds.time():
            drifts = await self._database.transaction(run)
        self._failpoints.hit("worker.after_commit")
        self._tell(batch, drifts)

    async def existing(self, batch: LedgerBatch) -> set[EffectKey]:
        """Which of the batch's effects the journal has already."""

        async def run(transaction: Transaction) -> set[EffectKey]:
            return {
                EffectKey(product_id, request_id, kind)
                for (product_id, kind), ids in _ids_by_product(batch).items()
                for start in range(0, len(ids), LOOKUP_KEYS_MAX)
                for request_id in await _found(
                    transaction, product_id, kind, ids[start : start + LOOKUP_KEYS_MAX]
                )
            }

        return await self._database.transaction(run)

    def _tell(self, batch: LedgerBatch, drifts: list[Drift]) -> None:
        self._metrics.journal_rows.inc(batch.rows)
        for letter in batch.letters:
            self._metrics.dead_letters.labels(letter.reason_class).inc()
        differing = {drift.shard for drift in drifts}
        for shard in batch.shards.keys() - differing:
            self._drifting.pop(shard, None)
        for drift in drifts:
            self._tell_drift(drift)

    def _tell_drift(self, drift: Drift) -> None:
        """Once per shard until the difference changes."""
        difference = tuple(a - b for a, b in zip(drift.ledger, drift.stream, strict=True))
        if self._drifting.get(drift.shard) == difference:
            return
        self._drifting[drift.shard] = difference
        self._metrics.drift.inc()
        log.error(
            "ledger and stream differ",
            product_id=drift.shard.product_id,
            partition=drift.shard.partition,
            event_id=str(drift.event_id),
            ledger=drift.ledger._asdict(),
            stream=drift.stream._asdict(),
        )


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


async def _insert_rows(transaction: Transaction, name: str, rows: Iterable[bytes]) -> None:
    for piece in literals.in_pieces(rows, STATEMENT_BYTES_MAX):
        await transaction.bulk(with_rows(name, piece))


async def _change_shards(transaction: Transaction, batch: LedgerBatch) -> list[Drift]:
    shards = sorted(batch.shards.items())
    reset = [literals.shard_reset_row(*shard).encode() for shard in shards if shard[1].reset]
    await _insert_rows(transaction, "shard_reset", reset)
    found: dict[ShardKey, Counts] = {}
    for start in range(0, len(shards), UNION_ROWS_MAX):
        piece = shards[start : start + UNION_ROWS_MAX]
        rows = [literals.shard_change_row(*shard).encode() for shard in piece]
        await transaction.bulk(with_rows("shard_add", rows, UNION))
        found |= await _read_shards(transaction, piece)
    return _drifts(batch.shards, found)


async def _read_shards(
    transaction: Transaction, shards: list[tuple[ShardKey, ShardChange]]
) -> dict[ShardKey, Counts]:
    keys = [key for key, _ in shards]
    sql = placeholders("shard_counts", len(keys)).replace("%s", "(%s, %s)")
    rows = await transaction.rows(sql, list(chain.from_iterable(keys)))
    return {ShardKey(product, partition): Counts(*counts) for product, partition, *counts in rows}


def _drifts(
    expected: Mapping[ShardKey, ShardChange], found: Mapping[ShardKey, Counts]
) -> list[Drift]:
    for key in expected.keys() - found.keys():
        detail = f"of product {key.product_id} in partition {key.partition}"
        raise BatchRefusedError("unknown_shard", detail)
    return [
        Drift(key, change.last_event, found[key], change.counts)
        for key, change in expected.items()
        if found[key] != change.counts
    ]


async def _change_products(transaction: Transaction, batch: LedgerBatch) -> None:
    """Last of all: a hot product's row is held by everybody's transactions in turn."""
    products = sorted(batch.products.items())
    for start in range(0, len(products), UNION_ROWS_MAX):
        piece = products[start : start + UNION_ROWS_MAX]
        rows = [literals.product_change_row(*product).encode() for product in piece]
        changed = await transaction.bulk(with_rows("product_add", rows, UNION))
        assert changed == len(piece)  # their rows were found above and are never deleted


def _ids_by_product(batch: LedgerBatch) -> dict[tuple[int, str], list[str]]:
    ids: dict[tuple[int, str], list[str]] = {}
    for effects in batch.effects:
        of_product = ids.setdefault((effects.product_id, effects.kind.value), [])
        of_product.extend(sale.request_id for sale in effects.sales)
    return ids


async def _found(transaction: Transaction, product_id: int, kind: str, ids: list[str]) -> list[str]:
    sql = placeholders("journal_existing", len(ids))
    return [row[0] for row in await transaction.rows(sql, (product_id, kind, *ids))]
