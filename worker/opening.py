"""Opens partitions that are shut: as they are where that is enough, else with the ledger's state."""

import asyncio
import time
from collections.abc import Collection, Sequence
from typing import NamedTuple

import structlog

from ledger.agreement import ANSWER_S
from ledger.checkpoints import Checkpoints
from ledger.errors import CheckpointMovedError, LedgerError
from ledger.failpoints import Failpoints
from ledger.openings import Openings
from ledger.servers import PerServer, together
from sharding.errors import NotOpenableError, RestorationPassedError, StockUnavailableError
from sharding.events import BEFORE_ALL, EventId
from sharding.lane import Node
from sharding.partitions import Checkpoint, PartitionHead, Partitions
from worker.freezes import PartitionFreezes
from worker.metrics import WorkerMetrics
from worker.restoring import Case, Restorer
from worker.share import Shares

PAUSE_FIRST_S = 0.5
PAUSE_MAX_S = 30.0
PASSING_PAUSE_MAX_S = 2.0
"""After what passes by itself: a node or a ledger that does not answer."""
RESTORED_AT_ONCE = 4
LATE_WORD_S = 10.0
"""So long after an opening, word of events that were lost before it is waited for."""
LEDGER_OLDER = "LEDGER_OLDER"
"""The reason that stands for a partition that knows of openings which the ledger does not."""
LEDGER_OLDER_TEXT = (
    "the ledger is at an earlier state than the live stock, as after a backup was restored: "
    "nothing is copied from it"
)

log = structlog.get_logger()


