"""The events that scripts append to a partition's stream: names of fields, kinds, and their decoding.

One entry stands for one script call that changed something. It carries what was done and, for every
kind that concerns a shard, that shard's own counts just after it. Decoding trusts nothing: an entry that
somebody else wrote ends as a dead letter, never as a crash.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha1
from typing import NamedTuple, Self

from msgpack import UnpackException, unpackb

from sharding.decisions import DecidedOrder, first_decisions, later_decisions
from sharding.orders import OrderState
from sharding.quantities import (
    ACTOR_CHARS_MAX,
    ADJUSTMENT_MAX,
    QUANTITY_MAX,
    REASON_CHARS_MAX,
    REQUEST_ID_CHARS_MAX,
)

EVENT_VERSION = 1
REQUEST_FIELDS = 4
"""Values of one request in a packed list: request_id, quantity, user_id, order_id."""

ID_MAX = 2**63 - 1
AT_MS_MAX = 253_402_300_799_999
"""The last millisecond of the year 9999: what the ledger's DATETIME holds."""
EPOCH_MAX = 2**53 - 1


_REQUEST_ID = re.compile(f"[!-~]{{1,{REQUEST_ID_CHARS_MAX}}}")
"""Printable ASCII without spaces: the ledger's key would take `a` and `a ` for the same."""


HOLD_ID = re.compile("(?:order|retake) ([0-9]{1,19}) [0-9]{1,19}")
"""How orders name their requests: no caller's own id has a space."""
ORDERS_CHARS_MAX = 1 << 20
_END = re.compile(
    "((?:order|retake) ([0-9]{1,19}) [0-9]{1,19}):([CREAKF]):([0-9]{1,7}):([0-9]{1,19})"
)
_DECISION = re.compile("([0-9]{1,19}):([PHCREAKTF]):([0-9]{1,19})")
_CHANGES = re.compile("(?:-?[0-9]{1,16}(?: |$)){4}")
_EVENT_ID = re.compile("[0-9]{1,19}-[0-9]{1,19}")


class Kind(StrEnum):
    """What a script did."""

    OPENED = "opened"
    """A partition was opened under a new owner. Concerns no product."""
    DEDUCT = "deduct"
    """Units were sold to a list of requests."""
    RESTOCK = "restock"
    """Units came in from outside."""
    REMOVE = "remove"
    """Unsold units left for the outside."""
    LOAD = "load"
    """Units came in from the ledger."""
    BUFFER = "buffer"
    """Units came in that the ledger had kept back."""
    STATE = "state"
    """The shard was opened or stopped; no count changed."""
    CLOSE = "close"
    """The shard's unsold units went back to the ledger."""
    TAKE = "take"
    """Units left for another shard of the product (`peer`)."""
    PUT = "put"
    """Units of a take arrived from another shard (`peer`) and were sold to a list of requests at once,
    where there is one."""
    ACK = "ack"
    """A shard heard how many of the units that it gave `peer` have arrived there, and gave up those of
    which it had forgotten that it gave them."""
    UNDO = "undo"
    """The units of a request's second effect (`undone`) came back."""
    LAYOUT = "layout"
    """The shard was told of a layout: it takes part in it (`joins`: for the first time in this epoch)
    and serves requests or not. No count changed."""
    RESHARD = "reshard"
    """The product has another number of shards from here on. Concerns no counts; `counts` is None."""
    ORDERS = "orders"
    """Holds ended at the shard (`ends`), orders were decided at their coordinator (`decisions`)."""
    TOMBSTONE = "tombstone"
    """A request that never came was decided never to take effect (`bars`: at a stand-in alone). No count
    changed."""
    MARK = "mark"
    """Nothing was done: the shard's counts, to be compared with the ledger's at this very point."""
    REPAIR = "repair"
    """A difference between the shard and the ledger was compensated (`repair`)."""


class EventId(NamedTuple):
    """`<generation>-<number>`. Numbers of a partition only grow; never a clock."""

    generation: int
    number: int

    @classmethod
    def parse(cls, text: str | bytes) -> Self:
        """Read `<generation>-<number>`; ValueError if it is not that."""
        generation, number = (text.decode() if isinstance(text, bytes) else text).split("-")
        return cls(int(generation), int(number))

    def __str__(self) -> str:
        return f"{self.generation}-{self.number}"


BEFORE_ALL = EventId(0, 0)


