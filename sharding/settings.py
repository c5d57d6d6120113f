"""Settings of the live stock, from environment variables INVENTORY_…"""

from typing import Annotated, Literal

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

Durability = Literal["replicated", "fast", "synced"]


class StockSettings(BaseSettings):
    """How to reach Redis Cluster and how the stock is laid out in it."""

    model_config = SettingsConfigDict(
        env_prefix="INVENTORY_", env_ignore_empty=True, extra="ignore"
    )

    redis_nodes: str = "127.0.0.1:7000"
    """Some of the cluster's nodes, as host:port with commas between them; the rest is discovered."""
    redis_username: str = ""
    redis_password: SecretStr = SecretStr("")
    redis_tls: bool = False
    redis_timeout_ms: Annotated[int, Field(ge=50, le=60_000)] = 1_000
    """How long a node may take to answer before a call counts as lost."""
    redis_patience_ms: Annotated[int, Field(ge=50, le=60_000)] = 2_500
    """How long a call is repeated that had no effect or whose answer was lost."""
    partitions: Annotated[int, Field(ge=1, le=960)] = 48
    """Fixed for a cluster's life; a product's shard count divides it."""
    default_shards: Annotated[int, Field(ge=1, le=960)] = 6
    durability: Durability = "replicated"
    """replicated: an answer waits until a replica has it. fast: until the master has it. synced: as
    replicated, and the nodes are to have written it to their disks, too."""
    record_ttl_s: Annotated[int, Field(ge=60, le=2_592_000)] = 86_400
    """How long a request is remembered at least."""
    confirm_grace_s: Annotated[float, Field(ge=0, le=600)] = 0.0
    """So long after a hold's time a confirmation still counts."""
    record_cap: Annotated[int, Field(ge=1_000, le=100_000_000)] = 4_000_000
    """Requests that one generation of one partition's records may hold."""
    tombstone_cap: Annotated[int, Field(ge=1_000, le=100_000_000)] = 1_000_000
    """The same for requests that were refused for good or resolved as never sent."""
    backlog_max: Annotated[int, Field(ge=100, le=100_000_000)] = 500_000
    """Events of one partition that may wait for the ledger; then nothing is sold or held there until
    half of them wait. Far more than the events of some seconds: workers say once a second how far the
    ledger is."""

    @property
    def confirms(self) -> bool:
        """Whether answers wait for a replica."""
        return self.durability != "fast"

    @field_validator("redis_nodes")
    @classmethod
    def _addresses(cls, value: str) -> str:
        parse_addresses(value)
        return value

    @model_validator(mode="after")
    def _grace_ends_before_records(self) -> "StockSettings":
        if self.confirm_grace_s > self.record_ttl_s / 4:
            raise ValueError(
                f"INVENTORY_CONFIRM_GRACE_S={self.confirm_grace_s:g} is more than a fourth of "
                f"INVENTORY_RECORD_TTL_S={self.record_ttl_s}; lower the one or raise the other"
            )
        return self

    @field_validator("default_shards")
    @classmethod
    def _divides(cls, value: int, info: object) -> int:
        partitions = getattr(info, "data", {}).get("partitions")
        if partitions and partitions % value:
            raise ValueError(f"{value} does not divide INVENTORY_PARTITIONS={partitions}; set both")
        return value


def parse_addresses(text: str) -> tuple[tuple[str, int], ...]:
    """`host:port,host:port` as pairs; ValueError if it is anything else."""
    return tuple(parse_address(part) for part in text.split(","))


def parse_address(text: str) -> tuple[str, int]:
    """`host:port` as a pair; ValueError if it is anything else."""
    host, colon, port = text.strip().rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 <= int(port) <= 65_535:
        raise ValueError(f"{text.strip()!r} is not host:port")
    return host.strip("[]"), int(port)
