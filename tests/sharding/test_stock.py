"""What a product with several shards does as one exact counter, on a real cluster."""

import asyncio
from collections import Counter

import pytest
from prometheus_client import CollectorRegistry

from deploy.local.stack import LocalStack
from sharding import keys
from sharding.cluster import Cluster, LaneKind
from sharding.errors import CloseBusyError, LoadConflictError
from sharding.events import Kind
from sharding.metrics import StockMetrics
from sharding.outcomes import Answer, Deduction, Outcome, Reason, State
from sharding.partitions import Partitions
from sharding.placement import home_shard
from sharding.readings import OpenTransfer
from sharding.shards import Known
from sharding.stock import Stock
from tests.moving import begin, open_transfers
from tests.sharding.conftest import LoadProduct, events_of, plan_for, settings_for


async def deduct_one(stock: Stock, deduction: Deduction) -> Answer:
    return (await stock.deduct([deduction]))[0]


async def assert_balanced(stock: Stock, product_id: int, *, sold: int, available: int) -> None:
    seen = await stock.read(product_id)
    assert seen is not None
    assert (seen.available, seen.sold, seen.held, seen.in_transit) == (available, sold, 0, 0)
    assert seen.total == available + sold
    assert all(shard.available >= 0 for shard in seen.shards)


async def test_a_burst_over_six_shards_sells_every_unit_and_not_one_more(
    stock: Stock, load: LoadProduct, partitions: Partitions
) -> None:
    product = await load(84, 84, 83, 83, 83, 83)
    answers = await asyncio.gather(
        *(deduct_one(stock, Deduction(f"buyer-{i}", product, 1)) for i in range(5_000))
    )
    assert Counter(answer.outcome for answer in answers) == {
        Outcome.DEDUCTED: 500,
        Outcome.INSUFFICIENT_STOCK: 4_500,
    }
    await assert_balanced(stock, product, sold=500, available=0)
    sales = [sale for event in await events_of(partitions, product) for sale in event.sales]
    assert len({sale.request_id for sale in sales}) == len(sales) == 500


async def test_single_units_in_six_shards_serve_one_request_of_three(
    stock: Stock, load: LoadProduct
) -> None:
    product = await load(1, 1, 1, 1, 1, 1)
    answer = await deduct_one(stock, Deduction("three", product, 3))
    assert answer.outcome is Outcome.DEDUCTED
    await assert_balanced(stock, product, sold=3, available=3)


@pytest.mark.parametrize("trial", range(5))
async def test_two_requests_that_need_each_others_units_are_both_served(
    stock: Stock, load: LoadProduct, trial: int
) -> None:
    product = await load(1, 1, 1, 1, 1, 1)
    ids = iter(f"crossing-{trial}-{i}" for i in range(1_000))
    first = next(ids)
    second = next(i for i in ids if home_shard(i, 6) != home_shard(first, 6))
    answers = await asyncio.gather(
        *(deduct_one(stock, Deduction(request_id, product, 3)) for request_id in (first, second))
    )
    assert [answer.outcome for answer in answers] == [Outcome.DEDUCTED] * 2
    await assert_balanced(stock, product, sold=6, available=0)


async def test_a_request_is_refused_only_when_all_shards_together_hold_too_few(
    stock: Stock, load: LoadProduct
) -> None:
    product = await load(2, 0, 3, 0, 0, 1)
    refused = await deduct_one(stock, Deduction("seven", product, 7))
    taken = await deduct_one(stock, Deduction("six", product, 6))
    assert refused == Answer(Outcome.INSUFFICIENT_STOCK)
    assert taken.outcome is Outcome.DEDUCTED
    await assert_balanced(stock, product, sold=6, available=0)


async def test_a_replay_gives_the_first_answer_and_changes_nothing(
    stock: Stock, load: LoadProduct
) -> None:
    product = await load(50, 50)
    first = await deduct_one(stock, Deduction("once", product, 2, user_id=7))
    await deduct_one(stock, Deduction("other", product, 1))
    again = await deduct_one(stock, Deduction("once", product, 2, user_id=7, attempt=2))
    assert again == first._replace(replayed=True)
    await assert_balanced(stock, product, sold=3, available=97)