class Status(StrEnum):
    """What one request of a list came to, as the byte that scripts answer; in order of precedence."""

    REPLAYED = "R"
    MISMATCH = "M"
    REFUSED_BEFORE = "X"
    """An earlier copy was refused for good."""
    NEVER = "N"
    """It was decided that the request takes nothing, ever."""
    BARRED = "B"
    """It was decided that the request takes nothing here; its home says what became of it."""
    FROZEN = "F"
    STALE = "S"
    OVERLOADED = "O"
    LEDGER_BEHIND = "L"
    USER_LIMIT = "U"
    INSUFFICIENT = "I"
    REFUSED = "T"
    """Insufficient, and a tombstone remembers it from now on."""
    DEDUCTED = "D"
    HELD = "H"
    """As deducted, but the units are held for an order."""


class Counts(NamedTuple):
    """One shard's counts after an event, in units. available + held + sold = loaded + moved in - out,
    so `loaded` is below zero where units left for the outside that had come in at another shard."""

    available: int
    held: int
    sold: int
    loaded: int


class Sale(NamedTuple):
    """One accepted request of a list."""

    request_id: str
    quantity: int
    user_id: int
    order_id: int
    available_after: int | None = None
    """Units of the shard that were available just after it; None: the event does not tell."""


class End(NamedTuple):
    """A hold that ended at a shard: `is_sold`, or its units came back."""

    request_id: str
    order_id: int
    user_id: int
    quantity: int
    is_sold: bool
    why: OrderState
    """What the order came to."""
    available_after: int
    """As of a sale."""


class Decision(NamedTuple):
    """What an order came to, as its coordinator decided. `product_id` is the first line's."""

    order_id: int
    user_id: int
    state: OrderState


class Repair(NamedTuple):
    """What compensates the difference `drift_id` of the ledger; all four counts of both are signed."""

    drift_id: int
    live: Counts
    """What was added to the shard's own counts."""
    ledger: Counts
    """What the ledger is to add to its counts of the shard, and of the product."""
    actor: str


class MalformedEventError(ValueError):
    """An entry that no script of ours writes; the text says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Event:
    """One decoded entry. Fields that its kind does not have are None, 0 or empty."""

    id: EventId
    kind: Kind
    at_ms: int
    product_id: int = 0
    epoch: int = 0
    counts: Counts | None = None
    quantity: int = 0
    """Units of a restock, remove, load, buffer, close, take, put or undo; of an ack those given up."""
    request_id: str = ""
    """The request of a restock, remove, undo or tombstone."""
    reason: str = ""
    actor: str = ""
    """Who asked for a restock or remove; empty in entries of earlier versions, too."""
    peer: int = 0
    """The other partition of a take, put or ack."""
    total: int | None = None
    """Units that the shard has given `peer` in its epoch up to a take or ack, or got from it up to a
    put; None in entries of versions up to 0.4."""
    arrived: int = 0
    """Of an ack: units of `total` that are known to have arrived."""
    state: str = ""
    """The state that a load, state or close event left the shard in."""
    layout: int = 0
    """The version that a load, layout or reshard event speaks of."""
    joins: bool = False
    """The shard of a layout event had no part in this epoch before: it starts with no units."""
    serves: bool = False
    """The shard of a layout event takes requests of that layout."""
    undone: EventId = BEFORE_ALL
    """The second effect whose units an undo brought back; an event of the same partition."""
    shards: int = 0
    """Shards from a reshard event on."""
    former: tuple[int, ...] = ()
    """Other shard counts that the product had by then."""
    bars: bool = False
    """The tombstone says nothing of the request's home."""
    sales: tuple[Sale, ...] = ()
    refused: tuple[Sale, ...] = ()
    """Requests of a list that were refused for good."""
    holds: tuple[Sale, ...] = ()
    """Requests of a list whose units were held for an order."""
    ends: tuple[End, ...] = ()
    decisions: tuple[Decision, ...] = ()
    records: tuple[DecidedOrder, ...] = ()
    """What its coordinator has of each order that was held or decided, in their order; empty in orders
    events of earlier versions."""
    damaged: str = ""
    """Counts that a mark found damaged, with spaces between their names."""
    repair: Repair | None = None


RawFields = Mapping[bytes, bytes]


def anchor(fields: Sequence[bytes]) -> str:
    """What an entry is recognised by besides its id; open.lua computes the same from the stream.

    `fields` is the entry's flat list of names and values, in its order.
    """
    return sha1(b"\0".join(fields), usedforsecurity=False).hexdigest()


