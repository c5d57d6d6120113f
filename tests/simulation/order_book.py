"""What an oracle knows of orders: from their events, and from what callers were told.

Everything that events tell is learnt anew after a loss; what callers were told stays.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from sharding.events import Decision, End, Event, Sale
from sharding.orders import Line, OrderAnswer, OrderState, request_id_of
from sharding.outcomes import Outcome, Reason
from tests.simulation.observed import RESTORED, Entry, Place, Product, expect

GIVEN_UP_S = 10.0
"""An order whose lines are being held is left alone for longer than this."""

P, H, C, R = OrderState.PENDING, OrderState.HELD, OrderState.CONFIRMED, OrderState.RELEASED
E, A, T = OrderState.EXPIRED, OrderState.REFUSED, OrderState.RETAKING
K, F = OrderState.RETAKEN, OrderState.REFUND_REQUIRED

NEXT: Mapping[OrderState, frozenset[OrderState]] = {
    P: frozenset((H, C, R, A)),
    H: frozenset((H, C, R, E)),
    E: frozenset((T,)),
    T: frozenset((K, F)),
}
"""What may become of an order; in the other states it stays for ever."""
NEEDS: Mapping[tuple[OrderState, OrderState], frozenset[str]] = {
    (P, C): frozenset(("sell",)),
    (H, C): frozenset(("sell", "confirm")),
    (H, R): frozenset(("release",)),
    (H, H): frozenset(("extend",)),
    (E, T): frozenset(("confirm",)),
}
"""Changes that nobody makes unasked."""
STATES = {
    Outcome.HELD: H,
    Outcome.CONFIRMED: C,
    Outcome.RELEASED: R,
    Outcome.EXPIRED: E,
    Outcome.RETAKEN: K,
    Outcome.REFUND_REQUIRED: F,
}
"""The state that an outcome tells of."""
MAY_COME_AGAIN = frozenset((H, E))
"""States that an order may have left by the time that somebody hears of it."""
NO_EFFECT = (Outcome.UNAVAILABLE, Outcome.OVERLOADED, Outcome.USER_LIMIT, Outcome.FROZEN)


class Step(NamedTuple):
    """An order's state from some time on, by its coordinator's clock."""

    state: OrderState
    at_ms: int


@dataclass(slots=True)
class Hold:
    """Units of one line; sold at once where `end` says so from the beginning."""

    product_id: int
    request_id: str
    quantity: int
    place: Place
    is_sold: bool = False
    is_back: bool = False

    @property
    def is_open(self) -> bool:
        return not (self.is_sold or self.is_back)


@dataclass(slots=True)
class Asked:
    """All that callers have asked and heard of one order."""

    order_id: int
    user_id: int
    lines: tuple[Line, ...]
    calls: Counter[str] = field(default_factory=Counter)
    """How often each kind of call was sent."""
    since: dict[int, int] = field(default_factory=dict)
    """Where in each product's history it was first sent."""
    told: set[Outcome] = field(default_factory=set)
    fresh: Counter[Outcome] = field(default_factory=Counter)
    """Outcomes that were answered without `replayed` by calls that decide alone."""
    deadline_ms: int = 0
    """Until then its holds were promised."""
    is_barred: bool = False
    """Somebody was told that it is released, though it had never come."""
    has_lost_bars: bool = False
    """A node has forgotten since it came that it was to be barred."""
    is_refused: bool = False
    """Somebody was told for good that its first line is short."""
    is_questioned: bool = False
    """Its coordinator was restored since it was decided last, and has to ask what its lines came to."""
    has_first_try: bool = False
    """Somebody has sent a call that says that it is the first."""
    holds: dict[tuple[int, str], Hold] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)

    @property
    def name(self) -> str:
        lines = ", ".join(f"{line.quantity} of {line.product_id}" for line in self.lines)
        return f"order {self.order_id} ({lines})"

    @property
    def state(self) -> OrderState | None:
        return self.steps[-1].state if self.steps else None

    @property
    def first_hold(self) -> Hold | None:
        return self.holds.get((self.lines[0].product_id, self.request_id))

    @property
    def request_id(self) -> str:
        """Under which its lines are taken."""
        return request_id_of(self.order_id, self.lines[0].product_id)

    def has_been(self, state: OrderState) -> bool:
        return any(step.state is state for step in self.steps)


