"""WatchEvents as a caller sees it."""

import asyncio
from typing import Any

import grpc
import pytest
from grpc import StatusCode

from inventory.v1 import inventory_pb2
from inventory.v1.inventory_pb2 import WatchEventsRequest
from ledger.service_events import ServiceEventKind
from server import events
from tests.service.conftest import CALL_S, Limits, Service, details_of, failure_of, until


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "POLL_S", 0.01)


def watch(service: Service, **fields: Any) -> Any:
    return service.inventory.WatchEvents(WatchEventsRequest(**fields), timeout=CALL_S)


def expire(service: Service, *order_ids: int) -> None:
    for order_id in order_ids:
        service.feed.happen(ServiceEventKind.ORDER_EXPIRED, order_id=order_id, product_id=1)


async def read(call: Any, count: int) -> list[Any]:
    """So many events; cursors alone are passed over."""
    found: list[Any] = []
    while len(found) < count:
        message = await call.read()
        if message.kind:
            found.append(message)
    return found


async def end_of(call: Any) -> grpc.aio.AioRpcError:
    """The error that a watch ends with, after whatever it told before."""

    async def to_the_end() -> None:
        while await call.read() is not grpc.aio.EOF:
            pass

    return await failure_of(to_the_end())


async def test_a_watch_begins_with_the_present_cursor_and_tells_what_follows(
    service: Service,
) -> None:
    expire(service, 5, 6)
    call = watch(service)
    begin = await call.read()
    expire(service, 7)
    (event,) = await read(call, 1)
    call.cancel()
    assert (begin.cursor, begin.kind) == ("2", inventory_pb2.EVENT_KIND_UNSPECIFIED)
    assert (event.cursor, event.order_id, event.product_id, event.at_ms) == ("3", 7, 1, 7)
    assert event.kind == inventory_pb2.EVENT_KIND_ORDER_EXPIRED


async def test_a_watch_goes_on_after_its_cursor(service: Service) -> None:
    expire(service, 5, 6, 7)
    for cursor, told in (("0", [5, 6, 7]), ("1", [6, 7])):
        call = watch(service, cursor=cursor)
        assert [event.order_id for event in await read(call, len(told))] == told
        call.cancel()


async def test_a_watch_tells_more_than_a_page(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "PAGE", 3)
    expire(service, *range(1, 11))
    call = watch(service, cursor="0")
    assert [event.order_id for event in await read(call, 10)] == list(range(1, 11))
    call.cancel()


async def test_only_what_is_wanted_is_told_and_the_cursor_passes_the_rest(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "HEARTBEAT_S", 0.02)
    expire(service, 5)
    service.feed.happen(ServiceEventKind.SOLD_OUT, product_id=1)
    service.feed.happen(ServiceEventKind.SOLD_OUT, product_id=2)
    service.feed.happen(ServiceEventKind.LOW_STOCK, product_id=2, available=3)
    wanted = [inventory_pb2.EVENT_KIND_SOLD_OUT]
    call = watch(service, cursor="0", kinds=wanted, product_ids=[1])
    (event,) = await read(call, 1)
    later = await call.read()
    call.cancel()
    assert (event.cursor, event.product_id) == ("2", 1)
    assert (later.cursor, later.kind) == ("4", inventory_pb2.EVENT_KIND_UNSPECIFIED)


async def test_a_watch_of_rare_events_goes_through_bounded_ranges_and_arrives(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "IDS_AT_ONCE", 10)
    monkeypatch.setattr(events, "HEARTBEAT_S", 0.0)
    service.feed.ids_max = 10
    expire(service, *range(1, 47))
    service.feed.happen(ServiceEventKind.SOLD_OUT, product_id=2)
    expire(service, *range(48, 101))
    call = watch(service, cursor="1", product_ids=[2])
    told = [await call.read()]
    while told[-1].cursor != "100":
        told.append(await call.read())
    service.feed.happen(ServiceEventKind.SOLD_OUT, product_id=2)
    (later,) = await read(call, 1)
    call.cancel()
    assert [message.cursor for message in told if message.kind] == ["47"]
    passed = [int(message.cursor) for message in told]
    assert passed == sorted(passed)
    assert {11, 21, 31, 41, 51} <= set(passed)
    assert later.cursor == "101"