def decode(event_id: EventId, fields: RawFields) -> Event:
    """Read one entry of a stream. MalformedEventError if no script of ours can have written it."""
    if _integer(fields, b"v", minimum=0, maximum=ID_MAX) != EVENT_VERSION:
        raise MalformedEventError(f"unknown version {_short(fields[b'v'])}")
    kind = _kind(fields)
    at_ms = _integer(fields, b"at", minimum=0, maximum=AT_MS_MAX)
    if kind is Kind.OPENED:
        return Event(event_id, kind, at_ms)
    moves = kind in (Kind.TAKE, Kind.PUT, Kind.ACK)
    counts = None if kind is Kind.RESHARD else _counts(kind, fields)
    sales, holds, refused = _taken(kind, fields, counts)
    return Event(
        event_id,
        kind,
        at_ms,
        product_id=_integer(fields, b"product", minimum=1, maximum=ID_MAX),
        epoch=_integer(fields, b"epoch", minimum=1, maximum=EPOCH_MAX),
        counts=counts,
        quantity=_quantity(kind, fields),
        request_id=_request_id(kind, fields) if kind in _OF_ONE_REQUEST else "",
        reason=_text(fields, b"reason", 0, REASON_CHARS_MAX) if kind in _WITH_REASON else "",
        actor=_text(fields, b"actor", 0, ACTOR_CHARS_MAX) if b"actor" in fields else "",
        peer=_integer(fields, b"peer", minimum=0, maximum=9_999) if moves else 0,
        total=_units(fields, b"total") if moves and b"total" in fields else None,
        arrived=_units(fields, b"arrived") if b"arrived" in fields else 0,
        state=_text(fields, b"state", 1, 16) if b"state" in fields else "",
        layout=_layout(kind, fields),
        joins=kind is Kind.LAYOUT and _flag(fields, b"joins"),
        serves=kind is Kind.LAYOUT and _flag(fields, b"serves"),
        undone=_event_id(fields, b"undone") if kind is Kind.UNDO else BEFORE_ALL,
        shards=_shards(fields) if kind is Kind.RESHARD else 0,
        former=_former(fields) if kind is Kind.RESHARD else (),
        bars=kind is Kind.TOMBSTONE and fields.get(b"tombstone") == b"b",
        sales=sales,
        holds=holds,
        refused=refused,
        ends=_ends(kind, fields, counts),
        decisions=tuple(map(_decision, _list(kind, fields, b"decisions"))),
        records=_records(kind, fields, at_ms) if holds or kind is Kind.ORDERS else (),
        damaged=_text(fields, b"damaged", 0, 64) if kind is Kind.MARK else "",
        repair=_repair(fields) if kind is Kind.REPAIR else None,
    )


_OF_ONE_REQUEST = frozenset((Kind.RESTOCK, Kind.REMOVE, Kind.UNDO, Kind.TOMBSTONE))
_WITH_REASON = frozenset((Kind.RESTOCK, Kind.REMOVE, Kind.RESHARD, Kind.REPAIR))
_WITH_LAYOUT = frozenset((Kind.LOAD, Kind.LAYOUT, Kind.RESHARD))
_PARTITIONS_MAX = 960


_QUANTITY_RANGE = {
    Kind.RESTOCK: (1, ADJUSTMENT_MAX),
    Kind.REMOVE: (1, ADJUSTMENT_MAX),
    # Restocks can lift a product above what PutProduct may say.
    Kind.LOAD: (0, EPOCH_MAX),
    Kind.BUFFER: (1, EPOCH_MAX),
    Kind.CLOSE: (0, EPOCH_MAX),
    Kind.TAKE: (1, EPOCH_MAX),
    Kind.PUT: (1, EPOCH_MAX),
    Kind.ACK: (0, EPOCH_MAX),
    Kind.UNDO: (1, QUANTITY_MAX),
}


def _units(fields: RawFields, name: bytes) -> int:
    return _integer(fields, name, minimum=0, maximum=EPOCH_MAX)


def _kind(fields: RawFields) -> Kind:
    text = _field(fields, b"kind")
    try:
        return Kind(text.decode())
    except ValueError:
        raise MalformedEventError(f"unknown kind {_short(text)}") from None


def _counts(kind: Kind, fields: RawFields) -> Counts:
    """Only a mark tells of counts below zero; every other script refuses a shard that has one."""
    minimum = -EPOCH_MAX if kind is Kind.MARK else 0
    return Counts(
        available=_integer(fields, b"available", minimum=minimum, maximum=EPOCH_MAX),
        held=_integer(fields, b"held", minimum=minimum, maximum=EPOCH_MAX),
        sold=_integer(fields, b"sold", minimum=minimum, maximum=EPOCH_MAX),
        loaded=_integer(fields, b"loaded", minimum=-EPOCH_MAX, maximum=EPOCH_MAX),
    )


