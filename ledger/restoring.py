"""What the ledger knows of one partition: enough to give it to a node that has lost it."""

from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from msgpack import unpackb

from ledger import literals
from ledger.batch import Move, TransferNote, TransferSide
from ledger.database import Database, Row, Transaction
from ledger.errors import CheckpointMovedError
from ledger.freezes import Freezes, Verdict
from ledger.layouts import ChangeState
from ledger.outbox import RETURNED
from ledger.products import JournalKind, JournalType
from ledger.statements import placeholders, statement, with_rows
from ledger.values import in_pieces, text
from sharding.events import EventId, MalformedEventError, decode
from sharding.memories import Memory, held_line, memories, undecided_order
from sharding.outcomes import State
from sharding.partitions import NOTHING_APPLIED, Checkpoint, Entry
from sharding.placement import Layout, base_partition
from sharding.plans import Freeze
from sharding.restoring import ShardState, Transfers, checkpoint_at

ENTRIES_AT_ONCE = 200
"""Of up to a megabyte each, as in the streams; mostly a few kilobytes."""
HOLDS_AT_ONCE = 2_000
PRODUCTS_AT_ONCE = 500
STATEMENT_BYTES_MAX = 4 << 20


class Correction(NamedTuple):
    """Transfers that one side has lost and the other one knows of."""

    side: TransferSide
    """The one that has lost them."""
    note: TransferNote
    """What it is to know."""
    units: int
    """That come in here by that; below zero: that leave."""


@dataclass(slots=True)
class PartitionState:
    """A partition's shards, all of one moment: that of the checkpoint."""

    checkpoint: Checkpoint = NOTHING_APPLIED
    shards: list[ShardState] = field(default_factory=list)
    began: dict[int, int] = field(default_factory=dict)
    """Number of the event by which a product's shard came to its epoch."""
    bases: list[int] = field(default_factory=list)
    """Products whose base this is."""
    corrections: list[Correction] = field(default_factory=list)
    """What the shards' counts have beyond the ledger's."""
    unloaded: list[int] = field(default_factory=list)
    """Products on sale of which the load, or the opening, of the shard here was lost."""
    untold: list[int] = field(default_factory=list)
    """Products whose shard here has not heard of their layout."""
    epochs: dict[int, int] = field(default_factory=dict)
    """The current ones of those two, and of products of whose buffer units have left that did not arrive
    here."""

    def want(self, product_id: int, epoch: int, kind: list[int]) -> None:
        """Note that a product's shard here lacks something of a kind."""
        kind.append(product_id)
        self.epochs[product_id] = epoch

    @property
    def ids(self) -> list[int]:
        """The products that the ledger has a shard of here."""
        return [shard.product_id for shard in self.shards]


class Note(NamedTuple):
    """What the journal is to say of a product whose shard was restored."""

    product_id: int
    remark: str


