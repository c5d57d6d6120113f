"""`python -m server.serve`: one serving process, a child of `python -m server`; wires it together."""

import argparse
import asyncio
import os
import signal
import socket
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

import uvloop
from grpc_health.v1.health import (
    aio as health,
)
from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    start_http_server,
)
from structlog.typing import FilteringBoundLogger

from ledger.agreement import ANSWER_S, Agreement
from ledger.buffer_releases import Buffers
from ledger.database import Database, databases
from ledger.dead_letters import DeadLetters
from ledger.engine.metrics import EngineMetrics, SalesMetrics
from ledger.engine_claim import Engine, claim_for_mysql
from ledger.errors import (
    EngineDiffersError,
    LedgerError,
    PartitionsDifferError,
    SchemaError,
    ServersDifferError,
)
from ledger.events_feed import EventsFeed
from ledger.failpoints import Failpoints
from ledger.freezes import Freezes
from ledger.holds import Holds
from ledger.letter_retries import LetterRetries
from ledger.metrics import LedgerMetrics
from ledger.migrate import require_schema
from ledger.products import Products
from ledger.servers import PerServer
from ledger.timeline import Timeline
from server.admin import AdminService
from server.audits import AuditService, FreezeService
from server.calls import ANSWER_S as LAST_WORD_S
from server.calls import Bounds, Calls
from server.engines import MysqlEngine, RedisEngine, SellingEngine
from server.events import EventService, Tail
from server.garbage import look_rarely
from server.holds import HoldService
from server.intake import Intake
from server.journal import JournalService
from server.listener import ADMIN, INVENTORY, SERVICES, grpc_server, listen
from server.logs import configure_logs
from server.metrics import Metrics
from server.orders import OrderService
from server.readiness import Readiness
from server.resolving import Resolver
from server.service import InventoryService
from server.settings import ServerSettings
from server.stocks import StockReader
from server.streams import Lives
from server.supervisor import INTERRUPTED, SETUP_ERROR, SetupError
from server.wire import ResultEncoder
from sharding.cluster import Cluster
from sharding.errors import (
    NodeUnfitError,
    PartitionCountError,
    ServerCountError,
    StockUnavailableError,
)
from sharding.inspection import Inspection
from sharding.metrics import StockMetrics
from sharding.settings import parse_address

RETRY_S = 1.0
"""Time between two tries to reach what is not there at the start."""
STOCK_DRAIN_S = 2.0
"""How long work may take that was sent on and that nobody waits for any more."""

_OF_OTHERS = (EngineDiffersError, PartitionsDifferError, SchemaError, ServersDifferError)
"""A MySQL server that is not the one that this process takes it for, and stays so."""

