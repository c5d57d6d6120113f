"""Why a refusal needs two readings: units move while shards are read one after the other."""

import asyncio
from collections import Counter

import pytest

from sharding import keys
from sharding.cluster import Cluster, LaneKind
from sharding.errors import StockUnavailableError
from sharding.metrics import StockMetrics
from sharding.outcomes import Deduction, Outcome, State
from sharding.partitions import Partitions
from sharding.placement import Layout, home_shard
from sharding.readings import Given, OpenTransfer, Sent, ShardReading
from sharding.shards import Shards
from sharding.shortage import in_transit
from sharding.stock import Stock
from tests.moving import begin, move
from tests.sharding.conftest import LoadProduct


@pytest.mark.parametrize("is_transfer", [True, False])
async def test_a_unit_that_moves_behind_the_readers_back_is_not_refused(
    stock: Stock,
    load: LoadProduct,
    cluster: Cluster,
    partitions: Partitions,
    metrics: StockMetrics,
    monkeypatch: pytest.MonkeyPatch,
    is_transfer: bool,
) -> None:
    """A transfer is told by the sums of both shards, too; what comes in and what leaves is not."""
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
            if is_transfer:
                await move(shards, donor, home, 1)
            else:
                for kind, shard in (("restock", home), ("remove", donor)):
                    await shards.adjust(shard, kind, request_id=kind, quantity=1, reason="")
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
        taken = await shards.take(donor, receiver=receiver, before=0, quantity=1)
        words[donor] = taken.word
    assert words == {low: "gathering", high: "taken"}


async def test_units_that_a_node_lost_on_their_way_are_found_before_anybody_is_refused(
    stock: Stock, load: LoadProduct, cluster: Cluster
) -> None:
    """The donor knows that they have arrived, and the receiver has lost the word of it, and them."""
    product = await load(5, 0)
    shards = Shards(cluster, product, Layout(1, 2))
    donor, receiver = shards.partitions
    await move(shards, donor, receiver, 5)
    key = keys.stock(cluster.tags[receiver], product)
    await cluster.command(receiver, "HDEL", key, f"in:{donor}", lane=LaneKind.WRITE)
    await cluster.command(receiver, "HSET", key, "available", "0", lane=LaneKind.WRITE)
    wanted = [Deduction(f"lost-{i}", product, 1, attempt=1) for i in range(5)]
    assert {each.outcome for each in await stock.deduct(wanted)} == {Outcome.DEDUCTED}


async def test_units_that_are_at_two_shards_are_given_up_by_one_and_brought_to_it_if_need_be(
    stock: Stock, load: LoadProduct, cluster: Cluster
) -> None:
    """The receiver got them by takes that the donor has lost."""
    product = await load(20, 0, 30)
    shards = Shards(cluster, product, Layout(1, 3))
    donor, receiver, _ = shards.partitions
    await shards.put(Given(donor, receiver, 1, 45))
    seen = await stock.read(product)
    assert seen is not None
    assert (seen.available, seen.in_transit, seen.exact) == (95, -45, False)
    for _ in range(2):
        await stock.finish_transfers(product, donor, receiver)
        seen = await stock.read(product)
        assert seen is not None
        assert (seen.available, seen.in_transit, seen.exact) == (50, 0, True)
    await shards.put(Given(donor, receiver, 1, 48))
    sold = await stock.deduct([Deduction(f"twice-{i}", product, 1, attempt=1) for i in range(60)])
    outcomes = Counter(each.outcome for each in sold)
    assert outcomes == {Outcome.DEDUCTED: 53, Outcome.INSUFFICIENT_STOCK: 7}
    with pytest.raises(StockUnavailableError, match="lacks 3 units"):
        await stock.finish_transfers(product, donor, receiver)


