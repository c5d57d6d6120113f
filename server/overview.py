"""What the service is made of, as operators and readiness checks see it."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from ledger.checkpoints import Checkpoints
from ledger.database import Database
from ledger.migrate import schema_version
from ledger.servers import PerServer
from sharding.cluster import Cluster
from sharding.errors import StockUnavailableError
from sharding.events import EventId
from sharding.partitions import NOTHING_APPLIED, Checkpoint, PartitionHead, Partitions
from sharding.slots import slot_of

REACH_S = 1.0
"""How long masters may take to answer a look at whether Redis is there."""


@dataclass(frozen=True, slots=True)
class PartitionState:
    """One partition; `backlog` is the number of its events that the ledger does not have.

    With several MySQL servers at most that number: events are numbered over all of their streams.
    """

    partition: int
    slot: int
    head: PartitionHead
    backlog: int


@dataclass(frozen=True, slots=True)
class ClusterState:
    """All partitions, in their order, and how many migrations all servers of the ledger have applied."""

    partitions: Sequence[PartitionState]
    schema_version: int


class Overview:
    """Looks at all of Redis and MySQL that the service uses."""

    def __init__(
        self,
        cluster: Cluster,
        partitions: Partitions,
        databases: PerServer[Database],
    ) -> None:
        self._cluster = cluster
        self._partitions = partitions
        self._databases = databases
        self._checkpoints = databases.each(Checkpoints)

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
        checkpoints = await self._checkpoints.from_all(lambda each: each.all())
        version = min(await self._databases.from_all(schema_version))
        async with asyncio.TaskGroup() as group:
            heads = [
                group.create_task(self._head(partition))
                for partition in range(len(self._cluster.tags))
            ]
        states = [
            PartitionState(
                partition=partition,
                slot=slot_of(self._cluster.tags[partition]),
                head=head.result(),
                backlog=sum(
                    _unapplied(head.result().last(ledger), found.get(partition, NOTHING_APPLIED))
                    for ledger, found in enumerate(checkpoints)
                ),
            )
            for partition, head in enumerate(heads)
        ]
        return ClusterState(states, version)

    async def _head(self, partition: int) -> PartitionHead:
        try:
            return await self._partitions.head(partition)
        except StockUnavailableError as error:
            return PartitionHead(
                is_open=False, reason=error.reason.value, generation=0, number=0, partitions=0
            )


def _unapplied(last: EventId, applied: Checkpoint) -> int:
    return max(0, last.number - applied.id.number)


async def _one_answers(asked: Sequence[asyncio.Task[PartitionHead]]) -> bool:
    for answer in asyncio.as_completed(asked):
        try:
            await answer
        except StockUnavailableError:
            continue
        return True
    return False
