"""Which worker serves which partitions: leases by the database's clock, shared out evenly."""

from datetime import timedelta

from ledger.database import Database, Transaction
from ledger.statements import placeholders, statement


class Leases:
    """One worker's share of the partitions."""

    def __init__(self, database: Database, *, worker: str, ttl_s: float) -> None:
        self._database = database
        self._worker = worker
        self._ttl = timedelta(seconds=ttl_s)

    async def renew(self) -> frozenset[int]:
        """Say that this worker lives, keep or change its share, and return it.

        A share is the partitions divided by the living workers, rounded up. What is above it is
        given up, what is missing is taken where nobody has it; so after a worker has come or gone
        everybody's next renewals settle it.
        """

        async def run(transaction: Transaction) -> frozenset[int]:
            ttl_us = self._ttl // timedelta(microseconds=1)
            await _one_at_a_time(transaction)
            await transaction.execute(statement("worker_forget"))
            await transaction.execute(statement("worker_alive"), (self._worker, ttl_us))
            await transaction.execute(statement("lease_extend"), (ttl_us, self._worker))
            share = await self._share(transaction)
            owned = await self._owned(transaction)
            if len(owned) > share:
                await self._give_up(transaction, owned[share:])
            if len(owned) < share:
                values = (self._worker, ttl_us, share - len(owned))
                await transaction.execute(statement("lease_take"), values)
                owned = await self._owned(transaction)
            return frozenset(owned[:share])

        return await self._database.transaction(run)

    async def release(self) -> None:
        """Give everything up at once, for the others to take."""

        async def run(transaction: Transaction) -> None:
            await _one_at_a_time(transaction)
            await transaction.execute(statement("worker_gone"), (self._worker,))
            await transaction.execute(statement("lease_release_all"), (self._worker,))

        await self._database.transaction(run)

    async def _share(self, transaction: Transaction) -> int:
        """This worker is among the living by now, however long the transaction has been held up."""
        row = await transaction.row(statement("lease_share"))
        assert row is not None
        return int(row[0])

    async def _owned(self, transaction: Transaction) -> list[int]:
        rows = await transaction.rows(statement("lease_owned"), (self._worker,))
        return [partition for (partition,) in rows]

    async def _give_up(self, transaction: Transaction, partitions: list[int]) -> None:
        sql = placeholders("lease_release", len(partitions))
        await transaction.execute(sql, (self._worker, *partitions))


async def _one_at_a_time(transaction: Transaction) -> None:
    """Workers that renew together would wait for each other's rows in a circle."""
    await transaction.row(statement("lease_lock"))
