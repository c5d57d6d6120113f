"""Products to which everything has happened that a partition remembers, and what it remembers of it."""

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from ledger.buffer_releases import Buffers, Release
from ledger.freezes import Freezes
from ledger.layouts import Cause, Layouts
from sharding import keys
from sharding.cluster import LaneKind
from sharding.ordering import Orders
from sharding.orders import Line
from sharding.outcomes import Deduction, Outcome
from tests.ledger.conftest import fetch
from tests.ledger.streams import fresh_order_ids, fresh_request_ids
from tests.waiting import eventually
from tests.worker.conftest import PARTITIONS, World
from tests.worker.losses import EVERYWHERE, keys_of

HOLD_S = 600
SETTLED = (
    "moves",
    "repaired",
    "restored",
    "visited",
    "since_ms",
    "next_shards",
    "gathering_until_ms",
)
"""Fields that a restoration has words of its own for, or that last a moment."""


@dataclass(slots=True)
class Busy:
    """The products and orders, by what happened to them."""

    sold: int = 0
    limited: int = 0
    frozen: int = 0
    closed: int = 0
    buffered: int = 0
    resharded: int = 0
    held: dict[int, int] = field(default_factory=dict)
    """Orders that hold units, and their first products."""
    confirmed: int = 0
    requests: list[Deduction] = field(default_factory=list)
    """That were accepted and may be repeated."""

    @property
    def all(self) -> list[int]:
        return [
            self.sold,
            self.limited,
            self.frozen,
            self.closed,
            self.buffered,
            self.resharded,
        ]


async def busy_world(world: World, orders: Orders) -> Busy:
    """Needs a worker; returns once the ledger has all of it."""
    busy = Busy()
    busy.sold = await _sold(world, busy)
    busy.limited = await _limited(world)
    busy.frozen = await _frozen(world)
    busy.closed = await _closed(world)
    busy.buffered = await _buffered(world)
    busy.resharded = await _resharded(world, busy)
    await _order(world, orders, busy)
    await drained(world)
    return busy


async def take(world: World, product: int, quantity: int, **more: int) -> Deduction:
    """One accepted request."""
    (request_id,) = fresh_request_ids(1)
    request = Deduction(request_id, product, quantity, **more)
    (answer,) = await world.stock.deduct([request])
    assert answer.outcome is Outcome.DEDUCTED, answer
    return request


async def _sold(world: World, busy: Busy) -> int:
    """Ten units a shard, of which requests of fifteen need those of two."""
    product = await world.on_sale(60)
    busy.requests += [await take(world, product, 15, user_id=3) for _ in range(2)]
    busy.requests += [await take(world, product, 1) for _ in range(8)]
    for kind in (world.stock.restock, world.stock.remove):
        (request_id,) = fresh_request_ids(1)
        answer = await kind(product, request_id=request_id, quantity=5, reason="counted")
        assert answer.outcome is Outcome.DEDUCTED
    refused, never = fresh_request_ids(2)
    (answer,) = await world.stock.deduct([Deduction(refused, product, 500, attempt=2)])
    assert answer.outcome is Outcome.INSUFFICIENT_STOCK
    await world.stock.resolve(product, never)
    return product


async def _limited(world: World) -> int:
    product = await world.on_sale(60, max_per_user=3)
    for user in (11, 12, 13):
        await take(world, product, 2, user_id=user)
    return product


async def _frozen(world: World) -> int:
    product = await world.on_sale(60)
    await Freezes(world.database).freeze(product, reason="recalled", actor="ann")
    await eventually(lambda: _is_frozen(world, product))
    return product


async def _is_frozen(world: World, product: int) -> bool:
    seen = await world.stock.read(product)
    return seen is not None and seen.frozen


async def _closed(world: World) -> int:
    product = await world.on_sale(60)
    await take(world, product, 4)
    await close(world, product)
    return product


async def close(world: World, product: int) -> None:
    """As the call does, and the ledger knows."""
    row = await world.products.begin_close(product)
    shards = await world.stock.close(product, row.epoch)

    async def are_closed() -> bool:
        return await world.products.closed_shards(product, epoch=row.epoch) >= shards

    await eventually(are_closed)
    await world.products.finish_close(product, epoch=row.epoch)


