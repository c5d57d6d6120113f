"""Asks all Redis nodes how they are set up: at the start, when one of them becomes a master, and twice
a minute."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence

from sharding.cluster import Cluster
from sharding.errors import NodeAwayError, NodeUnfitError, StockUnavailableError
from sharding.fitness import Flaw, NodeReport, demands, judge
from sharding.lane import Node
from sharding.nodes import Nodes

LOOK_S = 1.0
"""Time between two looks at which nodes are masters."""
AGAIN_S = 30.0
"""After so long all nodes are asked again: somebody may have changed a setting."""
FRESH_S = 2.0
"""How long what they said is good enough for whoever asks."""
ANSWER_S = 2.0
"""How long a node may take to say it all; no start waits longer for one that is dead."""

_LOG = logging.getLogger(__name__)


class Inspection:
    """Of all nodes that the cluster names, masters and replicas."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._nodes = Nodes(cluster)
        self._durability = cluster.settings.durability
        self._asked_for = [each.setting for each in demands(self._durability)]
        self._flaws: Sequence[Flaw] = ()
        self._asked_s = float("-inf")
        self._asking = asyncio.Lock()
        self._said: set[Flaw] = set()

    async def require_fit(self) -> None:
        """NodeUnfitError where a node can lose units by the way that it is set up."""
        for flaw in await self.flaws():
            if flaw.loses_units:
                raise NodeUnfitError(str(flaw))

    async def flaws(self) -> Sequence[Flaw]:
        """What is not as it should be, as of the last two seconds; those that lose units first."""
        await self._ask(unless_within_s=FRESH_S)
        return self._flaws

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`: show and say what is wrong."""
        masters: set[Node] = set()
        while not stop.is_set():
            now = set(self._cluster.masters())
            if now - masters or time.monotonic() > self._asked_s + AGAIN_S:
                masters = now
                await self._ask(unless_within_s=0)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await stop.wait()

    async def _ask(self, *, unless_within_s: float) -> None:
        """Ask all nodes, unless somebody has since so long ago."""
        async with self._asking:
            if time.monotonic() > self._asked_s + unless_within_s:
                await self._ask_all()

    async def _ask_all(self) -> None:
        nodes = await self._nodes.all()
        reports = await asyncio.gather(*map(self._report, nodes))
        found = [flaw for report in reports for flaw in judge(report, self._durability)]
        self._flaws = sorted(found, key=lambda flaw: not flaw.loses_units)
        self._asked_s = time.monotonic()
        self._show()

    def _show(self) -> None:
        losing = sum(flaw.loses_units for flaw in self._flaws)
        self._cluster.metrics.node_flaws.labels("loses_units").set(losing)
        self._cluster.metrics.node_flaws.labels("unwise").set(len(self._flaws) - losing)
        for flaw in self._flaws:
            if flaw not in self._said:
                _LOG.log(logging.ERROR if flaw.loses_units else logging.WARNING, "%s", flaw)
        self._said = set(self._flaws)

    async def _report(self, node: Node) -> NodeReport:
        name = f"{node.host}:{node.port}"
        report = NodeReport(name, {})
        try:
            async with asyncio.timeout(ANSWER_S):
                said = await self._nodes.info(node, "server")
                report = report._replace(version=said.get("redis_version", ""))
                ahead_s = await self._nodes.clock_ahead_s(node)
                report = report._replace(clock_ahead_s=ahead_s)
                followed = await self._nodes.info(node, "replication")
                if followed.get("role") == "master":
                    report = report._replace(replicas=int(followed["connected_slaves"]))
                return report._replace(settings=await self._nodes.settings(node, *self._asked_for))
        except NodeAwayError as error:
            return report._replace(silence=error.detail)
        except StockUnavailableError as error:
            return report._replace(refusal=error.detail)
        except TimeoutError:
            return report._replace(silence="no answer in time")
