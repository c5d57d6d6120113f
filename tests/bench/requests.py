"""Requests as they go over the wire, each with ids that were never sent before.

A message is made once with a placeholder in its ids. A fresh one is that text with the placeholder
replaced by another number of the same length: it costs the generator of load next to nothing.
"""

import secrets
from collections.abc import Sequence
from itertools import count, cycle
from typing import Protocol

from inventory.v1 import inventory_pb2

UNKNOWN_TRY, FIRST_TRY = 0, 1
"""Values of `attempt`: the caller does not say, and certainly never sent before."""
COLD_EVERY = 10
_PLACEHOLDER = b"#" * 16


class _Message(Protocol):
    def SerializeToString(self) -> bytes: ...  # noqa: N802 - protobuf's name


class Template:
    """Makes messages out of a few, in turn."""

    def __init__(self, *messages: _Message) -> None:
        wires = [message.SerializeToString() for message in messages]
        assert all(_PLACEHOLDER in wire for wire in wires)
        self._wires = cycle(wires)
        self._run = secrets.token_hex(4)
        self._numbers = count()

    def fresh(self) -> bytes:
        """The next message with ids of its own."""
        number = f"{self._run}{next(self._numbers):08x}"
        return next(self._wires).replace(_PLACEHOLDER, number.encode())


def single(product_id: int, *, attempt: int = FIRST_TRY) -> Template:
    """One DeductRequest."""
    return Template(_requests([product_id], attempt=attempt)[0])


def batch(
    product_id: int, size: int, *, attempt: int = FIRST_TRY, cold: Sequence[int] = ()
) -> Template:
    """A BatchDeductRequest of that many items.

    With cold products, every tenth item is for one of them, and as many messages take turns as it
    takes for each of them to have its turn.
    """
    hot = [product_id] * size
    return Template(
        *(
            inventory_pb2.BatchDeductRequest(items=_requests(products, attempt=attempt))
            for products in (_mixed(hot, cold) if cold else [hot])
        )
    )


def stream_batch(product_id: int, size: int) -> Template:
    """A StreamDeductRequest of that many items."""
    items = _requests([product_id] * size, attempt=FIRST_TRY)
    return Template(inventory_pb2.StreamDeductRequest(items=items))


def _mixed(hot: Sequence[int], cold: Sequence[int]) -> Sequence[Sequence[int]]:
    """Copies of `hot` with a part of `cold` in every tenth place, each cold product once."""
    places = len(hot) // COLD_EVERY
    assert len(cold) % places == 0
    copies = []
    for first in range(0, len(cold), places):
        copy = list(hot)
        copy[::COLD_EVERY] = cold[first : first + places]
        copies.append(copy)
    return copies


def _requests(products: Sequence[int], *, attempt: int) -> Sequence[inventory_pb2.DeductRequest]:
    return [
        inventory_pb2.DeductRequest(
            request_id=f"{_PLACEHOLDER.decode()}-{item}",
            product_id=product_id,
            quantity=1,
            attempt=attempt,
        )
        for item, product_id in enumerate(products)
    ]