async def _buffered(world: World) -> int:
    product = await world.on_sale(100, buffer_percent=40)
    release = Release(product, "early", 10, "", "")
    await Buffers(world.database, partitions=PARTITIONS).release(release)
    sql = "SELECT COALESCE(SUM(released), 0) FROM shard_stock WHERE product_id = %s"
    await eventually(lambda: _is(world, sql, product, 10))
    return product


async def _is(world: World, sql: str, product: int, value: int) -> bool:
    return bool((await fetch(world.database, sql, product))[0][0] == value)


async def _resharded(world: World, busy: Busy) -> int:
    product = await world.on_sale(60)
    busy.requests += [await take(world, product, 1) for _ in range(12)]
    layouts = Layouts(world.database)
    aim = await layouts.want(product, 2, Cause.OPERATOR, partitions=PARTITIONS)
    assert aim
    sql = "SELECT COUNT(*) FROM layout_change WHERE product_id = %s AND state = 'done'"
    await eventually(lambda: _is(world, sql, product, 1))
    busy.requests += [await take(world, product, 1) for _ in range(6)]
    return product


async def _order(world: World, orders: Orders, busy: Busy) -> None:
    one, two = await world.on_sale(30), await world.on_sale(30)
    alone, apart, extended, sold, confirmed, released, short, limited = fresh_order_ids(8)
    several = [Line(one, 2), Line(two, 1)]
    for order_id, lines in (
        (alone, [Line(one, 1)]),
        (apart, several),
        (extended, several),
        (confirmed, several),
        (released, several),
        (limited, [Line(busy.limited, 1)]),
    ):
        answer = await orders.reserve(order_id, user_id=11, lines=lines, ttl_s=HOLD_S, attempt=1)
        assert answer.outcome is Outcome.HELD, answer
    await orders.extend(extended, 2 * HOLD_S)
    await orders.sell(sold, user_id=5, lines=several, attempt=1)
    await orders.confirm(confirmed)
    await orders.release(released)
    answer = await orders.reserve(
        short, user_id=5, lines=[Line(one, 1), Line(two, 100)], ttl_s=HOLD_S, attempt=1
    )
    assert answer.outcome is Outcome.INSUFFICIENT_STOCK
    await orders.drain()
    busy.held = {alone: one, apart: one, extended: one, limited: busy.limited}
    busy.confirmed = confirmed


async def drained(world: World) -> None:
    """Return when the ledger has every event."""

    async def is_drained(partition: int) -> bool:
        head = await world.partitions.head(partition)
        applied = (await world.checkpoints.of({partition}))[partition].id
        return applied >= head.stream(0).last

    async def are_drained() -> bool:
        return all(await asyncio.gather(*map(is_drained, EVERYWHERE)))

    await eventually(are_drained)


Memory = Mapping[str, Mapping[str, str]]
"""Fields by key; records and tombstones of all generations each under one."""


async def remembered(world: World, partitions: Collection[int] = EVERYWHERE) -> dict[int, Memory]:
    """What partitions know, less what does not matter."""
    return {each: await _remembered(world, each) for each in partitions}


async def _remembered(world: World, partition: int) -> Memory:
    memory: dict[str, dict[str, str]] = {}
    for key in await keys_of(world, partition):
        _, _, kind, *of = key.split(":")
        if kind not in ("head", "events", "witness"):
            name = " ".join([kind, *of]) if kind not in ("seen", "gone") else kind
            memory.setdefault(name, {}).update(await _fields(world, partition, key))
    return {
        name: {name: text for name, text in fields.items() if not _passes(name, text)}
        for name, fields in memory.items()
    }


def _passes(name: str, text: str) -> bool:
    """Whether a field is of no account, as is the bar of an order, which no event brings back."""
    return name in (*SETTLED, "-") or (name.startswith("order ") and text == "n")


async def _fields(world: World, partition: int, key: str) -> dict[str, str]:
    is_sorted = key == keys.deadlines(world.cluster.tags[partition])
    command = ("ZRANGE", key, "0", "-1", "WITHSCORES") if is_sorted else ("HGETALL", key)
    reply = await world.cluster.command(partition, *command, lane=LaneKind.READ)
    assert isinstance(reply, list)
    texts = [part.decode() for part in reply]
    return dict(zip(texts[::2], texts[1::2], strict=True))
