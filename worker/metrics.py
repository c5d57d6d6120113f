"""What the worker counts about itself."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_ROWS_BUCKETS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000)


class WorkerMetrics:
    """Counters of one process. Labels: event kinds, partitions and reasons, all from fixed sets."""

    def __init__(self, registry: CollectorRegistry) -> None:
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
        self.ledger_failures_in_a_row = Gauge(
            "inventory_worker_ledger_failures_in_a_row",
            "Attempts to write events to the ledger that have failed since the last that did not",
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
        self.lag_entries = Gauge(
            "inventory_worker_stream_lag_entries",
            "Events that are in a partition's stream but not in the ledger",
            ["partition"],
            registry=registry,
        )
        self.lag_seconds = Gauge(
            "inventory_worker_stream_lag_seconds",
            "For how long the ledger has been behind a partition's stream at most",
            ["partition"],
            registry=registry,
        )
        self.behind = Gauge(
            "inventory_worker_partitions_behind",
            "Partitions that sell and hold nothing because too many of their events wait for the ledger",
            registry=registry,
        )
        self.below_zero = Gauge(
            "inventory_worker_products_below_zero",
            "Products with less than nothing available in the ledger; for long, it is an oversell",
            registry=registry,
        )
        self.owned = Gauge(
            "inventory_worker_partitions_owned",
            "Partitions that this worker serves",
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
            registry=registry,
        )
        self.outbox_failing = Gauge(
            "inventory_worker_outbox_failing",
            "Open work on the live stock in served partitions that was put off three times or more",
            ["kind"],
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
            registry=registry,
        )
        self.buffer_releases = Counter(
            "inventory_worker_buffer_releases_total",
            "Attempts to bring units that left the buffer into the shards, by what they came to",
            ["result"],
            registry=registry,
        )
        self.buffer_releases_open = Gauge(
            "inventory_worker_buffer_releases_open",
            "Releases of served partitions whose units have not come into the shards",
            registry=registry,
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
        self.layout_changes_open = Gauge(
            "inventory_layout_changes_open",
            "Changes of shard counts of this worker's products that have not come to their end",
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
        self.buffer_sales_untold = Gauge(
            "inventory_worker_buffer_sales_untold",
            "Requests that were sold from the buffer and whose homes in the live stock do not answer",
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
        self.audit_markers = Counter(
            "inventory_worker_audit_markers_total",
            "Shards whose counts were told in their stream, to be compared with the ledger's",
            registry=registry,
        )
        self.audit_success = Gauge(
            "inventory_worker_audit_last_success_timestamp_seconds",
            "When every shard of this worker's products was last known to be compared; at first, now",
            registry=registry,
        )
        self.drifts_open = Gauge(
            "inventory_worker_drifts_open",
            "Shards of this worker's products that differ from the ledger",
            registry=registry,
        )
        self.drift_units = Gauge(
            "inventory_worker_drift_units",
            "Units that these shards have elsewhere than the ledger has them",
            registry=registry,
        )
        self.trips = Counter(
            "inventory_worker_breaker_trips_total",
            "Products frozen because they may be oversold, by what spoke for it",
            ["evidence"],
            registry=registry,
        )
        self.frozen = Gauge(
            "inventory_worker_frozen_products",
            "Products of this worker that are frozen, by who has stopped them",
            ["cause"],
            registry=registry,
        )
        self.orders_lag_seconds = Gauge(
            "inventory_worker_orders_lag_seconds",
            "For how long the oldest order of the served partitions has been due, or one of the"
            " partitions has not said what is due",
            registry=registry,
        )
