"""What the live stock counts about itself."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_BATCH_BUCKETS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000)


class StockMetrics:
    """Counters of one process; all labels come from fixed sets."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.redis_errors = Counter(
            "inventory_redis_errors_total",
            "Calls that a Redis node did not carry out, by kind of error",
            ["kind"],
            registry=registry,
        )
        self.breaker_state = Gauge(
            "inventory_redis_breaker_state",
            "Whether a Redis node is asked: 0 closed (it is), 1 half open (a few calls try), 2 open",
            ["node", "lane"],
            registry=registry,
        )
        self.breaker_opened = Counter(
            "inventory_redis_breaker_opened_total",
            "How often a node was found to refuse, not to answer, or not to be able to serve",
            ["node", "lane"],
            registry=registry,
        )
        self.script_requests = Histogram(
            "inventory_script_requests",
            "Requests that travelled in one call of the deduct script",
            buckets=_BATCH_BUCKETS,
            registry=registry,
        )
        self.round_calls = Histogram(
            "inventory_redis_round_calls",
            "Calls that were sent to a node together",
            buckets=_BATCH_BUCKETS,
            registry=registry,
        )
        self.moves = Counter(
            "inventory_shard_moves_total",
            "Transfers of units between two shards, by step that was done",
            ["step"],
            registry=registry,
        )
        self.proofs = Counter(
            "inventory_shortage_proofs_total",
            "Readings of all shards before a refusal, by what they came to",
            ["result"],
            registry=registry,
        )
        self.noted_refusals = Counter(
            "inventory_noted_refusals_total",
            "Requests that a proof of the last 50 ms refused without a call to Redis",
            registry=registry,
        )
        self.alternates = Counter(
            "inventory_alternates_total",
            "Requests whose home was away, and look-ups at the shards that stand in for one, by result",
            ["result"],
            registry=registry,
        )
        self.node_flaws = Gauge(
            "inventory_redis_node_flaws",
            "What is wrong with how the Redis nodes are set up: loses_units or unwise",
            ["kind"],
            registry=registry,
        )
        self.corrupt = Counter(
            "inventory_shard_corrupt_total",
            "Answers of a shard whose keys do not hold what they must",
            registry=registry,
        )
