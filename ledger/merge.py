"""Merges events of several partitions into one batch for the ledger. Pure: no I/O, no clock."""

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import NamedTuple, TypeVar

from ledger.batch import (
    EffectKey,
    Effects,
    Hold,
    HoldKey,
    LedgerBatch,
    Letter,
    Move,
    Moved,
    NewLayout,
    Pair,
    ProductChange,
    Refusal,
    Repaired,
    SecondEffect,
    ShardChange,
    ShardKey,
    TransferNote,
    TransferSide,
    Undone,
)
from ledger.products import JournalKind
from ledger.service_events import Notice, ServiceEventKind
from sharding.events import (
    BEFORE_ALL,
    HOLD_ID,
    Counts,
    End,
    Event,
    EventId,
    Kind,
    MalformedEventError,
    Sale,
    anchor,
    decode,
)
from sharding.orders import OrderState, request_id_of
from sharding.partitions import Checkpoint, Entry

_JOURNAL_KIND = {
    Kind.DEDUCT: JournalKind.DEDUCT,
    Kind.PUT: JournalKind.DEDUCT,
    Kind.RESTOCK: JournalKind.RESTOCK,
    Kind.REMOVE: JournalKind.REMOVE,
    Kind.RESHARD: JournalKind.LAYOUT,
}
_WHY = {
    OrderState.CONFIRMED: "",
    OrderState.RETAKEN: "retaken",
    OrderState.RELEASED: "released",
    OrderState.EXPIRED: "expired",
    OrderState.REFUSED: "refused",
    OrderState.REFUND_REQUIRED: "refund required",
}
"""What an order's end is called in the journal."""
UNDECIDED = (OrderState.PENDING, OrderState.HELD)
_TOLD = {
    OrderState.EXPIRED: ServiceEventKind.ORDER_EXPIRED,
    OrderState.REFUND_REQUIRED: ServiceEventKind.REFUND_REQUIRED,
}
"""Decisions that callers are told of: they did not ask for them."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """One entry of a stream as it was read."""

    entry: Entry
    event: Event | None
    """None: it could not be decoded."""
    problem: str = ""
    """Why it goes to the dead letters, starting with one word; empty: it does not."""
    shard_follows: bool = False
    """A dead letter whose counts the shard's row takes over all the same."""

    @property
    def rows(self) -> int:
        """Journal rows that it is worth, at least one, so that a batch of anything is bounded."""
        if not self.event:
            return 1
        of_orders = len(self.event.holds) + len(self.event.ends) + len(self.event.decisions)
        return max(1, len(self.event.sales) + len(self.event.refused) + of_orders)


class Chunk(NamedTuple):
    """Consecutive entries of one partition, and the entry that was applied before them."""

    partition: int
    start: EventId
    deliveries: Sequence[Delivery]

    @property
    def end(self) -> Checkpoint:
        last = self.deliveries[-1].entry
        return Checkpoint(last.id, anchor(last.fields))


def received(entry: Entry) -> Delivery:
    """Decode an entry; whatever is wrong with it is noted, not raised."""
    names, values = entry.fields[::2], entry.fields[1::2]
    try:
        event = decode(entry.id, dict(zip(names, values, strict=True)))
    except (MalformedEventError, ValueError) as error:
        return Delivery(entry, None, f"malformed {error}")
    return Delivery(entry, event)


def cut(chunks: Sequence[Chunk], rows_max: int) -> Iterator[list[Chunk]]:
    """The same entries in batches that stop growing at `rows_max` journal rows."""
    batch: list[Chunk] = []
    room = rows_max
    for chunk in chunks:
        start, first = chunk.start, 0
        for position, delivery in enumerate(chunk.deliveries):
            room -= delivery.rows
            if room > 0:
                continue
            batch.append(Chunk(chunk.partition, start, chunk.deliveries[first : position + 1]))
            yield batch
            start, first = delivery.entry.id, position + 1
            batch, room = [], rows_max
        if first < len(chunk.deliveries):
            batch.append(Chunk(chunk.partition, start, chunk.deliveries[first:]))
    if batch:
        yield batch


