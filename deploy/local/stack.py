"""The whole service on this machine, as an object that tests, the demo and `run` drive."""

import json
import os
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from deploy.local.database import Database
from deploy.local.errors import StackError
from deploy.local.folder import Folder
from deploy.local.given import SETTINGS
from deploy.local.ports import (
    HOST,
    MYSQL_SERVERS_MAX,
    REDIS_NODES,
    SERVER_PROCESSES_MAX,
    SERVERS_MAX,
    WORKERS_MAX,
    Ports,
    Reservation,
    reserve,
    reserve_any,
)
from deploy.local.probes import accepting, serving
from deploy.local.process import Process
from deploy.local.programs import Programs, find_programs
from deploy.local.redis_cluster import RedisNode, start_cluster
from deploy.local.waiting import Condition, together
from ledger.engine_claim import Engine
from sharding.settings import Durability

PROJECT = Path(__file__).parents[2]
PROMETHEUS_CONFIG = PROJECT / "deploy" / "prometheus.yml"
PROMETHEUS_ALERTS = PROJECT / "deploy" / "alerts.yml"

# How long each kind may take to stop by itself: a server drains its calls, a worker its batch.
SERVER_GRACE_S = 12.0
WORKER_GRACE_S = 12.0
REDIS_GRACE_S = 5.0
MYSQL_GRACE_S = 10.0


