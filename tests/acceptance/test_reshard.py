"""The shard count changes again and again while buyers buy, retry, and buy the last unit."""

import asyncio
import random
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count

import pytest

from deploy.local.waiting import until
from inventory.client import Deduction, Outcome, ProductStatus, RequestMismatch, Resolution
from tests.acceptance.shop import Shop

BUYERS_PER_S = 500
WAVE = 1_250
"""So many buyers come between two changes at most, however long a change takes: it must find units."""
SENT_AGAIN = 10
"""One request of so many is sent again later, through the other server."""
AGAIN_WITHIN_S = 3.0
UNITS = 6_000
AFTER_THE_LAST = 300
"""Refusals after which the product counts as sold out."""
FLOWS_WITHIN_S = 60.0


@dataclass
class Crowd:
    """Buyers who come at a steady rate, whatever becomes of those before them."""

    shop: Shop
    product_id: int
    seed: int
    answers: dict[str, Deduction] = field(default_factory=dict)
    repeats: dict[str, Deduction] = field(default_factory=dict)
    outcomes: Counter[Outcome] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._stopping = False
        self._invited = 0
        self._invitation = asyncio.Event()

    @property
    def accepted(self) -> dict[str, int]:
        found = [*self.answers.values(), *self.repeats.values()]
        return {answer.request_id: 1 for answer in found if answer.accepted}

    async def come(self) -> None:
        """One after the other until told to stop; a call that fails ends the test."""
        async with asyncio.TaskGroup() as buyers:
            for number in count():
                while number >= self._invited and not self._stopping:
                    self._invitation.clear()
                    await self._invitation.wait()
                if self._stopping:
                    break
                buyers.create_task(self._buy(number))
                await asyncio.sleep(1 / BUYERS_PER_S)

    async def flow(self, more: int) -> None:
        """Invite a wave of buyers and return when so many more were answered."""
        self._invite(WAVE)
        await self._reached(self.outcomes.total, self.outcomes.total() + more)

    async def sold_out(self) -> None:
        """Invite everybody and return when buyers are refused, one after the other."""
        self._invite(sys.maxsize)
        await self._reached(lambda: self.outcomes[Outcome.INSUFFICIENT_STOCK], AFTER_THE_LAST)

    def stop(self) -> None:
        """No new buyers; those under way get their answers."""
        self._stopping = True
        self._invitation.set()

    def _invite(self, more: int) -> None:
        self._invited += more
        self._invitation.set()

    async def _reached(self, counted, goal: int) -> None:  # type: ignore[no-untyped-def]
        async def enough() -> bool:
            return bool(counted() >= goal)

        await until(enough, what="buyers are answered", within_s=FLOWS_WITHIN_S)

    async def _buy(self, number: int) -> None:
        name, client = f"buyer-{number}", self.shop.clients[number % 2]
        answer = await client.deduct(self.product_id, 1, request_id=name, attempt=1)
        self.outcomes[answer.outcome] += 1
        self.answers[name] = answer
        if number % SENT_AGAIN == 0:
            await asyncio.sleep(self._random.uniform(0, AGAIN_WITHIN_S))
            attempt = self._random.choice((0, 2))
            other = self.shop.clients[(number + 1) % 2]
            self.repeats[name] = await other.deduct(
                self.product_id, 1, request_id=name, attempt=attempt
            )


@asynccontextmanager
async def crowd(shop: Shop, product_id: int, *, seed: int) -> AsyncIterator[Crowd]:
    """Buyers within the block; after it all of them have their answers."""
    buyers = Crowd(shop, product_id, seed)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(buyers.come(), name="buyers")
        yield buyers
        buyers.stop()


async def test_a_sale_through_four_layouts_sells_each_unit_once(shop: Shop) -> None:
    product, seed = await shop.on_sale(UNITS, shards=1), random.randrange(2**32)
    print(f"seed {seed}")  # noqa: T201 - to repeat a run that failed
    versions = [(await shop.caller.get_product(product)).layout_version]
    async with crowd(shop, product, seed=seed) as buyers:
        for shards in (6, 24, 2):
            await buyers.flow(500)
            versions.append(await shop.caller.set_shards(product, shards))
            serving = (await shop.caller.get_stock(product)).layout_version
            assert serving >= versions[-1]
        await buyers.flow(500)
        assert buyers.outcomes[Outcome.INSUFFICIENT_STOCK] == 0, "sold out before the last change"
        await buyers.sold_out()
    assert versions == sorted(set(versions))
    assert buyers.outcomes[Outcome.DEDUCTED] == len(buyers.accepted) == UNITS
    for name, again in buyers.repeats.items():
        first = buyers.answers[name]
        assert (again.outcome, again.replayed) == (first.outcome, first.accepted), name
    await shop.assert_balanced(product, accepted=buyers.accepted)


async def test_all_shards_that_a_product_ever_had_are_closed(shop: Shop) -> None:
    product = await shop.on_sale(100, shards=6)
    for shards in (24, 2):
        await shop.caller.set_shards(product, shards)
    answer = await shop.caller.deduct(product, 30, request_id="one")
    closed = await shop.caller.close_product(product)
    assert answer.accepted
    assert (closed.status, closed.available_stock, closed.sold_count) == (
        ProductStatus.CLOSED,
        70,
        30,
    )
    assert (closed.pinned_shards, closed.shards) == (2, 2)
    before = closed.layout_version
    (loaded,) = await shop.caller.load([product])
    assert (loaded.pool, loaded.shards) == (70, 2)
    assert loaded.layout_version > before
    again = await shop.caller.deduct(product, 30, request_id="one", attempt=2)
    stock, ledger = await shop.drained(product)
    assert again.replayed
    assert (stock.available, stock.sold, stock.total, stock.accounted) == (70, 30, 100, 100)
    assert (ledger.product.available, ledger.product.sold) == (70, 30)
    assert ledger.deductions == {"one": 30}


async def test_a_change_there_and_back_at_once_ends_with_one_of_the_two(shop: Shop) -> None:
    product = await shop.on_sale(100, shards=6)
    await asyncio.gather(
        *(
            client.set_shards(product, shards)
            for client, shards in zip(shop.clients * 2, (12, 3, 12, 3), strict=True)
        )
    )
    stock = await shop.caller.get_stock(product)
    row = await shop.caller.get_product(product)
    assert row.pinned_shards in (3, 12)
    assert (stock.total, stock.accounted) == (100, 100)
    sold = await shop.caller.deduct(product, 100, request_id="all")
    assert sold.accepted
    await shop.assert_balanced(product, accepted={"all": 100})


async def test_what_was_resolved_stays_so_in_another_layout(shop: Shop) -> None:
    product = await shop.on_sale(10, shards=1)
    await shop.caller.deduct(product, 3, request_id="sold")
    for shards in (6, 2):
        sold = await shop.caller.resolve(product, "sold")
        lost = await shop.clients[shards % 2].resolve(product, "lost")
        assert (sold.resolution, sold.quantity) == (Resolution.DEDUCTED, 3)
        assert (lost.resolution, lost.quantity) == (Resolution.NEVER, 0)
        await shop.caller.set_shards(product, shards)
    for client, attempt in zip(shop.clients, (0, 2), strict=True):
        with pytest.raises(RequestMismatch) as late:
            await client.deduct(product, 3, request_id="lost", attempt=attempt)
        assert late.value.reason == "RESOLVED_NEVER"
    await shop.assert_balanced(product, accepted={"sold": 3})
