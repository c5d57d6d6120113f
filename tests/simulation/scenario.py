"""What callers do: several of them at once, each step chosen by the seed, then healing and a reckoning.

To add something that callers can do, write a coroutine function that takes the Shop and put it into
ACTIONS with its weight. What must hold all the time belongs into the Oracle.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from random import Random

from sharding.errors import CloseBusyError, StockUnavailableError
from sharding.events import BEFORE_ALL, EventId, Repair, anchor
from sharding.keys import events
from sharding.outcomes import (
    Answer,
    Deduction,
    Outcome,
    ProductStock,
    Reason,
    Resolution,
    Resolved,
    State,
)
from sharding.partitions import Checkpoint
from sharding.placement import Layout, home_shard
from sharding.plans import Freeze
from tests.simulation.ledger import NO_UNITS, Row
from tests.simulation.network import Fate, Faults
from tests.simulation.observed import Request, ViolationError
from tests.simulation.oracle import Oracle
from tests.simulation.ordering import (
    confirm_late,
    end_an_order,
    order,
    order_after_its_release,
    order_in_a_hurry,
    order_much,
    order_otherwise,
    order_past_a_home,
    put_orders_aside,
    settle_orders,
    sweep_some,
)
from tests.simulation.shop import TRIES_MAX, Shop, together
from tests.simulation.worker import (
    bring_buffer,
    catch_up,
    catch_up_everywhere,
    drive,
    has_news,
    look_after,
    open_partition,
    undo,
)
from tests.simulation.world import PARTITIONS, Process, World

SHARD_COUNTS = (1, 2, 3, 4, 6, 12)
PRODUCTS_MAX = 3
USER_LIMITS = (0, 0, 0, 2, 9)
BUFFER_PERCENTS = (0, 0, 20, 50)
STOCKS = (0, 5, 12, 30, 100, 300)
STOCKS_LIMITED = (5, 12, 30)
RECORD_TTL_S = 86_400
RECORD_ROTATION_S = RECORD_TTL_S / 2 + 1
PAUSES_S = (0.0, 0.0, 30.0, 700.0, RECORD_ROTATION_S)
"""Between two acts: nothing; what was held up arrives; the doubt after a load ends; records rotate."""
GHOSTS_GONE_S = 120.0
"""By then whatever was on its way has arrived."""
KNOWN_ASKED_AGAIN = 10
"""Requests that are asked again at the end though their outcome is known."""
LOSSY = 0.5
"""How many simulations have replicas that lack what they have not confirmed."""
CATCH_UPS_MAX = 5
"""Attempts to find a moment at which the ledger has all events of a node."""
EPOCHS_AWAY = 1_000
"""So many loads no product has."""
SOLD_OUT_WITHIN = 60
"""Sales by which a product is sold out at the end."""


async def play(world: World, oracle: Oracle) -> None:
    """A whole simulation. ViolationError when a promise is broken."""
    shop = Shop(world, oracle)
    for _ in range(world.rng.randint(2, 4)):
        world.start_process()
    if world.rng.random() < LOSSY:
        for node in world.nodes:
            node.remember_unconfirmed()
    for partition in range(PARTITIONS):
        await open_partition(shop, partition)
    await catch_up_everywhere(shop)
    for product_id in range(1, world.rng.randint(1, PRODUCTS_MAX) + 1):
        limit = world.rng.choice(USER_LIMITS)
        stocks = STOCKS_LIMITED if limit else STOCKS
        row = Row(product_id, world.rng.choice(stocks), max_per_user=limit)
        shop.ledger.rows[product_id] = row
        await _load(shop, product_id)
    for pause_s in (world.rng.choice(PAUSES_S), 0.0):
        world.network.faults = draw_faults(world.rng)
        await _act(shop)
        await _interlude(shop, pause_s)
    world.network.heal()
    await asyncio.sleep(GHOSTS_GONE_S)
    await _reckon(shop)


def draw_faults(rng: Random) -> Faults:
    """Some kinds of trouble and not others, so that each is now and then the only one."""
    strength = rng.choice((0.0, 0.03, 0.15, 0.4))
    fates = [fate for fate in Fate if fate is not Fate.PROMPT and rng.random() < 0.5]
    shares: dict[Fate, float] = {}
    for fate in fates:
        shares[fate] = strength * rng.uniform(0.2, 1.0) / max(2, len(fates) / 2)
    return Faults(
        shares,
        stall=rng.choice((0.0, 0.0, 0.01)) * bool(strength),
        cut=rng.choice((0.0, 0.0, 0.01)) * bool(strength),
        crash=rng.choice((0.0, 0.0, 0.002, 0.01)) * bool(strength),
    )


async def _act(shop: Shop) -> None:
    await together(*(_caller(shop) for _ in range(shop.rng.randint(2, 5))))


async def _caller(shop: Shop) -> None:
    actions, weights = zip(*ACTIONS, strict=True)
    for _ in range(shop.rng.randint(2, 6)):
        await shop.rng.choices(actions, weights)[0](shop)
        await shop.pause(shop.rng.choice((0.0, 0.01, 1.0)))


async def _interlude(shop: Shop, pause_s: float) -> None:
    await asyncio.sleep(pause_s)
    if pause_s < RECORD_ROTATION_S:
        return
    # Twice at most in a record's life, whatever is delivered twice: each rotation needs such a pause.
    for partition in range(PARTITIONS):
        await shop.manage(partial(_rotate_records, partition))


def _rotate_records(partition: int, process: Process) -> Awaitable[object]:
    return process.partitions.rotate_records(partition, record_ttl_s=RECORD_TTL_S)


# What callers do.


async def buy(shop: Shop) -> None:
    """One new request; asked again while its outcome is unknown."""
    product_id = shop.any_product()
    request = shop.new_request(product_id, "deduct", shop.quantity(product_id))
    answer = await shop.send(request, attempt=shop.rng.choice((0, 1)))
    await shop.insist(request, answer, tries=shop.rng.randint(0, 3))


async def buy_in_a_batch(shop: Shop) -> None:
    """Several requests at once, some of them twice, some of them sent before."""
    wanted: list[tuple[Request, int]] = []
    for _ in range(shop.rng.randint(2, 8)):
        product_id = shop.any_product()
        request = shop.new_request(product_id, "deduct", shop.quantity(product_id))
        wanted.append((request, shop.rng.choice((0, 1))))
        if shop.rng.random() < 0.2:
            wanted.append((request, 2))
    wanted += [(r, 2) for r in shop.open_requests if r.kind == "deduct" and shop.rng.random() < 0.3]
    answers = await shop.deduct(wanted)
    for (request, _), answer in zip(wanted, answers, strict=True):
        if shop.is_open(answer):
            shop.open_requests.append(request)


async def buy_in_a_hurry(shop: Shop) -> None:
    """One request, sent several times at once through different processes."""
    product_id = shop.any_product()
    request = shop.new_request(product_id, "deduct", shop.quantity(product_id))

    async def send(attempt: int) -> None:
        await shop.pause(shop.rng.choice((0.0, 0.005, 1.0)))
        answer = await shop.send(request, attempt=attempt)
        await shop.insist(request, answer, tries=shop.rng.randint(0, 2))

    first = send(shop.rng.choice((0, 1, 2)))
    repeats = (send(shop.rng.choice((0, 2))) for _ in range(shop.rng.randint(1, 3)))
    await together(first, *repeats)


async def buy_with_a_copy_held_up(shop: Shop) -> None:
    """The first copy is on its way for long; the caller asks again, or what became of it."""
    product_id = shop.any_product()
    request = shop.new_request(product_id, "deduct", shop.quantity(product_id))
    copy = shop.oracle.sends(request, attempt=shop.rng.choice((0, 1, 1)))

    async def arrive() -> None:
        await shop.pause(shop.rng.choice((0.01, 1.0, 10.0)))
        await shop.insist(request, (await shop.deliver([copy]))[0], tries=0)

    async def decide() -> None:
        if shop.rng.random() < 0.3:
            await shop.insist(request, await shop.send(request, attempt=2), tries=1)
        if shop.rng.random() < 0.8:
            await shop.resolve(request)

    await together(arrive(), decide())


async def buy_too_late(shop: Shop) -> None:
    """The first copy comes after the request was decided otherwise, and finds its home's node away."""
    product_id = shop.any_product()
    request = shop.new_request(product_id, "deduct", shop.rng.randint(1, 3))
    copy = shop.oracle.sends(request, attempt=1)
    if shop.rng.random() < 0.7:
        await shop.resolve(request)
    else:
        await shop.insist(request, await shop.send(request, attempt=2), tries=1)
    if shop.rng.random() < 0.7:
        await change_layout(shop)
    shards = shop.ledger.rows[product_id].shards
    key = shop.oracle.products[product_id].home_key(request.request_id, request.user_id)
    home = Layout(0, shards).partition(
        home_shard(key, shards), product_id=product_id, partitions=PARTITIONS
    )
    shop.world.network.refuse(shop.world.node_of(home), shop.rng.choice((0.5, 5.0)))
    await shop.insist(request, (await shop.deliver([copy]))[0], tries=0)