def merge(chunks: Sequence[Chunk], taken: AbstractSet[EffectKey] | None = None) -> LedgerBatch:
    """Add the entries up per product and per shard.

    `taken` are the effects that the journal has already: a second one does not count for the product
    and is to be undone or set aside, and so is a second one within the batch. None: nobody has looked,
    and the journal will tell.
    """
    batch = LedgerBatch()
    seen = None if taken is None else set(taken)
    for chunk in chunks:
        batch.moves.append(Move(chunk.partition, chunk.start, chunk.end))
        for delivery in chunk.deliveries:
            _add(batch, chunk.partition, delivery, seen)
        _keep_last(batch, chunk)
    return batch


def _keep_last(batch: LedgerBatch, chunk: Chunk) -> None:
    """Markers are not kept, but the last of a chunk: in a quiet stream nothing else may be left by which
    a node shows that it has the ledger's own past."""
    last = chunk.deliveries[-1]
    if _is_marker(last):
        batch.raw.append((chunk.partition, last.entry))


def _is_marker(delivery: Delivery) -> bool:
    event = delivery.event
    return event is not None and event.kind is Kind.MARK and not delivery.problem


def merge_late(
    partition: int,
    delivery: Delivery,
    taken: AbstractSet[EffectKey],
    *,
    request_id: str,
    shard_follows: bool,
    tells: bool,
) -> LedgerBatch:
    """What is left to do of an event that was set aside as a whole, or as one of its requests.

    `tells`: callers have not been told of its orders.
    """
    batch, event = LedgerBatch(), delivery.event
    assert event is not None  # who asks has looked
    if tells:
        _tell_of_orders(batch, event)
    wanted = _only(event, request_id) if request_id else event
    _add_to_product(batch, partition, delivery.entry, wanted, set(taken))
    if shard_follows:
        _add_to_shard(batch, partition, event)
    else:  # the shard's row has it, but the hold may have been entered after that
        ended = [HoldKey(event.product_id, partition, end.request_id) for end in wanted.ends]
        batch.freed.extend(ended)
    return batch


def _only(event: Event, request_id: str) -> Event:
    """The event with one request of its lists; of several of that id the last: the first one counted."""
    return replace(
        event,
        sales=_last_of(event.sales, request_id),
        holds=_last_of(event.holds, request_id),
        refused=(),
        ends=_last_of(event.ends, request_id),
        decisions=(),
    )


_Named = TypeVar("_Named", Sale, End)


def _last_of(named: Sequence[_Named], request_id: str) -> tuple[_Named, ...]:
    return tuple(each for each in named if each.request_id == request_id)[-1:]


def _add(
    batch: LedgerBatch, partition: int, delivery: Delivery, seen: set[EffectKey] | None
) -> None:
    event = delivery.event
    if delivery.problem:
        product_id = event.product_id if event else 0
        letter = (partition, delivery.entry, product_id, "", delivery.problem)
        batch.letters.append(Letter(*letter, shard_followed=delivery.shard_follows))
    elif not _is_marker(delivery):  # it did nothing that could be done again
        batch.raw.append((partition, delivery.entry))
    if event is None or event.kind is Kind.OPENED:
        return
    if event.decisions:
        _tell_of_orders(batch, event)
    if not delivery.problem:
        _add_to_product(batch, partition, delivery.entry, event, seen)
    if not delivery.problem or delivery.shard_follows:
        _add_to_shard(batch, partition, event)


def _add_to_product(
    batch: LedgerBatch, partition: int, entry: Entry, event: Event, seen: set[EffectKey] | None
) -> None:
    if event.kind is Kind.UNDO:
        batch.undone.append(_undone(partition, event))
        return
    if event.repair:
        _add_repair(batch, partition, event)
        return
    batch.refusals += _refusals(event)
    here: set[str] = set()
    for told in _effects(partition, event):
        effects = told if seen is None else _first_ones(batch, entry, event, told, seen, here)
        if not effects.sales:
            continue
        batch.effects.append(effects)
        if effects.kind is JournalKind.LAYOUT:
            _change_layout(batch, event)
        elif effects.kind is not JournalKind.REFUND:
            _add_units_to_product(batch, effects)


