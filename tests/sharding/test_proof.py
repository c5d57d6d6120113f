"""Why a refusal needs two readings: units move while shards are read one after the other."""

import asyncio

import pytest

from sharding.cluster import Cluster
from sharding.metrics import StockMetrics
from sharding.outcomes import Deduction, Outcome
from sharding.partitions import Partitions
from sharding.placement import Layout, home_shard
from sharding.shards import OpenTransfer, ShardReading, Shards
from sharding.stock import Stock
from tests.sharding.conftest import LoadProduct


async def test_a_unit_that_moves_behind_the_readers_back_is_not_refused(
    stock: Stock,
    load: LoadProduct,
    cluster: Cluster,
    partitions: Partitions,
    metrics: StockMetrics,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    product = await load(0, 1)
    shards = Shards(cluster, product, Layout(1, 2))
    home, donor = shards.partitions
    wanted = next(f"id-{i}" for i in range(99) if home_shard(f"id-{i}", 2) == 0)
    moved: list[bool] = []

    async def read_all(self: Shards) -> list[ShardReading]:
        """Home first, then, in the first reading, the unit moves there, then the donor."""
        at_home = await self.read(home)
        if not moved:
            moved.append(True)
            taken = await shards.take(donor, receiver=home, number=1, quantity=1)
            assert taken.word == "taken"
            transfer = OpenTransfer(donor, home, 1, 1)
            await shards.put(transfer)
            await shards.ack(transfer)
        return [at_home, await self.read(donor)]

    monkeypatch.setattr(Shards, "read_all", read_all)
    # What home is asked first finds nothing there; the survey begins behind it.
    (answer,) = await stock.deduct([Deduction(wanted, product, 1, attempt=1)])
    assert moved
    assert answer.outcome is Outcome.DEDUCTED


async def test_of_two_homes_that_take_from_each_other_at_once_one_is_served(
    stock: Stock, load: LoadProduct, monkeypatch: pytest.MonkeyPatch
) -> None:
    product = await load(1, 1)
    ids = [next(f"x-{i}" for i in range(99) if home_shard(f"x-{i}", 2) == s) for s in (0, 1)]
    real = Shards.put

    async def after_both_have_taken(self: Shards, *args: object) -> object:
        await asyncio.sleep(0.02)
        return await real(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Shards, "put", after_both_have_taken)
    answers = await stock.deduct([Deduction(name, product, 2, attempt=1) for name in ids])
    assert sorted(answer.outcome for answer in answers) == [
        Outcome.DEDUCTED,
        Outcome.INSUFFICIENT_STOCK,
    ]


async def test_a_shard_that_gathers_gives_only_to_lower_ones(
    load: LoadProduct, cluster: Cluster
) -> None:
    product = await load(3, 3)
    shards = Shards(cluster, product, Layout(1, 2))
    low, high = sorted(shards.partitions)
    words = {}
    for donor, receiver in ((low, high), (high, low)):
        await shards.mark_gathering(donor)
        taken = await shards.take(donor, receiver=receiver, number=1, quantity=1)
        words[donor] = taken.word
    assert words == {low: "gathering", high: "taken"}