async def resolve(shop: Shop) -> None:
    """Ask what became of a request, whatever is known of it and whoever else asks."""
    requests = list(shop.oracle.requests.values())
    if requests:
        request = shop.rng.choice(shop.open_requests or requests)
        await together(*(shop.resolve(request) for _ in range(shop.rng.randint(1, 2))))


async def ask_again(shop: Shop) -> None:
    """Repeat a request that was answered before, with its own content or with another."""
    requests = [request for request in shop.oracle.requests.values() if request.kind == "deduct"]
    if not requests:
        return
    request = shop.rng.choice(requests)
    # What a stand-in knows is not always asked for.
    is_sure = request.is_known and not request.effects[0].is_visit
    if not is_sure or shop.rng.random() < 0.7:
        answer = await shop.send(request, attempt=shop.rng.choice((0, 2)))
        await shop.insist(request, answer, tries=1)
        return
    other = Deduction(
        request.request_id, request.product_id, request.quantity + 1, request.user_id, attempt=2
    )
    answers = await shop.ask(lambda process: process.stock.deduct([other]))
    expected = (Outcome.REQUEST_MISMATCH, Outcome.UNAVAILABLE, Outcome.OVERLOADED)
    if answers is not None and answers[0].outcome not in expected:
        raise ViolationError(f"I4: {request} was sent as {other} and told {answers[0]}")