def _undone(partition: int, event: Event) -> Undone:
    assert event.counts is not None  # only a reshard has none
    return Undone(
        product_id=event.product_id,
        partition=partition,
        undone=event.undone,
        request_id=event.request_id,
        event_id=event.id,
        quantity=event.quantity,
        available_after=event.counts.available,
        at_ms=event.at_ms,
        remark=f"second effect, returned by event {event.id}",
    )


def _add_repair(batch: LedgerBatch, partition: int, event: Event) -> None:
    """Units that appear or vanish in the ledger change the product's total."""
    assert event.repair
    assert event.counts
    added = event.repair.ledger
    change = batch.products.setdefault(event.product_id, ProductChange())
    change.total += added.available + added.held + added.sold
    change.available += added.available
    change.held += added.held
    change.sold += added.sold
    key = ShardKey(event.product_id, partition)
    repaired = Repaired(key, event.id, event.repair, event.reason, event.counts.available)
    batch.repairs.append(repaired)


def _add_units_to_product(batch: LedgerBatch, effects: Effects) -> None:
    units = sum([sale.quantity for sale in effects.sales])
    change = batch.products.setdefault(effects.product_id, ProductChange())
    match effects.kind:
        case JournalKind.DEDUCT:
            change.available -= units
            change.sold += units
        case JournalKind.RESERVE:
            change.available -= units
            change.held += units
        case JournalKind.CONFIRM:
            change.held -= units
            change.sold += units
        case JournalKind.RELEASE:
            change.held -= units
            change.available += units
        case JournalKind.RESTOCK:
            change.total += units
            change.available += units
        case _:
            assert effects.kind is JournalKind.REMOVE
            change.total -= units
            change.available -= units


def _change_layout(batch: LedgerBatch, event: Event) -> None:
    """The newest layout of the batch is the product's, in whichever order the streams tell of them."""
    known = batch.layouts.get(event.product_id)
    if known is None or known.version < event.layout:
        former = " ".join(map(str, event.former))
        batch.layouts[event.product_id] = NewLayout(event.layout, event.shards, former)


def _effects(partition: int, event: Event) -> Iterator[Effects]:
    """What the journal is to have of an event, in lists of one kind and one remark each."""
    who = event.actor
    for kind, remark, sales in _told(event):
        yield Effects(partition, event.id, event.product_id, kind, event.at_ms, remark, sales, who)


def _told(event: Event) -> Iterator[tuple[JournalKind, str, Sequence[Sale]]]:
    kind = _JOURNAL_KIND.get(event.kind)
    if kind is JournalKind.DEDUCT:
        for taken, sales in _in_turns(event):
            yield taken, "", sales
    elif kind is JournalKind.LAYOUT:
        sale = Sale(f"layout {event.layout}", 0, user_id=0, order_id=0)
        yield kind, event.reason or f"{event.shards} shards", (sale,)
    elif kind:
        yield kind, event.reason, (_of_shard(event, event.request_id, event.quantity),)
    elif event.kind is Kind.ORDERS:
        for why, ends in groupby(event.ends, attrgetter("why")):
            kind = JournalKind.CONFIRM if why.is_sold else JournalKind.RELEASE
            yield kind, _WHY[why], [_ended(end) for end in ends]
        yield JournalKind.REFUND, "", _refunds(event)


def _in_turns(event: Event) -> Iterator[tuple[JournalKind, Sequence[Sale]]]:
    """Sales and holds of a list as they took turns: each row of the journal begins where the one before
    it ended."""
    if not event.holds:
        yield JournalKind.DEDUCT, event.sales
        return
    taken = [(JournalKind.DEDUCT, sale) for sale in event.sales]
    taken += [(JournalKind.RESERVE, hold) for hold in event.holds]
    taken.sort(key=lambda each: -(each[1].available_after or 0))
    for kind, turn in groupby(taken, itemgetter(0)):
        yield kind, [sale for _, sale in turn]


def _ended(end: End) -> Sale:
    return Sale(end.request_id, end.quantity, end.user_id, end.order_id, end.available_after)


def _of_shard(
    event: Event, request_id: str, quantity: int, *, user_id: int = 0, order_id: int = 0
) -> Sale:
    """The only request of an event, or one that follows all others."""
    available = event.counts.available if event.counts else None
    return Sale(request_id, quantity, user_id, order_id, available)


