"""What this process tells load balancers about itself, by grpc.health.v1."""

from collections.abc import Sequence
from typing import Final

from grpc_health.v1.health import (
    aio as health,
)
from grpc_health.v1.health_pb2 import (
    HealthCheckResponse,
)

from server.metrics import Metrics

LIVE = "live"
"""SERVING while the process runs. Every other name, the empty one too, tells whether it is ready."""

_SERVING: Final = HealthCheckResponse.SERVING
_NOT_SERVING: Final = HealthCheckResponse.NOT_SERVING


class Readiness:
    """Ready: the process takes requests now."""

    def __init__(
        self, servicer: health.HealthServicer, metrics: Metrics, *, services: Sequence[str]
    ) -> None:
        self._servicer = servicer
        self._metrics = metrics
        self._names = ("", *services)
        self._leaving = False

    async def begin(self) -> None:
        """Alive, and not ready yet."""
        await self._servicer.set(LIVE, _SERVING)
        await self._tell(ready=False)

    async def update(self, *, ready: bool) -> None:
        """Say whether the process is ready; one that leaves is not, whatever comes in late."""
        if not self._leaving:
            await self._tell(ready=ready)

    async def leave(self) -> None:
        """Not ready any more, for good."""
        self._leaving = True
        await self._tell(ready=False)

    async def _tell(self, *, ready: bool) -> None:
        self._metrics.ready.set(ready)
        for name in self._names:
            await self._servicer.set(name, _SERVING if ready else _NOT_SERVING)