class PartitionStates:
    """What one MySQL server knows of partitions; `freeze_missed` and `settle` alone write."""

    def __init__(self, database: Database, *, partitions: int) -> None:
        self._database = database
        self._partitions = partitions

    async def freeze_missed(self, partition: int) -> Sequence[int]:
        """Stop the sale of products of which an event is set aside that their shard here had followed:
        the ledger's counts are those of before it, so what it sold is about to be on sale again.

        Once for each letter; who resumes a product knows of it. Returns the products that were stopped.
        """

        async def run(transaction: Transaction) -> list[Row]:
            return await transaction.rows(statement("dead_letter_missed_at"), (partition,))

        freezes, stopped = Freezes(self._database), []
        for product_id, letter in await self._database.transaction(run):
            verdict, _ = await freezes.trip(
                product_id,
                evidence=f"p{partition:02d} restored beside letter {letter}",
                reason=f"partition {partition} was restored without the event of dead letter"
                f" {self._database.place.number(letter)}: units may be on sale again",
            )
            if verdict is Verdict.TRIPPED:
                stopped.append(product_id)
        return stopped

    async def read(self, partition: int) -> PartitionState:
        """The shards of a partition; nobody applies an event of it while they are read."""

        async def run(transaction: Transaction) -> PartitionState:
            await transaction.rows(placeholders("checkpoint_lock", 1), (partition,))
            rows = await transaction.rows(statement("restore_shards"), (partition,))
            found = [KnownShard(*row) for row in rows]
            facts = await _facts(transaction, partition, found)
            state = state_of(found, facts, partition, self._partitions)
            state.checkpoint = facts.checkpoint
            self._add_unmade(state, partition, facts.unmade)
            return state

        return await self._database.transaction(run)

    async def is_applied(self, partition: int, entry: Entry) -> bool:
        """Whether an entry is one that was applied, of those that are kept."""

        async def run(transaction: Transaction) -> bool:
            row = await transaction.row(statement("raw_event_get"), (partition, *entry.id))
            return row is not None and tuple(unpackb(row[0])) == entry.fields

        return await self._database.transaction(run)

    async def is_resharded(self, product_id: int) -> bool:
        """Whether the layout that a product has is another one than it was loaded with."""

        async def run(transaction: Transaction) -> bool:
            row = await transaction.row(placeholders("restore_resharded", 1), (product_id,))
            return row is not None

        return await self._database.transaction(run)

    async def memories(self, partition: int) -> AsyncIterator[Sequence[Memory]]:
        """What happened to requests and orders, in its order and in pieces, as long as it is kept."""
        after = EventId(0, 0)
        while entries := await self._entries(partition, after):
            yield [memory for entry in entries for memory in _memories(entry, partition)]
            after = entries[-1].id

    async def holds(self, partition: int, product_id: int) -> AsyncIterator[Sequence[Memory]]:
        """The lines of a product that are held, and the orders that are decided about here."""
        after = 0
        while rows := await self._hold_rows(partition, product_id, after):
            yield [memory for row in rows for memory in _of_hold(row, product_id, partition)]
            after = rows[-1][0]

    async def users(self, partition: int, product_id: int, *, began: int) -> Mapping[int, int]:
        """Units that users hold and have bought here since an event."""

        async def run(transaction: Transaction) -> Mapping[int, int]:
            values = (product_id, partition, began)
            rows = await transaction.rows(statement("restore_users"), values)
            return {user: int(units) for user, units in rows}

        return await self._database.transaction(run)

    async def settle(
        self,
        partition: int,
        *,
        state: PartitionState,
        opened: Entry,
        notes: Collection[Note],
    ) -> None:
        """Take the partition's next opening for applied, so that nothing from before it is any more.

        CheckpointMovedError: something was, since the state was read.
        """

        async def run(transaction: Transaction) -> None:
            start = state.checkpoint
            if not await _is_settled(transaction, partition, start, opened):
                await _settle(transaction, partition, start, opened)
                await _note(transaction, partition, opened.id, notes)
                await _correct(transaction, state.corrections)
                await transaction.execute(statement("undo_again"), (partition, RETURNED))
                await _want_mends(transaction, partition, opened.id, state.epochs)
                for piece in _pieces(sorted(state.bases)):
                    await transaction.execute(
                        placeholders("layout_change_again", len(piece)), piece
                    )

        await self._database.transaction(run)

    def _add_unmade(
        self, state: PartitionState, partition: int, unmade: Sequence["UnmadeShard"]
    ) -> None:
        """Products that have a shard in the partition by their layout, and none by the ledger.

        One that a change of the layout made began without units: it is only told, else they sell twice.
        """
        known = set(state.ids)
        for product_id, epoch, shards, is_resharded in unmade:
            layout = Layout(0, shards)
            here = layout.all_partitions(product_id=product_id, partitions=self._partitions)
            if product_id not in known and partition in here:
                state.want(product_id, epoch, state.untold if is_resharded else state.unloaded)

    async def _entries(self, partition: int, after: EventId) -> list[Entry]:
        async def run(transaction: Transaction) -> list[Entry]:
            values = (partition, after.generation, *after, ENTRIES_AT_ONCE)
            rows = await transaction.rows(statement("raw_event_page"), values)
            return [Entry(EventId(g, n), tuple(unpackb(fields))) for g, n, fields in rows]

        return await self._database.transaction(run)

    async def _hold_rows(self, partition: int, product_id: int, after: int) -> list[Row]:
        async def run(transaction: Transaction) -> list[Row]:
            values = (after, product_id, partition, HOLDS_AT_ONCE)
            return await transaction.rows(statement("restore_holds"), values)

        return await self._database.transaction(run)


