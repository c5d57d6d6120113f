"""The kernel against the model: any sequence of calls, lost replies, late copies and crashes.

A run goes on for INVENTORY_STATE_MACHINE_S seconds, 18 without it; each seed is good for a few products.
The seed of a failure is printed; INVENTORY_STATE_MACHINE_SEED begins with that one.
"""

import asyncio
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from itertools import count
from random import SystemRandom
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, note, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from msgpack import unpackb
from prometheus_client import CollectorRegistry

from deploy.local.stack import LocalStack
from sharding import keys
from sharding.breaker import Breaker
from sharding.cluster import Cluster, LaneKind
from sharding.errors import LoadConflictError, StockUnavailableError
from sharding.events import Status
from sharding.metrics import StockMetrics
from sharding.notes import NOTE_S
from sharding.ordering import Orders
from sharding.outcomes import Answer, Deduction, Outcome, Reason, Resolved, State
from sharding.packing import pack
from sharding.partitions import Partitions
from sharding.placement import Layout, base_partition, home_shard
from sharding.plans import LoadPlan
from sharding.shards import Served, Shards, Tombstone
from sharding.stock import Stock
from tests.model import INSUFFICIENT, Model, Record, Reply
from tests.sharding.conftest import settings_for
from tests.sharding.faulty_lanes import Copy, FaultyCluster
from tests.sharding.order_rules import OrderRules

_LOG = logging.getLogger(__name__)

Result = TypeVar("Result")

SETTINGS = settings(
    max_examples=10,
    stateful_step_count=40,
    deadline=None,
    database=None,
    print_blob=False,
    phases=[Phase.generate, Phase.shrink],
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)
PARTITIONS = 48
LIVE = 2
"""Processes that live; the one behind them crashes in the middle of what it is asked."""
KINDS = {
    "R": ("deduct",),
    "X": ("refused",),
    "N": ("never",),
    "M": ("deduct", "refused", "restock", "remove"),
}
"""What an id may stand for where a script answers a late copy with that status."""
MOVING = ("take", "put", "ack")
UNDECIDED = (Outcome.UNAVAILABLE, Outcome.OVERLOADED)
UNKNOWN = (Reason.OUTCOME_UNKNOWN, Reason.NOT_REPLICATED)

_numbers = count(3_000_000_001)

shard_counts = st.sampled_from([1, 2, 3, 4, 6, 12])
amounts = shard_counts.flatmap(lambda n: st.lists(st.integers(0, 12), min_size=n, max_size=n))
ids = st.integers(0, 50).map("r-{}".format)
quantities = st.one_of(st.integers(1, 2), st.integers(1, 4), st.integers(1, 30))
attempts = st.integers(0, 3)
requests = st.builds(
    Deduction,
    request_id=ids,
    product_id=st.just(0),
    quantity=quantities,
    user_id=st.sampled_from([0, 0, 0, 7]),
    order_id=st.just(0),
    attempt=attempts,
)
batches = st.lists(requests, min_size=1, max_size=12)
processes = st.integers(0, LIVE - 1)
lives = st.integers(0, 14)
"""Rounds of calls after which a process dies."""


class Process(NamedTuple):
    """One server process's view of the stock; `name` is for messages."""

    name: str
    cluster: FaultyCluster
    stock: Stock
    orders: Orders

    @classmethod
    async def start(cls, name: str, services: LocalStack, *, patience_ms: int) -> Self:
        metrics = StockMetrics(CollectorRegistry())
        patience = settings_for(services, redis_patience_ms=patience_ms)
        cluster = await FaultyCluster.connect(patience, metrics)
        stock = Stock(cluster, metrics)
        return cls(name, cluster, stock, Orders(stock, cluster, grace_s=0))


class World:
    """All processes, an observer beside them that nothing fails for, and the loop they live in."""

    def __init__(self, runner: asyncio.Runner, services: LocalStack) -> None:
        self.failed: list[str] = []
        """What the last machine that failed had done; a failure may not come again in the same steps."""
        self._runner = runner
        self.processes = self.run(self._start(services))
        self.observer = self.run(
            Cluster.connect(settings_for(services), StockMetrics(CollectorRegistry()))
        )

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return self._runner.run(work)

    async def close(self) -> None:
        for process in self.processes:
            await process.orders.drain()
            await process.stock.drain()
            await process.cluster.close()
        await self.observer.close()

    async def _start(self, services: LocalStack) -> list[Process]:
        living = [
            await Process.start(f"process {i}", services, patience_ms=5_000) for i in range(LIVE)
        ]
        return [*living, await Process.start("a dying process", services, patience_ms=50)]


