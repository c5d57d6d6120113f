"""The whole worker: real processes between a real Redis Cluster and a real MySQL."""

import pytest

from sharding import keys
from sharding.cluster import LaneKind
from sharding.events import anchor
from tests.chaos.proxy import MysqlProxy
from tests.ledger.conftest import create_database, fetch
from tests.waiting import eventually
from tests.worker.conftest import PARTITIONS, StartWorker, World, free_port, plain

PLENTY = 1_000_000_000
RESTARTS, AT_ONCE = 20, 4
FAILPOINTS = [
    "worker.before_read=kill@20",
    "worker.after_read=kill@2",
    "worker.before_insert=kill@2",
    "worker.after_insert=kill@2",
    "worker.before_commit=kill@2",
    "worker.after_commit=kill@2",
    "worker.before_trim=kill@1",
    "worker.after_trim=kill@1",
]


async def assert_exact(world: World, product_id: int, *, units: int, sold: int) -> None:
    row = await eventually(lambda: world.is_sold(product_id, sold))
    assert (row.available_stock, row.total_stock) == (units - sold, units)
    assert await world.journal_rows(product_id) == sold
    shards = await fetch(
        world.database,
        "SELECT SUM(available), SUM(sold), SUM(loaded), SUM(in_transit) FROM shard_stock "
        "WHERE product_id = %s",
        product_id,
    )
    assert shards == [(units - sold, sold, units, 0)]


async def test_what_is_sold_reaches_the_ledger(opened: World, start_worker: StartWorker) -> None:
    worker = start_worker()
    product_id = await opened.on_sale(1_000)
    await opened.sell(product_id, 400)
    await assert_exact(opened, product_id, units=1_000, sold=400)
    assert await worker.metric("inventory_ledger_drift_total") == 0
    assert await worker.metric("inventory_worker_event_gaps_total") == 0
    assert await worker.stop() == 0
    assert worker.complaints(product_id) == []


@pytest.mark.parametrize("failpoint", FAILPOINTS)
async def test_a_worker_killed_at_any_step_loses_and_doubles_nothing(
    opened: World, start_worker: StartWorker, failpoint: str
) -> None:
    doomed = start_worker(FAILPOINTS=failpoint, TRIM_LAG_S="0")
    product_id = await opened.on_sale(PLENTY)
    sold = 0

    async def sell_until_it_dies() -> bool:
        nonlocal sold
        await opened.sell(product_id, 40)
        sold += 40
        return doomed.process.poll() is not None

    await eventually(sell_until_it_dies)
    assert doomed.process.returncode == -9
    start_worker()
    await assert_exact(opened, product_id, units=PLENTY, sold=sold)


