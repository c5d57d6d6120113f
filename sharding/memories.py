"""What an entry of a stream lets its partition remember of requests and orders. Pure: no I/O, no clock.

The scripts that wrote the entries remembered the same; sharding/lua/relive.lua enters it once more.
"""

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from msgpack import unpackb

from sharding.decisions import DecidedOrder, are_terms, first_decisions
from sharding.events import REQUEST_FIELDS, Event, Kind, Status
from sharding.orders import OrderState

_UNDECIDED = "PH"
_TAKEN = {ord(Status.DEDUCTED): "d", ord(Status.HELD): "h"}


class What(StrEnum):
    """What kind of thing is remembered, as relive.lua takes it."""

    RECORD = "r"
    TOMBSTONE = "t"
    HELD = "h"
    """A record, unless something else is known."""
    ENDED = "e"
    """A line whose hold ended: all of its record but what was answered."""
    ORDER = "o"
    PENDING = "p"
    """An order, unless something else is known."""
    ORDER_STATE = "s"


class Memory(NamedTuple):
    """One thing to remember."""

    what: What
    field: str
    value: str
    at_ms: int = 0
    """When somebody has to look at an order; 0: never."""


def memories(event: Event, fields: Mapping[bytes, bytes], partition: int) -> Iterator[Memory]:
    """In their order; `fields` are those of the entry that `event` was decoded from."""
    product = event.product_id
    match event.kind:
        case Kind.DEDUCT | Kind.PUT if b"requests" in fields:
            yield from _of_requests(event, fields, partition)
        case Kind.RESTOCK | Kind.REMOVE:
            assert event.counts
            value = f"{event.kind.value[:3]}{event.quantity}:{event.counts.available}"
            yield Memory(What.RECORD, f"{product}:{event.request_id}", value)
        case Kind.UNDO:
            field = f"{product}: {event.undone} {event.request_id}"
            yield Memory(What.TOMBSTONE, field, "undone")
        case Kind.TOMBSTONE:
            value = "b" if event.bars else "n"
            yield Memory(What.TOMBSTONE, f"{product}:{event.request_id}", value)
        case Kind.ORDERS:
            yield from _of_orders(event)
        case _:
            pass  # the other kinds are of no request


def order(order_id: int, decision: str, at_ms: int, what: What = What.ORDER) -> Memory:
    """An order as its coordinator has it (include/orders.lua), decided at `at_ms`.

    What was decided of it later may be lost, and lines elsewhere may have heard of it.
    """
    state, deadline_ms, _, _, is_open, lines = decision.split(" ")
    if state in _UNDECIDED and "," in lines:
        return Memory(what, f"order {order_id}", OrderState.QUESTIONED + decision[1:], at_ms)
    is_due = state == OrderState.RETAKING or is_open == "1"
    due_ms = int(deadline_ms) if state in _UNDECIDED else at_ms * is_due
    return Memory(what, f"order {order_id}", decision, due_ms)


def decisions_of(event: Event, fields: Mapping[bytes, bytes]) -> list[DecidedOrder]:
    """What was decided about orders when their lines were taken."""
    taken = (
        request
        for status, request in zip(fields[b"statuses"], _requests(fields), strict=True)
        if status in _TAKEN
    )
    return list(first_decisions(taken, at_ms=event.at_ms))


def _of_requests(event: Event, fields: Mapping[bytes, bytes], partition: int) -> Iterator[Memory]:
    """The counts are those after the last request, so the walk begins there."""
    assert event.counts
    left, found = event.counts.available, list[Memory]()
    shard = fields.get(b"shard", b"0").decode()
    for status, (request_id, quantity, user, terms) in zip(
        reversed(fields[b"statuses"]), reversed(_requests(fields)), strict=True
    ):
        field = f"{event.product_id}:{request_id}"
        letter = _TAKEN.get(status)
        if letter:
            place = partition if are_terms(terms) else shard
            found.append(Memory(What.RECORD, field, f"{letter}{quantity}:{user}:{left}:{place}"))
            left += int(str(quantity))
        elif status == ord(Status.REFUSED):
            found.append(Memory(What.TOMBSTONE, field, f"i{quantity}:{user}:"))
        elif status == ord(Status.BARRED):
            found.append(Memory(What.TOMBSTONE, field, "b"))
    yield from reversed(found)
    for order_id, decision in decisions_of(event, fields):
        yield order(order_id, decision, event.at_ms)


def _requests(fields: Mapping[bytes, bytes]) -> list[Sequence[object]]:
    flat = unpackb(fields[b"requests"])
    return [flat[i : i + REQUEST_FIELDS] for i in range(0, len(flat), REQUEST_FIELDS)]


def _of_orders(event: Event) -> Iterator[Memory]:
    for end in event.ends:
        value = f"{'c' if end.is_sold else 'f'}{end.quantity}:{end.user_id}:"
        yield Memory(What.ENDED, f"{event.product_id}:{end.request_id}", value)
    if event.records:
        for order_id, record in event.records:
            yield order(order_id, record, event.at_ms)
        return
    for decided in event.decisions:  # an earlier version wrote the entry
        at_ms = 0 if decided.state is OrderState.HELD else event.at_ms
        yield Memory(What.ORDER_STATE, f"order {decided.order_id}", decided.state.value, at_ms)


def undecided_order(order_id: int, decision: str, at_ms: int) -> Memory:
    """An order that holds units for longer than entries are kept."""
    return order(order_id, decision, at_ms, What.PENDING)


def held_line(
    product_id: int, request_id: str, quantity: int, user_id: int, partition: int
) -> Memory:
    """A line of such an order. How many units were left after it nobody knows any more."""
    value = f"h{quantity}:{user_id}:0:{partition}"
    return Memory(What.HELD, f"{product_id}:{request_id}", value)
