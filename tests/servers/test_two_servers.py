"""A ledger of two MySQL servers: all as with one, and one that is down delays its own products only."""

import asyncio
import re
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import grpc
import pytest
from redis.asyncio.cluster import ClusterNode, RedisCluster

from deploy.demo.readings import read_ledger
from deploy.local.ports import HOST
from deploy.local.redis_cluster import start_cluster
from inventory.client import (
    AsyncInventoryClient,
    DeductItem,
    Event,
    EventKind,
    Frozen,
    InvalidRequest,
    OrderLine,
    Outcome,
    OutcomeUnknown,
    PreconditionFailed,
    RetryPolicy,
    Unavailable,
)
from inventory.v1.admin_pb2 import GetProductRequest, ListDeadLettersRequest, ListProductsRequest
from ledger.database import Database
from ledger.settings import parse_url
from sharding import keys
from sharding.placement import Layout
from tests.acceptance.orders import (
    SWEPT_WITHIN_S,
    assert_settled,
    new_order_ids,
    until_nothing_is_held,
)
from tests.acceptance.shop import WORKERS, Shop, ids
from tests.ledger.conftest import fetch, write
from tests.pages import figures
from tests.servers.conftest import HURRY, MYSQL_SERVERS
from tests.waiting import Unmet, eventually

UNITS, BUYERS = 120, 200
CALL_S = 8
HASTY = RetryPolicy(deadline_s=20.0, try_timeout_s=10.0, tries_max=1)
"""A caller that wants to hear the service's own word."""
REFUSED_WITHIN_S = TOLD_WITHIN_S = 20.0
FORCED = "SELECT product_id FROM inventory_log WHERE kind = 'force_release' AND order_id = %s"
LETTER = (
    "INSERT INTO dead_letter (partition_id, generation, number, reason, fields) "
    "VALUES (0, 1, %s, 'test', X'90')"
)


async def one_of_each(twins: Shop, units: int = UNITS) -> list[int]:
    """A product on sale of each MySQL server, in their order."""
    return [await twins.on_sale(units, server=server) for server in MYSQL_SERVERS]


async def sold(twins: Shop, product_id: int, prefix: str, buyers: int) -> dict[str, int]:
    """What a crowd at both servers was sold of a product, by request."""
    crowd = [DeductItem(product_id, 1, request_id=each, attempt=1) for each in ids(prefix, buyers)]
    halves = zip(twins.clients, (crowd[::2], crowd[1::2]), strict=True)
    answers = await asyncio.gather(*(client.batch_deduct(half) for client, half in halves))
    items = [*crowd[::2], *crowd[1::2]]
    results = [answer for part in answers for answer in part]
    assert {each.outcome for each in results} <= {Outcome.DEDUCTED, Outcome.INSUFFICIENT_STOCK}
    return {
        item.request_id: 1
        for item, result in zip(items, results, strict=True)
        if result.outcome is Outcome.DEDUCTED
    }


async def sold_of_each(
    twins: Shop, products: Sequence[int], prefix: str, buyers: int
) -> list[dict[str, int]]:
    return list(
        await asyncio.gather(*(sold(twins, product, prefix, buyers) for product in products))
    )


async def until_applied(twins: Shop, product_id: int, units: int) -> None:
    """Until the ledger has so many units of a product sold."""

    async def is_applied() -> bool:
        return (await read_ledger(twins.stack, product_id)).product.sold == units

    await eventually(is_applied)


async def test_every_unit_is_sold_once_and_stands_in_its_own_server(
    twins: Shop, databases: list[Database]
) -> None:
    products = await one_of_each(twins)
    accepted = await sold_of_each(twins, products, "sale", BUYERS)
    for server, (product_id, its) in enumerate(zip(products, accepted, strict=True)):
        assert len(its) == UNITS
        await twins.assert_balanced(product_id, accepted=its)
        rows = [
            await fetch(
                database, "SELECT COUNT(*) FROM inventory_log WHERE product_id = %s", product_id
            )
            for database in databases
        ]
        assert [count for ((count,),) in rows] == [
            UNITS * (each == server) for each in MYSQL_SERVERS
        ]
        closed = await twins.caller.close_product(product_id)
        assert (closed.sold_count, closed.available_stock) == (UNITS, 0)
        assert not await twins.caller.restock(product_id, 5, request_id="more")
        assert (await twins.caller.get_product(product_id)).available_stock == 5


