"""The service while it is measured: loads on it, and what it counts of its own work meanwhile."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import mean

from deploy.demo.families import family
from deploy.local.ports import HOST
from deploy.local.redis_cluster import RedisNode
from deploy.local.stack import LocalStack
from tests.bench.counters import counted
from tests.bench.cpu import Watched, since
from tests.bench.direct import DirectPlan
from tests.bench.load import LoadPlan
from tests.bench.products import ON_SALE
from tests.bench.programs import generated
from tests.bench.window import Measured

MASTERS = 3

Measure = Callable[[], Awaitable[Measured]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A local stack with its servers, and how long each look at it takes."""

    stack: LocalStack
    seconds: float
    warm_up_s: float

    @property
    def masters(self) -> Sequence[RedisNode]:
        return self.stack.redis[:MASTERS]

    @property
    def redis(self) -> Watched:
        """The processes of the masters and of their replicas."""
        masters, replicas = self.masters, self.stack.redis[MASTERS:]
        return {
            "redis": [node.process.pid for node in masters],
            "replicas": [node.process.pid for node in replicas],
        }

    def serve(self, plan: LoadPlan, *, servers: int = 1) -> Measure:
        """The same load on that many servers at once."""
        loads = [self.load(*self._server(number), plan) for number in range(servers)]
        return partial(self.with_work, partial(_side_by_side, loads))

    def load(self, target: str, watched: Watched, plan: LoadPlan) -> Measure:
        """A load on whatever listens there; of ON_SALE, where the plan names no product."""
        filled_in = replace(
            plan,
            target=target,
            watched=watched,
            product_id=plan.product_id or ON_SALE,
            warm_up_s=self.warm_up_s,
            seconds=self.seconds,
        )
        return partial(generated, filled_in, self._environment())

    def direct(self, *, size: int, in_flight: int) -> Measure:
        """Deductions without gRPC."""
        plan = DirectPlan(
            product_id=ON_SALE,
            size=size,
            in_flight=in_flight,
            warm_up_s=self.warm_up_s,
            seconds=self.seconds,
            watched=self.redis,
        )
        return partial(generated, plan, self._environment())

    async def with_work(self, measure: Measure) -> Measured:
        """Measure, and count what the servers do from before the warm-up to the last answer."""
        ports = self.stack.ports
        addresses = [f"{HOST}:{ports.server_metrics(number)}" for number in self.stack.servers]
        before = await counted(addresses)
        measured = await measure()
        return replace(measured, work=since(before, await counted(addresses)))

    def _server(self, number: int) -> tuple[str, Watched]:
        """Where a server listens, and what works for it; Redis counts with the first one."""
        redis = {} if number else self.redis
        pids = family(self.stack.servers[number].pid)
        return self.stack.grpc_address(number), {"server": pids, **redis}

    def _environment(self) -> Mapping[str, str]:
        return self.stack.environment()


async def _side_by_side(measures: Sequence[Measure]) -> Measured:
    """Several generators at once, added up."""
    parts = await asyncio.gather(*(measure() for measure in measures))
    cpu_s: Counter[str] = Counter()
    for part in parts:
        cpu_s.update(part.cpu_s)
    return replace(
        parts[0],
        elapsed_s=mean(part.elapsed_s for part in parts),
        accepted=sum(part.accepted for part in parts),
        refused=sum(part.refused for part in parts),
        cpu_s=cpu_s,
    )
