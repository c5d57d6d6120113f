"""A real gRPC server in this process, over a stock and a ledger in memory."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, cast

import grpc
import pytest
import structlog
from google.rpc.error_details_pb2 import (  # type: ignore[import-untyped]
    BadRequest,
    ErrorInfo,
    RetryInfo,
)
from grpc_health.v1.health import aio as health
from grpc_status import rpc_status
from prometheus_client import CollectorRegistry
from structlog.testing import LogCapture

from inventory.v1.admin_pb2_grpc import AdminServiceStub
from inventory.v1.inventory_pb2_grpc import InventoryServiceStub
from ledger.servers import PerServer
from server.admin import AdminService
from server.calls import Calls
from server.events import EventService, Tail
from server.gate import Gate, Gates, Shut, Stance
from server.holds import HoldService
from server.intake import Intake
from server.lifecycle import Lifecycle
from server.listener import ADMIN, INVENTORY, grpc_server, listen
from server.metrics import Metrics
from server.orders import OrderService
from server.pace import Pace
from server.resharding import Resharding
from server.resolving import Resolver
from server.service import InventoryService
from server.settings import ServerSettings
from server.stocks import StockReader
from server.streams import Lives
from server.wire import ResultEncoder
from sharding.outcomes import Reason
from tests.service.fakes import (
    FakeFeed,
    FakeHolds,
    FakeLayouts,
    FakeOrders,
    FakeProducts,
    FakeStock,
)

PARTITIONS = 48
PRODUCT = 1001
GRACE_S = 1.0
CALL_S = 10
"""Deadline of calls that are not about deadlines: a test that hangs fails."""


@dataclass
class Service:
    """The server, what it stands on, and a channel to it."""

    stock: FakeStock
    products: FakeProducts
    layouts: FakeLayouts
    orders: FakeOrders
    holds: FakeHolds
    feed: FakeFeed
    gate: Gate
    lives: Lives
    registry: CollectorRegistry
    log: LogCapture
    server: grpc.aio.Server
    address: str
    channel: grpc.aio.Channel

    @property
    def inventory(self) -> Any:
        return InventoryServiceStub(self.channel)

    @property
    def admin(self) -> Any:
        return AdminServiceStub(self.channel)

    def sample(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(name, labels) or 0


@dataclass
class Limits:
    items: int = 40_000
    streams: int = 100
    batches: int = 8
    age_s: float = 60
    calls: int = 10_000


@pytest.fixture
def limits() -> Limits:
    return Limits()


@pytest.fixture
async def service(limits: Limits) -> AsyncIterator[Service]:
    stock, products, layouts = FakeStock(), FakeProducts(), FakeLayouts()
    orders, holds, feed = FakeOrders(), FakeHolds(), FakeFeed()
    stock.available[PRODUCT] = 1_000_000
    log = LogCapture()
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    lives = Lives(metrics, age_s_max=limits.age_s, streams_max=limits.streams)
    logger = structlog.wrap_logger(None, processors=[log])
    calls = Calls(metrics, logger)
    gate = Gate(stock, Shut(Reason.BUFFER_EMPTY), metrics, logger)
    gate.turn(Stance.LIVE)
    gates = Gates([gate])
    log.entries.clear()
    pace = Pace(asyncio.get_running_loop().time, items_max=limits.items)
    intake = Intake(gates, metrics, pace)
    calls.serve(
        INVENTORY,
        _inventory(stock, products, gates, lives, metrics, limits, intake),
        OrderService(cast(Any, orders), intake, GRACE_S, logger),
        EventService(PerServer([Tail(cast(Any, feed))]), lives),
    )
    calls.serve(
        ADMIN,
        _admin(stock, products, gates, layouts),
        HoldService(PerServer([cast(Any, holds)]), cast(Any, orders), intake, GRACE_S),
    )
    settings = ServerSettings(grpc_calls_max=limits.calls)
    server = grpc_server(settings, calls, health.HealthServicer())
    port = listen(server, "127.0.0.1:0", settings)
    await server.start()
    address = f"127.0.0.1:{port}"
    async with grpc.aio.insecure_channel(address) as channel:
        yield Service(
            stock,
            products,
            layouts,
            orders,
            holds,
            feed,
            gate,
            lives,
            registry,
            log,
            server,
            address,
            channel,
        )
    stock.open_gate.set()
    orders.open_gate.set()
    await server.stop(0)


def _inventory(
    stock: FakeStock,
    products: FakeProducts,
    gates: Gates,
    lives: Lives,
    metrics: Metrics,
    limits: Limits,
    intake: Intake,
) -> InventoryService:
    return InventoryService(
        intake=intake,
        reader=StockReader(cast(Any, stock), PerServer([cast(Any, products)]), gates),
        resolver=Resolver(cast(Any, stock), PerServer([cast(Any, products)]), gates),
        lives=lives,
        metrics=metrics,
        batches_max=limits.batches,
        encoder=ResultEncoder(),
    )


def _admin(
    stock: FakeStock, products: FakeProducts, gates: Gates, layouts: FakeLayouts
) -> AdminService:
    fake = PerServer([cast(Any, products)])
    return AdminService(
        products=fake,
        lifecycle=Lifecycle(cast(Any, stock), fake, gates, partitions=PARTITIONS, default_shards=6),
        gates=gates,
        buffers=cast(Any, None),
        resharding=Resharding(PerServer([cast(Any, layouts)]), partitions=PARTITIONS),
        overview=cast(Any, None),
        partitions=PARTITIONS,
        close_wait_s_max=5,
        version="1",
    )


async def failure_of(call: Any) -> grpc.aio.AioRpcError:
    """The error that a call must end with."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


@dataclass
class Details:
    """google.rpc details of an error."""

    info: ErrorInfo
    retry: RetryInfo | None
    fields: list[tuple[str, str]]


def details_of(error: grpc.aio.AioRpcError) -> Details:
    status = rpc_status.from_call(cast(Any, error))  # has what a call has
    assert status is not None
    assert (status.code, status.message) == (error.code().value[0], error.details())
    info, retry, bad = ErrorInfo(), RetryInfo(), BadRequest()
    has_retry = False
    for detail in status.details:
        assert detail.Unpack(info) or detail.Unpack(retry) or detail.Unpack(bad)
        has_retry |= detail.Is(RetryInfo.DESCRIPTOR)
    assert info.domain == "inventory"
    fields = [(found.field, found.reason) for found in bad.field_violations]
    return Details(info, retry if has_retry else None, fields)


async def until(condition: Callable[[], bool]) -> None:
    """Return once something has become true; fail if it never does."""
    async with asyncio.timeout(CALL_S):
        while not condition():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.005)
