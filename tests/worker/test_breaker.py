"""What may be oversold is frozen, once for each piece of evidence, and nothing else is."""

from collections.abc import AsyncIterator

import pytest

from ledger.freezes import BREAKER, Freezes
from sharding import keys
from sharding.cluster import LaneKind
from sharding.errors import StockUnavailableError
from sharding.outcomes import Answer, Outcome, Reason
from sharding.plans import Freeze
from tests.ledger.conftest import fetch, write
from tests.waiting import eventually
from tests.worker.audits import (
    audit,
    buy,
    by_hand,
    frozen,
    looked_at_again,
    shard_of,
    shards_of,
)
from tests.worker.conftest import WorkerProcess, World, working

FROZEN = Answer(Outcome.FROZEN, reason=Reason.PRODUCT_FROZEN)


@pytest.fixture(scope="module")
async def worker(
    world: World, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[WorkerProcess]:
    """Looks at every product twice a second."""
    log = tmp_path_factory.mktemp("breaker") / "worker.log"
    async with working(world, log, AUDIT_EVERY_S="1") as process:
        yield process


def trips(evidence: str) -> str:
    return f'inventory_worker_breaker_trips_total{{evidence="{evidence}"}}'


async def is_refused(world: World, product: int) -> Answer | None:
    answer = await buy(world, product)
    return answer if answer == FROZEN else None


async def test_a_product_that_differs_is_frozen_and_others_sell_on(
    world: World, worker: WorkerProcess
) -> None:
    product, other = await world.on_sale(60), await world.on_sale(60)
    partition = shard_of(world, product)
    await by_hand(world, product, partition, "HSET", "available", "-5")
    row = await eventually(lambda: frozen(world, product))
    assert row.frozen_by == BREAKER
    assert f"partition {partition} differs" in row.frozen_reason
    assert "available -15, available damaged" in row.frozen_reason
    assert await eventually(lambda: is_refused(world, product)) == FROZEN
    assert (await buy(world, other)).outcome is Outcome.DEDUCTED
    assert await frozen(world, other) is None
    await eventually(lambda: worker.metric(trips("drift")))
    gauge = 'inventory_worker_frozen_products{cause="breaker"}'
    await eventually(lambda: worker.metric(gauge))
    sql = "SELECT kind FROM service_event WHERE product_id = %s"
    assert await fetch(world.database, sql, product) == [("frozen",)]


@pytest.mark.usefixtures("worker")
async def test_an_operator_who_resumes_is_overruled_by_new_evidence_alone(world: World) -> None:
    product = await world.on_sale(60)
    partition = shard_of(world, product)
    await by_hand(world, product, partition, "HINCRBY", "available", "1")
    await eventually(lambda: frozen(world, product))
    freezes = Freezes(world.database)
    freeze = await freezes.unfreeze(product, reason="looked at it", actor="ann")
    await world.stock.freeze(product, freeze)
    await looked_at_again(world, product, partition)
    assert await frozen(world, product) is None
    await by_hand(world, product, partition, "HINCRBY", "available", "1")
    row = await eventually(lambda: frozen(world, product))
    assert "available +2" in row.frozen_reason
    sql = (
        "SELECT kind, actor FROM inventory_log"
        " WHERE product_id = %s AND kind LIKE '%%freeze' ORDER BY id"
    )
    assert await fetch(world.database, sql, product) == [
        ("freeze", BREAKER),
        ("unfreeze", "ann"),
        ("freeze", BREAKER),
    ]


async def test_a_shard_whose_key_is_gone_freezes_the_product(
    world: World, worker: WorkerProcess
) -> None:
    product = await world.on_sale(60)
    partition = shard_of(world, product)
    await by_hand(world, product, partition, "DEL")
    row = await eventually(lambda: frozen(world, product))
    assert row.frozen_reason == f"partition {partition} is damaged: its key is gone"
    await eventually(lambda: worker.metric(trips("damage")))
    with pytest.raises(StockUnavailableError) as failure:
        await audit(world, product)
    assert failure.value.reason is Reason.SHARD_CORRUPT


async def test_a_sale_that_the_ledger_cannot_hold_freezes_the_product(
    world: World, worker: WorkerProcess
) -> None:
    product = await world.on_sale(3, shards=1)
    with worker.paused():
        await by_hand(world, product, shard_of(world, product, 1), "HINCRBY", "available", "2")
        assert (await buy(world, product, 5)).outcome is Outcome.DEDUCTED
    await eventually(lambda: frozen(world, product))
    sql = "SELECT COUNT(*) FROM dead_letter WHERE product_id = %s AND reason LIKE 'below_zero%%'"
    assert await fetch(world.database, sql, product) == [(1,)]
    sql = (
        "SELECT remark FROM inventory_log"
        " WHERE product_id = %s AND request_id LIKE 'freeze letter%%'"
    )
    ((remark,),) = await eventually(lambda: fetch(world.database, sql, product))
    assert "cannot hold an event" in str(remark)


async def test_more_sold_than_came_in_freezes_once_every_shard_has_passed_markers(
    world: World, worker: WorkerProcess
) -> None:
    product = await world.on_sale(60)
    await world.sell(product, 2)
    await eventually(lambda: world.is_sold(product, 2))
    sql = (
        "UPDATE product_inventory SET sold_count = sold_count + 70,"
        " available_stock = available_stock - 70 WHERE product_id = %s"
    )
    await write(world.database, sql, product)
    row = await eventually(lambda: frozen(world, product))
    assert row.frozen_reason == "12 units more are sold and held than ever came in"
    await eventually(lambda: worker.metric(trips("deficit")))


async def test_shards_that_were_not_told_of_a_decision_or_have_lost_it_learn_of_it(
    world: World, worker: WorkerProcess
) -> None:
    product = await world.on_sale(60)
    partition = shard_of(world, product)
    await Freezes(world.database).freeze(product, reason="recalled", actor="ann")
    await eventually(lambda: is_refused(world, product))
    shards, freeze = shards_of(world, product), Freeze(1, frozen=True)
    gauge = 'inventory_worker_frozen_products{cause="operator"}'
    await eventually(lambda: worker.metric(gauge))

    async def are_told() -> bool:
        return {await shards.freeze_of(each) for each in shards.partitions} == {freeze}

    await eventually(are_told)
    await by_hand(world, product, partition, "HSET", "frozen", "0", "freeze", "0")
    await eventually(are_told)


async def test_a_partition_opens_again_only_when_its_shards_know_what_is_frozen(
    world: World, worker: WorkerProcess
) -> None:
    product = await world.on_sale(60)
    partition = shard_of(world, product)
    await looked_at_again(world, product, partition)
    head = keys.head(world.cluster.tags[partition])
    with worker.paused():
        await Freezes(world.database).freeze(product, reason="recalled", actor="ann")
        # The loop that tells shards later leaves this one alone.
        sql = "UPDATE product_inventory SET status = 'closed' WHERE product_id = %s"
        await write(world.database, sql, product)
        await world.cluster.command(partition, "HSET", head, "owner", "0" * 40, lane=LaneKind.WRITE)

    async def is_open() -> bool:
        return (await world.partitions.head(partition)).is_open

    await eventually(is_open)
    assert await shards_of(world, product).freeze_of(partition) == Freeze(1, frozen=True)
