"""The entries of the last hour, kept so that a shard can be rebuilt from them."""

from collections.abc import Collection

from ledger.database import Database, Transaction
from ledger.statements import placeholders

PRUNED_AT_ONCE = 2_000
"""Entries that one transaction deletes, so that it holds its locks for milliseconds."""
ROUNDS_MAX = 50
"""Transactions of one call: every 10 s they forget 10,000 entries a second."""


class RawEvents:
    """Forgets what is too old; `Journal.apply` alone adds."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def prune(self, partitions: Collection[int], *, older_than_s: int) -> int:
        """Delete old entries of these partitions, a bounded number; returns how many."""
        if not partitions:
            return 0
        sql = placeholders("raw_event_prune", len(partitions))
        values = (older_than_s, *sorted(partitions), PRUNED_AT_ONCE)

        async def run(transaction: Transaction) -> int:
            return await transaction.execute(sql, values)

        pruned = 0
        for _ in range(ROUNDS_MAX):
            piece = await self._database.transaction(run)
            pruned += piece
            if piece < PRUNED_AT_ONCE:
                break
        return pruned
