"""Orders as they go over the wire, each with an id that was never sent before, one unit a line."""

import secrets
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import count

from inventory.v1 import inventory_pb2
from tests.bench.requests import FIRST_TRY

Call = Callable[[bytes], Awaitable[bytes]]
Ask = Callable[[], Awaitable[bytes]]
"""One whole order; the answer that says what became of it."""

_ID_BITS = 62


def new_order_ids() -> Iterator[int]:
    """From a place of their own among all ids there are."""
    return count(1 + secrets.randbits(_ID_BITS))


def selling(deduct_order: Call, product_ids: Sequence[int], order_ids: Iterator[int]) -> Ask:
    """Sells orders at once; answers with DeductOrderResponse."""
    rest = inventory_pb2.DeductOrderRequest(lines=_lines(product_ids), attempt=FIRST_TRY)
    wire = rest.SerializeToString()

    async def ask() -> bytes:
        named = inventory_pb2.DeductOrderRequest(order_id=next(order_ids))
        # Messages that are written one behind the other are read as one.
        return await deduct_order(named.SerializeToString() + wire)

    return ask


def paying(
    reserve: Call, confirm: Call, product_ids: Sequence[int], order_ids: Iterator[int]
) -> Ask:
    """Holds orders and confirms each of them at once; answers with ConfirmResponse."""
    rest = inventory_pb2.ReserveRequest(lines=_lines(product_ids), attempt=FIRST_TRY)
    wire = rest.SerializeToString()

    async def ask() -> bytes:
        order_id = next(order_ids)
        named = inventory_pb2.ReserveRequest(order_id=order_id)
        await reserve(named.SerializeToString() + wire)
        paid = inventory_pb2.ConfirmRequest(order_id=order_id, product_id=product_ids[0])
        return await confirm(paid.SerializeToString())

    return ask


def _lines(product_ids: Sequence[int]) -> list[inventory_pb2.OrderLine]:
    return [
        inventory_pb2.OrderLine(product_id=product_id, quantity=1) for product_id in product_ids
    ]