async def restock(shop: Shop) -> None:
    """Units come in from outside."""
    await _adjust(shop, "restock", shop.rng.randint(1, 10))


async def remove(shop: Shop) -> None:
    """Units leave for the outside."""
    await _adjust(shop, "remove", shop.quantity(shop.any_product()))


async def _adjust(shop: Shop, kind: str, quantity: int) -> None:
    request = shop.new_request(shop.any_product(), kind, quantity)
    await shop.insist(request, await shop.send(request, attempt=0), tries=shop.rng.randint(0, 3))


async def release_buffer(shop: Shop) -> None:
    """Units come on sale that were kept back; a worker sees to it, or two, or the next time."""
    row = shop.ledger.rows[shop.any_product()]
    if row.status is not State.OPEN or not row.buffer:
        return
    shop.ledger.release_buffer(row.product_id, shop.rng.randint(1, row.buffer))
    workers = shop.rng.choice((0, 1, 2))
    await together(*(bring_buffer(shop, row.product_id) for _ in range(workers)))


async def read(shop: Shop) -> None:
    """A look at a product's counts."""
    product_id = shop.any_product()
    since = len(shop.oracle.products[product_id].offered) - 1
    try:
        seen = await shop.ask(lambda process: process.stock.read(product_id))
    except StockUnavailableError:
        return
    if seen is not None:
        shop.oracle.read(product_id, since, seen)


async def reload(shop: Shop) -> None:
    """A product is taken off sale and put on again, often with another number of shards."""
    row = shop.ledger.rows[shop.any_product()]
    if row.status is not State.OPEN or row.is_changing or row.freeze.frozen:
        return
    row.status = State.CLOSING
    shop.oracle.products[row.product_id].shut += 1
    await _close(shop, row)
    await shop.pause(2.0)
    row.available += shop.rng.choice((0, 0, 7))
    await _load(shop, row.product_id)
    shop.oracle.products[row.product_id].shut += 1


async def change_layout(shop: Shop) -> None:
    """A product that sells gets another number of shards; one or two workers see to it."""
    change = shop.ledger.want_change(shop.any_product(), shop.rng.choice(SHARD_COUNTS))
    if change is not None:
        workers = shop.rng.choice((1, 1, 2))
        await together(*(drive(shop, change, tries=shop.rng.randint(1, 8)) for _ in range(workers)))


