"""The gRPC server: its services, its limits, TLS."""

from pathlib import Path

import grpc
from grpc_health.v1 import (
    health_pb2,
    health_pb2_grpc,
)
from grpc_health.v1.health import (
    aio as health,
)
from grpc_reflection.v1alpha import reflection

from inventory.v1 import admin_pb2, inventory_pb2
from server.calls import Calls
from server.settings import ServerSettings

INVENTORY = inventory_pb2.DESCRIPTOR.services_by_name["InventoryService"]
ADMIN = admin_pb2.DESCRIPTOR.services_by_name["AdminService"]
SERVICES = (INVENTORY, ADMIN)
BURST_PER_CALL = 2
"""Calls that may come in at once, for each that may be under way."""
STREAM_SLACK_S = 60
"""What a stream may take beyond its age, before its connection is closed."""


def grpc_server(
    settings: ServerSettings, calls: Calls, servicer: health.HealthServicer
) -> grpc.aio.Server:
    """A server with all services and no port yet."""
    server = grpc.aio.server(
        options=_options(settings), maximum_concurrent_rpcs=settings.grpc_calls_max
    )
    server.add_generic_rpc_handlers((calls,))
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    names = [service.full_name for service in SERVICES]
    names += [health_pb2.DESCRIPTOR.services_by_name["Health"].full_name, reflection.SERVICE_NAME]
    reflection.enable_server_reflection(names, server)
    return server


def listen(server: grpc.aio.Server, address: str, settings: ServerSettings) -> int:
    """Give a server its port, with TLS where the settings say so; returns the port's number."""
    if settings.grpc_tls_cert_file:
        return server.add_secure_port(address, _credentials(settings))
    return server.add_insecure_port(address)


def _options(settings: ServerSettings) -> list[tuple[str, int]]:
    burst = BURST_PER_CALL * settings.grpc_calls_max
    return [
        ("grpc.so_reuseport", 1),
        ("grpc.max_receive_message_length", settings.grpc_message_bytes_max),
        ("grpc.max_send_message_length", settings.grpc_message_bytes_max),
        # grpc_calls_max has to be met first: it answers RESOURCE_EXHAUSTED. These limits reset a burst
        # as UNAVAILABLE and as CANCELLED; with the defaults of the last two (1,000 and 3,000), 3,000
        # calls at once lost 700.
        ("grpc.max_concurrent_streams", burst),
        ("grpc.server.max_pending_requests", burst),
        ("grpc.server.max_pending_requests_hard_limit", burst),
        ("grpc.max_connection_age_ms", settings.grpc_connection_age_s_max * 1_000),
        ("grpc.max_connection_age_grace_ms", (settings.stream_age_s_max + STREAM_SLACK_S) * 1_000),
        # Clients may ping every 5 s, with or without calls; more often is answered by GOAWAY.
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        ("grpc.keepalive_permit_without_calls", 1),
        # A client that is gone without a word is noticed after 40 s.
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
    ]


def _credentials(settings: ServerSettings) -> grpc.ServerCredentials:
    ca = settings.grpc_tls_ca_file
    return grpc.ssl_server_credentials(
        [
            (
                Path(settings.grpc_tls_key_file).read_bytes(),
                Path(settings.grpc_tls_cert_file).read_bytes(),
            )
        ],
        root_certificates=Path(ca).read_bytes() if ca else None,
        require_client_auth=bool(ca),
    )
