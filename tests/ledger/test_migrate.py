"""The tables: where they come from and how programs make sure of them."""

import asyncio
import re
import subprocess
import sys
from collections.abc import Sequence

import pytest

from deploy.local.stack import LocalStack
from ledger.database import Database
from ledger.errors import SchemaError
from ledger.migrate import (
    FOLDER,
    Migration,
    migrate,
    migrations,
    require_schema,
    require_version,
    schema_version,
)
from ledger.settings import MysqlUrl
from tests.ledger.conftest import create_database, fetch, new_metrics, write

COLUMNS = """
    SELECT table_name, column_name, column_type, is_nullable, column_default, collation_name, extra
    FROM information_schema.columns
    WHERE table_schema = DATABASE() AND table_name <> 'schema_migration'
    ORDER BY table_name, ordinal_position
"""
INDEXES = """
    SELECT table_name, index_name, seq_in_index, column_name, non_unique
    FROM information_schema.statistics
    WHERE table_schema = DATABASE() AND table_name <> 'schema_migration'
    ORDER BY table_name, index_name, seq_in_index
"""
CHECKS = """
    SELECT constraint_name, check_clause
    FROM information_schema.check_constraints
    WHERE constraint_schema = DATABASE()
    ORDER BY constraint_name
"""


async def shape(database: Database) -> list[list[tuple[object, ...]]]:
    return [await fetch(database, sql) for sql in (COLUMNS, INDEXES, CHECKS)]


async def test_the_schema_is_the_sum_of_the_migrations(
    empty: Database, server_url: MysqlUrl
) -> None:
    await migrate(empty)
    written_out = Database(await create_database(server_url), new_metrics())
    text = re.sub(r"^--.*$", "", (FOLDER.parent / "schema.sql").read_text(), flags=re.MULTILINE)
    for sql in filter(str.strip, text.split(";")):
        await write(written_out, sql)
    assert await shape(written_out) == await shape(empty)
    assert (await shape(empty))[0]
    await written_out.close()


async def test_migrating_again_changes_nothing(empty: Database) -> None:
    assert [each.name for each in await migrate(empty)] == [each.name for each in migrations()]
    before = await shape(empty)
    assert await migrate(empty) == []
    assert await shape(empty) == before
    assert await schema_version(empty) == len(migrations())
    await require_schema(empty)


async def test_of_many_that_migrate_at_once_each_file_is_applied_by_one(empty: Database) -> None:
    applied = await asyncio.gather(*(migrate(empty) for _ in range(6)))
    assert sorted(each.version for part in applied for each in part) == [
        each.version for each in migrations()
    ]


async def test_a_run_that_broke_off_before_its_record_is_resumed(empty: Database) -> None:
    await migrate(empty)
    before = await shape(empty)
    for left in range(len(migrations())):
        await write(empty, "DELETE FROM schema_migration WHERE version > %s", left)
        assert len(await migrate(empty)) == len(migrations()) - left
        assert await shape(empty) == before


@pytest.mark.parametrize(
    ("others", "says"),
    [
        ([*migrations(), Migration(len(migrations()) + 1, "9999_later", "SELECT 1")], "not know"),
        ([Migration(1, "0001_other", "SELECT 1")], "was changed"),
    ],
    ids=["newer", "changed"],
)
async def test_tables_of_another_program_are_refused(
    empty: Database, others: list[Migration], says: str
) -> None:
    await migrate(empty, others)
    for refused in (migrate, require_schema):
        with pytest.raises(SchemaError, match=says) as error:
            await refused(empty)
        assert "\n" not in str(error.value)


async def test_a_database_without_tables_names_the_command_to_run(empty: Database) -> None:
    with pytest.raises(SchemaError, match="inventoryctl migrate"):
        await require_schema(empty)


async def test_a_database_that_is_behind_names_the_command_to_run(empty: Database) -> None:
    await migrate(empty, migrations()[:-1])
    with pytest.raises(SchemaError, match="inventoryctl migrate"):
        await require_schema(empty)


@pytest.mark.parametrize(
    ("version", "oldest"),
    [
        ("8.0.15", "MySQL 8.0.16"),
        ("5.7.44-log", "MySQL 8.0.16"),
        ("8.0.11-TiDB-v7.5.1", "MySQL 8.0.16"),
        ("10.1.48-MariaDB-1~focal", "MariaDB 10.2.1"),
        ("", "MySQL 8.0.16"),
    ],
)
def test_a_server_that_would_ignore_the_checks_is_refused(version: str, oldest: str) -> None:
    with pytest.raises(SchemaError, match=oldest):
        require_version(version, "somewhere")


@pytest.mark.parametrize(
    "version", ["8.0.16", "8.0.36-28.1", "8.4.0", "9.1.0", "10.2.1-MariaDB", "11.4.2-MariaDB-log"]
)
def test_a_server_that_heeds_the_checks_is_welcome(version: str) -> None:
    require_version(version, "somewhere")


async def test_migrating_and_starting_both_ask_for_the_servers_version(
    empty: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await migrate(empty)
    monkeypatch.setattr("ledger.migrate.OLDEST", {"MySQL": (99,), "MariaDB": (99,)})
    for refused in (migrate, require_schema):
        with pytest.raises(SchemaError, match="99") as error:
            await refused(empty)
        assert "\n" not in str(error.value)


async def run_migrate(services: LocalStack, url: str) -> tuple[int | None, str, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "ledger",
        "migrate",
        env={**services.environment(), "INVENTORY_MYSQL_URLS": url},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


def url_of(url: MysqlUrl, **changes: object) -> str:
    parts = {name: getattr(url, name) for name in ("user", "password", "host", "port", "database")}
    return "mysql://{user}:{password}@{host}:{port}/{database}".format(**{**parts, **changes})


async def test_the_command_says_what_it_did(services: LocalStack, empty_url: MysqlUrl) -> None:
    code, out, err = await run_migrate(services, url_of(empty_url))
    names = [f"applied {each.name}" for each in migrations()]
    assert (code, err) == (0, "")
    assert out.splitlines() == [*names, f"schema is at version {len(migrations())}"]


async def test_the_command_goes_through_all_servers_and_says_which(
    services: LocalStack, server_url: MysqlUrl
) -> None:
    urls = [await create_database(server_url) for _ in range(2)]
    names = [url_of(url) for url in urls]
    code, out, err = await run_migrate(
        services, ",".join([names[0], url_of(server_url, port=1), names[1]])
    )
    assert code == 2
    (line,) = err.splitlines()
    assert "127.0.0.1:1" in line
    done = [f"{url}: schema is at version {len(migrations())}" for url in urls]
    assert [line for line in out.splitlines() if "applied" not in line] == done
    assert await run_migrate(services, ",".join(names)) == (0, "".join(f"{d}\n" for d in done), "")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"password": "wrong"}, "Access denied"),
        ({"database": "inventory_nowhere"}, "inventory_nowhere"),
        ({"port": 1}, "cannot connect"),
        ({"database": ""}, "names no database"),
        ({"database": "a?tls=perhaps"}, "INVENTORY_MYSQL_URLS: tls is one of off, on, verify"),
        ({"database": "a,mysql://u@h"}, "server 2 names no database"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
async def test_the_command_fails_with_one_line_that_names_the_cause(
    services: LocalStack, server_url: MysqlUrl, changes: dict[str, object], says: str
) -> None:
    code, out, err = await run_migrate(services, url_of(server_url, **changes))
    lines: Sequence[str] = err.splitlines()
    assert (code, out, len(lines)) == (2, "", 1)
    assert says in lines[0]
    assert server_url.password not in err