PATIENCE_S = 5.0
HURRIES = ("lane.STUCK_S", "cluster.STUCK_S", "lookups.ALTERNATE_S", "lookups.KNOWN_S")
"""How soon a node that does not answer counts as away."""


@pytest.fixture(scope="module")
def world(services: LocalStack, partitions: Partitions) -> Iterator[World]:
    # No node is to count as away because this machine is busy, or because a reply of it was lost just
    # before: the model knows of no such answers.
    # A factory keeps the runner from replacing the loop that the other tests use.
    with (
        pytest.MonkeyPatch.context() as patient,
        asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner,
    ):
        for name in HURRIES:
            patient.setattr(f"sharding.{name}", PATIENCE_S)
        patient.setattr(Breaker, "fail", _stay_closed)
        created = StockMachine.world = World(runner, services)
        yield created
        created.run(created.close())


def _stay_closed(_breaker: Breaker, _why: str, *, open_s: float = 0.0) -> None:
    """As `Breaker.fail` of a node that is there all the time."""


class Counts(NamedTuple):
    """A product's shards added up, by their raw fields. `notes`: transfers whose note is open."""

    available: int
    in_transit: int
    held: int
    sold: int
    loaded: int
    lowest: int
    notes: int
    layout: int
    states: frozenset[str]


