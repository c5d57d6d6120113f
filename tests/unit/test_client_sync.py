"""The client for threads: against a scripted channel, and against a real server."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import grpc_testing
import pytest

from inventory.client import (
    DeductItem,
    InventoryClient,
    NotExecuted,
    Outcome,
    RetryPolicy,
    Unavailable,
    UnknownProduct,
)
from inventory.v1 import inventory_pb2
from tests.unit.client_service import Fault, Health, Inventory, Product, serving, trailers_of

SERVICE = inventory_pb2.DESCRIPTOR.services_by_name["InventoryService"]
DEDUCT = SERVICE.methods_by_name["Deduct"]
DEDUCTED = inventory_pb2.DeductResponse(outcome=inventory_pb2.OUTCOME_DEDUCTED)
QUICK = RetryPolicy(deadline_s=30.0, try_timeout_s=20.0, pause_s=0.001, tries_max=3)
HASTY = RetryPolicy(deadline_s=30.0, try_timeout_s=0.2, pause_s=0.001, tries_max=3)


class Script:
    """A channel whose answers the test gives, and a caller in a thread of its own."""

    def __init__(self) -> None:
        self.pauses_s: list[float] = []
        self.channel = grpc_testing.channel([SERVICE], grpc_testing.strict_real_time())
        self.client = InventoryClient(
            "", channels=[self.channel], policy=QUICK, sleep=self.pauses_s.append
        )

    def answer(self, response: inventory_pb2.DeductResponse) -> inventory_pb2.DeductRequest:
        return self._end(response, Fault(grpc.StatusCode.OK))

    def fail(self, fault: Fault) -> inventory_pb2.DeductRequest:
        return self._end(None, fault)

    def _end(self, response, fault):
        _, request, rpc = self.channel.take_unary_unary(DEDUCT)
        trailers = () if fault.reason is None else trailers_of(fault)
        rpc.terminate(response, trailers, fault.code, "as asked")
        return request


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def caller() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as threads:
        yield threads


@pytest.fixture
def inventory() -> Inventory:
    own = Inventory()
    own.products[1] = Product(total=1_000, available=1_000)
    return own


@pytest.fixture
def target(inventory: Inventory) -> Iterator[str]:
    with serving(inventory, Health()) as address:
        yield address


def test_retries_carry_the_same_id_and_a_rising_attempt(script, caller):
    calling = caller.submit(script.client.deduct, 1, 2)
    requests = [script.fail(Fault()), script.fail(Fault()), script.answer(DEDUCTED)]
    assert calling.result().accepted
    assert {request.request_id for request in requests} == {calling.result().request_id}
    assert [request.attempt for request in requests] == [1, 2, 3]


def test_the_service_is_given_the_time_it_asked_for(script, caller):
    calling = caller.submit(script.client.deduct, 1, 2)
    script.fail(Fault(reason="LEDGER_BEHIND", retry_s=4))
    script.answer(DEDUCTED)
    assert calling.result().accepted
    assert script.pauses_s[0] >= 4


def test_what_was_not_carried_out_is_raised_after_the_last_try(script, caller):
    calling = caller.submit(script.client.deduct, 1, 2)
    for _ in range(QUICK.tries_max):
        script.fail(Fault(reason="NOT_EXECUTED"))
    with pytest.raises(NotExecuted):
        calling.result()


def test_a_refusal_is_raised_at_once(script, caller):
    calling = caller.submit(script.client.deduct, 1, 2)
    script.fail(Fault(grpc.StatusCode.NOT_FOUND, "UNKNOWN_PRODUCT"))
    with pytest.raises(UnknownProduct):
        calling.result()
    assert script.pauses_s == []


def test_a_lost_reply_takes_the_units_once(target, inventory):
    inventory.faults.append(Fault(acts_first=True))
    with InventoryClient(target, policy=QUICK) as client:
        assert client.deduct(1, 2).replayed
    assert inventory.products[1].sold == 2


def test_threads_share_one_client(target, inventory, caller):
    with InventoryClient(target, policy=QUICK) as client:
        deductions = list(caller.map(lambda _: client.deduct(1, 1), range(200)))
    assert len({each.request_id for each in deductions}) == 200
    assert inventory.products[1].sold == 200


def test_only_items_without_a_lasting_answer_travel_again(target, inventory):
    late = inventory_pb2.DeductResponse(outcome=inventory_pb2.OUTCOME_OVERLOADED)
    inventory.item_answers["late"].append(late)
    with InventoryClient(target, policy=QUICK) as client:
        deductions = client.batch_deduct([DeductItem(1, 1, "good"), DeductItem(1, 1, "late")])
    assert [each.outcome for each in deductions] == [Outcome.DEDUCTED] * 2
    assert [len(call) for call in inventory.calls] == [2, 1]


def test_a_stream_is_used_for_batch_after_batch(target, inventory):
    with InventoryClient(target, policy=QUICK) as client, client.stream() as stream:
        answered = [stream.deduct([DeductItem(1, 1, f"{n}")]) for n in range(5)]
    assert [each.request_id for (each,) in answered] == ["0", "1", "2", "3", "4"]
    assert len(set(inventory.peers)) == 1


@pytest.mark.parametrize("hangs", [False, True])
def test_a_broken_stream_is_replaced_and_takes_nothing_twice(target, inventory, hangs):
    inventory.faults.append(Fault(acts_first=True, hangs=hangs))
    with InventoryClient(target, policy=HASTY) as client, client.stream() as stream:
        (deduction,) = stream.deduct([DeductItem(1, 2)])
    assert deduction.replayed
    assert inventory.products[1].sold == 2


def test_a_closed_stream_leaves_no_thread_behind(target):
    with InventoryClient(target, policy=QUICK) as client:
        with client.stream() as stream:
            stream.deduct([DeductItem(1, 1)])
        assert "inventory-stream" not in {thread.name for thread in threading.enumerate()}


def test_a_watch_outlives_its_streams(target, inventory):
    with InventoryClient(target, policy=QUICK) as client:
        watch = client.watch_stock(1)
        counts = [next(watch) for _ in range(3)]
        watch.close()
    assert [each.total for each in counts] == [1_000] * 3
    assert inventory.watches == 3


def test_a_service_that_cannot_be_reached_is_never_ready():
    with InventoryClient("127.0.0.1:1") as client, pytest.raises(Unavailable):
        client.wait_ready(0.05)
