"""`python -m worker`: wires the worker and runs it until SIGTERM or SIGINT."""

import asyncio
import os
import secrets
import signal
import socket
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import NoReturn, Protocol

import structlog
import uvloop
from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client import start_http_server as serve_metrics
from structlog.tracebacks import ExceptionDictTransformer

from ledger.agreement import ANSWER_S, Agreement
from ledger.audits import Audits
from ledger.buffer_releases import Buffers
from ledger.checkpoints import Checkpoints
from ledger.database import Database, backoff_s, databases
from ledger.demand import Demand
from ledger.errors import (
    EngineDiffersError,
    LedgerUnavailableError,
    PartitionsDifferError,
    SchemaError,
    ServersDifferError,
)
from ledger.events_feed import EventsFeed
from ledger.failpoints import Failpoints
from ledger.freezes import Freezes
from ledger.holds import Holds
from ledger.journal import Journal
from ledger.layouts import Layouts
from ledger.leases import Leases
from ledger.metrics import LedgerMetrics
from ledger.openings import Openings
from ledger.outbox import Outbox
from ledger.products import Products
from ledger.raw_events import RawEvents
from ledger.restoring import PartitionStates
from ledger.sales_mode import Modes
from ledger.settings import read_settings, take_no_arguments
from ledger.transfers import UnevenPairs
from ledger.untold import UntoldSales
from sharding.cluster import Cluster
from sharding.errors import (
    NodeUnfitError,
    PartitionCountError,
    ServerCountError,
    StockUnavailableError,
)
from sharding.inspection import Inspection
from sharding.metrics import StockMetrics
from sharding.ordering import Orders
from sharding.partitions import Partitions
from sharding.restoring import Restoring
from sharding.settings import parse_address
from sharding.stock import Stock
from worker.applier import Applier
from worker.audit import Audit
from worker.breaker import Breaker, Suspects
from worker.buffer_releases import BufferKeeper, Releases
from worker.degraded import Replicas
from worker.demand import DemandKeeper
from worker.drain import Drain
from worker.expiry import Expiry
from worker.freezes import FreezeKeeper, PartitionFreezes
from worker.keeper import Keeper
from worker.layouts import Reshaper
from worker.leaving import Leaving
from worker.mending import Mends
from worker.metrics import WorkerMetrics
from worker.opening import Opener
from worker.outbox import Errands, Undos
from worker.restoring import Restorer
from worker.settings import WorkerSettings
from worker.share import Share, Shares
from worker.strays import Strays
from worker.tenancy import Tenancy
from worker.transfers import Evenness, OpenTransfers
from worker.upkeep import LedgerUpkeep
from worker.waiting import wait_until

WRONG_SET_UP = 2
START_ATTEMPT_MAX = 8
STOP_GRACE_S = 5.0
_WRONG_SET_UP = (
    SchemaError,
    EngineDiffersError,
    PartitionsDifferError,
    ServersDifferError,
    PartitionCountError,
    ServerCountError,
    NodeUnfitError,
)
"""What waiting does not mend."""

log = structlog.get_logger()


def main() -> None:
    """Exits with 0 after a stop, with 2 and one line where the set-up is wrong."""
    take_no_arguments("python -m worker", "Carries events into MySQL until SIGTERM or SIGINT.")
    configure_logs()
    try:
        settings, failpoints = read_settings(WorkerSettings), Failpoints.from_environment()
    except ValueError as error:
        _fail(str(error))
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    _serve_metrics(settings.metrics_address, registry)
    try:
        uvloop.run(_work(settings, registry, failpoints))
    except* _WRONG_SET_UP as wrong:
        _fail(str(_first(wrong)))


async def _work(
    settings: WorkerSettings, registry: CollectorRegistry, failpoints: Failpoints
) -> None:
    stop = _stop_event()
    ledger_metrics, stock_metrics = LedgerMetrics(registry), StockMetrics(registry)
    async with AsyncExitStack() as resources:
        servers = databases(settings, ledger_metrics, failpoints)
        resources.push_async_callback(servers.from_all, Database.close)
        agreement = Agreement(servers, partitions=settings.partitions)
        await _some_ledger_ready(agreement, len(servers), stop)
        cluster = await _connected(settings, stock_metrics, stop, ledgers=len(servers))
        if cluster is None:
            return
        resources.push_async_callback(cluster.close)
        cluster.pass_by = failpoints.hit if failpoints else None
        inspection = Inspection(cluster)
        await inspection.require_fit()
        stock = Stock(cluster, stock_metrics)
        resources.push_async_callback(stock.drain)
        orders = Orders(stock, cluster, grace_s=settings.confirm_grace_s)
        resources.push_async_callback(orders.drain)
        metrics = WorkerMetrics(registry, servers=len(servers))
        partitions = Partitions(cluster, partitions=settings.partitions)
        work = servers.each(
            lambda each: _OfServer(
                each,
                Journal(each, ledger_metrics, failpoints),
                stock,
                orders,
                partitions,
                settings,
                metrics.of(each.place.index),
                failpoints,
            )
        )
        resources.push_async_callback(work.from_all, _OfServer.end)
        shares = Shares([each.share for each in work.all])
        openings = Openings(servers.all[0])
        restorer = Restorer(
            Restoring(cluster),
            servers.each(lambda each: PartitionStates(each, partitions=settings.partitions)),
            metrics,
            failpoints,
        )
        opener = Opener(
            shares,
            partitions,
            openings,
            servers.each(Checkpoints),
            servers.each(lambda each: PartitionFreezes(Freezes(each), stock)),
            restorer,
            metrics,
            failpoints,
        )
        loops: dict[str, _Loop] = {
            "inspection": inspection,
            "expiry": Expiry(shares, orders, metrics),
            "keeper": Keeper(
                shares,
                partitions,
                openings,
                opener,
                Replicas(cluster, settings, metrics),
                metrics,
                failpoints,
            ),
        }
        for index, each in enumerate(work.all):
            loops[f"ledger {index}"] = _WhenReady(agreement, index, each.loops())
        await _run_until_stopped(stop, loops)


