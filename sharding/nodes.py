"""Redis nodes, asked one by one about themselves."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from sharding.cluster import Cluster
from sharding.errors import StockUnavailableError
from sharding.fitness import MIN_REPLICAS
from sharding.lane import Node

LISTING_S = 1.0
"""How long masters may take to say which nodes there are."""
IN_SYNC_LAG_S_MAX = 2
"""Replicas acknowledge once a second."""


class Replication(NamedTuple):
    """How a master is followed."""

    in_sync: int
    """Replicas that acknowledge what it writes."""
    known: int
    """Replicas that the cluster does not take for dead, in sync or not."""
    demanded: int
    """Replicas in sync without which it writes nothing."""


class _Member(NamedTuple):
    """A line of CLUSTER NODES."""

    id: str
    node: Node
    flags: frozenset[str]
    of: str
    """The id of its master; of a master "-"."""


class Nodes:
    """Every method raises StockUnavailableError when the node does not answer, or refuses to."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def all(self) -> Sequence[Node]:
        """The masters that are known, and the others that they know; no others without an answer
        within LISTING_S."""
        masters = list(self._cluster.masters())
        listings = await asyncio.gather(*map(self._listed, masters))
        return list(dict.fromkeys([*masters, *chain(*listings)]))

    async def _listed(self, master: Node) -> Sequence[Node]:
        try:
            async with asyncio.timeout(LISTING_S):
                return [each.node for each in await self._members(master)]
        except (StockUnavailableError, TimeoutError):
            return []

    async def replication(self, node: Node) -> Replication:
        """How a master is followed now."""
        said = await self.info(node, "replication")
        replicas = [said[name] for name in said if name.removeprefix("slave").isdigit()]
        members = await self._members(node)
        own = next(each for each in members if "myself" in each.flags)
        return Replication(
            in_sync=sum(map(_is_in_sync, replicas)),
            known=sum(each.of == own.id and "fail" not in each.flags for each in members),
            demanded=await self.demanded(node),
        )

    async def demanded(self, node: Node) -> int:
        """Replicas in sync without which a master writes nothing."""
        return int((await self.settings(node, MIN_REPLICAS)).get(MIN_REPLICAS, "0"))

    async def demand(self, node: Node, replicas: int) -> None:
        """Have a master write nothing without so many replicas in sync, until it is restarted."""
        await self._cluster.ask(node, "CONFIG", "SET", MIN_REPLICAS, str(replicas))

    async def settings(self, node: Node, *names: str) -> Mapping[str, str]:
        """What a node is set to; a setting that it does not have is left out."""
        reply = await self._cluster.ask(node, "CONFIG", "GET", *names)
        assert isinstance(reply, list)
        words = [_text(word) for word in reply]
        return dict(zip(words[::2], words[1::2], strict=True))

    async def clock_ahead_s(self, node: Node) -> float:
        """By how much its clock is ahead of this process's; below zero: behind it."""
        before_s = time.time()
        reply = await self._cluster.ask(node, "TIME")
        assert isinstance(reply, list)
        seconds, microseconds = map(int, reply)
        return seconds + microseconds / 1e6 - (before_s + time.time()) / 2

    async def info(self, node: Node, section: str) -> Mapping[str, str]:
        """A section of what a node says of itself."""
        text = _text(await self._cluster.ask(node, "INFO", section))
        pairs = (line.partition(":") for line in text.splitlines())
        return {name: value for name, colon, value in pairs if colon}

    async def _members(self, node: Node) -> list[_Member]:
        """The cluster as one node sees it; without nodes that nobody can reach."""
        listing = _text(await self._cluster.ask(node, "CLUSTER", "NODES"))
        members = (_member(line) for line in listing.splitlines())
        return [each for each in members if not each.flags & {"noaddr", "handshake"}]


def _text(reply: object) -> str:
    assert isinstance(reply, bytes)
    return reply.decode()


def _is_in_sync(replica: str) -> bool:
    """Of `ip=…,port=…,state=online,offset=…,lag=0`."""
    said = dict(part.split("=", 1) for part in replica.split(","))
    return said["state"] == "online" and int(said["lag"]) <= IN_SYNC_LAG_S_MAX


def _member(line: str) -> _Member:
    """Of `<id> <host>:<port>@<bus port>,<name> <flags> <master's id> …`."""
    member_id, address, flags, of, *_ = line.split(" ")
    host, _, port = address.partition("@")[0].rpartition(":")
    return _Member(member_id, Node(host, int(port)), frozenset(flags.split(",")), of)
