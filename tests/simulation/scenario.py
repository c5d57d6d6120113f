"""What callers do: several of them at once, each step chosen by the seed, then healing and a reckoning.

To add something that callers can do, write a coroutine function that takes the Shop and put it into
ACTIONS with its weight. What must hold all the time belongs into the Oracle.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from random import Random

from sharding.errors import StockUnavailableError
from sharding.events import BEFORE_ALL, EventId, anchor
from sharding.keys import events
from sharding.outcomes import Deduction, Outcome, ProductStock
from sharding.partitions import NOTHING_APPLIED, Checkpoint
from sharding.placement import Layout
from sharding.plans import LoadPlan, split_evenly
from tests.simulation.network import Fate, Faults
from tests.simulation.oracle import Oracle, Request, ViolationError
from tests.simulation.shop import Shop
from tests.simulation.world import PARTITIONS, Process, World

SHARD_COUNTS = (1, 2, 3, 4, 6)
RECORD_TTL_S = 86_400
RECORD_ROTATION_S = RECORD_TTL_S / 2 + 1
PAUSES_S = (0.0, 0.0, 30.0, 700.0, RECORD_ROTATION_S)
"""Between two acts: nothing; what was held up arrives; the doubt after a load ends; records rotate."""
GHOSTS_GONE_S = 120.0
"""By then whatever was on its way has arrived."""
KNOWN_ASKED_AGAIN = 10
"""Requests that are asked again at the end though their outcome is known."""
SOLD_OUT_WITHIN = 30
"""Sales by which a product is sold out at the end."""


async def play(world: World, oracle: Oracle) -> None:
    """A whole simulation. ViolationError when a promise is broken."""
    shop = Shop(world, oracle)
    for _ in range(world.rng.randint(2, 4)):
        world.start_process()
    await _open_partitions(shop)
    for product_id in range(1, world.rng.randint(1, 2) + 1):
        await _load(shop, product_id, units=world.rng.choice((0, 5, 12, 30, 100)))
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


async def together(*work: Awaitable[object]) -> None:
    """Do several things at once; the first that fails ends all of them."""
    async with asyncio.TaskGroup() as group:
        for each in work:
            group.create_task(_awaited(each))


async def _awaited(work: Awaitable[object]) -> None:
    await work


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

    await together(*(send(shop.rng.choice((0, 2))) for _ in range(shop.rng.randint(2, 4))))


async def ask_again(shop: Shop) -> None:
    """Repeat a request that was answered before, with its own content or with another."""
    requests = [request for request in shop.oracle.requests.values() if request.kind == "deduct"]
    if not requests:
        return
    request = shop.rng.choice(requests)
    if request.effect is None or shop.rng.random() < 0.7:
        answer = await shop.send(request, attempt=shop.rng.choice((0, 2)))
        await shop.insist(request, answer, tries=1)
        return
    other = Deduction(request.request_id, request.product_id, request.quantity + 1, attempt=2)
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
    product_id = shop.any_product()
    if shop.oracle.products[product_id].shut % 2:
        return
    shop.oracle.products[product_id].shut += 1
    epoch = shop.plans[product_id].epoch
    before = shop.oracle.products[product_id].given_back
    await shop.manage(lambda process: process.stock.close(product_id, epoch))
    await shop.pause(2.0)
    units = shop.oracle.products[product_id].given_back - before
    await _load(shop, product_id, units=units + shop.rng.choice((0, 0, 7)))
    shop.oracle.products[product_id].shut += 1


async def reopen_a_partition(shop: Shop) -> None:
    """A worker opens a partition that is open, as after a change of its node."""
    partition = shop.rng.randrange(PARTITIONS)
    entry_id, fields = _newest_entry(shop, partition)
    applied = Checkpoint(EventId.parse(entry_id), anchor(fields))
    await shop.manage(partial(_open, partition, applied))


async def inspect_a_partition(shop: Shop) -> None:
    """A worker looks whether a partition is open and whether a replica has its last event."""
    partition = shop.rng.randrange(PARTITIONS)
    last = EventId.parse(_newest_entry(shop, partition)[0])

    async def work(process: Process) -> bool:
        head = await process.partitions.head(partition)
        return head.is_open and await process.partitions.replicated(partition, ledger=0, last=last)

    try:
        if await shop.ask(work) is False:
            raise ViolationError(f"partition {partition} is not open or has lost event {last}")
    except StockUnavailableError:
        return


def _newest_entry(shop: Shop, partition: int) -> tuple[bytes, list[bytes]]:
    node = shop.world.nodes[shop.world.owners[partition]]
    key = events(shop.world.tags[partition], 0).encode()
    return node.entries_after(key, str(BEFORE_ALL).encode())[-1]


Action = Callable[[Shop], Awaitable[None]]

ACTIONS: tuple[tuple[Action, float], ...] = (
    (buy, 10),
    (buy_in_a_batch, 6),
    (buy_in_a_hurry, 5),
    (ask_again, 3),
    (restock, 2),
    (remove, 2),
    (read, 2),
    (reload, 1),
    (reopen_a_partition, 0.5),
    (inspect_a_partition, 0.5),
)


# Beginning and end.


async def _open_partitions(shop: Shop) -> None:
    for partition in range(PARTITIONS):
        await shop.manage(partial(_open, partition, NOTHING_APPLIED))


def _open(partition: int, applied: Checkpoint, process: Process) -> Awaitable[object]:
    return process.partitions.open(partition, [applied])


async def _load(shop: Shop, product_id: int, *, units: int) -> None:
    before = shop.plans.get(product_id)
    shards = shop.rng.choice(SHARD_COUNTS)
    epoch = before.epoch + 1 if before else 1
    formers = shop.formers.setdefault(product_id, set())
    known = shop.oracle.products.get(product_id)
    plan = LoadPlan(
        product_id,
        epoch,
        Layout(epoch, shards),
        split_evenly(units, shards),
        buffer=0,
        sold_before=known.sold if known else 0,
        former_shards=tuple(sorted(formers - {shards})),
    )
    formers.add(shards)
    shop.plans[product_id] = plan
    await shop.manage(lambda process: process.stock.load(plan))


async def _reckon(shop: Shop) -> None:
    """Nothing goes wrong any more: every open request is decided, and what is left can be sold."""
    requests = list(shop.oracle.requests.values())
    known = shop.rng.sample(requests, min(KNOWN_ASKED_AGAIN, len(requests)))
    for request in {id(request): request for request in (*shop.open_requests, *known)}.values():
        answer = await shop.send(request, attempt=2)
        if shop.is_open(answer):
            raise ViolationError(f"{request} stays unknown with nothing going wrong: {answer}")
    for product_id in shop.plans:
        await _sell_out(shop, product_id)


async def _sell_out(shop: Shop, product_id: int) -> None:
    product = shop.oracle.products[product_id]
    for _ in range(SOLD_OUT_WITHIN):
        left = product.offered[-1]
        if not left:
            break
        quantity = min(left, shop.rng.randint(left // 10 + 1, left))
        await _expect(shop, product_id, quantity, Outcome.DEDUCTED)
    await _expect(shop, product_id, 1, Outcome.INSUFFICIENT_STOCK)
    shop.oracle.is_settled(product_id, 0)
    seen = await shop.ask(lambda process: process.stock.read(product_id))
    _expect_sold_out(seen, product.sold)


async def _expect(shop: Shop, product_id: int, quantity: int, outcome: Outcome) -> None:
    request = shop.new_request(product_id, "deduct", quantity)
    answer = await shop.send(request, attempt=1)
    if answer is None or answer.outcome is not outcome:
        raise ViolationError(f"with nothing going wrong {request} got {answer}")


def _expect_sold_out(seen: ProductStock | None, sold: int) -> None:
    found = seen and (seen.exact, seen.available, seen.in_transit, seen.sold)
    if found != (True, 0, 0, sold):
        raise ViolationError(f"a sold-out product is read as {seen}")
