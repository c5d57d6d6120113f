"""What callers are told of: orders that ended by themselves, products that ran out or came back.

Ids are given out in the order of the commits, so whoever has read up to an id has missed nothing
before it.
"""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple

from ledger.database import Transaction
from ledger.statements import statement, with_rows
from ledger.values import instant

ROWS_MAX = 2_000
"""Rows of one statement; each has about 100 bytes."""


class ServiceEventKind(StrEnum):
    """What an event tells of."""

    ORDER_EXPIRED = "order_expired"
    REFUND_REQUIRED = "refund_required"
    SOLD_OUT = "sold_out"
    BACK_IN_STOCK = "back_in_stock"
    LOW_STOCK = "low_stock"
    FROZEN = "frozen"


class Notice(NamedTuple):
    """An event that is to be written. Fields that its kind does not have are 0."""

    kind: ServiceEventKind
    product_id: int
    order_id: int = 0
    user_id: int = 0
    available: int = 0
    at_ms: int = 0
    """When it happened, in milliseconds since 1970; 0: now, by the database's clock."""


def stock_notices(product_id: int, *, before: int, after: int, low_stock: int) -> Iterator[Notice]:
    """What there is to tell of a product whose available units changed; `low_stock` 0: never low.

    Units below zero count as none: they are sold, and the event that brought them is on its way.
    """
    if low_stock and after < low_stock <= before:
        yield Notice(ServiceEventKind.LOW_STOCK, product_id, available=after)
    if after <= 0 < before:
        yield Notice(ServiceEventKind.SOLD_OUT, product_id, available=after)
    if before <= 0 < after:
        yield Notice(ServiceEventKind.BACK_IN_STOCK, product_id, available=after)


async def publish(transaction: Transaction, notices: Sequence[Notice]) -> None:
    """Write events as the last that a transaction does.

    All that publish wait here for each other until the one before has committed. It cannot be a deadlock
    as long as nobody locks anything of others after this row: checkpoints, holds, shards and products
    come before it.
    """
    if not notices:
        return
    await transaction.execute(statement("event_sequence_move"), (len(notices),))
    row = await transaction.row(statement("event_sequence_get"))
    assert row is not None
    first = int(row[0]) - len(notices) + 1
    rows = [_row(first + position, notice) for position, notice in enumerate(notices)]
    for start in range(0, len(rows), ROWS_MAX):
        await transaction.bulk(with_rows("service_event_insert", rows[start : start + ROWS_MAX]))


def _row(event_id: int, notice: Notice) -> bytes:
    """One row in the columns of service_event_insert.sql."""
    moment = instant(notice.at_ms) if notice.at_ms else "CURRENT_TIMESTAMP(3)"
    return (
        f"({event_id},'{notice.kind.value}',{notice.product_id},{notice.order_id},"
        f"{notice.user_id},{notice.available},{moment})"
    ).encode()
