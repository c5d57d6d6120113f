"""Bad events among good ones, what an operator does about them, and what the journal tells."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from itertools import count
from typing import Any

import pytest
from msgpack import unpackb
from prometheus_client import CollectorRegistry

from inventory.client import DeductItem, OrderLine, OrderState, Reservation, TimelineEntry
from ledger.database import Database
from ledger.metrics import LedgerMetrics
from ledger.settings import parse_url
from sharding import keys
from sharding.cluster import Cluster, LaneKind
from sharding.events import Event, EventId, Kind, decode
from sharding.metrics import StockMetrics
from sharding.settings import StockSettings
from tests.acceptance.shop import Shop, ids
from tests.acceptance.test_command_line import Result, inventoryctl
from tests.ledger.conftest import fetch, write

AWAY = 10**12
"""Added to a product's id while its row is not where it belongs."""
WHY = ("--actor", "ann", "--reason", "mended")
OF_A_SHARD = {"v": "1", "at": "1", "epoch": "1"} | dict.fromkeys(
    ("available", "held", "sold", "loaded"), "0"
)

_order_ids = count(7_000_001)


@pytest.fixture
async def ledger(shop: Shop) -> AsyncIterator[Database]:
    database = Database(parse_url(shop.stack.mysql_url), LedgerMetrics(CollectorRegistry()))
    yield database
    await database.close()


@pytest.fixture
async def cluster(shop: Shop) -> AsyncIterator[Cluster]:
    settings = StockSettings.model_validate({"redis_nodes": ",".join(shop.stack.redis_nodes)})
    connected = await Cluster.connect(settings, StockMetrics(CollectorRegistry()))
    yield connected
    await connected.close()


async def append(cluster: Cluster, partition: int, fields: Mapping[str, str | bytes]) -> None:
    """An entry that no script of ours writes, where the next one belongs."""
    tag = cluster.tags[partition]
    head, events = keys.head(tag), keys.events(tag, 0)
    number = await cluster.command(partition, "HINCRBY", head, "number", "1", lane=LaneKind.WRITE)
    generation = await cluster.command(partition, "HGET", head, "generation", lane=LaneKind.WRITE)
    assert isinstance(generation, bytes)
    parts = [part for pair in fields.items() for part in pair]
    event_id = f"{generation.decode()}-{number}"
    await cluster.command(partition, "XADD", events, event_id, *parts, lane=LaneKind.WRITE)  # type: ignore[arg-type]


def rubbish(product_id: int) -> Sequence[Mapping[str, str | bytes]]:
    """Six entries that nobody can apply; a stream's entry has one field at least."""
    restock = OF_A_SHARD | {
        "kind": "restock", "product": str(product_id), "request": "x", "reason": "",
    }  # fmt: skip
    return [
        {"nothing": ""},
        *(restock | {"quantity": quantity} for quantity in ("abc", "-1", str(2**40))),
        OF_A_SHARD | {"v": "99", "kind": "deduct", "product": str(product_id)},
        {"rubbish": b"\0'\\\xff" * 262_144},
    ]


async def move_row(ledger: Database, *, here: int, there: int) -> None:
    sql = "UPDATE product_inventory SET product_id = %s WHERE product_id = %s"
    assert await write(ledger, sql, there, here) == 1


class Operator:
    """`inventoryctl deadletter` and `timeline`, and the letters that are newer than the operator."""

    def __init__(self, shop: Shop) -> None:
        self._target = shop.stack.grpc_address()
        self._begin = 0

    async def begin(self) -> None:
        """Leave alone what other tests left behind."""
        letters = await self.letters("--all")
        self._begin = letters[-1]["id"] if letters else 0

    async def __call__(self, *arguments: str) -> Result:
        return await inventoryctl(self._target, "--json", *arguments)

    async def letters(self, *options: str) -> list[dict[str, Any]]:
        after = ("--after", str(self._begin), "--limit", "1000")
        told = await self("deadletter", "list", *after, *options)
        return list(told.message["letters"])

    async def end(self, command: str, letter: Mapping[str, Any]) -> Result:
        return await self("deadletter", command, str(letter["id"]), *WHY)


