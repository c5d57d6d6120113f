"""The engine against tests/model.py: any sequence of calls in two processes, with lost replies.

A run goes on for INVENTORY_STATE_MACHINE_S seconds, 6 without it. The seed of a failure is printed;
INVENTORY_STATE_MACHINE_SEED begins with that one.
"""

import asyncio
import dataclasses
import logging
import os
import time
from collections.abc import Coroutine, Iterator
from contextlib import AsyncExitStack
from itertools import count
from random import SystemRandom
from typing import Any, ClassVar, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from ledger.products import Products
from ledger.settings import MysqlUrl
from sharding.orders import Line, OrderAnswer
from sharding.outcomes import Answer, Deduction, Outcome
from tests.chaos.proxy import MysqlProxy
from tests.engine.conftest import Process, process, product_ids, settings_of
from tests.ledger.conftest import write
from tests.model import Content, Model, Reply

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
ORDERS = 100
"""Ids of orders that a product has for its own."""
MORE_UNITS = 100_000
"""Of the product of which every order can have a unit."""
LOSSY = 1
"""The process whose replies get lost."""
PAST = (
    "UPDATE inventory_order SET deadline_time = create_time - INTERVAL 1 SECOND WHERE order_id = %s"
)

_machines, _numbers = count(1), count(1)
processes = st.integers(0, 1)
numbers = st.integers(0, 20)
ids = numbers.map("r-{}".format)
quantities = st.one_of(st.integers(1, 3), st.integers(1, 30))
tears = st.sampled_from([0] * 7 + [1])
"""1: the content is another one than the id's usual one."""
spared = st.sampled_from([0, 1, 3, 60])
kinds = st.sampled_from(["confirm", "confirm", "release", "get"])


def _request(number: int, attempt: int, tear: int) -> Deduction:
    usual = 1 + number % 3 if number % 7 else 25
    return Deduction(f"r-{number}", 0, usual + tear, 7 * (number % 2), attempt=attempt)


def _content(number: int, tear: int) -> Content:
    return Content(1 + number % 4 + tear, 7 * (number % 2), more=number % 2)


requests = st.builds(_request, numbers, st.integers(0, 3), tears)
batches = st.lists(requests, min_size=1, max_size=8)


class World:
    """Two processes, one behind a proxy, and the loop that they live in."""

    def __init__(self, runner: asyncio.Runner, url: MysqlUrl) -> None:
        self._runner = runner
        self._resources = AsyncExitStack()
        self.proxy = MysqlProxy(url.host, url.port)
        self.processes = self.run(self._start(url))

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return self._runner.run(work)

    async def _start(self, url: MysqlUrl) -> list[Process]:
        enter = self._resources.enter_async_context
        await enter(self.proxy)
        lossy = dataclasses.replace(url, port=self.proxy.port)
        return [await enter(process(url)), await enter(process(lossy))]

    async def close(self) -> None:
        await self._resources.aclose()


