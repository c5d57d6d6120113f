"""Commands of the ledger, for `inventoryctl` and `python -m ledger`."""

import asyncio
import sys
from typing import NoReturn

from prometheus_client import CollectorRegistry
from pydantic import ValidationError

from ledger.database import Database
from ledger.errors import LedgerError
from ledger.metrics import LedgerMetrics
from ledger.migrate import Migration, schema_version
from ledger.migrate import migrate as apply_missing
from ledger.settings import LedgerSettings, explain

MIGRATION_TIMEOUT_MS = 600_000
FAILED = 2


def migrate() -> None:
    """Bring the ledger's tables up to date; exits with 2 and one line where it cannot."""
    try:
        settings = LedgerSettings()
    except ValidationError as error:
        _fail(explain(error))
    try:
        applied, version = asyncio.run(_migrate(settings))
    except LedgerError as error:
        _fail(str(error))
    for migration in applied:
        sys.stdout.write(f"applied {migration.name}\n")
    sys.stdout.write(f"schema is at version {version}\n")


async def _migrate(settings: LedgerSettings) -> tuple[list[Migration], int]:
    metrics = LedgerMetrics(CollectorRegistry())
    database = Database(settings.mysql_url, metrics, connections=1, timeout_ms=MIGRATION_TIMEOUT_MS)
    try:
        return await apply_missing(database), await schema_version(database)
    finally:
        await database.close()


def _fail(text: str) -> NoReturn:
    sys.stderr.write(f"migrate: {text}\n")
    raise SystemExit(FAILED)