ORPHAN_SLACK_S = 4.0
"""What a process may take beyond its calls, to close connections, when its parent has died."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """What the parent says."""

    child: int
    grpc: str
    metrics: str
    lifeline: socket.socket


class Process:
    """A serving process from its start to its end."""

    def __init__(
        self,
        settings: ServerSettings,
        arguments: Arguments,
        registry: CollectorRegistry,
        log: FilteringBoundLogger,
        failpoints: Failpoints,
    ) -> None:
        self._settings = settings
        self._arguments = arguments
        self._failpoints = failpoints
        self._log = log
        self._ledger_metrics = LedgerMetrics(registry)
        self._databases = databases(settings, self._ledger_metrics, failpoints)
        self._unasked = set(range(len(self._databases)))
        """MySQL servers that have neither agreed nor failed to answer yet."""
        self._metrics = Metrics(registry, servers=len(self._databases))
        self._calls = Calls(self._metrics, log, _bounds(settings))
        self._lives = Lives(
            self._metrics,
            age_s_max=settings.stream_age_s_max,
            streams_max=settings.streams_max,
        )
        servicer = health.HealthServicer()
        self._server = grpc_server(settings, self._calls, servicer)
        self._readiness = Readiness(
            servicer, self._metrics, services=[service.full_name for service in SERVICES]
        )
        self._stopping = asyncio.Event()
        self._at_once = False
        self._registry = registry
        self._ledger_asked = asyncio.Event()
        self._agreed = asyncio.Event()
        self._settled = asyncio.Event()
        self._ended = asyncio.Event()
        """No call is left. Loops look at it as well as being cancelled: Python 3.11's wait_for, on
        which the libraries build, can lose a cancellation."""
        self._setup_error = ""
        self._said: dict[tuple[str, int], str] = {}

    async def run(self) -> None:
        """Serve until told to stop. SetupError."""
        for service in SERVICES:
            self._calls.hold(service)
        await self._readiness.begin()
        self._listen_for_the_end()
        try:
            async with asyncio.TaskGroup() as group:
                agreeing = group.create_task(self._agree(), name="agree")
                serving = group.create_task(self._serve(), name="serve")
                try:
                    await self._take_calls()
                    await self._stopping.wait()
                    await self._stop_calls()
                finally:
                    self._ended.set()
                    self._ledger_asked.set()
                    self._agreed.set()
                agreeing.cancel()
                serving.cancel()
        finally:
            await self._server.stop(0)
            await self._databases.from_all(Database.close)
        if self._setup_error:
            raise SetupError(self._setup_error)

    async def _take_calls(self) -> None:
        """Listen once the services are open, or it is clear that they will not be soon.

        Processes share a port: one that listened earlier would refuse calls that another can serve.
        """
        waits = [
            asyncio.create_task(event.wait(), name="start")
            for event in (self._settled, self._stopping)
        ]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        if self._stopping.is_set():
            return
        address = self._arguments.grpc
        try:
            listen(self._server, address, self._settings)
        except (OSError, RuntimeError):  # gRPC says no more than that it failed
            text = f"cannot listen on {address} (INVENTORY_GRPC_ADDRESS, INVENTORY_GRPC_TLS_…)"
            self._setup_failed(SetupError(text))
            return
        await self._server.start()

    def _listen_for_the_end(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # held back by the parent
        loop.add_reader(self._arguments.lifeline, self._parent_died)

    def _parent_died(self) -> None:
        """Stop; nobody is left to kill a process that does not come to its end."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._arguments.lifeline)
        loop.call_later(self._settings.drain_s_max + ORPHAN_SLACK_S, os._exit, 1)
        self._stop_at_once()

    def _stop_at_once(self) -> None:
        self._at_once = True
        self._stopping.set()

    async def _agree(self) -> None:
        """Compare the settings with what each MySQL server has on record as soon as that answers.

        Another partition count, or another order of the servers, would look for every product at another
        place, and find none.
        """
        agreement = Agreement(self._databases, partitions=self._settings.partitions)
        async with asyncio.TaskGroup() as group:
            for server in range(len(self._databases)):
                group.create_task(self._agree_with(agreement, server), name=f"agree {server}")

    async def _agree_with(self, agreement: Agreement, server: int) -> None:
        while not self._ended.is_set():
            try:
                async with asyncio.timeout(ANSWER_S):
                    await self._confirm(agreement, server)
            except _OF_OTHERS as error:
                self._setup_failed(error)
                return
            except (LedgerError, TimeoutError) as error:
                where = self._databases.all[server].server
                self._say_once("ledger_away", str(error) or f"MySQL at {where}: no answer", server)
                if self._settings.engine is Engine.MYSQL:
                    self._settled.set()
            else:
                self._note_asked(server)
                self._agreed.set()
                return
            self._note_asked(server)
            await asyncio.sleep(RETRY_S)

    async def _confirm(self, agreement: Agreement, server: int) -> None:
        if self._settings.engine is Engine.REDIS:
            await agreement.confirm(server)
        else:
            await require_schema(self._databases.all[server])
            await claim_for_mysql(self._databases.all[server])

    def _note_asked(self, server: int) -> None:
        """The services open once each server was asked: one that is away keeps no other waiting."""
        self._unasked.discard(server)
        if not self._unasked:
            self._ledger_asked.set()

    def _setup_failed(self, error: Exception) -> None:
        self._setup_error = str(error)
        self._stop_at_once()

    def _say_once(self, event: str, detail: str, server: int = 0) -> None:
        if self._said.get((event, server)) != detail:
            self._said[event, server] = detail
            self._log.warning(event, detail=detail)

    async def _serve(self) -> None:
        """Reach what sells, open the services, then keep saying whether it is there."""
        engine = await self._connected()
        if engine is None:
            return
        intake = Intake(engine.gates, self._metrics, engine.pace)
        try:
            await self._ledger_asked.wait()
            await engine.is_ready()
            self._open(engine, intake)
            async with asyncio.TaskGroup() as loops:
                loops.create_task(self._watch(engine), name="watch")
                for name, loop in engine.loops(self._ended).items():
                    loops.create_task(loop, name=name)
        except* (PartitionCountError, ServerCountError) as wrong:
            self._setup_failed(wrong.exceptions[0])
        finally:
            await _drain(intake, engine, self._log)
            await engine.close()

    async def _connected(self) -> SellingEngine | None:
        """What sells, once it answers, or the ledger can do without; None if the process ends before."""
        if self._settings.engine is Engine.MYSQL:
            await self._agreed.wait()
            if self._ended.is_set():
                return None
            return MysqlEngine(
                self._settings,
                self._databases.all[0],
                metrics=self._metrics,
                sales_metrics=SalesMetrics(self._registry),
                engine_metrics=EngineMetrics(self._registry),
                log=self._log,
            )
        stock_metrics, ledgers = StockMetrics(self._registry), len(self._databases)
        while not self._ended.is_set():
            try:
                return await self._on_fit_nodes(
                    await Cluster.connect(self._settings, stock_metrics, ledgers=ledgers)
                )
            except StockUnavailableError as error:
                self._say_once("redis_away", error.detail)
                if self._agreed.is_set():
                    cluster = Cluster.unconnected(self._settings, stock_metrics, ledgers=ledgers)
                    return self._redis_engine(cluster, Inspection(cluster))
                if self._ledger_asked.is_set():
                    self._settled.set()
            await asyncio.sleep(RETRY_S)
        return None

    async def _on_fit_nodes(self, cluster: Cluster) -> RedisEngine | None:
        """None, and the process ends, where a node can lose units by the way that it is set up."""
        inspection = Inspection(cluster)
        try:
            await inspection.require_fit()
        except NodeUnfitError as error:
            self._setup_failed(error)
            await cluster.close()
            return None
        return self._redis_engine(cluster, inspection)

    def _redis_engine(self, cluster: Cluster, inspection: Inspection) -> RedisEngine:
        cluster.pass_by = self._failpoints.hit if self._failpoints else None
        return RedisEngine(
            self._settings,
            self._databases,
            cluster,
            inspection,
            metrics=self._metrics,
            ledger_metrics=self._ledger_metrics,
            sales_metrics=SalesMetrics(self._registry),
            log=self._log,
        )

    def _open(self, engine: SellingEngine, intake: Intake) -> None:
        products = self._databases.each(Products)
        grace_s = self._settings.confirm_grace_s
        self._calls.serve(
            INVENTORY,
            self._inventory(engine, products, intake),
            OrderService(engine.orders, intake, grace_s, self._log),
            self._events(),
        )
        self._calls.serve(
            ADMIN,
            *engine.special,
            self._admin(engine, products),
            HoldService(self._databases.each(Holds), engine.orders, intake, grace_s),
            self._journal(),
            AuditService(engine.auditors(), self._settings.close_wait_s_max),
            FreezeService(self._databases.each(Freezes), engine.stock),
        )
        self._settled.set()

    def _inventory(
        self, engine: SellingEngine, products: PerServer[Products], intake: Intake
    ) -> InventoryService:
        return InventoryService(
            intake=intake,
            reader=StockReader(engine.counts, products, engine.gates),
            resolver=Resolver(engine.stock, products, engine.gates),
            lives=self._lives,
            metrics=self._metrics,
            batches_max=self._settings.stream_batches_max,
            encoder=ResultEncoder(),
        )

    def _events(self) -> EventService:
        return EventService(self._databases.each(EventsFeed).each(Tail), self._lives)

    def _journal(self) -> JournalService:
        return JournalService(
            self._databases.each(DeadLetters),
            self._databases.each(lambda each: LetterRetries(each, self._failpoints)),
            self._databases.each(Timeline),
        )

    def _admin(self, engine: SellingEngine, products: PerServer[Products]) -> AdminService:
        return AdminService(
            products=products,
            lifecycle=engine.lifecycle(products),
            resharding=engine.shard_counts,
            gates=engine.gates,
            buffers=self._databases.each(
                lambda each: Buffers(each, partitions=self._settings.partitions)
            ),
            overview=engine.overview,
            partitions=self._settings.partitions,
            close_wait_s_max=self._settings.close_wait_s_max,
            version=_version(),
        )

    async def _watch(self, engine: SellingEngine) -> None:
        ready = False
        while not self._ended.is_set():
            now = await engine.is_ready()
            if now != ready:
                self._log.info("ready" if now else "not_ready")
                ready = now
            await self._readiness.update(ready=ready)
            await asyncio.sleep(engine.look_s)

    async def _stop_calls(self) -> None:
        """First say that this process leaves, then refuse calls, then wait for those under way."""
        await self._readiness.leave()
        if not self._at_once:
            await asyncio.sleep(self._settings.drain_notice_s)
        self._lives.drain()
        await self._server.stop(self._settings.drain_s_max)


