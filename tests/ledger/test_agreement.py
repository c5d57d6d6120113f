"""MySQL servers remember which of the ledger's servers they are: here, two databases of one."""

from collections.abc import AsyncIterator, Callable

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
from ledger.servers import PerServer, Place
from ledger.settings import MysqlUrl, parse_url
from tests.ledger.conftest import PARTITIONS, create_database, fetch, new_metrics, write

RECORD = "SELECT partitions, ledgers, ledger_index FROM cluster"

Open = Callable[..., PerServer[Database]]


@pytest.fixture
async def together() -> AsyncIterator[Open]:
    """`together(first, second)`: servers of one ledger, in this order."""
    opened: list[Database] = []

    def open_all(*urls: MysqlUrl) -> PerServer[Database]:
        places = [Place(index, len(urls)) for index in range(len(urls))]
        pairs = zip(urls, places, strict=True)
        found = [Database(url, new_metrics(), place=place) for url, place in pairs]
        opened.extend(found)
        return PerServer(found)

    yield open_all
    for database in opened:
        await database.close()


@pytest.fixture
async def urls(server_url: MysqlUrl, together: Open) -> list[MysqlUrl]:
    """Migrated, and new."""
    found = [await create_database(server_url) for _ in range(2)]
    for url in found:
        await migrate(together(url).all[0])
    return found


async def confirm(servers: PerServer[Database], *, partitions: int = PARTITIONS) -> None:
    for index in range(len(servers)):
        await Agreement(servers, partitions=partitions).confirm(index)


async def recorded(servers: PerServer[Database]) -> list[list[tuple[object, ...]]]:
    return [await fetch(each, RECORD) for each in servers.all]


async def test_each_server_keeps_its_place_for_ever(urls: list[MysqlUrl], together: Open) -> None:
    for _ in range(2):
        await confirm(together(*urls))
    assert await recorded(together(*urls)) == [[(PARTITIONS, 2, 0)], [(PARTITIONS, 2, 1)]]
    swapped = Agreement(together(*urls[::-1]), partitions=PARTITIONS)
    for index in range(2):
        with pytest.raises(ServersDifferError, match="the order of the servers are fixed"):
            await swapped.confirm(index)
    for alone in urls:
        with pytest.raises(ServersDifferError, match=r"of 2, .* server 1 of 1"):
            await confirm(together(alone))
    with pytest.raises(PartitionsDifferError):
        await confirm(together(*urls), partitions=24)


async def test_a_new_server_is_not_recorded_at_the_wrong_place(
    urls: list[MysqlUrl], together: Open
) -> None:
    first, new = urls
    await Agreement(together(first, new), partitions=PARTITIONS).confirm(0)
    with pytest.raises(ServersDifferError):
        await Agreement(together(new, first), partitions=PARTITIONS).confirm(0)
    assert await recorded(together(new)) == [[]]
    await confirm(together(first, new))
    assert await recorded(together(new)) == [[(PARTITIONS, 2, 1)]]


async def test_a_server_that_was_the_only_one_stays_so(
    urls: list[MysqlUrl], together: Open
) -> None:
    old, other = urls
    insert = "INSERT INTO cluster (id, partitions) VALUES (1, %s)"
    await write(together(old).all[0], insert, PARTITIONS)
    await confirm(together(old))
    with pytest.raises(ServersDifferError, match=r"server 1 of 1, .* server 1 of 2"):
        await confirm(together(old, other))


async def test_a_server_is_recorded_though_another_one_is_away_or_has_no_tables(
    urls: list[MysqlUrl], empty_url: MysqlUrl, together: Open
) -> None:
    nowhere = parse_url("mysql://u:p@127.0.0.1:9/nothing")
    for url, other in zip(urls, (nowhere, empty_url), strict=True):
        await Agreement(together(url, other), partitions=PARTITIONS).confirm(0)
        assert await recorded(together(url)) == [[(PARTITIONS, 2, 0)]]
    with pytest.raises(LedgerUnavailableError):
        await confirm(together(urls[0], nowhere))
    with pytest.raises(SchemaError, match="inventoryctl migrate"):
        await confirm(together(urls[1], empty_url))
