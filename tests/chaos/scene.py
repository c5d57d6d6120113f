"""One fault on the stage: its products, its buyers, what it did and what came of it."""

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random

from deploy.local.errors import StackError
from deploy.local.redis_cluster import RedisNode
from deploy.local.waiting import Condition, until
from sharding.keys import tags
from sharding.placement import home_shard
from sharding.settings import StockSettings
from sharding.slots import slot_of
from tests.chaos.history import Record, Try, success_rate, usual_p99_s
from tests.chaos.load import RATE_PER_S, Buyers, selling
from tests.chaos.oracle import judge, without_losses
from tests.chaos.settling import settle
from tests.chaos.stack import Stage

UNITS = 500_000
SHARDS = 6
ORDER_SHARDS = 3
PARTITIONS = StockSettings().partitions
NOTICEABLE_S = 0.05
"""What is quicker than that has not become slow, whatever it was before."""
SLOWER = 2.0
UNTOUCHED_RATE = 0.95
"""Of requests whose homes nothing happened to; the others keep processes busy, too."""
SELLING_RATE = 0.5
"""The same on a machine that is busy with something else."""
MIX_S = 300.0
PAUSE_TOLD_S = 0.5
BACK_WITHIN_S_MAX, UNTIMED_S_MAX = 15.0, 60.0
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
    """What came of one fault; passed when `wrong` and `late` are empty."""

    fault: Fault
    wrong: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    """What took longer than it may."""
    was_disturbed: bool = False
    """Buyers and proxies stood still for a while: others use the machine as well, or the crowd does."""
    tries: int = 1
    took_s: float = 0.0
    back_s: float | None = None
    calls: int = 0
    accepted: int = 0
    not_facts: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    record: Record | None = None

    @property
    def passed(self) -> bool:
        """Whether all was survived, and in time."""
        return not self.wrong and not self.late


