"""Brings the tables up to date: numbered files in ledger/migrations/, each applied once, in order.

Servers that read CHECK constraints and forget them are refused.

DDL commits by itself, so each file is one statement that is safe to run again: a run that broke off
between a statement and its record repeats that statement. An ALTER TABLE adds a column or an index
first of all: where that is there, it fails as a whole and was applied before. MySQL has no IF NOT EXISTS
for it.
"""

import re
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from pymysql.err import MySQLError

from ledger.database import Database, Transaction
from ledger.errors import LedgerUnavailableError, SchemaError
from ledger.mysql_errors import is_done_already
from ledger.statements import statement

FOLDER = Path(__file__).parent / "migrations"
LOCK_WAIT_S = 60
OLDEST = {"MySQL": (8, 0, 16), "MariaDB": (10, 2, 1)}
"""The first versions that heed CHECK constraints."""


@dataclass(frozen=True, slots=True)
class Migration:
    """One numbered file."""

    version: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        return sha256(self.sql.encode()).hexdigest()


def migrations(folder: Path = FOLDER) -> list[Migration]:
    """All files of the folder, by number; the numbers are 1, 2, 3 …"""
    found = [_migration(path) for path in sorted(folder.glob("*.sql"))]
    assert [each.version for each in found] == list(range(1, len(found) + 1))
    return found


async def migrate(database: Database, wanted: list[Migration] | None = None) -> list[Migration]:
    """Apply what is missing and return it. SchemaError where other files set the database up.

    Those that migrate at the same time wait for each other.
    """
    all_wanted = migrations() if wanted is None else wanted

    async def run(transaction: Transaction) -> list[Migration]:
        await _require_server(transaction, database.server)
        await _lock(transaction, database.server)
        try:
            await transaction.execute(statement("migration_table"))
            missing = _missing(all_wanted, await _applied(transaction))
            for migration in missing:
                await _apply(transaction, migration)
            # Whoever has the lock next must see the last one.
            await transaction.execute(statement("migration_commit"))
        finally:
            await transaction.row(statement("migration_unlock"))
        return missing

    return await database.transaction(run, attempts=1)


async def schema_version(database: Database) -> int:
    """How many migrations have been applied. SchemaError where there are no tables."""
    return len(await database.transaction(_applied))


async def require_schema(database: Database) -> None:
    """SchemaError unless the server heeds the tables' checks and they are those of this program."""

    async def run(transaction: Transaction) -> list[tuple[int, str, str]]:
        await _require_server(transaction, database.server)
        return await _applied(transaction)

    missing = _missing(migrations(), await database.transaction(run))
    if missing:
        raise SchemaError(
            f"the schema in {database.server} lacks {missing[0].name}; run `inventoryctl migrate`"
        )


def require_version(version: str, server: str) -> None:
    """SchemaError unless a server that says this of itself heeds CHECK constraints."""
    product = "MariaDB" if "MariaDB" in version else "MySQL"
    numbers = tuple(map(int, re.findall(r"\d+", version)[:3]))
    if numbers < OLDEST[product]:
        oldest = ".".join(map(str, OLDEST[product]))
        raise SchemaError(
            f"{server} is version {version!r}, which ignores CHECK constraints; "
            f"the ledger needs {product} {oldest} or later"
        )


async def _require_server(transaction: Transaction, server: str) -> None:
    row = await transaction.row(statement("server_version"))
    assert row is not None
    require_version(row[0], server)


def _migration(path: Path) -> Migration:
    return Migration(int(path.name[:4]), path.stem, path.read_text(encoding="utf-8"))


async def _lock(transaction: Transaction, server: str) -> None:
    row = await transaction.row(statement("migration_lock"), (LOCK_WAIT_S,))
    if not row or row[0] != 1:
        raise LedgerUnavailableError(
            f"somebody else has been migrating {server} for {LOCK_WAIT_S} s"
        )


async def _applied(transaction: Transaction) -> list[tuple[int, str, str]]:
    return [
        (int(v), str(n), str(c)) for v, n, c in await transaction.rows(statement("migration_list"))
    ]


async def _apply(transaction: Transaction, migration: Migration) -> None:
    try:
        await transaction.execute(migration.sql)
    except MySQLError as error:
        if not is_done_already(error):
            raise
    values = (migration.version, migration.name, migration.checksum)
    await transaction.execute(statement("migration_record"), values)


def _missing(wanted: list[Migration], applied: list[tuple[int, str, str]]) -> list[Migration]:
    """What is still to be applied; SchemaError unless `applied` is how `wanted` begins."""
    if len(applied) > len(wanted):
        raise SchemaError(
            f"the schema has migration {applied[-1][1]}, which this program does not know; "
            "run a version that does"
        )
    for migration, (version, name, checksum) in zip(wanted, applied, strict=False):
        if (migration.version, migration.checksum) != (version, checksum):
            raise SchemaError(f"migration {name} was changed after it had been applied")
    return wanted[len(applied) :]