def _repair(fields: RawFields) -> Repair:
    return Repair(
        drift_id=_integer(fields, b"drift", minimum=1, maximum=EPOCH_MAX),
        live=_changes(fields, b"live"),
        ledger=_changes(fields, b"ledger"),
        actor=_text(fields, b"actor", 0, ACTOR_CHARS_MAX),
    )


def _changes(fields: RawFields, name: bytes) -> Counts:
    text = _text(fields, name, 7, 80)
    if not _CHANGES.fullmatch(text):
        raise MalformedEventError(f"{name.decode()} is not four whole numbers")
    return Counts(*map(int, text.split()))


def _quantity(kind: Kind, fields: RawFields) -> int:
    if kind not in _QUANTITY_RANGE or (kind is Kind.ACK and b"quantity" not in fields):
        return 0
    minimum, maximum = _QUANTITY_RANGE[kind]
    return _integer(fields, b"quantity", minimum=minimum, maximum=maximum)


def _layout(kind: Kind, fields: RawFields) -> int:
    if kind not in _WITH_LAYOUT:
        return 0
    return _integer(fields, b"layout", minimum=1, maximum=EPOCH_MAX)


def _flag(fields: RawFields, name: bytes) -> bool:
    return _integer(fields, name, minimum=0, maximum=1) == 1


def _shards(fields: RawFields) -> int:
    return _integer(fields, b"shards", minimum=1, maximum=_PARTITIONS_MAX)


def _former(fields: RawFields) -> tuple[int, ...]:
    counts = _text(fields, b"former", 0, 255).split()
    if not all(count.isascii() and count.isdigit() and int(count) > 0 for count in counts):
        raise MalformedEventError("former shard counts are no numbers")
    return tuple(map(int, counts))


def _event_id(fields: RawFields, name: bytes) -> EventId:
    text = _text(fields, name, 3, 41)
    if not _EVENT_ID.fullmatch(text):
        raise MalformedEventError(f"{name.decode()} is no event id")
    return EventId.parse(text)


def _list(kind: Kind, fields: RawFields, name: bytes) -> list[str]:
    """What a script joined with commas."""
    if kind is not Kind.ORDERS:
        return []
    return list(filter(None, _text(fields, name, 0, ORDERS_CHARS_MAX).split(",")))


def _ends(kind: Kind, fields: RawFields, counts: Counts | None) -> tuple[End, ...]:
    """In their order; the counts are those after the last one, so the walk begins there."""
    available = counts.available if counts else 0
    ends = []
    for text in reversed(_list(kind, fields, b"ends")):
        end = _end(text, available)
        available -= 0 if end.is_sold else end.quantity
        ends.append(end)
    return tuple(reversed(ends))


def _end(text: str, available_after: int) -> End:
    found = _END.fullmatch(text)
    if not found:
        raise MalformedEventError(f"no end of a hold: {text[:60]!r}")
    request_id, order_id, why, quantity, user_id = found.groups()
    state = OrderState(why)
    return End(
        request_id,
        _identifier(order_id),
        _identifier(user_id),
        int(quantity),
        state.is_sold,
        state,
        available_after,
    )


def _decision(text: str) -> Decision:
    found = _DECISION.fullmatch(text)
    if not found:
        raise MalformedEventError(f"no decision: {text[:60]!r}")
    order_id, state, user_id = found.groups()
    return Decision(_identifier(order_id), _identifier(user_id), OrderState(state))


def _records(kind: Kind, fields: RawFields, at_ms: int) -> tuple[DecidedOrder, ...]:
    try:
        if kind is Kind.ORDERS:
            text = _text(fields, b"orders", 0, ORDERS_CHARS_MAX) if b"orders" in fields else ""
            return tuple(later_decisions(text))
        flat = _unpacked(_field(fields, b"requests"))
        held = (
            flat[i * REQUEST_FIELDS : (i + 1) * REQUEST_FIELDS]
            for i, status in enumerate(_field(fields, b"statuses"))
            if status == _HELD
        )
        return tuple(first_decisions(held, at_ms=at_ms))
    except ValueError as error:
        raise MalformedEventError(str(error)) from None


