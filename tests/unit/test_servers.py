"""Several MySQL servers: whose a product is, the numbers of rows, how the setting and cursors read."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.errors import LedgerUnavailableError
from ledger.servers import ALONE, PerServer, Place
from ledger.settings import MYSQL_SERVERS_MAX, LedgerSettings, SettingsError, read_settings
from server import validation
from server.errors import RefusedError
from sharding.placement import ledger_of

URL = "mysql://u:secret@h{}/d"


@dataclass(frozen=True)
class Row:
    id: int


class Table:
    """Rows of one server."""

    def __init__(self, ids: Sequence[int]) -> None:
        self._ids = sorted(ids)

    async def after(self, own: int, limit: int) -> list[Row]:
        return [Row(each) for each in self._ids if each > own][:limit]

    async def before(self, own: int, limit: int) -> list[Row]:
        return [Row(each) for each in self._ids[::-1] if not own or each < own][:limit]


TABLES = st.lists(st.sets(st.integers(1, 30), max_size=12), min_size=1, max_size=5)


def numbers(tables: Sequence[set[int]]) -> list[int]:
    places = [Place(index, len(tables)) for index in range(len(tables))]
    return sorted(
        place.number(own) for place, ids in zip(places, tables, strict=True) for own in ids
    )


@given(TABLES, st.integers(1, 7))
async def test_pages_go_through_all_rows_once_in_the_order_of_their_numbers(
    tables: list[set[int]], limit: int
) -> None:
    servers = PerServer([Table(list(ids)) for ids in tables])
    found: list[int] = []
    while page := await servers.page(
        lambda table, own: table.after(own, limit), after=max(found, default=0), limit=limit
    ):
        assert len(page) <= limit
        found += [row.id for row in page]
    assert found == numbers(tables)


@given(TABLES, st.integers(1, 7))
async def test_pages_go_back_through_all_rows_once(tables: list[set[int]], limit: int) -> None:
    servers = PerServer([Table(list(ids)) for ids in tables])
    found: list[int] = []
    while page := await servers.page_back(
        lambda table, own: table.before(own, limit), before=min(found, default=0), limit=limit
    ):
        found += [row.id for row in page]
    assert found == numbers(tables)[::-1]


async def test_a_page_of_a_product_is_of_its_own_server() -> None:
    servers = PerServer([Table([1, 2]), Table([1, 2, 3]), Table([5])])
    product_id = 7
    place = Place(ledger_of(product_id, 3), 3)
    own = await servers.of(product_id).after(0, 10)
    numbers_of_its = [place.number(row.id) for row in own]
    page = await servers.page(
        lambda table, after: table.after(after, 10), after=0, limit=10, product_id=product_id
    )
    back = await servers.page_back(
        lambda table, before: table.before(before, 10), before=0, limit=10, product_id=product_id
    )
    assert [row.id for row in page] == numbers_of_its
    assert [row.id for row in back] == numbers_of_its[::-1]


@given(st.integers(1, 64), st.integers(0, 2**40))
def test_a_number_leads_back_to_its_row(count: int, own: int) -> None:
    servers = PerServer(range(count))
    seen = {Place(index, count).number(own) for index in range(count)}
    assert len(seen) == count
    assert {servers.numbered(number) for number in seen} == {(index, own) for index in range(count)}


def test_one_server_s_rows_keep_their_ids() -> None:
    assert [ALONE.number(own) for own in range(5)] == list(range(5))
    assert PerServer(["a"]).numbered(7) == ("a", 7)


def test_products_are_grouped_by_their_server_in_order() -> None:
    servers = PerServer(["a", "b", "c"])
    products = list(range(1, 40))
    grouped = servers.by_server(products)
    assert [name for name, _ in grouped] == ["a", "b", "c"]
    assert sorted(product for _, its in grouped for product in its) == products
    assert all(servers.of(product) == name for name, its in grouped for product in its)
    assert servers.of(7) == "abc"[ledger_of(7, 3)]


async def test_the_first_failure_of_one_server_is_raised_as_it_is() -> None:
    async def ask(server: int) -> int:
        if server == 1:
            raise LedgerUnavailableError("away")
        return server

    with pytest.raises(LedgerUnavailableError):
        await PerServer(range(3)).from_all(ask)


def settings(urls: str) -> LedgerSettings:
    return LedgerSettings.model_validate({"mysql_urls": urls})


def test_urls_are_servers_in_their_order() -> None:
    found = settings(",".join(map(URL.format, range(3)))).mysql_servers
    assert [url.host for url in found] == ["h0", "h1", "h2"]
    assert [url.host for url in settings(URL.format("x")).mysql_servers] == ["hx"]


@pytest.mark.parametrize(
    ("urls", "says"),
    [
        (f"{URL.format(1)},", "server 2 is not mysql://user:password@host:port/database"),
        (f"{URL.format(1)},mysql://v:secret@h2", "server 2 names no database"),
        (f"{URL.format(1)}?x=secret,{URL.format(2)}", "server 1 has an unknown option: x"),
        (f"{URL.format(1)},mysql://v:secret@h1:3306/d", "names h1:3306/d twice"),
        (",".join(map(URL.format, range(MYSQL_SERVERS_MAX + 1))), "at most 64"),
    ],
)
def test_a_wrong_setting_names_the_variable_and_shows_no_password(
    urls: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INVENTORY_MYSQL_URLS", urls)
    with pytest.raises(SettingsError) as caught:
        read_settings(LedgerSettings)
    text = str(caught.value)
    assert text.startswith("INVENTORY_MYSQL_URLS: ")
    assert says in text
    assert "secret" not in text


@pytest.mark.parametrize(
    ("cursor", "servers", "positions"),
    [
        ("", 3, None),
        ("0", 1, [0]),
        ("0", 3, [0, 0, 0]),
        ("5", 1, [5]),
        ("5.0.9223372036854775807", 3, [5, 0, 2**63 - 1]),
    ],
)
def test_a_cursor_has_a_position_for_each_server(
    cursor: str, servers: int, positions: list[int] | None
) -> None:
    assert validation.cursor(cursor, servers=servers) == positions


@pytest.mark.parametrize(
    ("cursor", "servers"),
    [
        ("5", 2),
        ("5.6", 1),
        ("5.", 2),
        (".", 2),
        ("5.-1", 2),
        ("5.9223372036854775808", 2),
        ("٥", 1),
    ],
)
def test_a_malformed_cursor_is_refused(cursor: str, servers: int) -> None:
    with pytest.raises(RefusedError) as caught:
        validation.cursor(cursor, servers=servers)
    refused: Any = caught.value
    assert [found.field for found in refused.violations] == ["cursor"]