async def test_one_id_in_fifty_concurrent_calls_and_within_one_batch_has_one_effect(
    stock: Stock, load: LoadProduct
) -> None:
    product = await load(100)
    request = Deduction("hot", product, 1)
    answers = await asyncio.gather(*(deduct_one(stock, request) for _ in range(50)))
    answers += await stock.deduct([request] * 50)
    assert {answer.outcome for answer in answers} == {Outcome.DEDUCTED}
    assert sum(not answer.replayed for answer in answers) == 1
    await assert_balanced(stock, product, sold=1, available=99)


async def test_the_last_unit_goes_to_one_id_however_often_it_asks(
    stock: Stock, load: LoadProduct
) -> None:
    product = await load(0, 1, 0)
    mine = [deduct_one(stock, Deduction("mine", product, 1)) for _ in range(50)]
    answers = await asyncio.gather(*mine)
    others = await stock.deduct([Deduction(f"other-{i}", product, 1) for i in range(50)])
    assert {answer.outcome for answer in answers} == {Outcome.DEDUCTED}
    assert {answer.outcome for answer in others} == {Outcome.INSUFFICIENT_STOCK}
    await assert_balanced(stock, product, sold=1, available=0)


@pytest.mark.parametrize("change", [{"quantity": 3}, {"user_id": 8}])
async def test_an_id_with_another_content_is_a_mismatch(
    stock: Stock, load: LoadProduct, change: dict[str, int]
) -> None:
    product = await load(10)
    request = Deduction("same", product, 2, user_id=7)
    await deduct_one(stock, request)
    answer = await deduct_one(stock, request._replace(**change))
    assert answer.outcome is Outcome.REQUEST_MISMATCH
    await assert_balanced(stock, product, sold=2, available=8)


async def test_an_id_of_a_restock_is_a_mismatch_for_a_deduction_and_the_other_way_round(
    stock: Stock, load: LoadProduct
) -> None:
    product = await load(10)
    await stock.restock(product, request_id="delivery", quantity=5, reason="")
    await deduct_one(stock, Deduction("sale", product, 5))
    deducted = await deduct_one(stock, Deduction("delivery", product, 5))
    restocked = await stock.restock(product, request_id="sale", quantity=5, reason="")
    removed = await stock.remove(product, request_id="delivery", quantity=5, reason="")
    outcomes = {deducted.outcome, restocked.outcome, removed.outcome}
    assert outcomes == {Outcome.REQUEST_MISMATCH}


async def test_products_that_share_an_id_do_not_touch_each_other(
    stock: Stock, load: LoadProduct
) -> None:
    first, second = await load(5), await load(5)
    answers = await stock.deduct([Deduction("shared", first, 1), Deduction("shared", second, 2)])
    assert [answer.replayed for answer in answers] == [False, False]
    await assert_balanced(stock, first, sold=1, available=4)
    await assert_balanced(stock, second, sold=2, available=3)


async def test_answers_come_in_the_order_of_the_requests(stock: Stock, load: LoadProduct) -> None:
    product = await load(500, 500, 500)
    requests = [Deduction(f"n-{i}", product, 1 + i % 3) for i in range(600)]
    unknown = Deduction("n-0", 1, 1)
    answers = await stock.deduct([*requests, unknown])
    assert [answer.shard for answer in answers[:-1]] == [
        home_shard(request.request_id, 3) for request in requests
    ]
    assert answers[-1].outcome is Outcome.UNKNOWN_PRODUCT


async def test_restocks_and_deductions_at_once_add_up_and_repeats_add_nothing(
    stock: Stock, load: LoadProduct
) -> None:
    product = await load(100, 100, 100)
    restocks = [
        stock.restock(product, request_id=f"in-{i % 10}", quantity=50, reason="delivery")
        for i in range(20)
    ]
    sales = [deduct_one(stock, Deduction(f"out-{i}", product, 1)) for i in range(300)]
    answers = await asyncio.gather(*restocks, *sales)
    assert {answer.outcome for answer in answers} == {Outcome.DEDUCTED}
    await assert_balanced(stock, product, sold=300, available=500)


