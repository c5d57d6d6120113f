"""Redis nodes, asked one by one about themselves."""

from collections.abc import Mapping
from typing import NamedTuple

from sharding.cluster import Cluster
from sharding.lane import Node

IN_SYNC_LAG_S_MAX = 2
"""Replicas acknowledge once a second."""
MIN_REPLICAS = "min-replicas-to-write"


class Replication(NamedTuple):
    """How a master is followed."""

    in_sync: int
    """Replicas that acknowledge what it writes."""
    known: int
    """Replicas that the cluster does not take for dead, in sync or not."""
    demanded: int
    """Replicas in sync without which it writes nothing."""


class Nodes:
    """Every method raises StockUnavailableError when the node does not answer, or refuses to."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def replication(self, node: Node) -> Replication:
        """How a master is followed now."""
        said = await self.info(node, "replication")
        replicas = [said[name] for name in said if name.removeprefix("slave").isdigit()]
        listing = _text(await self._cluster.ask(node, "CLUSTER", "NODES"))
        return Replication(
            in_sync=sum(map(_is_in_sync, replicas)),
            known=_known_replicas(listing),
            demanded=int((await self.settings(node, MIN_REPLICAS))[MIN_REPLICAS]),
        )

    async def demand(self, node: Node, replicas: int) -> None:
        """Have a master write nothing without so many replicas in sync, until it is restarted."""
        await self._cluster.ask(node, "CONFIG", "SET", MIN_REPLICAS, str(replicas))

    async def settings(self, node: Node, *names: str) -> Mapping[str, str]:
        """What a node is set to; a setting that it does not have is left out."""
        reply = await self._cluster.ask(node, "CONFIG", "GET", *names)
        assert isinstance(reply, list)
        words = [_text(word) for word in reply]
        return dict(zip(words[::2], words[1::2], strict=True))

    async def info(self, node: Node, section: str) -> Mapping[str, str]:
        """A section of what a node says of itself."""
        text = _text(await self._cluster.ask(node, "INFO", section))
        pairs = (line.partition(":") for line in text.splitlines())
        return {name: value for name, colon, value in pairs if colon}


def _text(reply: object) -> str:
    assert isinstance(reply, bytes)
    return reply.decode()


def _is_in_sync(replica: str) -> bool:
    """Of `ip=…,port=…,state=online,offset=…,lag=0`."""
    said = dict(part.split("=", 1) for part in replica.split(","))
    return said["state"] == "online" and int(said["lag"]) <= IN_SYNC_LAG_S_MAX


def _known_replicas(listing: str) -> int:
    """Of lines `<id> <address> <flags> <master's id> …`, one of which says `myself`."""
    rows = [line.split(" ") for line in listing.splitlines()]
    own_id = next(row[0] for row in rows if "myself" in row[2].split(","))
    return sum(row[3] == own_id and "fail" not in row[2].split(",") for row in rows)
