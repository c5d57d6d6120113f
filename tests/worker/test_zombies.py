"""Workers that are stopped in the middle of something, lose their leases, and wake up: whatever they
still do is what the others have done already, or nothing."""

import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from ledger.buffer_releases import Buffers, Release
from ledger.freezes import Freezes
from ledger.layouts import Cause, ChangeState, Layouts
from ledger.openings import Openings
from sharding import keys
from sharding.cluster import LaneKind
from sharding.events import Status
from sharding.outcomes import Deduction
from sharding.packing import pack
from sharding.placement import Layout, home_shard
from sharding.shards import Mode, Shards
from tests.ledger.conftest import fetch
from tests.ledger.streams import fresh_request_ids
from tests.moving import begin
from tests.waiting import eventually
from tests.worker.conftest import PARTITIONS, StartWorker, WorkerProcess, World, all_open
from worker.settings import WorkerSettings
from worker.tenancy import RENEWAL_PAUSE_MAX_S, RENEWALS_PER_TTL

SHARDS, UNITS, SOLD = 6, 1_000, 40
WHO = {"reason": "test", "actor": "ann"}
Act = Callable[[World, int], Awaitable[object]]


def test_by_default_leases_move_within_five_seconds_and_outlast_every_call() -> None:
    settings = WorkerSettings()
    looks_s = min(settings.lease_ttl_s / RENEWALS_PER_TTL, RENEWAL_PAUSE_MAX_S)
    assert settings.lease_ttl_s + looks_s <= 5
    assert settings.lease_ttl_s > settings.redis_patience_ms / 1_000


async def until_stopped(worker: WorkerProcess) -> None:
    """It has come to the place where it stops."""

    def is_stopped() -> bool:
        assert worker.process.poll() is None, worker.log.read_text()[-2_000:]
        state = Path(f"/proc/{worker.process.pid}/stat").read_text().rpartition(") ")[2]
        return state.startswith("T")

    await eventually(is_stopped)


