"""One fault on the stage: its products, its buyers, what it did and what came of it."""

import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random

from redis.exceptions import RedisError

from deploy.local.errors import StackError
from deploy.local.redis_cluster import RedisNode
from deploy.local.waiting import Condition, until
from inventory.client import InventoryError
from sharding.keys import tags
from sharding.placement import home_shard
from sharding.settings import StockSettings
from sharding.slots import slot_of
from tests.chaos.history import Record, success_rate
from tests.chaos.load import Buyers, selling
from tests.chaos.oracle import judge
from tests.chaos.settling import settle
from tests.chaos.stack import Stage

UNITS = 500_000
SHARDS = 6
ORDER_SHARDS = 3
PARTITIONS = StockSettings().partitions
UNTOUCHED_RATE = 0.98
"""Of requests whose homes nothing happened to; the others keep processes busy, too."""
BACK_WITHIN_S_MAX = 15.0
DONE_WITHIN_S = 30.0


@dataclass(frozen=True, slots=True)
class Fault:
    """What breaks, and when that is survived."""

    number: str
    name: str
    strike: Callable[["Scene"], Awaitable[None]]
    back_within_s: float
    """From the moment that `Scene.broke` was called, or of the strike's begin."""


@dataclass(slots=True)
class Report:
    """What came of one fault; passed when `wrong` is empty."""

    fault: Fault
    wrong: list[str] = field(default_factory=list)
    took_s: float = 0.0
    back_s: float | None = None
    calls: int = 0
    accepted: int = 0
    not_facts: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    record: Record | None = None


class Scene:
    """What a fault works with: it starts buyers by `selling` and breaks things."""

    buyers: Buyers

    def __init__(self, stage: Stage, fault: Fault) -> None:
        self.stage = stage
        self.choice: Random = stage.choice
        self.report = Report(fault)
        self._struck_s: float | None = None
        self._loaded = 0

    async def put_on_sale(self, units: int = UNITS, *, orders: bool = True) -> Buyers:
        """New products: one for deductions, and two that only orders have."""
        shop = self.stage.shop
        product_id = await shop.on_sale(units, shards=SHARDS)
        order_products = [await shop.on_sale(UNITS, shards=ORDER_SHARDS) for _ in range(2 * orders)]
        self._loaded = units
        self.buyers = Buyers(
            self.stage.callers, self.choice, product_id=product_id, order_products=order_products
        )
        return self.buyers

    @asynccontextmanager
    async def selling(self) -> AsyncIterator[Buyers]:
        """Buyers around a fault; afterwards it takes until they have their old success rate back."""
        async with selling(await self.put_on_sale()) as buyers:
            self.broke()
            yield buyers
            assert self._struck_s is not None
            self.report.back_s = await buyers.back(self._struck_s, within_s=BACK_WITHIN_S_MAX)
            self._judge_back()

    def broke(self) -> float:
        """From now on it counts how long it takes to be back."""
        self._struck_s = self.stage.now_s
        return self._struck_s

    async def shards_elsewhere(self, node: RedisNode) -> frozenset[int]:
        """The shards of the product that are sold from other nodes."""
        lost = await self.stage.slots_of(node)
        stock = await self.stage.shop.caller.get_stock(self.buyers.product_id)
        slots = [slot_of(tag) for tag in tags(PARTITIONS)]
        return frozenset(
            shard.shard
            for shard in stock.shards
            if not any(slots[shard.partition] in each for each in lost)
        )

    def expect_selling(self, shards: Collection[int], since_s: float) -> None:
        """Requests with these homes were accepted at their first try, whatever else went wrong."""
        theirs = [
            each
            for each in self.buyers.record.first_tries
            if each.started_s >= since_s and home_shard(each.name, SHARDS) in shards
        ]
        rate = success_rate(theirs)
        self.expect(
            rate >= UNTOUCHED_RATE,
            f"I7: of {len(theirs)} requests with other homes {rate:.1%} were accepted at once",
        )

    def expect(self, is_so: bool, otherwise: str) -> None:
        """What must be so besides the oracle."""
        if not is_so:
            self.report.wrong.append(otherwise)

    async def until(
        self, condition: Condition, what: str, *, within_s: float = DONE_WITHIN_S
    ) -> bool:
        """Wait for something that must come; that it did not is noted and the fault goes on."""
        try:
            await until(condition, what=what, within_s=within_s)
        except StackError as error:
            self.report.wrong.append(str(error))
            return False
        return True

    def note(self, what: str) -> None:
        """Something worth a line in the table, whatever it means."""
        self.report.notes.append(what)

    async def judged(self) -> None:
        """Heal what is broken, and ask the oracle."""
        await self.stage.heal()
        self.report.wrong += judge(await settle(self.stage, self.buyers, loaded=self._loaded))

    def _judge_back(self) -> None:
        limit_s = self.report.fault.back_within_s
        if self.report.back_s is None:
            self.report.wrong.append(f"not back to 99 % within {BACK_WITHIN_S_MAX:g} s")
        elif self.report.back_s > limit_s:
            self.report.wrong.append(f"back after {self.report.back_s:g} s, not {limit_s:g} s")


FAILURES = (StackError, InventoryError, RedisError, OSError, AssertionError)
"""How a service that is not back shows in what drives it."""


async def play(stage: Stage, fault: Fault) -> Report:
    """Break one thing and see what comes of it. Never raises for what the service does."""
    scene, begun_s = Scene(stage, fault), time.monotonic()
    report = scene.report
    try:
        await fault.strike(scene)
        await scene.judged()
    except (*FAILURES, ExceptionGroup) as error:
        report.wrong += _said(error)
    report.took_s = time.monotonic() - begun_s
    if hasattr(scene, "buyers"):
        _sum_up(report, scene.buyers.record)
    return report


def _said(error: BaseException) -> list[str]:
    """In words; what is no failure of the service is raised."""
    if isinstance(error, ExceptionGroup):
        return [sentence for each in error.exceptions for sentence in _said(each)]
    if not isinstance(error, FAILURES):
        raise error
    return [f"{type(error).__name__}: {error}"]


def _sum_up(report: Report, record: Record) -> None:
    report.record = record
    report.calls = len(record.tries)
    report.accepted = len(record.deductions.accepted)
    report.not_facts = record.reasons()
