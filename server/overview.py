"""What the service is made of, as operators and readiness checks see it."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from ledger.checkpoints import Checkpoints
from ledger.database import Database
from ledger.engine_claim import Engine
from ledger.errors import LedgerError
from ledger.migrate import schema_version
from ledger.sales_mode import Mode, ModeRow, Modes
from ledger.servers import PerServer
from server.standstill import Standstill
from sharding.cluster import Cluster
from sharding.errors import StockUnavailableError
from sharding.events import EventId
from sharding.fitness import Flaw
from sharding.inspection import Inspection
from sharding.outcomes import Reason
from sharding.partitions import NOTHING_APPLIED, Checkpoint, PartitionHead, Partitions
from sharding.slots import slot_of

REACH_S = 0.5
"""How long masters may take to answer a look at whether Redis is there."""
STANDSTILL_S = 0.2
"""A look in which this process stood still for so long says nothing of those who did not answer."""
LOOKS_MAX = 2
"""Of those in a row; more would outlast what the process last told the others."""
HEAD_S = 1.0
"""How long a partition may take to say how it is."""
UNREACHABLE = "UNREACHABLE"
"""Why a partition is not open that does not."""
_DO_NOT_ANSWER = frozenset((Reason.NOT_EXECUTED, Reason.OUTCOME_UNKNOWN))


@dataclass(frozen=True, slots=True)
class PartitionState:
    """One partition; `backlog` is the number of its events that the ledger does not have.

    With several MySQL servers at most that number: events are numbered over all of their streams.
    """

    partition: int
    slot: int
    head: PartitionHead
    backlog: int
    node: str
    """Where its master listens, host:port; empty: no master is known."""


@dataclass(frozen=True, slots=True)
class ClusterState:
    """All partitions, in their order, how many migrations every MySQL server has applied, and where
    units are sold from, in the words of the contract."""

    partitions: Sequence[PartitionState]
    schema_version: int
    mode: str
    mode_epoch: int = 0
    durability: str = ""
    """Empty where there are no Redis nodes."""
    flaws: Sequence[Flaw] = ()
    """What is wrong with how these are set up."""


class Overview:
    """Looks at all of Redis and MySQL that the service uses."""

    def __init__(
        self,
        cluster: Cluster,
        partitions: Partitions,
        databases: PerServer[Database],
        inspection: Inspection,
    ) -> None:
        self._cluster = cluster
        self._partitions = partitions
        self._databases = databases
        self._inspection = inspection
        self._looking: asyncio.Task[bool] | None = None

    async def reaches_redis(self) -> bool:
        """Whether some master answers anybody within REACH_S; one look for all who ask meanwhile.

        PartitionCountError, ServerCountError.
        """
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(seen(self._look_for_redis), name="reach redis")
        return await asyncio.shield(self._looking)

    async def _look_for_redis(self) -> bool:
        """Where work queues up this look waits behind it; then what is answered meanwhile will do."""
        replies = self._cluster.replies
        return await self._heads_answer() or self._cluster.replies > replies

    async def _heads_answer(self) -> bool:
        asked = [
            asyncio.create_task(self._partitions.head(first), name="reach")
            for first, *_ in self._cluster.masters().values()
        ]
        try:
            async with asyncio.timeout(REACH_S):
                return await _one_answers(asked)
        except TimeoutError:
            return False
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)

    async def read(self) -> ClusterState:
        """The state of everything; LedgerUnavailableError, while a node that is away is a state."""
        checkpoints = await self._databases.from_all(lambda each: Checkpoints(each).all())
        version = min(await self._databases.from_all(schema_version))
        rows = await self._databases.from_all(lambda each: Modes(each).get())
        mode, epoch = _least_usual(rows)
        heads, flaws = await asyncio.gather(self._heads(), self._inspection.flaws())
        states = [
            PartitionState(
                partition=partition,
                slot=slot_of(self._cluster.tags[partition]),
                head=head,
                backlog=sum(
                    _unapplied(head.stream(ledger).last, found.get(partition, NOTHING_APPLIED))
                    for ledger, found in enumerate(checkpoints)
                ),
                node=str(self._cluster.node_of(partition) or ""),
            )
            for partition, head in enumerate(heads)
        ]
        durability = self._cluster.settings.durability
        return ClusterState(states, version, mode.value, epoch, durability, flaws)

    async def _heads(self) -> Sequence[PartitionHead]:
        """Where no node answers, no partition need be waited for."""
        everywhere = range(self._partitions.count)
        if not await self.reaches_redis():
            return [_away(UNREACHABLE)] * len(everywhere)
        return await asyncio.gather(*map(self._head, everywhere))

    async def _head(self, partition: int) -> PartitionHead:
        try:
            async with asyncio.timeout(HEAD_S):
                return await self._partitions.head(partition)
        except TimeoutError:
            return _away(UNREACHABLE)
        except StockUnavailableError as error:
            return _away(UNREACHABLE if error.reason in _DO_NOT_ANSWER else error.reason)


class LedgerOverview:
    """Looks at MySQL alone, where units are sold from it."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def reaches_mysql(self) -> bool:
        """Whether MySQL answers within REACH_S."""
        return await seen(self._look_for_mysql)

    async def _look_for_mysql(self) -> bool:
        try:
            async with asyncio.timeout(REACH_S):
                await schema_version(self._database)
        except (LedgerError, TimeoutError):
            return False
        return True

    async def read(self) -> ClusterState:
        """LedgerUnavailableError."""
        return ClusterState((), await schema_version(self._database), Engine.MYSQL.value)


async def seen(look: Callable[[], Awaitable[bool]]) -> bool:
    """What a look finds, that is repeated where it finds nothing because this process stood still."""
    for _ in range(LOOKS_MAX):
        async with Standstill() as standstill:
            found = await look()
        if found or standstill.lasted_s < STANDSTILL_S:
            return found
    return False


def _least_usual(rows: Sequence[ModeRow]) -> ModeRow:
    """What a server sells from that does not sell from the live stock, if there is one."""
    return next((row for row in rows if row.mode is not Mode.REDIS), rows[0])


def _unapplied(last: EventId, applied: Checkpoint) -> int:
    return max(0, last.number - applied.id.number)


def _away(reason: str) -> PartitionHead:
    return PartitionHead(is_open=False, reason=reason, generation=0, number=0, partitions=0)


async def _one_answers(asked: Sequence[asyncio.Task[PartitionHead]]) -> bool:
    for answer in asyncio.as_completed(asked):
        try:
            await answer
        except StockUnavailableError:
            continue
        return True
    return False
