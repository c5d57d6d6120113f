"""What the worker counts about itself.

Counters are of the process. Gauges of what belongs to one MySQL server have the label `ledger` where
there are several: its place in the setting, from 0 on.
"""

from copy import copy
from typing import Self

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_ROWS_BUCKETS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000)


class PartitionGauge:
    """A gauge with a value for each partition."""

    def __init__(self, gauge: Gauge, *ledger: str) -> None:
        self._gauge = gauge
        self._ledger = ledger

    def set(self, partition: int, value: float) -> None:
        """Show a partition's value."""
        self._gauge.labels(str(partition), *self._ledger).set(value)

    def remove(self, partition: int) -> None:
        """Show nothing of a partition any more."""
        self._gauge.remove(str(partition), *self._ledger)

    def of(self, ledger: str) -> "PartitionGauge":
        """The same for the streams of one server."""
        return PartitionGauge(self._gauge, ledger)


class WorkerMetrics:
    """Figures of one process. Labels: event kinds, partitions and reasons, all from fixed sets."""

    def __init__(self, registry: CollectorRegistry, *, servers: int = 1) -> None:
        self._servers = servers
        by_ledger = ["ledger"] if servers > 1 else []
        self.events = Counter(
            "inventory_worker_events_total",
            "Events applied to the ledger, by kind; malformed ones are dead letters",
            ["kind"],
            registry=registry,
        )
        self.batch_rows = Histogram(
            "inventory_worker_batch_rows",
            "Journal rows that one batch wrote",
            buckets=_ROWS_BUCKETS,
            registry=registry,
        )
        self.batches_lost = Counter(
            "inventory_worker_batches_lost_total",
            "Batches that another worker had applied already",
            registry=registry,
        )
        self.failures = Counter(
            "inventory_worker_failures_total",
            "Rounds that ended with an error, by where it came from",
            ["source"],
            registry=registry,
        )
        self.redis_failures = Counter(
            "inventory_worker_redis_failures_total",
            "Calls that a partition did not answer, by reason",
            ["reason"],
            registry=registry,
        )
        self.gaps = Counter(
            "inventory_worker_event_gaps_total",
            "Times that an event's number did not follow its forerunner's",
            registry=registry,
        )
        self.reads_undone = Counter(
            "inventory_worker_reads_undone_total",
            "Times that events which had been read were not in the stream any more, as after a failover",
            registry=registry,
        )
        self.lag_entries = PartitionGauge(
            Gauge(
                "inventory_worker_stream_lag_entries",
                "Events that are in a partition's stream but not in the ledger; at most, where there are"
                " several servers",
                ["partition", *by_ledger],
                registry=registry,
            )
        )
        self.lag_seconds = PartitionGauge(
            Gauge(
                "inventory_worker_stream_lag_seconds",
                "For how long the ledger has been behind a partition's stream at most",
                ["partition", *by_ledger],
                registry=registry,
            )
        )
        self.below_zero = Gauge(
            "inventory_worker_products_below_zero",
            "Products with less than nothing available in the ledger; for long, it is an oversell",
            by_ledger,
            registry=registry,
        )
        self.owned = Gauge(
            "inventory_worker_partitions_owned",
            "Partitions that this worker serves",
            by_ledger,
            registry=registry,
        )
        self.fenced = Gauge(
            "inventory_worker_partitions_fenced",
            "Served partitions that are not open, by reason",
            ["reason"],
            registry=registry,
        )
        self.trimmed = Counter(
            "inventory_worker_trimmed_entries_total",
            "Applied entries removed from the streams",
            registry=registry,
        )
        self.undos = Counter(
            "inventory_worker_undos_total",
            "Attempts to return the units of a request's second effect, by what they came to",
            ["result"],
            registry=registry,
        )
        self.undos_open = Gauge(
            "inventory_worker_undos_open",
            "Second effects in served partitions whose units have not come back",
            by_ledger,
            registry=registry,
        )
        self.transfers_finished = Counter(
            "inventory_worker_transfers_finished_total",
            "Transfers brought to their end that whoever began them had left open",
            registry=registry,
        )
        self.transfers_put_off = Counter(
            "inventory_worker_transfers_put_off_total",
            "Attempts to end a transfer that are to be repeated, by reason",
            ["reason"],
            registry=registry,
        )
        self.transfers_stuck = Gauge(
            "inventory_worker_transfers_stuck",
            "Transfers from served partitions that have been open for more than 10 seconds",
            by_ledger,
            registry=registry,
        )
        self.layout_changes = Counter(
            "inventory_layout_changes_total",
            "Changes of products' shard counts, by who wanted them and how far they have come",
            ["cause", "result"],
            registry=registry,
        )
        self.layout_changes_open = Gauge(
            "inventory_layout_changes_open",
            "Changes of shard counts of this worker's products that have not come to their end",
            by_ledger,
            registry=registry,
        )
        self.layout_changes_held_back = Counter(
            "inventory_layout_changes_held_back_total",
            "Times that the demand asked for another shard count of a product changed too often lately",
            registry=registry,
        )
        self.units_levelled = Counter(
            "inventory_levelled_units_total",
            "Units moved between shards to level them",
            registry=registry,
        )
        self.orders_swept = Counter(
            "inventory_worker_orders_swept_total",
            "Orders that the sweep looked after, by what they came to; unfinished ones count each time",
            ["result"],
            registry=registry,
        )
        self.orders_parked = Counter(
            "inventory_worker_orders_parked_total",
            "Times that an order was put aside because its record or its hold makes no sense",
            registry=registry,
        )
        self.orders_lag_seconds = Gauge(
            "inventory_worker_orders_lag_seconds",
            "For how long the oldest order of the served partitions has been due, or one of the"
            " partitions has not said what is due",
            registry=registry,
        )

    def of(self, server: int) -> Self:
        """The same figures with the gauges of one MySQL server."""
        if self._servers == 1:
            return self
        own, ledger = copy(self), str(server)
        for name in _GAUGES_OF_A_SERVER:
            setattr(own, name, getattr(self, name).labels(ledger))
        own.lag_entries = self.lag_entries.of(ledger)
        own.lag_seconds = self.lag_seconds.of(ledger)
        return own


_GAUGES_OF_A_SERVER = (
    "below_zero",
    "owned",
    "undos_open",
    "transfers_stuck",
    "layout_changes_open",
)
