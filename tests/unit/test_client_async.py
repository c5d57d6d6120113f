"""The asyncio client against a real server in this process."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import grpc
import pytest

from inventory.client import (
    AsyncInventoryClient,
    DeductItem,
    Frozen,
    InvalidRequest,
    InventoryError,
    NewProduct,
    NotEnoughStock,
    NotExecuted,
    Outcome,
    OutcomeUnknown,
    Overloaded,
    RequestMismatch,
    Resolution,
    Resolved,
    RetryPolicy,
    Unavailable,
    UnknownProduct,
    UserLimit,
)
from inventory.v1 import inventory_pb2
from tests.unit.client_service import Fault, Health, Inventory, Product, answers, serving

PATIENT = RetryPolicy(deadline_s=30.0, try_timeout_s=20.0, pause_s=0.001, pause_s_max=0.002)
BRIEF = RetryPolicy(deadline_s=30.0, try_timeout_s=20.0, pause_s=0.001, tries_max=3)
HASTY = RetryPolicy(deadline_s=30.0, try_timeout_s=0.2, pause_s=0.001, tries_max=3)

UNAVAILABLE = inventory_pb2.OUTCOME_UNAVAILABLE
OVERLOADED = inventory_pb2.OUTCOME_OVERLOADED


@pytest.fixture
def inventory() -> Inventory:
    own = Inventory()
    own.products[1] = Product(total=1_000_000, available=1_000_000)
    return own


@pytest.fixture
def target(inventory: Inventory) -> Iterator[str]:
    with serving(inventory, Health()) as address:
        yield address


@pytest.fixture
async def client(target: str) -> AsyncIterator[AsyncInventoryClient]:
    async with AsyncInventoryClient(target, policy=PATIENT) as own:
        yield own


async def test_a_first_try_with_an_own_id_says_so(client, inventory):
    deduction = await client.deduct(1, 2)
    (request,) = inventory.requests
    assert (request.attempt, request.request_id) == (1, deduction.request_id)
    assert deduction.accepted
    assert not deduction.replayed


async def test_an_id_from_the_caller_is_of_unknown_age_unless_the_caller_says(client, inventory):
    await client.deduct(1, 1, request_id="a")
    await client.deduct(1, 1, request_id="b", attempt=1)
    await client.deduct(1, 1, request_id="c", attempt=4)
    assert [request.attempt for request in inventory.requests] == [0, 1, 4]


async def test_retries_carry_the_same_id_and_a_rising_attempt(client, inventory):
    inventory.faults.extend([Fault()] * 3)
    deduction = await client.deduct(1, 2)
    assert {request.request_id for request in inventory.requests} == {deduction.request_id}
    assert [request.attempt for request in inventory.requests] == [1, 2, 3, 4]


@pytest.mark.parametrize(("attempt", "sent"), [(None, [0, 2]), (0, [0, 2]), (5, [5, 6])])
async def test_a_retry_never_claims_to_be_a_first_try(client, inventory, attempt, sent):
    inventory.faults.append(Fault())
    await client.deduct(1, 1, request_id="r", attempt=attempt)
    assert [request.attempt for request in inventory.requests] == sent


async def test_a_lost_reply_takes_the_units_once(client, inventory):
    inventory.faults.append(Fault(acts_first=True))
    deduction = await client.deduct(1, 2)
    assert deduction.replayed
    assert inventory.products[1].sold == 2


async def test_a_try_that_hangs_is_repeated_with_the_same_id(target, inventory):
    inventory.faults.append(Fault(acts_first=True, hangs=True))
    async with AsyncInventoryClient(target, policy=HASTY) as client:
        deduction = await client.deduct(1, 2)
    assert deduction.replayed
    assert inventory.products[1].sold == 2


async def test_a_retry_goes_over_another_connection(client, inventory):
    inventory.faults.append(Fault())
    await client.deduct(1, 1)
    assert len(set(inventory.peers)) == 2


async def test_calls_go_round_over_all_connections(client, inventory):
    for _ in range(8):
        await client.deduct(1, 1)
    assert [inventory.peers.count(peer) for peer in set(inventory.peers)] == [2] * 4


async def test_shortage_is_an_answer_and_is_not_sent_again(client, inventory):
    inventory.products[1].available = 1
    deduction = await client.deduct(1, 2)
    assert deduction.outcome is Outcome.INSUFFICIENT_STOCK
    assert len(inventory.calls) == 1


@pytest.mark.parametrize(
    ("outcome", "reason", "kind"),
    [
        (inventory_pb2.OUTCOME_UNKNOWN_PRODUCT, "", UnknownProduct),
        (inventory_pb2.OUTCOME_FROZEN, "CLOSED", Frozen),
        (inventory_pb2.OUTCOME_REQUEST_MISMATCH, "", RequestMismatch),
        (inventory_pb2.OUTCOME_INVALID, "QUANTITY", InvalidRequest),
        (inventory_pb2.OUTCOME_USER_LIMIT, "", UserLimit),
    ],
)
@pytest.mark.parametrize("batch", [False, True])
async def test_a_refusal_is_raised_at_once(target, inventory, outcome, reason, kind, batch):
    inventory.item_answers["r"].extend(answers((outcome, reason)))
    async with AsyncInventoryClient(target, policy=PATIENT, batch=batch) as client:
        with pytest.raises(kind) as caught:
            await client.deduct(1, 1, request_id="r")
    assert caught.value.request_id == "r"
    assert len(inventory.calls) == 1


@pytest.mark.parametrize(
    ("outcome", "reason", "kind"),
    [
        (UNAVAILABLE, "NOT_EXECUTED", NotExecuted),
        (UNAVAILABLE, "OUTCOME_UNKNOWN", OutcomeUnknown),
        (OVERLOADED, "QUEUE_FULL", Overloaded),
    ],
)
@pytest.mark.parametrize("batch", [False, True])
async def test_what_passes_is_raised_after_the_last_try(
    target, inventory, outcome, reason, kind, batch
):
    inventory.item_answers["r"].extend(answers(*[(outcome, reason)] * 3))
    async with AsyncInventoryClient(target, policy=BRIEF, batch=batch) as client:
        with pytest.raises(kind) as caught:
            await client.deduct(1, 1, request_id="r")
    assert caught.value.reason == reason
    assert len(inventory.calls) == 3


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize(
    "later", [(UNAVAILABLE, "NOT_EXECUTED"), (OVERLOADED, ""), (inventory_pb2.OUTCOME_FROZEN, "")]
)
async def test_a_doubt_outlives_what_later_copies_say_of_themselves(
    target, inventory, later, batch
):
    inventory.item_answers["r"].extend(
        answers((UNAVAILABLE, "OUTCOME_UNKNOWN"), later, later, later)
    )
    async with AsyncInventoryClient(target, policy=BRIEF, batch=batch) as client:
        with pytest.raises(OutcomeUnknown) as caught:
            await client.deduct(1, 1, request_id="r")
    assert caught.value.request_id == "r"
    assert "send the same request_id again" in str(caught.value)


async def test_an_answer_ends_a_doubt(client, inventory):
    inventory.item_answers["r"].extend(answers((UNAVAILABLE, "OUTCOME_UNKNOWN")))
    assert (await client.deduct(1, 1, request_id="r")).accepted


async def test_a_service_that_was_never_reached_did_nothing():
    async with AsyncInventoryClient("127.0.0.1:1", policy=BRIEF) as client:
        with pytest.raises(NotExecuted) as caught:
            await client.deduct(1, 1)
    assert caught.value.reason == "UNREACHABLE"


async def test_a_service_that_cannot_be_reached_is_never_ready():
    async with AsyncInventoryClient("127.0.0.1:1") as client:
        with pytest.raises(Unavailable):
            await client.wait_ready(0.05)


async def test_a_pause_that_passes_the_deadline_is_not_waited_for(target, inventory):
    inventory.faults.append(Fault(reason="LEDGER_BEHIND", retry_s=10))
    policy = RetryPolicy(deadline_s=9.0, try_timeout_s=9.0)
    async with AsyncInventoryClient(target, policy=policy) as client:
        with pytest.raises(NotExecuted) as caught:
            await client.deduct(1, 1)
    assert caught.value.reason == "LEDGER_BEHIND"
    assert len(inventory.calls) == 1


async def test_only_items_without_a_lasting_answer_travel_again(client, inventory):
    inventory.item_answers["late"].extend(answers((UNAVAILABLE, "NOT_EXECUTED"), (OVERLOADED, "")))
    items = [DeductItem(1, 1, "good"), DeductItem(1, 2, "late"), DeductItem(9, 1, "none")]
    deductions = await client.batch_deduct(items)
    sent = [[request.request_id for request in call] for call in inventory.calls]
    assert sent == [["good", "late", "none"], ["late"], ["late"]]
    assert [each.request_id for each in deductions] == ["good", "late", "none"]
    outcomes = [each.outcome for each in deductions]
    assert outcomes == [Outcome.DEDUCTED, Outcome.DEDUCTED, Outcome.UNKNOWN_PRODUCT]


async def test_a_batch_that_never_arrived_says_so_of_every_item():
    async with AsyncInventoryClient("127.0.0.1:1", policy=BRIEF) as client:
        deductions = await client.batch_deduct([DeductItem(1, 1), DeductItem(1, 1)])
    assert [each.outcome for each in deductions] == [Outcome.NOT_EXECUTED] * 2


async def test_a_batch_whose_replies_are_lost_takes_each_item_once(client, inventory):
    inventory.faults.append(Fault(acts_first=True))
    deductions = await client.batch_deduct([DeductItem(1, 3) for _ in range(5)])
    assert all(each.replayed for each in deductions)
    assert inventory.products[1].sold == 15


async def test_no_items_are_no_call(client, inventory):
    assert await client.batch_deduct([]) == ()
    assert inventory.calls == []


async def test_what_is_called_together_travels_together(target, inventory):
    async with AsyncInventoryClient(target, policy=PATIENT, batch=True) as client:
        deductions = await asyncio.gather(*(client.deduct(1, 1) for _ in range(50)))
    assert [len(call) for call in inventory.calls] == [50]
    ids = [request.request_id for request in inventory.requests]
    assert [each.request_id for each in deductions] == ids


async def test_what_waits_while_batches_are_out_goes_with_the_next(target, inventory):
    inventory.gate.clear()
    async with (
        AsyncInventoryClient(target, channels=1, policy=PATIENT, batch=True) as client,
        asyncio.TaskGroup() as tasks,
    ):
        tasks.create_task(client.deduct(1, 1))
        await asyncio.to_thread(inventory.arrived.acquire)
        for _ in range(20):
            tasks.create_task(client.deduct(1, 1))
            await asyncio.sleep(0)
        inventory.gate.set()
    assert [len(call) for call in inventory.calls] == [1, 20]


async def test_a_batch_holds_no_more_than_the_service_allows(target, inventory):
    async with AsyncInventoryClient(target, policy=PATIENT, batch=True) as client:
        await asyncio.gather(*(client.deduct(1, 1) for _ in range(2_001)))
    assert sorted(len(call) for call in inventory.calls) == [1, 2_000]


async def test_an_item_that_is_tried_again_holds_up_no_other_of_its_batch(target, inventory):
    inventory.item_answers["late"].extend(answers(*[(UNAVAILABLE, "NOT_EXECUTED")] * 3))
    async with AsyncInventoryClient(target, policy=PATIENT, batch=True) as client:
        late = asyncio.create_task(client.deduct(1, 1, request_id="late"))
        await client.deduct(1, 1, request_id="good")
        assert not late.done()
        assert (await late).accepted
    sent = [{request.request_id for request in call} for call in inventory.calls]
    assert sent == [{"late", "good"}, {"late"}, {"late"}, {"late"}]


async def test_a_caller_who_left_before_the_batch_did_is_left_behind(target, inventory):
    inventory.gate.clear()
    async with AsyncInventoryClient(target, channels=1, policy=PATIENT, batch=True) as client:
        first = asyncio.create_task(client.deduct(1, 1, request_id="first"))
        await asyncio.to_thread(inventory.arrived.acquire)
        gone = asyncio.create_task(client.deduct(1, 1, request_id="gone"))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.wait({gone})
        inventory.gate.set()
        await first
        await client.deduct(1, 1, request_id="last")
    assert [request.request_id for request in inventory.requests] == ["first", "last"]


async def test_a_try_that_never_left_a_full_client_did_nothing(target, inventory):
    inventory.gate.clear()
    async with AsyncInventoryClient(target, channels=1, policy=PATIENT, batch=True) as client:
        first = asyncio.create_task(client.deduct(1, 1))
        await asyncio.to_thread(inventory.arrived.acquire)
        with pytest.raises(NotExecuted):
            await client.deduct(1, 1, deadline_s=0.05)
        inventory.gate.set()
        await first
    assert len(inventory.requests) == 1


async def test_a_stream_answers_batches_in_their_order(client, inventory):
    async with client.stream() as stream:
        calls = [stream.deduct([DeductItem(1, 1, f"{n}"), DeductItem(9, 1)]) for n in range(20)]
        answered = await asyncio.gather(*calls)
    assert [batch[0].request_id for batch in answered] == [f"{n}" for n in range(20)]
    assert {batch[1].outcome for batch in answered} == {Outcome.UNKNOWN_PRODUCT}
    assert len(set(inventory.peers)) == 1


async def test_a_broken_stream_is_replaced_and_takes_nothing_twice(client, inventory):
    inventory.faults.append(Fault(acts_first=True))
    async with client.stream() as stream:
        calls = [stream.deduct([DeductItem(1, 2)]) for _ in range(10)]
        answered = await asyncio.gather(*calls)
    assert all(batch[0].accepted for batch in answered)
    assert inventory.products[1].sold == 20


async def test_a_stream_that_hangs_is_replaced_and_takes_nothing_twice(target, inventory):
    inventory.faults.append(Fault(acts_first=True, hangs=True))
    async with AsyncInventoryClient(target, policy=HASTY) as client, client.stream() as stream:
        (deduction,) = await stream.deduct([DeductItem(1, 2)])
    assert deduction.replayed
    assert inventory.products[1].sold == 2


async def test_a_watch_outlives_its_streams(client, inventory):
    watch = client.watch_stock(1)
    counts = [await anext(watch) for _ in range(3)]
    await watch.aclose()
    assert [each.available for each in counts] == [1_000_000] * 3
    assert inventory.watches == 3


async def test_a_watch_on_nothing_ends(client):
    with pytest.raises(UnknownProduct):
        await anext(client.watch_stock(9))


async def test_reads_and_corrections_come_back_as_records(client, inventory):
    assert (await client.put_product(NewProduct(product_id=5, total_stock=7))).total_stock == 7
    assert (await client.get_product(5)).available_stock == 7
    assert [each.product_id for each in (await client.list_products()).products] == [1, 5]
    assert [each.pool for each in await client.load([5])] == [7]
    assert await client.restock(5, 3, request_id="r") is False
    assert await client.restock(5, 3, request_id="r") is True
    assert (await client.get_stock(5)).accounted == 10
    assert [each.product_id for each in await client.batch_get_stock([9, 5])] == [5]
    assert (await client.close_product(5)).product_id == 5
    assert (await client.get_cluster()).version == "1.2.3"
    assert await client.resolve(5, "x") == Resolved(Resolution.NEVER, 0)
    await client.deduct(5, 2, request_id="y")
    assert await client.resolve(5, "y") == Resolved(Resolution.DEDUCTED, 2)
    assert await client.set_shards(5, 12) == 9
    assert (await client.get_product(5)).pinned_shards == 12
    assert await client.is_serving()


async def test_a_change_of_shards_that_has_begun_is_called_for_again(client, inventory):
    inventory.other_faults.extend(
        [Fault(reason="RESHARD_PENDING"), Fault(reason="LAYOUT_CHANGING")]
    )
    assert await client.set_shards(1, 12) == 9


async def test_a_change_of_shards_without_end_is_not_said_to_be_nothing(client, inventory):
    inventory.other_faults.extend([Fault(reason="RESHARD_PENDING", retry_s=60)])
    with pytest.raises(OutcomeUnknown) as caught:
        await client.set_shards(1, 12, deadline_s=1)
    assert caught.value.reason == "RESHARD_PENDING"


async def test_a_request_is_resolved_again_after_a_lost_reply(client, inventory):
    inventory.other_faults.append(Fault(grpc.StatusCode.DEADLINE_EXCEEDED))
    assert (await client.resolve(1, "x")).resolution is Resolution.NEVER


async def test_a_lost_reply_restocks_once(client, inventory):
    inventory.other_faults.append(Fault(grpc.StatusCode.DEADLINE_EXCEEDED))
    await client.restock(1, 5)
    assert inventory.products[1].total == 1_000_005


async def test_a_lost_reply_releases_the_buffer_once(client, inventory):
    inventory.other_faults.append(Fault(grpc.StatusCode.DEADLINE_EXCEEDED))
    released = await client.release_buffer(1, 5, reason="low", actor="me")
    assert (released.quantity, released.replayed) == (5, True)
    assert inventory.products[1].available == 1_000_005


async def test_a_removal_of_more_than_there_is_is_refused(client):
    with pytest.raises(NotEnoughStock):
        await client.remove(1, 2_000_000)


async def test_a_read_without_answer_leaves_no_doubt(target, inventory):
    inventory.other_faults.extend([Fault()] * 3)
    async with AsyncInventoryClient(target, policy=BRIEF) as client:
        with pytest.raises(Unavailable) as caught:
            await client.get_stock(1)
    assert not isinstance(caught.value, OutcomeUnknown)
    assert isinstance(caught.value, InventoryError)
