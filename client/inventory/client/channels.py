"""How channels to the service are opened.

A server machine runs several processes behind one port, and each connection sits on one of them: a
few channels with connections of their own reach a few processes. gRPC's hidden retries are off, so
that the `attempt` of a request is true.
"""

from collections.abc import Sequence

import grpc

CHANNELS = 4

OPTIONS: Sequence[tuple[str, int]] = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)


def open_channel(target: str, credentials: grpc.ChannelCredentials | None) -> grpc.Channel:
    """A channel to HOST:PORT; without credentials it is not encrypted."""
    if credentials is None:
        return grpc.insecure_channel(target, options=OPTIONS)
    return grpc.secure_channel(target, credentials, options=OPTIONS)


def open_async_channel(
    target: str, credentials: grpc.ChannelCredentials | None
) -> grpc.aio.Channel:
    """The same for asyncio; it belongs to the running loop."""
    if credentials is None:
        return grpc.aio.insecure_channel(target, options=OPTIONS)
    return grpc.aio.secure_channel(target, credentials, options=OPTIONS)