class _Loop(Protocol):
    async def run(self, stop: asyncio.Event) -> None: ...


class _OfServer:
    """What is done for one MySQL server, whatever becomes of the others."""

    def __init__(
        self,
        database: Database,
        journal: Journal,
        stock: Stock,
        orders: Orders,
        partitions: Partitions,
        settings: WorkerSettings,
        metrics: WorkerMetrics,
        failpoints: Failpoints,
    ) -> None:
        self._database = database
        self._journal = journal
        self._stock = stock
        self._orders = orders
        self._partitions = partitions
        self._settings = settings
        self._metrics = metrics
        self._failpoints = failpoints
        self.share = Share(
            metrics,
            trim_lag_s=settings.trim_lag_s,
            partitions=settings.partitions,
            place=database.place,
        )
        leases = Leases(database, worker=_name(), ttl_s=settings.lease_ttl_s)
        self._tenancy = Tenancy(self.share, leases, metrics, ttl_s=settings.lease_ttl_s)

    async def end(self) -> None:
        """Give the leases back."""
        await self._tenancy.end()

    def loops(self) -> Mapping[str, _Loop]:
        """By name."""
        return {
            "tenancy": self._tenancy,
            **self._of_streams(),
            **self._of_stock(),
            **self._of_buffers(),
            **self._of_layouts(),
            **self._of_audits(),
        }

    def _of_streams(self) -> Mapping[str, _Loop]:
        """What carries events into the ledger, and has it forget them."""
        database, settings, metrics = self._database, self._settings, self._metrics
        drain = Drain(
            self.share,
            self._partitions,
            Checkpoints(database),
            Applier(self._journal),
            settings,
            metrics,
            self._failpoints,
        )
        upkeep = LedgerUpkeep(
            self.share,
            database,
            RawEvents(database),
            EventsFeed(database),
            Products(database),
            settings,
            metrics,
        )
        return {"drain": drain, "upkeep": upkeep}

    def _of_stock(self) -> Mapping[str, _Loop]:
        """What carries the ledger's findings back to the live stock."""
        database, partitions = self._database, self._settings.partitions
        outbox, metrics = Outbox(database), self._metrics
        undos = Undos(self._stock, outbox, metrics)
        transfers = OpenTransfers(self._stock, Products(database), outbox, metrics)
        mends = Mends(
            self._stock,
            Products(database),
            Buffers(database, partitions=partitions),
            PartitionStates(database, partitions=partitions),
            outbox,
            metrics,
        )
        return {
            "undos": Errands(self.share, outbox, undos, metrics),
            "transfers": Errands(self.share, outbox, transfers, metrics),
            "evenness": Evenness(self.share, UnevenPairs(database), metrics),
            "strays": Strays(self.share, Holds(self._database), self._orders, metrics),
            "mends": Errands(self.share, outbox, mends, metrics),
        }

    def _of_buffers(self) -> Mapping[str, _Loop]:
        """What releases buffers, brings what was released on sale, and ends the buffer's mode."""
        database, stock, metrics = self._database, self._stock, self._metrics
        outbox, partitions = Outbox(database), self._settings.partitions
        buffers = Buffers(database, partitions=partitions)
        releases = Releases(stock, buffers, outbox, metrics, self._failpoints)
        return {
            "releases": Errands(self.share, outbox, releases, metrics),
            "buffers": BufferKeeper(self.share, stock, buffers, metrics),
            "leaving": Leaving(
                self.share,
                self._partitions,
                stock,
                Modes(database),
                Checkpoints(database),
                UntoldSales(database),
                metrics,
                self._failpoints,
            ),
        }

    def _of_layouts(self) -> Mapping[str, _Loop]:
        """What brings products' layouts about, and asks for others by the demand."""
        layouts, demand = Layouts(self._database), Demand(self._database)
        settings, metrics = self._settings, self._metrics
        return {
            "layouts": Reshaper(self.share, self._stock, layouts, metrics),
            "demand": DemandKeeper(self.share, self._stock, demand, layouts, settings, metrics),
        }

    def _of_audits(self) -> Mapping[str, _Loop]:
        """What compares live stock and ledger, and stops the sale of what may be oversold."""
        database, stock = self._database, self._stock
        settings, metrics, share = self._settings, self._metrics, self.share
        audits, freezes = Audits(database), Freezes(database)
        checkpoints, suspects = Checkpoints(database), Suspects()
        return {
            "audit": Audit(
                share,
                stock,
                Products(database),
                audits,
                checkpoints,
                suspects,
                settings,
                metrics,
            ),
            "breaker": Breaker(
                share, stock, freezes, audits, checkpoints, suspects, settings, metrics
            ),
            "freezes": FreezeKeeper(share, stock, freezes, metrics),
        }


