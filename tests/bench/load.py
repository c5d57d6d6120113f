"""A generator of gRPC load, in a process of its own: `python -m tests.bench.load PLAN`.

It sends bytes that were made beforehand and keeps the answers as bytes until the window is over, so
that most of what it costs is gRPC itself.
"""

import asyncio
import random
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import grpc
from hdrh.histogram import HdrHistogram

from inventory.client.channels import OPTIONS
from inventory.v1 import inventory_pb2
from tests.bench import order_calls, requests
from tests.bench.cpu import Watched, since
from tests.bench.order_calls import Ask, Call, new_order_ids
from tests.bench.requests import FIRST_TRY, Template
from tests.bench.window import Collector, Measured, Window, report_of

UNARY, BATCH, STREAM = "unary", "batch", "stream"
SELL, PAY = "sell", "pay"
"""Orders: at once, or held and then confirmed."""
PERCENTILES = (50.0, 99.0, 99.9, 100.0)
LATENCY_US_MAX = 60_000_000
LATENCY_DIGITS = 3
_SERVICE = "/inventory.v1.InventoryService/"
_TIMEOUT_S = 30.0
_PAUSE_S = 0.01
"""Before what a server did not take on is sent again."""
_Response: TypeAlias = (
    inventory_pb2.DeductResponse | inventory_pb2.DeductOrderResponse | inventory_pb2.ConfirmResponse
)
_ALONE: Mapping[str, type[_Response]] = {
    UNARY: inventory_pb2.DeductResponse,
    SELL: inventory_pb2.DeductOrderResponse,
    PAY: inventory_pb2.ConfirmResponse,
}
"""What the answer to one request is."""
_ACCEPTED = (inventory_pb2.OUTCOME_DEDUCTED, inventory_pb2.OUTCOME_CONFIRMED)