async def test_the_shard_count_of_a_product_of_either_server_changes_in_the_middle_of_a_sale(
    twins: Shop,
) -> None:
    products = await one_of_each(twins)

    async def reshard_and_sell(product_id: int) -> dict[str, int]:
        first, _ = await asyncio.gather(
            sold(twins, product_id, "first", UNITS // 2), twins.caller.set_shards(product_id, 12)
        )
        return first | await sold(twins, product_id, "second", UNITS)

    accepted = await asyncio.gather(*map(reshard_and_sell, products))
    for product_id, its in zip(products, accepted, strict=True):
        assert len(its) == UNITS
        await twins.assert_balanced(product_id, accepted=its)


async def test_orders_over_products_of_both_servers_end_once_on_both(
    twins: Shop, databases: list[Database]
) -> None:
    products = await one_of_each(twins)
    orders = new_order_ids(12)
    paid, released, forced, left = orders[:3], orders[3:6], orders[6:9], orders[9:]
    caller, lines = twins.caller, [OrderLine(product, 2) for product in products]
    async with watch(twins, kinds=[EventKind.ORDER_EXPIRED], cursors=True) as told:
        await anext(told)
        for order in orders:
            ttl_s = 1 if order in left else 600
            assert (await caller.reserve(order, lines, ttl_s=ttl_s, attempt=1)).held
        for order in paid:
            assert (await caller.confirm(order)).sold
        for order in released:
            await caller.release(order)
        for order in forced:
            await caller.force_release(order, reason="stuck", actor="ann")
        await until_nothing_is_held(twins, products, within_s=SWEPT_WITHIN_S)
        expired = [event.order_id for event in await next_events(told, len(left))]
    assert sorted(expired) == left
    for product_id in products:
        await assert_settled(twins, product_id, sold=dict.fromkeys(paid, 2))
    for order in forced:
        rows = [await fetch(database, FORCED, order) for database in databases]
        assert rows == [[(product_id,)] for product_id in products]


async def test_an_order_that_one_server_s_product_is_too_few_for_holds_nothing_of_the_other(
    twins: Shop,
) -> None:
    plenty, few = await one_of_each(twins)
    (order,) = new_order_ids(1)
    refused = await twins.caller.reserve(
        order, [OrderLine(plenty, 1), OrderLine(few, UNITS + 1)], attempt=1
    )
    assert refused.outcome is Outcome.INSUFFICIENT_STOCK
    for product_id in (plenty, few):
        await assert_settled(twins, product_id, sold={})


async def test_lists_go_through_the_rows_of_all_servers(
    twins: Shop, databases: list[Database], admin: Any
) -> None:
    products = [*await one_of_each(twins), *await one_of_each(twins)]
    orders = new_order_ids(4)
    for order in orders:
        lines = [OrderLine(each, 1) for each in products]
        assert (await twins.caller.reserve(order, lines, ttl_s=600, attempt=1)).held

    async def holds() -> list[Any]:
        found = [hold async for hold in all_holds(twins.caller)]
        return [hold for hold in found if hold.order_id in orders]

    async def all_are_held() -> bool:
        return len(await holds()) == len(orders) * len(products)

    await eventually(all_are_held)
    assert len({hold.id for hold in await holds()}) == len(orders) * len(products)
    listed = [product.product_id async for product in all_products(twins.caller)]
    assert listed == sorted(set(listed))
    assert set(products) <= set(listed)
    for database in databases:
        for number in range(3):
            await write(database, LETTER, number)
    letters = [letter async for letter in all_letters(admin)]
    assert letters == sorted(set(letters))
    assert len(letters) == 6
    for letter in letters:
        await twins.caller.discard_dead_letter(letter, reason="a test's", actor="ann")
    assert [letter async for letter in all_letters(admin)] == []
    with pytest.raises(PreconditionFailed, match=f"dead letter {letters[-1]} was discarded"):
        await twins.caller.retry_dead_letter(letters[-1], reason="again", actor="ann")
    for order in orders:
        await twins.caller.release(order)


async def test_operators_reach_what_is_in_either_server(twins: Shop) -> None:
    products = [
        await twins.on_sale(20, buffer_percent=50, server=server) for server in MYSQL_SERVERS
    ]
    caller, (order,) = twins.caller, new_order_ids(1)
    lines = [OrderLine(product, 2) for product in products]
    assert (await caller.deduct_order(order, lines, attempt=1)).sold
    for product_id in products:
        assert (await caller.audit(product_id)).balanced
        await caller.freeze(product_id, reason="a test", actor="ann")
        with pytest.raises(Frozen):
            await caller.deduct(product_id, 1)
        await caller.unfreeze(product_id, reason="a test", actor="ann")
        assert (await caller.deduct(product_id, 1)).accepted
        released = await caller.release_buffer(product_id, 3, request_id="out", actor="ann")
        assert (released.quantity, released.replayed) == (3, False)
        kinds = {entry.kind async for entry in timeline(caller, product_id=product_id)}
        assert {"reserve", "confirm", "freeze", "unfreeze", "buffer"} <= kinds
    of_order = [entry async for entry in timeline(caller, order_id=order)]
    assert {entry.product_id for entry in of_order} == set(products)
    assert [entry.id for entry in of_order] == sorted({each.id for each in of_order}, reverse=True)


async def timeline(caller: AsyncInventoryClient, **of: int) -> AsyncIterator[Any]:
    before = -1
    while before:
        page = await caller.get_timeline(before_id=max(0, before), page_size=1, **of)
        for entry in page.entries:
            yield entry
        before = page.next_before_id


async def all_holds(caller: AsyncInventoryClient) -> AsyncIterator[Any]:
    after = -1
    while after:
        page = await caller.list_holds(after_id=max(0, after), page_size=5)
        for hold in page.holds:
            yield hold
        after = page.next_after_id


async def all_products(caller: AsyncInventoryClient) -> AsyncIterator[Any]:
    after = -1
    while after:
        page = await caller.list_products(after_product_id=max(0, after), page_size=3)
        for product in page.products:
            yield product
        after = page.next_after_product_id


async def all_letters(admin: Any) -> AsyncIterator[int]:
    after = -1
    while after:
        request = ListDeadLettersRequest(after_id=max(0, after), page_size=2)
        page = await admin.ListDeadLetters(request, timeout=CALL_S)
        for letter in page.letters:
            yield letter.id
        after = page.next_after_id


async def test_a_watch_goes_on_from_each_of_its_cursors_at_both_servers(twins: Shop) -> None:
    products = await one_of_each(twins, units=4)
    kinds = [EventKind.SOLD_OUT, EventKind.BACK_IN_STOCK]

    async def after(cursor: str, number: int) -> list[Event]:
        async with watch(twins, cursor=cursor, kinds=kinds, product_ids=products) as told:
            return await next_events(told, number)

    async with watch(twins, cursors=True) as told:
        begin = (await anext(told)).cursor
    for turn in range(1, 3):
        for product_id in products:
            assert len(await sold(twins, product_id, f"turn{turn}", 4)) == 4
            await until_applied(twins, product_id, 4 * turn)
            await twins.caller.restock(product_id, 4)
    everything = await after(begin, 8)
    for position, event in enumerate(everything, 1):
        rest = await after(event.cursor, 8 - position)
        for product_id in products:
            assert of_product(rest, product_id) == of_product(everything[position:], product_id)
    for product_id in products:
        assert [event.kind for event in everything if event.product_id == product_id] == kinds * 2


@pytest.mark.parametrize("cursor", ["1", "1.2.3", "1.", "a.b"])
async def test_a_cursor_has_a_position_for_each_server(twins: Shop, cursor: str) -> None:
    with pytest.raises(InvalidRequest, match="cursor"):
        async with watch(twins, cursor=cursor) as told:
            await anext(told)


def watch(twins: Shop, **wanted: Any) -> Any:
    return aclosing(twins.caller.watch_events(**wanted))


async def next_events(told: AsyncIterator[Event], number: int) -> list[Event]:
    """The next so many of a watch that may have been asked for cursors, too."""
    found: list[Event] = []
    async with asyncio.timeout(TOLD_WITHIN_S):
        while len(found) < number:
            event = await anext(told)
            if event.kind is not EventKind.UNSPECIFIED:
                found.append(event)
    return found


def of_product(events: Sequence[Event], product_id: int) -> list[tuple[EventKind, int]]:
    return [(each.kind, each.at_ms) for each in events if each.product_id == product_id]


async def test_a_server_that_hangs_delays_its_own_products_only(twins: Shop, admin: Any) -> None:
    """The first server, which the upkeep of the partitions follows while it answers."""
    products = hanging, other = await one_of_each(twins)
    orders, mysql = new_order_ids(2), twins.stack.databases[0].process
    parts = [await sold_of_each(twins, products, "before", 20)]
    async with watch(twins, kinds=[EventKind.ORDER_EXPIRED], cursors=True) as told:
        await anext(told)
        mysql.pause()
        try:
            await hold_for_a_second(twins, orders, products)
            parts.append(await sold_of_each(twins, products, "during", 30))
            await until_applied(twins, other, 50)
            await replace_workers_and_a_server(twins)
            await assert_away(admin.GetProduct(GetProductRequest(product_id=hanging)))
            await assert_away(admin.ListProducts(ListProductsRequest()))
            assert (await twins.caller.get_product(other)).sold_count == 50
            stocks = [await twins.caller.get_stock(product_id) for product_id in products]
            assert [stock.sold for stock in stocks] == [50, 50]
            await until_nothing_is_held(twins, products, within_s=SWEPT_WITHIN_S)
            assert [each.order_id for each in await next_events(told, 1)] == orders[1:]
            parts.append(await sold_of_each(twins, products, "later", 10))
            await until_applied(twins, other, 60)
        finally:
            mysql.resume()
        assert [each.order_id for each in await next_events(told, 1)] == orders[:1]
    await twins.stack.start_worker(1, environment=HURRY)
    await assert_all_applied(twins, products, parts)


async def hold_for_a_second(twins: Shop, orders: Sequence[int], products: Sequence[int]) -> None:
    for order, product_id in zip(orders, products, strict=True):
        line = OrderLine(product_id, 3)
        assert (await twins.caller.reserve(order, [line], ttl_s=1, attempt=1)).held


async def replace_workers_and_a_server(twins: Shop) -> None:
    """The new ones do their work although one of their MySQL servers has never answered them."""
    twins.stack.servers[1].kill()
    await twins.start_server(1)
    for worker in WORKERS:
        twins.stack.workers[worker].kill()
    await twins.stack.start_worker(0, environment=HURRY)


async def assert_all_applied(
    twins: Shop, products: Sequence[int], parts: Sequence[Sequence[dict[str, int]]]
) -> None:
    for product_id, its in zip(products, zip(*parts, strict=True), strict=True):
        accepted = {request: units for part in its for request, units in part.items()}
        assert len(accepted) == sum(map(len, its))
        await twins.assert_balanced(product_id, accepted=accepted)


async def assert_away(call: Any) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await asyncio.wait_for(call, CALL_S)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_server_that_is_killed_has_everything_once_when_it_is_back(twins: Shop) -> None:
    products = other, killed = await one_of_each(twins)
    mysql = twins.stack.databases[1].process
    (order,) = new_order_ids(1)
    parts = []
    for turn in range(2):
        parts.append(await sold_of_each(twins, products, f"up{turn}", 10))
        mysql.kill()
        parts.append(await sold_of_each(twins, products, f"down{turn}", 10))
        await until_applied(twins, other, 20 * (turn + 1))
        await mysql.start()
    lines = [OrderLine(other, 1), OrderLine(killed, 1)]
    assert (await twins.caller.reserve(order, lines, ttl_s=600, attempt=1)).held
    await twins.caller.release(order)
    await assert_all_applied(twins, products, parts)


async def test_the_lag_is_of_each_server_and_holes_in_numbers_are_no_losses(twins: Shop) -> None:
    products = await one_of_each(twins)
    accepted = await sold_of_each(twins, products, "sale", 40)
    await assert_all_applied(twins, products, [accepted])

    async def no_lag() -> bool | Unmet:
        lags = [
            await of_worker(twins, each, "inventory_worker_stream_lag_entries") for each in WORKERS
        ]
        labels = {label.split(",")[0] for lag in lags for label in lag}
        partitions = len(twins.stack.redis_nodes) * 8
        assert labels <= {'{ledger="0"', '{ledger="1"'}
        late = [{label: value for label, value in lag.items() if value} for lag in lags]
        is_shared_out = sum(map(len, lags)) == partitions * len(MYSQL_SERVERS)
        if is_shared_out and not any(late):
            return True
        return Unmet(f"of {partitions} each they have {list(map(len, lags))}, and late {late}")

    await eventually(no_lag)
    for worker in WORKERS:
        assert await of_worker(twins, worker, "inventory_worker_event_gaps_total") == {"": 0}


async def test_an_event_that_is_lost_before_it_is_applied_is_told(twins: Shop) -> None:
    (product_id, _) = await one_of_each(twins)
    await sold(twins, product_id, "kept", 10)
    await until_applied(twins, product_id, 10)
    for worker in WORKERS:
        twins.stack.workers[worker].pause()
    lost = await twins.caller.deduct(product_id, 1, request_id="lost")
    await remove_last_event(twins, product_id, lost.shard)
    assert len(await sold(twins, product_id, "later", 40)) == 40
    for worker in WORKERS:
        twins.stack.workers[worker].resume()

    async def is_told() -> bool:
        found = [
            await of_worker(twins, each, "inventory_worker_event_gaps_total") for each in WORKERS
        ]
        return sum(gaps[""] for gaps in found) > 0

    await eventually(is_told)


async def remove_last_event(twins: Shop, product_id: int, shard: int) -> None:
    layout = Layout(1, 6)
    partition = layout.partition(shard, product_id=product_id, partitions=48)
    stream = keys.events(keys.tags(48)[partition], 0)
    nodes = [ClusterNode(*address.split(":")) for address in twins.stack.redis_nodes]
    async with RedisCluster(startup_nodes=nodes) as redis:
        ((entry, _),) = await redis.xrevrange(stream, count=1)
        assert await redis.xdel(stream, entry) == 1


async def of_worker(twins: Shop, worker: int, name: str) -> Mapping[str, float]:
    """A worker's figures of one name, by their labels."""
    return await figures(f"{HOST}:{twins.stack.ports.worker_metrics(worker)}", name)


async def test_the_buffers_of_both_servers_are_sold_while_redis_is_gone(twins: Shop) -> None:
    products = [
        await twins.on_sale(20, buffer_percent=50, server=server) for server in MYSQL_SERVERS
    ]
    hasty = await twins.client(twins.stack.grpc_address(), HASTY)
    accepted = await asyncio.gather(*(sold(twins, each, "live", 3) for each in products))
    for product_id in products:
        await until_applied(twins, product_id, 3)
    for node in twins.stack.redis:
        node.process.kill()
    for product_id, its in zip(products, accepted, strict=True):
        its.update(await bought(twins, product_id, ids("buffer", 4)))
    mysql = twins.stack.databases[0].process
    mysql.pause()
    try:
        with pytest.raises((Unavailable, OutcomeUnknown)):
            await hasty.deduct(products[0], 1, request_id="hangs")
        accepted[1].update(await bought(twins, products[1], ids("meanwhile", 2)))
    finally:
        mysql.resume()
    await start_cluster(twins.stack.redis)
    for product_id, its in zip(products, accepted, strict=True):
        its.update(await bought(twins, product_id, ids("after", 2)))
        assert await bought(twins, product_id, list(its)) == its
        rest = [f"rest{each}" for each in range(30)]
        answers = [await twins.caller.deduct(product_id, 1, request_id=each) for each in rest]
        its.update({each: 1 for each, answer in zip(rest, answers, strict=True) if answer.accepted})
        hangs = await twins.caller.resolve(product_id, "hangs")
        its.update({"hangs": hangs.quantity} if hangs.quantity else {})
        stock, ledger = await twins.drained(product_id)
        assert ledger.deductions == its
        assert (stock.total, stock.sold + stock.available + stock.buffer) == (20, 20)
        assert stock.sold == ledger.product.sold == len(its)
        assert stock.available == 0
    assert (await twins.caller.get_cluster()).mode == "redis"


async def bought(twins: Shop, product_id: int, names: Sequence[str]) -> dict[str, int]:
    """Requests of a unit each, all accepted, by either server."""
    for position, name in enumerate(names):
        answer = await twins.clients[position % 2].deduct(product_id, 1, request_id=name)
        assert answer.accepted
    return dict.fromkeys(names, 1)


SWAPPED, ONE_MISSING, NOWHERE = (1, 0), (0,), ()
OTHER_PLACE = (
    r"set up as MySQL server (\d) of 2, INVENTORY_MYSQL_URLS names it as server (?!\1)\d of 2"
)
OTHER_NUMBER = "set up as MySQL server 1 of 2, INVENTORY_MYSQL_URLS names it as server 1 of 1"
SAID_BY_REDIS = "was 2 when the Redis Cluster was set up, INVENTORY_MYSQL_URLS names 1"


@pytest.mark.parametrize(
    ("module", "chosen", "says"),
    [
        ("worker", SWAPPED, OTHER_PLACE),
        ("server", SWAPPED, OTHER_PLACE),
        ("worker", ONE_MISSING, OTHER_NUMBER),
        ("server", ONE_MISSING, f"{OTHER_NUMBER}|{SAID_BY_REDIS}"),  # whichever answers first
        ("server", NOWHERE, SAID_BY_REDIS),  # a worker waits for MySQL before it looks at Redis
    ],
    ids=["worker-swapped", "server-swapped", "worker-missing", "server-missing", "server-nowhere"],
)
async def test_other_servers_than_before_end_a_process_with_one_line(
    twins: Shop, module: str, chosen: Sequence[int], says: str
) -> None:
    urls = [twins.stack.mysql_urls[each] for each in chosen] or ["mysql://u:p@127.0.0.1:1/nothing"]
    code, said = await run_to_its_end(twins, module, ",".join(urls))
    assert code == 2
    (line,) = [line for line in said.splitlines() if not line.startswith("{")]
    assert re.search(says, line)
    assert not any(parse_url(url).password in said for url in twins.stack.mysql_urls)


async def run_to_its_end(twins: Shop, module: str, urls: str) -> tuple[int, str]:
    environment = {
        **twins.stack.environment(),
        "INVENTORY_MYSQL_URLS": urls,
        "INVENTORY_GRPC_ADDRESS": f"{HOST}:0",
        "INVENTORY_METRICS_ADDRESS": f"{HOST}:0",
        "INVENTORY_SERVER_PROCESSES": "1",
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        module,
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        said, _ = await asyncio.wait_for(process.communicate(), REFUSED_WITHIN_S)
    finally:
        if process.returncode is None:
            process.kill()
    return process.returncode or 0, said.decode()
