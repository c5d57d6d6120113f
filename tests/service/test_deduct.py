"""Deduct and BatchDeduct as a caller sees them."""

import asyncio
import gc
import json
from typing import Any

import grpc
import pytest
from grpc import StatusCode
from grpc.aio import AbortError

from inventory.v1.inventory_pb2 import (
    OUTCOME_DEDUCTED,
    OUTCOME_INSUFFICIENT_STOCK,
    OUTCOME_INVALID,
    OUTCOME_OVERLOADED,
    OUTCOME_UNAVAILABLE,
    BatchDeductRequest,
    DeductRequest,
    StreamDeductRequest,
)
from inventory.v1.inventory_pb2 import (
    Outcome as WireOutcome,
)
from inventory.v1.inventory_pb2_grpc import InventoryServiceStub
from server.errors import CODES, RefusedError
from sharding.errors import StockUnavailableError
from sharding.outcomes import Answer, Outcome, Reason
from tests.service.conftest import (
    CALL_S,
    PRODUCT,
    Limits,
    Service,
    details_of,
    failure_of,
    until,
)
from tests.service.fakes import unavailable

DEDUCT = "inventory.v1.InventoryService/Deduct"
OF_DEDUCTIONS = list(Outcome)[: list(Outcome).index(Outcome.HELD)]
BAD_IDS = ["", " ", "a b", "a" * 10_000, "a" * 65, "line\nbreak", "nul\0", "é", "tab\t", "\x7f"]
BAD_QUANTITIES = [0, -1, -3, -(2**31), -(2**63), 1_000_001, 2**63 - 1]


def request(name: str = "r1", **fields: Any) -> DeductRequest:
    return DeductRequest(**{"request_id": name, "product_id": PRODUCT, "quantity": 1, **fields})


async def deduct(service: Service, *items: DeductRequest, **options: Any) -> Any:
    if len(items) == 1:
        return await service.inventory.Deduct(items[0], timeout=CALL_S, **options)
    return await service.inventory.BatchDeduct(
        BatchDeductRequest(items=items), timeout=CALL_S, **options
    )


def calls(service: Service, code: str) -> float:
    """Deduct calls that ended with a code."""
    return service.sample("inventory_rpc_requests_total", method=DEDUCT, code=code)


async def test_units_are_taken_once_and_the_answer_comes_again(service: Service) -> None:
    first = await deduct(service, request(quantity=3))
    again = await deduct(service, request(quantity=3))
    assert (first.outcome, first.replayed, first.shard_available) == (
        OUTCOME_DEDUCTED,
        False,
        999_997,
    )
    assert (again.outcome, again.replayed) == (OUTCOME_DEDUCTED, True)


async def test_shortage_is_a_value(service: Service) -> None:
    service.stock.available[PRODUCT] = 2
    answer = await deduct(service, request(quantity=3))
    assert (answer.outcome, answer.reason) == (OUTCOME_INSUFFICIENT_STOCK, "")


@pytest.mark.parametrize(
    "outcome", sorted(set(OF_DEDUCTIONS) - {Outcome.DEDUCTED, Outcome.INSUFFICIENT_STOCK})
)
async def test_an_outcome_is_a_status_in_a_call_and_a_value_in_a_batch(
    service: Service, outcome: Outcome
) -> None:
    service.stock.answers = [Answer(outcome)]
    error = await failure_of(deduct(service, request()))
    batch = await service.inventory.BatchDeduct(BatchDeductRequest(items=[request()]))
    details = details_of(error)
    assert error.code() is CODES[outcome]
    assert details.info.reason == outcome.name
    retryable = error.code() in (StatusCode.UNAVAILABLE, StatusCode.RESOURCE_EXHAUSTED)
    assert (details.retry is not None) == retryable
    assert WireOutcome.Name(batch.results[0].outcome) == f"OUTCOME_{outcome.name}"


async def test_a_reason_reaches_the_caller_either_way(service: Service) -> None:
    service.stock.answers = [unavailable(Reason.PARTITION_FENCED)]
    error = await failure_of(deduct(service, request()))
    batch = await service.inventory.BatchDeduct(BatchDeductRequest(items=[request()]))
    assert details_of(error).info.reason == "PARTITION_FENCED"
    assert batch.results[0].reason == "PARTITION_FENCED"


