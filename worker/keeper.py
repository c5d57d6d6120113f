"""Upkeep of the partitions: opening, records, trimming, and the figures that show it."""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence

import structlog

from ledger.agreement import ANSWER_S
from ledger.errors import LedgerError
from ledger.failpoints import Failpoints
from ledger.openings import Openings
from sharding.errors import StockUnavailableError
from sharding.events import EventId
from sharding.partitions import PartitionHead, Partitions
from worker.degraded import Replicas
from worker.metrics import WorkerMetrics
from worker.opening import Opener
from worker.share import Share, Shares
from worker.waiting import wait_for_any

TICK_S = 1.0
AGAIN_S = 0.1
"""The same while a partition does not answer: its failover is not to be missed."""
HOUSEKEEPING_EVERY_S = 10.0
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
        opener: Opener,
        replicas: Replicas,
        metrics: WorkerMetrics,
        failpoints: Failpoints,
    ) -> None:
        self._shares = shares
        self._partitions = partitions
        self._openings = openings
        """The first MySQL server counts them."""
        self._opener = opener
        self._replicas = replicas
        self._latest: dict[int, int] = {}
        self._metrics = metrics
        self._failpoints = failpoints
        self._away: dict[int, str] = {}
        self._degraded: set[int] = set()
        self._housekeeping_due_s = 0.0
        self._at_chores: set[tuple[str, int]] = set()
        self._reasons: set[str] = set()

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`; what is being restored by then is left for the next attempt."""
        try:
            async with asyncio.TaskGroup() as chores:
                while not stop.is_set():
                    self._partitions.moved.clear()
                    if self._shares.is_leased:
                        await self._tick(chores)
                    else:
                        await self._watch()
                    pause_s = AGAIN_S if self._away else TICK_S
                    await wait_for_any((stop, self._partitions.moved), pause_s)
        finally:
            await self._opener.end()

    async def _tick(self, chores: asyncio.TaskGroup) -> None:
        served, owned = sorted(self._shares.served), self._shares.owned
        self._opener.keep(owned)
        await self._learn_openings(served)
        reasons = await asyncio.gather(*(self._look(partition, chores) for partition in served))
        fenced = [why for each, why in zip(served, reasons, strict=True) if why and each in owned]
        self._show_fenced(Counter(fenced))
        self._degraded &= owned
        self._away = {each: self._away[each] for each in served if each in self._away}
        self._metrics.degraded.set(len(self._degraded))
        if time.monotonic() >= self._housekeeping_due_s:
            self._housekeeping_due_s = time.monotonic() + HOUSEKEEPING_EVERY_S
            for partition in served:
                self._begin("tidy", partition, self._tidy(partition), chores)

    def _begin(
        self,
        name: str,
        partition: int,
        chore: Coroutine[object, object, None],
        chores: asyncio.TaskGroup,
    ) -> None:
        """No look waits for a chore, which may itself wait until the partition is opened again."""
        if (name, partition) in self._at_chores:
            chore.close()
            return
        self._at_chores.add((name, partition))
        task = chores.create_task(chore, name=f"{name} {partition}")
        task.add_done_callback(lambda _: self._at_chores.discard((name, partition)))

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

    async def _look(self, partition: int, chores: asyncio.TaskGroup) -> str:
        """Open a partition if it is not; returns why it is not open after that, '' if it is."""
        try:
            opening = self._latest.get(partition, 0)
            head = await self._partitions.head(partition, opening=opening)
            if partition in self._shares.owned:
                head = await self._kept(partition, head)
            if head.is_open:
                self._begin("note", partition, self._note_applied(partition, head), chores)
                if self._opener.was_opened_lately(partition):
                    self._begin("hear", partition, self._opener.hear_of_losses(partition), chores)
                self._opener.note_open(partition, head)
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
            return await self._opener.reopened(partition, head, degraded=degraded)
        if await self._replicas.changes(partition, head):
            return await self._opener.reopened(partition, head, degraded=not head.is_degraded)
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
