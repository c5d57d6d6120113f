"""How far each partition's stream has been applied, and what is fixed for the cluster's life."""

from collections.abc import Collection, Mapping

from ledger.database import Database, Transaction
from ledger.engine_claim import Engine, require_engine
from ledger.errors import PartitionsDifferError, ServersDifferError
from ledger.servers import Place
from ledger.statements import placeholders, statement, with_rows
from sharding.events import EventId
from sharding.partitions import NOTHING_APPLIED, Checkpoint


class Checkpoints:
    """Reads checkpoints; `Journal.apply` alone moves them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def is_recorded(self, partitions: int) -> bool:
        """Whether this server was set up before; the same errors as `prepare`, and nothing changed."""

        async def run(transaction: Transaction) -> bool:
            return await self._is_recorded(transaction, partitions)

        return await self._database.transaction(run)

    async def prepare(self, partitions: int) -> None:
        """Record engine, partition count and the server's place once for ever, and a row per partition.

        EngineDiffersError, PartitionsDifferError, ServersDifferError if others are on record.
        """

        async def run(transaction: Transaction) -> None:
            await require_engine(transaction, Engine.REDIS)
            place = self._database.place
            values = (partitions, place.count, place.index)
            await transaction.execute(statement("cluster_record"), values)
            assert await self._is_recorded(transaction, partitions)
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

    async def _is_recorded(self, transaction: Transaction, partitions: int) -> bool:
        row = await transaction.row(statement("cluster_get"))
        if row is None:
            return False
        found, count, index = row
        _require_count(found, partitions)
        _require_place(Place(index, count), self._database.place, self._database.server)
        return True


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


def _require_place(found: Place, expected: Place, server: str) -> None:
    if found != expected:
        raise ServersDifferError(
            f"{server} was set up as MySQL server {found.index + 1} of {found.count}, "
            f"INVENTORY_MYSQL_URLS names it as server {expected.index + 1} of {expected.count}: "
            "the number and the order of the servers are fixed"
        )