async def test_a_ledger_that_is_behind_is_a_reason_of_its_own_and_takes_longer(
    service: Service,
) -> None:
    service.stock.answers = [unavailable(Reason.LEDGER_BEHIND)]
    error = await failure_of(deduct(service, request()))
    batch = await service.inventory.BatchDeduct(BatchDeductRequest(items=[request()]))
    details = details_of(error)
    assert (error.code(), details.info.reason) == (StatusCode.UNAVAILABLE, "LEDGER_BEHIND")
    assert details.retry is not None
    assert details.retry.retry_delay.ToMilliseconds() == 1_000
    assert batch.results[0].reason == "LEDGER_BEHIND"
    counted = service.sample("inventory_unavailable_total", reason="LEDGER_BEHIND")
    assert counted == 2


async def test_what_may_have_happened_has_one_name(service: Service) -> None:
    """The contract tells unknown outcomes from failures without effect by this reason alone."""
    service.stock.answers = [unavailable(Reason.NOT_REPLICATED)]
    error = await failure_of(deduct(service, request()))
    batch = await service.inventory.BatchDeduct(BatchDeductRequest(items=[request()]))
    assert details_of(error).info.reason == "OUTCOME_UNKNOWN"
    assert batch.results[0].outcome == OUTCOME_UNAVAILABLE
    assert batch.results[0].reason == "OUTCOME_UNKNOWN"


@pytest.mark.parametrize("name", BAD_IDS, ids=lambda name: repr(name[:12]))
async def test_a_bad_request_id_is_never_passed_on(service: Service, name: str) -> None:
    error = await failure_of(deduct(service, request(name)))
    batch = await deduct(service, request(name), request("good"))
    assert error.code() is StatusCode.INVALID_ARGUMENT
    assert details_of(error).fields == [("request_id", "INVALID_REQUEST_ID")]
    assert [result.outcome for result in batch.results] == [OUTCOME_INVALID, OUTCOME_DEDUCTED]
    assert batch.results[0].reason == "INVALID_REQUEST_ID"
    assert [wanted.request_id for batch in service.stock.batches for wanted in batch] == ["good"]


@pytest.mark.parametrize("quantity", BAD_QUANTITIES)
async def test_a_bad_quantity_changes_nothing(service: Service, quantity: int) -> None:
    error = await failure_of(deduct(service, request(quantity=quantity)))
    batch = await deduct(service, request(quantity=quantity), request("b", quantity=quantity))
    assert error.code() is StatusCode.INVALID_ARGUMENT
    assert details_of(error).info.reason == "INVALID_QUANTITY"
    assert {(r.outcome, r.reason) for r in batch.results} == {(OUTCOME_INVALID, "INVALID_QUANTITY")}
    assert service.stock.batches == []


async def test_all_wrong_fields_are_named_at_once(service: Service) -> None:
    bad = DeductRequest(request_id="", order_id=-1, user_id=-1, attempt=-1)
    error = await failure_of(deduct(service, bad))
    assert [field for field, _ in details_of(error).fields] == [
        "request_id",
        "product_id",
        "quantity",
        "order_id",
        "user_id",
        "attempt",
    ]


async def test_results_stand_in_the_order_of_the_items(service: Service) -> None:
    service.stock.available = {1: 100, 2: 100}
    items = [
        request("a", product_id=2, quantity=1),
        request("", product_id=1),
        request("b", product_id=1, quantity=101),
        request("c", product_id=9),
        request("a", product_id=2, quantity=2),
        request("d", product_id=1, quantity=0),
        request("e", product_id=1, quantity=100),
    ]
    answer = await deduct(service, *items)
    assert [WireOutcome.Name(result.outcome)[8:] for result in answer.results] == [
        "DEDUCTED",
        "INVALID",
        "INSUFFICIENT_STOCK",
        "UNKNOWN_PRODUCT",
        "REQUEST_MISMATCH",
        "INVALID",
        "DEDUCTED",
    ]


@pytest.mark.parametrize("items", [0, 2_001])
async def test_a_batch_of_a_wrong_size_is_refused_whole(service: Service, items: int) -> None:
    batch = BatchDeductRequest(items=[request(f"r{i}") for i in range(items)])
    error = await failure_of(service.inventory.BatchDeduct(batch, timeout=CALL_S))
    assert error.code() is StatusCode.INVALID_ARGUMENT
    assert details_of(error).fields == [("items", "INVALID_ITEMS")]
    assert service.stock.batches == []


async def test_a_full_batch_passes(service: Service) -> None:
    answer = await deduct(service, *(request(f"r{i}") for i in range(2_000)))
    assert {result.outcome for result in answer.results} == {OUTCOME_DEDUCTED}
    assert len(answer.results) == 2_000