class StockMachine(OrderRules):
    """One product of its own. What a rule asks of the kernel it asks of the model, too."""

    world: ClassVar[World]

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.firsts: dict[str, Answer] = {}
        self.asked: set[str] = set()
        self.partitions: set[int] = set()
        self.shard_counts: set[int] = set()
        self.plans: list[LoadPlan] = []
        self.product = 0
        self.version = 0
        self.is_consistent = False
        self.steps: list[str] = []
        for process in self.world.processes:
            process.cluster.faults.heal()
            process.cluster.faults.copies.clear()

    @initialize(base=st.integers(0, PARTITIONS - 1), amounts=amounts)
    def first_load(self, base: int, amounts: list[int]) -> None:
        """The base is drawn, so that a sequence is the same one again for another product id."""
        self.product = next(n for n in _numbers if base_partition(n, PARTITIONS) == base)
        self.model.product_id = self.product
        self._say(f"product {self.product}")
        self.load(0, amounts, None)
        self.load_more(self._live(0))

    @precondition(lambda self: not self.model.is_open)
    @rule(process=processes, amounts=amounts, life=st.none() | lives)
    def load(self, process: int, amounts: list[int], life: int | None) -> None:
        former = tuple(sorted(self.shard_counts - {len(amounts)}))
        plan = LoadPlan(
            self.product,
            1 + len(self.plans),
            Layout(self._next_version(), len(amounts)),
            tuple(amounts),
            buffer=0,
            sold_before=self.model.sold,
            former_shards=former,
        )
        self.plans.append(plan)
        self._split_into(len(amounts))
        if life is not None:
            self._crash(lambda stock: stock.load(plan), life)
        self._run(self._live(process).load(plan))
        self._say(f"load {plan}")
        self.model.load(sum(amounts), len(amounts))

    @precondition(lambda self: not self.model.is_open)
    @rule(process=processes, amounts=amounts)
    def load_in_peace(self, process: int, amounts: list[int]) -> None:
        self.load(process, amounts, None)

    @rule(process=processes)
    def load_once_more(self, process: int) -> None:
        self._run(self._live(process).load(self.plans[-1]))

    @precondition(lambda self: len(self.plans) > 1)
    @rule(process=processes, which=st.integers(0, 9))
    def load_an_earlier_epoch(self, process: int, which: int) -> None:
        earlier = self.plans[which % (len(self.plans) - 1)]
        with pytest.raises(LoadConflictError):
            self._run(self._live(process).load(earlier))

    @precondition(lambda self: self.model.is_open)
    @rule(process=processes, life=st.none() | lives)
    def close(self, process: int, life: int | None) -> None:
        self.end_all_orders()
        epoch = len(self.plans)
        if life is not None:
            self._crash(lambda stock: stock.close(self.product, epoch), life)
        self._run(self._live(process).close(self.product, epoch))
        self._say(f"close {epoch}")
        self.model.close()

    @precondition(lambda self: not self.model.is_open)
    @rule(process=processes)
    def close_once_more(self, process: int) -> None:
        self._run(self._live(process).close(self.product, len(self.plans)))

    @rule(process=processes, request=requests)
    def deduct(self, process: int, request: Deduction) -> None:
        self._deduct([(process, [request])])

    @rule(process=processes, batch=batches)
    def deduct_batch(self, process: int, batch: list[Deduction]) -> None:
        self._deduct([(process, batch)])

    @precondition(lambda self: self.model.is_open)
    @rule(batches=st.tuples(batches, batches))
    def deduct_in_two_processes_at_once(
        self, batches: tuple[list[Deduction], list[Deduction]]
    ) -> None:
        mine = {request.request_id for request in batches[0]}
        others = [request for request in batches[1] if request.request_id not in mine]
        self._deduct([(0, batches[0]), (1, others)])

    @precondition(lambda self: self.model.is_open)
    @rule(process=processes, number=st.integers(0, 9), spared=st.integers(0, 3))
    def deduct_nearly_all(self, process: int, number: int, spared: int) -> None:
        quantity = max(1, self.model.available - spared)
        self._deduct([(process, [Deduction(f"all-{number}", 0, quantity)])])

    @rule(process=processes, request_id=ids, attempt=st.sampled_from([0, 2]))
    def deduct_again(self, process: int, request_id: str, attempt: int) -> None:
        record = self.model.records.get(request_id)
        if record is not None and record.kind in ("deduct", "refused"):
            again = Deduction(request_id, 0, record.quantity, record.user_id, attempt=attempt)
            self._deduct([(process, [again])])

    @rule(process=processes, request_id=ids, quantity=st.integers(1, 30))
    def restock(self, process: int, request_id: str, quantity: int) -> None:
        answer, spoiled = self._adjust(process, "restock", request_id, quantity)
        _check(self.model.restock(request_id, quantity), answer, spoiled=spoiled)

    @rule(process=processes, request_id=ids, quantity=quantities)
    def remove(self, process: int, request_id: str, quantity: int) -> None:
        answer, spoiled = self._adjust(process, "remove", request_id, quantity)
        _check(self.model.remove(request_id, quantity), answer, spoiled=spoiled)

    @rule(process=processes)
    def read(self, process: int) -> None:
        seen = self._run(self._live(process).read(self.product))
        counts = self._counts()
        assert seen is not None
        assert seen.exact == (counts.notes == 0)
        assert (seen.sold, seen.total) == (self.model.sold, self.model.total)
        assert seen.held == self.model.held
        assert seen.available == counts.available
        assert len([s for s in seen.shards if s.shard < self.model.shards]) == self.model.shards
        assert (seen.state is State.OPEN) == self.model.is_open

    @precondition(lambda self: self.model.is_open)
    @rule(process=processes, shards=shard_counts, life=st.none() | lives)
    def set_shards(self, process: int, shards: int, life: int | None) -> None:
        """A change that a process died in is finished, or was taken back."""
        if shards == self.model.shards:
            return
        version = self._next_version()
        self._split_into(shards)
        if life is not None:
            self._crash(lambda stock: self._change(stock, version, shards), life)
        is_done = self._run(self._change(self._live(process), version, shards))
        self._say(f"{shards} shards, version {version}, after a crash {life}: {is_done}")
        assert is_done or life is not None
        if is_done:
            self.model.set_shards(shards)

    @precondition(lambda self: self.model.is_open)
    @rule(process=processes)
    def level(self, process: int) -> None:
        self._run(self._live(process).drain_retired(self.product))
        self._run(self._live(process).rebalance(self.product))

    @rule(process=processes, request_id=ids)
    def resolve(self, process: int, request_id: str) -> None:
        self.asked.add(request_id)
        answer = self._run(self._live(process).resolve(self.product, request_id))
        self._say(f"resolve {request_id}: {answer}")
        record = self.model.records.get(request_id)
        if record is not None and record.kind in ("restock", "remove"):
            assert answer == Answer(Outcome.REQUEST_MISMATCH)
        else:
            assert answer == self.model.resolve(request_id)

    @rule(
        process=processes,
        lost=st.integers(0, 3),
        unconfirmed=st.integers(0, 2),
        spares_reads=st.booleans(),
    )
    def replies_will_be_lost(
        self, process: int, lost: int, unconfirmed: int, spares_reads: bool
    ) -> None:
        faults = self.world.processes[process].cluster.faults
        faults.losing, faults.unconfirmed, faults.spares_reads = lost, unconfirmed, spares_reads

    @rule(
        process=st.integers(0, LIVE),
        age=st.integers(0, 99),
        of_a_transfer=st.booleans(),
    )
    def a_script_call_arrives_again(self, process: int, age: int, of_a_transfer: bool) -> None:
        cluster = self.world.processes[process].cluster
        sent = cluster.faults.copies
        copies = [copy for copy in sent if copy.script.name in MOVING or not of_a_transfer]
        if copies:
            copy = copies[-1 - age % len(copies)]
            cluster.faults.heal()
            reply = self._run(cluster.deliver(copy))
            self._say(f"late {copy.script.name} {copy.args}: {reply}")
            self._account_for(copy, reply)

    @rule()
    def scripts_are_forgotten(self) -> None:
        self._run(self._flush_scripts())

    @precondition(lambda self: self.model.is_open and self.model.shards > 1)
    @rule(donor=st.integers(1, 11), request=requests, wanted=st.integers(1, 9), puts=st.booleans())
    def a_transfer_is_left_open(
        self, donor: int, request: Deduction, wanted: int, puts: bool
    ) -> None:
        """After its take, or after its put, which serves a request that then hears nothing."""
        receiver = home_shard(request.request_id, self.model.shards)
        donor = (receiver + 1 + donor % (self.model.shards - 1)) % self.model.shards
        is_new = request.request_id not in self.asked
        serving = [self._own(request)] if puts and is_new else []
        served = self._run(self._transfer(donor, receiver, wanted, serving if puts else None))
        self._say(f"transfer of {wanted} from {donor} to {receiver}: {serving} {served}")
        if served is not None:
            self._account(serving, served.statuses)

    @rule(batch=batches, life=lives, deaf=st.booleans())
    def a_process_dies_while_it_deducts(
        self, batch: list[Deduction], life: int, deaf: bool
    ) -> None:
        """What it answered holds; what it did not know another process is asked for."""
        batch = list({request.request_id: self._own(request) for request in batch}.values())
        given = self._crash(lambda stock: _deducting(stock, batch), life, deaf=deaf)
        assert not isinstance(given, StockUnavailableError)
        known = [i for i, answer in enumerate(given) if answer.outcome not in UNDECIDED]
        unknown = [i for i, answer in enumerate(given) if answer.reason in UNKNOWN]
        again = [batch[i]._replace(attempt=2) for i in unknown]
        given_again = self._run(_deducting(self._live(0), again))
        self._say(f"dying {_brief(batch, given)}; process 0 {_brief(again, given_again)}")
        self._check_deducted(
            [batch[i] for i in known] + again,
            [given[i] for i in known] + given_again,
            [False] * len(known) + [True] * len(again),
        )

    @rule(
        life=lives,
        deaf=st.booleans(),
        kind=st.sampled_from(["restock", "remove"]),
        request_id=ids,
        quantity=quantities,
    )
    def a_process_dies_while_it_corrects(
        self, life: int, deaf: bool, kind: str, request_id: str, quantity: int
    ) -> None:
        self.asked.add(request_id)
        answer = self._crash(
            lambda stock: _correcting(stock, kind, self.product, request_id, quantity),
            life,
            deaf=deaf,
        )
        is_unknown = False
        if isinstance(answer, StockUnavailableError):
            if answer.reason not in UNKNOWN:
                return
            is_unknown = True
            answer, _ = self._adjust(0, kind, request_id, quantity)
        _check(getattr(self.model, kind)(request_id, quantity), answer, spoiled=is_unknown)

    @rule(life=lives, deaf=st.booleans(), request=requests, resolves=st.booleans())
    def a_process_dies_while_it_resolves(
        self, life: int, deaf: bool, request: Deduction, resolves: bool
    ) -> None:
        """Another process resolves it, or a copy of the request comes and tells what was decided."""
        request = self._own(request)
        request_id = request.request_id
        answer = self._crash(lambda stock: stock.resolve(self.product, request_id), life, deaf=deaf)
        if isinstance(answer, Resolved) or resolves:
            self.resolve(0, request_id)
            return
        # No first try, which a proof may refuse without a look at what was decided.
        request = request._replace(attempt=0 if request.attempt == 1 else request.attempt)
        (copy,) = self._run(_deducting(self._live(0), [request]))
        self._say(f"it said {answer}, a copy {_brief([request], [copy])}")
        if copy.reason is Reason.RESOLVED_NEVER:
            self.model.resolve(request_id)
        self._check_deducted([request], [copy], [True])

    @invariant()
    def the_shards_add_up_to_the_model(self) -> None:
        counts = self._counts()
        assert counts.available + counts.in_transit == self.model.available
        assert self.plans[-1].sold_before + counts.sold == self.model.sold
        assert counts.held == self.model.held
        kept = counts.available + counts.in_transit + counts.held
        assert counts.loaded == kept + counts.sold
        self.check_more()
        assert counts.lowest >= 0
        assert counts.states == {State.OPEN if self.model.is_open else State.CLOSED}
        self.is_consistent = True

    def teardown(self) -> None:
        try:
            if self.is_consistent and self.model.is_open:
                self._sell_out()
        finally:
            if not self.is_consistent:
                self.world.failed = self.steps

    def _sell_out(self) -> None:
        """Every unit can be sold in the end, wherever a crash left it, and then nothing more."""
        for process in self.world.processes:
            process.cluster.faults.heal()
        if self.model.available:
            self._deduct([(0, [Deduction("the-rest", 0, self.model.available)])])
        self._deduct([(1, [Deduction("one-more", 0, 1)])])
        self.confirm_all_orders()
        self.the_shards_add_up_to_the_model()

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        self.is_consistent = False
        return self.world.run(work)

    def _say(self, text: str) -> None:
        self.steps.append(text)
        note(text)

    def _live(self, process: int) -> Stock:
        return self.world.processes[process].stock

    def _own(self, request: Deduction) -> Deduction:
        """The request for this product; a caller says `attempt=1` of an id that it never sent before."""
        was_asked = request.request_id in self.asked
        self.asked.add(request.request_id)
        attempt = 0 if was_asked and request.attempt == 1 else request.attempt
        return request._replace(product_id=self.product, attempt=attempt)

    def _deduct(self, parts: Sequence[tuple[int, list[Deduction]]]) -> None:
        parts = [(process, _with_one_torn_id([*map(self._own, part)])) for process, part in parts]
        faults = [self.world.processes[process].cluster.faults for process, _ in parts]
        before = [each.spoiled for each in faults]
        given = self._run(_together(_deducting(self._live(i), part) for i, part in parts))
        is_spoiled = [each.spoiled > count for each, count in zip(faults, before, strict=True)]
        asked = [request for _, part in parts for request in part]
        for (process, part), answers in zip(parts, given, strict=True):
            self._say(f"process {process} {_brief(part, answers)}")
        self._check_deducted(
            asked,
            [answer for answers in given for answer in answers],
            [bad for (_, part), bad in zip(parts, is_spoiled, strict=True) for _ in part],
        )

    def _check_deducted(
        self, asked: Sequence[Deduction], answers: Sequence[Answer], spoiled: Sequence[bool]
    ) -> None:
        replies = self.model.deduct_all(asked, answers)
        as_another = [
            bad and reply == INSUFFICIENT and _was_refused_as_another(request, asked, answers)
            for request, reply, bad in zip(asked, replies, spoiled, strict=True)
        ]
        for request, was_another in zip(asked, as_another, strict=True):
            if was_another:
                self._forget_the_refusal(request)
        for request, reply, answer, bad, was_another in zip(
            asked, replies, answers, spoiled, as_another, strict=True
        ):
            if was_another:
                continue
            _check(reply, answer, spoiled=bad)
            if answer.outcome is Outcome.DEDUCTED:
                as_first = answer._replace(replayed=False, shard=0)
                assert self.firsts.setdefault(request.request_id, as_first) == as_first
            elif bad and answer == Answer(Outcome.INSUFFICIENT_STOCK):
                self._take_over_a_final_refusal(request)

    def _forget_the_refusal(self, request: Deduction) -> None:
        """The kernel had refused the id for good as one of other content, and so not as this one."""
        refused = Record("refused", request.quantity, request.user_id)
        if self.model.records.get(request.request_id) == refused:
            del self.model.records[request.request_id]

    def _take_over_a_final_refusal(self, request: Deduction) -> None:
        """Of a request of which a try was lost the kernel may refuse the first try for good, too."""
        cluster = self.world.processes[0].cluster
        shards = Shards(cluster, self.product, Layout(0, self.model.shards))
        home = shards.partitions[home_shard(request.request_id, self.model.shards)]
        found = self._run(shards.resolve(home, request.request_id, Tombstone.NONE, epoch=0))
        # An id of several contents may have been refused for good as another one; where only the users
        # differ, the answer of that one has said so, and the kernel does not tell whose refusal it is.
        if (found.status, found.quantity) == (Status.REFUSED_BEFORE, request.quantity):
            wanted = Record("refused", request.quantity, request.user_id)
            kept = self.model.records.setdefault(request.request_id, wanted)
            assert kept._replace(user_id=request.user_id) == wanted

    def _adjust(
        self, process: int, kind: str, request_id: str, quantity: int
    ) -> tuple[Answer, bool]:
        """The answer, and whether a reply on the way to it was lost."""
        self.asked.add(request_id)
        faults = self.world.processes[process].cluster.faults
        before = faults.spoiled
        stock = self._live(process)
        answer = self._run(_correcting(stock, kind, self.product, request_id, quantity))
        self._say(f"{kind} {request_id} {quantity}: {answer}")
        return answer, faults.spoiled > before

    def _crash(
        self, ask: Callable[[Stock], Coroutine[Any, Any, Result]], life: int, *, deaf: bool = False
    ) -> Result | StockUnavailableError:
        """What a process says that dies after `life` rounds; deaf: it misses the last replies."""
        result = self._run(self._dying(ask, life, deaf=deaf))
        self._say(f"a process died after {life} rounds, deaf {deaf}")
        return result

    async def _dying(
        self, ask: Callable[[Stock], Coroutine[Any, Any, Result]], life: int, *, deaf: bool
    ) -> Result | StockUnavailableError:
        dying = self.world.processes[LIVE]
        stock = Stock(dying.cluster, dying.stock.metrics)
        await stock._catalogue.find(self.product)
        dying.cluster.faults.rounds_to_live = life
        dying.cluster.faults.dies_deaf = deaf
        try:
            return await ask(stock)
        except StockUnavailableError as failure:
            return failure
        finally:
            await stock.drain()
            dying.cluster.faults.heal()

    async def _transfer(
        self, donor: int, receiver: int, wanted: int, serving: Sequence[Deduction] | None
    ) -> Served | None:
        """Take units, and put them, too, unless `serving` is None; never acknowledged."""
        layout = Layout((await self._count()).layout, self.model.shards)
        shards = Shards(self.world.processes[0].cluster, self.product, layout)
        giving, getting = shards.partitions[donor], shards.partitions[receiver]
        given = (await shards.read(giving)).given_to(getting)
        taken = await shards.take(giving, receiver=getting, before=given, quantity=wanted)
        if taken.given is None or serving is None:
            return None
        return await shards.put(taken.given, pack(serving))

    def _account_for(self, copy: Copy, reply: list[object]) -> None:
        """A late copy's effect is an effect like another, though nobody hears of it."""
        name, statuses = copy.script.name, reply[-2]
        self.account_for_orders(copy, reply)
        if name in ("restock", "remove") and statuses == b"D":
            request_id, quantity = copy.argument("request_id"), copy.argument("quantity")
            applied = getattr(self.model, name)(request_id.decode(), int(quantity))
            assert applied == Reply(Outcome.DEDUCTED)
            # Nobody was told of the units, so a proof from before may still refuse first tries.
            self._run(asyncio.sleep(NOTE_S))
        elif name in ("deduct", "put"):
            statuses = reply[4]
            assert isinstance(statuses, bytes)
            if copy.argument("product").decode() == str(self.product):
                is_home = name == "put" or copy.argument("mode") in (b"home", b"final")
                self._account(_unpacked(copy, len(statuses)), statuses, is_home=is_home)
            else:
                assert not set(statuses) & set(b"DHT")

    def _account(
        self, served: Sequence[Deduction], statuses: bytes, *, is_home: bool = True
    ) -> None:
        """Enter what a script did for requests whose callers do not hear of it.

        Another shard than their home knows nothing of what home took.
        """
        for request, status in zip(served, statuses.decode(), strict=True):
            if isinstance(request.order_id, str):
                self.account_for_line(request, request.order_id, status)
                continue
            known = self.model.records.get(request.request_id)
            if status == "D":
                assert self.model.deduct(request) == Reply(Outcome.DEDUCTED)
            elif status == "T":
                assert self.model.deduct(request._replace(attempt=2)) == INSUFFICIENT
            elif status == "I":
                assert known is None or not is_home
            elif status in KINDS:
                assert known is not None
                assert known.kind in KINDS[status]

    def _counts(self) -> Counts:
        return self._run(self._count())

    async def _count(self) -> Counts:
        observer = self.world.observer
        ordered = sorted(self.partitions)
        hashes = await asyncio.gather(
            *(
                observer.command(
                    partition,
                    "HGETALL",
                    keys.stock(observer.tags[partition], self.product),
                    lane=LaneKind.READ,
                )
                for partition in ordered
            )
        )
        return _added_up(dict(zip(ordered, map(_fields, hashes), strict=True)))

    async def _flush_scripts(self) -> None:
        for partitions in self.world.observer.masters().values():
            await self.world.observer.command(
                partitions[0], "SCRIPT", "FLUSH", "SYNC", lane=LaneKind.READ
            )

    def _next_version(self) -> int:
        """The next layout's version; the one behind it is for going back."""
        self.version += 2
        return self.version

    async def _change(self, stock: Stock, version: int, shards: int) -> bool:
        return await stock.change_layout(
            self.product, version=version, shards=shards, cause="operator"
        )

    def _split_into(self, shards: int) -> None:
        """Note that the product has, or is about to have, that many shards."""
        layout = Layout(1, shards)
        self.shard_counts.add(shards)
        self.partitions |= {*layout.all_partitions(product_id=self.product, partitions=PARTITIONS)}


