"""The loop that carries events: read, wait for their replication, apply, again."""

import asyncio
import time
from collections.abc import Mapping, Sequence

import structlog

from ledger.checkpoints import Checkpoints
from ledger.database import backoff_s
from ledger.errors import CheckpointMovedError, LedgerError
from ledger.failpoints import Failpoints
from ledger.merge import Chunk, Delivery, cut, received
from sharding.errors import StockUnavailableError
from sharding.events import EventId
from sharding.partitions import Partitions
from worker.applier import Applier
from worker.metrics import WorkerMetrics
from worker.settings import WorkerSettings
from worker.share import Share
from worker.waiting import wait_until

ENTRIES_MIN, ENTRIES_MAX = 2, 256
ROWS_PER_ENTRY_FIRST_GUESS = 50.0
BACKOFF_ATTEMPT_MAX = 8

log = structlog.get_logger()


class Drain:
    """Carries the events of the share's partitions into the ledger."""

    def __init__(
        self,
        share: Share,
        partitions: Partitions,
        checkpoints: Checkpoints,
        applier: Applier,
        settings: WorkerSettings,
        metrics: WorkerMetrics,
        failpoints: Failpoints,
    ) -> None:
        self._share = share
        self._partitions = partitions
        self._checkpoints = checkpoints
        self._applier = applier
        self._settings = settings
        self._metrics = metrics
        self._failpoints = failpoints
        self._rows_per_entry = ROWS_PER_ENTRY_FIRST_GUESS
        self._busy = 1
        self._failures = 0
        self._undone: set[int] = set()
        self._torn: set[int] = set()
        """Partitions whose stream has lost something of what was read last."""

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`; what has been read by then is applied."""
        pause_ms = self._settings.poll_ms_min
        while not stop.is_set():
            moved = await self._round_or_backoff(stop)
            if moved:
                pause_ms = self._settings.poll_ms_min
            else:
                pause_ms = min(pause_ms * 2, self._settings.poll_ms_max)
                await wait_until(stop, pause_ms / 1_000)

    async def _round_or_backoff(self, stop: asyncio.Event) -> bool:
        """Whether anything was applied. The ledger's failures are waited out here."""
        try:
            return await self._round(stop)
        except CheckpointMovedError as error:
            self._metrics.batches_lost.inc()
            self._forget(error.partitions)
        except LedgerError as error:
            await self._back_off(error, stop)
        return False

    async def _round(self, stop: asyncio.Event) -> bool:
        await self._load_checkpoints()
        self._failpoints.hit("worker.before_read")
        chunks = await self._gather(stop)
        if not chunks:
            self._note_failures(0)  # nothing is left that could not be written
            return False
        self._failpoints.hit("worker.after_read")
        replicated = await self._replicated(chunks)
        for batch in cut(replicated, self._settings.batch_rows_max):
            await self._applier.apply(batch)
            self._note_failures(0)
            self._note(batch)
        return bool(replicated)

    async def _load_checkpoints(self) -> None:
        unknown = self._share.owned - self._share.applied.keys()
        found = await self._checkpoints.of(unknown)
        self._partitions.learn(found)
        for partition, checkpoint in found.items():
            self._share.advance(partition, checkpoint)

    async def _gather(self, stop: asyncio.Event) -> list[Chunk]:
        """Read until there is a batch: enough rows, or the first event is old enough."""
        found: dict[int, list[Delivery]] = {}
        rows, deadline_s = 0, 0.0
        while True:
            fresh = await self._read(found)
            rows += sum(delivery.rows for each in fresh.values() for delivery in each)
            for partition, deliveries in fresh.items():
                found.setdefault(partition, []).extend(deliveries)
            now_s = time.monotonic()
            deadline_s = deadline_s or now_s + self._settings.batch_age_ms_max / 1_000
            is_full = rows >= self._settings.batch_rows_max
            if not rows or is_full or now_s >= deadline_s or stop.is_set():
                return self._chunks(found)
            await asyncio.sleep(self._settings.poll_ms_min / 1_000)

    async def _read(self, found: Mapping[int, Sequence[Delivery]]) -> dict[int, list[Delivery]]:
        """The next entries of every readable partition; a node that is away costs only its own."""
        count = self._entries_at_once()
        wanted = [each for each in self._share.readable if each in self._share.applied]
        answers = await asyncio.gather(
            *[self._read_one(each, self._position(each, found), count) for each in wanted]
        )
        fresh = {each: answer for each, answer in zip(wanted, answers, strict=True) if answer}
        self._learn(fresh)
        return fresh

    def _position(self, partition: int, found: Mapping[int, Sequence[Delivery]]) -> EventId:
        """The last entry that is applied or in hand."""
        if partition in found:
            return found[partition][-1].entry.id
        return self._share.applied[partition].id

    async def _read_one(self, partition: int, after: EventId, count: int) -> list[Delivery]:
        try:
            entries = await self._partitions.read(
                partition, ledger=self._share.place.index, after=after, count=count
            )
        except StockUnavailableError as error:
            self._share.lose(partition, error)
            return []
        return [received(entry) for entry in entries]

    def _entries_at_once(self) -> int:
        """So many that the partitions with events fill one batch together."""
        rows = self._settings.batch_rows_max / self._busy / self._rows_per_entry
        return max(ENTRIES_MIN, min(ENTRIES_MAX, int(rows)))

    def _learn(self, fresh: Mapping[int, Sequence[Delivery]]) -> None:
        entries = sum(map(len, fresh.values()))
        self._busy = max(1, len(fresh))
        if entries:
            rows = sum(delivery.rows for each in fresh.values() for delivery in each)
            self._rows_per_entry += (rows / entries - self._rows_per_entry) / 4

    def _chunks(self, found: Mapping[int, Sequence[Delivery]]) -> list[Chunk]:
        applied = self._share.applied
        return [
            Chunk(partition, applied[partition].id, deliveries)
            for partition, deliveries in sorted(found.items())
            if partition in applied
        ]

    async def _replicated(self, chunks: Sequence[Chunk]) -> list[Chunk]:
        """The chunks that a replica has, too; the others are read again later."""
        answers = await asyncio.gather(*(self._is_replicated(chunk) for chunk in chunks))
        return [chunk for chunk, answer in zip(chunks, answers, strict=True) if answer]

    async def _is_replicated(self, chunk: Chunk) -> bool:
        try:
            is_there = await self._partitions.replicated(
                chunk.partition, ledger=self._share.place.index, last=chunk.end
            )
            await self._look_for_losses(chunk)
        except StockUnavailableError as error:
            self._share.lose(chunk.partition, error)
            return False
        if is_there:
            self._undone.discard(chunk.partition)
        else:
            self._undo(chunk)
        return is_there

    async def _look_for_losses(self, chunk: Chunk) -> None:
        """Where there are several servers, a stream's numbers have holes: the others' events."""
        place = self._share.place
        if place.count > 1 and not await self._partitions.is_whole(
            chunk.partition, ledger=place.index, after=chunk.start
        ):
            self._torn.add(chunk.partition)

    def _undo(self, chunk: Chunk) -> None:
        """Leave what was read: its master is gone, the one that took over does not have all of it."""
        self._metrics.reads_undone.inc()
        if chunk.partition not in self._undone:
            self._undone.add(chunk.partition)
            log.warning(
                "events that had been read are gone from the stream, reading again",
                partition=chunk.partition,
                last=str(chunk.end.id),
            )

    def _note(self, batch: Sequence[Chunk]) -> None:
        self._metrics.batch_rows.observe(
            sum(delivery.rows for chunk in batch for delivery in chunk.deliveries)
        )
        for chunk in batch:
            self._note_gaps(chunk)
            self._share.advance(chunk.partition, chunk.end)
            for delivery in chunk.deliveries:
                kind = delivery.event.kind.value if delivery.event else "malformed"
                self._metrics.events.labels(kind).inc()
            last = chunk.deliveries[-1].event
            if last and chunk.partition in self._share.lags:
                self._share.lags[chunk.partition].applied_until(last.at_ms / 1_000)

    def _note_gaps(self, chunk: Chunk) -> None:
        """Numbers of one generation follow each other; what is missing was lost, or never an event.

        Told once the batch is applied: until then another worker may have applied and trimmed it.
        """
        if self._share.place.count > 1:
            if chunk.partition in self._torn:
                self._torn.discard(chunk.partition)
                self._note_gap(chunk.partition, chunk.start, chunk.deliveries[0].entry.id)
            return
        before = chunk.start
        for delivery in chunk.deliveries:
            if _is_gap(before, delivery.entry.id):
                self._note_gap(chunk.partition, before, delivery.entry.id)
            before = delivery.entry.id

    def _note_gap(self, partition: int, before: EventId, after: EventId) -> None:
        self._metrics.gaps.inc()
        log.error(
            "events are missing in a stream",
            partition=partition,
            after=str(before),
            found=str(after),
        )

    def _forget(self, partitions: frozenset[int]) -> None:
        for partition in partitions:
            self._share.applied.pop(partition, None)
            self._torn.discard(partition)

    async def _back_off(self, error: LedgerError, stop: asyncio.Event) -> None:
        """Forget what was read: the ledger's checkpoints say what of it was applied."""
        self._forget(self._share.owned)
        self._metrics.failures.labels("ledger").inc()
        if not self._failures:
            log.warning("the ledger takes no events, trying again", error=str(error))
        self._note_failures(self._failures + 1)
        await wait_until(stop, backoff_s(min(self._failures, BACKOFF_ATTEMPT_MAX)))

    def _note_failures(self, in_a_row: int) -> None:
        if self._failures and not in_a_row:
            log.info("the ledger takes events again")
        self._failures = in_a_row
        self._metrics.ledger_failures_in_a_row.set(in_a_row)


def _is_gap(before: EventId, after: EventId) -> bool:
    return before.generation == after.generation and after.number != before.number + 1