class KnownShard(NamedTuple):
    """A shard and its product as their rows have them; the columns of restore_shards.sql."""

    product_id: int
    epoch: int
    layout_version: int
    state: str
    serves: int
    began: int
    available: int
    held: int
    sold: int
    loaded: int
    released: int
    status: str
    product_epoch: int
    product_layout: int
    product_shards: int
    former: str
    max_per_user: int
    buffer: int
    sold_before: int
    released_in_all: int
    freeze_version: int
    frozen: int

    @property
    def is_on_sale(self) -> bool:
        """Whether it is, is about to be, or is being closed, when every shard gives its units back."""
        return self.status != State.CLOSED


Sides = dict[int, dict[tuple[int, bool], TransferNote]]
"""By product, and by the other shard's partition and whether the side is the one that gives."""


class NextLayout(NamedTuple):
    """A change of a product's shard count."""

    version: int
    shards: int
    state: str


@dataclass(slots=True)
class Facts:
    """What is known beside a partition's shards; by product."""

    checkpoint: Checkpoint = NOTHING_APPLIED
    own: Sides = field(default_factory=dict)
    peers: Sides = field(default_factory=dict)
    """What the other shards know of transfers from here and to here; the sides are theirs."""
    repairs: dict[int, int] = field(default_factory=dict)
    sold: dict[int, int] = field(default_factory=dict)
    """Units of the shards' epoch."""
    newest_layout: dict[int, int] = field(default_factory=dict)
    """The latest version that one of them has heard of."""
    changes: dict[int, NextLayout] = field(default_factory=dict)
    """The last change of a shard count that is not in force as far as is known."""
    resharded: set[int] = field(default_factory=set)
    """Products whose layout is not the one that they were loaded with."""
    unmade: Sequence["UnmadeShard"] = ()


class UnmadeShard(NamedTuple):
    """A product on sale of which the ledger has no shard in the partition; restore_unmade.sql."""

    product_id: int
    epoch: int
    shards: int
    is_resharded: int


async def _facts(transaction: Transaction, partition: int, rows: Sequence[KnownShard]) -> Facts:
    facts = Facts(await _checkpoint(transaction, partition))
    facts.own = await _sides(transaction, "restore_transfers", partition)
    facts.peers = await _sides(transaction, "restore_peers", partition)
    for product_id, last in await transaction.rows(statement("restore_repairs"), (partition,)):
        facts.repairs[product_id] = int(last)
    unmade = await transaction.rows(statement("restore_unmade"), (partition,))
    facts.unmade = [UnmadeShard(*row) for row in unmade]
    epochs = {row.product_id: row.product_epoch for row in rows}
    for piece in _pieces(sorted(epochs)):
        sql = placeholders("restore_siblings", len(piece))
        for product_id, epoch, sold, layout in await transaction.rows(sql, piece):
            if epoch == epochs[product_id]:
                newest = facts.newest_layout
                newest[product_id] = max(newest.get(product_id, 0), layout)
                facts.sold[product_id] = facts.sold.get(product_id, 0) + sold
        sql = placeholders("restore_resharded", len(piece))
        facts.resharded |= {found for (found,) in await transaction.rows(sql, piece)}
        sql = placeholders("restore_changes", len(piece))
        for product_id, *change in await transaction.rows(sql, piece):
            facts.changes[product_id] = NextLayout(*change)
    return facts


async def _sides(transaction: Transaction, name: str, partition: int) -> Sides:
    found: Sides = {}
    for product_id, other, is_out, *note in await transaction.rows(statement(name), (partition,)):
        found.setdefault(product_id, {})[other, bool(is_out)] = TransferNote(*note)
    return found


async def _checkpoint(transaction: Transaction, partition: int) -> Checkpoint:
    row = await transaction.row(placeholders("checkpoint_some", 1), (partition,))
    if row is None:
        return NOTHING_APPLIED
    _, generation, number, known_by = row
    return Checkpoint(EventId(generation, number), known_by)


