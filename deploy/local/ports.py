"""Which port of a stack's block belongs to what."""

import errno
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

from deploy.local.errors import StackError

HOST = "127.0.0.1"
BLOCK_SIZE = 100
PORTS = 65_536
FIRST_UNPRIVILEGED = 1024
# Below the ports that the kernel hands out to outgoing connections (32768 and up).
FIRST_BASE, LAST_BASE = 17_000, 31_900

REDIS_NODES = 6
MYSQL_SERVERS_MAX = 4
SERVERS_MAX = 4
SERVER_PROCESSES_MAX = 8
WORKERS_MAX = 8


@dataclass(frozen=True, slots=True)
class Ports:
    """A block of 100 ports; two stacks never share a block, so their ports never meet."""

    base: int

    def mysql(self, server: int = 0) -> int:
        assert 0 <= server < MYSQL_SERVERS_MAX
        return self.base + 6 + server if server else self.base

    def redis(self, node: int) -> int:
        return self.base + 1 + node

    def redis_bus(self, node: int) -> int:
        return self.base + 11 + node

    def grpc(self, server: int) -> int:
        assert 0 <= server < SERVERS_MAX
        return self.base + 20 + server

    def server_metrics(self, server: int) -> int:
        """The first of a server's metrics ports; its process i listens on this + i."""
        assert 0 <= server < SERVERS_MAX
        return self.base + 30 + server * SERVER_PROCESSES_MAX

    def worker_metrics(self, worker: int) -> int:
        assert 0 <= worker < WORKERS_MAX
        return self.base + 70 + worker

    @property
    def reservation(self) -> int:
        return self.base + BLOCK_SIZE - 1

    def needed(self) -> Iterator[tuple[int, str]]:
        """Every port of the block that something may listen on, and what that is."""
        for server in range(MYSQL_SERVERS_MAX):
            yield self.mysql(server), f"MySQL server {server + 1}" if server else "MySQL"
        for node in range(REDIS_NODES):
            yield self.redis(node), f"Redis node {node + 1}"
            yield self.redis_bus(node), f"cluster bus of Redis node {node + 1}"
        for server in range(SERVERS_MAX):
            yield self.grpc(server), f"gRPC of server {server}"
            for process in range(SERVER_PROCESSES_MAX):
                yield self.server_metrics(server) + process, f"metrics of server {server}"
        for worker in range(WORKERS_MAX):
            yield self.worker_metrics(worker), f"metrics of worker {worker}"


class Reservation:
    """A block of ports that is this process's until `release`, or its end, whatever ends it."""

    def __init__(self, ports: Ports) -> None:
        """Raise StackError when a port of the block is in use."""
        self.ports = ports
        # Two stacks that start at one moment both find the ports free; only one can listen here.
        self._socket = _listen(ports.reservation, "reserves the block for one stack")
        try:
            for port, use in ports.needed():
                _listen(port, use).close()
        except StackError:
            self.release()
            raise

    def release(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def reserve(base: int) -> Reservation:
    """Reserve the block that somebody asked for."""
    if not FIRST_UNPRIVILEGED <= base <= PORTS - BLOCK_SIZE:
        raise StackError(
            f"base port {base}: choose one from {FIRST_UNPRIVILEGED} to {PORTS - BLOCK_SIZE}"
        )
    return Reservation(Ports(base))


def reserve_any(*, prefer: Ports | None) -> Reservation:
    """Reserve the block of an earlier run, or else the first free one."""
    blocks = [Ports(base) for base in range(FIRST_BASE, LAST_BASE + 1, BLOCK_SIZE)]
    for ports in [prefer, *blocks] if prefer else blocks:
        with suppress(StackError):
            return Reservation(ports)
    raise StackError(f"no block of {BLOCK_SIZE} free ports from {FIRST_BASE} to {LAST_BASE}")


def _listen(port: int, use: str) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    # Old connections that linger in TIME_WAIT are no reason to refuse a port.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
        listener.listen(1)
    except OSError as error:
        listener.close()
        if error.errno != errno.EADDRINUSE:
            raise
        raise StackError(
            f"port {port} ({use}) is in use: stop what listens there or choose another --base-port"
        ) from error
    return listener
