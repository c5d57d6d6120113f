"""The rules by which the state machine orders; see test_state_machine.py."""

import asyncio
from collections.abc import Callable, Coroutine
from itertools import count
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from msgpack import unpackb

from sharding import keys
from sharding.cluster import Cluster, LaneKind
from sharding.errors import StockUnavailableError
from sharding.notes import NOTE_S
from sharding.ordering import Orders
from sharding.orders import Line, OrderAnswer
from sharding.outcomes import Deduction, Outcome, State
from sharding.placement import Layout
from sharding.plans import LoadPlan
from sharding.stock import Stock
from tests.model import INSUFFICIENT, Content, Model, Reply
from tests.sharding.faulty_lanes import Copy, FaultyCluster

Result = TypeVar("Result")

TTL_S = 3_600.0
ORDERS = 100
"""Ids of orders that a product has for its own."""
MORE_UNITS = 100_000
"""Of the product of which every order can have a unit."""
REPEATS_MAX = 3

NO_CONTENT = Content(1, 0)
_more = count(5_000_000_001)
numbers = st.integers(0, 6)
quantities = st.one_of(st.integers(1, 3), st.integers(1, 30))
contents = st.builds(
    Content, quantity=quantities, user_id=st.sampled_from([0, 0, 7]), more=st.integers(0, 1)
)
processes = st.integers(0, 1)
lives = st.integers(0, 14)
kinds = st.sampled_from(["confirm", "confirm", "release", "get", "extend"])


class Living(Protocol):
    """A process, as far as it orders."""

    @property
    def cluster(self) -> FaultyCluster: ...
    @property
    def orders(self) -> Orders: ...


class Wish(NamedTuple):
    """One call on an order; `content` of those that reserve or sell."""

    kind: str
    order_id: int
    content: Content = NO_CONTENT
    attempt: int = 0

    @property
    def takes(self) -> bool:
        return self.kind in ("reserve", "sell")