async def _deducting(stock: Stock, asked: Sequence[Deduction]) -> list[Answer]:
    return await stock.deduct(asked)


def _brief(asked: Sequence[Deduction], answers: Sequence[Answer]) -> str:
    return ", ".join(
        f"{request.request_id} x{request.quantity} u{request.user_id} a{request.attempt}: "
        f"{'again ' * answer.replayed}{answer.outcome} {answer.reason}"
        for request, answer in zip(asked, answers, strict=True)
    )


async def _correcting(
    stock: Stock, kind: str, product: int, request_id: str, quantity: int
) -> Answer:
    correct = stock.restock if kind == "restock" else stock.remove
    return await correct(product, request_id=request_id, quantity=quantity, reason="")


async def _together(
    works: Iterable[Coroutine[object, object, list[Answer]]],
) -> list[list[Answer]]:
    return await asyncio.gather(*works)


def _check(reply: Reply, answer: Answer, *, spoiled: bool) -> None:
    """Where a reply was lost, the kernel finds its own first try's record and calls that a replay; what
    is too few for a removal may change until that try can run no more."""
    if spoiled and reply == INSUFFICIENT and answer.reason is Reason.OUTCOME_UNKNOWN:
        return
    assert (answer.outcome, answer.reason) == (reply.outcome, reply.reason)
    assert answer.replayed == reply.replayed or (spoiled and answer.replayed)