class _WhenReady:
    """Loops of one MySQL server, from when it has said that it is the one it is taken for."""

    def __init__(self, agreement: Agreement, index: int, loops: Mapping[str, _Loop]) -> None:
        self._agreement = agreement
        self._index = index
        self._loops = loops

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`; the same errors as those of `_ledger_ready`."""
        await _ledger_ready(self._agreement, self._index, stop)
        async with asyncio.TaskGroup() as tasks:
            for name, loop in self._loops.items():
                tasks.create_task(loop.run(stop), name=f"{name} {self._index}")


async def _run_until_stopped(stop: asyncio.Event, loops: Mapping[str, _Loop]) -> None:
    """All loops, and after `stop` a moment for the batch in hand; the next worker has it otherwise."""
    try:
        async with asyncio.timeout(None) as limit, asyncio.TaskGroup() as tasks:
            for name, loop in loops.items():
                tasks.create_task(loop.run(stop), name=name)
            await stop.wait()
            limit.reschedule(asyncio.get_running_loop().time() + STOP_GRACE_S)
    except TimeoutError:
        log.warning("stopped before the batch in hand was applied")


async def _some_ledger_ready(agreement: Agreement, servers: int, stop: asyncio.Event) -> None:
    """Wait until one MySQL server is there, and a moment for the others to say what is wrong with them.

    The same errors as those of `_ledger_ready`.
    """
    asked = [
        asyncio.create_task(_ledger_ready(agreement, index, stop), name=f"ledger {index}")
        for index in range(servers)
    ]
    try:
        await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        done, _ = await asyncio.wait(asked, timeout=ANSWER_S)
        for answered in done:
            answered.result()
    finally:
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)


async def _ledger_ready(agreement: Agreement, index: int, stop: asyncio.Event) -> None:
    """Wait for a MySQL server however long it takes.

    SchemaError, EngineDiffersError, PartitionsDifferError, ServersDifferError if it is not ours.
    """
    attempt = 0
    while not stop.is_set():
        try:
            await agreement.confirm(index)
        except LedgerUnavailableError as error:
            if not attempt:
                log.warning("waiting for MySQL", error=str(error))
            attempt = min(attempt + 1, START_ATTEMPT_MAX)
            await wait_until(stop, backoff_s(attempt))
        else:
            return


async def _connected(
    settings: WorkerSettings, metrics: StockMetrics, stop: asyncio.Event, *, ledgers: int
) -> Cluster | None:
    """Wait for Redis however long it takes; None when the process is to stop."""
    attempt = 0
    while not stop.is_set():
        try:
            return await Cluster.connect(settings, metrics, ledgers=ledgers)
        except StockUnavailableError as error:
            if not attempt:
                log.warning("waiting for Redis", error=error.detail)
            attempt = min(attempt + 1, START_ATTEMPT_MAX)
            await wait_until(stop, backoff_s(attempt))
    return None


def _stop_event() -> asyncio.Event:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


def _serve_metrics(address: str, registry: CollectorRegistry) -> None:
    host, port = parse_address(address)
    try:
        serve_metrics(port, addr=host, registry=registry)
    except OSError as error:
        _fail(f"cannot listen on {address} (INVENTORY_METRICS_ADDRESS): {error.strerror}")


def configure_logs() -> None:
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            # Without local variables: passwords are among them.
            structlog.processors.ExceptionRenderer(ExceptionDictTransformer(show_locals=False)),
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def _name() -> str:
    """Unique among all workers that ever were; at most 64 characters."""
    return f"{socket.gethostname()[:32]}-{os.getpid()}-{secrets.token_hex(4)}"


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    found: BaseException = group
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found


def _fail(text: str) -> NoReturn:
    sys.stderr.write(f"worker: {text}\n")
    raise SystemExit(WRONG_SET_UP)


if __name__ == "__main__":
    main()