def state_of(
    rows: Sequence[KnownShard], facts: Facts, partition: int, partitions: int
) -> PartitionState:
    """A partition's shards as they are to be restored. Pure; without the checkpoint."""
    state = PartitionState()
    for row in rows:
        product_id = row.product_id
        corrections = list(_corrections(row, partition, facts))
        state.corrections += corrections
        state.shards.append(_shard(row, facts, corrections))
        state.began[product_id] = row.began
        is_base = base_partition(product_id, partitions) == partition
        if is_base:
            state.bases.append(product_id)
        if not row.is_on_sale:
            continue
        here = Layout(0, row.product_shards).all_partitions(
            product_id=product_id, partitions=partitions
        )
        is_of_epoch = row.epoch == row.product_epoch
        if product_id not in facts.resharded:
            if partition in here and (not is_of_epoch or row.state == State.LOADING):
                state.want(product_id, row.product_epoch, state.unloaded)
        elif partition in here and not (
            is_of_epoch and row.serves and row.layout_version == row.product_layout
        ):
            state.want(product_id, row.product_epoch, state.untold)
        if is_base and row.released_in_all > row.released:
            state.epochs[product_id] = row.product_epoch
    return state


def _corrections(row: KnownShard, partition: int, facts: Facts) -> Iterator[Correction]:
    """What the other side of a transfer knows, and this one has forgotten.

    Units that left for it and are not here any more were sold twice: they are owed.
    """
    if row.state not in (State.OPEN, State.CLOSING):
        return  # its units do not move
    own, available = facts.own.get(row.product_id, {}), row.available
    peers = facts.peers.get(row.product_id, {})
    for (peer, peer_gives), theirs in sorted(peers.items(), key=_arrivals_first):
        ours = _of_epoch(own.get((peer, not peer_gives)), row)
        units = _of_epoch(theirs, row).moved - ours.moved
        if units <= 0:
            continue
        side = TransferSide(partition, row.product_id, peer, is_out=not peer_gives)
        if peer_gives:
            note = TransferNote(row.epoch, theirs.moved)
        else:
            given = min(units, available)
            note = TransferNote(row.epoch, ours.moved + given, theirs.moved)
            units = -given
        available += units
        yield Correction(side, note, units)


def _of_epoch(note: TransferNote | None, row: KnownShard) -> TransferNote:
    return note if note is not None and note.epoch == row.epoch else TransferNote(row.epoch)


def _arrivals_first(side: tuple[tuple[int, bool], TransferNote]) -> bool:
    """What a shard gave, it may have been given before."""
    (_, peer_gives), _ = side
    return not peer_gives


def _transfers(
    row: KnownShard, facts: Facts, corrections: Sequence[Correction]
) -> dict[int, Transfers]:
    known = {
        **facts.own.get(row.product_id, {}),
        **{(each.side.peer, each.side.is_out): each.note for each in corrections},
    }
    found: dict[int, Transfers] = {}
    for (peer, is_out), note in known.items():
        before, now = found.get(peer, Transfers()), _of_epoch(note, row)
        found[peer] = (
            before._replace(given=now.moved, arrived=now.arrived)
            if is_out
            else before._replace(got=now.moved)
        )
    return found


def _shard(row: KnownShard, facts: Facts, corrections: Sequence[Correction]) -> ShardState:
    return ShardState(
        product_id=row.product_id,
        epoch=row.epoch,
        layout_version=row.layout_version,
        state=row.state,
        serves=bool(row.serves),
        available=row.available + sum(each.units for each in corrections),
        held=row.held,
        sold=row.sold,
        loaded=row.loaded,
        released=row.released,
        max_per_user=row.max_per_user,
        repaired=facts.repairs.get(row.product_id, 0),
        freeze=Freeze(row.freeze_version, frozen=bool(row.frozen)),
        transfers=_transfers(row, facts, corrections),
        listing=_listing(row, facts),
    )


def _listing(row: KnownShard, facts: Facts) -> dict[str, int | str]:
    """As a load writes it."""
    # When it was closed, the product's row took over what its shards had sold.
    is_over = row.status == State.CLOSED
    sold = facts.sold.get(row.product_id, 0) if is_over else 0
    return {
        "layout": row.product_layout,
        "shards": row.product_shards,
        "epoch": row.product_epoch,
        "former": row.former,
        "earlier": _earlier(row, facts),
        "buffer": row.buffer,
        "sold_before": row.sold_before - sold,
        "max_per_user": row.max_per_user,
        **_coming(row, facts),
    }


