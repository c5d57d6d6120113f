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
from pydantic import ValidationError
from structlog.tracebacks import ExceptionDictTransformer

from ledger.audits import Audits
from ledger.buffers import Buffers
from ledger.checkpoints import Checkpoints
from ledger.database import Database, backoff_s
from ledger.demand import Demand
from ledger.errors import (
    EngineDiffersError,
    LedgerUnavailableError,
    PartitionsDifferError,
    SchemaError,
)
from ledger.events_feed import EventsFeed
from ledger.failpoints import Failpoints
from ledger.freezes import Freezes
from ledger.journal import Journal
from ledger.layouts import Layouts
from ledger.leases import Leases
from ledger.metrics import LedgerMetrics
from ledger.migrate import require_schema
from ledger.openings import Openings
from ledger.outbox import Outbox
from ledger.products import Products
from ledger.raw_events import RawEvents
from ledger.sales_mode import Modes
from ledger.settings import explain
from ledger.untold import UntoldSales
from sharding.cluster import Cluster
from sharding.errors import PartitionCountError, StockUnavailableError
from sharding.metrics import StockMetrics
from sharding.ordering import Orders
from sharding.partitions import Partitions
from sharding.settings import parse_address
from sharding.shards import LEDGERS
from sharding.stock import Stock
from worker.applier import Applier
from worker.audit import Audit
from worker.breaker import Breaker, Suspects
from worker.buffers import BufferKeeper, Releases
from worker.demand import DemandKeeper
from worker.drain import Drain
from worker.expiry import Expiry
from worker.freezes import FreezeKeeper, PartitionFreezes
from worker.keeper import Keeper
from worker.layouts import Reshaper
from worker.metrics import WorkerMetrics
from worker.modes import Leaving
from worker.outbox import Errands, Undos
from worker.settings import WorkerSettings
from worker.share import Share
from worker.tenancy import Tenancy
from worker.transfers import Transfers
from worker.upkeep import LedgerUpkeep
from worker.waiting import wait_until

WRONG_SET_UP = 2
START_ATTEMPT_MAX = 8
STOP_GRACE_S = 5.0

log = structlog.get_logger()


def main() -> None:
    """Exits with 0 after a stop, with 2 and one line where the set-up is wrong."""
    configure_logs()
    try:
        settings, failpoints = WorkerSettings(), Failpoints.from_environment()
    except ValidationError as error:
        _fail(explain(error))
    except ValueError as error:
        _fail(str(error))
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    _serve_metrics(settings.metrics_address, registry)
    try:
        uvloop.run(_work(settings, registry, failpoints))
    except* (
        SchemaError,
        EngineDiffersError,
        PartitionsDifferError,
        PartitionCountError,
    ) as wrong:
        _fail(str(_first(wrong)))


async def _work(
    settings: WorkerSettings, registry: CollectorRegistry, failpoints: Failpoints
) -> None:
    stop = _stop_event()
    ledger_metrics, stock_metrics = LedgerMetrics(registry), StockMetrics(registry)
    async with AsyncExitStack() as resources:
        database = Database.from_settings(settings, ledger_metrics)
        resources.push_async_callback(database.close)
        await _ledger_ready(database, Checkpoints(database), settings.partitions, stop)
        cluster = await _connected(settings, stock_metrics, stop)
        if cluster is None:
            return
        resources.push_async_callback(cluster.close)
        stock = Stock(cluster, stock_metrics)
        resources.push_async_callback(stock.drain)
        orders = Orders(stock, cluster, grace_s=settings.confirm_grace_s)
        resources.push_async_callback(orders.drain)
        journal = Journal(database, ledger_metrics, failpoints)
        metrics = WorkerMetrics(registry)
        share = Share(metrics, trim_lag_s=settings.trim_lag_s)
        leases = Leases(database, worker=_name(), ttl_s=settings.lease_ttl_s)
        tenancy = Tenancy(share, leases, metrics, ttl_s=settings.lease_ttl_s)
        resources.push_async_callback(tenancy.end)
        loops: dict[str, _Loop] = {
            "tenancy": tenancy,
            "expiry": Expiry(share, orders, metrics),
            **_of_streams(share, stock, cluster, database, journal, settings, metrics, failpoints),
            **_of_stock(share, stock, database, metrics),
            **_of_buffers(share, stock, database, settings, metrics, failpoints),
            **_of_layouts(share, stock, database, settings, metrics),
            **_of_audits(share, stock, database, settings, metrics),
            "leaving": _leaving(share, cluster, stock, database, settings, metrics, failpoints),
        }
        await _run_until_stopped(stop, loops)