class Opener:
    """Leads each shut partition back, whatever its node has lost."""

    def __init__(
        self,
        shares: Shares,
        partitions: Partitions,
        openings: Openings,
        checkpoints: PerServer[Checkpoints],
        freezes: PerServer[PartitionFreezes],
        restorer: Restorer,
        metrics: WorkerMetrics,
        failpoints: Failpoints,
    ) -> None:
        self._shares = shares
        self._partitions = partitions
        self._openings = openings
        """The first MySQL server counts them; opening needs all of them."""
        self._checkpoints = checkpoints
        self._freezes = freezes
        self._restorer = restorer
        self._metrics = metrics
        self._failpoints = failpoints
        self._refusals: dict[int, _Refusal] = {}
        self._restoring: dict[int, asyncio.Task[None]] = {}
        self._room = asyncio.Semaphore(RESTORED_AT_ONCE)
        self._numbers: dict[int, int] = {}
        """Of the last event that each partition was seen to have while it was open."""
        self._opened: dict[int, list[_Opened]] = {}
        """What was opened a moment ago, maybe more than once."""
        self._applied: dict[tuple[int, int], EventId] = {}
        """The last event of each partition that each MySQL server was seen to have applied."""

    def keep(self, owned: Collection[int]) -> None:
        """Forget what is known of partitions that somebody else opens by now."""
        self._refusals = {each: self._refusals[each] for each in owned if each in self._refusals}
        self._numbers = {each: self._numbers[each] for each in owned if each in self._numbers}
        self._opened = {each: self._opened[each] for each in owned if each in self._opened}

    async def end(self) -> None:
        """Leave what is being restored to the next attempt."""
        restoring = list(self._restoring.values())
        for task in restoring:
            task.cancel()
        await asyncio.gather(*restoring, return_exceptions=True)

    def note_open(self, partition: int, head: PartitionHead) -> None:
        """A partition is open, with so many events."""
        self._numbers[partition] = head.number
        for share in self._shares.all:
            known = share.applied.get(partition)
            if known is not None:
                place = partition, share.place.index
                self._applied[place] = max(self._applied.get(place, BEFORE_ALL), known.id)

    async def reopened(
        self, partition: int, head: PartitionHead, *, degraded: bool
    ) -> PartitionHead:
        """Try to open a partition, or to open it anew; returns its head as it is then.

        `degraded`: its node has no replica, and nobody is to wait for one. One that is to be restored is
        shut until that is done, by itself. StockUnavailableError.
        """
        refusal = self._refusal(partition, head)
        if time.monotonic() < refusal.until_s or partition in self._restoring:
            return head
        try:
            async with asyncio.timeout(ANSWER_S):
                if not head.is_open:  # one that is open has been told, and may have no replica
                    await together([each.apply(partition) for each in self._freezes.all])
                issued = await self._issued(partition, head)
        except (LedgerError, TimeoutError):
            return head  # the drain has said which server of the ledger is away
        try:
            known = self._known(partition, head)  # the opening itself may be read before its answer
            self._failpoints.hit("worker.before_opening")
            opened = await self._partitions.open(
                partition,
                issued.checkpoints,
                opening=issued.generation,
                degraded=degraded,
                judged=head.generation,
            )
            if issued.is_ledger_older:  # the next look opens it under a generation of the ledger's
                await self._openings.begin(partition, above=opened.generation)
        except LedgerError:
            return head
        except NotOpenableError as error:
            if issued.is_ledger_older:
                self._note_refusal(partition, refusal, f"{error}; {LEDGER_OLDER_TEXT}")
                return head._replace(reason=LEDGER_OLDER)
            if head.is_open:
                self._note_refusal(partition, refusal, str(error))
            else:
                self._begin_to_restore(partition, head, issued, error, refusal, degraded=degraded)
            return head
        self._refusals.pop(partition, None)
        if opened.was_opened:
            self._note_opened(partition, head, opened, known=known)
            await self.hear_of_losses(partition)
        return opened

    def _note_opened(
        self, partition: int, head: PartitionHead, opened: PartitionHead, *, known: int
    ) -> None:
        """The ledger lacks nothing, but somebody may have seen more than the node has."""
        last = EventId(head.generation, opened.number - 1)
        noted = _Opened(EventId(opened.generation, opened.number), last)
        self._opened.setdefault(partition, []).append(noted)
        self._tell_lost(partition, noted.lost_up_to(known))
        log.info(
            "partition opened",
            partition=partition,
            reason=head.reason,
            degraded=opened.is_degraded,
        )

    async def hear_of_losses(self, partition: int) -> None:
        """Name what was lost before the last opening and nobody had said then: who had seen it may come
        by only now."""
        told = await self._partitions.told(partition)
        now_s = time.monotonic()
        young = [each for each in self._opened.pop(partition, ()) if now_s < each.until_s]
        for noted in young:
            if noted.last < told < noted.first:
                self._tell_lost(partition, noted.lost_up_to(told.number))
        if young:
            self._opened[partition] = young

    def was_opened_lately(self, partition: int) -> bool:
        """Whether somebody may come by with word of what was lost before."""
        return partition in self._opened

    def _tell_lost(self, partition: int, lost: int) -> None:
        if lost > 0:
            self._metrics.events_lost.inc(lost)
            log.error("events lost before the opening", partition=partition, lost=lost)

    def _known(self, partition: int, head: PartitionHead) -> int:
        """Number of the last event that this worker has seen of a partition in its last opening: others
        may have named what was lost before that."""
        seen = self._partitions.seen(partition)
        number = seen.number if seen.generation >= head.generation else 0
        return max(head.number, number, self._numbers.get(partition, 0))

    async def _issued(self, partition: int, head: PartitionHead) -> "_Issued":
        """A generation for one attempt, and what each MySQL server has applied.

        A head's generation was issued by the ledger before. One that the ledger does not know of is of a
        later state of the ledger than the present one, as are events that this worker knows it to have
        applied; nothing is issued until that is seen to be harmless: otherwise the next look would know
        no better.
        """
        known = max(head.generation, self._partitions.seen(partition).generation)
        opening = await self._openings.current(partition)
        found = await together([each.of({partition}) for each in self._checkpoints.all[1:]])
        others = [each[partition] for each in found]
        is_older = opening.generation < known or self._went_back(
            partition, [opening.checkpoint, *others]
        )
        if not is_older:
            opening = await self._openings.begin(partition, above=known)
        generation = known + 1 if is_older else opening.generation
        return _Issued(generation, [opening.checkpoint, *others], is_ledger_older=is_older)

    def _went_back(self, partition: int, checkpoints: Sequence[Checkpoint]) -> bool:
        """Whether a MySQL server has no longer applied what it had."""
        return any(
            checkpoint.id < self._applied.get((partition, index), BEFORE_ALL)
            for index, checkpoint in enumerate(checkpoints)
        )

    def _begin_to_restore(
        self,
        partition: int,
        head: PartitionHead,
        issued: "_Issued",
        why: NotOpenableError,
        refusal: "_Refusal",
        *,
        degraded: bool,
    ) -> None:
        case = Case(
            partition,
            attempt=issued.generation,
            found=why.found,
            number=self._known(partition, head),
            may_be_past=why.may_be_past,
            why=str(why),
            degraded=degraded,
        )
        task = asyncio.create_task(self._restore(case, refusal), name=f"restore {partition}")
        self._restoring[partition] = task
        task.add_done_callback(lambda _: self._note_ended(partition))
        self._metrics.restoring.set(len(self._restoring))

    def _note_ended(self, partition: int) -> None:
        self._restoring.pop(partition, None)
        self._metrics.restoring.set(len(self._restoring))

    async def _restore(self, case: Case, refusal: "_Refusal") -> None:
        """What fails is begun anew: at once where another was faster, else after a pause."""
        try:
            async with self._room:
                restored = await self._restorer.restore(case)
            noted = _Opened(restored.opened, restored.applied)
            self._opened.setdefault(case.partition, []).append(noted)
            self._refusals.pop(case.partition, None)
            for share in self._shares.all:
                share.applied.pop(case.partition, None)  # it has moved without the drain
        except (RestorationPassedError, CheckpointMovedError):
            pass
        except (StockUnavailableError, LedgerError) as error:
            text = f"{case.why}; restoring it: {error}"
            self._note_refusal(case.partition, refusal, text, pause_max_s=PASSING_PAUSE_MAX_S)
        except Exception as error:  # one partition must not end the upkeep of all others
            self._note_refusal(case.partition, refusal, f"{case.why}; restoring it: {error!r}")
            log.error("restoring failed", partition=case.partition, exc_info=error)

    def _refusal(self, partition: int, head: PartitionHead) -> "_Refusal":
        """What is known of the partition as it is: shut for another reason, or on another node, it is
        tried at once."""
        of = (head.reason, self._partitions.node(partition))
        known = self._refusals.get(partition)
        if known is None or known.of != of:
            known = self._refusals[partition] = _Refusal(of, "" if known is None else known.text)
        return known

    def _note_refusal(
        self,
        partition: int,
        refusal: "_Refusal",
        text: str,
        *,
        pause_max_s: float = PAUSE_MAX_S,
    ) -> None:
        """Said once per partition until it is opened or the text changes."""
        self._metrics.failures.labels("not_openable").inc()
        if refusal.text != text:
            log.error("partition cannot be opened", partition=partition, why=text)
        refusal.again(text, time.monotonic(), pause_max_s=pause_max_s)


class _Opened:
    """An opening, and how many of the events before it are known to be lost."""

    def __init__(self, first: EventId, last: EventId) -> None:
        """`first`: of the new generation; `last`: what the partition begins from."""
        self.first = first
        self.last = last
        self.until_s = time.monotonic() + LATE_WORD_S
        self._named = first.number - 1

    def lost_up_to(self, number: int) -> int:
        """How many more are lost, now that an event of this number is known to have been."""
        more = max(0, number - self._named)
        self._named += more
        return more


class _Issued(NamedTuple):
    """What one attempt to open a partition goes by."""

    generation: int
    checkpoints: Sequence[Checkpoint]
    is_ledger_older: bool


class _Refusal:
    """A partition that could not be opened, and when to try again. Pure: time is passed in."""

    def __init__(self, of: tuple[str, Node | None], text: str = "") -> None:
        """`of`: why its head is not open, and its node. `text`: what was said of it last."""
        self.of = of
        self.text = text
        self.until_s = 0.0
        self._pause_s = PAUSE_FIRST_S

    def again(self, text: str, now_s: float, *, pause_max_s: float) -> None:
        self.text = text
        self._pause_s = min(self._pause_s * 2, pause_max_s)
        self.until_s = now_s + self._pause_s