def _refusals(event: Event) -> list[Refusal]:
    """Nobody sells the line of an order from the buffer, so nothing need be known of it."""
    if event.kind is Kind.TOMBSTONE and not event.bars and not HOLD_ID.fullmatch(event.request_id):
        return [Refusal(event.product_id, event.request_id, "never")]
    return [
        Refusal(event.product_id, sale.request_id, "refused", sale.quantity, sale.user_id)
        for sale in event.refused
        if not HOLD_ID.fullmatch(sale.request_id)
    ]


def _refunds(event: Event) -> list[Sale]:
    """Orders that nobody will get any units for; `quantity` 0, for theirs came back long before."""
    return [
        _of_shard(
            event,
            request_id_of(decision.order_id, event.product_id),
            0,
            user_id=decision.user_id,
            order_id=decision.order_id,
        )
        for decision in event.decisions
        if decision.state is OrderState.REFUND_REQUIRED
    ]


def _tell_of_orders(batch: LedgerBatch, event: Event) -> None:
    """An event that is set aside is told of all the same: the order has ended, whatever the units do."""
    for decision in event.decisions:
        if kind := _TOLD.get(decision.state):
            order = (decision.order_id, decision.user_id)
            batch.notices.append(Notice(kind, event.product_id, *order, at_ms=event.at_ms))


def _first_ones(
    batch: LedgerBatch,
    entry: Entry,
    event: Event,
    effects: Effects,
    seen: set[EffectKey],
    here: set[str],
) -> Effects:
    """Without the requests that had their effect before; `here`: requests of this event so far."""
    sales = []
    for sale, key in zip(effects.sales, effects.keys(), strict=True):
        if not any(key._replace(kind=kind.value) in seen for kind in effects.rivals):
            seen.add(key)
            sales.append(sale)
        elif _is_undoable(effects.kind, sale) and sale.request_id not in here:
            batch.seconds.append(_second_effect(effects.partition, event, sale))
        elif effects.kind not in (JournalKind.LAYOUT, JournalKind.REFUND):
            batch.letters.append(_duplicate(effects.partition, entry, key, sale))
        here.add(sale.request_id)
    return effects._replace(sales=sales)


def _is_undoable(kind: JournalKind, sale: Sale) -> bool:
    """Units of an order are no request's own: no script but those of orders gives them back."""
    return kind is JournalKind.DEDUCT and not HOLD_ID.fullmatch(sale.request_id)


def _second_effect(partition: int, event: Event, sale: Sale) -> SecondEffect:
    return SecondEffect(
        product_id=event.product_id,
        partition=partition,
        epoch=event.epoch,
        event_id=event.id,
        request_id=sale.request_id,
        quantity=sale.quantity,
    )


def _duplicate(partition: int, entry: Entry, key: EffectKey, sale: Sale) -> Letter:
    """A second effect that no script brings back: of a correction, of an order, or of one list twice."""
    reason = f"duplicate_effect {key.kind} of {sale.quantity} units"
    return Letter(partition, entry, key.product_id, key.request_id, reason, shard_followed=True)


def _add_to_shard(batch: LedgerBatch, partition: int, event: Event) -> None:
    if event.counts is None:
        return
    key = ShardKey(event.product_id, partition)
    if event.kind is Kind.LOAD or event.joins:
        batch.shards[key] = ShardChange(
            reset=True, epoch=event.epoch, serves=1, began=event.id.number
        )
    change = batch.shards.setdefault(key, ShardChange())
    _add_units(change, event)
    change.layout_version = event.layout or change.layout_version
    change.state = event.state or change.state
    if event.kind is Kind.LAYOUT:
        change.serves = int(event.serves)
    change.epoch = change.epoch or event.epoch
    change.last_event = event.id
    change.counts = event.counts
    change.damaged = event.damaged
    if event.total is not None:
        _follow_transfer(batch, partition, event, event.total)
    if event.holds or event.ends or event.records:
        _add_units_of_orders(change, event)
        _follow_holds(batch, partition, event)
    _note_parting(change, event.id, event.counts)