class _Loop(Protocol):
    async def run(self, stop: asyncio.Event) -> None: ...


def _of_streams(
    share: Share,
    stock: Stock,
    cluster: Cluster,
    database: Database,
    journal: Journal,
    settings: WorkerSettings,
    metrics: WorkerMetrics,
    failpoints: Failpoints,
) -> Mapping[str, _Loop]:
    """What carries events into the ledger, and the upkeep of their partitions."""
    partitions = Partitions(cluster, partitions=settings.partitions, ledgers=LEDGERS)
    checkpoints = Checkpoints(database)
    drain = Drain(share, partitions, checkpoints, Applier(journal), settings, metrics, failpoints)
    upkeep = LedgerUpkeep(
        database, RawEvents(database), EventsFeed(database), Products(database), settings, metrics
    )
    freezes = PartitionFreezes(Freezes(database), stock)
    openings = Openings(database)
    keeper = Keeper(share, partitions, openings, freezes, upkeep, settings, metrics, failpoints)
    return {"drain": drain, "keeper": keeper}


def _of_stock(
    share: Share, stock: Stock, database: Database, metrics: WorkerMetrics
) -> Mapping[str, _Loop]:
    """What carries the ledger's findings back to the live stock."""
    outbox = Outbox(database)
    return {
        "undos": Errands(share, outbox, Undos(stock, outbox, metrics), metrics),
        "transfers": Errands(share, outbox, Transfers(stock, outbox, metrics), metrics),
    }


def _of_buffers(
    share: Share,
    stock: Stock,
    database: Database,
    settings: WorkerSettings,
    metrics: WorkerMetrics,
    failpoints: Failpoints,
) -> Mapping[str, _Loop]:
    """What releases buffers, and brings what was released on sale."""
    outbox, partitions = Outbox(database), settings.partitions
    buffers = Buffers(database, partitions=partitions)
    releases = Releases(stock, buffers, outbox, metrics, failpoints)
    return {
        "releases": Errands(share, outbox, releases, metrics),
        "buffers": BufferKeeper(share, stock, buffers, metrics, partitions=partitions),
    }


def _of_layouts(
    share: Share,
    stock: Stock,
    database: Database,
    settings: WorkerSettings,
    metrics: WorkerMetrics,
) -> Mapping[str, _Loop]:
    """What brings products' layouts about, and asks for others by the demand."""
    layouts = Layouts(database)
    return {
        "layouts": Reshaper(share, stock, layouts, settings, metrics),
        "demand": DemandKeeper(share, stock, Demand(database), layouts, settings, metrics),
    }


def _of_audits(
    share: Share,
    stock: Stock,
    database: Database,
    settings: WorkerSettings,
    metrics: WorkerMetrics,
) -> Mapping[str, _Loop]:
    """What compares live stock and ledger, and stops the sale of what may be oversold."""
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
        "breaker": Breaker(share, stock, freezes, audits, checkpoints, suspects, settings, metrics),
        "freezes": FreezeKeeper(share, stock, freezes, settings, metrics),
    }


def _leaving(
    share: Share,
    cluster: Cluster,
    stock: Stock,
    database: Database,
    settings: WorkerSettings,
    metrics: WorkerMetrics,
    failpoints: Failpoints,
) -> Leaving:
    """What ends the buffer's mode."""
    return Leaving(
        share,
        Partitions(cluster, partitions=settings.partitions, ledgers=LEDGERS),
        stock,
        Modes(database),
        Checkpoints(database),
        UntoldSales(database),
        metrics,
        failpoints,
    )


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


async def _ledger_ready(
    database: Database, checkpoints: Checkpoints, partitions: int, stop: asyncio.Event
) -> None:
    """Wait for MySQL however long it takes; SchemaError, PartitionsDifferError if it is not ours."""
    attempt = 0
    while not stop.is_set():
        try:
            await require_schema(database)
            await checkpoints.prepare(partitions)
        except LedgerUnavailableError as error:
            if not attempt:
                log.warning("waiting for MySQL", error=str(error))
            attempt = min(attempt + 1, START_ATTEMPT_MAX)
            await wait_until(stop, backoff_s(attempt))
        else:
            return


async def _connected(
    settings: WorkerSettings, metrics: StockMetrics, stop: asyncio.Event
) -> Cluster | None:
    """Wait for Redis however long it takes; None when the process is to stop."""
    attempt = 0
    while not stop.is_set():
        try:
            return await Cluster.connect(settings, metrics)
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
        _fail(f"INVENTORY_METRICS_ADDRESS: cannot listen on {address}: {error.strerror}")


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
