"""No generation is issued twice, whatever a failover lost."""

import asyncio

from ledger.checkpoints import Checkpoints
from ledger.database import Database
from ledger.openings import Openings
from tests.ledger.conftest import PARTITIONS


async def test_each_opening_is_issued_once_and_above_what_redis_has(database: Database) -> None:
    openings, partition = Openings(database), PARTITIONS - 1
    assert await openings.latest([partition]) == {partition: 0}
    (applied,) = (await Checkpoints(database).of({partition})).values()
    issued = await asyncio.gather(*(openings.begin(partition, above=0) for _ in range(10)))
    assert sorted(each.generation for each in issued) == list(range(1, 11))
    assert {each.checkpoint for each in issued} == {applied}
    assert (await openings.begin(partition, above=40)).generation == 41
    assert await openings.latest([0, partition]) == {0: 0, partition: 41}
    assert await openings.latest([]) == {}
