"""What is measured, in the order of a round, and how."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from deploy.demo.families import family
from tests.bench.figures import REFUSED, Rounds, Topic
from tests.bench.hot import HotProduct
from tests.bench.ledger_rates import JournalRates, drained
from tests.bench.load import LoadPlan
from tests.bench.orders import Orders
from tests.bench.products import SOLD_OUT
from tests.bench.programs import BareRedis
from tests.bench.requests import FIRST_TRY, UNKNOWN_TRY
from tests.bench.sales import Sales
from tests.bench.service import Measure, Service
from tests.bench.shapes import (
    BATCH_ITEMS,
    BATCHES,
    BATCHES_IN_FLIGHT,
    MESSAGES,
    SINGLES,
    STREAMED,
)
from tests.bench.window import Measured
from tests.bench.without_redis import WithoutRedis

SINGLES_IN_FLIGHT = 1_000
LOADS_OF_PEAK_PERCENT = (30, 50, 70)
PIPELINED = 64
CALLS_A_S_PLAIN, CALLS_A_S_PIPELINED = 80_000, 250_000
"""So many calls of redis-benchmark stand for one second."""

ECHO_UNARY, ECHO_BATCH, ECHO_STREAM = "echo unary", "echo batch", "echo stream"
ECHO_MESSAGE = "echo stream of single messages"
REDIS_PLAIN, REDIS_PIPELINED = "redis-benchmark -P 1", f"redis-benchmark -P {PIPELINED}"
DEDUCT, BATCH_DEDUCT = "Deduct", f"BatchDeduct({BATCH_ITEMS})"
STREAM_DEDUCT = f"StreamDeduct({BATCH_ITEMS})"
INSERT = "bare INSERT"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What runs while it is measured."""

    service: Service
    echo_address: str
    echo_pid: int
    redis: BareRedis
    journal: JournalRates
    hot: HotProduct
    sales: Sales
    orders: Orders
    without_redis: WithoutRedis
    seed: int

    def measures(self, rounds: Rounds) -> Sequence[tuple[Topic, Measure]]:
        """All topics; `rounds` is what has been measured when one of them is begun.

        The ledger comes before the products whose events the worker would find slower to apply.
        """
        return [
            *self._echo(),
            *self._through_grpc(),
            *self._without_grpc(),
            *self._refusals(),
            *self._ledger(),
            *self.without_redis.topics(),
            *self.hot.topics(),
            *self.sales.topics(),
            *self.orders.topics(),
            *self._latencies(rounds),
        ]

    def _echo(self) -> Sequence[tuple[Topic, Measure]]:
        load = partial(self.service.load, self.echo_address, {"server": family(self.echo_pid)})
        return [
            (Topic(name=ECHO_UNARY, what="calls"), load(SINGLES)),
            (Topic(name=ECHO_MESSAGE, what="messages"), load(MESSAGES)),
            (Topic(name=ECHO_BATCH, what="items"), load(BATCHES)),
            (Topic(name=ECHO_STREAM, what="items"), load(STREAMED)),
        ]

    def _through_grpc(self) -> Sequence[tuple[Topic, Measure]]:
        redis = (REDIS_PLAIN, REDIS_PIPELINED)
        return [
            measure
            for servers, suffix in ((1, ""), (2, ", 2 server processes"))
            for measure in (
                self._deductions(DEDUCT + suffix, SINGLES, servers, (ECHO_UNARY,)),
                self._deductions(BATCH_DEDUCT + suffix, BATCHES, servers, (ECHO_BATCH, *redis)),
                self._deductions(STREAM_DEDUCT + suffix, STREAMED, servers, (ECHO_STREAM, *redis)),
            )
        ]

    def _deductions(
        self, name: str, plan: LoadPlan, servers: int, baselines: Sequence[str]
    ) -> tuple[Topic, Measure]:
        topic = Topic(name=name, what="deductions", baselines=baselines)
        return topic, self.service.serve(plan, servers=servers)

    def _without_grpc(self) -> Sequence[tuple[Topic, Measure]]:
        redis = (REDIS_PLAIN, REDIS_PIPELINED)
        plain = partial(
            self.redis.deductions, pipelined=1, calls=int(CALLS_A_S_PLAIN * self.service.seconds)
        )
        pipelined = partial(
            self.redis.deductions,
            pipelined=PIPELINED,
            calls=int(CALLS_A_S_PIPELINED * self.service.seconds),
        )
        batches = Topic(name="Stock.deduct in batches", what="deductions", baselines=redis)
        singles = Topic(name="Stock.deduct one by one", what="deductions", baselines=redis)
        return [
            (Topic(name=REDIS_PLAIN, what="script calls"), plain),
            (Topic(name=REDIS_PIPELINED, what="script calls"), pipelined),
            (batches, self.service.direct(size=BATCH_ITEMS, in_flight=BATCHES_IN_FLIGHT)),
            (singles, self.service.direct(size=1, in_flight=SINGLES_IN_FLIGHT)),
        ]

    def _refusals(self) -> Sequence[tuple[Topic, Measure]]:
        """First tries, and requests of which nobody says whether they were sent before."""
        return [
            (
                Topic(
                    name=f"{name}, sold out{suffix}",
                    what="refusals",
                    counts=REFUSED,
                    baselines=(baseline,),
                ),
                self.service.serve(replace(plan, product_id=SOLD_OUT, attempt=attempt)),
            )
            for attempt, suffix in ((FIRST_TRY, ""), (UNKNOWN_TRY, ", attempt 0"))
            for name, plan, baseline in (
                (DEDUCT, SINGLES, ECHO_UNARY),
                (BATCH_DEDUCT, BATCHES, ECHO_BATCH),
            )
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
                partial(
                    drained,
                    self.service.stack,
                    seconds=2 * self.service.seconds,
                    masters=self.service.redis,
                ),
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
        return await self.service.serve(replace(SINGLES, rate=rate, seed=self.seed))()
