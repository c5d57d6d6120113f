"""Every call of both services, while Redis, MySQL or the workers do not answer: it ends in time, by the
service's own word, and what was stalled is used again without a restart."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, NamedTuple, cast

import grpc
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.rpc.error_details_pb2 import ErrorInfo  # type: ignore[import-untyped]
from grpc import StatusCode
from grpc_status import rpc_status

from deploy.local.process import Process
from deploy.local.stack import LocalStack
from deploy.local.waiting import until
from inventory.client import NewProduct
from ledger.engine_claim import Engine
from server.listener import SERVICES
from tests.acceptance.shop import Shop

UNITS = 1_000
DEADLINE_S = 6.0
"""Half a second of it is what the service leaves a machine that is busy with other tests."""
WITHIN_S = 30.0
"""A test that hangs fails."""
QUICK = {"INVENTORY_CALL_S_MAX": "3", "INVENTORY_CLOSE_WAIT_S_MAX": "3"}
OWN_WORDS = frozenset(
    (
        *(StatusCode.OK, StatusCode.UNAVAILABLE, StatusCode.FAILED_PRECONDITION),
        *(StatusCode.NOT_FOUND, StatusCode.ALREADY_EXISTS, StatusCode.RESOURCE_EXHAUSTED),
    )
)
METHODS = [method for service in SERVICES for method in service.methods]
STREAMS = {each.name for each in METHODS if each.client_streaming or each.server_streaming}
DISTURBING = ("Close", "Freeze", "Load", "PutProduct", "Repair", "SetShards", "Unfreeze")
_names = count(1)


class Ending(NamedTuple):
    """How a call ended; no reason: by gRPC's own word, unless it is OK."""

    code: StatusCode
    reason: str


@dataclass(frozen=True, slots=True)
class Counter:
    """Makes calls of any kind about one product."""

    channel: grpc.aio.Channel
    product_id: int
    products: dict[str, int]
    """Calls that take a product off sale, or change it, have one of their own."""

    async def all_endings(self, *, within_s: float | None) -> dict[str, Ending]:
        """Of every call of the contract at once, by its name."""
        async with asyncio.timeout(WITHIN_S):
            endings = await asyncio.gather(*(self.ending(each, within_s) for each in METHODS))
        return dict(zip((each.name for each in METHODS), endings, strict=True))

    async def with_and_without_a_deadline(self) -> list[dict[str, Ending]]:
        """The same, and at the same time as with a deadline without one."""
        return await asyncio.gather(
            *(self.all_endings(within_s=each) for each in (DEADLINE_S, None))
        )

    async def ending_of(self, name: str) -> Ending:
        """Of one of them, whose caller is patient."""
        method = next(each for each in METHODS if each.name == name)
        return await self.ending(method, WITHIN_S)

    async def ending(self, method: MethodDescriptor, within_s: float | None) -> Ending:
        try:
            await self._call(method, within_s)
        except grpc.aio.AioRpcError as error:
            return Ending(error.code(), _reason_of(error))
        return Ending(StatusCode.OK, "")

    async def _call(self, method: MethodDescriptor, within_s: float | None) -> None:
        request = self._filled(method.input_type, self.products.get(method.name, self.product_id))
        path = f"/{method.containing_service.full_name}/{method.name}"
        kinds: Any = {"request_serializer": _bytes, "response_deserializer": _as_it_is}
        if method.client_streaming:
            await self.channel.stream_stream(path, **kinds)(
                iter([request]), timeout=DEADLINE_S
            ).read()
        elif method.server_streaming:
            await self.channel.unary_stream(path, **kinds)(request, timeout=DEADLINE_S).read()
        else:
            await self.channel.unary_unary(path, **kinds)(request, timeout=within_s)

    def _filled(self, kind: Descriptor, product_id: int) -> Message:
        """A sensible message of any type, by the names of its fields."""
        message = GetMessageClass(kind)()
        for field in kind.fields:
            value = self._value(field, product_id)
            if value is None:
                continue
            if field.is_repeated and isinstance(value, Message):
                getattr(message, field.name).add().CopyFrom(value)
            elif field.is_repeated:
                getattr(message, field.name).append(value)
            else:
                setattr(message, field.name, value)
        return message

    def _value(self, field: FieldDescriptor, product_id: int) -> Any:
        if field.message_type is not None:
            return self._filled(field.message_type, product_id)
        known = {
            "product_id": product_id,
            "product_ids": product_id,
            "request_id": f"call-{next(_names)}",
            "order_id": next(_names),
            "quantity": 1,
            "user_id": 1,
            "ttl_s": 60,
            "shards": 3,
            "total_stock": UNITS,
            "reason": "stalled",
            "actor": "test",
            "dead_letter_id": 1,
            "id": 1,
        }
        return known.get(field.name)


def _bytes(message: Message) -> bytes:
    return message.SerializeToString()


def _as_it_is(raw: bytes) -> bytes:
    return raw


def _reason_of(error: grpc.aio.AioRpcError) -> str:
    status = rpc_status.from_call(cast(Any, error))  # has what a call has
    info = ErrorInfo()
    found = status is not None and any(each.Unpack(info) for each in status.details)
    return info.reason if found else ""


def assert_ended_by_our_word(endings: dict[str, Ending]) -> None:
    """A stream may have nothing to say until its deadline, which then ends it."""
    wrong = {
        name: ending
        for name, ending in endings.items()
        if not (ending.code in OWN_WORDS and (ending.reason or ending.code is StatusCode.OK))
        and not (name in STREAMS and ending.code is StatusCode.DEADLINE_EXCEEDED)
    }
    assert wrong == {}