class Sending(NamedTuple):
    """One call on an order; `first` is its first hold as it was then."""

    order: Asked
    kind: str
    since: dict[int, int]
    first: Hold | None
    attempt: int


class OrderBook:
    """Judges orders. Every method raises ViolationError when a promise is broken."""

    def __init__(self, products: Mapping[int, Product], counts: Counter[str]) -> None:
        self.orders: dict[int, Asked] = {}
        self._products = products
        self._counts = counts

    # What nodes do.

    def judge(self, entry: Entry) -> None:
        """Whether an event may be; it is booked after that."""
        event = entry.event
        for sale in taken(event):
            self._judge_taken(entry, sale)
        for decision in event.decisions:
            self._judge_decision(entry, decision)
        for end in event.ends:
            self._judge_end(entry, end)

    def book(self, entry: Entry) -> None:
        """Learn what an event tells, without judging it."""
        event = entry.event
        for sale in taken(event):
            order = self.orders[sale.order_id]
            place = Place(entry.partition, event.id)
            hold = Hold(event.product_id, sale.request_id, sale.quantity, place)
            hold.is_sold = sale in event.sales
            order.holds[event.product_id, sale.request_id] = hold
            if order.first_hold is hold:
                order.steps.append(Step(_first_state(order, hold), event.at_ms))
        for decision in event.decisions:
            order = self.orders[decision.order_id]
            order.steps.append(Step(decision.state, event.at_ms))
            order.is_questioned = False
        for end in event.ends:
            hold = self.orders[end.order_id].holds[event.product_id, end.request_id]
            hold.is_sold, hold.is_back = end.is_sold, not end.is_sold

    def note_opened(self, entry: Entry) -> None:
        """A partition was opened; where it was restored, its orders are as the ledger knows them."""
        if entry.how.mode != RESTORED:
            return
        for order in self.orders.values():
            first = order.first_hold
            if first and first.place.partition == entry.partition and len(order.lines) > 1:
                order.is_questioned = order.state in (P, H)

    def forget_events(self) -> None:
        """Before all that are left are booked anew."""
        for order in self.orders.values():
            order.holds.clear()
            order.steps.clear()
            order.is_questioned = False

    def forget_bars(self) -> None:
        """A node was set back: where it is opened as it is, it has forgotten who was barred, also of
        those who are being told so just now."""
        for order in self.orders.values():
            order.is_barred, order.has_lost_bars = False, True

    def check_after_loss(self) -> None:
        """Whatever was told is still so."""
        for order in self.orders.values():
            for outcome in order.told:
                expect(
                    order.has_been(STATES[outcome]),
                    f"I5: {order.name} was told {outcome}, and a master's end has undone it",
                )

    def _judge_taken(self, entry: Entry, sale: Sale) -> None:
        event = entry.event
        order = self.orders.get(sale.order_id)
        expect(order is not None, f"I6: {sale} was never asked for")
        assert order is not None
        name = f"I6: {order.name}: {sale} of product {event.product_id}"
        expect(Line(event.product_id, sale.quantity) in order.lines, f"{name} is no line of it")
        expect(sale.user_id == order.user_id, f"{name} is another user's")
        expect((event.product_id, sale.request_id) not in order.holds, f"{name} is taken twice")
        if sale.request_id.startswith("retake"):
            expect(order.has_been(T), f"{name} is retaken in {order.steps}")
        elif event.product_id == order.lines[0].product_id:
            expect(not order.is_barred, f"{name} comes after the order was told to be released")
            expect(not order.is_refused, f"{name} comes after it was refused for good")
            self._counts["orders taken"] += 1
        else:
            expect(order.state in (P, R, A), f"{name} is taken in {order.steps}")
        if sale in event.sales:
            is_sold_alone = len(order.lines) == 1 and order.calls["sell"]
            expect(is_sold_alone, f"{name} is sold, but nobody wanted that")

    def judge_visit(self, product_id: int, line: Sale, name: str) -> None:
        """A stand-in takes the first line of a first try, and further lines when they first come."""
        order = self.orders[line.order_id]
        expect(line.request_id == order.request_id, f"{name}, though its home alone may retake it")
        is_first = product_id == order.lines[0].product_id
        expect(order.has_first_try or not is_first, f"{name}, though no try was the first")
        self._counts["orders at alternates" if is_first else "further lines at alternates"] += 1

    def _judge_decision(self, entry: Entry, decision: Decision) -> None:
        event = entry.event
        order = self.orders[decision.order_id]
        name = f"I6: {order.name} after {order.steps}: {decision}"
        first = order.first_hold
        expect(first is not None and order.state is not None, f"{name} was never taken")
        assert first is not None
        assert order.state is not None
        is_here = (first.place.partition, first.product_id) == (entry.partition, event.product_id)
        expect(is_here, f"{name} is decided elsewhere than at {first}")
        expect(decision.user_id == order.user_id, f"{name} is another user's")
        expect(decision.state in NEXT.get(order.state, ()), f"{name} is too late")
        needed = NEEDS.get((order.state, decision.state))
        if order.is_questioned and decision.state is H:
            needed = None
        expect(not needed or any(order.calls[k] for k in needed), f"{name} was not asked for")
        if decision.state is E:
            expect(event.at_ms > order.deadline_ms, f"{name} at {event.at_ms} is too early")
        is_given_up = (order.state, decision.state) == (P, R) and not order.calls["release"]
        if is_given_up and not order.is_questioned:
            self._judge_giving_up(order, event.at_ms, name)
        self._counts[f"orders {decision.state.name.lower().replace('_', ' ')}"] += 1

    def _judge_giving_up(self, order: Asked, at_ms: int, name: str) -> None:
        """A line can be refused for another reason than shortage; otherwise nobody is in a hurry."""
        age_s = (at_ms - order.steps[0].at_ms) / 1_000
        products = [self._products[line.product_id] for line in order.lines]
        can_be_refused = any(product.limits or product.shut for product in products)
        expect(can_be_refused or age_s > GIVEN_UP_S, f"{name} is given up after {age_s} s")
        self._counts["orders given up by a keeper"] += age_s > GIVEN_UP_S

    def _judge_end(self, entry: Entry, end: End) -> None:
        order = self.orders[end.order_id]
        hold = order.holds.get((entry.event.product_id, end.request_id))
        name = f"I6: {order.name} after {order.steps}: {end} of {hold}"
        expect(hold is not None and hold.is_open, f"{name}, which is not open")
        assert hold is not None
        expect(hold.place.partition == entry.partition, f"{name} elsewhere")
        same = (hold.quantity, order.user_id) == (end.quantity, end.user_id)
        expect(same, f"{name} is of other content")
        is_late = end.request_id.startswith("retake")
        expect(end.why in ((K, F) if is_late else (C, R, E, A)), f"{name} for that reason")
        is_decided = order.has_been(end.why) or any(
            (decision.order_id, decision.state) == (end.order_id, end.why)
            for decision in entry.event.decisions
        )
        expect(is_decided, f"{name}, though nobody decided it")

    # What callers do.

    def knows(self, order: Asked) -> None:
        """A caller has made up an order."""
        self.orders[order.order_id] = order

    def sends(self, order: Asked, kind: str, *, attempt: int = 0) -> Sending:
        """A caller sends a call."""
        order.calls[kind] += 1
        since = {
            line.product_id: len(self._products[line.product_id].offered) - 1
            for line in order.lines
        }
        order.since = order.since or since
        order.has_first_try |= attempt == 1
        return Sending(order, kind, since, order.first_hold, attempt)

    def answered(self, sent: Sending, answer: OrderAnswer) -> None:
        """A caller got an answer."""
        order, outcome = sent.order, answer.outcome
        told = f"{order.name} after {order.steps} was told {answer} by {sent.kind}"
        if answer.order is not None:
            same = (answer.order.order_id, answer.order.user_id, answer.order.lines)
            expect(same == (order.order_id, order.user_id, order.lines), f"I8: {told}")
        if outcome in STATES:
            self._told_state(sent, answer, told)
        elif outcome is Outcome.INSUFFICIENT_STOCK:
            self._told_short(sent, answer, told)
        elif outcome is Outcome.UNKNOWN_ORDER:
            expect(sent.first is None or sent.first is not order.first_hold, f"I8: {told}")
        else:
            expect(outcome in NO_EFFECT, f"I8: {told}")
            self._told_nothing(sent, answer, told)

    def _told_state(self, sent: Sending, answer: OrderAnswer, told: str) -> None:
        order, state = sent.order, STATES[answer.outcome]
        if state is R and not order.steps:
            self._counts["orders barred"] += not order.is_barred
            order.is_barred = not order.has_lost_bars
            return
        was = order.has_been(state) if state in MAY_COME_AGAIN else order.state is state
        expect(was, f"I6: {told}")
        order.told.add(answer.outcome)
        if state is H and answer.order is not None:
            self._promise(order, answer.order.deadline_ms, told)
        if sent.kind in ("confirm", "release") and not answer.replayed:
            order.fresh[answer.outcome] += 1
            expect(order.fresh[answer.outcome] == 1, f"I6: {told}, a second time")
        if sent.kind == "release" and state in (R, E) and not answer.replayed:
            for line in order.lines:
                self._products[line.product_id].tell(order.request_id)

    def _promise(self, order: Asked, deadline_ms: int, told: str) -> None:
        order.deadline_ms = max(order.deadline_ms, deadline_ms)
        expired = [step.at_ms for step in order.steps if step.state is E]
        expect(not expired or expired[0] > deadline_ms, f"I6: {told}, but is expired")

    def _told_short(self, sent: Sending, answer: OrderAnswer, told: str) -> None:
        order = sent.order
        expect(sent.kind in ("reserve", "sell") or order.state is A, f"I8: {told}")
        had_it = sent.first is not None and sent.first is order.first_hold
        # Who says that this is the first copy is not protected from copies that he did send before.
        expect(not had_it or order.state is A or sent.attempt == 1, f"I6: {told}")
        expect(answer.short and set(answer.short) <= set(order.lines), f"I3: {told}")
        is_first = answer.short[:1] == order.lines[:1]
        if is_first and order.state is None and (answer.replayed or sent.attempt >= 2):
            order.is_refused = True
        since = order.since if answer.replayed or order.state is A else sent.since
        # Of an order that was not taken the first line is proven to be short, the others are looked at.
        for line in answer.short if order.state is A else answer.short[:1]:
            least = min(self._products[line.product_id].certain[since[line.product_id] :])
            expect(
                least < line.quantity,
                f"I3: {told}, but there never were less than {least} units of {line.product_id}",
            )

    def _told_nothing(self, sent: Sending, answer: OrderAnswer, told: str) -> None:
        """Who is told that nothing happened, and sent nothing else, has nothing."""
        order = sent.order
        if answer.outcome is Outcome.USER_LIMIT:
            limited = any(self._products[line.product_id].limits for line in order.lines)
            expect(limited, f"I8: {told}, but nothing is limited")
        if answer.reason is Reason.ORDER_PENDING:
            expect(order.has_been(P) or order.has_been(T), f"I8: {told}")
            return
        is_unknown = answer.reason in (Reason.OUTCOME_UNKNOWN, Reason.NOT_REPLICATED)
        if not is_unknown and sum(order.calls.values()) == 1:
            expect(order.state in (None, P, R, A), f"I8: {told}, but has done it")

    def is_settled(self) -> None:
        """Nothing is under way, all deadlines are over: each order is decided, and all or none sold."""
        for order in self.orders.values():
            name = f"I6: {order.name} is left in {order.steps} with {order.holds}"
            expect(order.state not in (P, H, T), name)
            expect(not any(hold.is_open for hold in order.holds.values()), name)
            sold = {
                (hold.product_id, hold.quantity) for hold in order.holds.values() if hold.is_sold
            }
            is_sold = order.state is not None and order.state.is_sold
            expect(sold == (set(order.lines) if is_sold else set()), name)


def taken(event: Event) -> Iterator[Sale]:
    """The lines of orders that an event tells of."""
    for sale in (*event.sales, *event.holds):
        if " " in sale.request_id:
            yield sale


def _first_state(order: Asked, hold: Hold) -> OrderState:
    if hold.is_sold:
        return C
    return H if len(order.lines) == 1 else P
