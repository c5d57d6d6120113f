"""A Redis Cluster of three masters with one replica each, made without redis-cli."""

import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from deploy.local.ports import HOST, REDIS_NODES, Ports
from deploy.local.process import Process
from deploy.local.waiting import together, until
from sharding.settings import Durability

MASTERS = REDIS_NODES // 2
SLOTS = 16_384
FORMED_WITHIN_S = 30.0
CONFIG = Path(__file__).parents[1] / "redis.conf"


class RedisNode:
    """One node: its process and what it answers about itself."""

    def __init__(
        self,
        number: int,
        *,
        program: Path,
        ports: Ports,
        directory: Path,
        durability: Durability = "replicated",
        announced_port: int | None = None,
    ) -> None:
        """`number` counts from 0; the first three start as masters, number + 3 as its replica.

        `announced_port`: where everybody but the cluster's bus reaches it, if that is not its own.
        """
        name = f"redis-{number + 1}"
        self.port = ports.redis(number)
        self.bus_port = ports.redis_bus(number)
        self.announced_port = announced_port or self.port
        self.address = f"{HOST}:{self.announced_port}"
        self.directory = directory / name
        self._durability = durability
        self.process = Process(
            name,
            [str(program), str(CONFIG), *self._own_settings()],
            log=directory / "logs" / f"{name}.log",
            directory=directory,
            ready=self.answers,
            # A node that was just copied to does not stop before its first append-only file is whole.
            sigterm_every_s=0.2,
        )

    def _own_settings(self) -> list[str]:
        settings = {
            "bind": HOST,
            "port": str(self.port),
            "cluster-port": str(self.bus_port),
            "cluster-announce-ip": HOST,
            "dir": str(self.directory),
            # Tests stall a node with DEBUG SLEEP.
            "enable-debug-command": "local",
            # The whole stack stops: a master need not wait for a replica that is gone for good.
            "shutdown-timeout": "1",
        }
        if self._durability == "synced":
            settings["appendfsync"] = "always"
        if self.announced_port != self.port:
            settings["cluster-announce-port"] = str(self.announced_port)
        return [word for name, value in settings.items() for word in (f"--{name}", value)]

    async def call(self, *command: str | int) -> Any:
        """Send one command on a connection of its own; the reply is as redis-py parses it."""
        async with Redis(
            host=HOST,
            port=self.port,
            decode_responses=True,
            socket_timeout=2.0,
            socket_connect_timeout=2.0,
            retry=Retry(NoBackoff(), 0),
            single_connection_client=True,
        ) as client:
            return await client.execute_command(*command)  # type: ignore[no-untyped-call]

    async def answers(self) -> bool:
        """Whether it has loaded its data and takes commands."""
        with suppress(RedisError):
            return bool(await self.call("PING"))
        return False

    async def is_master(self) -> bool:
        return bool((await self.call("INFO", "replication"))["role"] == "master")

    async def identity(self) -> str:
        """Its node id in the cluster."""
        return str(await self.call("CLUSTER MYID"))

    async def knows_cluster(self) -> bool:
        """Whether its own `nodes.conf` already names the other nodes."""
        return int((await self.call("CLUSTER INFO"))["cluster_known_nodes"]) > 1

    async def introduced_to(self, identities: Sequence[str]) -> bool:
        """Whether it knows these nodes, past the handshake."""
        nodes = await self.call("CLUSTER NODES")
        known = {node["node_id"] for node in nodes.values() if "handshake" not in node["flags"]}
        return known.issuperset(identities)

    async def settled(self) -> bool:
        """Whether it sees every slot served, and its own side of replication is up."""
        with suppress(RedisError):
            cluster = await self.call("CLUSTER INFO")
            replication = await self.call("INFO", "replication")
            return (
                cluster["cluster_state"] == "ok"
                and int(cluster["cluster_slots_ok"]) == SLOTS
                and _replicates(replication)
            )
        return False

    def move_neighbours(self, earlier: Ports, now: Ports) -> None:
        """Write the ports of this run into what the node remembers of an earlier one."""
        memory = self.directory / "nodes.conf"
        if earlier == now or not memory.exists():
            return
        shift = now.base - earlier.base

        def moved(match: re.Match[str]) -> str:
            return f":{int(match[1]) + shift}@{int(match[2]) + shift}"

        memory.write_text(re.sub(r":(\d+)@(\d+)", moved, memory.read_text()))


def _replicates(replication: dict[str, Any]) -> bool:
    if replication["role"] == "master":
        # What min-replicas-to-write looks at, where it is set: from here on a write is accepted.
        good = replication.get("min_slaves_good_slaves", replication["connected_slaves"])
        return int(good) >= 1
    return bool(replication["master_link_status"] == "up")


async def start_cluster(nodes: Sequence[RedisNode]) -> None:
    """Start the nodes, join them if they never met, and wait until all slots take writes."""
    for node in nodes:
        node.directory.mkdir(exist_ok=True)
    await together(*(node.process.start() for node in nodes))
    if not await nodes[0].knows_cluster():
        await _form(nodes)
    for node in nodes:
        await until(
            node.settled,
            what=f"{node.process.name} does not see a healthy cluster",
            within_s=FORMED_WITHIN_S,
        )


async def _form(nodes: Sequence[RedisNode]) -> None:
    masters, replicas = nodes[:MASTERS], nodes[MASTERS:]
    for number, master in enumerate(masters):
        first, last = SLOTS * number // MASTERS, SLOTS * (number + 1) // MASTERS - 1
        # Distinct epochs from the start: otherwise the masters first argue about who has which.
        await master.call("CLUSTER SET-CONFIG-EPOCH", number + 1)
        await master.call("CLUSTER ADDSLOTSRANGE", first, last)
    await _introduce(nodes)
    for master, replica in zip(masters, replicas, strict=True):
        await replica.call("CLUSTER REPLICATE", await master.identity())


async def _introduce(nodes: Sequence[RedisNode]) -> None:
    """Each to each, since waiting for gossip to spread takes seconds."""
    for number, node in enumerate(nodes):
        for other in nodes[number + 1 :]:
            await node.call("CLUSTER MEET", HOST, other.port, other.bus_port)
    identities = [await node.identity() for node in nodes]
    for node in nodes:

        async def introduced(node: RedisNode = node) -> bool:
            return await node.introduced_to(identities)

        await until(
            introduced,
            what=f"{node.process.name} has not met the other nodes",
            within_s=FORMED_WITHIN_S,
        )
