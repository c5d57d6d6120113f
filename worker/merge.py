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
    ProductChange,
    ShardChange,
    ShardKey,
)
from ledger.products import JournalKind
from sharding.events import Event, EventId, Kind, MalformedEventError, Sale, anchor, decode
from sharding.partitions import Checkpoint, Entry

_JOURNAL_KIND = {
    Kind.DEDUCT: JournalKind.DEDUCT,
    Kind.PUT: JournalKind.DEDUCT,
    Kind.RESTOCK: JournalKind.RESTOCK,
    Kind.REMOVE: JournalKind.REMOVE,
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

    `taken` are the effects that the journal has already: a second one is set aside, and so is a second
    one within the batch. None: nobody has looked, and the journal's unique key will tell.
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
    effects = _effects(partition, event)
    if effects is None:
        return
    if seen is not None:
        effects = _first_ones(batch, entry, effects, seen)
    if not effects.sales:
        return
    batch.effects.append(effects)
    units = sum([sale.quantity for sale in effects.sales])
    change = batch.products.setdefault(event.product_id, ProductChange())
    if effects.kind is JournalKind.DEDUCT:
        change.available -= units
        change.sold += units
    else:
        signed = units if effects.kind is JournalKind.RESTOCK else -units
        change.total += signed
        change.available += signed


def _effects(partition: int, event: Event) -> Effects | None:
    kind = _JOURNAL_KIND.get(event.kind)
    if kind is None:
        return None
    sales: Sequence[Sale] = event.sales
    if kind is not JournalKind.DEDUCT:
        sales = (Sale(event.request_id, event.quantity, user_id=0, order_id=0),)
    return Effects(partition, event.id, event.product_id, kind, event.at_ms, event.reason, sales)


def _first_ones(
    batch: LedgerBatch, entry: Entry, effects: Effects, seen: set[EffectKey]
) -> Effects:
    """Without the requests that had their effect before; those become dead letters."""
    sales = []
    for sale, key in zip(effects.sales, effects.keys(), strict=True):
        if key in seen:
            reason = f"duplicate_effect {key.kind} of {sale.quantity} units"
            letter = Letter(effects.partition, entry, key.product_id, key.request_id, reason)
            batch.letters.append(letter)
        else:
            seen.add(key)
            sales.append(sale)
    return effects._replace(sales=sales)


def _add_to_shard(batch: LedgerBatch, partition: int, event: Event) -> None:
    key = ShardKey(event.product_id, partition)
    if event.kind is Kind.LOAD:
        loaded = ShardChange(reset=True, epoch=event.epoch, layout_version=event.layout)
        batch.shards[key] = loaded
    change = batch.shards.setdefault(key, ShardChange())
    _add_units(change, event)
    change.state = event.state or change.state
    change.last_event = event.id
    assert event.counts is not None  # every kind that concerns a shard has them
    change.counts = event.counts


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
        case _:
            pass  # a deduction's units are its sales'; opened, state and ack move none
    change.available -= sold
    change.sold += sold