async def test_a_quiet_watch_is_told_its_cursor_now_and_then(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "HEARTBEAT_S", 0.02)
    call = watch(service)
    messages = [await call.read() for _ in range(3)]
    call.cancel()
    assert [message.cursor for message in messages] == ["0"] * 3


async def test_watches_of_one_process_ask_the_ledger_together(service: Service) -> None:
    calls = [watch(service) for _ in range(20)]
    for call in calls:
        await call.read()
    asked, begin_s = service.feed.asked, asyncio.get_running_loop().time()
    for order_id in range(1, 21):
        expire(service, order_id)
        await asyncio.sleep(events.POLL_S)
    for call in calls:
        assert [event.order_id for event in await read(call, 20)] == list(range(1, 21))
        call.cancel()
    looks = (asyncio.get_running_loop().time() - begin_s) / events.POLL_S
    assert service.feed.asked - asked <= looks + 1


@pytest.mark.parametrize("tail", [1, 3, 100])
async def test_nothing_is_missed_or_told_twice_whatever_is_kept_in_memory(
    service: Service, monkeypatch: pytest.MonkeyPatch, tail: int
) -> None:
    monkeypatch.setattr(events, "TAIL", tail)
    monkeypatch.setattr(events, "PAGE", 2)
    call = watch(service)
    await call.read()
    for first in range(1, 41, 8):
        expire(service, *range(first, first + 8))
        late = watch(service, cursor=str(first))
        told = [event.order_id for event in await read(late, 7)]
        late.cancel()
        assert told == list(range(first + 1, first + 8))
    assert [event.order_id for event in await read(call, 40)] == list(range(1, 41))
    call.cancel()


async def test_a_watch_after_a_while_without_any_begins_at_the_end(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "STALE_S", 0.02)
    first = watch(service)
    await first.read()
    first.cancel()
    await asyncio.sleep(0.1)
    expire(service, 5, 6)
    second = watch(service)
    begin = await second.read()
    expire(service, 7)
    assert begin.cursor == "2"
    assert [event.order_id for event in await read(second, 1)] == [7]
    second.cancel()


@pytest.mark.parametrize("cursor", ["", "0"])
async def test_a_watch_waits_for_a_ledger_that_is_away(service: Service, cursor: str) -> None:
    service.feed.away = True
    call = watch(service, cursor=cursor)
    await until(lambda: service.feed.asked > 2)
    service.feed.away = False
    assert (await call.read()).cursor == "0"
    service.feed.away = True
    asked = service.feed.asked
    expire(service, 5)
    await until(lambda: service.feed.asked > asked + 2)
    service.feed.away = False
    assert [event.order_id for event in await read(call, 1)] == [5]
    call.cancel()


@pytest.mark.parametrize(("cursor", "kept"), [("1", True), ("3", False), ("4", False)])
async def test_a_cursor_whose_next_events_are_gone_is_too_old(
    service: Service, cursor: str, *, kept: bool
) -> None:
    expire(service, *range(1, 7))
    service.feed.prune(5 if kept else 6)
    error = await end_of(watch(service, cursor=cursor))
    assert error.code() is StatusCode.OUT_OF_RANGE
    assert details_of(error).info.reason == "CURSOR_TOO_OLD"


@pytest.mark.parametrize("cursor", ["0", "4", "5"])
async def test_what_is_kept_is_told_from_the_oldest_on(
    service: Service, monkeypatch: pytest.MonkeyPatch, cursor: str
) -> None:
    monkeypatch.setattr(events, "IDS_AT_ONCE", 2)
    expire(service, *range(1, 7))
    service.feed.prune(4)
    call = watch(service, cursor=cursor)
    told = [5, 6] if cursor != "5" else [6]
    assert [event.order_id for event in await read(call, len(told))] == told
    call.cancel()