async def _drain(intake: Intake, engine: SellingEngine, log: FilteringBoundLogger) -> None:
    """What stands on another is drained before it."""
    try:
        async with asyncio.timeout(STOCK_DRAIN_S):
            await intake.drain()
            await engine.drain()
    except TimeoutError:
        log.warning("work_left", detail="some requests were sent on and not answered")


def _version() -> str:
    try:
        return version("inventory-service")
    except PackageNotFoundError:
        return "unknown"  # runs from a folder in which nothing was installed


def _registry() -> CollectorRegistry:
    registry = CollectorRegistry()
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=registry)
    return registry


def _bounds(settings: ServerSettings) -> Bounds:
    worker_s = settings.close_wait_s_max + LAST_WORD_S
    return Bounds(call_s=settings.call_s_max, worker_s=max(worker_s, settings.call_s_max))


def _failpoints() -> Failpoints:
    try:
        return Failpoints.from_environment()
    except ValueError as error:
        raise SetupError(str(error)) from error


def _show_metrics(address: str, registry: CollectorRegistry) -> None:
    host, port = parse_address(address)
    try:
        start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        raise SetupError(
            f"cannot listen on {address} (INVENTORY_METRICS_ADDRESS): {error.strerror}"
        ) from error


def _arguments() -> Arguments:
    parser = argparse.ArgumentParser(prog="python -m server.serve")
    parser.add_argument("--child", type=int, required=True)
    parser.add_argument("--grpc", required=True)
    parser.add_argument("--metrics", required=True)
    parser.add_argument("--lifeline", type=int, required=True)
    found = parser.parse_args()
    lifeline = socket.socket(fileno=found.lifeline)
    return Arguments(found.child, found.grpc, found.metrics, lifeline)


def main() -> int:
    """Serve; returns the exit status."""
    arguments = _arguments()
    log = configure_logs(process="server", child=arguments.child)
    registry = _registry()

    async def run() -> None:
        await Process(ServerSettings(), arguments, registry, log, _failpoints()).run()

    try:
        _show_metrics(arguments.metrics, registry)
        look_rarely()
        uvloop.run(run())
    except KeyboardInterrupt:
        return INTERRUPTED
    except SetupError as error:
        arguments.lifeline.sendall(str(error).encode())
        return SETUP_ERROR
    except Exception as error:
        log.critical("crashed", exc_info=error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
