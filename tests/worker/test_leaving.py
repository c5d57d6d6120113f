"""The way back from the buffer to the live stock: nothing is sold before Redis knows what was sold."""

import signal
from collections.abc import AsyncIterator

import pytest

from ledger.database import Transaction
from ledger.products import locked_product
from ledger.sales_mode import Mode, ModeRow, Modes
from ledger.untold import UntoldSales
from sharding import keys
from sharding.cluster import LaneKind
from sharding.outcomes import Deduction, Outcome
from sharding.placement import Layout, home_shard
from tests.ledger.conftest import write
from tests.ledger.streams import fresh_request_ids
from tests.waiting import eventually
from tests.worker.conftest import PARTITIONS, StartWorker, World

SHARDS = 6
WAITED_IN_VAIN = 'inventory_ledger_errors_total{kind="lock_wait"}'


@pytest.fixture
async def leaving(opened: World) -> AsyncIterator[ModeRow]:
    """The mode just after a server has found Redis again."""
    modes = Modes(opened.database)
    entered = await modes.enter()
    yield await modes.leave(entered.epoch)
    await write(opened.database, "UPDATE service_mode SET mode = 'redis' WHERE name = 'sales'")
    await write(opened.database, "DELETE FROM buffer_sale")


async def sold_from_buffer(world: World, product_id: int, number: int) -> list[Deduction]:
    """Requests of one unit each, as the ledger notes them."""
    sold = [Deduction(each, product_id, 1) for each in fresh_request_ids(number)]
    sql = (
        "INSERT INTO buffer_sale (product_id, request_id, quantity, user_id, mode_epoch)"
        " VALUES (%s, %s, 1, 0, 1)"
    )
    for request in sold:
        assert await write(world.database, sql, product_id, request.request_id) == 1
    return sold


async def left(world: World, leaving: ModeRow) -> bool:
    return await Modes(world.database).get() == ModeRow(Mode.REDIS, leaving.epoch + 1)


async def untold(world: World) -> set[Deduction]:
    return {sale.request for sale in await UntoldSales(world.database).page(after_id=0)}


async def replays(world: World, request: Deduction) -> bool:
    (answer,) = await world.stock.deduct([request._replace(attempt=2)])
    assert answer.outcome is Outcome.DEDUCTED
    return answer.replayed


async def test_streams_are_drained_and_requests_known_before_the_live_stock_sells(
    opened: World, start_worker: StartWorker, leaving: ModeRow
) -> None:
    product = await opened.on_sale(100, shards=SHARDS)
    await opened.sell(product, 5)
    sold = await sold_from_buffer(opened, product, 30)

    async def hold_up(transaction: Transaction) -> None:
        """The ledger cannot take the events while somebody holds the product."""
        await locked_product(transaction, product)
        worker = start_worker(MYSQL_LOCK_WAIT_S="1")
        await eventually(lambda: worker.said("the live stock is back"))
        await eventually(lambda: worker.metric(WAITED_IN_VAIN))
        assert await Modes(opened.database).get() == leaving
        assert await untold(opened) == set(sold)

    await opened.database.transaction(hold_up)
    await eventually(lambda: left(opened, leaving))
    assert (await opened.products.get(product)).sold_count == 5
    assert await untold(opened) == set()
    for request in sold:
        assert await replays(opened, request)


async def test_a_worker_that_dies_on_the_way_is_followed_by_another(
    opened: World, start_worker: StartWorker, leaving: ModeRow
) -> None:
    product = await opened.on_sale(100, shards=SHARDS)
    sold = await sold_from_buffer(opened, product, 5)
    victim = start_worker(FAILPOINTS="worker.after_recall=kill")
    assert await victim.ended() == -signal.SIGKILL
    assert await Modes(opened.database).get() == leaving
    start_worker()
    await eventually(lambda: left(opened, leaving))
    assert await untold(opened) == set()
    for request in sold:
        assert await replays(opened, request)


async def test_a_partition_that_is_shut_keeps_nobody_waiting_and_is_told_when_it_opens(
    opened: World, start_worker: StartWorker, leaving: ModeRow
) -> None:
    product = await opened.on_sale(100, shards=SHARDS)
    start_worker()
    await eventually(lambda: left(opened, leaving))
    partition = Layout(1, SHARDS).partition(0, product_id=product, partitions=PARTITIONS)
    head = keys.head(opened.cluster.tags[partition])
    await rename(opened, partition, head, f"{head}:aside")
    # A key of another type is the one thing that nobody restores.
    await opened.cluster.command(partition, "SET", head, "no hash", lane=LaneKind.MOVE)
    sold = await sold_from_buffer(opened, product, 20)
    at_home = {each for each in sold if home_shard(each.request_id, SHARDS) == 0}
    assert at_home
    entered = await Modes(opened.database).enter()
    leaving = await Modes(opened.database).leave(entered.epoch)
    await eventually(lambda: left(opened, leaving))
    assert await untold(opened) == at_home
    await rename(opened, partition, f"{head}:aside", head)
    await eventually(lambda: all_told(opened))
    for request in sold:
        assert await replays(opened, request)


async def rename(world: World, partition: int, key: str, other: str) -> None:
    """A partition without its head is shut, and no worker opens it over the ledger's events."""
    await world.cluster.command(partition, "RENAME", key, other, lane=LaneKind.WRITE)


async def all_told(world: World) -> bool:
    return not await untold(world)
