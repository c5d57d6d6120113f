"""Telling the lines of an order what it came to. Whoever decides an order does it; where that breaks
off, a keeper does it again."""

import asyncio

from sharding.coordinator import Coordinator, LineEnd, Want, Wish
from sharding.errors import StockUnavailableError
from sharding.events import Status
from sharding.orders import (
    HERE,
    NOWHERE,
    SOMEWHERE,
    Held,
    Order,
    OrderState,
    request_id_of,
    retake_id_of,
)
from sharding.outcomes import Answer, Deduction, Outcome, Reason
from sharding.stock import Stock

_NEVER_HELD = frozenset((Status.NEVER, Status.REFUSED_BEFORE))
_NOBODY_ELSE = frozenset((HERE, NOWHERE))
_LATE_ENDS = frozenset((OrderState.RETAKEN, OrderState.REFUND_REQUIRED))


class Delivery:
    """Ends the holds of decided orders."""

    def __init__(self, stock: Stock, coordinator: Coordinator) -> None:
        self._stock = stock
        self._coordinator = coordinator

    async def deliver(self, partition: int, order: Order) -> bool:
        """Tell every line, then the coordinator in `partition`; whether all could be told now."""
        try:
            await self.deliver_all(partition, order)
        except StockUnavailableError:
            return False
        return True

    async def deliver_all(self, partition: int, order: Order) -> None:
        """The same. StockUnavailableError if a line could not be told, SHARD_CORRUPT if what its shard
        knows of it contradicts the decision."""
        if not order.is_open or order.state is OrderState.QUESTIONED:
            return
        told = [self._tell(order, held) for held in order.held]
        for failure in await asyncio.gather(*told, return_exceptions=True):
            if failure is not None:
                raise failure
        done = Want(order.order_id, Wish.CLOSE, lines=order.state)
        await self._coordinator.decide(partition, order.first_product, done)

    async def _tell(self, order: Order, held: Held) -> None:
        id_of = retake_id_of if order.state in _LATE_ENDS else request_id_of
        request_id = id_of(order.order_id, order.first_product)
        place = await self._place(order, held, request_id)
        if place is None:
            return
        end = LineEnd(request_id, order.state, held.quantity, order.user_id)
        status = await self._coordinator.settle(place, held.product_id, end)
        if status is Status.STALE:
            status = await self._tell_anew(order, held, end)
        if status is not Status.REPLAYED:
            text = f"p{place:02d} {held.product_id}:{request_id} {status.name.lower()}"
            raise StockUnavailableError(Reason.SHARD_CORRUPT, text)

    async def _place(self, order: Order, held: Held, request_id: str) -> int | None:
        """Which partition holds the line; None: none does, or the decision ended its hold, too."""
        # Where lines were taken again is noted only once all could be.
        if held.place == SOMEWHERE or order.state is OrderState.REFUND_REQUIRED:
            return await self.look_for(held, request_id)
        if held.place in _NOBODY_ELSE:
            return None
        return int(held.place)

    async def _tell_anew(self, order: Order, held: Held, end: LineEnd) -> Status:
        """The line's shard was set back to before it held the line: what is sold is taken once more."""
        if order.state.is_sold:
            place: int | None = await self._take_again(order, held, end.request_id)
        else:
            place = await self.look_for(held, end.request_id)
        if place is None:
            return Status.REPLAYED
        return await self._coordinator.settle(place, held.product_id, end)

    async def _take_again(self, order: Order, held: Held, request_id: str) -> int:
        line = Deduction(
            request_id,
            held.product_id,
            held.quantity,
            order.user_id,
            f"L {order.order_id} 0 {HERE}",
            attempt=2,
        )
        (answer,) = await self._stock.deduct([line])
        if answer.outcome in (Outcome.HELD, Outcome.DEDUCTED):
            return answer.shard
        if answer.outcome in (Outcome.UNAVAILABLE, Outcome.OVERLOADED):
            raise StockUnavailableError(answer.reason or Reason.SHARDS_UNREACHABLE, request_id)
        text = f"{held.product_id}:{request_id} was lost after it was sold: {answer.outcome.name}"
        raise StockUnavailableError(Reason.SHARD_CORRUPT, text)

    async def look_for(self, held: Held, request_id: str) -> int | None:
        """Where the line is remembered; one that nowhere is will never be. StockUnavailableError."""
        found = await self._stock.locate(held.product_id, request_id)
        if isinstance(found, Answer):
            if found.outcome is Outcome.UNKNOWN_PRODUCT:
                return None
            reason = found.reason or Reason.SHARDS_UNREACHABLE
            raise StockUnavailableError(reason, request_id)
        if found.status is Status.REPLAYED:
            return found.partition
        if found.status not in _NEVER_HELD:
            full = found.status is Status.OVERLOADED
            reason = Reason.RECORDS_FULL if full else Reason.SHARD_CORRUPT
            raise StockUnavailableError(reason, f"{request_id} {found.status.name.lower()}")
        return None
