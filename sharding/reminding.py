"""Further lines that are held though nobody is about to tell them what their order came to.

A line is told once, and the coordinator forgets that it was to be told. A partition that is restored may
be set back to before that; or the coordinator's is, to before there was an order.
"""

from typing import NamedTuple

from sharding.coordinator import Coordinator, LineEnd, Want, Wish
from sharding.events import Status
from sharding.finding import Finder, Known
from sharding.orders import Order, OrderState, first_product_of, is_retake


class HeldLine(NamedTuple):
    """A further line of an order, as the ledger has it."""

    partition: int
    product_id: int
    request_id: str
    order_id: int
    user_id: int
    quantity: int


_UNDECIDED = frozenset(
    (OrderState.PENDING, OrderState.HELD, OrderState.QUESTIONED, OrderState.RETAKING)
)
_LATE = frozenset((OrderState.RETAKEN, OrderState.REFUND_REQUIRED))


class Reminding:
    """Ends such holds. StockUnavailableError, AmbiguousOrderError."""

    def __init__(self, coordinator: Coordinator, finder: Finder, *, pending_ms: int) -> None:
        self._coordinator = coordinator
        self._finder = finder
        self._pending_ms = pending_ms

    async def remind(self, line: HeldLine) -> OrderState | None:
        """How the line's hold ended by this call or had ended; None: its end is somebody else's yet."""
        known = await self._known(line)
        why = OrderState.RELEASED if known.order is None else await self._end(line, known)
        if why is None:
            return None
        end = LineEnd(line.request_id, why, line.quantity, line.user_id)
        status = await self._coordinator.settle(line.partition, line.product_id, end)
        return why if status is Status.REPLAYED else None

    async def _known(self, line: HeldLine) -> Known:
        """The order; where it was lost, it never comes to be."""
        first_product = first_product_of(line.request_id)
        for place in await self._finder.likely(line.order_id, first_product):
            known = await self._finder.look_at(line.order_id, place)
            if known and known.order and known.order.first_product == first_product:
                return known
        found = await self._finder.find(line.order_id, first_product)
        found = found or await self._finder.bar(line.order_id, first_product)
        return found or Known(line.partition, None)

    async def _end(self, line: HeldLine, known: Known) -> OrderState | None:
        order = known.order
        assert order
        if order.first_product != first_product_of(line.request_id):
            return None  # an order of the same id that begins otherwise
        if order.state in _UNDECIDED or order.is_open:
            return None  # whoever decides it tells the line, or a sweep does
        if is_retake(line.request_id):
            return await self._end_of_retake(known.partition, order)
        return OrderState.EXPIRED if order.state in _LATE else order.state

    async def _end_of_retake(self, partition: int, order: Order) -> OrderState | None:
        """An order that was set back to before it was taken again gets its verdict from a sweep."""
        if order.state is OrderState.EXPIRED:
            want = Want(order.order_id, Wish.RETAKE, self._pending_ms)
            await self._coordinator.decide(partition, order.first_product, want)
            return None
        return order.state if order.state in _LATE else OrderState.RELEASED
