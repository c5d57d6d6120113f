"""Upkeep of the share's partitions: opening, records, trimming, and the figures that show it."""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Mapping

import structlog

from ledger.errors import LedgerError
from ledger.failpoints import Failpoints
from ledger.openings import Openings
from sharding.errors import NotOpenableError, StockUnavailableError
from sharding.events import EventId
from sharding.partitions import PartitionHead, Partitions
from worker.drain import LEDGER
from worker.freezes import PartitionFreezes
from worker.metrics import WorkerMetrics
from worker.settings import WorkerSettings
from worker.share import Share
from worker.upkeep import LedgerUpkeep
from worker.waiting import wait_until

TICK_S = 1.0
HOUSEKEEPING_EVERY_S = 10.0
REOPEN_PAUSE_MAX_S = 30.0
AWAY = "AWAY"
"""The reason that stands for a partition whose node does not answer."""

log = structlog.get_logger()


class Keeper:
    """Looks at every partition of the share once a second."""

    def __init__(
        self,
        share: Share,
        partitions: Partitions,
        openings: Openings,
        freezes: PartitionFreezes,
        upkeep: LedgerUpkeep,
        settings: WorkerSettings,
        metrics: WorkerMetrics,
        failpoints: Failpoints,
    ) -> None:
        self._share = share
        self._partitions = partitions
        self._openings = openings
        self._freezes = freezes
        self._latest: dict[int, int] = {}
        self._upkeep = upkeep
        self._settings = settings
        self._metrics = metrics
        self._failpoints = failpoints
        self._refusals: dict[int, _Refusal] = {}
        self._away: dict[int, str] = {}
        self._housekeeping_due_s = 0.0
        self._reasons: set[str] = set()
        self._behind: set[int] = set()

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`."""
        while not stop.is_set():
            if self._share.is_leased:
                await self._tick()
            else:
                await self._watch()
            await wait_until(stop, TICK_S)

    async def _tick(self) -> None:
        owned = sorted(self._share.owned)
        self._refusals = {each: self._refusals[each] for each in owned if each in self._refusals}
        await self._learn_openings()
        self._behind.clear()
        fenced = await asyncio.gather(*(self._look(partition) for partition in owned))
        self._show_fenced(Counter(reason for reason in fenced if reason))
        self._metrics.behind.set(len(self._behind))
        if time.monotonic() >= self._housekeeping_due_s:
            self._housekeeping_due_s = time.monotonic() + HOUSEKEEPING_EVERY_S
            await asyncio.gather(*(self._tidy(partition) for partition in owned))
            await self._upkeep.tidy(self._share.owned)

    async def _watch(self) -> None:
        """The ledger is away, and the leases with it: show how far the last known share is behind."""
        self._behind.clear()
        await asyncio.gather(*(self._look_only(partition) for partition in self._share.owned))
        self._metrics.behind.set(len(self._behind))

    async def _look_only(self, partition: int) -> None:
        with contextlib.suppress(StockUnavailableError):  # said once there is a lease again
            self._show_lag(partition, await self._partitions.head(partition))

    async def _learn_openings(self) -> None:
        with contextlib.suppress(LedgerError):  # said by the drain; what is known still holds
            self._latest = dict(await self._openings.latest(self._share.owned))

    async def _look(self, partition: int) -> str:
        """Open a partition if it is not; returns why it is not open after that, '' if it is."""
        try:
            opening = self._latest.get(partition, 0)
            head = await self._partitions.head(partition, opening=opening)
            if not head.is_open:
                head = await self._reopened(partition, head)
            if head.is_open:
                await self._note_applied(partition, head)
        except StockUnavailableError as error:
            self._share.lose(partition, error)
            self._note_away(partition, error)
            return AWAY
        self._away.pop(partition, None)
        self._share.found(partition, is_open=head.is_open)
        self._show_lag(partition, head)
        return head.reason

    async def _note_applied(self, partition: int, head: PartitionHead) -> None:
        """Also after a failover that lost the last word of it. What fails is said again in a moment."""
        applied = self._share.applied.get(partition)
        if applied is None or (head.applied is not None and head.applied >= applied.id.number):
            return
        try:
            await self._partitions.note_applied(partition, applied.id)
        except StockUnavailableError as error:
            self._metrics.redis_failures.labels(error.reason.value).inc()

    def _note_away(self, partition: int, error: StockUnavailableError) -> None:
        """Said once per partition until it answers or the reason changes."""
        why = f"{error.reason.value} {error.detail}"
        if self._away.get(partition) != why:
            self._away[partition] = why
            log.warning("partition does not answer", partition=partition, why=why)

    async def _reopened(self, partition: int, head: PartitionHead) -> PartitionHead:
        refusal = self._refusals.setdefault(partition, _Refusal())
        if time.monotonic() < refusal.until_s:
            return head
        try:
            await self._freezes.apply(partition)
            opening = await self._openings.begin(partition, above=head.generation)
            opened = await self._partitions.open(
                partition, [opening.checkpoint], opening=opening.generation
            )
        except LedgerError:
            return head  # the drain has said that the ledger is away
        except NotOpenableError as error:
            self._note_refusal(partition, refusal, str(error))
            return head
        self._refusals.pop(partition, None)
        log.info("partition opened", partition=partition, reason=head.reason)
        return opened

    def _note_refusal(self, partition: int, refusal: "_Refusal", text: str) -> None:
        """Said once per partition until it is opened or the text changes."""
        self._metrics.failures.labels("not_openable").inc()
        if refusal.text != text:
            log.error("partition cannot be opened", partition=partition, why=text)
        refusal.again(text, time.monotonic())

    async def _tidy(self, partition: int) -> None:
        trims = self._share.trims.get(partition)  # the partition may be lost in between
        if trims is None or partition in self._share.away:
            return
        try:
            await self._partitions.rotate_records(
                partition, record_ttl_s=self._settings.record_ttl_s
            )
            below = trims.due(time.monotonic())
            if below is not None:
                await self._trim(partition, below)
        except StockUnavailableError as error:
            self._metrics.redis_failures.labels(error.reason.value).inc()

    async def _trim(self, partition: int, below: EventId) -> None:
        self._failpoints.hit("worker.before_trim")
        removed = await self._partitions.trim(partition, ledger=LEDGER, below=below)
        self._failpoints.hit("worker.after_trim")
        self._metrics.trimmed.inc(removed)

    def _show_lag(self, partition: int, head: PartitionHead) -> None:
        """While the ledger is away, its own word on how far it is lacks; then the partition's counts."""
        if head.is_behind:
            self._behind.add(partition)
        known = self._share.applied.get(partition)
        applied = known.id.number if known else head.applied
        if applied is None or partition not in self._share.lags:
            return
        lag, now_s = self._share.lags[partition], time.time()
        lag.seen(head, applied, now_s)
        self._metrics.lag_entries.labels(str(partition)).set(lag.entries)
        self._metrics.lag_seconds.labels(str(partition)).set(lag.seconds(now_s))

    def _show_fenced(self, counts: Mapping[str, int]) -> None:
        self._reasons |= counts.keys()
        for reason in self._reasons:
            self._metrics.fenced.labels(reason).set(counts.get(reason, 0))


class _Refusal:
    """A partition that could not be opened, and when to try again."""

    def __init__(self) -> None:
        self.text = ""
        self.until_s = 0.0
        self._pause_s = TICK_S / 2

    def again(self, text: str, now_s: float) -> None:
        self.text = text
        self._pause_s = min(self._pause_s * 2, REOPEN_PAUSE_MAX_S)
        self.until_s = now_s + self._pause_s
