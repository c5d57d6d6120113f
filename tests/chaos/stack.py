"""The service as it is run, with a proxy before each Redis node, and the way back from any fault."""

import asyncio
import os
import signal
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, suppress
from random import Random
from types import TracebackType
from typing import Self

from redis.exceptions import RedisError

from deploy.demo.families import family
from deploy.local.errors import StackError
from deploy.local.ports import HOST, REDIS_NODES
from deploy.local.process import Process
from deploy.local.redis_cluster import RedisNode
from deploy.local.stack import LocalStack
from deploy.local.waiting import until
from inventory.client import AsyncInventoryClient, InventoryError, RetryPolicy
from tests.acceptance.shop import SERVERS, WORKERS, Shop
from tests.chaos.oracle import Pause
from tests.chaos.proxy import Proxy
from tests.pages import figures

HEALED_WITHIN_S = 40.0
DEADLINE_S = 2.0
WATCH_EVERY_S, NOTED_FROM_S = 0.01, 0.005
PAUSES_MAX = 20_000
ONE_TRY = RetryPolicy(deadline_s=DEADLINE_S, try_timeout_s=DEADLINE_S, tries_max=1)
HASTY = RetryPolicy(deadline_s=3.0, try_timeout_s=3.0, tries_max=1)
STOP_GRACE_S = 12.0
LEASE_TTL_S = 2
SETTINGS = {"INVENTORY_LEASE_TTL_S": str(LEASE_TTL_S)}
"""A worker's share is taken over as quickly as a setting allows: the faults are many."""


