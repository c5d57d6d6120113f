"""What is measured, in the order of a round, and how."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import mean

from deploy.demo.families import family
from deploy.local.stack import LocalStack
from tests.bench.cpu import Watched
from tests.bench.direct import DirectPlan
from tests.bench.figures import REFUSED, Rounds, Topic
from tests.bench.ledger_rates import JournalRates, drained
from tests.bench.load import BATCH, STREAM, UNARY, LoadPlan
from tests.bench.programs import BareRedis, generated
from tests.bench.window import Measured

BATCH_ITEMS = 500
UNARY_IN_FLIGHT, BATCHES_IN_FLIGHT, MESSAGES_IN_FLIGHT = 64, 16, 8
CHANNELS, STREAMS = 4, 2
SINGLES_IN_FLIGHT = 1_000
LOADS_OF_PEAK_PERCENT = (30, 50, 70)
PIPELINED = 64
CALLS_A_S_PLAIN, CALLS_A_S_PIPELINED = 80_000, 250_000
"""So many calls of redis-benchmark stand for one second."""

ECHO_UNARY, ECHO_BATCH, ECHO_STREAM = "echo unary", "echo batch", "echo stream"
ECHO_MESSAGE = "echo stream of single messages"
REDIS_PLAIN, REDIS_PIPELINED = "redis-benchmark -P 1", f"redis-benchmark -P {PIPELINED}"
DEDUCT = "Deduct"
INSERT = "bare INSERT"
Measure = Callable[[], Awaitable[Measured]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What runs while it is measured."""

    stack: LocalStack
    echo_address: str
    echo_pid: int
    redis: BareRedis
    journal: JournalRates
    on_sale: int
    """A product that never runs out."""
    sold_out: int
    seconds: float
    warm_up_s: float
    seed: int

    def measures(self, rounds: Rounds) -> Sequence[tuple[Topic, Measure]]:
        """All topics; `rounds` is what has been measured when one of them is begun."""
        return [
            *self._echo(),
            *self._through_grpc(),
            *self._without_grpc(),
            *self._refusals(),
            *self._ledger(),
            *self._latencies(rounds),
        ]

    def _echo(self) -> Sequence[tuple[Topic, Measure]]:
        load = partial(self._load, self.echo_address, {"server": family(self.echo_pid)})
        return [
            (Topic(name=ECHO_UNARY, what="calls"), load(_UNARY)),
            (Topic(name=ECHO_MESSAGE, what="messages"), load(_MESSAGES)),
            (Topic(name=ECHO_BATCH, what="items"), load(_BATCHES)),
            (Topic(name=ECHO_STREAM, what="items"), load(_STREAM)),
        ]

    def _through_grpc(self) -> Sequence[tuple[Topic, Measure]]:
        redis = (REDIS_PLAIN, REDIS_PIPELINED)
        return [
            measure
            for servers, suffix in ((1, ""), (2, ", 2 server processes"))
            for measure in (
                self._deductions(DEDUCT + suffix, _UNARY, servers, (ECHO_UNARY,)),
                self._deductions(
                    f"BatchDeduct({BATCH_ITEMS}){suffix}", _BATCHES, servers, (ECHO_BATCH, *redis)
                ),
                self._deductions(
                    f"StreamDeduct({BATCH_ITEMS}){suffix}", _STREAM, servers, (ECHO_STREAM, *redis)
                ),
            )
        ]

    def _deductions(
        self, name: str, plan: LoadPlan, servers: int, baselines: Sequence[str]
    ) -> tuple[Topic, Measure]:
        topic = Topic(name=name, what="deductions", baselines=baselines)
        return topic, self._serve(plan, servers=servers)

    def _without_grpc(self) -> Sequence[tuple[Topic, Measure]]:
        redis = (REDIS_PLAIN, REDIS_PIPELINED)
        plain = partial(
            self.redis.deductions, pipelined=1, calls=int(CALLS_A_S_PLAIN * self.seconds)
        )
        pipelined = partial(
            self.redis.deductions,
            pipelined=PIPELINED,
            calls=int(CALLS_A_S_PIPELINED * self.seconds),
        )
        batches = Topic(name="Stock.deduct in batches", what="deductions", baselines=redis)
        singles = Topic(name="Stock.deduct one by one", what="deductions", baselines=redis)
        return [
            (Topic(name=REDIS_PLAIN, what="script calls"), plain),
            (Topic(name=REDIS_PIPELINED, what="script calls"), pipelined),
            (batches, self._direct(size=BATCH_ITEMS, in_flight=BATCHES_IN_FLIGHT)),
            (singles, self._direct(size=1, in_flight=SINGLES_IN_FLIGHT)),
        ]

    def _refusals(self) -> Sequence[tuple[Topic, Measure]]:
        unary, batches = (replace(each, product_id=self.sold_out) for each in (_UNARY, _BATCHES))
        return [
            (Topic(name="Deduct, sold out", what="refusals", counts=REFUSED), self._serve(unary)),
            (
                Topic(
                    name=f"BatchDeduct({BATCH_ITEMS}), sold out", what="refusals", counts=REFUSED
                ),
                self._serve(batches),
            ),
        ]

    def _ledger(self) -> Sequence[tuple[Topic, Measure]]:
        return [
            (Topic(name=INSERT, what="rows"), self.journal.inserted),
            (
                Topic(name="Journal.apply", what="rows", baselines=(INSERT,)),
                self.journal.applied,
            ),
            (
                Topic(name="worker, from a backlog", what="rows", baselines=(INSERT,)),
                partial(drained, self.stack, seconds=2 * self.seconds, masters=self._redis()),
            ),
        ]

    def _latencies(self, rounds: Rounds) -> Sequence[tuple[Topic, Measure]]:
        return [
            (
                Topic(name=f"Deduct at {percent} % of its peak", what="deductions"),
                partial(self._paced, rounds, percent / 100),
            )
            for percent in LOADS_OF_PEAK_PERCENT
        ]

    async def _paced(self, rounds: Rounds, part_of_peak: float) -> Measured:
        """The peak is the first round's, so that all rounds send equally many."""
        peak = rounds[DEDUCT][0]
        rate = part_of_peak * peak.accepted / peak.elapsed_s
        return await self._serve(replace(_UNARY, rate=rate, seed=self.seed))()

    def _serve(self, plan: LoadPlan, *, servers: int = 1) -> Measure:
        loads = [self._load(*self._server(number), plan) for number in range(servers)]
        return partial(_side_by_side, loads)

    def _server(self, number: int) -> tuple[str, Watched]:
        """Where a server listens, and what works for it; Redis counts with the first one."""
        redis = {} if number else self._redis()
        pids = family(self.stack.servers[number].pid)
        return self.stack.grpc_address(number), {"server": pids, **redis}

    def _load(self, target: str, watched: Watched, plan: LoadPlan) -> Measure:
        filled_in = replace(
            plan,
            target=target,
            watched=watched,
            product_id=plan.product_id or self.on_sale,
            warm_up_s=self.warm_up_s,
            seconds=self.seconds,
        )
        return partial(generated, filled_in, self._environment())

    def _direct(self, *, size: int, in_flight: int) -> Measure:
        plan = DirectPlan(
            product_id=self.on_sale,
            size=size,
            in_flight=in_flight,
            warm_up_s=self.warm_up_s,
            seconds=self.seconds,
            watched=self._redis(),
        )
        return partial(generated, plan, self._environment())

    def _redis(self) -> Watched:
        masters, replicas = self.stack.redis[:3], self.stack.redis[3:]
        return {
            "redis": [node.process.pid for node in masters],
            "replicas": [node.process.pid for node in replicas],
        }

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


def _plan(shape: str, *, size: int, in_flight: int, channels: int) -> LoadPlan:
    """The shape of a load; the rest is filled in when it is used."""
    return LoadPlan(
        target="",
        shape=shape,
        product_id=0,
        size=size,
        in_flight=in_flight,
        channels=channels,
        warm_up_s=0,
        seconds=0,
    )


_UNARY = _plan(UNARY, size=1, in_flight=UNARY_IN_FLIGHT, channels=CHANNELS)
_MESSAGES = _plan(STREAM, size=1, in_flight=UNARY_IN_FLIGHT // STREAMS, channels=STREAMS)
_BATCHES = _plan(BATCH, size=BATCH_ITEMS, in_flight=BATCHES_IN_FLIGHT, channels=CHANNELS)
_STREAM = _plan(STREAM, size=BATCH_ITEMS, in_flight=MESSAGES_IN_FLIGHT, channels=STREAMS)