@contextmanager
def stalled(*processes: Process) -> Iterator[None]:
    for process in processes:
        process.pause()
    try:
        yield
    finally:
        for process in processes:
            process.resume()


@pytest.fixture(scope="module")
async def stack() -> AsyncIterator[LocalStack]:
    async with LocalStack() as stack:
        await stack.start_services()
        await stack.migrate()
        await stack.start_worker(0)
        await stack.start_server(0, environment=QUICK)
        yield stack


@pytest.fixture
async def counter(stack: LocalStack) -> AsyncIterator[Counter]:
    async with _Opened(stack) as counter:
        yield counter


class _Opened:
    """A product on sale and a channel to the server."""

    def __init__(self, stack: LocalStack) -> None:
        self._stack = stack
        self._shop = Shop(stack)

    async def __aenter__(self) -> Counter:
        client = await self._shop.client(self._stack.grpc_address(0))
        products = {name: next(_names) for name in ("", *DISTURBING)}
        for each in products.values():
            await client.put_product(NewProduct(product_id=each, total_stock=UNITS))
        await client.load(list(products.values()))
        product_id = products.pop("")

        async def sells() -> bool:
            answer = await client.deduct(product_id, 1, request_id=f"warm-{next(_names)}")
            return answer.accepted

        await until(sells, what="the product sells", within_s=WITHIN_S)
        self._channel = grpc.aio.insecure_channel(self._stack.grpc_address(0))
        return Counter(self._channel, product_id, products)

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()
        await self._shop.__aexit__(None, None, None)


async def until_it_sells(counter: Counter) -> None:
    async def sold() -> bool:
        return (await counter.ending_of("Deduct")).code is StatusCode.OK

    await until(sold, what="units are sold again", within_s=WITHIN_S)


async def test_while_no_redis_node_answers_every_call_ends_in_time(
    stack: LocalStack, counter: Counter
) -> None:
    with stalled(*(node.process for node in stack.redis)):
        bounded, unbounded = await counter.with_and_without_a_deadline()
        # By now the process knows, and says so at once.
        known = {name: await counter.ending_of(name) for name in ("Audit", "Repair", "Reserve")}
    for endings in (bounded, unbounded):
        assert_ended_by_our_word(endings)
        assert endings["GetProduct"].code is StatusCode.OK
        for name in ("Deduct", "Reserve", "Restock", "Audit", "Repair", "Confirm"):
            assert endings[name].code is StatusCode.UNAVAILABLE, name
    assert {each.reason for each in known.values()} == {"LIVE_STOCK_AWAY"}
    await until_it_sells(counter)


async def test_while_mysql_does_not_answer_every_call_ends_in_time_and_units_are_sold(
    stack: LocalStack, counter: Counter
) -> None:
    with stalled(stack.database.process):
        bounded, unbounded = await counter.with_and_without_a_deadline()
    for endings in (bounded, unbounded):
        assert_ended_by_our_word(endings)
        for name in ("Deduct", "BatchDeduct", "StreamDeduct", "GetStock", "Reserve"):
            assert endings[name].code is StatusCode.OK, name
        for name in ("GetProduct", "ListProducts", "Load", "Freeze", "GetTimeline"):
            assert endings[name].code is StatusCode.UNAVAILABLE, name
        assert endings["GetProduct"].reason == "NOT_EXECUTED"
    await until_it_sells(counter)


async def test_without_a_worker_what_waits_for_one_says_what_is_under_way(
    stack: LocalStack, counter: Counter
) -> None:
    with stalled(stack.workers[0]):
        endings = await counter.all_endings(within_s=DEADLINE_S)
    assert_ended_by_our_word(endings)
    assert endings["SetShards"] == (StatusCode.UNAVAILABLE, "RESHARD_PENDING")
    assert endings["Close"] == (StatusCode.UNAVAILABLE, "CLOSE_PENDING")
    assert endings["Audit"] == (StatusCode.UNAVAILABLE, "AUDIT_PENDING")


async def test_without_a_worker_nothing_is_sold_that_the_ledger_does_not_know_of(
    stack: LocalStack, counter: Counter
) -> None:
    """A shard that is lost before would be loaded once more, with units that others have already."""
    product_id = counter.products["Load"]
    sale = replace(counter, products=dict.fromkeys(("Close", "Load", "Deduct"), product_id))
    assert (await sale.ending_of("Close")).code is StatusCode.OK
    with stalled(stack.workers[0]):
        pending = await sale.ending_of("Load")
        early = await sale.ending_of("Deduct")
    assert pending == (StatusCode.UNAVAILABLE, "LOAD_PENDING")
    assert early.code is StatusCode.FAILED_PRECONDITION
    assert (await sale.ending_of("Load")).code is StatusCode.OK
    assert (await sale.ending_of("Deduct")).code is StatusCode.OK


async def test_without_redis_at_all_a_stalled_mysql_keeps_no_call() -> None:
    async with LocalStack(engine=Engine.MYSQL) as alone:
        await alone.start_services()
        await alone.migrate()
        await alone.start_server(0, environment=QUICK)
        async with _Opened(alone) as counter:
            with stalled(alone.database.process):
                both = await counter.with_and_without_a_deadline()
            for endings in both:
                assert_ended_by_our_word(endings)
                assert endings["Deduct"].code is StatusCode.UNAVAILABLE
                assert endings["Reserve"].code is StatusCode.UNAVAILABLE
            await until_it_sells(counter)