async def work(shop: Shop) -> None:
    """A worker's round: some partitions are looked after, and what is left to do is done."""
    for partition in shop.rng.sample(range(PARTITIONS), 3):
        await catch_up(shop, partition)
    for second in list(shop.ledger.seconds):
        await together(*(undo(shop, second) for _ in range(shop.rng.choice((1, 1, 2)))))
    for change in list(shop.ledger.open_changes()):
        await drive(shop, change, tries=shop.rng.randint(1, 4))


async def rebalance(shop: Shop) -> None:
    """Units are levelled."""
    product_id = shop.any_product()
    try:
        await shop.ask(lambda process: process.stock.rebalance(product_id))
    except StockUnavailableError:
        return


async def audit(shop: Shop) -> None:
    """Every shard's counts are told; now and then one is repaired that has nothing to be repaired."""
    row = shop.ledger.rows[shop.any_product()]
    try:
        marked = await shop.ask(lambda process: process.stock.mark(row.product_id))
        if marked is None or not marked.markers or shop.rng.random() < 0.5:
            return
        marker = shop.rng.choice(marked.markers)
        shop.ledger.drifts += 1
        nothing = Repair(shop.ledger.drifts, NO_UNITS, NO_UNITS, "somebody")
        await shop.ask(
            lambda process: process.stock.repair(
                row.product_id, marker.partition, nothing, epoch=marked.epoch, reason="nothing"
            )
        )
    except StockUnavailableError:
        return


async def undo_too_late(shop: Shop) -> None:
    """A worker wants an effect undone whose load is over: the ledger has its units."""
    row = shop.ledger.rows[shop.any_product()]
    partition = Layout(0, 1).partition(0, product_id=row.product_id, partitions=PARTITIONS)
    try:
        is_back = await shop.ask(
            lambda process: process.stock.undo(
                row.product_id,
                epoch=row.epoch + EPOCHS_AWAY,
                partition=partition,
                request_id="long ago",
                quantity=1,
                undone=EventId(1, 1),
            )
        )
    except StockUnavailableError:
        return
    if is_back:
        raise ViolationError(f"I1: units of another load came back to {row}")


async def freeze(shop: Shop) -> None:
    """A product is frozen for a while, whatever happens to it meanwhile."""
    row = shop.ledger.rows[shop.any_product()]
    if row.status is not State.OPEN or row.freeze.frozen:
        return
    product = shop.oracle.products[row.product_id]
    product.shut += 1
    row.freeze = Freeze(row.freeze.version + 1, frozen=True)
    with suppress(StockUnavailableError):
        await shop.ask(lambda process: process.stock.freeze(row.product_id, row.freeze))
    await shop.pause(2.0)
    row.freeze = resumed = Freeze(row.freeze.version + 1, frozen=False)
    await shop.manage(lambda process: _told_everywhere(process, row.product_id, resumed))
    product.shut += 1


async def recall(shop: Shop) -> None:
    """The live stock is told of a sale from the buffer; its repeat is a replay."""
    row = shop.ledger.rows[shop.any_product()]
    if row.status is not State.OPEN:
        return
    layout = Layout(row.version, row.shards)
    told = Deduction(f"from-the-buffer-{shop.rng.getrandbits(64)}", row.product_id, 1)
    await shop.ask(lambda process: process.stock.recall(row.product_id, layout, [told]))


async def _told_everywhere(process: Process, product_id: int, decision: Freeze) -> None:
    if await process.stock.freeze(product_id, decision):
        raise StockUnavailableError(Reason.NOT_EXECUTED, "a shard was not told")


async def reopen_a_partition(shop: Shop) -> None:
    """A worker opens a partition that is open, as after a change of its node."""
    await open_partition(shop, shop.rng.randrange(PARTITIONS))


async def lose_a_node(shop: Shop) -> None:
    """A master ends, its replica takes over, and workers open its partitions some time later."""
    world = shop.world
    alive = [node for node in world.nodes if not node.is_dead and node.number in world.owners]
    if len(alive) < len(set(world.owners)) or world.is_losing:
        return
    world.is_losing = True
    dead = shop.rng.choice(alive)
    if shop.rng.random() < 0.5:
        world.trace.note("node alone", dead.number)
        world.network.leave_alone(dead)
        # What is done meanwhile may vanish.
        work = shop.rng.choice((buy_in_a_batch, change_layout, wait))
        await together(shop.pause(5.0), work(shop))
    dead.is_dead = True
    world.trace.note("node lost", dead.number)
    await shop.pause(shop.rng.choice((0.1, 4.0)))
    partitions = world.promote_replica_of(dead)
    world.is_losing = False
    shop.ledger.told.clear()
    world.trace.note("replica promoted", partitions)
    nodes = [world.node_of(p) for p in range(PARTITIONS)]
    shop.oracle.lost(nodes, partitions, shop.ledger.applied)
    await shop.pause(shop.rng.choice((0.0, 0.1, 5.0)))
    for partition in partitions:
        await look_after(shop, partition)