def _taken(
    kind: Kind, fields: RawFields, counts: Counts | None
) -> tuple[tuple[Sale, ...], tuple[Sale, ...], tuple[Sale, ...]]:
    """What was sold, held, and refused for good of a list, each in its order.

    The counts are those after the last request, so the walk begins there.
    """
    if kind is not Kind.DEDUCT and not (kind is Kind.PUT and b"requests" in fields):
        return (), (), ()
    assert counts is not None  # both kinds have them
    statuses = _field(fields, b"statuses")
    requests = _unpacked(_field(fields, b"requests"))
    if len(requests) != len(statuses) * REQUEST_FIELDS:
        raise MalformedEventError("requests and statuses differ in number")
    told: dict[int, list[Sale]] = {_SOLD: [], _HELD: [], _REFUSED: []}
    available = counts.available
    for i in range(len(statuses) - 1, -1, -1):
        of_status = told.get(statuses[i])
        if of_status is not None:
            sale = _sale(requests[i * REQUEST_FIELDS : (i + 1) * REQUEST_FIELDS], available)
            of_status.append(sale)
            if statuses[i] != _REFUSED:
                available += sale.quantity
    sales, holds, refused = (tuple(reversed(each)) for each in told.values())
    return sales, holds, refused


_SOLD, _HELD, _REFUSED = ord(Status.DEDUCTED), ord(Status.HELD), ord(Status.REFUSED)


def _unpacked(packed: bytes) -> list[object]:
    try:
        requests = unpackb(packed)
    except (ValueError, UnpackException):
        raise MalformedEventError("requests cannot be unpacked") from None
    if not isinstance(requests, list):
        raise MalformedEventError("requests are not a list")
    return requests


def _sale(values: Sequence[object], available_after: int) -> Sale:
    request_id, quantity, user_id, order_id = values
    if not isinstance(request_id, str):
        raise MalformedEventError("request id is no text")
    if " " in request_id:
        request_id, order_id = _hold_of(request_id)
    elif not _REQUEST_ID.fullmatch(request_id):
        raise MalformedEventError("request id out of bounds")
    if not isinstance(quantity, int) or not 1 <= quantity <= QUANTITY_MAX:
        raise MalformedEventError(f"quantity out of bounds for {request_id}")
    return Sale(request_id, quantity, _identifier(user_id), _identifier(order_id), available_after)


def _hold_of(request_id: str) -> tuple[str, str]:
    """The id under which an order takes a line, and the order's own."""
    found = HOLD_ID.fullmatch(request_id)
    if not found:
        raise MalformedEventError("request id out of bounds")
    return request_id, found[1]


def _identifier(value: object) -> int:
    """Users and orders travel as text: Lua's numbers cannot hold 63 bits."""
    if not isinstance(value, str) or not value.isascii() or not value.isdigit():
        raise MalformedEventError("user or order is not a number")
    if int(value) > ID_MAX:
        raise MalformedEventError("user or order out of bounds")
    return int(value)


def _field(fields: RawFields, name: bytes) -> bytes:
    try:
        return fields[name]
    except KeyError:
        raise MalformedEventError(f"no field {name.decode()}") from None


def _request_id(kind: Kind, fields: RawFields) -> str:
    text = _text(fields, b"request", 1, REQUEST_ID_CHARS_MAX)
    # A line that was never taken is decided on as any request is.
    is_line = kind is Kind.TOMBSTONE and HOLD_ID.fullmatch(text)
    if not is_line and not _REQUEST_ID.fullmatch(text):
        raise MalformedEventError("request has other characters than an id may have")
    return text


def _text(fields: RawFields, name: bytes, shortest: int, longest: int) -> str:
    try:
        text = _field(fields, name).decode()
    except UnicodeDecodeError:
        raise MalformedEventError(f"{name.decode()} is not UTF-8") from None
    if not shortest <= len(text) <= longest:
        raise MalformedEventError(f"{name.decode()} has {len(text)} characters")
    return text


def _integer(fields: RawFields, name: bytes, *, minimum: int, maximum: int) -> int:
    text = _field(fields, name)
    digits = text.removeprefix(b"-") if minimum < 0 else text
    if not digits.isdigit() or len(digits) > len(str(ID_MAX)):
        raise MalformedEventError(f"{name.decode()} is not a whole number: {_short(text)}")
    value = int(text)
    if not minimum <= value <= maximum:
        raise MalformedEventError(f"{name.decode()} out of bounds: {value}")
    return value


def _short(value: bytes) -> str:
    return repr(value[:40])