@pytest.mark.parametrize("cursor", ["0", "6"])
async def test_a_cursor_at_the_end_misses_nothing_though_nothing_is_kept(
    service: Service, monkeypatch: pytest.MonkeyPatch, cursor: str
) -> None:
    monkeypatch.setattr(events, "IDS_AT_ONCE", 2)
    expire(service, *range(1, 7))
    service.feed.prune(6)
    call = watch(service, cursor=cursor)
    await call.read()
    expire(service, 7)
    assert [event.order_id for event in await read(call, 1)] == [7]
    call.cancel()


async def test_a_watch_that_falls_behind_what_is_kept_is_told(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    expire(service, 1, 2)
    call = watch(service, cursor="1")
    await read(call, 1)
    service.feed.away = True
    monkeypatch.setattr(events, "STALE_S", 0.02)
    await asyncio.sleep(0.1)
    expire(service, *range(3, 9))
    service.feed.prune(6)
    service.feed.away = False
    error = await end_of(call)
    assert (error.code(), details_of(error).info.reason) == (
        StatusCode.OUT_OF_RANGE,
        "CURSOR_TOO_OLD",
    )


async def test_a_cursor_that_no_event_has_reached_is_ahead(service: Service) -> None:
    expire(service, 1, 2)
    error = await failure_of(watch(service, cursor="3").read())
    assert error.code() is StatusCode.OUT_OF_RANGE
    assert details_of(error).info.reason == "CURSOR_AHEAD"


async def test_a_cursor_that_another_process_has_given_out_is_not_ahead(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "POLL_S", 60)
    first = watch(service)
    await first.read()
    expire(service, 1, 2)
    second = watch(service, cursor="2")
    assert (await second.read()).cursor == "2"
    for call in (first, second):
        call.cancel()


@pytest.mark.parametrize("cursor", ["x", "-1", "1.5", " 1", "²", "9" * 19, "1" * 20])
async def test_a_malformed_cursor_is_invalid(service: Service, cursor: str) -> None:
    error = await failure_of(watch(service, cursor=cursor).read())
    assert error.code() is StatusCode.INVALID_ARGUMENT
    assert details_of(error).fields == [("cursor", "INVALID_CURSOR")]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"kinds": [0]}, "INVALID_KINDS"),
        ({"kinds": [99]}, "INVALID_KINDS"),
        ({"product_ids": [0]}, "INVALID_PRODUCT_IDS"),
        ({"product_ids": range(1, 102)}, "INVALID_PRODUCT_IDS"),
    ],
)
async def test_a_watch_out_of_bounds_is_invalid(
    service: Service, fields: dict[str, Any], reason: str
) -> None:
    error = await failure_of(watch(service, **fields).read())
    assert (error.code(), details_of(error).info.reason) == (StatusCode.INVALID_ARGUMENT, reason)


async def test_every_kind_of_the_ledger_is_one_of_the_contract() -> None:
    theirs = set(inventory_pb2.EventKind.values()) - {inventory_pb2.EVENT_KIND_UNSPECIFIED}
    assert set(events.KINDS.values()) == theirs


async def test_draining_ends_a_watch_with_a_hint(service: Service) -> None:
    call = watch(service)
    await call.read()
    service.lives.drain()
    assert await call.read() is grpc.aio.EOF
    assert await call.code() is StatusCode.OK
    assert dict(await call.trailing_metadata())["inventory-stream-end"] == "draining"


class TestAge:
    @pytest.fixture
    def limits(self) -> Limits:
        return Limits(age_s=0.1)

    async def test_a_watch_has_its_time_though_the_ledger_is_away(self, service: Service) -> None:
        service.feed.away = True
        call = watch(service, cursor="")
        assert [message async for message in call] == []
        assert dict(await call.trailing_metadata())["inventory-stream-end"] == "age"