async def test_a_product_is_closed_though_its_donor_never_heard_that_units_arrived(
    stock: Stock, load: LoadProduct, cluster: Cluster
) -> None:
    product = await load(3, 0)
    shards = Shards(cluster, product, Layout(1, 2))
    donor, receiver = shards.partitions
    await shards.put(await begin(shards, donor, receiver, 2))
    assert await stock.close(product, 1) == 2
    closed = await shards.read_all()
    assert [(each.state, each.available) for each in closed] == [(State.CLOSED, 0)] * 2


async def test_a_product_is_closed_though_a_shard_owes_units_that_nobody_has(
    stock: Stock, load: LoadProduct, cluster: Cluster, metrics: StockMetrics
) -> None:
    product = await load(3, 0)
    shards = Shards(cluster, product, Layout(1, 2))
    donor, receiver = shards.partitions
    wanted = [Deduction(f"all-{i}", product, 1, attempt=1) for i in range(3)]
    assert {each.outcome for each in await stock.deduct(wanted)} == {Outcome.DEDUCTED}
    given = (await shards.read(donor)).given_to(receiver)
    await shards.put(Given(donor, receiver, 1, given + 2))
    elsewhere = Stock(cluster, metrics)  # which has no proof that there is nothing left
    (sold,) = await elsewhere.deduct([Deduction("twice", product, 2, attempt=1)])
    assert sold.outcome is Outcome.DEDUCTED
    assert (await shards.finish(donor, receiver)).owed == 2
    (refused,) = await stock.deduct([Deduction("none", product, 1, attempt=1)])
    assert refused.outcome is Outcome.INSUFFICIENT_STOCK
    assert await stock.close(product, 1) == 2
    assert (await shards.finish(donor, receiver)).owed == 2


async def test_units_for_a_shard_that_is_not_open_yet_stay_where_they_are(
    stock: Stock, load: LoadProduct, cluster: Cluster
) -> None:
    """As for one that is being loaded once more after it was lost: its load must find what it left."""
    product = await load(5, 5)
    shards = Shards(cluster, product, Layout(1, 2))
    donor, receiver = shards.partitions
    await begin(shards, donor, receiver, 2)
    key = keys.stock(cluster.tags[receiver], product)
    for state, available in (("loading", 5), ("open", 7)):
        await cluster.command(receiver, "HSET", key, "state", state, lane=LaneKind.WRITE)
        known = await shards.finish(donor, receiver)
        assert known.is_even is (state == "open")
        assert (await shards.read(receiver)).available == available


async def test_units_for_a_shard_that_is_gone_are_no_defect_of_the_donor(
    stock: Stock, load: LoadProduct, cluster: Cluster
) -> None:
    product = await load(5, 5)
    shards = Shards(cluster, product, Layout(1, 2))
    donor, receiver = shards.partitions
    await begin(shards, donor, receiver, 2)
    key = keys.stock(cluster.tags[receiver], product)
    await cluster.command(receiver, "DEL", key, lane=LaneKind.WRITE)
    with pytest.raises(StockUnavailableError, match="lacks its shard"):
        await stock.finish_transfers(product, donor, receiver)


def test_sums_of_two_epochs_are_not_compared() -> None:
    """One shard is loaded once more, or was set back to where it had been closed, and the other not."""
    sent = {2: Sent(5, 3)}
    donor = ShardReading(
        1,
        1,
        0,
        0,
        0,
        0,
        0,
        layout=1,
        epoch=2,
        state=State.OPEN,
        frozen=False,
        serves=True,
        sent=sent,
        got={},
    )
    stone = donor._replace(partition=2, epoch=1, state=State.CLOSED, sent={}, got={1: 7})
    assert in_transit([donor, stone]) == [OpenTransfer(1, 2, 2)]
    assert in_transit([donor, stone._replace(epoch=2)]) == [OpenTransfer(1, 2, -2)]
    assert in_transit([donor._replace(epoch=1, state=State.CLOSED), stone._replace(epoch=2)]) == []
    assert in_transit([donor]) == [OpenTransfer(1, 2, 2)]
    assert in_transit([stone]) == []
