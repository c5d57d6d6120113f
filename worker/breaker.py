"""Stops the sale of a product that has sold, or may sell, more than there is, and of no other."""

import asyncio
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import NamedTuple

import structlog

from ledger.audits import Audits, DriftRow
from ledger.checkpoints import Checkpoints
from ledger.errors import LedgerError
from ledger.freezes import Deficit, Freezes, Verdict
from sharding.errors import StockUnavailableError
from sharding.events import EventId
from sharding.plans import Freeze
from sharding.quantities import REASON_CHARS_MAX
from sharding.stock import Stock
from worker.metrics import WorkerMetrics
from worker.settings import WorkerSettings
from worker.share import Share
from worker.waiting import wait_until

TICK_S = 0.5
DEFICITS_EVERY_S = 2.0
LETTERS_AGAIN_S = 30.0
PASSES = 2
"""Rounds of markers that a product must be in deficit after: the streams of its shards are applied at
different paces, and sales may be known before the units that they took."""
SETTLED_MAX = 10_000
SECOND_LOOK_S = 1.0

log = structlog.get_logger()


class EvidenceKind(StrEnum):
    """What speaks for an oversell."""

    DRIFT = "drift"
    """A shard differs from the ledger."""
    DAMAGE = "damage"
    """A shard's key is gone or makes no sense."""
    LETTER = "letter"
    """The ledger could not hold an event: a count would have been below zero."""
    DEFICIT = "deficit"
    """More is sold and held than ever came in."""


class Evidence(NamedTuple):
    """What speaks for an oversell of a product; `key` names it for good."""

    product_id: int
    kind: EvidenceKind
    key: str
    reason: str
    epoch: int | None = None
    """Of the load that it belongs to; None: of any."""


class Damage(NamedTuple):
    """A shard that makes no sense."""

    product_id: int
    epoch: int
    partition: int
    detail: str


class Suspects:
    """Damage that the audit has seen; what it sees twice, one look after the other, is evidence."""

    pause_s = SECOND_LOOK_S

    def __init__(self) -> None:
        self._seen: dict[int, frozenset[Damage]] = {}
        self._confirmed: set[Damage] = set()

    def look(self, product_id: int, damages: frozenset[Damage]) -> bool:
        """Take what one look has found; whether a second one is wanted soon."""
        before = self._seen.pop(product_id, frozenset())
        self._confirmed |= damages & before
        if damages:
            self._seen[product_id] = damages
        return bool(damages - before)

    @property
    def confirmed(self) -> list[Damage]:
        """What was seen twice and has not been presented."""
        return sorted(self._confirmed)

    def presented(self, damages: Iterable[Damage]) -> None:
        """The ledger knows of these."""
        self._confirmed.difference_update(damages)


class _Deficit(NamedTuple):
    """A product in deficit: the markers to be passed, and how often such have been."""

    markers: Mapping[int, EventId]
    passes: int


class Deficits:
    """Follows products in deficit until that counts as evidence. Pure."""

    def __init__(self) -> None:
        self._known: dict[int, _Deficit] = {}

    def seen(self, deficits: Collection[int]) -> None:
        """Take which products are in deficit now; the others never were."""
        self._known = {each: found for each, found in self._known.items() if each in deficits}
        for product_id in deficits:
            self._known.setdefault(product_id, _Deficit({}, 0))

    def unmarked(self) -> list[int]:
        """Products that new markers are wanted for."""
        return [each for each, found in self._known.items() if not found.markers]

    def marked(self, product_id: int, markers: Mapping[int, EventId]) -> None:
        """Wait until the ledger has passed these markers, one for each shard."""
        if product_id in self._known:
            self._known[product_id] = self._known[product_id]._replace(markers=markers)

    @property
    def partitions(self) -> frozenset[int]:
        """Partitions with markers that are waited for."""
        return frozenset(each for found in self._known.values() for each in found.markers)

    def proven(self, applied: Mapping[int, EventId]) -> list[int]:
        """Products that were in deficit after PASSES rounds of markers; each is told once a round."""
        result = []
        for product_id, found in self._known.items():
            if found.markers and all(applied[p] >= mark for p, mark in found.markers.items()):
                self._known[product_id] = _Deficit({}, found.passes + 1)
                if found.passes + 1 >= PASSES:
                    result.append(product_id)
        return result