async def wake(worker: WorkerProcess) -> None:
    """Return when it has a share again: what it was about to do has gone out by then."""
    worker.process.send_signal(signal.SIGCONT)
    await eventually(lambda: worker.owns(PARTITIONS // 2))


async def replaced(start_worker: StartWorker, sleeper: WorkerProcess) -> None:
    """Somebody else has all that a worker had which is stopped."""
    await until_stopped(sleeper)
    heir = start_worker()
    await eventually(lambda: heir.owns(PARTITIONS))


async def assert_applied_once(world: World, product_id: int, sold: int) -> None:
    """Journal, product and shards agree on what was sold, and the live stock has the rest."""
    row = await eventually(lambda: world.is_sold(product_id, sold))
    stock = await world.stock.read(product_id)
    assert stock is not None
    assert (stock.sold, stock.available) == (sold, UNITS - sold)
    assert row.available_stock == UNITS - sold
    effects = "SELECT COUNT(*) FROM inventory_log WHERE product_id = %s AND kind = 'deduct'"
    ((count,),) = await fetch(world.database, effects, product_id)
    assert count == sold


@pytest.mark.parametrize("place", ["redis.before_confirm", "worker.before_commit"])
async def test_of_a_stream_it_applies_nothing_that_others_have_applied(
    opened: World, start_worker: StartWorker, place: str
) -> None:
    product = await opened.on_sale(UNITS, shards=SHARDS)
    await opened.sell(product, SOLD)
    sleeper = start_worker(FAILPOINTS=f"{place}=stop")
    await replaced(start_worker, sleeper)
    await opened.sell(product, SOLD)
    await eventually(lambda: opened.is_sold(product, 2 * SOLD))
    await wake(sleeper)
    await opened.sell(product, SOLD)
    await assert_applied_once(opened, product, 3 * SOLD)


async def test_it_opens_no_partition_under_a_generation_that_nobody_has_issued(
    opened: World, start_worker: StartWorker
) -> None:
    product = await opened.on_sale(UNITS, shards=SHARDS)
    partition = Layout(1, SHARDS).partition(0, product_id=product, partitions=PARTITIONS)
    head = keys.head(opened.cluster.tags[partition])
    await opened.cluster.command(partition, "HSET", head, "owner", "x", lane=LaneKind.WRITE)
    sleeper = start_worker(FAILPOINTS="redis.before_open=stop")
    await replaced(start_worker, sleeper)
    await eventually(lambda: all_open(opened.partitions))
    await wake(sleeper)
    issued = await Openings(opened.database).latest([partition])
    assert (await opened.partitions.head(partition)).generation == issued[partition]
    await opened.sell(product, SOLD)
    await assert_applied_once(opened, product, SOLD)


async def second_effect(world: World, product_id: int) -> None:
    """One request that two shards have accepted."""
    layout = Layout(1, SHARDS)
    name = next(each for each in fresh_request_ids(100) if home_shard(each, SHARDS) == 0)
    request = Deduction(name, product_id, 1)
    shards = Shards(world.cluster, product_id, layout)
    await shards.deduct(shards.partitions[3], pack([request]), mode=Mode.VISIT)
    served = await shards.deduct(shards.partitions[0], pack([request]))
    assert served.statuses == Status.DEDUCTED.encode()


async def open_transfer(world: World, product_id: int) -> None:
    """Units that are on their way, and nobody to see to them."""
    shards = Shards(world.cluster, product_id, Layout(1, SHARDS))
    donor, receiver = shards.partitions[:2]
    await begin(shards, donor, receiver, 5)


async def release(world: World, product_id: int) -> None:
    wanted = Release(product_id, f"release {product_id}", 0, "test", "ann")
    await Buffers(world.database, partitions=PARTITIONS).release(wanted)


@pytest.mark.parametrize(
    ("place", "act", "sold"),
    [
        ("redis.before_undo", second_effect, 1),
        ("redis.after_undo", second_effect, 1),
        ("redis.before_put", open_transfer, 0),
        ("redis.before_buffer", release, 0),
    ],
)
async def test_an_errand_that_another_has_done_meanwhile_moves_no_unit_again(
    opened: World, start_worker: StartWorker, place: str, act: Act, sold: int
) -> None:
    percent = 50 if act is release else 0
    product = await opened.on_sale(UNITS, shards=SHARDS, buffer_percent=percent)
    sleeper = start_worker(FAILPOINTS=f"{place}=stop")
    await act(opened, product)
    await replaced(start_worker, sleeper)
    await eventually(lambda: no_errands(opened, product))
    await wake(sleeper)
    await opened.sell(product, SOLD)
    await assert_applied_once(opened, product, sold + SOLD)


async def no_errands(world: World, product_id: int) -> bool:
    sql = "SELECT COUNT(*) FROM outbox WHERE product_id = %s AND state = 'open'"
    stock = await world.stock.read(product_id)
    ((count,),) = await fetch(world.database, sql, product_id)
    return count == 0 and stock is not None and stock.in_transit == 0


async def test_it_stops_no_sale_that_was_resumed_meanwhile(
    opened: World, start_worker: StartWorker
) -> None:
    product, freezes = await opened.on_sale(UNITS, shards=SHARDS), Freezes(opened.database)
    sleeper = start_worker(FAILPOINTS="redis.before_freeze=stop")
    await freezes.freeze(product, **WHO)
    await replaced(start_worker, sleeper)
    resumed = await freezes.unfreeze(product, **WHO)
    shards = Shards(opened.cluster, product, Layout(1, SHARDS))

    async def is_told() -> bool:
        return all([await shards.freeze_of(each) == resumed for each in shards.partitions])

    await eventually(is_told)
    await wake(sleeper)
    await opened.sell(product, SOLD)
    await assert_applied_once(opened, product, SOLD)


async def test_it_takes_no_product_back_to_a_layout_that_others_have_left(
    opened: World, start_worker: StartWorker
) -> None:
    product, layouts = await opened.on_sale(UNITS, shards=SHARDS), Layouts(opened.database)

    async def want(shards: int) -> int:
        aim = await layouts.want(product, shards, Cause.OPERATOR, partitions=PARTITIONS)
        return aim.version

    async def is_done(version: int) -> bool:
        return await layouts.state(product, version) is ChangeState.DONE

    sleeper = start_worker(FAILPOINTS="redis.before_commit=stop")
    first = await want(3)
    await replaced(start_worker, sleeper)
    await eventually(lambda: is_done(first))
    second = await want(12)
    await eventually(lambda: is_done(second))
    await wake(sleeper)
    stock = await opened.stock.read(product)
    assert stock is not None
    assert (stock.layout_version, stock.serving) == (second, 12)
    await opened.sell(product, SOLD)
    await assert_applied_once(opened, product, SOLD)
