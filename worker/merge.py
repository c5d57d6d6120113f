"""Merges events of several partitions into one batch for the ledger. Pure: no I/O, no clock."""

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import NamedTuple

from ledger.batch import (
    EffectKey,
    Effects,
    LedgerBatch,
    Letter,
    Move,
    NewLayout,
    Opening,
    ProductChange,
    SecondEffect,
    ShardChange,
    ShardKey,
    TransferKey,
    Undone,
)
from ledger.products import JournalKind
from sharding.events import Event, EventId, Kind, MalformedEventError, Sale, anchor, decode
from sharding.partitions import Checkpoint, Entry

_JOURNAL_KIND = {
    Kind.DEDUCT: JournalKind.DEDUCT,
    Kind.PUT: JournalKind.DEDUCT,
    Kind.RESTOCK: JournalKind.RESTOCK,
    Kind.REMOVE: JournalKind.REMOVE,
    Kind.RESHARD: JournalKind.LAYOUT,
}


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
        return max(1, len(self.event.sales)) if self.event else 1


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
    and the journal's unique key will tell.
    """
    batch = LedgerBatch()
    seen = None if taken is None else set(taken)
    for chunk in chunks:
        batch.moves.append(Move(chunk.partition, chunk.start, chunk.end))
        for delivery in chunk.deliveries:
            _add(batch, chunk.partition, delivery, seen)
    return batch


def _add(
    batch: LedgerBatch, partition: int, delivery: Delivery, seen: set[EffectKey] | None
) -> None:
    event = delivery.event
    if delivery.problem:
        product_id = event.product_id if event else 0
        batch.letters.append(Letter(partition, delivery.entry, product_id, "", delivery.problem))
    else:
        batch.raw.append((partition, delivery.entry))
    if event is None or event.kind is Kind.OPENED:
        return
    if not delivery.problem:
        _add_to_product(batch, partition, delivery.entry, event, seen)
    if not delivery.problem or delivery.shard_follows:
        _add_to_shard(batch, partition, event)


def _add_to_product(
    batch: LedgerBatch, partition: int, entry: Entry, event: Event, seen: set[EffectKey] | None
) -> None:
    if event.kind is Kind.UNDO:
        undone = Undone(event.product_id, partition, event.undone, event.request_id, event.id)
        batch.undone.append(undone)
        return
    effects = _effects(partition, event)
    if effects is None:
        return
    if seen is not None:
        effects = _first_ones(batch, entry, event, effects, seen)
    if not effects.sales:
        return
    batch.effects.append(effects)
    if effects.kind is JournalKind.LAYOUT:
        _change_layout(batch, event)
    else:
        _add_units_to_product(batch, effects)


def _add_units_to_product(batch: LedgerBatch, effects: Effects) -> None:
    units = sum([sale.quantity for sale in effects.sales])
    change = batch.products.setdefault(effects.product_id, ProductChange())
    if effects.kind is JournalKind.DEDUCT:
        change.available -= units
        change.sold += units
    else:
        signed = units if effects.kind is JournalKind.RESTOCK else -units
        change.total += signed
        change.available += signed


def _change_layout(batch: LedgerBatch, event: Event) -> None:
    """The newest layout of the batch is the product's, in whichever order the streams tell of them."""
    known = batch.layouts.get(event.product_id)
    if known is None or known.version < event.layout:
        former = " ".join(map(str, event.former))
        batch.layouts[event.product_id] = NewLayout(event.layout, event.shards, former)


def _effects(partition: int, event: Event) -> Effects | None:
    kind = _JOURNAL_KIND.get(event.kind)
    if kind is None:
        return None
    sales: Sequence[Sale] = event.sales
    remark = event.reason
    if kind is JournalKind.LAYOUT:
        sales = (Sale(f"layout {event.layout}", 0, user_id=0, order_id=0),)
        remark = event.reason or f"{event.shards} shards"
    elif kind is not JournalKind.DEDUCT:
        sales = (Sale(event.request_id, event.quantity, user_id=0, order_id=0),)
    return Effects(partition, event.id, event.product_id, kind, event.at_ms, remark, sales)


def _first_ones(
    batch: LedgerBatch, entry: Entry, event: Event, effects: Effects, seen: set[EffectKey]
) -> Effects:
    """Without the requests that had their effect before."""
    sales = []
    here: set[str] = set()
    for sale, key in zip(effects.sales, effects.keys(), strict=True):
        if key not in seen:
            seen.add(key)
            sales.append(sale)
        elif effects.kind is JournalKind.DEDUCT and sale.request_id not in here:
            batch.seconds.append(_second_effect(effects.partition, event, sale))
        elif effects.kind is not JournalKind.LAYOUT:
            batch.letters.append(_duplicate(effects.partition, entry, key, sale))
        here.add(sale.request_id)
    return effects._replace(sales=sales)


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
    """A second effect that no script brings back: of a correction, or of one list twice."""
    reason = f"duplicate_effect {key.kind} of {sale.quantity} units"
    return Letter(partition, entry, key.product_id, key.request_id, reason)


def _add_to_shard(batch: LedgerBatch, partition: int, event: Event) -> None:
    if event.counts is None:
        return
    key = ShardKey(event.product_id, partition)
    if event.kind is Kind.LOAD or event.joins:
        batch.shards[key] = ShardChange(reset=True, epoch=event.epoch)
    change = batch.shards.setdefault(key, ShardChange())
    _add_units(change, event)
    change.layout_version = event.layout or change.layout_version
    change.state = event.state or change.state
    change.last_event = event.id
    change.counts = event.counts
    if event.kind in (Kind.TAKE, Kind.ACK):
        _follow_transfer(batch, partition, event)


def _follow_transfer(batch: LedgerBatch, partition: int, event: Event) -> None:
    """Most transfers begin and end within one batch and leave no trace."""
    key = TransferKey(event.product_id, partition, event.peer, event.transfer)
    if event.kind is Kind.TAKE:
        batch.opened[key] = Opening(event.epoch, event.quantity, event.id)
    elif batch.opened.pop(key, None) is None:
        batch.ended.append(key)


def _add_units(change: ShardChange, event: Event) -> None:
    units = event.quantity
    sold = sum([sale.quantity for sale in event.sales])
    match event.kind:
        case Kind.RESTOCK | Kind.LOAD:
            change.available += units
            change.loaded += units
        case Kind.REMOVE | Kind.CLOSE:
            change.available -= units
            change.loaded -= units
        case Kind.TAKE:
            change.available -= units
            change.in_transit += units
        case Kind.PUT:
            change.available += units
            change.in_transit -= units
        case Kind.UNDO:
            change.available += units
            change.sold -= units
        case _:
            pass  # a deduction's units are its sales'; the other kinds move none
    change.available -= sold
    change.sold += sold
