"""What the worker counts about itself.

Counters are of the process. Gauges of what belongs to one MySQL server have the label `ledger` where
there are several: its place in the setting, from 0 on.
"""

from collections.abc import Sequence
from copy import copy
from typing import Self

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_ROWS_BUCKETS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000)


class LedgerGauge:
    """A gauge of what belongs to one MySQL server, its label the last one where there are several."""

    def __init__(self, gauge: Gauge, *ledger: str) -> None:
        self._gauge = gauge
        self._ledger = ledger

    def set(self, value: float) -> None:
        """Show the value."""
        (self._gauge.labels(*self._ledger) if self._ledger else self._gauge).set(value)

    def labels(self, *labels: str) -> Gauge:
        """The one with these other labels."""
        return self._gauge.labels(*labels, *self._ledger)

    def remove(self, *labels: str) -> None:
        """Show the one with these other labels no more."""
        self._gauge.remove(*labels, *self._ledger)

    def of(self, ledger: str) -> "LedgerGauge":
        """The same of one server."""
        return LedgerGauge(self._gauge, ledger)


class WorkerMetrics:
    """Figures of one process. Labels: event kinds, partitions and reasons, all from fixed sets."""

    def __init__(self, registry: CollectorRegistry, *, servers: int = 1) -> None:
        self._servers = servers

        def of_server(name: str, text: str, labels: Sequence[str] = ()) -> LedgerGauge:
            names = [*labels, "ledger"] if servers > 1 else labels
            return LedgerGauge(Gauge(name, text, names, registry=registry))

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
        self.ledger_failures_in_a_row = of_server(
            "inventory_worker_ledger_failures_in_a_row",
            "Attempts to write events to the ledger that have failed since the last that did not",
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
        self.lag_entries = of_server(
            "inventory_worker_stream_lag_entries",
            "Events that are in a partition's stream but not in the ledger; at most, where there are"
            " several servers",
            ["partition"],
        )
        self.lag_seconds = of_server(
            "inventory_worker_stream_lag_seconds",
            "For how long the ledger has been behind a partition's stream at most",
            ["partition"],
        )
        self.behind = of_server(
            "inventory_worker_partitions_behind",
            "Partitions that sell and hold nothing because too many of their events wait for the ledger",
        )
        self.below_zero = of_server(
            "inventory_worker_products_below_zero",
            "Products with less than nothing available in the ledger; for long, it is an oversell",
        )
        self.owned = of_server(
            "inventory_worker_partitions_owned",
            "Partitions that this worker serves",
        )
        self.fenced = Gauge(
            "inventory_worker_partitions_fenced",
            "Served partitions that are not open, by reason",
            ["reason"],
            registry=registry,
        )
        self.degraded = Gauge(
            "inventory_worker_degraded_partitions",
            "Owned partitions that sell without a replica, so that the loss of a node loses sales",
            registry=registry,
        )
        self.restored = Counter(
            "inventory_worker_partitions_restored_total",
            "Partitions that were given the ledger's state, because their node had lost something",
            registry=registry,
        )
        self.events_lost = Counter(
            "inventory_worker_restored_events_lost_total",
            "Events that were lost beyond the ledger when partitions were restored, as far as is known",
            registry=registry,
        )
        self.units_lost = Counter(
            "inventory_worker_restored_units_lost_total",
            "Units sold or held that the ledger did not know of when partitions were restored, as far as"
            " their nodes' own counts showed",
            registry=registry,
        )
        self.restoring = Gauge(
            "inventory_worker_partitions_restoring",
            "Partitions that are being given the ledger's state",
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
        self.undos_open = of_server(
            "inventory_worker_undos_open",
            "Second effects in served partitions whose units have not come back",
        )
        self.outbox_failing = of_server(
            "inventory_worker_outbox_failing",
            "Open work on the live stock in served partitions that was put off three times or more",
            ["kind"],
        )
        self.mends_open = of_server(
            "inventory_worker_mends_open",
            "Shards in served partitions that a restoration has left without their load, their layout"
            " or units of a buffer",
        )
        self.mends = Counter(
            "inventory_worker_mends_total",
            "Attempts to bring such shards what they lack: ended, unavailable or failed",
            ["result"],
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
        self.transfers_stuck = of_server(
            "inventory_worker_transfers_stuck",
            "Transfers from served partitions that have been open for more than 10 seconds",
        )
        self.buffer_releases = Counter(
            "inventory_worker_buffer_releases_total",
            "Attempts to bring units that left the buffer into the shards, by what they came to",
            ["result"],
            registry=registry,
        )
        self.buffer_releases_open = of_server(
            "inventory_worker_buffer_releases_open",
            "Releases of served partitions whose units have not come into the shards",
        )
        self.buffer_units = Counter(
            "inventory_worker_buffer_units_total",
            "Units of buffers that came into the shards",
            registry=registry,
        )
        self.buffers_released = Counter(
            "inventory_worker_buffers_released_total",
            "Buffers that were released because a product had few units left",
            registry=registry,
        )
        self.layout_changes = Counter(
            "inventory_layout_changes_total",
            "Changes of products' shard counts, by who wanted them and how far they have come",
            ["cause", "result"],
            registry=registry,
        )
        self.layout_changes_open = of_server(
            "inventory_layout_changes_open",
            "Changes of shard counts of this worker's products that have not come to their end",
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
        self.buffer_sales_untold = of_server(
            "inventory_worker_buffer_sales_untold",
            "Requests that were sold from the buffer and whose homes in the live stock do not answer",
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
        self.lines_reminded = Counter(
            "inventory_worker_lines_reminded_total",
            "Further lines of orders that were told what the order came to, because the ledger has them"
            " as held and the order as decided, by the order's state",
            ["state"],
            registry=registry,
        )
        self.audit_markers = Counter(
            "inventory_worker_audit_markers_total",
            "Shards whose counts were told in their stream, to be compared with the ledger's",
            registry=registry,
        )
        self.audit_success = of_server(
            "inventory_worker_audit_last_success_timestamp_seconds",
            "When every shard of this worker's products was last known to be compared; at first, now",
        )
        self.drifts_open = of_server(
            "inventory_worker_drifts_open",
            "Shards of this worker's products that differ from the ledger",
        )
        self.drift_units = of_server(
            "inventory_worker_drift_units",
            "Units that these shards have elsewhere than the ledger has them",
        )
        self.trips = Counter(
            "inventory_worker_breaker_trips_total",
            "Products frozen because they may be oversold, by what spoke for it",
            ["evidence"],
            registry=registry,
        )
        self.frozen = of_server(
            "inventory_worker_frozen_products",
            "Products of this worker that are frozen, by who has stopped them",
            ["cause"],
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
        own = copy(self)
        for name, value in vars(self).items():
            if isinstance(value, LedgerGauge):
                setattr(own, name, value.of(str(server)))
        return own
