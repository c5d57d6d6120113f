"""`python -m worker`: wires the worker and runs it until SIGTERM or SIGINT."""

import asyncio
import os
import secrets
import signal
import socket
import sys
from contextlib import AsyncExitStack
from typing import NoReturn

import structlog
import uvloop
from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client import start_http_server as serve_metrics
from pydantic import ValidationError
from structlog.tracebacks import ExceptionDictTransformer

from ledger.checkpoints import Checkpoints
from ledger.database import Database, backoff_s
from ledger.errors import LedgerUnavailableError, PartitionsDifferError, SchemaError
from ledger.failpoints import Failpoints
from ledger.journal import Journal
from ledger.leases import Leases
from ledger.metrics import LedgerMetrics
from ledger.migrate import require_schema
from ledger.products import Products
from ledger.raw_events import RawEvents
from ledger.settings import explain
from sharding.cluster import Cluster
from sharding.errors import PartitionCountError, StockUnavailableError
from sharding.metrics import StockMetrics
from sharding.partitions import Partitions
from sharding.settings import parse_address
from sharding.shards import LEDGERS
from worker.applier import Applier
from worker.drain import Drain
from worker.keeper import Keeper
from worker.metrics import WorkerMetrics
from worker.settings import WorkerSettings
from worker.share import Share
from worker.tenancy import Tenancy
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
    except* (SchemaError, PartitionsDifferError, PartitionCountError) as wrong:
        _fail(str(_first(wrong)))


async def _work(
    settings: WorkerSettings, registry: CollectorRegistry, failpoints: Failpoints
) -> None:
    stop = _stop_event()
    ledger_metrics, metrics = LedgerMetrics(registry), WorkerMetrics(registry)
    async with AsyncExitStack() as resources:
        database = Database.from_settings(settings, ledger_metrics)
        resources.push_async_callback(database.close)
        checkpoints = Checkpoints(database)
        await _ledger_ready(database, checkpoints, settings.partitions, stop)
        cluster = await _connected(settings, StockMetrics(registry), stop)
        if cluster is None:
            return
        resources.push_async_callback(cluster.close)
        partitions = Partitions(cluster, partitions=settings.partitions, ledgers=LEDGERS)
        share = Share(metrics, trim_lag_s=settings.trim_lag_s)
        leases = Leases(database, worker=_name(), ttl_s=settings.lease_ttl_s)
        tenancy = Tenancy(share, leases, metrics, ttl_s=settings.lease_ttl_s)
        applier = Applier(Journal(database, ledger_metrics, failpoints))
        drain = Drain(share, partitions, checkpoints, applier, settings, metrics, failpoints)
        keeper = Keeper(
            share,
            partitions,
            checkpoints,
            RawEvents(database),
            Products(database),
            settings,
            metrics,
            failpoints,
        )
        resources.push_async_callback(tenancy.end)
        await _run_until_stopped(stop, tenancy, drain, keeper)


async def _run_until_stopped(
    stop: asyncio.Event, tenancy: Tenancy, drain: Drain, keeper: Keeper
) -> None:
    """All loops, and after `stop` a moment for the batch in hand; the next worker has it otherwise."""
    try:
        async with asyncio.timeout(None) as limit, asyncio.TaskGroup() as tasks:
            tasks.create_task(tenancy.run(stop), name="tenancy")
            tasks.create_task(drain.run(stop), name="drain")
            tasks.create_task(keeper.run(stop), name="keeper")
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
