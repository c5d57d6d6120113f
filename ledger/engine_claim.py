"""What all processes of a service agree on, written down in the ledger."""

from enum import StrEnum

from ledger.database import Database, Transaction
from ledger.errors import EngineDiffersError
from ledger.statements import statement


class Engine(StrEnum):
    """Where units are sold from; a ledger belongs to one of them for good.

    The units that the one has in Redis are available units to the other, which would sell them again.
    """

    REDIS = "redis"
    MYSQL = "mysql"


_ENGINE = "engine"


async def claim_for_mysql(database: Database) -> None:
    """Record once for ever that units are sold from the ledger itself. EngineDiffersError."""

    async def run(transaction: Transaction) -> None:
        await require_engine(transaction, Engine.MYSQL)
        if await transaction.row(statement("cluster_get")):
            raise _differs(Engine.REDIS)

    await database.transaction(run)


async def require_engine(transaction: Transaction, engine: Engine) -> None:
    """Record the engine if none is on record yet; EngineDiffersError if it is another."""
    await transaction.execute(statement("mode_record"), (_ENGINE, engine.value))
    row = await transaction.row(statement("mode_get"), (_ENGINE,))
    assert row is not None
    if row[0] != engine:
        raise _differs(Engine(row[0]))


def _differs(found: Engine) -> EngineDiffersError:
    return EngineDiffersError(
        f"the ledger was set up for INVENTORY_ENGINE={found.value}, and keeps to it; "
        "another engine needs a database of its own"
    )
