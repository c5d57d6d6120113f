"""Gives a partition that lost something what the ledger knows of it, and opens it."""

import asyncio
import time
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

import structlog

from ledger.failpoints import Failpoints
from ledger.restoring import Note, PartitionState, PartitionStates
from ledger.servers import PerServer
from sharding.events import EventId, Kind
from sharding.memories import Memory
from sharding.outcomes import State
from sharding.partitions import Entry
from sharding.restoring import SHARDS_AT_ONCE, Found, Restoring, ShardState, Shut, opened_entry
from worker.metrics import WorkerMetrics

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Case:
    """One attempt to restore one partition."""

    partition: int
    attempt: int
    """The generation that it was issued."""
    found: str
    """As Restoring.shut takes it."""
    number: int
    """Of the last event that this worker knows of; others may have seen later ones."""
    may_be_past: bool
    """The node's last event may be one that the ledger has, too."""
    why: str
    degraded: bool = False
    """The node has no replica, and nobody is to wait for one."""


class Restored(NamedTuple):
    """A partition that was restored."""

    opened: EventId
    applied: EventId
    """The last event that a MySQL server had applied."""


class Restorer:
    """Restores partitions. Every step may be repeated, and any attempt ends an earlier one."""

    def __init__(
        self,
        restoring: Restoring,
        states: PerServer[PartitionStates],
        metrics: WorkerMetrics,
        failpoints: Failpoints,
    ) -> None:
        self._restoring = restoring
        self._states = states
        self._metrics = metrics
        self._failpoints = failpoints

    async def restore(self, case: Case) -> Restored:
        """Give the partition all that the ledger knows, and open it.

        StockUnavailableError, LedgerError: the partition stays shut; begin anew.
        RestorationPassedError: another attempt was faster, or the node has changed.
        """
        partition = case.partition
        shut = await self._shut(case, forgets=False)
        # Before it is shut, more may happen there after the look.
        forgets = not (case.may_be_past and await self._is_past(partition))
        if forgets:
            shut = await self._shut(case, forgets=True)
        self._failpoints.hit("worker.after_shut")
        for stopped in await self._states.from_all(lambda each: each.freeze_missed(partition)):
            if stopped:
                log.error("frozen beside open dead letters", partition=partition, products=stopped)
        states = await self._states.from_all(lambda each: each.read(partition))
        work = _Work(self._restoring, partition, shut, forgets=forgets)
        for server, state in zip(self._states.all, states, strict=True):
            await work.refill(server, state)
        async for piece in self._restoring.bars(partition):
            await work.remember(piece)
        self._failpoints.hit("worker.after_refill")
        applied = max(state.checkpoint.id for state in states)
        told = await self._told(partition, after=applied)
        number = max(state.checkpoint.id.number for state in states)
        shut = shut._replace(number=max(shut.number, number, told))
        lost = max(shut.known, case.number, told) - number
        opened = await self._settle(case, work, shut, states, lost=max(0, lost))
        return Restored(opened, applied)

    async def _told(self, partition: int, *, after: EventId) -> int:
        """Number of the last event that a process has seen after another one; 0: none has. Word of an
        event that an earlier opening knew to be lost comes to nothing."""
        told = await self._restoring.told(partition)
        return told.number if told > after else 0

    async def _shut(self, case: Case, *, forgets: bool) -> Shut:
        return await self._restoring.shut(
            case.partition,
            attempt=case.attempt,
            found=case.found,
            number=case.number,
            forgets=forgets,
            degraded=case.degraded,
        )

    async def _settle(
        self,
        case: Case,
        work: "_Work",
        shut: Shut,
        states: Sequence[PartitionState],
        *,
        lost: int,
    ) -> EventId:
        """From the first server's commit on, no event from before the opening is applied any more."""
        partition, opened = case.partition, opened_entry(shut, at_ms=int(time.time() * 1_000))
        for server, state in zip(self._states.all, states, strict=True):
            await server.settle(
                partition,
                state=state,
                opened=opened,
                notes=work.notes(state, lost=lost),
            )
        self._failpoints.hit("worker.after_settle")
        await self._restoring.reopen(partition, shut, opened)
        self._failpoints.hit("worker.after_reopen")
        self._tell(case, work, opened, lost=lost)
        return opened.id

    async def _is_past(self, partition: int) -> bool:
        """Whether the ledger has applied the last entry of each stream, so all that came before it."""
        for index, server in enumerate(self._states.all):
            newest = await self._restoring.newest(partition, ledger=index)
            if not await _has_applied(server, partition, newest):
                return False
        return True

    def _tell(self, case: Case, work: "_Work", opened: Entry, *, lost: int) -> None:
        self._metrics.restored.inc()
        self._metrics.events_lost.inc(lost)
        self._metrics.units_lost.inc(work.units_lost)
        say = log.error if lost or work.units_lost else log.warning
        say(
            "partition restored from the ledger",
            partition=case.partition,
            why=case.why,
            opened=str(opened.id),
            events_lost=lost,
            units_lost=work.units_lost,
            kept_records=not work.forgets,
        )


