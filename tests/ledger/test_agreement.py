"""MySQL servers remember which of the ledger's servers they are: here, two databases of one."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from ledger.agreement import Agreement
from ledger.database import Database
from ledger.errors import (
    LedgerUnavailableError,
    PartitionsDifferError,
    SchemaError,
    ServersDifferError,
)
from ledger.migrate import migrate
from ledger.servers import PerServer
from ledger.settings import MysqlUrl, parse_url
from tests.ledger.conftest import PARTITIONS, create_database, fetch, new_metrics, write

RECORD = "SELECT partitions, ledgers, ledger_index FROM cluster"


@pytest.fixture
async def servers(server_url: MysqlUrl) -> AsyncIterator[list[Database]]:
    """Migrated, and new."""
    async with AsyncExitStack() as opened:
        found = [Database(await create_database(server_url), new_metrics()) for _ in range(2)]
        for database in found:
            opened.push_async_callback(database.close)
            await migrate(database)
        yield found


def agreement(*servers: Database, partitions: int = PARTITIONS) -> Agreement:
    return Agreement(PerServer(servers), partitions=partitions)


async def test_each_server_keeps_its_place_for_ever(servers: list[Database]) -> None:
    for _ in range(2):
        for index in range(2):
            await agreement(*servers).confirm(index)
    assert [await fetch(each, RECORD) for each in servers] == [
        [(PARTITIONS, 2, 0)],
        [(PARTITIONS, 2, 1)],
    ]
    for index in range(2):
        with pytest.raises(ServersDifferError, match="the order of the servers are fixed"):
            await agreement(*servers[::-1]).confirm(index)
    for alone in servers:
        with pytest.raises(ServersDifferError, match=r"of 2, .* server 1 of 1"):
            await agreement(alone).confirm(0)
    with pytest.raises(PartitionsDifferError):
        await agreement(*servers, partitions=24).confirm(0)


async def test_a_new_server_is_not_recorded_at_the_wrong_place(servers: list[Database]) -> None:
    first, new = servers
    await agreement(first, new).confirm(0)
    with pytest.raises(ServersDifferError):
        await agreement(new, first).confirm(0)
    assert await fetch(new, RECORD) == []
    await agreement(first, new).confirm(1)
    assert await fetch(new, RECORD) == [(PARTITIONS, 2, 1)]


async def test_a_server_that_was_the_only_one_stays_so(servers: list[Database]) -> None:
    old, other = servers
    await write(old, "INSERT INTO cluster (id, partitions) VALUES (1, %s)", PARTITIONS)
    await agreement(old).confirm(0)
    with pytest.raises(ServersDifferError, match=r"server 1 of 1, .* server 1 of 2"):
        await agreement(old, other).confirm(0)


async def test_a_server_is_recorded_though_another_one_is_away_or_has_no_tables(
    servers: list[Database], empty: Database
) -> None:
    nowhere = Database(parse_url("mysql://u:p@127.0.0.1:9/nothing"), new_metrics())
    for index, others in enumerate((nowhere, empty)):
        await agreement(servers[index], others).confirm(0)
        assert await fetch(servers[index], RECORD) == [(PARTITIONS, 2, 0)]
    with pytest.raises(LedgerUnavailableError):
        await agreement(servers[0], nowhere).confirm(1)
    with pytest.raises(SchemaError, match="inventoryctl migrate"):
        await agreement(servers[1], empty).confirm(1)
