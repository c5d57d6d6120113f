"""What sells: the live stock in Redis Cluster, or MySQL alone. All that differs between the two."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, NoReturn, Protocol

from grpc import StatusCode
from structlog.typing import FilteringBoundLogger

from ledger.audits import Audits
from ledger.buffer_sales import BufferSales
from ledger.checkpoints import Checkpoints
from ledger.database import Database
from ledger.demand import Demand
from ledger.engine.expiry import Expiry
from ledger.engine.metrics import EngineMetrics, SalesMetrics
from ledger.engine.orders import LedgerOrders
from ledger.engine.stock import LedgerStock, Manner
from ledger.layouts import Layouts
from ledger.metrics import LedgerMetrics
from ledger.products import Products
from ledger.sales_mode import Modes
from ledger.servers import PerServer
from server.admin import ShardCounts, Views
from server.auditing import Auditor, LedgerAuditor
from server.audits import FreezableStock, ProductAuditor
from server.calls import Context
from server.demand import DemandReporter
from server.errors import RefusedError
from server.gate import Gate, Gates, Sales
from server.lifecycle import Lifecycle, LoadableStock
from server.metrics import Metrics
from server.modes import LOOK_S as MODE_LOOK_S
from server.modes import ModeKeeper, ModeKeepers, quick_database
from server.names import process_name
from server.orders import LiveOrders
from server.overview import LedgerOverview, Overview
from server.pace import Pace
from server.resharding import Resharding
from server.resolving import ResolvingStock
from server.settings import ServerSettings
from server.stocks import PatientReader, ReadableStock
from sharding.cluster import Cluster
from sharding.inspection import Inspection
from sharding.ordering import Orders
from sharding.partitions import Partitions
from sharding.stock import Stock


class SellingStock(Sales, ResolvingStock, LoadableStock, FreezableStock, Protocol):
    """All that is asked of a stock."""

    async def drain(self) -> None: ...


class SellingOrders(LiveOrders, Protocol):
    """All that is asked of orders."""

    async def drain(self) -> None: ...


class SellingEngine(Protocol):
    """A process's way to sell."""

    @property
    def stock(self) -> SellingStock: ...
    @property
    def counts(self) -> ReadableStock: ...
    @property
    def orders(self) -> SellingOrders: ...
    @property
    def overview(self) -> Views: ...
    @property
    def shard_counts(self) -> ShardCounts: ...
    @property
    def gates(self) -> Gates: ...
    @property
    def pace(self) -> Pace: ...
    @property
    def look_s(self) -> float:
        """Time between two looks at whether units can be sold."""
        ...

    @property
    def special(self) -> Sequence[object]:
        """What answers some of the operator's calls in a way of its own."""
        ...

    def lifecycle(self, products: PerServer[Products]) -> Lifecycle: ...

    def auditors(self) -> PerServer[ProductAuditor]: ...

    def loops(self, ended: asyncio.Event) -> dict[str, Coroutine[Any, Any, None]]:
        """Work beside the calls, by name, until `ended`."""
        ...

    async def is_ready(self) -> bool:
        """Whether units can be sold, as far as one look tells. PartitionCountError, ServerCountError."""
        ...

    async def drain(self) -> None:
        """Return once everything that was begun has ended."""
        ...

    async def close(self) -> None: ...