class Scene:
    """What a fault works with: it starts buyers by `selling` and breaks things."""

    buyers: Buyers

    def __init__(
        self, stage: Stage, fault: Fault, *, mix_s: float, sold: int, is_timed: bool
    ) -> None:
        """`mix_s`: how long the fault that is a mix of all goes on; `sold`: accepted deductions before
        a fault that may lose some. Not `is_timed`: how quick something is, is told and not judged."""
        self.sold = sold
        self._is_timed = is_timed
        self.mix_s = mix_s
        self.stage = stage
        self.choice: Random = stage.choice
        self.report = Report(fault)
        self._struck_s: float | None = None
        self._loaded = 0
        self.may_lose = False
        """What was acknowledged may be lost, as long as that is noticed and nothing is sold twice."""
        self.named: float | None = None
        """How many events the service says that it has lost, where it has to know."""

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
    async def selling(self, *, rate_per_s: int = RATE_PER_S) -> AsyncIterator[Buyers]:
        """Buyers around a fault; afterwards it takes until they have their old success rate back."""
        buyers = await self.put_on_sale()
        buyers.rate_per_s = rate_per_s
        async with selling(buyers):
            self.broke()
            yield buyers
            await self.expect_back()

    def broke(self, since_s: float | None = None) -> float:
        """From now on, or since then, it counts how long it takes to be back."""
        self._struck_s = self.stage.now_s if since_s is None else since_s
        return self._struck_s

    async def expect_back(self) -> None:
        """Wait until the old success rate is back since something broke last; the slowest counts."""
        assert self._struck_s is not None
        within_s = BACK_WITHIN_S_MAX if self._is_timed else UNTIMED_S_MAX
        back_s = await self.buyers.back(self._struck_s, within_s=within_s)
        limit_s = self.report.fault.back_within_s
        if back_s is None:
            self.report.wrong.append(f"not back to 99 % within {within_s:g} s")
            return
        self.report.back_s = max(back_s, self.report.back_s or 0.0)
        self.expect_in_time(back_s <= limit_s, f"back after {back_s:g} s, not {limit_s:g} s")

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

    @property
    def all_shards(self) -> frozenset[int]:
        return frozenset(range(SHARDS))

    async def a_partition_of(self, node: RedisNode) -> int:
        """One of the product's partitions that a node leads."""
        stock = await self.stage.shop.caller.get_stock(self.buyers.product_id)
        elsewhere = await self.shards_elsewhere(node)
        return next(each.partition for each in stock.shards if each.shard not in elsewhere)

    async def accepted_at(self, node: RedisNode, tries: Sequence[Try]) -> int:
        """How many of these took units, for the first time, from a node."""
        elsewhere = await self.shards_elsewhere(node)
        return sum(
            each.shard is not None and not each.replayed and each.shard not in elsewhere
            for each in tries
        )

    def first_tries(self, shards: Collection[int]) -> list[Try]:
        """Of the requests that have one of these homes."""
        tries = self.buyers.record.first_tries
        return [each for each in tries if home_shard(each.name, SHARDS) in shards]

    def expect_as_quick(
        self,
        shards: Collection[int],
        since_s: float,
        *,
        times: float,
        before_s: float | None = None,
    ) -> None:
        """Requests with these homes take at most so many times as long as before, or before `before_s`.

        Of callers who say that it is their first try: those of the others are looked up elsewhere, too.
        """
        tries = [each for each in self.first_tries(shards) if each.attempt == 1]
        until_s = since_s if before_s is None else before_s
        before = usual_p99_s([each for each in tries if each.started_s < until_s])
        now = usual_p99_s([each for each in tries if each.started_s >= since_s])
        self.note(f"p99 {before * 1_000:.0f} ms before, {now * 1_000:.0f} ms meanwhile")
        self.expect_in_time(
            now <= max(before * times, NOTICEABLE_S),
            f"I7: p99 of other requests went from {before:.3f} s to {now:.3f} s",
        )

    def expect_quick_again(self, *, before_s: float, after_s: float) -> None:
        """First tries after one moment take about as long as those before another."""
        tries = [each for each in self.buyers.record.first_tries if each.attempt == 1]
        before = usual_p99_s([each for each in tries if each.started_s < before_s])
        after = usual_p99_s([each for each in tries if each.started_s >= after_s])
        self.note(f"p99 {before * 1_000:.0f} ms before, {after * 1_000:.0f} ms afterwards")
        self.expect_in_time(
            after <= max(before * SLOWER, NOTICEABLE_S),
            f"p99 was {before:.3f} s before, and is {after:.3f} s",
        )

    def expect_selling(self, shards: Collection[int], since_s: float) -> None:
        """Requests with these homes were accepted at their first try, whatever else went wrong."""
        theirs = [each for each in self.first_tries(shards) if each.started_s >= since_s]
        rate = success_rate(theirs)
        self.expect(
            rate >= (UNTOUCHED_RATE if self._is_timed else SELLING_RATE),
            f"I7: of {len(theirs)} requests with other homes {rate:.1%} were accepted at once",
        )

    def expect(self, is_so: bool, otherwise: str) -> None:
        """What must be so besides the oracle."""
        if not is_so:
            self.report.wrong.append(otherwise)

    def expect_in_time(self, is_so: bool, otherwise: str) -> None:
        """The same of what a machine that is busy with something else is too slow for."""
        if not is_so and self._is_timed:
            self.report.late.append(otherwise)

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
        if not hasattr(self, "buyers"):
            return
        evidence = await settle(self.stage, self.buyers, loaded=self._loaded)
        if self.may_lose:
            evidence, lost = without_losses(evidence)
            self.note(f"{lost.number} acknowledged requests were lost")
            events = evidence.record.events_at_least(lost.requests)
            self.expect(
                self.named is None or events <= self.named,
                f"at least {events} events were lost, and {self.named} named",
            )
        self.report.wrong += judge(evidence)


async def play(
    stage: Stage, fault: Fault, *, mix_s: float = MIX_S, sold: int = 0, is_timed: bool = True
) -> Report:
    """Break one thing and see what comes of it. Never raises for what the service does."""
    scene, begun_s = Scene(stage, fault, mix_s=mix_s, sold=sold, is_timed=is_timed), stage.now_s
    report = scene.report
    try:
        await stage.heal()  # of what a fault before it may have left
        await fault.strike(scene)
        await scene.judged()
    except Exception as error:  # noqa: BLE001 - the top of a loop: the next fault is played all the same
        report.wrong += _said(error)
    report.took_s = stage.now_s - begun_s
    _note_pauses(scene, begun_s)
    if hasattr(scene, "buyers"):
        _sum_up(report, scene.buyers.record)
    return report


def _note_pauses(scene: Scene, begun_s: float) -> None:
    """With this process the proxies stand still, which to the servers is a loss of all of Redis."""
    pauses = [each.lasted_s for each in scene.stage.pauses if each.ended_s >= begun_s]
    if max(pauses, default=0.0) > PAUSE_TOLD_S:
        scene.report.was_disturbed = True
        scene.note(
            f"THE MACHINE WAS TOO BUSY: buyers and proxies stood still for {max(pauses):.1f} s"
        )


def _said(error: Exception) -> list[str]:
    if isinstance(error, ExceptionGroup):
        return [sentence for each in error.exceptions for sentence in _said(each)]
    return [f"{type(error).__name__}: {error}"]


def _sum_up(report: Report, record: Record) -> None:
    report.record = record
    report.calls = len(record.tries)
    report.accepted = len(record.deductions.accepted)
    report.not_facts = record.reasons()