def _note_parting(change: ShardChange, event_id: EventId, counts: Counts) -> None:
    """Every event's counts less all that was done since say what the shard had before the batch. The
    first that says something else than those before it tells where shard and stream have parted."""
    available, held, sold, loaded = change.ahead
    base = (
        counts.available - change.available + available,
        counts.held - change.held + held,
        counts.sold - change.sold + sold,
        counts.loaded - change.loaded + loaded,
    )
    if change.first_event is BEFORE_ALL:
        change.first_event, change.base = event_id, base
    elif change.parted is BEFORE_ALL and base != change.base:
        change.parted = event_id


def _follow_transfer(batch: LedgerBatch, partition: int, event: Event, total: int) -> None:
    """Most transfers begin and end within one batch and leave no trace but the sums."""
    side = TransferSide(partition, event.product_id, event.peer, is_out=event.kind is not Kind.PUT)
    note = TransferNote(event.epoch, total, event.arrived)
    batch.transfers[side] = later_note(batch.transfers.get(side, note), note)
    if event.kind is Kind.PUT:
        return
    pair = Pair(event.product_id, partition, event.peer)
    if event.kind is Kind.TAKE or event.arrived != total:
        batch.opened[pair] = Moved(event.epoch, total)
    elif batch.opened.pop(pair, None) is None:
        batch.ended[pair] = Moved(event.epoch, total)


def later_note(one: TransferNote, other: TransferNote) -> TransferNote:
    """What a side knows after two notes, in whichever order they come: sums only grow in an epoch."""
    if one.epoch != other.epoch:
        return max(one, other)
    return TransferNote(one.epoch, max(one.moved, other.moved), max(one.arrived, other.arrived))


def _follow_holds(batch: LedgerBatch, partition: int, event: Event) -> None:
    """Most holds of a sale last longer than a batch; those of a refused order do not."""
    for hold in event.holds:
        key = HoldKey(event.product_id, partition, hold.request_id)
        batch.held[key] = Hold(hold.order_id, hold.user_id, hold.quantity, event.at_ms)
    for end in event.ends:
        key = HoldKey(event.product_id, partition, end.request_id)
        batch.decisions.pop(key, None)
        if batch.held.pop(key, None) is None:
            batch.freed.append(key)
    for order_id, decision in event.records:
        _follow_decision(batch, partition, event, order_id, decision)


def _follow_decision(
    batch: LedgerBatch, partition: int, event: Event, order_id: int, decision: str
) -> None:
    """What is decided about an order stands beside the hold of its first line, as long as that lasts."""
    key = HoldKey(event.product_id, partition, request_id_of(order_id, event.product_id))
    if hold := batch.held.get(key):
        batch.held[key] = hold._replace(decision=decision)
    elif decision[0] in UNDECIDED:
        batch.decisions[key] = decision


def _add_units(change: ShardChange, event: Event) -> None:
    units = event.quantity
    sold = sum([sale.quantity for sale in event.sales])
    match event.kind:
        case Kind.RESTOCK | Kind.LOAD:
            change.available += units
            change.loaded += units
        case Kind.BUFFER:
            change.available += units
            change.loaded += units
            change.released += units
        case Kind.REMOVE | Kind.CLOSE:
            change.available -= units
            change.loaded -= units
        case Kind.TAKE | Kind.ACK:
            change.available -= units
            change.in_transit += units
        case Kind.PUT:
            change.available += units
            change.in_transit -= units
        case Kind.UNDO:
            change.available += units
            change.sold -= units
        case Kind.REPAIR:
            _add_repair_to_shard(change, event)
        case _:
            pass  # a deduction's units are its sales'; the other kinds move none
    change.available -= sold
    change.sold += sold


def _add_repair_to_shard(change: ShardChange, event: Event) -> None:
    assert event.repair
    live, added = event.repair.live, event.repair.ledger
    change.available += added.available
    change.held += added.held
    change.sold += added.sold
    change.loaded += added.loaded
    change.ahead = Counts(*(a + b - c for a, b, c in zip(change.ahead, added, live, strict=True)))


def _add_units_of_orders(change: ShardChange, event: Event) -> None:
    held = sum([hold.quantity for hold in event.holds])
    ended = sum([end.quantity for end in event.ends])
    sold = sum([end.quantity for end in event.ends if end.is_sold])
    change.held += held - ended
    change.available += ended - sold - held
    change.sold += sold