class RedisEngine:
    """Sells from Redis Cluster, or the buffer from the ledger while no node is reached; workers bring
    everything to the ledger."""

    look_s = MODE_LOOK_S
    special: Sequence[object] = ()

    def __init__(
        self,
        settings: ServerSettings,
        databases: PerServer[Database],
        cluster: Cluster,
        inspection: Inspection,
        *,
        metrics: Metrics,
        ledger_metrics: LedgerMetrics,
        sales_metrics: SalesMetrics,
        log: FilteringBoundLogger,
    ) -> None:
        self._settings = settings
        self._databases = databases
        self._metrics = metrics
        self._cluster = cluster
        self.pace = _pace(settings)
        self.stock = Stock(cluster, cluster.metrics, served=self.pace.served)
        self.counts = PatientReader(self.stock)
        self.orders = Orders(self.stock, cluster, grace_s=settings.confirm_grace_s)
        partitions = Partitions(cluster, partitions=settings.partitions)
        self.overview = Overview(cluster, partitions, databases, inspection)
        self._inspection = inspection
        self.shard_counts = Resharding(databases.each(Layouts), partitions=settings.partitions)
        self._buffers = databases.each(lambda each: BufferSales(each, sales_metrics))
        self.gates = Gates(
            [
                Gate(self.stock, buffer, metrics, log, place=database.place)
                for buffer, database in zip(self._buffers.all, databases.all, strict=True)
            ]
        )
        self._of_modes = PerServer(settings.mysql_servers).each(
            lambda url: quick_database(url, ledger_metrics)
        )
        self._modes = ModeKeepers(
            [
                ModeKeeper(
                    gate,
                    self.overview,
                    partitions,
                    Modes(database),
                    Checkpoints(database),
                    name=process_name(),
                    enters=settings.buffer_mode == "on",
                )
                for gate, database in zip(self.gates.all, self._of_modes.all, strict=True)
            ]
        )

    def lifecycle(self, products: PerServer[Products]) -> Lifecycle:
        """Products are split over shards, and a part of their units stays in the ledger."""
        return Lifecycle(
            self.stock,
            products,
            self.gates,
            partitions=self._settings.partitions,
            default_shards=self._settings.default_shards,
        )

    def auditors(self) -> PerServer[ProductAuditor]:
        """Every shard is compared with the ledger."""
        return self._databases.each(
            lambda each: Auditor(
                self.stock,
                Products(each),
                Audits(each),
                Checkpoints(each),
                require_live=lambda product_id: self.gates.of(product_id).require_live(),
            )
        )

    def loops(self, ended: asyncio.Event) -> dict[str, Coroutine[Any, Any, None]]:
        """The workers are told of the demand, and the nodes asked how they are set up."""
        reporter = DemandReporter(
            self.stock,
            self._databases.each(Demand),
            self._metrics,
            hot_rate_per_s=self._settings.hot_rate_per_s,
        )
        return {"demand": reporter.run(ended), "inspection": self._inspection.run(ended)}

    async def is_ready(self) -> bool:
        """Some master answers, or a buffer is sold. PartitionCountError, ServerCountError."""
        await self._modes.step()
        return self.gates.take_deductions

    async def drain(self) -> None:
        """What stands on another first."""
        await self.orders.drain()
        await self.stock.drain()
        await self._buffers.from_all(BufferSales.drain)

    async def close(self) -> None:
        await self._modes.leave()
        await self._of_modes.from_all(Database.close)
        await self._cluster.close()


class MysqlEngine:
    """Sells from the ledger's own rows; there is nothing else, and no worker."""

    look_s = 1.0

    def __init__(
        self,
        settings: ServerSettings,
        database: Database,
        *,
        metrics: Metrics,
        sales_metrics: SalesMetrics,
        engine_metrics: EngineMetrics,
        log: FilteringBoundLogger,
    ) -> None:
        self._database = database
        self.pace = _pace(settings)
        self.stock = LedgerStock(database, sales_metrics, Manner(settings.mysql_sales))
        self.counts = self.stock
        self.gates = Gates([Gate.always_open(self.stock, metrics, log)])
        self.orders = LedgerOrders(
            database, record_ttl_s=settings.record_ttl_s, grace_s=settings.confirm_grace_s
        )
        self.overview = LedgerOverview(database)
        self.shard_counts = NoShards()
        self.special = (NoBuffer(),)
        self._expiry = Expiry(
            database,
            self.orders.bookkeeping,
            engine_metrics,
            record_ttl_s=settings.record_ttl_s,
            event_ttl_s=settings.event_ttl_s,
        )

    def lifecycle(self, products: PerServer[Products]) -> Lifecycle:
        """All units of a product are in one place, on sale or not."""
        return Lifecycle(
            self.stock, products, self.gates, partitions=1, default_shards=1, has_buffer=False
        )

    def auditors(self) -> PerServer[ProductAuditor]:
        """The ledger is all there is."""
        return PerServer([LedgerAuditor(Audits(self._database))])

    def loops(self, ended: asyncio.Event) -> dict[str, Coroutine[Any, Any, None]]:
        """Orders end when their time is over."""
        return {"expiry": self._expiry.run(ended)}

    async def is_ready(self) -> bool:
        """MySQL answers."""
        return await self.overview.reaches_mysql()

    async def drain(self) -> None:
        await self.orders.drain()
        await self.stock.drain()

    async def close(self) -> None:
        """Nothing is open but the ledger, which is closed by whoever opened it."""


def _pace(settings: ServerSettings) -> Pace:
    return Pace(asyncio.get_running_loop().time, items_max=settings.queued_items_max)


class NoShards:
    """Answers who asks for a number of shards."""

    async def set_shards(
        self,
        product_id: int,
        shards: int,
        *,
        wait_s: float,  # noqa: ARG002 - nothing is waited for
    ) -> int:
        raise RefusedError(
            StatusCode.FAILED_PRECONDITION,
            "ENGINE_HAS_NO_SHARDS",
            f"product {product_id} cannot have {shards} shards: all is sold from MySQL, in one place",
        )


class NoBuffer:
    """Answers who asks for units of the buffer."""

    async def release_buffer(self, _request: object, _context: Context) -> NoReturn:
        raise RefusedError(
            StatusCode.FAILED_PRECONDITION,
            "ENGINE_HAS_NO_BUFFER",
            "no units are kept back: all are sold from MySQL, in one place",
        )