async def test_restarts_under_load_apply_everything_once_and_leave_nothing_behind(
    opened: World, start_worker: StartWorker
) -> None:
    product_id = await opened.on_sale(PLENTY)
    sold = seen = 0

    async def has_grown_or_all_are_dead() -> bool:
        nonlocal seen
        before, seen = seen, (await opened.products.get(product_id)).sold_count
        return seen > before or all_are_dead()

    def all_are_dead() -> bool:
        return all(worker.process.poll() is not None for worker in workers)

    for _ in range(RESTARTS // AT_ONCE):
        workers = [start_worker(FAILPOINTS="worker.before_commit=kill@3") for _ in range(AT_ONCE)]
        while not all_are_dead():
            await opened.sell(product_id, 30)
            sold += 30
            await eventually(has_grown_or_all_are_dead)
    survivor = start_worker()
    await assert_exact(opened, product_id, units=PLENTY, sold=sold)
    await eventually(lambda: survivor.owns(PARTITIONS))
    assert len(await opened.owners()) == 1


async def test_workers_share_the_partitions_and_one_that_leaves_is_replaced(
    opened: World, start_worker: StartWorker
) -> None:
    staying, leaving = start_worker(), start_worker()
    for worker in (staying, leaving):
        await eventually(lambda worker=worker: worker.owns(PARTITIONS // 2))
    product_id = await opened.on_sale(10_000)
    await opened.sell(product_id, 300)
    await assert_exact(opened, product_id, units=10_000, sold=300)
    assert await leaving.stop() == 0
    await eventually(lambda: staying.owns(PARTITIONS))
    await opened.sell(product_id, 300)
    await assert_exact(opened, product_id, units=10_000, sold=600)


async def test_a_stop_finishes_the_batch_and_gives_the_leases_back(
    opened: World, start_worker: StartWorker
) -> None:
    worker = start_worker(LEASE_TTL_S="300")
    await eventually(lambda: worker.owns(PARTITIONS))
    product_id = await opened.on_sale(10_000)
    await opened.sell(product_id, 200)
    assert await worker.stop() == 0
    assert await opened.owners() == set()
    next_one = start_worker()
    await eventually(lambda: next_one.owns(PARTITIONS))
    await assert_exact(opened, product_id, units=10_000, sold=200)


async def test_mysql_may_come_later_and_go_in_between(
    opened: World, start_worker: StartWorker
) -> None:
    port = free_port()
    proxy = MysqlProxy(opened.mysql.host, opened.mysql.port, port=port)
    url = plain(opened.mysql).replace(f":{opened.mysql.port}/", f":{port}/")
    worker = start_worker(MYSQL_URLS=url)
    await eventually(lambda: worker.said("waiting for MySQL"))
    product_id = await opened.on_sale(10_000)
    await proxy.open()
    for sold in (100, 200, 300):
        await opened.sell(product_id, 100)
        await assert_exact(opened, product_id, units=10_000, sold=sold)
        await proxy.shut()
        await proxy.open()
    await proxy.shut()
    await opened.sell(product_id, 100)
    await eventually(lambda: worker.metric('inventory_worker_failures_total{source="ledger"}'))
    await proxy.open()
    await assert_exact(opened, product_id, units=10_000, sold=400)
    await proxy.shut()
    assert await worker.stop() == 0


async def test_applied_entries_are_trimmed_but_for_the_last(
    opened: World, start_worker: StartWorker
) -> None:
    product_id = await opened.on_sale(10_000, shards=1)
    for _ in range(5):
        await opened.sell(product_id, 1)
    worker = start_worker(TRIM_LAG_S="0")
    await assert_exact(opened, product_id, units=10_000, sold=5)
    await eventually(lambda: worker.metric("inventory_worker_trimmed_entries_total"))
    checkpoints = await opened.checkpoints.all()
    for partition in range(PARTITIONS):
        entries = await opened.partitions.read(
            partition, ledger=0, after=checkpoints[partition].id._replace(number=0), count=1_000
        )
        at_checkpoint = [each for each in entries if each.id == checkpoints[partition].id]
        assert [anchor(each.fields) for each in at_checkpoint] == (
            [checkpoints[partition].anchor] if checkpoints[partition].id.number else []
        )


async def test_a_deleted_stream_is_told_and_stops_nothing(
    opened: World, start_worker: StartWorker
) -> None:
    product_id = await opened.on_sale(10_000, shards=12)
    first = start_worker()
    await opened.sell(product_id, 100)
    await assert_exact(opened, product_id, units=10_000, sold=100)
    assert await first.stop() == 0
    await opened.sell(product_id, 50)
    victim = 0
    await opened.cluster.command(
        victim, "DEL", keys.events(opened.cluster.tags[victim], 0), lane=LaneKind.WRITE
    )
    await opened.sell(product_id, 100)
    second = start_worker()
    await eventually(lambda: second.metric("inventory_worker_event_gaps_total"))
    await eventually(lambda: second.metric("inventory_ledger_drift_total"))
    await eventually(lambda: caught_up(second))

    async def row_and_journal_agree() -> bool:
        """They are read one after the other, and what is known of the lag is a moment old."""
        row = await opened.products.get(product_id)
        return row.sold_count == await opened.journal_rows(product_id)

    await eventually(row_and_journal_agree)
    assert 0 < 250 - (await opened.products.get(product_id)).sold_count <= 150
    assert second.said("events are missing in a stream")
    assert second.said("ledger and stream differ")


async def caught_up(worker: object) -> bool:
    lags = [
        await worker.metric(  # type: ignore[attr-defined]
            f'inventory_worker_stream_lag_entries{{partition="{partition}"}}'
        )
        for partition in range(PARTITIONS)
    ]
    return all(lag == 0 for lag in lags)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"PARTITIONS": "24"}, "INVENTORY_PARTITIONS=12"),
        ({"POLL_MS_MAX": "soon"}, "INVENTORY_POLL_MS_MAX"),
        ({"METRICS_ADDRESS": "nowhere"}, "INVENTORY_METRICS_ADDRESS"),
        ({"FAILPOINTS": "worker.after_read=explode"}, "INVENTORY_FAILPOINTS"),
        ({"MYSQL_URLS": "mysql://u:p@h/a,mysql://v@h:3306/a"}, "names h:3306/a twice"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
async def test_a_wrong_setting_ends_it_with_one_line(
    opened: World, start_worker: StartWorker, settings: dict[str, str], says: str
) -> None:
    worker = start_worker(**settings)
    assert await worker.ended() == 2
    (line,) = worker.log.read_text().splitlines()
    assert says in line


async def test_a_used_metrics_port_ends_it_with_one_line(
    opened: World, start_worker: StartWorker
) -> None:
    first = start_worker()
    await eventually(lambda: first.owns(PARTITIONS))
    address = f"127.0.0.1:{first._metrics_port}"
    second = start_worker(METRICS_ADDRESS=address)
    assert await second.ended() == 2
    (line,) = second.log.read_text().splitlines()
    assert address in line


async def test_missing_tables_end_it_with_the_command_to_run(
    opened: World, start_worker: StartWorker
) -> None:
    empty = await create_database(opened.mysql)
    worker = start_worker(MYSQL_URLS=plain(empty))
    assert await worker.ended() == 2
    (line,) = worker.log.read_text().splitlines()
    assert "inventoryctl migrate" in line
