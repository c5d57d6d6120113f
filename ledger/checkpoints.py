"""How far each partition's stream has been applied, and what is fixed for the cluster's life."""

from collections.abc import Collection, Mapping

from ledger.database import Database, Transaction
from ledger.errors import PartitionsDifferError
from ledger.modes import Engine, require_engine
from ledger.statements import placeholders, statement, with_rows
from sharding.events import EventId
from sharding.partitions import NOTHING_APPLIED, Checkpoint


class Checkpoints:
    """Reads checkpoints; `Journal.apply` alone moves them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def prepare(self, partitions: int) -> None:
        """Record the engine and the partition count once for ever, and a row per partition.

        EngineDiffersError, PartitionsDifferError if others are on record.
        """

        async def run(transaction: Transaction) -> None:
            await require_engine(transaction, Engine.REDIS)
            await transaction.execute(statement("cluster_record"), (partitions,))
            row = await transaction.row(statement("cluster_get"))
            assert row is not None
            _require_count(row[0], partitions)
            rows = [b"(%d)" % partition for partition in range(partitions)]
            await transaction.bulk(with_rows("checkpoint_create", rows))
            await transaction.bulk(with_rows("lease_create", rows))

        await self._database.transaction(run)

    async def all(self) -> Mapping[int, Checkpoint]:
        """Every partition's checkpoint."""

        async def run(transaction: Transaction) -> Mapping[int, Checkpoint]:
            return _by_partition(await transaction.rows(statement("checkpoint_all")))

        return await self._database.transaction(run)

    async def of(self, partitions: Collection[int]) -> Mapping[int, Checkpoint]:
        """The checkpoints of these partitions; NOTHING_APPLIED where the ledger has none."""
        if not partitions:
            return {}

        async def run(transaction: Transaction) -> Mapping[int, Checkpoint]:
            sql = placeholders("checkpoint_some", len(partitions))
            return _by_partition(await transaction.rows(sql, sorted(partitions)))

        found = await self._database.transaction(run)
        return {partition: found.get(partition, NOTHING_APPLIED) for partition in partitions}


def _by_partition(rows: Collection[tuple[int, int, int, str]]) -> Mapping[int, Checkpoint]:
    return {
        partition: Checkpoint(EventId(generation, number), anchor)
        for partition, generation, number, anchor in rows
    }


def _require_count(found: int, expected: int) -> None:
    if found != expected:
        raise PartitionsDifferError(
            f"the ledger was set up with {found} partitions, this process with {expected}; "
            f"set INVENTORY_PARTITIONS={found}"
        )
