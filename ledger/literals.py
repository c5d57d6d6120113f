"""Rows of a batch as SQL literals. Built as text: a third faster than the library's executemany."""

from msgpack import packb

from ledger.batch import (
    Effects,
    Hold,
    HoldKey,
    Letter,
    Move,
    Moved,
    Pair,
    ProductChange,
    Refusal,
    SecondEffect,
    ShardChange,
    ShardKey,
    TransferNote,
    TransferSide,
)
from ledger.outbox import REMARK_CHARS_MAX, OutboxKind
from ledger.products import JournalKind, JournalType
from ledger.values import binary, escaped, instant, text
from sharding.events import EventId
from sharding.partitions import Entry

FIELDS_BYTES_MAX = 1 << 20
REASON_CHARS_MAX = 500
TRANSFER_PATIENCE_S = 1
"""How long whoever began a transfer is given to end it."""
SIGN = {
    JournalKind.DEDUCT: -1,
    JournalKind.RESTOCK: 1,
    JournalKind.REMOVE: -1,
    JournalKind.LAYOUT: 1,
    JournalKind.RESERVE: -1,
    JournalKind.CONFIRM: -1,
    JournalKind.RELEASE: 1,
    JournalKind.REFUND: 1,
}


def journal_rows(effects: Effects) -> list[str]:
    """One row per request, in the columns of journal_insert.sql."""
    sign = SIGN[effects.kind]
    product = f"({effects.product_id},'"
    kind = f"','{effects.kind.value}',{JournalType[effects.kind.name].value},"
    event = (
        f",{effects.partition},{effects.event_id.generation},{effects.event_id.number},"
        f"{text(effects.remark[:REMARK_CHARS_MAX])},{text(effects.actor)},{instant(effects.at_ms)})"
    )
    return [
        f"{product}{escaped(request_id)}{kind}{order_id},{user_id},{sign * quantity},"
        f"{'NULL' if after is None else after}{event}"
        for request_id, quantity, user_id, order_id, after in effects.sales
    ]


def raw_row(partition: int, entry: Entry) -> bytes:
    """One row in the columns of raw_event_insert.sql."""
    generation, number = entry.id
    return b"(%d,%d,%d,%b)" % (partition, generation, number, binary(packb(entry.fields)))


def letter_row(letter: Letter) -> bytes:
    """One row in the columns of dead_letter_insert.sql."""
    generation, number = letter.entry.id
    packed = packb(letter.entry.fields)[:FIELDS_BYTES_MAX]
    return b"(%d,%d,%d,%d,%b,%b,%b,%d)" % (
        letter.partition,
        generation,
        number,
        letter.product_id,
        text(letter.request_id).encode(),
        text(letter.reason[:REASON_CHARS_MAX]).encode(),
        binary(packed),
        letter.shard_followed,
    )


def undo_row(second: SecondEffect) -> str:
    """One row in the columns of outbox_insert.sql, due at once."""
    generation, number = second.event_id
    return (
        f"('{OutboxKind.UNDO.value}',{second.product_id},{second.partition},{second.epoch},"
        f"{generation},{number},{text(second.request_id)},-1,0,{second.quantity},"
        "CURRENT_TIMESTAMP(3))"
    )


def buffer_row(product_id: int, partition: int, epoch: int, request_id: str, quantity: int) -> str:
    """One row in the columns of outbox_insert.sql, due at once."""
    return (
        f"('{OutboxKind.BUFFER.value}',{product_id},{partition},{epoch},0,0,{text(request_id)},-1,0,"
        f"{quantity},CURRENT_TIMESTAMP(3))"
    )


def mend_row(product_id: int, partition: int, epoch: int, opened: EventId) -> str:
    """One row in the columns of outbox_insert.sql, due at once; the event is the shard's restoration."""
    return (
        f"('{OutboxKind.MEND.value}',{product_id},{partition},{epoch},"
        f"{opened.generation},{opened.number},'',-1,0,0,CURRENT_TIMESTAMP(3))"
    )


