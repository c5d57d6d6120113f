"""Workers that die at every step, and two that think they own the same partitions."""

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

import pytest

from deploy.local.process import Process
from deploy.local.waiting import until
from ledger.failpoints import VARIABLE as FAILPOINTS
from sharding import keys
from tests.acceptance.shop import WORKERS, Shop, ended, ids

FIRST, SECOND, LAST = 2, 3, 4
BUYERS = 20
PLENTY = 1_000_000
STOP_GRACE_S = 12.0
DIES_WITHIN_S = 30.0
TRIMMED_WITHIN_S = 90.0
QUICK_TO_REPLACE = {"INVENTORY_LEASE_TTL_S": "1"}
NOTHING_KEPT = {"INVENTORY_TRIM_LAG_S": "0", "INVENTORY_AUDIT_EVERY_S": "3600"}
"""Nor is anything written that nobody asked for: audits mark the shards of all products on sale."""
PARTITIONS = 48
PRODUCTS = 20
"""More than there are tests here, each run twice."""

StartWorker = Callable[..., Awaitable[Process]]


@pytest.fixture(scope="module")
async def products(shop: Shop) -> AsyncIterator[list[int]]:
    """On sale, by workers that have gone since: a load needs one, and those of the tests die."""
    products = [await shop.on_sale(PLENTY) for _ in range(PRODUCTS)]
    for number in WORKERS:
        await shop.stack.workers[number].stop(grace_s=STOP_GRACE_S)
    yield products
    await shop.start_workers()


@pytest.fixture
def product(products: list[int]) -> int:
    """One that nobody has bought of."""
    return products.pop()


@pytest.fixture
async def start(shop: Shop) -> AsyncIterator[StartWorker]:
    """`await start(FIRST, dies_at=…, settings=…)`; what is started ends with the test."""
    started: dict[int, Process] = {}

    async def start_worker(
        number: int, *, dies_at: str = "", settings: Mapping[str, str] | None = None
    ) -> Process:
        environment = {**QUICK_TO_REPLACE, **(settings or {}), FAILPOINTS: dies_at}
        worker = await shop.stack.start_worker(number, environment=environment)
        started[number] = worker
        return worker

    yield start_worker
    for number, worker in started.items():
        await worker.stop(grace_s=STOP_GRACE_S)
        del shop.stack.workers[number]


async def sell(shop: Shop, product_id: int, prefix: str) -> dict[str, int]:
    """Buyers one after the other, so that their events are many."""
    for request_id in ids(prefix, BUYERS):
        answer = await shop.caller.deduct(product_id, 1, request_id=request_id)
        assert answer.accepted
    return dict.fromkeys(ids(prefix, BUYERS), 1)


async def sell_until_killed(shop: Shop, product_id: int, worker: Process) -> dict[str, int]:
    """Buyers one after the other while the worker lives, so that it has more than one batch."""
    sold: dict[str, int] = {}
    async with asyncio.timeout(DIES_WITHIN_S):
        while worker.alive:
            sold |= await sell(shop, product_id, f"before-{len(sold)}")
    assert worker.exit_code == -signal.SIGKILL
    return sold


async def until_killed(worker: Process) -> None:
    assert await ended(worker, within_s=DIES_WITHIN_S) == -signal.SIGKILL


@pytest.mark.parametrize(
    "place",
    [
        "worker.before_read=kill@20",
        "worker.after_read=kill@2",
        "worker.before_insert=kill@2",
        "worker.after_insert=kill@2",
        "worker.before_commit=kill@2",
        "worker.after_commit=kill@2",
    ],
)
async def test_a_worker_that_dies_there_leaves_each_event_applied_once(
    shop: Shop, start: StartWorker, product: int, place: str
) -> None:
    victim = await start(FIRST, dies_at=place)
    before = await sell_until_killed(shop, product, victim)
    await start(SECOND)
    after = await sell(shop, product, "after")
    await shop.assert_balanced(product, accepted={**before, **after})


async def test_a_worker_that_wakes_up_without_its_leases_applies_nothing_twice(
    shop: Shop, start: StartWorker, product: int
) -> None:
    sleeper = await start(FIRST)
    sold = await sell(shop, product, "awake")
    await shop.assert_balanced(product, accepted=sold)
    sleeper.pause()
    sold |= await sell(shop, product, "asleep")
    await start(SECOND)
    await shop.assert_balanced(product, accepted=sold)
    sleeper.resume()
    sold |= await sell(shop, product, "both")
    await shop.assert_balanced(product, accepted=sold)


async def test_workers_that_die_while_trimming_lose_nothing_and_an_idle_stream_goes_on(
    shop: Shop, start: StartWorker, product: int
) -> None:
    victims = [
        await start(number, dies_at=place, settings=NOTHING_KEPT)
        for number, place in (
            (FIRST, "worker.before_trim=kill"),
            (SECOND, "worker.after_trim=kill"),
        )
    ]
    sold = await sell(shop, product, "trimmed")
    for victim in victims:
        await until_killed(victim)
    await start(LAST, settings=NOTHING_KEPT)
    await shop.assert_balanced(product, accepted=sold)
    await until_only_anchors_are_left(shop)
    late = await shop.caller.deduct(product, 1, request_id="late")
    assert late.accepted
    await shop.assert_balanced(product, accepted={**sold, "late": 1})


async def until_only_anchors_are_left(shop: Shop) -> None:
    """No stream has more than the entry at its checkpoint: nothing was sold for a while."""
    streams = {keys.events(tag, 0) for tag in keys.tags(PARTITIONS)}

    async def trimmed() -> bool:
        return await longest(shop, streams) == 1

    await until(trimmed, what="streams are trimmed", within_s=TRIMMED_WITHIN_S)


async def longest(shop: Shop, streams: set[str]) -> int:
    lengths: list[int] = []
    for node in shop.stack.redis:
        if await node.is_master():
            mine = streams & set(await node.call("KEYS", "inv:*:events:*"))
            lengths += [await node.call("XLEN", stream) for stream in mine]
    assert len(lengths) == len(streams)
    return max(lengths)
