"""Upkeep of the partitions: opening, records, trimming, and the figures that show it."""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Mapping, Sequence

import structlog

from ledger.agreement import ANSWER_S
from ledger.checkpoints import Checkpoints
from ledger.errors import LedgerError
from ledger.failpoints import Failpoints
from ledger.openings import Openings
from ledger.servers import PerServer, together
from sharding.errors import NotOpenableError, StockUnavailableError
from sharding.events import EventId
from sharding.partitions import Checkpoint, PartitionHead, Partitions
from worker.degraded import Replicas
from worker.freezes import PartitionFreezes
from worker.metrics import WorkerMetrics
from worker.share import Share, Shares
from worker.waiting import wait_for_any

TICK_S = 1.0
AGAIN_S = 0.1
"""The same while a partition does not answer: its failover is not to be missed."""
HOUSEKEEPING_EVERY_S = 10.0
REOPEN_PAUSE_MAX_S = 30.0
AWAY = "AWAY"
"""The reason that stands for a partition whose node does not answer."""

log = structlog.get_logger()


class Keeper:
    """Looks once a second at every partition of which this worker serves a stream.

    What concerns the partition and not one of its streams is done for those that the worker cares for.
    """

    def __init__(
        self,
        shares: Shares,
        partitions: Partitions,
        openings: Openings,
        checkpoints: PerServer[Checkpoints],
        freezes: PerServer[PartitionFreezes],
        replicas: Replicas,
        metrics: WorkerMetrics,
        failpoints: Failpoints,
    ) -> None:
        self._shares = shares
        self._partitions = partitions
        self._openings = openings
        """The first MySQL server counts them; opening needs all of them."""
        self._checkpoints = checkpoints
        self._freezes = freezes
        self._replicas = replicas
        self._latest: dict[int, int] = {}
        self._metrics = metrics
        self._failpoints = failpoints
        self._refusals: dict[int, _Refusal] = {}
        self._away: dict[int, str] = {}
        self._degraded: set[int] = set()
        self._housekeeping_due_s = 0.0
        self._reasons: set[str] = set()

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`."""
        while not stop.is_set():
            self._partitions.moved.clear()
            if self._shares.is_leased:
                await self._tick()
            else:
                await self._watch()
            pause_s = AGAIN_S if self._away else TICK_S
            await wait_for_any((stop, self._partitions.moved), pause_s)

    async def _tick(self) -> None:
        served, owned = sorted(self._shares.served), self._shares.owned
        self._refusals = {each: self._refusals[each] for each in owned if each in self._refusals}
        await self._learn_openings(served)
        reasons = await asyncio.gather(*(self._look(partition) for partition in served))
        fenced = [why for each, why in zip(served, reasons, strict=True) if why and each in owned]
        self._show_fenced(Counter(fenced))
        self._degraded &= owned
        self._metrics.degraded.set(len(self._degraded))
        if time.monotonic() >= self._housekeeping_due_s:
            self._housekeeping_due_s = time.monotonic() + HOUSEKEEPING_EVERY_S
            await asyncio.gather(*(self._tidy(partition) for partition in served))

    async def _watch(self) -> None:
        """The ledger is away, and the leases with it: show how far the last known shares are behind."""
        await asyncio.gather(*(self._look_only(partition) for partition in self._shares.served))

    async def _look_only(self, partition: int) -> None:
        with contextlib.suppress(StockUnavailableError):  # said once there is a lease again
            self._show(partition, await self._partitions.head(partition))

    async def _learn_openings(self, partitions: Sequence[int]) -> None:
        # A failure is said by the drain; what is known still holds.
        with contextlib.suppress(LedgerError, TimeoutError):
            async with asyncio.timeout(ANSWER_S):
                self._latest |= await self._openings.latest(partitions)

    async def _look(self, partition: int) -> str:
        """Open a partition if it is not; returns why it is not open after that, '' if it is."""
        try:
            opening = self._latest.get(partition, 0)
            head = await self._partitions.head(partition, opening=opening)
            if partition in self._shares.owned:
                head = await self._kept(partition, head)
            if head.is_open:
                await self._note_applied(partition, head)
        except StockUnavailableError as error:
            self._shares.found(partition, is_open=False)
            self._metrics.redis_failures.labels(error.reason.value).inc()
            self._note_away(partition, error)
            return AWAY
        self._away.pop(partition, None)
        self._shares.found(partition, is_open=head.is_open)
        (self._degraded.add if head.is_degraded else self._degraded.discard)(partition)
        self._show(partition, head)
        return head.reason

    async def _kept(self, partition: int, head: PartitionHead) -> PartitionHead:
        """Open where it is not, or where its node has lost or found its replica."""
        if not head.is_open:
            degraded = await self._replicas.opens_degraded(partition, head)
            return await self._reopened(partition, head, degraded=degraded)
        if await self._replicas.changes(partition, head):
            return await self._reopened(partition, head, degraded=not head.is_degraded)
        return head

    def _show(self, partition: int, head: PartitionHead) -> None:
        for share in self._shares.all:
            share.show(partition, head.stream(share.place.index), time.time())

    async def _note_applied(self, partition: int, head: PartitionHead) -> None:
        """Also after a failover that lost the last word of it. What fails is said again in a moment."""
        for share in self._shares.all:
            applied, known = (
                has_applied(share, partition, head),
                head.stream(share.place.index).applied,
            )
            if applied is None or (known is not None and known >= applied.number):
                continue
            try:
                await self._partitions.note_applied(partition, applied, ledger=share.place.index)
            except StockUnavailableError as error:
                self._metrics.redis_failures.labels(error.reason.value).inc()

    def _note_away(self, partition: int, error: StockUnavailableError) -> None:
        """Said once per partition until it answers or the reason changes."""
        why = f"{error.reason.value} {error.detail}"
        if self._away.get(partition) != why:
            self._away[partition] = why
            log.warning("partition does not answer", partition=partition, why=why)

    async def _reopened(
        self, partition: int, head: PartitionHead, *, degraded: bool
    ) -> PartitionHead:
        refusal = self._refusals.setdefault(partition, _Refusal())
        if time.monotonic() < refusal.until_s:
            return head
        try:
            async with asyncio.timeout(ANSWER_S):
                if not head.is_open:  # one that is open has been told, and may have no replica
                    await together([each.apply(partition) for each in self._freezes.all])
                opening, checkpoints = await self._issued(partition, head)
            self._failpoints.hit("worker.before_opening")
            opened = await self._partitions.open(
                partition, checkpoints, opening=opening, degraded=degraded
            )
        except (LedgerError, TimeoutError):
            return head  # the drain has said which server of the ledger is away
        except NotOpenableError as error:
            self._note_refusal(partition, refusal, str(error))
            return head
        self._refusals.pop(partition, None)
        log.info("partition opened", partition=partition, reason=head.reason, degraded=degraded)
        return opened

    async def _issued(self, partition: int, head: PartitionHead) -> tuple[int, list[Checkpoint]]:
        """A generation for one attempt, and what each MySQL server has applied."""
        opening = await self._openings.begin(partition, above=head.generation)
        found = await together([each.of({partition}) for each in self._checkpoints.all[1:]])
        return opening.generation, [opening.checkpoint, *(each[partition] for each in found)]

    def _note_refusal(self, partition: int, refusal: "_Refusal", text: str) -> None:
        """Said once per partition until it is opened or the text changes."""
        self._metrics.failures.labels("not_openable").inc()
        if refusal.text != text:
            log.error("partition cannot be opened", partition=partition, why=text)
        refusal.again(text, time.monotonic())

    async def _tidy(self, partition: int) -> None:
        try:
            if partition in self._shares.readable:
                await self._partitions.rotate_records(
                    partition, record_ttl_s=self._partitions.record_ttl_s
                )
            for share in self._shares.all:
                trims = share.trims.get(partition)  # it may be lost at any time
                below = (
                    trims.due(time.monotonic()) if trims and partition in share.readable else None
                )
                if below is not None:
                    await self._trim(partition, share.place.index, below)
        except StockUnavailableError as error:
            self._metrics.redis_failures.labels(error.reason.value).inc()

    async def _trim(self, partition: int, ledger: int, below: EventId) -> None:
        self._failpoints.hit("worker.before_trim")
        removed = await self._partitions.trim(partition, ledger=ledger, below=below)
        self._failpoints.hit("worker.after_trim")
        self._metrics.trimmed.inc(removed)

    def _show_fenced(self, counts: Mapping[str, int]) -> None:
        self._reasons |= counts.keys()
        for reason in self._reasons:
            self._metrics.fenced.labels(reason).set(counts.get(reason, 0))


def has_applied(share: Share, partition: int, head: PartitionHead) -> EventId | None:
    """Up to which event a MySQL server has all of its own: the partition's last one where nothing of its
    own stream waits; None where the share does not know."""
    applied = share.applied.get(partition)
    if applied is None:
        return None
    waits = head.stream(share.place.index).last > applied.id
    return applied.id if waits else EventId(head.generation, head.number)


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
