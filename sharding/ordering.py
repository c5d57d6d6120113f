"""Orders on the live stock: hold all lines or none, then sell them or give them back, once.

A line is taken like any request, by the way of sharding/home.py: it has a home, a record, and units come
to it from other shards. What an order comes to is decided by one record, at the partition that holds its
first line, by compare-and-set on that node's clock; all other lines follow the record, and whoever meets
one that was left half done carries it on.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Coroutine, Sequence
from typing import NamedTuple

from sharding.cluster import Cluster
from sharding.coordinator import Coordinator, DueOrder, DueOrders, Want
from sharding.delivering import Delivery
from sharding.errors import StockUnavailableError
from sharding.finding import AmbiguousOrderError, Finder
from sharding.orders import (
    HERE,
    Held,
    Line,
    Order,
    OrderAnswer,
    OrderState,
    canonical,
    hold_s_max,
    retake_id_of,
)
from sharding.outcomes import Answer, Deduction, Outcome, Reason
from sharding.reserving import Reserving, Wanted, answer_of
from sharding.stock import Stock
from sharding.tasks import Tasks

_LOG = logging.getLogger(__name__)

PENDING_SLACK_MS = 5_000
"""An order that nobody has decided after four times `redis_patience_ms` and this is given up."""
PARK_S = 3_600.0
"""So long an order rests whose record makes no sense."""
PARKED = "parked"
RETRY_S = 5.0
"""So long an order rests that a line of could not be told."""
UNFINISHED = "unfinished"
_TAKEN = frozenset((Outcome.HELD, Outcome.DEDUCTED))
_UNDECIDED = frozenset((Outcome.UNAVAILABLE, Outcome.OVERLOADED))
_OVER = {
    OrderState.PENDING: "G",
    OrderState.HELD: "E",
    OrderState.RETAKING: "F",
}
"""What an order comes to that nobody has decided in time."""


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
        self._reserving = Reserving(
            stock,
            self._coordinator,
            self._delivery,
            self._finder,
            pending_ms=self._pending_ms,
            waits=settings.durability == "replicated",
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
        want = Want(order_id, "X", self._ttl_ms(ttl_s))
        return await self._answer(self._decide_and_tell(want, product_id), "extend")

    async def get(self, order_id: int, *, product_id: int = 0) -> OrderAnswer:
        """The order as it is, its state as an outcome; UNAVAILABLE, with the order, if undecided."""
        want = Want(order_id, "E")
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

    async def drain(self) -> None:
        """Return once everything that was begun has ended."""
        await self._tasks.drain()

    def _ttl_ms(self, ttl_s: float) -> int:
        return round(ttl_s * 1_000) + self._grace_ms

    async def _answer(self, work: Coroutine[object, object, OrderAnswer], name: str) -> OrderAnswer:
        try:
            return await self._tasks.whole(work, name)
        except StockUnavailableError as failure:
            return OrderAnswer(Outcome.UNAVAILABLE, reason=failure.reason)
        except AmbiguousOrderError:
            return OrderAnswer(Outcome.REQUEST_MISMATCH, reason=Reason.ORDER_AMBIGUOUS)

    async def _decide_and_tell(self, want: Want, product_id: int) -> OrderAnswer:
        found = await self._decide_where_it_is(want, product_id)
        if found is None or found.order is None:
            return _UNKNOWN if found is None else _BARRED
        if found.has_changed and found.order.state is not OrderState.HELD:
            await self._delivery.deliver(found.partition, found.order)
            await self._outlive_notes(found.order)
        return answer_of(found.order, replayed=not found.has_changed)._replace(order=found.order)

    async def _decide_where_it_is(self, want: Want, product_id: int) -> "_Found | None":
        """What became of the order, at its coordinator; None: nobody knows it."""
        for place in await self._finder.likely(want.order_id, product_id):
            with contextlib.suppress(StockUnavailableError):  # then it is looked for
                decided = await self._coordinator.decide(*place, want)
                if decided.order is not None and decided.order.first_product == place.product_id:
                    self._finder.remember(want.order_id, place)
                    return _Found(place.partition, decided.has_changed, decided.order)
        known = await self._finder.find(want.order_id, product_id)
        if known is not None and known.order is None:
            # Whoever barred it may not have come to all partitions, and it may still come to those.
            known = await self._finder.bar(want.order_id)
        if known is None or known.order is None:
            return known and _Found(known.partition, has_changed=False, order=None)
        return await self._decide(known.partition, known.order, want)

    async def _decide(self, partition: int, order: Order, want: Want) -> "_Found":
        decided = await self._coordinator.decide(partition, order.first_product, want)
        if decided.order is None:
            text = f"p{partition:02d} order {order.order_id}"
            raise StockUnavailableError(Reason.SHARD_CORRUPT, text)
        return _Found(partition, decided.has_changed, decided.order)

    async def _confirm(self, order_id: int, product_id: int) -> OrderAnswer:
        found = await self._decide_where_it_is(Want(order_id, "C"), product_id)
        if found is None or found.order is None:
            return _UNKNOWN if found is None else _BARRED
        order = found.order
        is_told = await self._tell_unless_undecided(found.partition, order)
        if order.state not in (OrderState.EXPIRED, OrderState.RETAKING):
            return answer_of(order, replayed=not found.has_changed)
        if not is_told:  # its own units may still be held for it
            return OrderAnswer(Outcome.UNAVAILABLE, order, reason=Reason.SHARDS_UNREACHABLE)
        return await self._retake(found.partition, order)

    async def _tell_unless_undecided(self, partition: int, order: Order) -> bool:
        if order.state in _OVER:
            return True
        return await self._delivery.deliver(partition, order)

    async def _retake(self, partition: int, order: Order) -> OrderAnswer:
        """Take the lines of an expired order once more; all of them, or the money goes back."""
        began = await self._decide(partition, order, Want(order.order_id, "T", self._pending_ms))
        order = began.order or order
        if order.state is not OrderState.RETAKING:
            await self._delivery.deliver(partition, order)
            return answer_of(order, replayed=True)
        given = await self._take_again(order)
        if any(answer.outcome in _UNDECIDED for answer in given):
            return OrderAnswer(Outcome.UNAVAILABLE, order, reason=Reason.OUTCOME_UNKNOWN)
        decided = await self._decide(partition, order, _verdict(order, given))
        order = decided.order or order
        await self._delivery.deliver(partition, order)
        return answer_of(order, replayed=not decided.has_changed)

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
        want = Want(order_id, "R")
        found = await self._decide_where_it_is(want, product_id)
        if found is None:
            known = await self._finder.bar(order_id)
            if known is None or known.order is None:
                return _BARRED._replace(replayed=False)
            found = await self._decide(known.partition, known.order, want)
        if found.order is None:
            return _BARRED
        order = found.order
        await self._tell_unless_undecided(found.partition, order)
        if not order.state.is_sold:
            await self._outlive_notes(order)
        return answer_of(order, replayed=not found.has_changed)

    async def _outlive_notes(self, order: Order) -> None:
        """Until no process refuses anybody by a proof from before the units came back."""
        await self._stock.outlive_notes(line.product_id for line in order.held)

    async def _look_after(self, partition: int, due: Sequence[DueOrder]) -> Counter[str]:
        ends = await asyncio.gather(*(self._carry_on(partition, each) for each in due))
        for end, pause_s in ((PARKED, PARK_S), (UNFINISHED, RETRY_S)):
            members = [each.member for each, found in zip(due, ends, strict=True) if found == end]
            if members:
                await self._coordinator.park(partition, members, pause_s=pause_s)
        return Counter(ends)

    async def _carry_on(self, partition: int, due: DueOrder) -> str:
        """What the order came to."""
        order = due.order
        if order is None:
            return PARKED
        try:
            order = (await self._decide(partition, order, _next_step(order))).order or order
            if order.state not in _OVER:
                await self._delivery.deliver_all(partition, order)
        except StockUnavailableError as failure:
            if failure.reason is not Reason.SHARD_CORRUPT:
                return UNFINISHED
            _LOG.error("order %d contradicts its shards: %s", order.order_id, failure.detail)
            return PARKED
        return order.state.name.lower()


def _next_step(order: Order) -> Want:
    """What an order that is due has to become; one that is decided already stays as it is."""
    if order.state in _OVER:
        return Want(order.order_id, _OVER[order.state])
    return Want(order.order_id, "E" if order.is_open else "D", lines=order.state)


class _Found(NamedTuple):
    """An order at its coordinator, and whether the call changed it; None: it was barred early."""

    partition: int
    has_changed: bool
    order: Order | None


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
    if any(answer.outcome not in _TAKEN for answer in given):
        return Want(order.order_id, "F")
    lines = ",".join(
        str(held._replace(place=str(answer.shard)))
        for held, answer in zip(order.held, given, strict=True)
    )
    return Want(order.order_id, "K", 0, lines)