async def test_a_removal_gathers_units_and_never_takes_more_than_there_are(
    stock: Stock, load: LoadProduct
) -> None:
    product = await load(10, 10, 10)
    too_many = await stock.remove(product, request_id="a", quantity=31, reason="")
    all_but_one = await stock.remove(product, request_id="b", quantity=29, reason="damaged")
    again = await stock.remove(product, request_id="b", quantity=29, reason="damaged")
    assert too_many.outcome is Outcome.INSUFFICIENT_STOCK
    assert (all_but_one.outcome, all_but_one.replayed) == (Outcome.DEDUCTED, False)
    assert (again.outcome, again.replayed) == (Outcome.DEDUCTED, True)
    await assert_balanced(stock, product, sold=0, available=1)


async def test_loading_again_during_a_sale_changes_nothing(stock: Stock, load: LoadProduct) -> None:
    product = await load(10, 10)
    await deduct_one(stock, Deduction("sold", product, 4))
    await asyncio.gather(*(stock.load(plan_for(product, 10, 10)) for _ in range(5)))
    await assert_balanced(stock, product, sold=4, available=16)
    with pytest.raises(LoadConflictError):
        await stock.load(plan_for(product, 10, 10, epoch=2))
    await assert_balanced(stock, product, sold=4, available=16)


async def test_a_closed_product_gives_its_units_back_and_still_knows_its_requests(
    stock: Stock, load: LoadProduct, partitions: Partitions
) -> None:
    product = await load(10, 10)
    await deduct_one(stock, Deduction("sold", product, 4))
    await stock.close(product, 1)
    await stock.close(product, 1)
    replay, fresh = await stock.deduct(
        [Deduction("sold", product, 4), Deduction("late", product, 1)]
    )
    assert replay.replayed
    assert fresh == Answer(Outcome.FROZEN, reason=Reason.PRODUCT_CLOSED)
    events = await events_of(partitions, product)
    assert sum(event.quantity for event in events if event.kind is Kind.CLOSE) == 16
    seen = await stock.read(product)
    assert seen is not None
    assert (seen.state, seen.available, seen.sold) == (State.CLOSED, 0, 4)


async def test_a_product_is_loaded_anew_after_it_was_closed_with_another_shard_count(
    stock: Stock, load: LoadProduct
) -> None:
    product = await load(10, 10)
    await deduct_one(stock, Deduction("sold", product, 4))
    await stock.close(product, 1)
    await stock.load(plan_for(product, 6, 5, 5, epoch=2))
    answer = await deduct_one(stock, Deduction("more", product, 16))
    assert answer.outcome is Outcome.DEDUCTED
    seen = await stock.read(product)
    assert seen is not None
    assert (seen.available, len(seen.shards), seen.epoch) == (0, 3, 2)


async def test_closing_another_epoch_is_refused(stock: Stock, load: LoadProduct) -> None:
    product = await load(3)
    with pytest.raises(LoadConflictError):
        await stock.close(product, 2)
    await assert_balanced(stock, product, sold=0, available=3)


async def test_a_transfer_that_was_left_open_counts_and_is_finished_by_whoever_needs_it(
    stock: Stock, load: LoadProduct, cluster: Cluster, metrics: StockMetrics
) -> None:
    product = await load(5, 0)
    found = await stock._catalogue.find(product)
    assert found is not None
    donor, receiver = found.shards.partitions
    await begin(found.shards, donor, receiver, 5)
    seen = await stock.read(product)
    assert seen is not None
    assert (seen.available, seen.in_transit, seen.total) == (0, 5, 5)
    other_process = Stock(cluster, metrics)
    answer = await deduct_one(other_process, Deduction("all", product, 5))
    assert answer.outcome is Outcome.DEDUCTED
    await assert_balanced(stock, product, sold=5, available=0)


