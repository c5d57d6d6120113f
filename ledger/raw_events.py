"""The entries of the last hour, kept so that a shard can be rebuilt from them."""

from collections.abc import Collection

from ledger.database import Database, Transaction
from ledger.statements import placeholders

PRUNED_AT_ONCE = 2_000


class RawEvents:
    """Forgets what is too old; `Journal.apply` alone adds."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def prune(self, partitions: Collection[int], *, older_than_s: int) -> int:
        """Delete a bounded number of old entries of these partitions; returns how many."""
        if not partitions:
            return 0

        async def run(transaction: Transaction) -> int:
            sql = placeholders("raw_event_prune", len(partitions))
            return await transaction.execute(
                sql, (older_than_s, *sorted(partitions), PRUNED_AT_ONCE)
            )

        return await self._database.transaction(run)