async def test_bad_events_among_good_ones_are_set_aside_and_dealt_with_by_hand(
    shop: Shop, ledger: Database, cluster: Cluster
) -> None:
    operator = Operator(shop)
    await operator.begin()
    good, lost = await shop.on_sale(1_000, shards=1), await shop.on_sale(1_000, shards=1)
    await shop.drained(lost)
    await move_row(ledger, here=lost, there=lost + AWAY)
    await sell_among_rubbish(shop, cluster, good, lost)
    of_lost, malformed = await the_bad_ones(operator, lost)
    for letter in (of_lost, malformed):
        refused = await operator.end("retry", letter)
        assert (refused.code, refused.message["error"]["reason"]) == (3, "DEAD_LETTER_REFUSED")
    await move_row(ledger, here=lost + AWAY, there=lost)
    retries = await asyncio.gather(*(operator.end("retry", of_lost) for _ in range(2)))
    assert sorted([each.code for each in retries]) == [0, 3]
    assert (await operator.end("discard", malformed)).code == 0
    assert len(await operator.letters()) == 5
    everything = {each["id"]: each for each in await operator.letters("--all")}
    ends = [everything[each["id"]] for each in (of_lost, malformed)]
    assert [(each["state"], each["remark"]) for each in ends] == [
        ("retried", "ann: mended"),
        ("discarded", "ann: mended"),
    ]
    assert len(everything) == 7
    await shop.assert_balanced(lost, accepted={"lost": 2})
    (entry,) = (await operator("timeline", "--product", str(lost))).message["entries"]
    assert (entry["available_before"], entry["available_after"]) == (1_000, 998)
    assert (entry["actor"], entry["reason"]) == ("ann", f"retried letter {of_lost['id']}: mended")
    assert (entry["quantity"], entry["order_id"], entry["request_id"]) == (-2, 5, "lost")


async def sell_among_rubbish(shop: Shop, cluster: Cluster, good: int, lost: int) -> None:
    """A hundred sales, all applied in the end; among them rubbish, and a lost product's sale."""
    (shard,) = (await shop.caller.get_stock(good)).shards
    bad, names = list(rubbish(good)), ids(f"good-{good}", 100)
    for position, name in enumerate(names):
        await shop.caller.deduct(good, 1, request_id=name)
        if position % 15 == 7 and bad:
            await append(cluster, shard.partition, bad.pop(0))
        if position == 50:
            await shop.caller.deduct(lost, 2, request_id="lost", order_id=5)
    assert not bad
    await shop.assert_balanced(good, accepted=dict.fromkeys(names, 1))


