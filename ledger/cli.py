"""Commands of the ledger, for `inventoryctl` and `python -m ledger`."""

import asyncio
import sys
from collections.abc import Sequence
from typing import NoReturn

from prometheus_client import CollectorRegistry

from ledger.database import Database
from ledger.errors import LedgerError, LedgerUnavailableError
from ledger.metrics import LedgerMetrics
from ledger.migrate import Migration, schema_version
from ledger.migrate import migrate as apply_missing
from ledger.settings import LedgerSettings, MysqlUrl, SettingsError, read_settings

MIGRATION_TIMEOUT_MS = 600_000
FAILED = 2


def migrate() -> None:
    """Bring the tables of all servers up to date; exits with 2 and a line for each where it cannot."""
    try:
        settings = read_settings(LedgerSettings)
    except SettingsError as error:
        _fail(str(error))
    if not asyncio.run(_migrate_all(settings.mysql_servers)):
        raise SystemExit(FAILED)


async def _migrate_all(servers: Sequence[MysqlUrl]) -> bool:
    """One after the other, and the next one whatever became of the one before; whether all are done."""
    done = True
    for url in servers:
        which = f"{url}: " if len(servers) > 1 else ""
        try:
            applied, version = await _migrate(url)
        except LedgerUnavailableError as error:
            _complain(f"{error}; INVENTORY_MYSQL_URLS says where MySQL is")
            done = False
        except LedgerError as error:
            _complain(str(error))
            done = False
        else:
            for migration in applied:
                sys.stdout.write(f"{which}applied {migration.name}\n")
            sys.stdout.write(f"{which}schema is at version {version}\n")
    return done


async def _migrate(url: MysqlUrl) -> tuple[list[Migration], int]:
    metrics = LedgerMetrics(CollectorRegistry())
    database = Database(url, metrics, connections=1, timeout_ms=MIGRATION_TIMEOUT_MS)
    try:
        return await apply_missing(database), await schema_version(database)
    finally:
        await database.close()


def _complain(text: str) -> None:
    sys.stderr.write(f"migrate: {text}\n")


def _fail(text: str) -> NoReturn:
    _complain(text)
    raise SystemExit(FAILED)