def _coming(row: KnownShard, facts: Facts) -> dict[str, int | str]:
    """A change that is under way may have come to shards; one that was given up before has not."""
    change = facts.changes.get(row.product_id)
    if change is None:
        return {"next_layout": 0}
    is_begun = facts.newest_layout.get(row.product_id, 0) >= change.version
    if change.state == ChangeState.ROLLED_BACK and not is_begun:
        return {"next_layout": 0, "given_up": change.version}
    return {"next_layout": change.version, "next_shards": change.shards}


def _earlier(row: KnownShard, facts: Facts) -> str:
    """All former shard counts that may be of this epoch: other partitions' events that tell may not
    be applied yet. A shard of another epoch counts for nothing wherever it is read."""
    return row.former if row.product_id in facts.resharded else ""


def _memories(entry: Entry, partition: int) -> list[Memory]:
    fields = dict(zip(entry.fields[::2], entry.fields[1::2], strict=True))
    try:
        return list(memories(decode(entry.id, fields), fields, partition))
    except MalformedEventError:  # an earlier version understood it
        return []


def _of_hold(row: Row, product_id: int, partition: int) -> list[Memory]:
    _, request_id, order_id, user_id, quantity, decision, at_ms = row
    line = held_line(product_id, request_id, quantity, user_id, partition)
    return [line, undecided_order(order_id, decision, at_ms)] if decision else [line]


async def _is_settled(
    transaction: Transaction, partition: int, start: Checkpoint, opened: Entry
) -> bool:
    """Hold the checkpoint; whether it was moved to the opening before, as after a lost reply."""
    rows = await transaction.rows(placeholders("checkpoint_lock", 1), (partition,))
    found = {EventId(generation, number) for _, generation, number in rows}
    if found == {opened.id}:
        return True
    if found != {start.id}:
        raise CheckpointMovedError([partition])
    return False


async def _settle(
    transaction: Transaction, partition: int, start: Checkpoint, opened: Entry
) -> None:
    moved = literals.checkpoint_row(Move(partition, start.id, checkpoint_at(opened)))
    await transaction.bulk(with_rows("checkpoint_move", [moved.encode()]))
    await transaction.bulk(with_rows("raw_event_insert", [literals.raw_row(partition, opened)]))


async def _correct(transaction: Transaction, corrections: Sequence[Correction]) -> None:
    for each in corrections:
        values = (each.units, each.units, each.side.product_id, each.side.partition)
        await transaction.execute(statement("shard_correct"), values)
    if corrections:
        rows = [literals.transfer_note_row(each.side, each.note) for each in corrections]
        await transaction.bulk(with_rows("transfer_note", rows))


async def _note(
    transaction: Transaction, partition: int, opened: EventId, notes: Collection[Note]
) -> None:
    rows = (_note_row(partition, opened, note).encode() for note in notes)
    for piece in in_pieces(rows, STATEMENT_BYTES_MAX):
        await transaction.bulk(with_rows("journal_insert", piece))


async def _want_mends(
    transaction: Transaction, partition: int, opened: EventId, epochs: Mapping[int, int]
) -> None:
    rows = (
        literals.mend_row(product_id, partition, epoch, opened).encode()
        for product_id, epoch in sorted(epochs.items())
    )
    for piece in in_pieces(rows, STATEMENT_BYTES_MAX):
        await transaction.bulk(with_rows("outbox_insert", piece))


def _note_row(partition: int, opened: EventId, note: Note) -> str:
    """In the columns of journal_insert.sql; it moves no units."""
    kind = f"'{JournalKind.RESTORE.value}',{JournalType.RESTORE.value}"
    request_id = text(f"restore p{partition:02d} {opened.generation}")
    return (
        f"({note.product_id},{request_id},{kind},0,0,0,NULL,"
        f"{partition},{opened.generation},{opened.number},{text(note.remark)},'',"
        "CURRENT_TIMESTAMP(3))"
    )


def _pieces(product_ids: Sequence[int]) -> list[Sequence[int]]:
    return [
        product_ids[start : start + PRODUCTS_AT_ONCE]
        for start in range(0, len(product_ids), PRODUCTS_AT_ONCE)
    ]
