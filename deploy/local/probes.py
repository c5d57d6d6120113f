"""Ask a program whether it is ready."""

import asyncio

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from deploy.local.ports import HOST
from deploy.local.waiting import Condition

PROBE_TIMEOUT_S = 1.0


def serving(address: str) -> Condition:
    """Whether the gRPC server there calls itself healthy as a whole."""

    async def probe() -> bool:
        async with grpc.aio.insecure_channel(address) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            try:
                # The published stubs know the class and not its methods.
                reply = await health.Check(  # type: ignore[attr-defined]
                    health_pb2.HealthCheckRequest(service=""), timeout=PROBE_TIMEOUT_S
                )
            except grpc.aio.AioRpcError:
                return False
        return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)

    return probe


def accepting(port: int) -> Condition:
    """Whether something on this machine accepts connections at the port."""

    async def probe() -> bool:
        try:
            _, writer = await asyncio.open_connection(HOST, port)
        except OSError:
            return False
        writer.close()
        return True

    return probe