def transfer_row(pair: Pair, given: Moved) -> bytes:
    """One row in the columns of transfer_open.sql, due after a moment."""
    product_id, donor, receiver = pair
    return (
        f"('{OutboxKind.TRANSFER.value}',{product_id},{donor},'{receiver}',{receiver},"
        f"{given.epoch},{given.units},"
        f"CURRENT_TIMESTAMP(3) + INTERVAL {TRANSFER_PATIENCE_S} SECOND)"
    ).encode()


def transfer_end_row(pair: Pair, given: Moved) -> bytes:
    """One SELECT of the derived table in transfer_end.sql."""
    product_id, donor, receiver = pair
    return (
        f"SELECT {product_id} AS product_id, {donor} AS partition_id,"
        f" _ascii'{receiver}' COLLATE ascii_bin AS request_id,"
        f" {given.epoch} AS epoch, {given.units} AS transfer"
    ).encode()


def hold_row(key: HoldKey, hold: Hold) -> bytes:
    """One row in the columns of hold_insert.sql."""
    return (
        f"({key.product_id},{key.partition},{text(key.request_id)},{hold.order_id},"
        f"{hold.user_id},{hold.quantity},{text(hold.decision)},{instant(hold.at_ms)})"
    ).encode()


def hold_end_row(key: HoldKey) -> bytes:
    """One SELECT of the derived table in hold_end.sql; the id as its column has it, for the index."""
    return (
        f"SELECT {key.product_id} AS product_id, {key.partition} AS partition_id,"
        f" _ascii{text(key.request_id)} COLLATE ascii_bin AS request_id"
    ).encode()


def decision_row(key: HoldKey, decision: str) -> bytes:
    """One SELECT of the derived table in hold_decision.sql."""
    return hold_end_row(key) + f", {text(decision)} AS decision".encode()


def transfer_note_row(note: TransferSide, last: TransferNote) -> bytes:
    """One row in the columns of transfer_note.sql."""
    partition, product_id, peer, is_out = note
    return b"(%d,%d,%d,%d,%d,%d,%d)" % (partition, product_id, peer, is_out, *last)


def refusal_row(refusal: Refusal) -> bytes:
    """One row in the columns of tombstone_keep.sql."""
    product_id, request_id, kind, quantity, user_id = refusal
    return f"({product_id},{text(request_id)},'{kind}',{quantity},{user_id})".encode()


def shard_reset_row(key: ShardKey, change: ShardChange) -> str:
    """One row in the columns of shard_reset.sql."""
    return (
        f"({key.product_id},{key.partition},{change.epoch},{change.layout_version},"
        f"{text(change.state)},{change.began})"
    )


def shard_change_row(key: ShardKey, change: ShardChange) -> str:
    """One SELECT of the derived table in shard_add.sql."""
    return (
        f"SELECT {key.product_id} AS product_id, {key.partition} AS partition_id,"
        f" {change.available} AS available, {change.held} AS held, {change.sold} AS sold,"
        f" {change.loaded} AS loaded, {change.in_transit} AS in_transit,"
        f" {change.released} AS released, {change.serves} AS serves,"
        f" {text(change.state)} AS state, {change.layout_version} AS layout_version,"
        f" {change.last_event.generation} AS generation,"
        f" {change.last_event.number} AS number"
    )


def product_change_row(product_id: int, change: ProductChange) -> str:
    """One SELECT of the derived table in product_add.sql."""
    return (
        f"SELECT {product_id} AS product_id, {change.total} AS total,"
        f" {change.available} AS available, {change.held} AS held, {change.sold} AS sold"
    )


def checkpoint_row(move: Move) -> str:
    """One row in the columns of checkpoint_move.sql."""
    generation, number = move.end.id
    return f"({move.partition},{generation},{number},{text(move.end.anchor)})"