class OrderRules(RuleBasedStateMachine):
    """What a machine for one product adds to its own rules to order it."""

    world: ClassVar[Any]
    model: Model
    product: int
    asked: set[str]
    partitions: set[int]

    if TYPE_CHECKING:  # what the state machine has

        def _run(self, work: Coroutine[Any, Any, Result]) -> Result: ...
        def _say(self, text: str) -> None: ...
        def _crash(
            self,
            ask: Callable[[Stock], Coroutine[Any, Any, Result]],
            life: int,
            *,
            deaf: bool = False,
        ) -> Result | StockUnavailableError: ...
        def _take_over_a_final_refusal(self, request: Deduction) -> None: ...

    def load_more(self, stock: Stock) -> None:
        """Put the product on sale that orders may want besides."""
        self.more = next(_more)
        units = (MORE_UNITS,) * 3
        self._run(stock.load(LoadPlan(self.more, 1, Layout(1, 3), units, 0, 0)))

    @rule(
        process=processes,
        number=numbers,
        content=contents,
        sells=st.booleans(),
        attempt=st.integers(0, 3),
    )
    def reserve(
        self, process: int, number: int, content: Content, sells: bool, attempt: int
    ) -> None:
        self._call(process, self._wish("sell" if sells else "reserve", number, content, attempt))

    @rule(process=processes, number=numbers, sells=st.booleans(), attempt=st.sampled_from([0, 2]))
    def reserve_again(self, process: int, number: int, sells: bool, attempt: int) -> None:
        order = self.model.orders.get(self._order_id(number))
        if order is not None:
            self.reserve(process, number, order.content, sells, attempt)

    @rule(process=processes, number=numbers, kind=kinds)
    def end_an_order(self, process: int, number: int, kind: str) -> None:
        self._call(process, self._wish(kind, number))

    @precondition(lambda self: self.model.held_orders())
    @rule(
        process=processes,
        which=st.integers(0, 9),
        then=st.lists(kinds, max_size=3),
    )
    def an_orders_time_is_over(self, process: int, which: int, then: list[str]) -> None:
        """Somebody asks for it after that, or nobody does."""
        held = self.model.held_orders()
        order_id = held[which % len(held)]
        self._run(self._make_late(order_id))
        self.model.orders[order_id].is_late = True
        for kind in then:
            self._call(process, Wish(kind, order_id))

    @precondition(lambda self: self.model.late_orders())
    @rule(process=processes)
    def a_worker_looks_after_orders(self, process: int) -> None:
        self._run(self._sweep(self._living(process).orders))
        for order_id in self.model.late_orders():
            self.model.look(order_id)
        self._outlive_notes()

    @rule(
        number=numbers,
        content=contents,
        kind=st.sampled_from(["reserve", "sell", "confirm", "release"]),
        life=lives,
        deaf=st.booleans(),
    )
    def a_process_dies_while_it_orders(
        self, number: int, content: Content, kind: str, life: int, deaf: bool
    ) -> None:
        """Another process is asked the same, and says what became of it."""
        order = self.model.orders.get(self._order_id(number))
        wish = self._wish(kind, number, content if order is None else order.content)
        said = self._crash(lambda stock: self._dying_call(stock, wish), life, deaf=deaf)
        assert isinstance(said, OrderAnswer)
        reply = self._call(0, wish._replace(attempt=2), is_known_to_have_run=True)
        if said.outcome not in (Outcome.UNAVAILABLE, Outcome.OVERLOADED):
            assert said.outcome is reply.outcome

    def end_all_orders(self) -> None:
        """Nothing is held any more."""
        for order_id in self.model.held_orders():
            self._call(0, Wish("release", order_id))

    def confirm_all_orders(self) -> None:
        """What is held can be sold."""
        for order_id in self.model.held_orders():
            self._call(0, Wish("confirm", order_id))

    def check_more(self) -> None:
        """The other product's units are where the orders have them."""
        seen = self._run(self._more_seen())
        assert seen == (self.model.more_held, self.model.more_sold)

    def account_for_orders(self, copy: Copy, reply: list[object]) -> None:
        """A late copy of a decision may find that an order's time is over, and nothing else."""
        if copy.script.name != "decide":
            return
        wants, answers = unpackb(copy.argument("wants")), reply[3]
        assert isinstance(answers, list)
        for order_id, what, changed in zip(wants[::4], wants[1::4], answers[::2], strict=True):
            if int(order_id) in self.model.late_orders() and changed:
                # Nobody tells the other lines of it but whoever asks next.
                self._call(0, Wish("release", int(order_id)))
            elif int(order_id) in self.model.orders and changed:
                assert what in ("X", "D")

    def account_for_line(self, request: Deduction, terms: str, status: str) -> None:
        """Enter what a late copy did for a line of an order."""
        kind, number, _ = request.request_id.split(" ")
        order_id, is_retaken = int(number), kind == "retake"
        content = Content(request.quantity, request.user_id, int(terms.startswith("P")))
        if status in "DH":
            assert not is_retaken
            sells = terms.startswith("C")
            taken = self.model.reserve(order_id, content, sells=sells, attempt=0)
            assert taken.outcome in (Outcome.HELD, Outcome.CONFIRMED)
            if content.more:  # somebody has to go on with it
                self._call(0, Wish("reserve", order_id, content), is_known_to_have_run=True)
        elif status == "T":
            assert not is_retaken
            assert self.model.reserve(order_id, content, sells=False, attempt=2) == INSUFFICIENT
        elif status == "R":
            assert order_id in self.model.orders
        elif status == "X":
            assert self.model.records[request.request_id].kind == "refused"
        elif status == "N":
            assert is_retaken or order_id in self.model.barred

    def _order_id(self, number: int) -> int:
        return self.product * ORDERS + number

    def _wish(
        self, kind: str, number: int, content: Content = NO_CONTENT, attempt: int = 0
    ) -> Wish:
        """A caller says `attempt=1` of an order that it never sent before, in no kind of call: of one
        that it has released a proof may say that there are too few units."""
        wish = Wish(kind, self._order_id(number), content, attempt)
        request_id = self.model.line_id(wish.order_id)
        was_asked = request_id in self.asked
        self.asked.add(request_id)
        return wish._replace(attempt=0) if was_asked and attempt == 1 else wish

    def _living(self, process: int) -> Living:
        living: Living = self.world.processes[process]
        return living

    def _call(self, process: int, wish: Wish, *, is_known_to_have_run: bool = False) -> Reply:
        """Ask the kernel and the model; where a reply was lost on the way until the kernel knows."""
        living = self._living(process)
        before, expired = living.cluster.faults.spoiled, self.model.expired
        answer = self._run(self._carried_out(living.orders, wish))
        self._say(f"process {process} {wish}: {_brief(answer)}")
        is_spoiled = is_known_to_have_run or living.cluster.faults.spoiled > before
        for _ in range(REPEATS_MAX if is_spoiled else 0):
            if answer.outcome is not Outcome.UNAVAILABLE:
                break
            living.cluster.faults.heal()
            wish = wish._replace(attempt=2)
            answer = self._run(self._carried_out(living.orders, wish))
            self._say(f"again {wish}: {_brief(answer)}")
        reply = self._expected(wish)
        self._check_order(wish, reply, answer, spoiled=is_spoiled)
        if self.model.expired > expired:
            self._outlive_notes()
        return reply

    def _expected(self, wish: Wish) -> Reply:
        model = self.model
        if wish.takes:
            sells = wish.kind == "sell"
            return model.reserve(wish.order_id, wish.content, sells=sells, attempt=wish.attempt)
        if wish.kind == "confirm":
            return model.confirm(wish.order_id)
        return model.release(wish.order_id) if wish.kind == "release" else model.get(wish.order_id)

    def _was_refused_and_released(self, wish: Wish, reply: Reply, answer: OrderAnswer) -> bool:
        """Of an order that was refused and released without ever having come, a copy hears what the
        shard knows that it meets first: it holds nothing in either case."""
        never_came = wish.order_id in self.model.barred and wish.order_id not in self.model.orders
        is_refused = reply.outcome in (Outcome.REQUEST_MISMATCH, Outcome.INSUFFICIENT_STOCK)
        is_released = answer.outcome is Outcome.RELEASED and answer.replayed
        return wish.takes and never_came and is_refused and is_released

    def _check_order(self, wish: Wish, reply: Reply, answer: OrderAnswer, *, spoiled: bool) -> None:
        if self._was_refused_and_released(wish, reply, answer):
            return
        assert (answer.outcome, answer.reason) == (reply.outcome, reply.reason)
        # Whether an order is held for longer from now on the model does not know.
        if wish.kind != "extend":
            assert answer.replayed == reply.replayed or (spoiled and answer.replayed)
        if answer.order is not None:
            order = self.model.orders[wish.order_id]
            assert answer.order.lines == self._lines(order.content)
        if answer.outcome is Outcome.INSUFFICIENT_STOCK:
            assert answer.short == (Line(self.product, wish.content.quantity),)
            if spoiled:
                quantity, user_id, _ = wish.content
                request_id = self.model.line_id(wish.order_id)
                refused = Deduction(request_id, self.product, quantity, user_id)
                self._take_over_a_final_refusal(refused)

    def _lines(self, content: Content) -> tuple[Line, ...]:
        lines = (Line(self.product, content.quantity), Line(self.more, 1))
        return lines if content.more else lines[:1]

    async def _carried_out(self, orders: Orders, wish: Wish) -> OrderAnswer:
        order_id, content = wish.order_id, wish.content
        lines = self._lines(content)
        match wish.kind:
            case "reserve":
                return await orders.reserve(
                    order_id,
                    user_id=content.user_id,
                    lines=lines,
                    ttl_s=TTL_S,
                    attempt=wish.attempt,
                )
            case "sell":
                return await orders.sell(
                    order_id, user_id=content.user_id, lines=lines, attempt=wish.attempt
                )
            case "confirm":
                return await orders.confirm(order_id)
            case "release":
                return await orders.release(order_id, product_id=self.product)
            case "extend":
                return await orders.extend(order_id, 2 * TTL_S)
        return await orders.get(order_id)

    async def _dying_call(self, stock: Stock, wish: Wish) -> OrderAnswer:
        dying = self.world.processes[-1]
        orders = Orders(stock, dying.cluster, grace_s=0)
        try:
            return await self._carried_out(orders, wish)
        finally:
            await orders.drain()

    async def _make_late(self, order_id: int) -> None:
        """As if the time that an order was held for were over."""
        observer: Cluster = self.world.observer
        field = f"order {order_id}"
        for partition in sorted(self.partitions):
            tag = observer.tags[partition]
            for generation in range(keys.RECORD_GENERATIONS):
                key = keys.records(tag, generation)
                record = await observer.command(partition, "HGET", key, field, lane=LaneKind.MOVE)
                if isinstance(record, bytes):
                    state, _, created_ms, *rest = record.decode().split(" ")
                    past_ms = str(int(created_ms) - 1)
                    late = " ".join((state, past_ms, created_ms, *rest))
                    for command in (
                        ("HSET", key, field, late),
                        ("ZADD", keys.deadlines(tag), past_ms, str(order_id)),
                    ):
                        await observer.command(partition, *command, lane=LaneKind.MOVE)
                    return
        raise AssertionError(f"no partition knows order {order_id}")

    async def _sweep(self, orders: Orders) -> None:
        for partition in sorted(self.partitions):
            await orders.look_after(partition, await orders.due(partition, limit=500))

    async def _more_seen(self) -> tuple[int, int]:
        stock = self.world.processes[0].stock
        seen = await stock.read(self.more)
        assert seen.state is State.OPEN
        assert seen.total == seen.available + seen.in_transit + seen.held + seen.sold
        return seen.held, seen.sold

    def _outlive_notes(self) -> None:
        """Units came back, and nobody was told: a proof from before may still refuse first tries."""
        self._run(asyncio.sleep(NOTE_S))


def _brief(answer: OrderAnswer) -> str:
    return f"{'again ' * answer.replayed}{answer.outcome} {answer.reason} {answer.short}"
