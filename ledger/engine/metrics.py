"""What the engine counts about itself."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_REQUESTS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000)


class SalesMetrics:
    """Of sales from MySQL: of the engine, and of the buffer while Redis is away."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.transaction_requests = Histogram(
            "inventory_engine_transaction_requests",
            "Deductions that one transaction served.",
            buckets=_REQUESTS,
            registry=registry,
        )
        self.lost_races = Counter(
            "inventory_engine_lost_races_total",
            "Transactions that began anew because another one was faster.",
            registry=registry,
        )


class EngineMetrics:
    """Of the engine's own upkeep. Where workers do it, no server shows any of these."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.orders_swept = Counter(
            "inventory_engine_orders_swept_total",
            "Orders whose time was over when the sweep came by.",
            registry=registry,
        )
        self.orders_parked = Counter(
            "inventory_engine_orders_parked_total",
            "Times that an order could not be ended because its rows contradict each other.",
            registry=registry,
        )
        self.orders_lag_seconds = Gauge(
            "inventory_engine_orders_lag_seconds",
            "How long the time of the oldest order has been over that still holds units.",
            registry=registry,
        )
        self.failures = Counter(
            "inventory_engine_failures_total",
            "Rounds of the sweep and of the upkeep that failed; the next one comes soon.",
            registry=registry,
        )
