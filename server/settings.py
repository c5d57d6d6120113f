"""Settings of the server, from environment variables INVENTORY_…"""

import os
from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from ledger.engine_claim import Engine
from ledger.settings import DemandSettings, LedgerSettings, parse_urls
from sharding.settings import StockSettings, parse_address

MESSAGE_BYTES_MAX = 4 * 1024 * 1024


class ServerSettings(StockSettings, LedgerSettings, DemandSettings):
    """Where the server listens, what it sells from and how much it takes on."""

    engine: Engine = Engine.REDIS
    """redis: the live stock in Redis Cluster. mysql: the ledger itself, without Redis and workers."""
    mysql_sales: Literal["merged", "optimistic", "pessimistic"] = "merged"
    """Of the engine mysql: how requests share transactions, see ledger/engine/stock.py."""

    grpc_address: str = "127.0.0.1:50051"
    """Port 0: any free one."""
    metrics_address: str = "127.0.0.1:9100"
    """Process i serves its metrics on port + i; port 0: any free ones."""
    server_processes: Annotated[int, Field(ge=1, le=256)] = len(os.sched_getaffinity(0))
    """All of them listen on the same port."""

    grpc_tls_cert_file: str = ""
    """PEM file of the server's certificate and its chain; empty: no TLS."""
    grpc_tls_key_file: str = ""
    """PEM file of the certificate's key."""
    grpc_tls_ca_file: str = ""
    """PEM file of the authorities that clients must have a certificate of; empty: any client."""

    grpc_message_bytes_max: Annotated[int, Field(ge=65_536, le=MESSAGE_BYTES_MAX)] = (
        MESSAGE_BYTES_MAX
    )
    grpc_calls_max: Annotated[int, Field(ge=1, le=100_000)] = 10_000
    """Calls under way in one process; the next ones end as RESOURCE_EXHAUSTED."""
    grpc_connection_age_s_max: Annotated[int, Field(ge=60, le=604_800)] = 1_800
    """After it a client is asked to connect again, so that new processes get their share."""
    queued_items_max: Annotated[int, Field(ge=2_000, le=50_000)] = 40_000
    """Deductions and lines of orders under way in one process, and fewer while answers come late; the
    next ones end as RESOURCE_EXHAUSTED."""
    streams_max: Annotated[int, Field(ge=1, le=100_000)] = 1_000
    """Streams that are open in one process."""
    stream_batches_max: Annotated[int, Field(ge=1, le=64)] = 8
    """Batches of one stream that are under way."""
    stream_age_s_max: Annotated[int, Field(ge=1, le=86_400)] = 600
    close_wait_s_max: Annotated[int, Field(ge=1, le=600)] = 60
    """How long Load, Close, SetShards, Audit and Repair wait for the worker if the caller sets no
    deadline."""

    call_s_max: Annotated[float, Field(ge=1, le=600)] = 30
    """How long any other call takes at the longest if the caller sets no deadline; streams apart."""

    buffer_mode: Literal["on", "off"] = "on"
    """on: the buffer is sold from the ledger while no server process reaches Redis. For all the same."""
    drain_notice_s: Annotated[float, Field(ge=0, le=60)] = 1
    """From not being ready any more to refusing calls: time for load balancers to notice."""
    drain_s_max: Annotated[float, Field(ge=0.1, le=300)] = 5
    """How long calls that are under way may take after that."""

    @field_validator("engine")
    @classmethod
    def _sells_from_one(cls, value: Engine, info: ValidationInfo) -> Engine:
        urls = info.data.get("mysql_urls")
        servers = len(parse_urls(urls.get_secret_value())) if urls else 1
        if value is Engine.MYSQL and servers > 1:
            raise ValueError(
                f"mysql sells from one MySQL server, INVENTORY_MYSQL_URLS names {servers}"
            )
        return value

    @field_validator("grpc_address", "metrics_address")
    @classmethod
    def _address(cls, value: str) -> str:
        parse_address(value)
        return value