class Breaker:
    """Looks for evidence about the products whose base partition this worker serves.

    Each piece trips once: an operator who resumes the sale is not overruled by what was known then.
    """

    def __init__(
        self,
        share: Share,
        stock: Stock,
        freezes: Freezes,
        audits: Audits,
        checkpoints: Checkpoints,
        suspects: Suspects,
        settings: WorkerSettings,
        metrics: WorkerMetrics,
    ) -> None:
        self._share = share
        self._stock = stock
        self._freezes = freezes
        self._audits = audits
        self._checkpoints = checkpoints
        self._suspects = suspects
        self._settings = settings
        self._metrics = metrics
        self._deficits = Deficits()
        self._deficits_due_s = 0.0
        self._letters_of: frozenset[int] = frozenset()
        """The share that letters were last looked for."""
        self._last_letter = 0
        """All that were found up to it have been presented."""
        self._letters_due_s = 0.0
        self._settled: set[tuple[int, str]] = set()
        """Products and evidence that the ledger knows."""

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`; nothing at all where the breaker is switched off."""
        while self._settings.breaker == "on" and not stop.is_set():
            if self._share.is_leased:
                await self._tick()
            await wait_until(stop, TICK_S)

    async def _tick(self) -> None:
        try:
            letters, damages = await self._letters(), self._suspects.confirmed
            known = (*map(of_letter, letters.items()), *map(of_damage, damages))
            for evidence in (*known, *await self._evidence()):
                if self._share.owns(evidence.product_id):
                    await self._present(evidence)
            self._last_letter = max([self._last_letter, *letters.values()])
            self._suspects.presented(damages)
        except LedgerError:
            self._metrics.failures.labels("breaker").inc()

    async def _evidence(self) -> list[Evidence]:
        found = [*map(of_drift, await self._audits.open_drifts())]
        found += await self._proven_deficits()
        return found

    async def _letters(self) -> Mapping[int, int]:
        """The latest letter of each product. All are looked at again now and then, for ids are not in
        the order of commits, and where the share has grown: nobody may have seen to the others."""
        now_s = time.monotonic()
        if self._share.owned - self._letters_of or now_s >= self._letters_due_s:
            self._last_letter, self._letters_due_s = 0, now_s + LETTERS_AGAIN_S
        self._letters_of = self._share.owned
        return await self._freezes.refused_letters(after=self._last_letter)

    async def _proven_deficits(self) -> list[Evidence]:
        if time.monotonic() < self._deficits_due_s:
            return []
        units = {
            product_id: deficit
            for product_id, deficit in (await self._freezes.deficits()).items()
            if self._share.owns(product_id)
        }
        self._deficits.seen(units)
        checkpoints = await self._checkpoints.of(self._deficits.partitions)
        proven = self._deficits.proven({each: found.id for each, found in checkpoints.items()})
        for product_id in self._deficits.unmarked():
            await self._mark(product_id)
        # While one is followed, every tick is worth a look.
        self._deficits_due_s = time.monotonic() + (0.0 if units else DEFICITS_EVERY_S)
        return [of_deficit(product_id, units[product_id]) for product_id in proven]

    async def _mark(self, product_id: int) -> None:
        """Markers count only where every shard has one."""
        try:
            marked = await self._stock.mark(product_id)
        except StockUnavailableError as error:
            self._metrics.redis_failures.labels(error.reason.value).inc()
            return
        if marked is not None and not marked.faults:
            markers = {each.partition: each.event_id for each in marked.markers}
            self._deficits.marked(product_id, markers)

    async def _present(self, evidence: Evidence) -> None:
        product_id, kind, key, reason, epoch = evidence
        if (product_id, key) in self._settled:
            return
        verdict, freeze = await self._freezes.trip(
            product_id, evidence=key, reason=reason, epoch=epoch
        )
        if verdict is not Verdict.NOT_ON_SALE:
            self._settle(product_id, key)
        if verdict is Verdict.TRIPPED:
            self._metrics.trips.labels(kind.value).inc()
            log.error("product frozen", product_id=product_id, evidence=kind.value, why=reason)
            await self._stop_now(product_id, freeze)

    async def _stop_now(self, product_id: int, freeze: Freeze) -> None:
        """Whatever is away now is told by the loop in worker/freezes.py."""
        try:
            await self._stock.freeze(product_id, freeze)
        except StockUnavailableError as error:
            self._metrics.redis_failures.labels(error.reason.value).inc()

    def _settle(self, product_id: int, key: str) -> None:
        if len(self._settled) >= SETTLED_MAX:
            self._settled.clear()  # the ledger remembers
        self._settled.add((product_id, key))


def of_drift(drift: DriftRow) -> Evidence:
    """A difference that has changed is evidence anew."""
    damaged = f", {drift.damaged} damaged" if drift.damaged else ""
    reason = (
        f"partition {drift.partition} differs from the ledger since event {drift.first_event}: "
        f"{', '.join(_worded(drift.units._asdict().items()))}{damaged}"
    )
    key = f"drift {drift.id}-{drift.changes}"
    return _evidence(drift.product_id, EvidenceKind.DRIFT, key, reason, epoch=drift.epoch)


def of_damage(damage: Damage) -> Evidence:
    """Once for each load: what is damaged stays so until somebody mends it."""
    product_id, epoch, partition, detail = damage
    reason = f"partition {partition} is damaged: {detail}"
    key = f"damage {epoch}-p{partition:02d}"
    return _evidence(product_id, EvidenceKind.DAMAGE, key, reason, epoch=epoch)


def of_letter(found: tuple[int, int]) -> Evidence:
    """The latest letter stands for all before it."""
    product_id, letter = found
    reason = f"the ledger cannot hold an event: it would be below zero (dead letter {letter})"
    return _evidence(product_id, EvidenceKind.LETTER, f"letter {letter}", reason)


def of_deficit(product_id: int, deficit: Deficit) -> Evidence:
    """A deficit of another size, or of another load, is evidence anew."""
    units, epoch = deficit
    reason = f"{units} units more are sold and held than ever came in"
    key = f"deficit {epoch}-{units}"
    return _evidence(product_id, EvidenceKind.DEFICIT, key, reason, epoch=epoch)


def _evidence(
    product_id: int, kind: EvidenceKind, key: str, reason: str, *, epoch: int | None = None
) -> Evidence:
    return Evidence(product_id, kind, key, reason[:REASON_CHARS_MAX], epoch)


def _worded(units: Iterable[tuple[str, int]]) -> Iterator[str]:
    for name, number in units:
        if number:
            yield f"{name} {number:+d}"