def _was_refused_as_another(
    request: Deduction, asked: Sequence[Deduction], answers: Sequence[Answer]
) -> bool:
    """Whether the id was refused for good, because a try was lost, as one of other content first."""
    content = (request.quantity, request.user_id)
    mismatch = Answer(Outcome.REQUEST_MISMATCH)
    given = [
        ((other.quantity, other.user_id), answer)
        for other, answer in zip(asked, answers, strict=True)
        if other.request_id == request.request_id
    ]
    was_refused = any(
        other != content and answer.outcome is Outcome.INSUFFICIENT_STOCK for other, answer in given
    )
    return was_refused and (content, mismatch) in given


def _with_one_torn_id(batch: Sequence[Deduction]) -> list[Deduction]:
    """The batch with equal requests for equal ids, but for one id whose content may differ. An id that
    stands there twice is no first try."""
    times = Counter(request.request_id for request in batch)
    firsts: dict[str, Deduction] = {}
    torn = ""
    result = []
    for request in batch:
        first = firsts.setdefault(request.request_id, request)
        if (request.quantity, request.user_id) != (first.quantity, first.user_id):
            torn = torn or request.request_id
        attempt = 0 if times[request.request_id] > 1 and request.attempt == 1 else request.attempt
        content = request if torn == request.request_id else first
        result.append(content._replace(attempt=attempt))
    return result