async def _has_applied(server: PartitionStates, partition: int, newest: Sequence[Entry]) -> bool:
    """Of markers few are kept, and those above an entry that was applied change nothing."""
    for entry in newest:
        if await server.is_applied(partition, entry):
            return True
        if not _is_marker(entry):
            return False
    return False


def _is_marker(entry: Entry) -> bool:
    fields = dict(zip(entry.fields[::2], entry.fields[1::2], strict=False))
    return fields.get(b"kind") == Kind.MARK.encode()


class _Work:
    """What is written to one partition in one attempt."""

    def __init__(self, restoring: Restoring, partition: int, shut: Shut, *, forgets: bool) -> None:
        self._restoring = restoring
        self._partition = partition
        self._attempt = shut.attempt
        self.forgets = forgets
        self._numbers = count(1)
        self._found: dict[int, Found] = {}
        """What shards had before, where that differs and is lost."""

    @property
    def units_lost(self) -> int:
        """Units that were held or sold here as far as the node knew, and are not as the ledger knows."""
        return sum(max(0, each.held) + max(0, each.sold) for each in self._found.values())

    async def refill(self, server: PartitionStates, state: PartitionState) -> None:
        """All that one server knows: shards, then what requests and orders came to."""
        partition, known = self._partition, set(state.ids)
        await _in_turns([self._shard(server, state, shard) for shard in state.shards])
        unknown = sorted({*state.unloaded, *state.untold} - known)
        await _in_turns([self._clear(each) for each in unknown])
        for shard in state.shards:
            if shard.held:
                async for piece in server.holds(partition, shard.product_id):
                    await self.remember(piece)
        async for piece in server.memories(partition):
            await self.remember(piece)

    async def remember(self, memories: Iterable[Memory]) -> None:
        """Behind what it was told to remember before."""
        await self._restoring.remember(
            self._partition, self._attempt, memories, numbers=self._numbers
        )

    async def _shard(
        self, server: PartitionStates, state: PartitionState, shard: ShardState
    ) -> None:
        product_id = shard.product_id
        found = await self._restoring.refill(self._partition, self._attempt, shard)
        self._compare(product_id, found, Found(shard.available, shard.held, shard.sold))
        if shard.max_per_user and shard.state != State.CLOSED:
            began = state.began[product_id]
            units = await server.users(self._partition, product_id, began=began)
            await self._restoring.count_users(self._partition, self._attempt, product_id, units)

    async def _clear(self, product_id: int) -> None:
        found = await self._restoring.clear(self._partition, self._attempt, product_id)
        self._compare(product_id, found, Found(0, 0, 0))

    def _compare(self, product_id: int, found: Found | None, known: Found) -> None:
        if found and self.forgets:
            more = Found(*(had - has for had, has in zip(found, known, strict=True)))
            if any(more):
                self._found[product_id] = more

    def notes(self, state: PartitionState, *, lost: int) -> list[Note]:
        """What the journal is to say: of each product that may have lost something."""
        losing = {each.product_id for each in state.shards if lost and each.state != State.CLOSED}
        ours = {*state.ids, *state.epochs}
        return [
            Note(each, _remark(self._found.get(each), lost))
            for each in sorted(ours & {*losing, *self._found})
        ]


def _remark(less: Found | None, lost: int) -> str:
    remark = f"{lost} events of the partition were lost beyond the ledger"
    if less is None:
        return remark
    units = ", ".join(f"{name} {value:+d}" for name, value in less._asdict().items())
    return f"{remark}; the node had {units}"


async def _in_turns(steps: Sequence[Coroutine[object, object, object]]) -> None:
    """A bounded number at once; all that were begun are awaited before the first failure is raised."""
    for start in range(0, len(steps), SHARDS_AT_ONCE):
        piece = steps[start : start + SHARDS_AT_ONCE]
        results = await asyncio.gather(*piece, return_exceptions=True)
        failures = [each for each in results if isinstance(each, BaseException)]
        if failures:
            for rest in steps[start + SHARDS_AT_ONCE :]:
                rest.close()
            raise failures[0]
