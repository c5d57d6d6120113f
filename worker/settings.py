"""Settings of the worker, from environment variables INVENTORY_…"""

from typing import Annotated, Literal

from pydantic import Field, field_validator

from ledger.settings import DemandSettings, LedgerSettings
from sharding.settings import StockSettings, parse_address


class WorkerSettings(StockSettings, LedgerSettings, DemandSettings):
    """Where the live stock and the ledger are, and how events are carried from one to the other."""

    metrics_address: str = "127.0.0.1:9400"
    """Where this process shows its metrics, as host:port."""
    lease_ttl_s: Annotated[float, Field(ge=1, le=300)] = 4
    """After how long without a word of it a worker's partitions go to the others."""
    poll_ms_min: Annotated[int, Field(ge=1, le=1_000)] = 2
    poll_ms_max: Annotated[int, Field(ge=1, le=10_000)] = 50
    """How long to wait before streams are read again: the minimum after events, longer and longer
    up to the maximum while there are none."""
    batch_rows_max: Annotated[int, Field(ge=1, le=100_000)] = 5_000
    """Journal rows after which a transaction is not made larger; one event is never split."""
    batch_age_ms_max: Annotated[int, Field(ge=0, le=10_000)] = 20
    """How long the first event of a batch waits for others."""
    trim_lag_s: Annotated[int, Field(ge=0, le=86_400)] = 60
    """How long applied events stay in the streams."""
    raw_event_ttl_s: Annotated[int, Field(ge=60, le=864_000)] = 3_600
    """How long applied events stay in the ledger as they were, for recovery."""
    cold_after_s: Annotated[int, Field(ge=1, le=86_400)] = 300
    """How long the demand for a product must stay low before it gets fewer shards."""

    audit_every_s: Annotated[float, Field(ge=1, le=3_600)] = 60
    """Within so long every shard of a product on sale is compared with the ledger."""
    breaker: Literal["on", "off"] = "on"
    """on: a product that may be oversold is frozen until an operator resumes its sale."""
    degraded_without_failover: Literal["on", "off"] = "off"
    """on: a master whose replica is lost sells on without one, and a loss of it then loses what it sold;
    off: only a replica that was promoted does."""

    @field_validator("metrics_address")
    @classmethod
    def _address(cls, value: str) -> str:
        parse_address(value)
        return value
