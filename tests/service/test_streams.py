"""StreamDeduct: order, bounds, ends."""

import asyncio
from typing import Any

import grpc
import pytest
from grpc import StatusCode
from prometheus_client import CollectorRegistry

from inventory.v1.inventory_pb2 import (
    OUTCOME_DEDUCTED,
    DeductRequest,
    StreamDeductRequest,
)
from server.metrics import Metrics
from server.streams import Ending, Lives, sent
from tests.service.conftest import (
    CALL_S,
    PRODUCT,
    Limits,
    Service,
    details_of,
    failure_of,
    until,
)


def batch(name: str, items: int = 1) -> StreamDeductRequest:
    return StreamDeductRequest(
        items=[
            DeductRequest(request_id=f"{name}-{i}", product_id=PRODUCT, quantity=1)
            for i in range(items)
        ]
    )


async def ending_of(call: Any) -> str | None:
    return dict(await call.trailing_metadata()).get("inventory-stream-end")


async def test_responses_come_in_the_order_of_the_requests(service: Service) -> None:
    call = service.inventory.StreamDeduct(batch(f"b{n}", items=n) for n in range(1, 40))
    sizes = [len(response.results) async for response in call]
    assert sizes == list(range(1, 40))
    assert await call.code() is StatusCode.OK
    assert await ending_of(call) is None


async def test_a_stream_of_nothing_ends_well(service: Service) -> None:
    call = service.inventory.StreamDeduct(iter(()), timeout=CALL_S)
    assert [response async for response in call] == []


async def test_batches_overlap_up_to_a_bound(service: Service) -> None:
    service.stock.open_gate.clear()
    call = service.inventory.StreamDeduct(batch(f"b{n}") for n in range(30))
    await until(lambda: len(service.stock.batches) == 8)
    for _ in range(20):
        await _round_trip(service)
    assert len(service.stock.batches) == 8
    service.stock.open_gate.set()
    assert len([response async for response in call]) == 30


async def _round_trip(service: Service) -> None:
    await failure_of(service.inventory.Deduct(DeductRequest(), timeout=CALL_S))


async def test_a_bad_batch_ends_the_stream_after_what_came_before(service: Service) -> None:
    service.stock.open_gate.clear()
    call = service.inventory.StreamDeduct(iter([batch("a"), batch("b"), batch("c", items=0)]))
    await until(lambda: len(service.stock.batches) == 2)
    service.stock.open_gate.set()
    received: list[Any] = []
    error = await failure_of(_collect(call, received))
    assert len(received) == 2
    assert error.code() is StatusCode.INVALID_ARGUMENT
    assert details_of(error).fields == [("items", "INVALID_ITEMS")]


async def _collect(call: Any, into: list[Any]) -> None:
    async for response in call:
        into.append(response)  # noqa: PERF401 - what came before an error stays


async def test_bytes_that_are_no_message_end_the_stream(service: Service) -> None:
    raw: Any = service.channel.stream_stream("/inventory.v1.InventoryService/StreamDeduct")
    error = await failure_of(_collect(raw(iter([b"\xff\xff"]), timeout=CALL_S), []))
    assert error.code() is StatusCode.INVALID_ARGUMENT
    assert details_of(error).info.reason == "MALFORMED"


async def test_an_exception_ends_the_stream_without_its_text(service: Service) -> None:
    service.stock.failure = RuntimeError("hunter2")
    call = service.inventory.StreamDeduct(iter([batch("a")]), timeout=CALL_S)
    error = await failure_of(_collect(call, []))
    assert (error.code(), error.details()) == (StatusCode.INTERNAL, "internal error")


async def test_an_inner_cancellation_ends_the_stream_promptly(service: Service) -> None:
    service.stock.failure = asyncio.CancelledError()
    call = service.inventory.StreamDeduct(iter([batch("a")]), timeout=CALL_S)
    error = await failure_of(_collect(call, []))
    assert error.code() is StatusCode.UNAVAILABLE


async def test_draining_ends_streams_with_a_hint_and_all_answers(service: Service) -> None:
    call = service.inventory.StreamDeduct(timeout=CALL_S)
    service.stock.open_gate.clear()
    await call.write(batch("a"))
    await until(lambda: len(service.stock.batches) == 1)
    service.lives.drain()
    service.stock.open_gate.set()
    response = await call.read()
    assert response.results[0].outcome == OUTCOME_DEDUCTED
    assert await call.read() is grpc.aio.EOF
    assert await call.code() is StatusCode.OK
    assert await ending_of(call) == "draining"
    late = service.inventory.StreamDeduct(timeout=CALL_S)
    assert await late.read() is grpc.aio.EOF
    assert await ending_of(late) == "draining"


async def test_draining_passes_by_a_stream_whose_time_is_over() -> None:
    lives = Lives(Metrics(CollectorRegistry()), age_s_max=0.001, streams_max=1)
    async with lives.bounded() as life:
        try:
            await asyncio.sleep(CALL_S)
        finally:
            lives.drain()
    assert life.ending is Ending.AGE


async def test_a_caller_who_leaves_cuts_no_work(service: Service) -> None:
    service.stock.open_gate.clear()
    call = service.inventory.StreamDeduct()
    await call.write(batch("a"))
    await until(lambda: len(service.stock.batches) == 1)
    call.cancel()
    await until(lambda: service.sample("inventory_streams") == 0)
    service.stock.open_gate.set()
    await until(lambda: (PRODUCT, "a-0") in service.stock.taken)
    assert service.log.entries == []


class TestAge:
    @pytest.fixture
    def limits(self) -> Limits:
        return Limits(age_s=0.2)

    async def test_an_old_stream_ends_with_a_hint_and_all_answers(self, service: Service) -> None:
        call = service.inventory.StreamDeduct(timeout=CALL_S)
        await call.write(batch("a"))
        assert len((await call.read()).results) == 1
        assert await call.read() is grpc.aio.EOF
        assert await call.code() is StatusCode.OK
        assert await ending_of(call) == "age"


class TestNumber:
    @pytest.fixture
    def limits(self) -> Limits:
        return Limits(streams=1)

    async def test_one_stream_too_many_is_refused(self, service: Service) -> None:
        first = service.inventory.StreamDeduct(timeout=CALL_S)
        await until(lambda: service.sample("inventory_streams") == 1)
        second = service.inventory.StreamDeduct(timeout=CALL_S)
        error = await failure_of(second.read())
        assert error.code() is StatusCode.RESOURCE_EXHAUSTED
        await first.done_writing()
        assert await first.read() is grpc.aio.EOF


async def test_a_message_under_way_is_written_whole_though_the_stream_s_time_is_over() -> None:
    lives = Lives(Metrics(CollectorRegistry()), age_s_max=60, streams_max=1)
    begun, may_end = asyncio.Event(), asyncio.Event()
    written = []

    async def write() -> None:
        begun.set()
        await may_end.wait()
        written.append("message")

    async def stream() -> Ending | None:
        async with lives.bounded() as life:
            await sent(write())
        return life.ending

    running = asyncio.create_task(stream())
    await begun.wait()
    lives.drain()
    for _ in range(10):
        await asyncio.sleep(0)
    assert not running.done()
    may_end.set()
    assert await running is Ending.DRAINING
    assert written == ["message"]