class EngineMachine(RuleBasedStateMachine):
    """One product of its own. What a rule asks of the engine it asks of the model, too."""

    world: ClassVar[World]

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.product = self.more = 0
        self.first_order = 10_000_000_000 + ORDERS * next(_machines)
        self.world.proxy.cut_after_commit = 0

    @initialize(units=st.integers(10, 60))
    def first_load(self, units: int) -> None:
        self.product, self.more = next(product_ids), next(product_ids)
        self.model.product_id = self.product
        for product_id, total in ((self.product, units), (self.more, MORE_UNITS)):
            self._run(Products(self._process(0).database).put(settings_of(product_id, total)))
            self._run(self._process(0).lifecycle.load(product_id, wait_s=1))
        self.model.load(units, 1)

    @rule(process=processes, batch=batches, number=numbers, kind=kinds)
    def close_for_a_while(
        self, process: int, batch: list[Deduction], number: int, kind: str
    ) -> None:
        for order_id in self.model.held_orders():
            self._order("release", 0, order_id)
        lifecycle = self._process(process).lifecycle
        self._run(lifecycle.close(self.product, wait_s=5))
        units = self.model.available
        self.model.close()
        self.deduct(process, batch)
        self.order(kind, process, number)
        assert self._run(lifecycle.load(self.product, wait_s=1)).now
        self.model.load(units, 1)
        assert not self._run(lifecycle.load(self.product, wait_s=1)).now

    @rule(process=processes, batch=batches)
    def deduct(self, process: int, batch: list[Deduction]) -> None:
        asked = [request._replace(product_id=self.product) for request in batch]
        if self._loses(
            process
        ):  # what is served once more finds the record of the id's later content
            asked = list({request.request_id: request for request in asked}.values())
        spoiled = self._loses(process)
        answers = self._run(_deducting(self._process(process), asked))
        for request, answer in zip(asked, answers, strict=True):
            _check(self.model.deduct(request), answer, spoiled=spoiled)

    @rule(process=processes, spared=spared)
    def deduct_nearly_all(self, process: int, spared: int) -> None:
        quantity = max(1, self.model.available - spared)
        self.deduct(process, [Deduction(f"all-{next(_numbers)}", 0, quantity)])

    @rule(process=processes, request_id=ids, quantity=quantities, adds=st.booleans())
    def correct(self, process: int, request_id: str, quantity: int, adds: bool) -> None:
        spoiled = self._loses(process)
        stock = self._process(process).stock
        apply, expect = (
            (stock.restock, self.model.restock) if adds else (stock.remove, self.model.remove)
        )
        answer = self._run(apply(self.product, request_id=request_id, quantity=quantity, reason=""))
        _check(expect(request_id, quantity), answer, spoiled=spoiled)

    @rule(process=processes, request_id=ids)
    def resolve(self, process: int, request_id: str) -> None:
        answer = self._run(self._process(process).stock.resolve(self.product, request_id))
        record = self.model.records.get(request_id)
        if record is not None and record.kind in ("restock", "remove"):
            assert answer == Answer(Outcome.REQUEST_MISMATCH)
        else:
            assert answer == self.model.resolve(request_id)

    @rule(
        process=processes,
        number=numbers,
        tear=tears,
        sells=st.sampled_from([False, False, True]),
        attempt=st.integers(0, 3),
    )
    def reserve(self, process: int, number: int, tear: int, sells: bool, attempt: int) -> None:
        spoiled = self._loses(process)
        content = _content(number, tear)
        order_id = self.first_order + number
        lines = [Line(self.product, content.quantity)]
        lines += [Line(self.more, content.more)] * content.more
        orders = self._process(process).orders
        if sells:
            call = orders.sell(order_id, user_id=content.user_id, lines=lines, attempt=attempt)
        else:
            call = orders.reserve(
                order_id, user_id=content.user_id, lines=lines, ttl_s=3_600, attempt=attempt
            )
        if order_id in self.model.orders:  # whoever asks of an order looks at its time first
            self.model.look(order_id)
        reply = self.model.reserve(order_id, content, sells=sells, attempt=attempt)
        _check(reply, self._run(call), spoiled=spoiled)

    @rule(number=numbers, process=processes, kind=kinds, is_late=st.booleans(), spared=spared)
    def reserve_and_end(
        self, number: int, process: int, kind: str, is_late: bool, spared: int
    ) -> None:
        """A late one meets somebody who has taken nearly all units meanwhile."""
        self.reserve(1 - process, number, 0, False, 1)
        if is_late:
            self.time_passes(number)
            self.order("get", process, number)
            self.deduct_nearly_all(process, spared)
        self.order(kind, process, number)

    @rule(kind=kinds, process=processes, number=numbers)
    def order(self, kind: str, process: int, number: int) -> None:
        self._order(kind, process, self.first_order + number)

    @rule(number=numbers)
    def time_passes(self, number: int) -> None:
        order_id = self.first_order + number
        if order_id in self.model.held_orders():
            self._run(write(self._process(0).database, PAST, order_id))
            self.model.orders[order_id].is_late = True

    @rule(process=processes)
    def sweep(self, process: int) -> None:
        self._run(self._process(process).expiry.sweep())
        for order_id in self.model.late_orders():
            self.model.look(order_id)

    @rule(lost=st.integers(1, 3))
    def replies_to_commits_will_be_lost(self, lost: int) -> None:
        self.world.proxy.cut_after_commit = lost

    @invariant()
    def every_unit_is_where_the_model_has_it(self) -> None:
        if not self.product:
            return
        seen = self._run(self._process(0).stock.read(self.product))
        more = self._run(self._process(0).stock.read(self.more))
        assert seen is not None
        assert more is not None
        assert (seen.available, seen.held, seen.sold) == (
            self.model.available,
            self.model.held,
            self.model.sold,
        )
        assert seen.total == seen.available + seen.held + seen.sold
        assert (more.held, more.sold) == (self.model.more_held, self.model.more_sold)

    def _order(self, kind: str, process: int, order_id: int) -> None:
        spoiled = self._loses(process)
        calls = self._process(process).orders
        answer = self._run(getattr(calls, kind)(order_id))
        _check(getattr(self.model, kind)(order_id), answer, spoiled=spoiled)

    def _process(self, number: int) -> Process:
        return self.world.processes[number]

    def _loses(self, process: int) -> bool:
        return process == LOSSY and self.world.proxy.cut_after_commit > 0

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return self.world.run(work)


async def _deducting(sender: Process, asked: list[Deduction]) -> list[Answer]:
    return await sender.stock.deduct(asked)


def _check(reply: Reply, answer: Answer | OrderAnswer, *, spoiled: bool) -> None:
    """Where a reply to a commit was lost, the engine finds its own first try and calls it a replay."""
    assert (answer.outcome, answer.reason) == (reply.outcome, reply.reason)
    assert answer.replayed == reply.replayed or (spoiled and answer.replayed)


@pytest.fixture
def world(engine_url: MysqlUrl) -> Iterator[World]:
    # A factory keeps the runner from replacing the loop that the other tests use.
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        created = EngineMachine.world = World(runner, engine_url)
        yield created
        created.run(created.close())


FIRST_SEED = 1
EXPLORES = "INVENTORY_STATE_MACHINE_S" in os.environ
PLAYS_S = float(os.environ.get("INVENTORY_STATE_MACHINE_S", "6"))
SHRINKS_S = 300.0


@pytest.mark.timeout(PLAYS_S + SHRINKS_S)
def test_any_sequence_of_calls_is_answered_as_one_counter_would(world: World) -> None:
    # What the suite plays is the same every time; whoever gives it more time explores.
    own = SystemRandom().getrandbits(32) if EXPLORES else FIRST_SEED
    first = os.environ.get("INVENTORY_STATE_MACHINE_SEED", own)
    end_s = time.monotonic() + PLAYS_S
    for number in count(int(first)):
        _LOG.info("INVENTORY_STATE_MACHINE_SEED=%d", number)
        try:
            run_state_machine_as_test(seed(number)(EngineMachine), settings=SETTINGS)
        except BaseException as failure:
            failure.add_note(f"INVENTORY_STATE_MACHINE_SEED={number}")
            raise
        if time.monotonic() > end_s:
            return
