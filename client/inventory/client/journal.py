"""The ledger's journal and dead letters as records; field for field the messages of inventory.v1."""

from dataclasses import dataclass

from inventory.v1 import admin_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """An event that could not be applied to the ledger; one request of it where `request_id` is set."""

    id: int
    partition: int
    event_id: str
    reason: str
    event: str
    created_ms: int
    product_id: int
    request_id: str
    state: str
    remark: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterPage:
    """Dead letters by id; `next_after_id` starts the next page, 0: this was the last."""

    letters: tuple[DeadLetter, ...]
    next_after_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineEntry:
    """One entry of the journal; `quantity` is negative where units left the available stock.

    `available_before`, `available_after`: of the shard `partition`, or of the product where that is -1;
    None: not known.
    """

    kind: str
    request_id: str
    order_id: int
    user_id: int
    quantity: int
    partition: int
    event_id: str
    reason: str
    created_ms: int
    id: int
    product_id: int
    actor: str
    available_before: int | None
    available_after: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelinePage:
    """Entries of the journal, newest first; `next_before_id` starts the next page, 0: the last."""

    entries: tuple[TimelineEntry, ...]
    next_before_id: int


def dead_letter_of(message: admin_pb2.DeadLetter) -> DeadLetter:
    return DeadLetter(
        id=message.id,
        partition=message.partition,
        event_id=message.event_id,
        reason=message.reason,
        event=message.event,
        created_ms=message.created_ms,
        product_id=message.product_id,
        request_id=message.request_id,
        state=message.state,
        remark=message.remark,
    )


def dead_letter_page_of(message: admin_pb2.ListDeadLettersResponse) -> DeadLetterPage:
    return DeadLetterPage(
        letters=tuple(map(dead_letter_of, message.letters)), next_after_id=message.next_after_id
    )


def timeline_entry_of(message: admin_pb2.TimelineEntry) -> TimelineEntry:
    before = message.available_before if message.HasField("available_before") else None
    after = message.available_after if message.HasField("available_after") else None
    return TimelineEntry(
        kind=message.kind,
        request_id=message.request_id,
        order_id=message.order_id,
        user_id=message.user_id,
        quantity=message.quantity,
        partition=message.partition,
        event_id=message.event_id,
        reason=message.reason,
        created_ms=message.created_ms,
        id=message.id,
        product_id=message.product_id,
        actor=message.actor,
        available_before=before,
        available_after=after,
    )


def timeline_page_of(message: admin_pb2.GetTimelineResponse) -> TimelinePage:
    return TimelinePage(
        entries=tuple(map(timeline_entry_of, message.entries)),
        next_before_id=message.next_before_id,
    )
