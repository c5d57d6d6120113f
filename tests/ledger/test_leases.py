"""Partitions shared out among workers."""

import asyncio

import pytest

from ledger.checkpoints import Checkpoints
from ledger.database import Database
from ledger.leases import Leases
from ledger.migrate import migrate
from tests.ledger.conftest import PARTITIONS, fetch, write

ALL = frozenset(range(PARTITIONS))


@pytest.fixture
async def shared(empty: Database) -> Database:
    await migrate(empty)
    await Checkpoints(empty).prepare(PARTITIONS)
    return empty


def worker(database: Database, name: str, ttl_s: float = 60) -> Leases:
    return Leases(database, worker=name, ttl_s=ttl_s)


async def settled(workers: list[Leases]) -> list[frozenset[int]]:
    """What everybody has after two rounds of renewals."""
    for _ in range(2):
        shares = [await each.renew() for each in workers]
    return [await each.renew() for each in workers] if shares else []


async def test_a_worker_alone_has_everything(shared: Database) -> None:
    assert await worker(shared, "a").renew() == ALL


@pytest.mark.parametrize("number", [2, 3, 5])
async def test_shares_are_even_and_together_everything(shared: Database, number: int) -> None:
    workers = [worker(shared, f"w{i}") for i in range(number)]
    shares = await settled(workers)
    assert frozenset().union(*shares) == ALL
    assert sum(map(len, shares)) == PARTITIONS
    assert max(map(len, shares)) <= -(-PARTITIONS // number)


async def test_nobody_has_what_another_has_whoever_renews_when(shared: Database) -> None:
    workers = [worker(shared, f"w{i}") for i in range(4)]
    for _ in range(5):
        await asyncio.gather(*(each.renew() for each in workers))
        rows = await fetch(shared, "SELECT worker, COUNT(*) FROM partition_lease GROUP BY worker")
        assert sum(int(str(count)) for _, count in rows) == PARTITIONS
    assert sorted(count for _, count in rows) == [12, 12, 12, 12]


async def test_a_worker_that_stops_leaves_its_share_at_once(shared: Database) -> None:
    staying, leaving = worker(shared, "stays"), worker(shared, "leaves")
    await settled([staying, leaving])
    await leaving.release()
    assert await staying.renew() == ALL


async def test_a_worker_that_died_is_replaced_after_its_lease(shared: Database) -> None:
    staying, dead = worker(shared, "stays"), worker(shared, "dies")
    await settled([staying, dead])
    assert len(await staying.renew()) == PARTITIONS // 2
    for table, name in (("partition_lease", "worker"), ("worker", "name")):
        await write(
            shared,
            f"UPDATE {table} SET expire_time = NOW(3) - INTERVAL 1 SECOND WHERE {name} = 'dies'",
        )
    assert await staying.renew() == ALL
    assert await fetch(shared, "SELECT name FROM worker") == [("stays",)]


async def test_a_worker_that_was_away_takes_nothing_back(shared: Database) -> None:
    quick, slow = worker(shared, "quick"), worker(shared, "slow")
    await slow.renew()
    await write(shared, "UPDATE partition_lease SET expire_time = NOW(3) - INTERVAL 1 SECOND")
    await write(shared, "UPDATE worker SET expire_time = NOW(3) - INTERVAL 1 SECOND")
    assert await quick.renew() == ALL
    assert await slow.renew() == frozenset()


async def test_a_worker_whose_renewal_was_held_up_beyond_its_own_end_is_alive(
    shared: Database,
) -> None:
    """As one that is stopped in the middle of a renewal: the rest of it comes when its row has ended."""
    late = worker(shared, "late", ttl_s=0.000_001)
    assert await late.renew() <= ALL
    assert await fetch(shared, "SELECT name FROM worker") == [("late",)]
