"""How many units shards have given each other, as far as the ledger has heard of both sides."""

from collections.abc import Collection, Mapping
from typing import NamedTuple

from ledger.database import Database, Transaction
from ledger.statements import UNION, statement

PAIRS_AT_ONCE = 500


class Pair(NamedTuple):
    """Two shards of a product in one epoch, of which one gives units to the other; by partitions."""

    product_id: int
    donor: int
    receiver: int
    epoch: int


class Sums(NamedTuple):
    """Units of a pair's transfers."""

    given: int
    """With those of takes that are known to be lost, and are still to leave the donor once more."""
    arrived: int
    """With those of puts that are known to be lost, and are still to arrive once more."""
    is_doubtful: bool
    """An event of one of the two is set aside, which may be one by which units moved."""


class TransferSums:
    """Reads them; `Journal.apply` and `PartitionStates.settle` write them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def of(self, pairs: Collection[Pair]) -> Mapping[Pair, Sums]:
        """Of each pair, all of one moment."""
        wanted = [_selected(pair) for pair in sorted(pairs)]

        async def run(transaction: Transaction) -> Mapping[Pair, Sums]:
            found: dict[Pair, Sums] = {}
            for start in range(0, len(wanted), PAIRS_AT_ONCE):
                rows = UNION.decode().join(wanted[start : start + PAIRS_AT_ONCE])
                sql = statement("transfer_sums").replace("{rows}", rows)
                for *pair, given, arrived, doubtful in await transaction.rows(sql):
                    sums = Sums(int(given), int(arrived), bool(doubtful))
                    found[Pair(*map(int, pair))] = sums
            return found

        return await self._database.transaction(run) if wanted else {}


def _selected(pair: Pair) -> str:
    """One row of the derived table in transfer_sums.sql."""
    return (
        f"SELECT {pair.product_id} AS product_id, {pair.donor} AS donor,"
        f" {pair.receiver} AS receiver, {pair.epoch} AS epoch"
    )
