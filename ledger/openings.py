"""Openings of partitions: each gets a generation from the ledger, so that none is used twice."""

from collections.abc import Collection, Mapping
from typing import NamedTuple

from ledger.database import Database, Transaction
from ledger.statements import placeholders, statement
from sharding.events import EventId
from sharding.partitions import Checkpoint


class Opening(NamedTuple):
    """What one attempt to open a partition needs."""

    generation: int
    checkpoint: Checkpoint


class Openings:
    """Redis alone cannot count them: a failover may lose the latest one."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def begin(self, partition: int, *, above: int) -> Opening:
        """Its generation is above all that were issued for the partition and one seen in Redis."""

        async def run(transaction: Transaction) -> Opening:
            await transaction.execute(statement("opening_begin"), (above, partition))
            return await _opening(transaction, partition)

        return await self._database.transaction(run)

    async def current(self, partition: int) -> Opening:
        """The generation that was issued last, and the checkpoint."""

        async def run(transaction: Transaction) -> Opening:
            return await _opening(transaction, partition)

        return await self._database.transaction(run)

    async def latest(self, partitions: Collection[int]) -> Mapping[int, int]:
        """The last generation that was issued for each of these partitions; 0 for none."""
        if not partitions:
            return {}

        async def run(transaction: Transaction) -> Mapping[int, int]:
            sql = placeholders("opening_some", len(partitions))
            rows = await transaction.rows(sql, sorted(partitions))
            return {each: int(issued) for each, issued in rows}

        return await self._database.transaction(run)


async def _opening(transaction: Transaction, partition: int) -> Opening:
    row = await transaction.row(statement("opening_get"), (partition,))
    assert row is not None
    issued, generation, number, anchor = row
    return Opening(int(issued), Checkpoint(EventId(generation, number), anchor))
