"""What the ledger counts about itself."""

from prometheus_client import CollectorRegistry, Counter, Histogram

_APPLY_BUCKETS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 15)


class LedgerMetrics:
    """Counters of one process; all labels come from fixed sets."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.errors = Counter(
            "inventory_ledger_errors_total",
            "Transactions that failed, by kind of error; most are tried again",
            ["kind"],
            registry=registry,
        )
        self.apply_seconds = Histogram(
            "inventory_ledger_apply_seconds",
            "Time of one transaction that applies a batch of events, its commit included",
            buckets=_APPLY_BUCKETS,
            registry=registry,
        )
        self.journal_rows = Counter(
            "inventory_ledger_journal_rows_total",
            "Journal rows written from events",
            registry=registry,
        )
        self.dead_letters = Counter(
            "inventory_ledger_dead_letters_total",
            "Events, or single requests of events, set aside, by class of reason",
            ["reason"],
            registry=registry,
        )
        self.drift = Counter(
            "inventory_ledger_drift_total",
            "Times that a shard's counts in the ledger began to differ from those in its stream",
            registry=registry,
        )
        self.second_effects = Counter(
            "inventory_ledger_second_effects_total",
            "Requests that took units although the journal had their effect already; the units go back",
            registry=registry,
        )
        self.unasked_undos = Counter(
            "inventory_ledger_unasked_undos_total",
            "Times that units came back that no second effect had taken, as far as the ledger knows",
            registry=registry,
        )
