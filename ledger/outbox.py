"""Work on the live stock that the ledger knows of and that must come to its end, whoever does it."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from ledger.database import Database, Row, Transaction
from ledger.statements import placeholders, statement
from sharding.events import EventId

REMARK_CHARS_MAX = 200
RETURNED = "returned"
"""The remark of an undo that was carried out and of which no event has told yet."""


class OutboxKind(StrEnum):
    """What is to be done."""

    UNDO = "undo"
    """The units of a request's second effect go back to their shard."""
    TRANSFER = "transfer"
    """Units that left a shard for another one arrive there; those that a loss left at both leave it."""
    BUFFER = "buffer"
    """Units that left the buffer arrive at the product's first shard."""
    MEND = "mend"
    """A shard that was restored gets what no event will bring: load, layout, the buffer's units."""


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """One piece of work. Fields that its kind does not have are 0, -1 or empty."""

    id: int
    product_id: int
    partition: int
    """Of the second effect; of the shard that the units left; of the one that they are for."""
    epoch: int
    event_id: EventId
    """What had the second effect, or opened the shard."""
    request_id: str
    peer: int
    """The partition that the units are for."""
    transfer: int
    """Units that were given to it in that epoch, of which not all are known to have arrived."""
    quantity: int
    attempts: int
    """How often it was put off."""


class Outbox:
    """Reads and ends work; `Journal.apply`, `Buffers.release`, `PartitionStates.settle` and
    `UnevenPairs.want_even` add it, and `Journal.apply` ends what events tell the end of."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def due(
        self, kind: OutboxKind, partitions: Collection[int], *, limit: int
    ) -> Sequence[OutboxRow]:
        """Open rows of these partitions whose time has come, the longest due first."""
        if not partitions:
            return []
        sql = placeholders("outbox_due", len(partitions))

        async def run(transaction: Transaction) -> Sequence[OutboxRow]:
            values = (kind.value, *sorted(partitions), limit)
            return [_outbox_row(row) for row in await transaction.rows(sql, values)]

        return await self._database.transaction(run)

    async def count_open(
        self, kind: OutboxKind, partitions: Collection[int], *, older_than_s: int = 0
    ) -> int:
        """How many rows of these partitions have been open for so long at least."""
        return await self._count("outbox_open", kind, older_than_s, partitions)

    async def count_failing(
        self, kind: OutboxKind, partitions: Collection[int], *, attempts: int
    ) -> int:
        """How many open rows of these partitions were put off so often at least."""
        return await self._count("outbox_failing", kind, attempts, partitions)

    async def done(self, row: OutboxRow, remark: str) -> None:
        """End a row and keep it; nothing if it has ended."""
        await self._execute("outbox_done", remark[:REMARK_CHARS_MAX], row.id)

    async def postpone(self, row: OutboxRow, remark: str, *, pause_s: float) -> None:
        """Let a row rest; nothing if it has ended, or is of later units by now."""
        pause_us = timedelta(seconds=pause_s) // timedelta(microseconds=1)
        which = row.id, row.epoch, row.transfer
        await self._execute("outbox_postpone", pause_us, remark[:REMARK_CHARS_MAX], *which)

    async def remove(self, row: OutboxRow) -> None:
        """End a row without a trace; nothing if it is gone, or of later units by now."""
        await self._execute("outbox_remove", row.id, row.epoch, row.transfer)

    async def _count(
        self, name: str, kind: OutboxKind, bound: int, partitions: Collection[int]
    ) -> int:
        if not partitions:
            return 0
        sql = placeholders(name, len(partitions))

        async def run(transaction: Transaction) -> int:
            row = await transaction.row(sql, (kind.value, bound, *sorted(partitions)))
            assert row is not None
            return int(row[0])

        return await self._database.transaction(run)

    async def _execute(self, name: str, *values: object) -> None:
        async def run(transaction: Transaction) -> None:
            await transaction.execute(statement(name), values)

        await self._database.transaction(run)


def _outbox_row(row: Row) -> OutboxRow:
    id_, product_id, partition, epoch, generation, number, *rest = row
    return OutboxRow(id_, product_id, partition, epoch, EventId(generation, number), *rest)
