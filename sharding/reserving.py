"""Holding all lines of an order, or none.

The first line is held together with the order's record; the others follow, and then the record is
decided. An order of one line is decided by the script call that takes it.
"""

import asyncio
from collections.abc import Awaitable, Sequence
from typing import NamedTuple

from sharding.answers import BARRED
from sharding.coordinator import Coordinator, Decided, Want, Wish
from sharding.delivering import Delivery
from sharding.errors import StockUnavailableError
from sharding.finding import Finder, Known, Place
from sharding.orders import (
    HERE,
    NOWHERE,
    SOMEWHERE,
    Held,
    Line,
    Order,
    OrderAnswer,
    OrderState,
    answer_of,
    outcome_of,
    request_id_of,
)
from sharding.outcomes import Answer, Deduction, Outcome, Reason
from sharding.stock import Stock

TAKEN = frozenset((Outcome.HELD, Outcome.DEDUCTED))
UNDECIDED = frozenset((Outcome.UNAVAILABLE, Outcome.OVERLOADED))


class Wanted(NamedTuple):
    """An order as it was asked for; `lines` by product."""

    order_id: int
    user_id: int
    lines: tuple[Line, ...]
    ttl_ms: int
    sells: bool
    attempt: int

    def is_as(self, order: Order) -> bool:
        """Whether an order is this one."""
        return self.user_id == order.user_id and self.lines == order.lines

    def begins_as(self, order: Order) -> bool:
        """Whether it is this one as far as its coordinator can tell by the first line."""
        return self.user_id == order.user_id and self.lines[0] == order.lines[0]