async def test_bytes_that_are_no_message_are_the_callers_mistake(service: Service) -> None:
    raw: Any = service.channel.unary_unary("/inventory.v1.InventoryService/Deduct")
    error = await failure_of(raw(b"\xff\xff\xff", timeout=CALL_S))
    assert error.code() is StatusCode.INVALID_ARGUMENT
    assert details_of(error).info.reason == "MALFORMED"


@pytest.mark.parametrize(("count", "attempt"), [("1", 1), ("2", 2), ("7", 2)])
async def test_a_proxys_retry_is_no_first_attempt(
    service: Service, count: str, attempt: int
) -> None:
    metadata = (("x-envoy-attempt-count", count),)
    await deduct(service, request("a", attempt=1), metadata=metadata)
    await deduct(service, request("b", attempt=1), request("c"), metadata=metadata)
    attempts = [wanted.attempt for batch in service.stock.batches for wanted in batch]
    assert attempts == [attempt, attempt, 0]


async def test_the_librarys_own_retry_is_no_first_attempt(service: Service) -> None:
    policy = {
        "maxAttempts": 3,
        "initialBackoff": "0.01s",
        "maxBackoff": "0.01s",
        "backoffMultiplier": 1,
        "retryableStatusCodes": ["UNAVAILABLE"],
    }
    config = {"methodConfig": [{"name": [{}], "retryPolicy": policy}]}
    service.stock.answers = [unavailable(Reason.CONTENDED)]
    options = [("grpc.service_config", json.dumps(config)), ("grpc.enable_retries", 1)]
    async with grpc.aio.insecure_channel(service.address, options=options) as channel:
        stub: Any = InventoryServiceStub(channel)
        await failure_of(stub.Deduct(request(attempt=1), timeout=CALL_S))
    attempts = [wanted.attempt for batch in service.stock.batches for wanted in batch]
    assert attempts[:2] == [1, 2]


async def test_an_oversized_request_is_refused(service: Service) -> None:
    big = request("x" * 5 * 1024 * 1024)
    error = await failure_of(deduct(service, big))
    assert error.code() is StatusCode.RESOURCE_EXHAUSTED
    assert (await deduct(service, request())).outcome == OUTCOME_DEDUCTED


async def test_a_deadline_cuts_the_wait_and_not_the_work(service: Service) -> None:
    service.stock.open_gate.clear()
    call = service.inventory.Deduct(request(), timeout=1)
    await until(lambda: bool(service.stock.batches))
    error = await failure_of(call)
    service.stock.open_gate.set()
    await until(lambda: bool(service.stock.taken))
    again = await deduct(service, request())
    # Our own word, and not gRPC's, which says nothing of the request.
    assert (error.code(), details_of(error).info.reason) == (
        StatusCode.UNAVAILABLE,
        "OUTCOME_UNKNOWN",
    )
    await until(lambda: calls(service, "UNAVAILABLE") == 1)
    assert (again.outcome, again.replayed) == (OUTCOME_DEDUCTED, True)


async def test_a_caller_who_left_is_counted_and_takes_no_place(service: Service) -> None:
    service.stock.open_gate.clear()
    call = service.inventory.Deduct(request())
    await until(lambda: bool(service.stock.batches))
    call.cancel()
    await until(lambda: calls(service, "CANCELLED") == 1)
    assert service.sample("inventory_rpc_in_flight", method=DEDUCT) == 0
    assert service.sample("inventory_queued_items") == 1
    service.stock.open_gate.set()
    await until(lambda: service.sample("inventory_queued_items") == 0)
    assert service.sample("inventory_deductions_total", outcome="deducted") == 1
    assert service.log.entries == []


async def test_an_inner_cancellation_ends_the_call_promptly(service: Service) -> None:
    service.stock.failure = asyncio.CancelledError()
    error = await failure_of(deduct(service, request()))
    assert error.code() is StatusCode.UNAVAILABLE
    assert details_of(error).info.reason == "OUTCOME_UNKNOWN"
    await until(lambda: calls(service, "UNAVAILABLE") == 1)


async def test_nothing_internal_reaches_the_caller(service: Service) -> None:
    service.stock.failure = RuntimeError("password=hunter2 at 10.0.0.7")
    error = await failure_of(deduct(service, request()))
    trailing = repr(list(error.trailing_metadata()))
    assert (error.code(), error.details()) == (StatusCode.INTERNAL, "internal error")
    assert "hunter2" not in trailing
    assert "RuntimeError" not in trailing
    (entry,) = service.log.entries
    assert (entry["event"], entry["exc_info"]) == ("call_failed", service.stock.failure)