async def lose_what_the_ledger_has(shop: Shop) -> None:
    """A node and its replica are emptied or set back when the ledger has all their events."""
    world = shop.world
    alive = [node for node in world.nodes if not node.is_dead and node.number in world.owners]
    if len(alive) < len(set(world.owners)) or world.is_losing:
        return
    world.is_losing = True
    node = shop.rng.choice(alive)
    mine = [p for p, owner in enumerate(world.owners) if owner == node.number]
    is_emptied = shop.rng.random() < 0.5
    before = {p: {} if is_emptied else node.snapshot(world.tags[p].encode()) for p in mine}
    await shop.pause(shop.rng.choice((0.0, 5.0)))
    if await _have_caught_up(shop, mine):
        for partition in mine:
            if world.node_of(partition) is node:
                node.set_back(world.tags[partition].encode(), before[partition])
        if is_emptied or shop.rng.random() < 0.5:
            world.renew(node)
        else:
            node.restart()
        shop.ledger.told.clear()
        world.trace.note("node emptied" if is_emptied else "node set back", node.number)
        shop.oracle.counts["nodes emptied" if is_emptied else "nodes set back"] += 1
        if not is_emptied:
            shop.oracle.orders.forget_bars()
        await shop.pause(shop.rng.choice((0.0, 1.0)))
        for partition in mine:
            workers = shop.rng.choice((1, 1, 2))
            await together(*(look_after(shop, partition) for _ in range(workers)))
    world.is_losing = False


async def _have_caught_up(shop: Shop, partitions: Sequence[int]) -> bool:
    """Whether the ledger has everything of these partitions now; the last one is awaited first."""
    for _ in range(CATCH_UPS_MAX):
        for partition in partitions:
            await catch_up(shop, partition)
        if not any(has_news(shop, partition) for partition in partitions):
            return True
    return False


async def wait(shop: Shop) -> None:
    """Nothing but what the others do."""
    await shop.pause(1.0)


async def move_a_partition(shop: Shop) -> None:
    """A slot with its keys goes to another master; no replica lacks anything."""
    world, partition = shop.world, shop.rng.randrange(PARTITIONS)
    to = world.nodes[shop.rng.choice(world.owners)]
    here = world.node_of(partition)
    if here.is_dead or to.is_dead or here is to or here.may_lose:
        return
    world.trace.note("moved", partition, to.number)
    world.migrate(partition, to)
    await shop.pause(shop.rng.choice((0.0, 3.0)))
    await look_after(shop, partition)


async def inspect_a_partition(shop: Shop) -> None:
    """A worker looks whether a partition is open and whether a replica has its last event."""
    partition = shop.rng.randrange(PARTITIONS)
    found = _newest_entry(shop, partition)
    if not found:
        return  # it is being restored
    entry_id, fields = found[0]
    last = Checkpoint(EventId.parse(entry_id), anchor(fields))

    async def work(process: Process) -> bool:
        head = await process.partitions.head(partition)
        return head.is_open and await process.partitions.replicated(partition, ledger=0, last=last)

    generation = last.id.generation
    try:
        seen = await shop.ask(work)
    except StockUnavailableError:
        return
    newest = _newest_entry(shop, partition)
    if seen is False and newest and EventId.parse(newest[0][0]).generation == generation:
        shop.oracle.counts["partitions found shut"] += 1


def _newest_entry(shop: Shop, partition: int) -> list[tuple[bytes, list[bytes]]]:
    key = events(shop.world.tags[partition], 0).encode()
    return shop.world.node_of(partition).entries_after(key, str(BEFORE_ALL).encode())[-1:]


Action = Callable[[Shop], Awaitable[None]]