class Stage:
    """Two servers, two workers, MySQL and six Redis nodes that are reached through proxies.

    Replication and the bus of the cluster pass the proxies untouched.
    """

    shop: Shop
    callers: list[AsyncInventoryClient]
    """Two that send each call once: each goes to a server of its own while that is there."""
    lookers: list[AsyncInventoryClient]
    """One a server, for what an operator looks at."""

    def __init__(self, choice: Random) -> None:
        self.choice = choice
        self._on_close = AsyncExitStack()
        self.pauses: deque[Pause] = deque(maxlen=PAUSES_MAX)
        """When this process, and every caller in it, stood still."""
        self.proxies = [Proxy(self._target(number), choice=choice) for number in range(REDIS_NODES)]

    async def __aenter__(self) -> Self:
        watch = asyncio.create_task(self._watch(), name="watch")
        self._on_close.callback(watch.cancel)
        for proxy in self.proxies:
            await self._on_close.enter_async_context(proxy)
        self.stack = await self._on_close.enter_async_context(
            LocalStack(redis_announced_ports=[proxy.port for proxy in self.proxies])
        )
        await self.stack.start_services()
        await self.stack.migrate()
        self.shop = await self._on_close.enter_async_context(Shop(self.stack, SETTINGS))
        await self.shop.start()
        addresses = [self.stack.grpc_address(each) for each in SERVERS]
        self.lookers = [await self.shop.client(address, HASTY) for address in addresses]
        self.callers = [
            await self.shop.client(f"ipv4:{','.join(order)}", ONE_TRY)
            for order in (addresses, addresses[::-1])
        ]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._resume()
        await self._on_close.aclose()

    def _target(self, number: int) -> Callable[[], tuple[str, int]]:
        return lambda: (HOST, self.stack.redis[number].port)

    @property
    def processes(self) -> list[Process]:
        """Everything that runs, stores first."""
        stack = self.stack
        return [
            *(node.process for node in stack.redis),
            *(database.process for database in stack.databases),
            *stack.servers.values(),
            *stack.workers.values(),
        ]

    async def masters(self) -> list[RedisNode]:
        """The nodes that lead now, in no order that means anything."""
        found = [node for node in self.stack.redis if node.process.alive and await _leads(node)]
        return self.choice.sample(found, len(found))

    async def a_master(self) -> RedisNode:
        """One of them, by the seed."""
        return (await self.masters())[0]

    async def replica_of(self, master: RedisNode) -> RedisNode:
        """The node that follows it."""
        identity = await master.identity()
        nodes = await master.call("CLUSTER NODES")
        address = next(address for address, node in nodes.items() if node["master_id"] == identity)
        return next(node for node in self.stack.redis if node.address == address)

    @property
    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    async def slots_of(self, node: RedisNode) -> list[range]:
        """The slots that it leads."""
        found = (await node.call("CLUSTER NODES"))[node.address]["slots"]
        return [range(int(first), int(last) + 1) for first, last in map(_ends, found)]

    def proxy_of(self, node: RedisNode) -> Proxy:
        return self.proxies[self.stack.redis.index(node)]

    def kill_node(self, node: RedisNode) -> None:
        """SIGKILL; its port refuses connections then, as if no proxy stood before it."""
        node.process.kill()
        self.proxy_of(node).refuse()

    async def start_node(self, node: RedisNode) -> None:
        """Its next life."""
        if not self.proxy_of(node).is_open:
            await self.proxy_of(node).open()
        await node.process.start()

    async def on_nodes(self, *command: str | int) -> None:
        """Tell every node; one that is away is not told."""
        for node in self.stack.redis:
            with suppress(RedisError, OSError):
                await node.call(*command)

    async def restart_workers(self, environment: Mapping[str, str] | None = None) -> None:
        """Start both workers anew, with these settings added to the usual ones."""
        for number in WORKERS:
            await self.stop_worker(number)
            await self.start_worker(number, environment)

    async def stop_worker(self, number: int) -> None:
        await self.stack.workers[number].stop(grace_s=STOP_GRACE_S)

    async def start_worker(
        self, number: int, environment: Mapping[str, str] | None = None
    ) -> Process:
        settings = {**SETTINGS, **(environment or {})}
        return await self.stack.start_worker(number, environment=settings)

    async def restart_servers(self, environment: Mapping[str, str] | None = None) -> None:
        """Start both servers anew, one after the other, with these settings added."""
        for number in SERVERS:
            await self.stack.servers[number].stop(grace_s=STOP_GRACE_S)
            settings = {**SETTINGS, **(environment or {})}
            await self.stack.start_server(number, environment=settings)

    async def counted(self, name: str) -> float:
        """A figure of all workers, added up; StackError if one does not answer."""
        ports = map(self.stack.ports.worker_metrics, WORKERS)
        try:
            pages = [await figures(f"{HOST}:{port}", name) for port in ports]
        except OSError as error:
            raise StackError(f"a worker does not tell {name}: {error}") from error
        return sum(value for page in pages for value in page.values())

    @property
    def service_pids(self) -> list[int]:
        """Of all processes of servers and workers."""
        stack = self.stack
        roots = [*stack.servers.values(), *stack.workers.values()]
        return [pid for root in roots if root.alive for pid in family(root.pid)]

    @property
    def ledger_pids(self) -> list[int]:
        """Of MySQL and the workers."""
        stack = self.stack
        roots = [*(each.process for each in stack.databases), *stack.workers.values()]
        return [pid for root in roots if root.alive for pid in family(root.pid)]

    async def heal(self) -> None:
        """End every fault that is still there, and nothing else; what has to mend itself must do so.

        Returns when all partitions take sales again; StackError when they do not.
        """
        self._resume()
        for proxy in self.proxies:
            proxy.heal()
        for node in self.stack.redis:
            if not node.process.alive:
                await self.start_node(node)
        for process in self.processes:
            if not process.alive:
                await process.start()
        await self.until_settled()

    async def until_settled(self) -> None:
        """Return when each Redis node has its role and its other half, and all partitions are open."""
        for node in self.stack.redis:
            await until(node.settled, what=f"{node.process.name} settles", within_s=HEALED_WITHIN_S)
        await until(self.all_open, what="all partitions are open", within_s=HEALED_WITHIN_S)

    async def all_open(self) -> bool:
        """Whether both servers see every partition open."""
        with suppress(InventoryError):
            clusters = [await client.get_cluster() for client in self.lookers]
            return all(each.open for cluster in clusters for each in cluster.partitions)
        return False

    async def _watch(self) -> None:
        while True:
            due_s = self.now_s + WATCH_EVERY_S
            await asyncio.sleep(WATCH_EVERY_S)
            if self.now_s - due_s > NOTED_FROM_S:
                self.pauses.append(Pause(self.now_s, self.now_s - due_s))

    def _resume(self) -> None:
        for process in self.processes if hasattr(self, "shop") else ():
            if process.alive:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGCONT)


async def _leads(node: RedisNode) -> bool:
    with suppress(RedisError, OSError):
        return await node.is_master()
    return False


def _ends(slots: list[str]) -> tuple[str, str]:
    return slots[0], slots[-1]
