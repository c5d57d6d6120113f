"""Orders on the live stock: hold all lines or none, then sell them or give them back, once.

A line is taken like any request, by the way of sharding/home.py: it has a home, a record, and units come
to it from other shards. What an order comes to is decided by one record, at the partition that holds its
first line, by compare-and-set on that node's clock; all other lines follow the record, and whoever meets
one that was left half done carries it on.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Coroutine, Sequence

from sharding.cluster import Cluster
from sharding.coordinator import Coordinator, Decided, DueOrder, DueOrders, Want, Wish
from sharding.delivering import Delivery
from sharding.errors import StockUnavailableError
from sharding.finding import AmbiguousOrderError, Finder, Place
from sharding.orders import (
    HERE,
    Held,
    Line,
    Order,
    OrderAnswer,
    OrderState,
    answer_of,
    canonical,
    hold_s_max,
    retake_id_of,
)
from sharding.outcomes import MAY_HAVE_RUN, Answer, Deduction, Outcome, Reason
from sharding.questioning import Questioning
from sharding.reminding import HeldLine, Reminding
from sharding.reserving import TAKEN, UNDECIDED, Reserving, Wanted
from sharding.stock import Stock
from sharding.tasks import Tasks

_LOG = logging.getLogger(__name__)

PENDING_SLACK_MS = 5_000
"""An order that nobody has decided after four times `redis_patience_ms` and this is given up."""
PARK_S = 3_600.0
"""So long an order rests whose record makes no sense."""
PARKED = "parked"
GONE = "gone"
RETRY_S = 5.0
"""So long an order rests that a line of could not be told."""
UNFINISHED = "unfinished"
_FULL = frozenset((Reason.RECORDS_FULL, Reason.QUEUE_FULL))
_OVER = {
    OrderState.PENDING: Wish.GIVE_UP,
    OrderState.HELD: Wish.LOOK,
    OrderState.RETAKING: Wish.REFUND,
}
"""What an order comes to that nobody has decided in time."""
_UNDECIDED = frozenset((*_OVER, OrderState.QUESTIONED))


class Orders:
    """Orders of one process. Calls never raise for what can happen: every failure is an answer.

    A caller that stops waiting cuts nothing in two; `drain` waits for all that was begun.
    """

    def __init__(self, stock: Stock, cluster: Cluster, *, grace_s: float) -> None:
        settings = cluster.settings
        self._stock = stock
        self._tasks = Tasks()
        self._grace_ms = round(grace_s * 1_000)
        self._hold_s_max = hold_s_max(settings.record_ttl_s, grace_s)
        self._pending_ms = 4 * settings.redis_patience_ms + PENDING_SLACK_MS
        self._coordinator = Coordinator(cluster, self._tasks, hold_s_max=self._hold_s_max)
        self._delivery = Delivery(stock, self._coordinator)
        self._finder = Finder(cluster, self._coordinator, self._tasks)
        self._questioning = Questioning(self._coordinator, self._delivery)
        self._reminding = Reminding(self._coordinator, self._finder, pending_ms=self._pending_ms)
        self._reserving = Reserving(
            stock,
            self._coordinator,
            self._delivery,
            self._finder,
            pending_ms=self._pending_ms,
            waits=settings.confirms,
        )

    async def reserve(
        self,
        order_id: int,
        *,
        user_id: int,
        lines: Sequence[Line],
        ttl_s: float,
        attempt: int = 0,
    ) -> OrderAnswer:
        """Hold all lines for `ttl_s`, or none. HELD, INSUFFICIENT_STOCK, or how it ended before."""
        if self._ttl_ms(ttl_s) > self._hold_s_max * 1_000:
            return OrderAnswer(Outcome.INVALID, reason=Reason.TTL_TOO_LONG)
        wanted = Wanted(
            order_id, user_id, canonical(lines), self._ttl_ms(ttl_s), sells=False, attempt=attempt
        )
        return await self._answer(self._reserving.reserve(wanted), "reserve")

    async def sell(
        self, order_id: int, *, user_id: int, lines: Sequence[Line], attempt: int = 0
    ) -> OrderAnswer:
        """Sell all lines at once, or none. CONFIRMED, INSUFFICIENT_STOCK, or how it ended before."""
        wanted = Wanted(order_id, user_id, canonical(lines), 0, sells=True, attempt=attempt)
        return await self._answer(self._reserving.reserve(wanted), "sell")

    async def confirm(self, order_id: int, *, product_id: int = 0) -> OrderAnswer:
        """Sell what the order holds: CONFIRMED; too late RETAKEN or REFUND_REQUIRED."""
        return await self._answer(self._confirm(order_id, product_id), "confirm")

    async def release(self, order_id: int, *, product_id: int = 0) -> OrderAnswer:
        """Give back what the order holds. An order that nobody knows will hold nothing from now on."""
        return await self._answer(self._release(order_id, product_id), "release")

    async def extend(self, order_id: int, ttl_s: float, *, product_id: int = 0) -> OrderAnswer:
        """Hold the order's units until `ttl_s` from now, if that is later than before."""
        if self._ttl_ms(ttl_s) > self._hold_s_max * 1_000:
            return OrderAnswer(Outcome.INVALID, reason=Reason.TTL_TOO_LONG)
        want = Want(order_id, Wish.EXTEND, self._ttl_ms(ttl_s))
        return await self._answer(self._decide_and_tell(want, product_id), "extend")

    async def get(self, order_id: int, *, product_id: int = 0) -> OrderAnswer:
        """The order as it is, its state as an outcome; UNAVAILABLE, with the order, if undecided."""
        want = Want(order_id, Wish.LOOK)
        return await self._answer(self._decide_and_tell(want, product_id), "get order")

    async def due(self, partition: int, *, limit: int) -> DueOrders:
        """The orders of a partition that a sweep has to look at. StockUnavailableError."""
        return await self._coordinator.due(partition, limit)

    async def look_after(self, partition: int, due: DueOrders) -> Counter[str]:
        """Expire what is over and carry on what was left half done; how many came to which state.

        PARKED: the record or the hold makes no sense; it is looked at again in an hour. UNFINISHED: a
        line could not be told; it is looked at again in some seconds, so that it keeps no others
        waiting. StockUnavailableError: all are due again.
        """
        return await self._tasks.whole(self._look_after(partition, due.orders), "look after")

    async def remind(self, line: HeldLine) -> OrderState | None:
        """End the hold of a further line whose order is over or was lost; None: nothing is to be done,
        or not by this call. StockUnavailableError."""
        try:
            return await self._tasks.whole(self._reminding.remind(line), "remind")
        except AmbiguousOrderError:
            return None

    async def drain(self) -> None:
        """Return once everything that was begun has ended."""
        await self._tasks.drain()

    def _ttl_ms(self, ttl_s: float) -> int:
        return round(ttl_s * 1_000) + self._grace_ms

    async def _answer(self, work: Coroutine[object, object, OrderAnswer], name: str) -> OrderAnswer:
        try:
            return await self._tasks.whole(work, name)
        except StockUnavailableError as failure:
            outcome = Outcome.OVERLOADED if failure.reason in _FULL else Outcome.UNAVAILABLE
            return OrderAnswer(outcome, reason=failure.reason)
        except AmbiguousOrderError:
            return OrderAnswer(Outcome.REQUEST_MISMATCH, reason=Reason.ORDER_AMBIGUOUS)

    async def _decide_and_tell(self, want: Want, product_id: int) -> OrderAnswer:
        found = await self._decide_where_it_is(want, product_id)
        if isinstance(found, OrderAnswer):
            return found
        partition, has_changed, order = found
        # Of a decision whose answer was lost the repeat changes nothing, but nobody has told the lines.
        if order.state not in _UNDECIDED and (has_changed or order.is_open):
            await self._delivery.deliver(partition, order)
            await self._outlive_notes(order)
        return answer_of(order, replayed=not has_changed)

    async def _decide_where_it_is(self, want: Want, product_id: int) -> Decided | OrderAnswer:
        """What became of the order at its coordinator, or the answer where there is no such order."""
        lost: StockUnavailableError | None = None
        for place in await self._finder.likely(want.order_id, product_id):
            try:
                decided = await self._coordinator.decide(*place, want)
            except StockUnavailableError as failure:
                lost = failure if failure.reason in MAY_HAVE_RUN else lost
                continue
            if decided is not None and decided.order.first_product == place.product_id:
                self._finder.remember(want.order_id, place)
                return decided
        try:
            return await self._decide_anywhere(want, product_id)
        except StockUnavailableError as failure:
            raise lost or failure from failure

    async def _decide_anywhere(self, want: Want, product_id: int) -> Decided | OrderAnswer:
        known = await self._finder.find(want.order_id, product_id)
        if known is not None and known.order is None:
            # Whoever barred it may not have come to all partitions, and it may still come to those.
            known = await self._finder.bar(want.order_id, product_id)
        if known is None:
            return _UNKNOWN
        if known.order is None:
            return _BARRED
        place = Place(known.partition, known.order.first_product)
        self._finder.remember(want.order_id, place)
        return await self._coordinator.decide_known(*place, want)

    async def _decide(self, partition: int, order: Order, want: Want) -> Decided:
        return await self._coordinator.decide_known(partition, order.first_product, want)

    async def _confirm(self, order_id: int, product_id: int) -> OrderAnswer:
        found = await self._decide_where_it_is(Want(order_id, Wish.CONFIRM), product_id)
        if isinstance(found, OrderAnswer):
            return found
        partition, has_changed, order = found
        is_told = await self._tell_unless_undecided(partition, order)
        if order.state not in (OrderState.EXPIRED, OrderState.RETAKING):
            return answer_of(order, replayed=not has_changed)
        if not is_told:  # its own units may still be held for it
            return OrderAnswer(Outcome.UNAVAILABLE, order, reason=Reason.SHARDS_UNREACHABLE)
        return await self._retake(partition, order)

    async def _tell_unless_undecided(self, partition: int, order: Order) -> bool:
        if order.state in _UNDECIDED:
            return True
        return await self._delivery.deliver(partition, order)

    async def _retake(self, partition: int, expired: Order) -> OrderAnswer:
        """Take the lines of an expired order once more; all of them, or the money goes back."""
        want = Want(expired.order_id, Wish.RETAKE, self._pending_ms)
        order = (await self._decide(partition, expired, want)).order
        if order.state is not OrderState.RETAKING:
            await self._delivery.deliver(partition, order)
            return answer_of(order, replayed=True)
        given = await self._take_again(order)
        if any(answer.outcome in UNDECIDED for answer in given):
            return OrderAnswer(Outcome.UNAVAILABLE, order, reason=Reason.OUTCOME_UNKNOWN)
        try:
            _, has_changed, order = await self._decide(partition, order, _verdict(order, given))
        except StockUnavailableError as failure:
            # Its lines are held again, and the same call decides, or a keeper does.
            raise StockUnavailableError(Reason.OUTCOME_UNKNOWN, failure.detail) from failure
        await self._delivery.deliver(partition, order)
        return answer_of(order, replayed=not has_changed)

    async def _take_again(self, order: Order) -> list[Answer]:
        """At once, before others have the units; whoever is short is asked again when no proof from
        while the order still held them can refuse it. That refusal is remembered."""
        given = await self._stock.deduct([_retaking(order, held, attempt=0) for held in order.held])
        if any(answer.outcome is Outcome.INSUFFICIENT_STOCK for answer in given):
            await self._outlive_notes(order)
            lines = [_retaking(order, held, attempt=2) for held in order.held]
            given = await self._stock.deduct(lines)
        return given

    async def _release(self, order_id: int, product_id: int) -> OrderAnswer:
        want = Want(order_id, Wish.RELEASE)
        found = await self._decide_where_it_is(want, product_id)
        if found is _UNKNOWN:
            known = await self._finder.bar(order_id, product_id)
            if known is None or known.order is None:
                return _BARRED._replace(replayed=False)
            found = await self._decide(known.partition, known.order, want)
        if isinstance(found, OrderAnswer):
            return found
        partition, has_changed, order = found
        await self._tell_unless_undecided(partition, order)
        if not order.state.is_sold:
            await self._outlive_notes(order)
        return answer_of(order, replayed=not has_changed)

    async def _outlive_notes(self, order: Order) -> None:
        """Until no process refuses anybody by a proof from before the units came back."""
        await self._stock.outlive_notes(line.product_id for line in order.held)

    async def _look_after(self, partition: int, due: Sequence[DueOrder]) -> Counter[str]:
        ends = await asyncio.gather(*(self._carry_on(partition, each) for each in due))
        for end, pause_s in ((GONE, 0.0), (PARKED, PARK_S), (UNFINISHED, RETRY_S)):
            members = [each.member for each, found in zip(due, ends, strict=True) if found == end]
            if members:
                await self._coordinator.park(partition, members, pause_s=pause_s)
        return Counter(PARKED if end == GONE else end for end in ends)

    async def _carry_on(self, partition: int, due: DueOrder) -> str:
        """What the order came to."""
        if due.is_gone:
            _LOG.error("order %s was forgotten while it was open; its units stay held", due.member)
            return GONE
        order = due.order
        if order is None:
            return PARKED
        try:
            order = (await self._decide(partition, order, await self._next_step(order))).order
            if order.state not in _UNDECIDED:
                await self._delivery.deliver_all(partition, order)
        except StockUnavailableError as failure:
            if failure.reason is not Reason.SHARD_CORRUPT:
                return UNFINISHED
            _LOG.error("order %d contradicts its shards: %s", order.order_id, failure.detail)
            return PARKED
        return order.state.name.lower()

    async def _next_step(self, order: Order) -> Want:
        """What an order that is due has to become; one that is decided already stays as it is."""
        if order.state is OrderState.QUESTIONED:
            return await self._questioning.verdict(order)
        if order.state in _OVER:
            return Want(order.order_id, _OVER[order.state])
        wish = Wish.LOOK if order.is_open else Wish.CLOSE
        return Want(order.order_id, wish, lines=order.state)


_UNKNOWN = OrderAnswer(Outcome.UNKNOWN_ORDER)
_BARRED = OrderAnswer(Outcome.RELEASED, replayed=True)


def _retaking(order: Order, held: Held, *, attempt: int) -> Deduction:
    return Deduction(
        retake_id_of(order.order_id, order.first_product),
        held.product_id,
        held.quantity,
        order.user_id,
        f"L {order.order_id} 0 {HERE}",
        attempt,
    )


def _verdict(order: Order, given: Sequence[Answer]) -> Want:
    if any(answer.outcome not in TAKEN for answer in given):
        return Want(order.order_id, Wish.REFUND)
    lines = ",".join(
        str(held._replace(place=str(answer.shard)))
        for held, answer in zip(order.held, given, strict=True)
    )
    return Want(order.order_id, Wish.SELL_RETAKEN, lines=lines)