class Reserving:
    """Takes the lines of orders."""

    def __init__(
        self,
        stock: Stock,
        coordinator: Coordinator,
        delivery: Delivery,
        finder: Finder,
        *,
        pending_ms: int,
        waits: bool,
    ) -> None:
        self._waits = waits
        """Whether a replica has whatever was answered."""
        self._stock = stock
        self._coordinator = coordinator
        self._delivery = delivery
        self._finder = finder
        self._pending_ms = pending_ms

    async def reserve(self, wanted: Wanted) -> OrderAnswer:
        """HELD or CONFIRMED; INSUFFICIENT_STOCK with the lines that are short; how it ended before.
        StockUnavailableError."""
        before = await self._known_before(wanted)
        if before is not None:
            return await self._go_on(wanted, before)
        if len(wanted.lines) > 1:
            objection = await self._objection(wanted)
            if objection is not None:
                return OrderAnswer(objection.outcome, reason=objection.reason)
        first = await self._take_first(wanted)
        if first.outcome not in TAKEN:
            return await self._refused(wanted, first)
        self._finder.remember(wanted.order_id, Place(first.shard, wanted.lines[0].product_id))
        if not first.replayed and len(wanted.lines) == 1:
            order = _as_taken(wanted, first)
            return OrderAnswer(outcome_of(order), order)
        if first.replayed:
            return await _begun(self._again(wanted, first.shard))
        # Nobody else has come so far, so nobody has asked for a further line.
        return await _begun(self._take_others(wanted, first.shard, are_new=True))

    async def _known_before(self, wanted: Wanted) -> Known | None:
        """The order that has the id, as far as can be told now.

        Of a first try nobody has heard; only where this process saw the id is looked at.
        """
        place = self._finder.remembered(wanted.order_id)
        if place is not None:
            return await self._finder.look_at(wanted.order_id, place)
        return None if wanted.attempt == 1 else await self._found(wanted)

    async def _found(self, wanted: Wanted) -> Known | None:
        try:
            known = await self._finder.find(wanted.order_id, wanted.lines[0].product_id)
        except StockUnavailableError:
            return None
        return known if known is not None and known.order is not None else None

    async def _go_on(self, wanted: Wanted, known: Known) -> OrderAnswer:
        """The id has an order: this one, or one that begins otherwise."""
        assert known.order is not None
        if not wanted.begins_as(known.order):
            return OrderAnswer(Outcome.REQUEST_MISMATCH)
        self._finder.remember(wanted.order_id, Place(known.partition, known.order.first_product))
        return await _begun(self._again(wanted, known.partition))

    async def _objection(self, wanted: Wanted) -> Answer | None:
        """Why a line can never be held, as far as that is known without holding any."""
        objections = await asyncio.gather(
            *(self._stock.objection(line.product_id, wanted.user_id) for line in wanted.lines)
        )
        return next((each for each in objections if each is not None), None)

    async def _take_first(self, wanted: Wanted) -> Answer:
        alone = "C" if wanted.sells else "H"
        is_alone = len(wanted.lines) == 1
        ttl_ms = wanted.ttl_ms if is_alone else self._pending_ms
        terms = (alone if is_alone else "P", ttl_ms, _undecided(wanted.lines))
        line = _request(wanted, wanted.lines[0], *terms, attempt=wanted.attempt)
        return (await self._stock.deduct([line]))[0]

    async def _again(self, wanted: Wanted, partition: int) -> OrderAnswer:
        """The order was reserved before; where nobody has decided it, go on."""
        _, has_changed, order = await self._decide(wanted, partition, Wish.LOOK)
        if not wanted.is_as(order):
            return OrderAnswer(Outcome.REQUEST_MISMATCH)
        if order.state is OrderState.PENDING:
            return await self._take_others(wanted, partition, are_new=False)
        if order.state is OrderState.HELD and wanted.sells:
            return await self._sell_held(wanted, partition)
        answer = await self._told(partition, order, replayed=True)
        if has_changed or order.is_open:  # its time was over, and nobody had noticed
            await self._stock.outlive_notes(line.product_id for line in order.held)
        return answer

    async def _take_others(self, wanted: Wanted, partition: int, *, are_new: bool) -> OrderAnswer:
        """`are_new`: nobody has asked for these lines before, so others may stand in for their homes."""
        if not self._waits:
            # In every durability a replica must know of the order before a line elsewhere follows.
            await self._decide(wanted, partition, Wish.LOOK)
        others = [_further(wanted, line) for line in wanted.lines[1:]]
        given = await self._stock.deduct(others, is_new=are_new)
        if any(answer.outcome in UNDECIDED for answer in given):
            # The same call again goes on from here; if none comes, a keeper gives the order up.
            return OrderAnswer(Outcome.UNAVAILABLE, reason=Reason.OUTCOME_UNKNOWN)
        refusals = [answer for answer in given if answer.outcome not in TAKEN]
        wish, lines = _decision(wanted, given, refusals)
        _, has_changed, order = await self._decide(wanted, partition, wish, lines)
        if order.state is OrderState.HELD and wanted.sells:
            return await self._sell_held(wanted, partition)
        answer = await self._told(partition, order, replayed=not has_changed)
        if refusals and has_changed:
            await self._stock.outlive_notes(line.product_id for line in wanted.lines)
            return _why_refused(answer, refusals)
        return answer

    async def _sell_held(self, wanted: Wanted, partition: int) -> OrderAnswer:
        """Somebody has reserved the order, and this call is to sell it."""
        _, has_changed, order = await self._decide(wanted, partition, Wish.CONFIRM)
        return await self._told(partition, order, replayed=not has_changed)

    async def _decide(
        self, wanted: Wanted, partition: int, wish: Wish, lines: str = "-"
    ) -> Decided:
        want = Want(wanted.order_id, wish, wanted.ttl_ms, lines)
        return await self._coordinator.decide_known(partition, wanted.lines[0].product_id, want)

    async def _told(self, partition: int, order: Order, *, replayed: bool) -> OrderAnswer:
        """The answer once the lines know of the decision, as far as they can be told now."""
        if order.state is not OrderState.HELD:
            await self._delivery.deliver(partition, order)
        return answer_of(order, replayed=replayed)

    async def _released(self, wanted: Wanted) -> OrderAnswer:
        """A partition was told that the order is released before it came: it never will, or it had come
        to another partition by then."""
        known = await self._finder.bar(wanted.order_id, wanted.lines[0].product_id)
        order = known and known.order
        if known is None or order is None or order.first_product != wanted.lines[0].product_id:
            return OrderAnswer(Outcome.RELEASED, replayed=True)
        return await self._again(wanted, known.partition)

    async def _overtaken(self, wanted: Wanted) -> OrderAnswer:
        """A stand-in was barred from this first copy, because another one went home: it has placed the
        order, or is about to, or has ended on its way."""
        known = await self._found(wanted)
        if known is not None:
            return await self._go_on(wanted, known)
        return OrderAnswer(Outcome.UNAVAILABLE, reason=Reason.OUTCOME_UNKNOWN)

    async def _refused(self, wanted: Wanted, first: Answer) -> OrderAnswer:
        """The first line cannot be had; the caller is told of the others that cannot, either."""
        if first is BARRED:
            return await self._overtaken(wanted)
        if first.outcome is Outcome.REQUEST_MISMATCH and first.reason is Reason.RESOLVED_NEVER:
            return await self._released(wanted)
        if first.outcome is not Outcome.INSUFFICIENT_STOCK:
            return OrderAnswer(first.outcome, reason=first.reason)
        units = await asyncio.gather(
            *(self._stock.about(line.product_id) for line in wanted.lines[1:])
        )
        others = zip(wanted.lines[1:], units, strict=True)
        short = (wanted.lines[0], *(line for line, left in others if line.quantity > left))
        return OrderAnswer(first.outcome, replayed=first.replayed, short=short)


