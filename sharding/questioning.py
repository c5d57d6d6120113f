"""What becomes of an order whose coordinator was restored while the order was undecided.

What was decided of it after the last event that the ledger had is lost, and lines elsewhere may have
heard of it. What a line was told is what the order came to; nobody decides before all lines were asked.
"""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from sharding.coordinator import Coordinator, Want, Wish
from sharding.delivering import Delivery
from sharding.orders import NOWHERE, SOMEWHERE, Held, Order, request_id_of

_SOLD, _FREED, _UNKNOWN = b"c", b"f", b""


class _Told(NamedTuple):
    """A line, where it is, and how its record begins."""

    held: Held
    letter: bytes


class Questioning:
    """Asks lines. StockUnavailableError where one cannot be asked."""

    def __init__(self, coordinator: Coordinator, delivery: Delivery) -> None:
        self._coordinator = coordinator
        self._delivery = delivery

    async def verdict(self, order: Order) -> Want:
        """What the order has to become by what its further lines were told."""
        first, *others = order.held
        told = await asyncio.gather(*(self._ask(order, held) for held in others))
        lines = ",".join(map(str, [first, *(each.held for each in told)]))
        return Want(order.order_id, _wish(order, told), lines=lines)

    async def _ask(self, order: Order, held: Held) -> _Told:
        request_id = request_id_of(order.order_id, order.first_product)
        if held.place == SOMEWHERE:
            place = await self._delivery.look_for(held, request_id)
            held = held._replace(place=NOWHERE if place is None else str(place))
        if held.place == NOWHERE:
            return _Told(held, _UNKNOWN)
        record = await self._coordinator.line(int(held.place), held.product_id, request_id)
        return _Told(held, record[:1])


def _wish(order: Order, told: Sequence[_Told]) -> Wish:
    letters = {each.letter for each in told}
    if _SOLD in letters:
        return Wish.SELL
    was_pending = any(held.place == SOMEWHERE for held in order.held)
    return Wish.GIVE_UP if was_pending or _FREED in letters else Wish.HOLD