ACTIONS: tuple[tuple[Action, float], ...] = (
    (buy, 10),
    (buy_in_a_batch, 6),
    (buy_in_a_hurry, 5),
    (ask_again, 3),
    (restock, 2),
    (remove, 2),
    (read, 2),
    (release_buffer, 2),
    (reload, 1),
    (buy_with_a_copy_held_up, 3),
    (buy_too_late, 1),
    (resolve, 3),
    (change_layout, 6),
    (rebalance, 0.5),
    (audit, 1.5),
    (freeze, 0.5),
    (recall, 0.5),
    (undo_too_late, 0.5),
    (work, 1.5),
    (lose_a_node, 1),
    (lose_what_the_ledger_has, 0.7),
    (move_a_partition, 0.3),
    (reopen_a_partition, 0.5),
    (inspect_a_partition, 0.5),
    (order, 8),
    (order_in_a_hurry, 5),
    (order_much, 3),
    (end_an_order, 6),
    (order_after_its_release, 2),
    (order_past_a_home, 8),
    (confirm_late, 4),
    (order_otherwise, 2),
    (sweep_some, 4),
    (put_orders_aside, 0.5),
)


# Beginning and end.


async def _load(shop: Shop, product_id: int) -> None:
    row = shop.ledger.rows[product_id]
    is_fixed = row.max_per_user and row.shards
    shards = row.shards if is_fixed else shop.rng.choice(SHARD_COUNTS)
    percent = shop.rng.choice(BUFFER_PERCENTS)
    plan = shop.ledger.begin_load(product_id, shards, buffer_percent=percent)
    await shop.manage(lambda process: process.stock.load(plan))
    shop.ledger.rows[product_id].status = State.OPEN


async def _close(shop: Shop, row: Row) -> None:
    """Until the ledger knows that every shard has given its units back."""

    async def work(process: Process) -> None:
        closed.append(await process.stock.close(row.product_id, row.epoch))

    closed: list[int] = []
    for _ in range(TRIES_MAX):
        try:
            await shop.manage(work)
        except CloseBusyError:
            # Units are held: their orders end sooner or later.
            await sweep_some(shop)
            await shop.pause(20.0)
            continue
        for partition in range(PARTITIONS):
            await catch_up(shop, partition)
        if shop.ledger.is_closed(row.product_id, closed[-1]):
            shop.ledger.finish_close(row.product_id)
            return
    raise ViolationError(f"{row} cannot be closed")


async def _reckon(shop: Shop) -> None:
    """Nothing goes wrong any more: every open request is decided, and what is left can be sold."""
    await _finish_work(shop)
    requests = list(shop.oracle.requests.values())
    known = shop.rng.sample(requests, min(KNOWN_ASKED_AGAIN, len(requests)))
    decided = [request for request in requests if request.refused_after or request.end]
    asked = (*shop.open_requests, *known, *decided)
    for request in {id(request): request for request in asked}.values():
        await _ask_for_good(shop, request)
    for product_id in shop.ledger.rows:
        await _compare_with_ledger(shop, product_id)
        await _sell_out(shop, product_id)


async def _finish_work(shop: Shop) -> None:
    """Partitions are open, changes have ended, second effects are undone, orders are decided."""
    for partition in range(PARTITIONS):
        await look_after(shop, partition)
    changes = [change for row in shop.ledger.rows.values() for change in row.changes]
    for change in changes:
        for _ in range(TRIES_MAX):
            if change.state == "wanted":
                await drive(shop, change, tries=1)
    # A shard that left is not done with as long as it holds units.
    await settle_orders(shop)
    for change in changes:
        await drive(shop, change, tries=TRIES_MAX)
        if change.state in ("wanted", "active"):
            raise ViolationError(f"{change} is not done after {TRIES_MAX} tries")
    for product_id in shop.ledger.rows:
        await bring_buffer(shop, product_id)
    await catch_up_everywhere(shop)
    for second in list(shop.ledger.seconds):
        await undo(shop, second)
    await catch_up_everywhere(shop)


async def _ask_for_good(shop: Shop, request: Request) -> None:
    """With nothing going wrong, once more by its id and by what became of it, in any order."""
    asked = [_send_for_good, _resolve_for_good]
    if shop.rng.random() < 0.5:
        asked.reverse()
    for ask in asked:
        await ask(shop, request)