async def _begun(work: Awaitable[OrderAnswer]) -> OrderAnswer:
    """The answer of work on an order that holds something by now: the same call again decides."""
    try:
        return await work
    except StockUnavailableError as failure:
        raise StockUnavailableError(Reason.OUTCOME_UNKNOWN, failure.detail) from failure


def _further(wanted: Wanted, line: Line) -> Deduction:
    """As a retry: its refusal is remembered, so a copy of it that somebody else sends to go on with the
    order takes nothing after the order was refused."""
    return _request(wanted, line, "L", 0, HERE, attempt=2)


def _request(
    wanted: Wanted, line: Line, what: str, ttl_ms: int, lines: str, *, attempt: int
) -> Deduction:
    return Deduction(
        request_id_of(wanted.order_id, wanted.lines[0].product_id),
        line.product_id,
        line.quantity,
        wanted.user_id,
        f"{what} {wanted.order_id} {ttl_ms} {lines}",
        attempt,
    )


def _undecided(lines: Sequence[Line]) -> str:
    """The lines of an order of which nobody knows yet where the further ones will be."""
    return _with_places(lines, (HERE, *(SOMEWHERE for _ in lines[1:])))


def _with_places(lines: Sequence[Line], places: Sequence[str]) -> str:
    return ",".join(
        str(Held(line.product_id, line.quantity, place))
        for line, place in zip(lines, places, strict=True)
    )


def _as_taken(wanted: Wanted, first: Answer) -> Order:
    """An order of one line as the script call left it that took it."""
    (line,) = wanted.lines
    return Order(
        wanted.order_id,
        wanted.user_id,
        OrderState.CONFIRMED if wanted.sells else OrderState.HELD,
        first.at_ms + wanted.ttl_ms,
        first.at_ms,
        is_open=False,
        held=(Held(line.product_id, line.quantity, HERE),),
    )


def _decision(
    wanted: Wanted, given: Sequence[Answer], refusals: Sequence[Answer]
) -> tuple[Wish, str]:
    """Short, an order is refused for good, and its repeat is told so. Refused for another reason, it is
    given up: what the reason was is told once."""
    if any(answer.outcome is not Outcome.INSUFFICIENT_STOCK for answer in refusals):
        return Wish.GIVE_UP, "-"
    places = [str(answer.shard) if answer.outcome in TAKEN else NOWHERE for answer in given]
    wish = Wish.REFUSE if refusals else Wish.SELL if wanted.sells else Wish.HOLD
    return wish, _with_places(wanted.lines, (HERE, *places))


def _why_refused(answer: OrderAnswer, refusals: Sequence[Answer]) -> OrderAnswer:
    """Shortage, unless a line was refused for another reason: then that."""
    for refusal in refusals:
        if refusal.outcome is not Outcome.INSUFFICIENT_STOCK:
            return OrderAnswer(refusal.outcome, reason=refusal.reason)
    return answer