async def the_bad_ones(operator: Operator, lost: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The lost product's letter, and one of those that cannot be read."""
    found = await operator.letters()
    classes = [each["reason"].partition(" ")[0] for each in found]
    assert sorted(classes) == ["malformed"] * 6 + ["unknown_product"]
    (of_lost,) = [each for each in found if each["product_id"] == lost]
    return of_lost, next(each for each in found if each["product_id"] != lost)


async def test_the_timeline_of_an_order_and_of_a_request_that_was_repeated(shop: Shop) -> None:
    products = [await shop.on_sale(100) for _ in range(3)]
    order_id = next(_order_ids)
    lines = [OrderLine(each, quantity) for quantity, each in enumerate(products, start=1)]
    await shop.caller.reserve(order_id, lines, user_id=9, ttl_s=60)
    await shop.caller.confirm(order_id)
    for _ in range(3):
        await shop.caller.deduct(products[0], 2, request_id="again", user_id=9)
    for product_id in products:
        await shop.drained(product_id)
    entries = (await shop.caller.get_timeline(order_id=order_id)).entries
    assert [each.id for each in entries] == sorted([each.id for each in entries], reverse=True)
    told = sorted((each.product_id, each.kind, each.quantity) for each in entries)
    assert told == sorted(
        (line.product_id, kind, -line.quantity) for line in lines for kind in ("reserve", "confirm")
    )
    assert {(each.order_id, each.user_id) for each in entries} == {(order_id, 9)}
    page = await shop.caller.get_timeline(product_id=products[0], request_id="again")
    assert [(each.kind, each.quantity) for each in page.entries] == [("deduct", -2)]
    assert page.next_before_id == 0


async def test_rows_of_a_busy_product_begin_where_its_shard_stood_and_end_where_it_stood(
    shop: Shop, ledger: Database
) -> None:
    product_id = await shop.on_sale(400, shards=2)
    orders = [next(_order_ids) for _ in range(60)]

    async def buy(turn: int) -> None:
        items = [
            DeductItem(product_id, 1 + turn % 3, request_id=f"busy-{turn}-{each}")
            for each in range(5)
        ]
        await shop.clients[turn % 2].batch_deduct(items)

    async def order(order_id: int) -> None:
        client, wanted = shop.clients[order_id % 2], [OrderLine(product_id, 1 + order_id % 4)]
        held = await client.batch_reserve([Reservation(order_id, tuple(wanted), ttl_s=60)])
        if held[0].order and held[0].order.state is OrderState.HELD:
            await (client.batch_confirm if order_id % 3 else client.batch_release)([order_id])

    await asyncio.gather(*map(order, orders[:3]))  # one of each kind gets what it wants
    await asyncio.gather(*map(buy, range(40)), *map(order, orders[3:]))
    await shop.caller.restock(product_id, 7, actor="ann")
    await shop.drained(product_id)
    rows = await whole_timeline(shop, product_id)
    of_event: dict[tuple[int, str], list[TimelineEntry]] = defaultdict(list)
    for row in rows:
        of_event[row.partition, row.event_id].append(row)
    checked = 0
    for partition, events in (await raw_events(ledger, product_id)).items():
        available = 0
        for event in events:
            assert event.counts is not None
            if event.kind is Kind.PUT:
                available += event.quantity
            for row in of_event[partition, str(event.id)]:
                assert row.available_before == available
                assert row.available_after is not None
                available = row.available_after
                checked += 1
            if of_event[partition, str(event.id)]:
                assert available == event.counts.available
            available = event.counts.available
    assert checked == len(rows) > 200
    assert {"reserve", "confirm", "release", "deduct", "restock"} <= {row.kind for row in rows}
    assert [row.actor for row in rows if row.kind == "restock"] == ["ann"]


async def whole_timeline(shop: Shop, product_id: int) -> list[TimelineEntry]:
    """All pages, the oldest entry first."""
    found: list[TimelineEntry] = []
    before = 0
    while True:
        page = await shop.caller.get_timeline(
            product_id=product_id, before_id=before, page_size=100
        )
        found += page.entries
        before = page.next_before_id
        if not before:
            return found[::-1]


async def raw_events(ledger: Database, product_id: int) -> Mapping[int, Sequence[Event]]:
    """A product's events by partition, each in its stream's order, as the ledger keeps them."""
    found: dict[int, list[Event]] = defaultdict(list)
    sql = "SELECT partition_id, generation, number, fields FROM raw_event ORDER BY 1, 2, 3"
    for partition, generation, number, packed in await fetch(ledger, sql):
        fields = unpackb(packed)  # type: ignore[arg-type]
        event = decode(
            EventId(generation, number),  # type: ignore[arg-type]
            dict(zip(fields[::2], fields[1::2], strict=True)),
        )
        if event.product_id == product_id and event.counts is not None:
            found[partition].append(event)  # type: ignore[index]
    return found