def _unpacked(copy: Copy, statuses: int) -> list[Deduction]:
    """The requests of a script call, of which each has a status."""
    flat = unpackb(copy.argument("requests"))
    if not statuses:
        return []
    width = len(flat) // statuses
    return [
        Deduction(
            flat[i],
            0,
            flat[i + 1],
            int(flat[i + 2]),
            flat[i + 3] if " " in flat[i + 3] else int(flat[i + 3]),
        )
        for i in range(0, len(flat), width)
    ]


def _fields(flat: object) -> dict[bytes, bytes]:
    assert isinstance(flat, list)
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _notes(hashes: Iterable[dict[bytes, bytes]], start: bytes) -> list[bytes]:
    return [note for fields in hashes for name, note in fields.items() if name.startswith(start)]


def _added_up(hashes: dict[int, dict[bytes, bytes]]) -> Counts:
    """Shards that have no part in the newest epoch hold nothing, whatever they had sold before."""
    epoch = max(int(fields[b"epoch"]) for fields in hashes.values() if fields)
    former = [f for f in hashes.values() if f and int(f[b"epoch"]) < epoch]
    assert all(f[b"available"] == b"0" and f[b"state"] == b"closed" for f in former)
    present = [f for f in hashes.values() if f and int(f[b"epoch"]) == epoch]
    given = [
        (int(units), int(arrived))
        for note in _notes(present, b"out:")
        for of, units, arrived in [note.split(b":")]
        if int(of) == epoch
    ]
    got = [
        int(units)
        for note in _notes(present, b"in:")
        for of, units in [note.split(b":")]
        if int(of) == epoch
    ]
    return Counts(
        available=sum(int(f[b"available"]) for f in present),
        in_transit=sum(units for units, _ in given) - sum(got),
        held=sum(int(f[b"held"]) for f in present),
        sold=sum(int(f[b"sold"]) for f in present),
        loaded=sum(int(f[b"loaded"]) for f in present),
        lowest=min(int(f[b"available"]) for f in present),
        notes=sum(units != arrived for units, arrived in given),
        layout=max(int(f[b"layout"]) for f in present),
        states=frozenset(f[b"state"].decode() for f in present),
    )


FIRST_SEED = 1
EXPLORES = "INVENTORY_STATE_MACHINE_S" in os.environ
PLAYS_S = float(os.environ.get("INVENTORY_STATE_MACHINE_S", "18"))
SHRINKS_S = 300.0


@pytest.mark.timeout(PLAYS_S + SHRINKS_S)
def test_any_sequence_of_calls_and_faults_is_answered_as_one_counter_would(world: World) -> None:
    # What the suite plays is the same every time; whoever gives it more time explores.
    own = SystemRandom().getrandbits(32) if EXPLORES else FIRST_SEED
    first = os.environ.get("INVENTORY_STATE_MACHINE_SEED", own)
    end_s = time.monotonic() + PLAYS_S
    for number in count(int(first)):
        _LOG.info("INVENTORY_STATE_MACHINE_SEED=%d", number)
        try:
            run_state_machine_as_test(seed(number)(StockMachine), settings=SETTINGS)
        except BaseException as failure:
            failure.add_note(f"INVENTORY_STATE_MACHINE_SEED={number}; the last that failed:")
            failure.add_note("\n".join(world.failed))
            raise
        if time.monotonic() > end_s:
            return
