"""What the service is made of, as operators and readiness checks see it."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from ledger.checkpoints import Checkpoints
from ledger.database import Database
from ledger.errors import LedgerError
from ledger.migrate import schema_version
from ledger.modes import Engine
from ledger.sales_mode import Modes
from sharding.cluster import Cluster
from sharding.errors import StockUnavailableError
from sharding.outcomes import Reason
from sharding.partitions import PartitionHead, Partitions
from sharding.slots import slot_of

REACH_S = 0.5
"""How long masters may take to answer a look at whether Redis is there."""


@dataclass(frozen=True, slots=True)
class PartitionState:
    """One partition; `backlog` is the number of its events that the ledger does not have."""

    partition: int
    slot: int
    head: PartitionHead
    backlog: int


@dataclass(frozen=True, slots=True)
class ClusterState:
    """All partitions, in their order, how many migrations the ledger has applied, and where units are
    sold from, in the words of the contract."""

    partitions: Sequence[PartitionState]
    schema_version: int
    mode: str
    mode_epoch: int = 0


class Overview:
    """Looks at all of Redis and MySQL that the service uses."""

    def __init__(
        self,
        cluster: Cluster,
        partitions: Partitions,
        checkpoints: Checkpoints,
        database: Database,
    ) -> None:
        self._cluster = cluster
        self._partitions = partitions
        self._checkpoints = checkpoints
        self._database = database

    async def reaches_redis(self) -> bool:
        """Whether some master answers within REACH_S. PartitionCountError."""
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
        checkpoints = await self._checkpoints.all()
        version = await schema_version(self._database)
        mode, epoch = await Modes(self._database).get()
        heads = await self._heads()
        applied = {partition: found.id.number for partition, found in checkpoints.items()}
        states = [
            PartitionState(
                partition=partition,
                slot=slot_of(self._cluster.tags[partition]),
                head=head,
                backlog=max(0, head.number - applied.get(partition, 0)),
            )
            for partition, head in enumerate(heads)
        ]
        return ClusterState(states, version, mode.value, epoch)

    async def _heads(self) -> Sequence[PartitionHead]:
        """Where no node answers, no partition need be waited for."""
        everywhere = range(self._partitions.count)
        if not await self.reaches_redis():
            return [_away(Reason.NOT_EXECUTED)] * len(everywhere)
        return await asyncio.gather(*map(self._head, everywhere))

    async def _head(self, partition: int) -> PartitionHead:
        try:
            return await self._partitions.head(partition)
        except StockUnavailableError as error:
            return _away(error.reason)


class LedgerOverview:
    """Looks at MySQL alone, where units are sold from it."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def reaches_mysql(self) -> bool:
        """Whether MySQL answers within REACH_S."""
        try:
            async with asyncio.timeout(REACH_S):
                await schema_version(self._database)
        except (LedgerError, TimeoutError):
            return False
        return True

    async def read(self) -> ClusterState:
        """LedgerUnavailableError."""
        return ClusterState((), await schema_version(self._database), Engine.MYSQL.value)


def _away(reason: Reason) -> PartitionHead:
    return PartitionHead(is_open=False, reason=reason.value, generation=0, number=0, partitions=0)


async def _one_answers(asked: Sequence[asyncio.Task[PartitionHead]]) -> bool:
    for answer in asyncio.as_completed(asked):
        try:
            await answer
        except StockUnavailableError:
            continue
        return True
    return False
