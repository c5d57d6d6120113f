"""What the server counts. One registry a process, passed in; nothing here is global."""

from collections import Counter as Tally
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Protocol

from grpc import StatusCode
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
)

from server.errors import public_reason
from sharding.orders import OrderAnswer
from sharding.outcomes import Answer, Outcome

_DURATION_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
_ITEMS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000)

_outcome_of = itemgetter(0)
_replayed_of = itemgetter(1)


class Meter:
    """What is counted of one RPC. Made once: looking labels up costs more than counting."""

    def __init__(
        self, method: str, *, requests: Counter, durations: Histogram, in_flight: Gauge
    ) -> None:
        self.method = method
        self._durations = durations.labels(method)
        self._in_flight = in_flight.labels(method)
        self._requests = requests
        self._by_code: dict[StatusCode, Counter] = {}

    def begin(self) -> None:
        """A call has come in."""
        self._in_flight.inc()

    def end(self, code: StatusCode, duration_s: float) -> None:
        """It was answered, or nobody waits for it any more."""
        self._in_flight.dec()
        self._durations.observe(duration_s)
        counter = self._by_code.get(code)
        if counter is None:
            counter = self._by_code[code] = self._requests.labels(self.method, code.name)
        counter.inc()


class Queue(Protocol):
    """What is under way in a process."""

    @property
    def under_way(self) -> int: ...
    @property
    def limit(self) -> float: ...


class Metrics:
    """The server's metrics, in base units, with labels that are bounded by the contract."""

    def __init__(self, registry: CollectorRegistry, *, servers: int = 1) -> None:
        """`servers`: MySQL servers; where there are several, gauges of one have the label `ledger`."""
        self._servers = servers
        self._requests = Counter(
            "inventory_rpc_requests_total",
            "Calls that were ended, by gRPC status code.",
            ("method", "code"),
            registry=registry,
        )
        self._durations = Histogram(
            "inventory_rpc_duration_seconds",
            "Time from a call's arrival to its end.",
            ("method",),
            buckets=_DURATION_S,
            registry=registry,
        )
        self._in_flight = Gauge(
            "inventory_rpc_in_flight",
            "Calls that have come in and are not ended.",
            ("method",),
            registry=registry,
        )
        deductions = Counter(
            "inventory_deductions_total",
            "Answers to deductions, by outcome; replays count under the outcome they repeat.",
            ("outcome",),
            registry=registry,
        )
        self._deductions = {outcome: deductions.labels(outcome.value) for outcome in Outcome}
        self._unavailable = Counter(
            "inventory_unavailable_total",
            "Deductions and calls on orders that were answered as unavailable, by reason.",
            ("reason",),
            registry=registry,
        )
        self._replays = Counter(
            "inventory_deduction_replays_total",
            "Deductions that repeated an earlier request and got its answer.",
            registry=registry,
        )
        self._orders = Counter(
            "inventory_orders_total",
            "Answers to calls on orders, by call and outcome; replays count under what they repeat.",
            ("call", "outcome"),
            registry=registry,
        )
        self._batch_items = Histogram(
            "inventory_batch_items",
            "Items of one batch, or of one batch on a stream.",
            buckets=_ITEMS,
            registry=registry,
        )
        self._queued_items = Gauge(
            "inventory_queued_items",
            "Deductions and lines of orders that the live stock works on and has not answered.",
            registry=registry,
        )
        self._queued_items_limit = Gauge(
            "inventory_queued_items_limit",
            "As many of them as are taken on: fewer than the setting while answers come late.",
            registry=registry,
        )
        self.streams = Gauge("inventory_streams", "Streams that are open.", registry=registry)
        self.demand_unreported = Counter(
            "inventory_demand_unreported_total",
            "Seconds in which the ledger could not be told how much is asked of which product.",
            registry=registry,
        )
        self._mode = Gauge(
            "inventory_sales_mode",
            "1 for where this process sends deductions (away and leaving: nowhere), else 0.",
            ("mode", "ledger") if servers > 1 else ("mode",),
            registry=registry,
        )
        self.ready = Gauge(
            "inventory_ready", "1 while this process takes requests, else 0.", registry=registry
        )

    def watch_queue(self, queue: Queue) -> None:
        """From now on a scrape asks what is under way, and how much may be."""
        self._queued_items.set_function(lambda: queue.under_way)
        self._queued_items_limit.set_function(lambda: int(queue.limit))

    def meter(self, method: str) -> Meter:
        """What is counted of one RPC."""
        return Meter(
            method,
            requests=self._requests,
            durations=self._durations,
            in_flight=self._in_flight,
        )

    def mode(self, now: str, *, among: Iterable[str], server: int) -> None:
        """Deductions of products of one MySQL server go elsewhere from now on."""
        ledger = [str(server)] if self._servers > 1 else []
        for mode in among:
            self._mode.labels(mode, *ledger).set(mode == now)

    def batch(self, items: int) -> None:
        """A batch has come in."""
        self._batch_items.observe(items)

    def invalid(self, items: int) -> None:
        """Items were refused before they reached the stock."""
        self._deductions[Outcome.INVALID].inc(items)

    def order(self, call: str, answer: OrderAnswer) -> None:
        """A call on an order was answered."""
        self._orders.labels(call, answer.outcome.value).inc()
        if answer.outcome is Outcome.UNAVAILABLE:
            self._unavailable.labels(public_reason(answer.reason)).inc()

    def answers(self, answers: Sequence[Answer]) -> None:
        """Deductions were answered; 0.06 µs each."""
        outcomes = Tally(map(_outcome_of, answers))
        for outcome, times in outcomes.items():
            self._deductions[outcome].inc(times)
        if Outcome.UNAVAILABLE in outcomes:
            self._count_unavailable(answers)
        replays = sum(map(_replayed_of, answers))
        if replays:
            self._replays.inc(replays)

    def _count_unavailable(self, answers: Sequence[Answer]) -> None:
        unavailable = (answer for answer in answers if answer.outcome is Outcome.UNAVAILABLE)
        for reason, times in Tally(answer.reason for answer in unavailable).items():
            self._unavailable.labels(public_reason(reason)).inc(times)