async def test_the_address_of_a_node_stays_inside(service: Service) -> None:
    service.stock.failure = StockUnavailableError(Reason.NOT_EXECUTED, "10.0.0.7:6379 is away")
    error = await failure_of(deduct(service, request()))
    assert details_of(error).info.reason == "NOT_EXECUTED"
    assert "10.0.0.7" not in repr((error.details(), list(error.trailing_metadata())))


class TestTooMuchWork:
    @pytest.fixture
    def limits(self) -> Limits:
        return Limits(items=2)

    async def test_it_is_refused_whole_and_later_taken(self, service: Service) -> None:
        service.stock.open_gate.clear()
        first = asyncio.ensure_future(deduct(service, request("a"), request("b")))
        await until(lambda: len(service.stock.batches) == 1)
        error = await failure_of(deduct(service, request("c"), request("d")))
        service.stock.open_gate.set()
        await first
        assert error.code() is StatusCode.RESOURCE_EXHAUSTED
        assert details_of(error).info.reason == "QUEUE_FULL"
        assert len((await deduct(service, request("c"), request("d"))).results) == 2


async def test_nothing_hangs_on_what_was_refused(service: Service) -> None:
    """A process that refuses most calls would look for garbage most of the time."""

    def with_their_way() -> list[object]:
        found = (each for each in gc.get_objects() if type(each) in (RefusedError, AbortError))
        return [error for error in found if error.__traceback__ or error.__context__]

    gc.collect()
    gc.disable()
    try:
        for name in BAD_IDS:
            await failure_of(deduct(service, request(name)))
        await until(lambda: not with_their_way())
    finally:
        gc.enable()


class TestNothingMoreIsTakenOn:
    @pytest.fixture
    def limits(self) -> Limits:
        return Limits(items=0)

    async def test_it_is_refused_before_it_is_parsed(self, service: Service) -> None:
        for name in ("Deduct", "BatchDeduct"):
            call: Any = service.channel.unary_unary(f"/inventory.v1.InventoryService/{name}")
            error = await failure_of(call(b"\xff", timeout=CALL_S))
            assert details_of(error).info.reason == "QUEUE_FULL"

    async def test_a_stream_goes_on(self, service: Service) -> None:
        call = service.inventory.StreamDeduct(timeout=CALL_S)
        for _ in range(2):
            await call.write(StreamDeductRequest(items=[request("a"), request("b")]))
            results = (await call.read()).results
            assert [(each.outcome, each.reason) for each in results] == [
                (OUTCOME_OVERLOADED, "QUEUE_FULL")
            ] * 2
        await call.done_writing()
        assert await call.code() is StatusCode.OK


class TestTooManyCalls:
    @pytest.fixture
    def limits(self) -> Limits:
        return Limits(calls=2)

    async def test_they_are_refused_by_name_and_later_taken(self, service: Service) -> None:
        service.stock.open_gate.clear()
        first = [asyncio.ensure_future(deduct(service, request(f"r{i}"))) for i in range(2)]
        await until(lambda: len(service.stock.batches) == 2)
        error = await failure_of(deduct(service, request("c")))
        service.stock.open_gate.set()
        await asyncio.gather(*first)
        assert error.code() is StatusCode.RESOURCE_EXHAUSTED
        assert (await deduct(service, request("c"))).outcome == OUTCOME_DEDUCTED


async def test_three_thousand_calls_at_once_are_all_answered(service: Service) -> None:
    service.stock.available[PRODUCT] = 1_000
    answers = await asyncio.gather(*(deduct(service, request(f"r{i}")) for i in range(3_000)))
    outcomes = [answer.outcome for answer in answers]
    assert outcomes.count(OUTCOME_DEDUCTED) == 1_000
    assert outcomes.count(OUTCOME_INSUFFICIENT_STOCK) == 2_000


async def test_what_is_done_is_counted(service: Service) -> None:
    await deduct(service, request("a"), request("a"), request("b", quantity=0))
    name = "inventory_deductions_total"
    assert service.sample(name, outcome="deducted") == 2
    assert service.sample(name, outcome="invalid") == 1
    assert service.sample("inventory_deduction_replays_total") == 1
    assert service.sample("inventory_batch_items_sum") == 3
    method = "inventory.v1.InventoryService/BatchDeduct"
    assert service.sample("inventory_rpc_requests_total", method=method, code="OK") == 1
    assert service.sample("inventory_rpc_duration_seconds_count", method=method) == 1