@pytest.mark.parametrize("step", ["take", "put", "ack"])
async def test_a_step_of_a_transfer_that_is_repeated_changes_nothing(
    stock: Stock, load: LoadProduct, step: str
) -> None:
    product = await load(5, 0)
    found = await stock._catalogue.find(product)
    assert found is not None
    donor, receiver = found.shards.partitions
    given = await begin(found.shards, donor, receiver, 3)
    if step == "take":
        again = await found.shards.take(donor, receiver=receiver, before=0, quantity=3)
        assert again.word == "open"
    assert await open_transfers(stock, product) == {OpenTransfer(donor, receiver, 3)}
    for _ in range(2 if step == "put" else 1):
        assert (await found.shards.put(given)).got == 3
    for _ in range(2 if step == "ack" else 1):
        assert await found.shards.ack(given) == Known(given, arrived=3)
    late = await found.shards.take(donor, receiver=receiver, before=0, quantity=3)
    assert late.word == "past"
    await assert_balanced(stock, product, sold=0, available=5)


async def test_a_stalled_node_executes_a_request_once_though_its_reply_was_lost(
    services: LocalStack, stock: Stock, load: LoadProduct, partitions: Partitions
) -> None:
    product = await load(100)
    impatient = settings_for(services, redis_timeout_ms=200, redis_patience_ms=5_000)
    hasty_metrics = StockMetrics(CollectorRegistry())
    hasty = await Cluster.connect(impatient, hasty_metrics)
    try:
        hasty_stock = Stock(hasty, hasty_metrics)
        # By then it knows that the node has a replica, which it would otherwise ask first.
        await deduct_one(hasty_stock, Deduction("early", product, 1))
        found = await stock._catalogue.find(product)
        assert found is not None
        partition = found.shards.partitions[0]
        pausing = hasty.command(partition, "CLIENT", "PAUSE", "700", "ALL", lane=LaneKind.READ)
        await pausing
        answer = await deduct_one(hasty_stock, Deduction("stalled", product, 1))
        lost = hasty_metrics.redis_errors.labels("lost")._value.get()
    finally:
        await hasty.close()
    assert answer.outcome is Outcome.DEDUCTED
    assert lost > 0
    again = await deduct_one(stock, Deduction("stalled", product, 1, attempt=2))
    assert (again.outcome, again.replayed) == (Outcome.DEDUCTED, True)
    await assert_balanced(stock, product, sold=2, available=98)
    sales = [sale for event in await events_of(partitions, product) for sale in event.sales]
    assert [sale.request_id for sale in sales] == ["early", "stalled"]


async def test_cancelling_callers_at_random_loses_no_answer_and_no_event(
    stock: Stock, load: LoadProduct, partitions: Partitions
) -> None:
    product = await load(50, 50)
    tasks = [
        asyncio.create_task(deduct_one(stock, Deduction(f"c-{i}", product, 1))) for i in range(100)
    ]
    for turn, task in enumerate(tasks):
        if turn % 7 == 0:
            await asyncio.sleep(0)
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await stock.drain()
    answers = await stock.deduct([Deduction(f"c-{i}", product, 1, attempt=2) for i in range(100)])
    assert {answer.outcome for answer in answers} == {Outcome.DEDUCTED}
    await assert_balanced(stock, product, sold=100, available=0)
    sales = [sale for event in await events_of(partitions, product) for sale in event.sales]
    assert sorted(sale.request_id for sale in sales) == sorted(f"c-{i}" for i in range(100))


async def test_losing_the_script_cache_is_not_noticed(
    stock: Stock, load: LoadProduct, cluster: Cluster
) -> None:
    product = await load(500, 500, 500)
    for batch in range(10):
        for partitions_of_node in cluster.masters().values():
            await cluster.command(
                partitions_of_node[0], "SCRIPT", "FLUSH", "SYNC", lane=LaneKind.READ
            )
        requests = [Deduction(f"f-{batch}-{i}", product, 1) for i in range(100)]
        answers = await stock.deduct(requests)
        assert {answer.outcome for answer in answers} == {Outcome.DEDUCTED}
    await assert_balanced(stock, product, sold=1_000, available=500)


async def test_holding_units_keeps_a_product_from_closing(
    stock: Stock, load: LoadProduct, cluster: Cluster
) -> None:
    product = await load(3)
    found = await stock._catalogue.find(product)
    assert found is not None
    partition = found.shards.partitions[0]
    key = keys.stock(cluster.tags[partition], product)
    await cluster.command(partition, "HSET", key, "held", "1", lane=LaneKind.WRITE)
    with pytest.raises(CloseBusyError, match="held"):
        await stock.close(product, 1)