class LocalStack:
    """Six Redis nodes and MySQL servers, and any servers and workers that are started on them; with the
    engine mysql just MySQL and servers.

    ``async with LocalStack() as stack: await stack.start_services()``, from the main thread and on
    one event loop. Everything that it started ends with this process, whatever ends that.

    `redis` (three masters, then their replicas in the same order) and `databases` exist from
    `start_services` on; `servers` and `workers` hold what was started, by number.
    """

    redis: list[RedisNode]
    databases: list[Database]
    ports: Ports

    def __init__(
        self,
        directory: Path | None = None,
        *,
        base_port: int | None = None,
        mysql_servers: int = 1,
        programs: Programs | None = None,
        engine: Engine = Engine.REDIS,
        durability: Durability = "replicated",
        redis_announced_ports: Sequence[int] = (),
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """Without a directory, use one that `stop` removes; without a base port, find a free block.

        A directory that was used before brings its data, also to other ports.
        `redis_announced_ports`: where the Redis nodes are reached if that is not where they listen.
        `settings`: environment of all servers and workers.
        """
        _check_range(
            "MySQL servers", mysql_servers, MYSQL_SERVERS_MAX if engine is Engine.REDIS else 1
        )
        self._mysql_servers = mysql_servers
        self._directory = directory
        self._base_port = base_port
        self._programs = programs
        self.engine = engine
        self._durability = durability
        self._settings = settings or {}
        self._redis_announced_ports: Sequence[int | None] = (
            redis_announced_ports or [None] * REDIS_NODES
        )
        self._on_stop = AsyncExitStack()
        self.servers: dict[int, Process] = {}
        self.workers: dict[int, Process] = {}
        self._processes_of_server: dict[int, int] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    async def start_services(self) -> None:
        """Start Redis, where there is one, and MySQL; when this returns, both take writes."""
        programs = self._programs or find_programs(with_redis=self.engine is Engine.REDIS)
        folder = Folder(self._directory)
        self._on_stop.callback(folder.close)
        reservation = self._reserve(folder.ports_before)
        self._on_stop.callback(reservation.release)
        self.directory, self.ports = folder.path, reservation.ports
        self.redis = self._redis_nodes(programs)
        for node in self.redis:
            node.move_neighbours(folder.ports_before or self.ports, self.ports)
        self.databases = [
            Database(
                programs,
                port=self.ports.mysql(number),
                password=folder.password,
                directory=folder.path,
                number=number,
            )
            for number in range(self._mysql_servers)
        ]
        folder.remember(self.ports)
        self._on_stop.push_async_callback(self._stop_all)
        starts = [start_cluster(self.redis)] if self.redis else []
        await together(*(database.start() for database in self.databases), *starts)

    async def migrate(self) -> None:
        """Bring the ledger's tables up to date."""
        await self.run_python("migrate", "-m", "ledger", "migrate")

    async def start_server(
        self,
        number: int = 0,
        *,
        processes: int = 1,
        environment: Mapping[str, str] | None = None,
    ) -> Process:
        """Start a server and wait until its health is SERVING; `environment` adds settings."""
        _check_range("servers", number + 1, SERVERS_MAX)
        _check_range("processes", processes, SERVER_PROCESSES_MAX)
        self.servers[number] = self._python(
            f"server-{number}",
            "-m",
            "server",
            ready=serving(self.grpc_address(number)),
            environment={
                "INVENTORY_GRPC_ADDRESS": self.grpc_address(number),
                "INVENTORY_METRICS_ADDRESS": f"{HOST}:{self.ports.server_metrics(number)}",
                "INVENTORY_SERVER_PROCESSES": str(processes),
                **(environment or {}),
            },
        )
        self._processes_of_server[number] = processes
        await self.servers[number].start()
        return self.servers[number]

    async def start_worker(
        self, number: int = 0, *, environment: Mapping[str, str] | None = None
    ) -> Process:
        """Start a worker and wait until its metrics answer; `environment` adds settings."""
        _check_range("workers", number + 1, WORKERS_MAX)
        port = self.ports.worker_metrics(number)
        self.workers[number] = self._python(
            f"worker-{number}",
            "-m",
            "worker",
            ready=accepting(port),
            environment={"INVENTORY_METRICS_ADDRESS": f"{HOST}:{port}", **(environment or {})},
        )
        await self.workers[number].start()
        return self.workers[number]

    async def run_python(self, name: str, *arguments: str) -> None:
        """Run a module of ours on this stack to its end; raise StackError when it fails."""
        process = self._python(name, *arguments)
        await process.start()
        try:
            exit_code = await process.wait()
        finally:
            process.kill()
        if exit_code != 0:
            raise StackError(f"{name} failed; {process.last_words()}")

    async def stop(self) -> None:
        """Stop everything, callers before stores; remove the directory if it is a temporary one."""
        await self._on_stop.aclose()

    @property
    def redis_nodes(self) -> list[str]:
        """`host:port` of all six nodes."""
        return [node.address for node in self.redis]

    @property
    def database(self) -> Database:
        """The first MySQL server, which is the only one unless there are several."""
        return self.databases[0]

    @property
    def mysql_url(self) -> str:
        """Of the first server."""
        return self.mysql_urls[0]

    @property
    def mysql_urls(self) -> list[str]:
        """Of all servers, in the order that the service knows them by."""
        return [database.url for database in self.databases]

    def grpc_address(self, server: int = 0) -> str:
        """`host:port` of a server, whether it runs or not."""
        return f"{HOST}:{self.ports.grpc(server)}"

    @property
    def metrics_addresses(self) -> list[str]:
        """`host:port` of every metrics port of the servers and workers that were started."""
        servers = [
            self.ports.server_metrics(number) + process
            for number in self.servers
            for process in range(self._processes_of_server[number])
        ]
        workers = [self.ports.worker_metrics(number) for number in self.workers]
        return [f"{HOST}:{port}" for port in servers + workers]

    def environment(self) -> dict[str, str]:
        """This process's environment with the settings that this stack was given, its own, and none of
        another service's."""
        own = {name: value for name, value in os.environ.items() if not name.startswith(SETTINGS)}
        return {
            **own,
            **self._settings,
            **self._engine_settings(),
            "INVENTORY_MYSQL_URLS": ",".join(self.mysql_urls),
        }

    def endpoints(self) -> dict[str, Any]:
        """What a script needs to use the stack: the line that `run --json` prints."""
        return {
            "grpc": self.grpc_address() if self.servers else None,
            "metrics": [f"http://{address}/metrics" for address in self.metrics_addresses],
            "console": None,
            "redis": self.redis_nodes,
            "mysql": self.mysql_url,
            "mysql_servers": self.mysql_urls,
        }

    def write_prometheus_config(self) -> Path:
        """Write a configuration that scrapes what was started by now; return its path."""
        folder = self.directory / "prometheus"
        (folder / "targets").mkdir(parents=True, exist_ok=True)
        targets = [{"targets": self.metrics_addresses}]
        (folder / "targets" / "local.json").write_text(json.dumps(targets))
        shutil.copy(PROMETHEUS_ALERTS, folder)
        return Path(shutil.copy(PROMETHEUS_CONFIG, folder))

    def _redis_nodes(self, programs: Programs) -> list[RedisNode]:
        if self.engine is Engine.MYSQL:
            return []
        assert programs.redis is not None
        return [
            RedisNode(
                number,
                program=programs.redis,
                ports=self.ports,
                directory=self.directory,
                durability=self._durability,
                announced_port=announced_port,
            )
            for number, announced_port in enumerate(self._redis_announced_ports)
        ]

    def _engine_settings(self) -> dict[str, str]:
        if self.engine is Engine.MYSQL:
            return {"INVENTORY_ENGINE": self.engine.value}
        return {
            "INVENTORY_REDIS_NODES": ",".join(self.redis_nodes),
            "INVENTORY_DURABILITY": self._durability,
        }

    def _reserve(self, ports_before: Ports | None) -> Reservation:
        if self._base_port is not None:
            return reserve(self._base_port)
        return reserve_any(prefer=ports_before)

    def _python(
        self,
        name: str,
        *arguments: str,
        ready: Condition | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Process:
        return Process(
            name,
            [sys.executable, *arguments],
            log=self.directory / "logs" / f"{name}.log",
            directory=PROJECT,
            # Unbuffered, so that a log ends with the last thing that happened.
            environment={**self.environment(), "PYTHONUNBUFFERED": "1", **(environment or {})},
            ready=ready,
        )

    async def _stop_all(self) -> None:
        await _stop(self.servers.values(), grace_s=SERVER_GRACE_S)
        await _stop(self.workers.values(), grace_s=WORKER_GRACE_S)
        await _stop((node.process for node in self.redis), grace_s=REDIS_GRACE_S)
        await _stop((each.process for each in self.databases), grace_s=MYSQL_GRACE_S)


async def _stop(processes: Iterable[Process], *, grace_s: float) -> None:
    await together(*(process.stop(grace_s=grace_s) for process in processes))


def _check_range(what: str, number: int, maximum: int) -> None:
    if not 1 <= number <= maximum:
        raise StackError(f"{number} {what}: a local stack has room for 1 to {maximum}")