if TYPE_CHECKING:  # these take parameters in the stubs only
    _UnaryMethod = grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
    _StreamMethod = grpc.aio.StreamStreamMultiCallable[bytes, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """What to send. `rate` above 0: that many unary calls a second at times fixed beforehand."""

    target: str
    shape: str
    product_id: int
    cold_first: int = 0
    cold_products: int = 0
    """Where above 0: that many products from `cold_first` on get every tenth item of batches."""
    attempt: int = FIRST_TRY
    size: int = 1
    """Items of a batch or of a message on a stream."""
    lines: int = 1
    """Of an order; each of another product, from `product_id` on."""
    in_flight: int
    """Calls at a time, or messages at a time on each stream."""
    channels: int
    """Connections; a stream has one of its own."""
    warm_up_s: float
    seconds: float
    rate: float = 0.0
    seed: int = 0
    watched: Watched = field(default_factory=dict)


async def measure(plan: LoadPlan) -> Measured:
    """Carry out a plan."""
    channels = [
        grpc.aio.insecure_channel(plan.target, options=OPTIONS) for _ in range(plan.channels)
    ]
    try:
        await asyncio.gather(*(channel.channel_ready() for channel in channels))
        return await (_open_loop if plan.rate else _closed_loop)(plan, channels)
    finally:
        for channel in channels:
            await channel.close()


async def _closed_loop(plan: LoadPlan, channels: Sequence[grpc.aio.Channel]) -> Measured:
    collector: Collector[bytes] = Collector(plan.watched)
    if plan.shape == STREAM:
        template = requests.stream_batch(plan.product_id, plan.size)
        lanes = [_stream_lane(channel, template, plan.in_flight, collector) for channel in channels]
    else:
        lanes = [
            _call_lane(ask, collector)
            for ask in _asks(plan, channels)
            for _ in range(plan.in_flight // plan.channels)
        ]
    window = await collector.measure(lanes, warm_up_s=plan.warm_up_s, seconds=plan.seconds)
    return _counted(plan.shape, window)


def _asks(plan: LoadPlan, channels: Sequence[grpc.aio.Channel]) -> Sequence[Ask]:
    """How to ask over each channel."""
    if plan.shape in (SELL, PAY):
        order_ids = new_order_ids()
        return [_ordering(plan, channel, order_ids) for channel in channels]
    template = _template(plan)  # one for all, so that no two calls are for the same cold products
    return [_deducting(patient(call(plan.shape, channel)), template) for channel in channels]


def _deducting(send: Call, template: Template) -> Ask:
    return lambda: send(template.fresh())


def _ordering(plan: LoadPlan, channel: grpc.aio.Channel, order_ids: Iterator[int]) -> Ask:
    product_ids = range(plan.product_id, plan.product_id + plan.lines)
    if plan.shape == SELL:
        sell = patient(_method(channel, "DeductOrder"))
        return order_calls.selling(sell, product_ids, order_ids)
    reserve, confirm = (patient(_method(channel, name)) for name in ("Reserve", "Confirm"))
    return order_calls.paying(reserve, confirm, product_ids, order_ids)


def _template(plan: LoadPlan) -> Template:
    if plan.shape == BATCH:
        cold = range(plan.cold_first, plan.cold_first + plan.cold_products)
        return requests.batch(plan.product_id, plan.size, attempt=plan.attempt, cold=cold)
    return requests.single(plan.product_id, attempt=plan.attempt)


def call(shape: str, channel: grpc.aio.Channel, *, timeout_s: float = _TIMEOUT_S) -> Call:
    """How one request is sent, or one batch."""
    return _method(channel, "BatchDeduct" if shape == BATCH else "Deduct", timeout_s=timeout_s)


def _method(channel: grpc.aio.Channel, name: str, *, timeout_s: float = _TIMEOUT_S) -> Call:
    method: _UnaryMethod = channel.unary_unary(_SERVICE + name)
    return partial(method, timeout=timeout_s)


def patient(send: Call) -> Call:
    """Sends again what a server did not take on, for as long as one call may take."""

    async def send_until_taken_on(message: bytes) -> bytes:
        until_s = time.monotonic() + _TIMEOUT_S
        while True:
            try:
                return await send(message)
            except grpc.aio.AioRpcError as error:
                is_not_taken_on = error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
                if not is_not_taken_on or time.monotonic() > until_s:
                    raise
            await asyncio.sleep(_PAUSE_S)

    return send_until_taken_on


async def _call_lane(ask: Ask, collector: Collector[bytes]) -> None:
    while not collector.is_over:
        collector.take(await ask())


async def _stream_lane(
    channel: grpc.aio.Channel, template: Template, in_flight: int, collector: Collector[bytes]
) -> None:
    method: _StreamMethod = channel.stream_stream(_SERVICE + "StreamDeduct")
    stream = method()
    for _ in range(in_flight):
        await stream.write(template.fresh())
    while not collector.is_over:
        collector.take(await _message(stream))
        await stream.write(template.fresh())
    await stream.done_writing()
    for _ in range(in_flight):
        await _message(stream)


async def _message(stream: "grpc.aio.StreamStreamCall[bytes, bytes]") -> bytes:
    message = await stream.read()
    assert isinstance(message, bytes), "the server ended a stream"
    return message


async def _open_loop(plan: LoadPlan, channels: Sequence[grpc.aio.Channel]) -> Measured:
    """Latency from the time at which a request was to be sent, however late it was."""
    histogram = HdrHistogram(1, LATENCY_US_MAX, LATENCY_DIGITS)
    collector: Collector[bytes] = Collector(plan.watched)
    calls = [patient(call(UNARY, channel)) for channel in channels]
    template = requests.single(plan.product_id)

    async def send(number: int, due_s: float) -> None:
        collector.take(await calls[number % len(calls)](template.fresh()))
        histogram.record_value(max(1, int((time.perf_counter() - due_s) * 1_000_000)))

    choice = random.Random(plan.seed)
    await _at_their_times(arrivals_s(choice, plan.rate, plan.warm_up_s), send)
    collector.answers.clear()
    histogram.reset()
    start_s, before = time.perf_counter(), collector.cpu_s()
    await _at_their_times(arrivals_s(choice, plan.rate, plan.seconds), send)
    elapsed_s = time.perf_counter() - start_s
    window = Window(collector.answers, elapsed_s, since(before, collector.cpu_s()))
    return _counted(UNARY, window, _percentiles_ms(histogram))


def arrivals_s(choice: random.Random, rate: float, seconds: float) -> list[float]:
    """When callers who know nothing of each other come, `rate` a second; at least one comes."""
    arrivals = [choice.expovariate(rate)]
    while arrivals[-1] < seconds:
        arrivals.append(arrivals[-1] + choice.expovariate(rate))
    return arrivals


async def _at_their_times(
    arrivals: Sequence[float], send: Callable[[int, float], Coroutine[None, None, None]]
) -> None:
    """Start each send at its time and wait for all of them.

    A thread keeps the times: the loop's own timers are a millisecond apart.
    """
    loop = asyncio.get_running_loop()
    sends: list[asyncio.Task[None]] = []
    start_s = time.perf_counter()

    def begin(number: int, due_s: float) -> None:
        sends.append(loop.create_task(send(number, due_s), name="send"))

    def keep_time() -> None:
        for number, arrival_s in enumerate(arrivals):
            due_s = start_s + arrival_s
            time.sleep(max(0.0, due_s - time.perf_counter()))
            loop.call_soon_threadsafe(begin, number, due_s)

    await asyncio.to_thread(keep_time)
    assert len(sends) == len(arrivals)  # the loop hears of the thread's end last
    await asyncio.gather(*sends)


def _percentiles_ms(histogram: HdrHistogram) -> Mapping[str, float]:
    return {
        f"p{percentile:g}" if percentile < 100 else "max": (
            histogram.get_value_at_percentile(percentile) / 1_000
        )
        for percentile in PERCENTILES
    }


def _counted(
    shape: str, window: Window[bytes], latency_ms: Mapping[str, float] | None = None
) -> Measured:
    outcomes = [outcome for answer in window.answers for outcome in outcomes_of(shape, answer)]
    accepted = sum(outcomes.count(outcome) for outcome in _ACCEPTED)
    refused = outcomes.count(inventory_pb2.OUTCOME_INSUFFICIENT_STOCK)
    assert accepted + refused == len(outcomes), f"{len(outcomes) - accepted - refused} failed"
    return Measured(
        elapsed_s=window.elapsed_s,
        accepted=accepted,
        refused=refused,
        cpu_s=window.cpu_s,
        latency_ms=latency_ms or {},
    )


def outcomes_of(shape: str, answer: bytes) -> Sequence[int]:
    """What the requests of one message came to."""
    if shape in _ALONE:
        return [_ALONE[shape].FromString(answer).outcome]
    if shape == BATCH:
        results = inventory_pb2.BatchDeductResponse.FromString(answer).results
    else:
        results = inventory_pb2.StreamDeductResponse.FromString(answer).results
    return [result.outcome for result in results]


if __name__ == "__main__":
    report_of(LoadPlan, measure)
