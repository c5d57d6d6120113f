"""Shards of which one knows less than the other of what moved between them: a step was lost."""

from ledger.database import Database, Transaction
from ledger.statements import statement


class UnevenPairs:
    """Notes what is to be made even, in the outbox."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def want_even(self, partition: int) -> None:
        """Note each two shards, one of them in the partition, of which one gave the other more units, or
        fewer, than have arrived.

        What is on its way just now is noted as well; whoever looks at it there finds it to be even.
        """

        async def run(transaction: Transaction) -> None:
            await transaction.execute(statement("transfer_uneven"), (partition, partition))

        await self._database.transaction(run)