async def _send_for_good(shop: Shop, request: Request) -> None:
    await catch_up_everywhere(shop)
    was_refused = request.refused_after and not request.effects
    answer = await shop.send(request, attempt=2)
    if answer is None or shop.is_open(answer) or answer.outcome is Outcome.UNAVAILABLE:
        raise ViolationError(f"{request} stays unknown with nothing going wrong: {answer}")
    outcome = answer.outcome
    if request.effects and request.kind == "deduct" and not request.refused_after:
        _expect_that(outcome is Outcome.DEDUCTED, f"I4: {request} got {answer}")
    if was_refused:
        _expect_that(outcome is Outcome.INSUFFICIENT_STOCK, f"I4: {request} got {answer}")
    if request.end is Resolution.NEVER:
        is_named = answer.reason is Reason.RESOLVED_NEVER or request.kind != "deduct"
        is_mismatch = outcome is Outcome.REQUEST_MISMATCH
        _expect_that(is_mismatch and is_named, f"I4: {request} got {answer}")


async def _resolve_for_good(shop: Shop, request: Request) -> None:
    found = await shop.resolve(request)
    is_mismatch = isinstance(found, Answer) and found.outcome is Outcome.REQUEST_MISMATCH
    is_told = isinstance(found, Resolved) or (request.kind != "deduct" and is_mismatch)
    _expect_that(is_told, f"{request} was not resolved with nothing going wrong: {found}")


def _expect_that(holds: object, what: str) -> None:
    if not holds:
        raise ViolationError(what)


async def _compare_with_ledger(shop: Shop, product_id: int) -> None:
    """What is left is what one effect of each id leaves."""
    await catch_up_everywhere(shop)
    for second in list(shop.ledger.seconds):
        await undo(shop, second)
    row, product = shop.ledger.rows[product_id], shop.oracle.products[product_id]
    _expect_that(row.available == product.offered[-1], f"I1: {row} and {product}")
    sold = sum(
        request.quantity
        for request in shop.oracle.requests.values()
        if request.product_id == product_id and request.kind == "deduct" and request.effects
    )
    ordered = sum(
        hold.quantity
        for asked in shop.oracle.orders.orders.values()
        for hold in asked.holds.values()
        if hold.product_id == product_id and hold.is_sold
    )
    _expect_that(row.sold == sold + ordered, f"I4: {row}, {sold} units sold, {ordered} by orders")
    _expect_that(row.held == product.held == 0, f"I6: {row} and {product}")


async def _sell_out(shop: Shop, product_id: int) -> None:
    product, row = shop.oracle.products[product_id], shop.ledger.rows[product_id]
    if row.max_per_user:
        await _fill_users(shop, row)
    for _ in range(SOLD_OUT_WITHIN):
        left = product.offered[-1]
        if not left:
            break
        quantity = min(left, shop.rng.randint(left // 10 + 1, left))
        quantity = min(quantity, row.max_per_user or quantity)
        await _expect(shop, product_id, quantity, Outcome.DEDUCTED)
    await _expect(shop, product_id, 1, Outcome.INSUFFICIENT_STOCK)
    shop.oracle.is_settled(product_id, 0)
    seen = await shop.ask(lambda process: process.stock.read(product_id))
    await catch_up_everywhere(shop)
    _expect_sold_out(seen, shop.ledger.rows[product_id].sold)


async def _fill_users(shop: Shop, row: Row) -> None:
    """Each user gets what the limit leaves, and nothing more."""
    product = shop.oracle.products[row.product_id]
    for user_id in range(1, 4):
        room = row.max_per_user - product.users.get((row.epoch, user_id), 0)
        if 0 < room <= product.offered[-1]:
            await _expect(shop, row.product_id, room, Outcome.DEDUCTED, user_id=user_id)
            room = 0
        if not room and product.offered[-1]:
            await _expect(shop, row.product_id, 1, Outcome.USER_LIMIT, user_id=user_id)


async def _expect(
    shop: Shop, product_id: int, quantity: int, outcome: Outcome, *, user_id: int = 0
) -> None:
    request = shop.new_request(product_id, "deduct", quantity)
    # Everybody but those who have bought before is somebody new.
    request.user_id = user_id or next(shop.newcomers)
    await catch_up_everywhere(shop)
    answer = await shop.send(request, attempt=1)
    if answer is None or answer.outcome is not outcome:
        raise ViolationError(f"with nothing going wrong {request} got {answer}")


def _expect_sold_out(seen: ProductStock | None, sold: int) -> None:
    found = seen and (seen.exact, seen.available, seen.in_transit, seen.sold)
    if found != (True, 0, 0, sold):
        raise ViolationError(f"a sold-out product is read as {seen}")
