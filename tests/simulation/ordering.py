"""What callers do with orders, each step chosen by the seed; see scenario.py."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from sharding.errors import StockUnavailableError
from sharding.ordering import Orders
from sharding.orders import Line, OrderAnswer, canonical
from sharding.outcomes import Outcome
from sharding.placement import Layout, home_shard
from tests.simulation.observed import ViolationError, expect
from tests.simulation.order_book import Asked, E, H
from tests.simulation.shop import Shop, together
from tests.simulation.worker import catch_up_everywhere, sweep, sweep_everywhere
from tests.simulation.world import PARTITIONS, Process

TTLS_S = (0.05, 0.5, 3.0, 30.0, 600.0)
"""How long orders are held."""
LINES_MAX = 4
SWEPT_AT_ONCE = 3
OPEN = (Outcome.UNAVAILABLE, Outcome.OVERLOADED)
"""Answers after which a caller asks again."""
ENDS = ("confirm", "confirm", "release", "extend", "get", "reserve")

Call = Callable[[Orders], Awaitable[OrderAnswer]]


def new_order(shop: Shop) -> Asked:
    """An order under an id of its own."""
    rng = shop.rng
    lines = []
    for _ in range(rng.choice((1, 1, 2, 3, LINES_MAX))):
        product_id = shop.any_product()
        quantity = shop.quantity(product_id) if rng.random() < 0.3 else rng.randint(1, 3)
        lines.append(Line(product_id, quantity))
    is_named = any(shop.ledger.rows[line.product_id].max_per_user for line in lines)
    return _made_up(shop, rng.randrange(0 if not is_named else 1, 4), lines)


def _made_up(shop: Shop, user_id: int, lines: Sequence[Line]) -> Asked:
    order = Asked(len(shop.oracle.orders.orders) + 1, user_id, canonical(lines))
    shop.oracle.orders.knows(order)
    return order


async def call(shop: Shop, order: Asked, kind: str, *, attempt: int = 0) -> OrderAnswer | None:
    """Have any process do something with an order; None if it crashed."""
    ttl_s = shop.rng.choice(TTLS_S)
    product_id = shop.rng.choice((0, *(line.product_id for line in order.lines)))
    # A caller sums nothing up, and its lines have no order.
    lines = [Line(line.product_id, 1) for line in order.lines]
    lines += [Line(p, quantity - 1) for p, quantity in order.lines if quantity > 1]
    shop.rng.shuffle(lines)
    sent = shop.oracle.orders.sends(order, kind, attempt=attempt)
    shop.world.trace.note(kind, order.order_id, order.user_id, lines, ttl_s, product_id, attempt)

    def work(orders: Orders) -> Awaitable[OrderAnswer]:
        order_id, user_id = order.order_id, order.user_id
        match kind:
            case "reserve":
                return orders.reserve(
                    order_id, user_id=user_id, lines=lines, ttl_s=ttl_s, attempt=attempt
                )
            case "sell":
                return orders.sell(order_id, user_id=user_id, lines=lines, attempt=attempt)
            case "extend":
                return orders.extend(order_id, ttl_s, product_id=product_id)
            case "confirm":
                return orders.confirm(order_id, product_id=product_id)
            case "release":
                return orders.release(order_id, product_id=product_id)
        return orders.get(order_id, product_id=product_id)

    answer = await shop.ask(lambda process: work(process.orders))
    shop.world.trace.note("told", order.order_id, repr(answer))
    if answer is not None:
        shop.oracle.answers[f"{kind}: {answer.outcome.value} {answer.reason.value}".strip()] += 1
        shop.oracle.orders.answered(sent, answer)
    return answer


async def insist(
    shop: Shop, order: Asked, kind: str, *, tries: int, attempt: int = 0
) -> OrderAnswer | None:
    """The same call again while its outcome is unknown, so many times."""
    answer = await call(shop, order, kind, attempt=attempt)
    for _ in range(tries):
        if answer is not None and answer.outcome not in OPEN:
            break
        await shop.pause(0.5)
        answer = await call(shop, order, kind, attempt=shop.rng.choice((0, 2)))
    return answer


def any_order(shop: Shop) -> Asked | None:
    """Mostly one of the latest, whatever is known of it."""
    orders = list(shop.oracle.orders.orders.values())
    if not orders:
        return None
    return shop.rng.choice(orders[-5:] if shop.rng.random() < 0.6 else orders)


# What callers do.


async def order(shop: Shop) -> None:
    """A new order from its beginning to its end, if nothing comes between."""
    rng = shop.rng
    wanted = new_order(shop)
    kind = rng.choice(("reserve", "reserve", "reserve", "sell"))
    await insist(shop, wanted, kind, tries=rng.randint(0, 3), attempt=rng.choice((0, 1)))
    await shop.pause(rng.choice((0.0, 0.1, 5.0, 40.0)))
    if rng.random() < 0.7:
        await insist(shop, wanted, rng.choice(ENDS), tries=rng.randint(0, 3))


async def order_in_a_hurry(shop: Shop) -> None:
    """Several calls on one new order at once, through different processes."""
    rng = shop.rng
    wanted = new_order(shop)

    async def one(kind: str) -> None:
        await shop.pause(rng.choice((0.0, 0.005, 0.1, 2.0)))
        await insist(shop, wanted, kind, tries=rng.randint(0, 2), attempt=rng.choice((0, 2)))

    kinds = ["reserve", *rng.choices((*ENDS, "sell"), k=rng.randint(1, 4))]
    await together(*map(one, kinds))


async def order_much(shop: Shop) -> None:
    """Several orders at once, which may want more than there is."""
    orders = [new_order(shop) for _ in range(shop.rng.randint(2, 5))]
    await together(
        *(
            insist(shop, each, shop.rng.choice(("reserve", "sell")), tries=1, attempt=1)
            for each in orders
        )
    )


async def end_an_order(shop: Shop) -> None:
    """Calls on any order, at once; it may have ended, or never have come."""
    found = any_order(shop)
    if found is None:
        return
    kinds = shop.rng.choices(ENDS, k=shop.rng.randint(1, 3))
    await together(*(insist(shop, found, kind, tries=shop.rng.randint(0, 2)) for kind in kinds))


async def order_after_its_release(shop: Shop) -> None:
    """The order is released while its first copy is still on its way."""
    wanted = new_order(shop)

    async def arrive() -> None:
        await shop.pause(shop.rng.choice((0.01, 1.0, 10.0)))
        await insist(shop, wanted, "reserve", tries=1, attempt=shop.rng.choice((0, 1)))

    await together(arrive(), insist(shop, wanted, "release", tries=shop.rng.randint(0, 2)))


async def order_past_a_home(shop: Shop) -> None:
    """A node with a line's home refuses one process or all of them while the order is sent, perhaps
    several times; its first copy may be held up until a repeat has its answer."""
    rng, rows = shop.rng, shop.ledger.rows.values()
    split = [row.product_id for row in rows if row.shards > 1 and not row.max_per_user]
    if not split:
        return
    products = rng.sample(split, rng.randint(1, len(split)))
    wanted = _made_up(shop, 0, [Line(each, rng.randint(1, 2)) for each in products])
    product_id = rng.choice((wanted.lines[0], *wanted.lines)).product_id
    kind = rng.choice(("reserve", "reserve", "sell"))
    node = shop.world.node_of(_home(shop, wanted, product_id))
    caller = rng.choice(("", "", shop.world.any_process().name))

    async def shut() -> None:
        await shop.pause(rng.choice((0.0, 0.0, 0.1)))
        shop.world.network.refuse(node, rng.choice((0.5, 5.0)), caller=caller)

    async def send(attempt: int, latest_s: float) -> None:
        await shop.pause(latest_s)
        await insist(shop, wanted, kind, tries=rng.randint(0, 2), attempt=attempt)

    if rng.random() < 0.4:
        await send(rng.choice((0, 2)), 0.0)
    repeats = (send(rng.choice((0, 2)), 0.3) for _ in range(rng.choice((0, 0, 1, 2))))
    await together(shut(), send(1, rng.choice((0.01, 0.3, 1.0))), *repeats)
    if rng.random() < 0.7:
        await insist(shop, wanted, rng.choice(ENDS), tries=rng.randint(0, 3))


def _home(shop: Shop, order: Asked, product_id: int) -> int:
    """The partition where a line of an order belongs."""
    shards = shop.ledger.rows[product_id].shards
    key = shop.oracle.products[product_id].home_key(order.request_id, order.user_id)
    return Layout(0, shards).partition(
        home_shard(key, shards), product_id=product_id, partitions=PARTITIONS
    )


async def confirm_late(shop: Shop) -> None:
    """An order is held for a moment, expires by itself or by a look, and is paid after that."""
    rng = shop.rng
    wanted = new_order(shop)
    await insist(shop, wanted, "reserve", tries=2, attempt=1)
    await asyncio.sleep(max(0.0, wanted.deadline_ms / 1_000 - shop.world.loop.wall_s()) + 0.01)
    drawn = rng.random()
    if drawn < 0.3:
        await call(shop, wanted, "get")
    elif drawn < 0.6:
        await sweep_some(shop)
    confirmations = (insist(shop, wanted, "confirm", tries=2) for _ in range(rng.choice((1, 1, 3))))
    others = (sweep_some(shop),) if rng.random() < 0.5 else ()
    await together(*confirmations, *others)


async def order_otherwise(shop: Shop) -> None:
    """An order comes again with another content."""
    found = any_order(shop)
    if found is None or not found.told or found.first_hold is None:
        return
    lines, user_id = list(found.lines), found.user_id
    is_other_user = shop.rng.random() < 0.3
    if is_other_user and not any(shop.ledger.rows[p].max_per_user for p, _ in lines):
        user_id += 1
    elif len(lines) > 1 and shop.rng.random() < 0.5:
        lines = lines[:-1]
    else:
        lines[0] = lines[0]._replace(quantity=lines[0].quantity + 1)
    work: Call = lambda orders: orders.reserve(  # noqa: E731
        found.order_id, user_id=user_id, lines=lines, ttl_s=1.0
    )
    answer = await shop.ask(lambda process: work(process.orders))
    if answer is not None and answer.outcome not in (Outcome.REQUEST_MISMATCH, *OPEN):
        raise ViolationError(f"I4: {found} was sent as {user_id} {lines} and told {answer}")


async def sweep_some(shop: Shop) -> None:
    """Workers look after orders, sometimes two of them at the same time."""
    limit = shop.rng.choice((1, 3, 100))
    for partition in shop.rng.sample(_coordinators(shop), SWEPT_AT_ONCE):
        times = shop.rng.choice((1, 1, 2))
        await together(*(sweep(shop, partition, limit=limit) for _ in range(times)))


async def put_orders_aside(shop: Shop) -> None:
    """A worker lets orders that are due rest for a while, as it does with those that make no sense."""
    partition = shop.rng.choice(_coordinators(shop))
    pause_s = shop.rng.choice(TTLS_S)

    async def work(process: Process) -> None:
        due = await process.orders.due(partition, limit=3)
        coordinator = process.orders._coordinator
        await coordinator.park(partition, [each.member for each in due.orders], pause_s=pause_s)

    with suppress(StockUnavailableError):
        await shop.ask(work)


def _coordinators(shop: Shop) -> Sequence[int]:
    """The partitions, those with undecided orders several times."""
    busy = [
        found.first_hold.place.partition
        for found in shop.oracle.orders.orders.values()
        if found.first_hold is not None
    ]
    return [*range(PARTITIONS), *busy]


# The end.


async def settle_orders(shop: Shop) -> None:
    """Nothing goes wrong any more: what is held can be paid, and the rest ends by itself."""
    orders = list(shop.oracle.orders.orders.values())
    for found in orders:
        if shop.rng.random() < 0.5:
            await _end_in_time(shop, found)
    await _expire_all(shop)
    for found in orders:
        await _ask_for_good(shop, found)
    await _expire_all(shop)


async def _expire_all(shop: Shop) -> None:
    await asyncio.sleep(max(TTLS_S) + shop.world.grace_s + 1.0)
    await sweep_everywhere(shop)
    shop.oracle.orders.is_settled()
    for product_id, product in shop.oracle.products.items():
        expect(not product.held, f"I6: units are held for ever: product {product_id}: {product}")


async def _end_in_time(shop: Shop, found: Asked) -> None:
    """What was told to be held, and has time left, ends as it is asked to; after a restoration once a
    worker has asked its lines."""
    if found.is_questioned:
        await sweep_everywhere(shop)
    is_held = found.state is H and shop.world.loop.wall_s() * 1_000 < found.deadline_ms
    if not is_held:
        return
    kind = shop.rng.choice(("confirm", "release"))
    expected = Outcome.CONFIRMED if kind == "confirm" else Outcome.RELEASED
    answer = await call(shop, found, kind)
    expect(
        answer is not None and answer.outcome is expected and not answer.replayed,
        f"I6: {found} with time left got {answer} by {kind}",
    )


async def _ask_for_good(shop: Shop, found: Asked) -> None:
    """With nothing going wrong each call is answered, and who pays late gets units that are there."""
    state = found.state
    can_be_retaken = state is E and all(
        shop.oracle.products[line.product_id].offered[-1] >= line.quantity
        and not shop.oracle.products[line.product_id].limits
        for line in found.lines
    )
    kinds = ["get", "confirm", "release", "reserve", "sell"]
    shop.rng.shuffle(kinds)
    for kind in kinds:
        await catch_up_everywhere(shop)
        answer = await call(shop, found, kind, attempt=2)
        expect(
            answer is not None and answer.outcome not in OPEN,
            f"{found} stays unknown with nothing going wrong: {answer} by {kind}",
        )
        if kind == "confirm" and can_be_retaken and answer is not None:
            expect(answer.outcome is Outcome.RETAKEN, f"I3: {found} could be retaken: {answer}")
