"""Requests as they go over the wire, each with ids that were never sent before.

A message is made once with a placeholder in its ids. A fresh one is that text with the placeholder
replaced by another number of the same length: it costs the generator of load next to nothing.
"""

import secrets
from collections.abc import Sequence
from itertools import count
from typing import Protocol

from inventory.v1 import inventory_pb2

FIRST_TRY = 1
_PLACEHOLDER = b"#" * 16


class _Message(Protocol):
    def SerializeToString(self) -> bytes: ...  # noqa: N802 - protobuf's name


class Template:
    """Makes messages out of one."""

    def __init__(self, message: _Message) -> None:
        self._wire = message.SerializeToString()
        assert _PLACEHOLDER in self._wire
        self._run = secrets.token_hex(4)
        self._numbers = count()

    def fresh(self) -> bytes:
        """The message with ids of its own."""
        return self._wire.replace(_PLACEHOLDER, f"{self._run}{next(self._numbers):08x}".encode())


def single(product_id: int) -> Template:
    """One DeductRequest."""
    return Template(_requests(product_id, 1)[0])


def batch(product_id: int, size: int) -> Template:
    """A BatchDeductRequest of that many items."""
    return Template(inventory_pb2.BatchDeductRequest(items=_requests(product_id, size)))


def stream_batch(product_id: int, size: int) -> Template:
    """A StreamDeductRequest of that many items."""
    return Template(inventory_pb2.StreamDeductRequest(items=_requests(product_id, size)))


def _requests(product_id: int, size: int) -> Sequence[inventory_pb2.DeductRequest]:
    return [
        inventory_pb2.DeductRequest(
            request_id=f"{_PLACEHOLDER.decode()}-{item}",
            product_id=product_id,
            quantity=1,
            attempt=FIRST_TRY,
        )
        for item in range(size)
    ]
