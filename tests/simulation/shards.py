"""What a simulated ledger knows shard by shard, by the real ledger's own merging of events."""

from dataclasses import dataclass, field

from ledger.batch import ShardKey, TransferNote, TransferSide
from ledger.merge import Chunk, Delivery, later_note, merge
from ledger.restoring import Sides
from sharding.events import Event, EventId, Kind
from sharding.partitions import Entry


@dataclass(slots=True)
class ShardRow:
    """One row of shard_stock, but for the counts, which every event tells."""

    epoch: int = 0
    layout: int = 0
    state: str = ""
    serves: int = 1
    began: int = 0
    released: int = 0
    available: int = 0
    held: int = 0
    sold: int = 0
    loaded: int = 0


@dataclass(slots=True)
class KnownShards:
    """Rows and entries of all partitions."""

    rows: dict[ShardKey, ShardRow] = field(default_factory=dict)
    transfers: dict[TransferSide, TransferNote] = field(default_factory=dict)
    entries: dict[int, list[Entry]] = field(default_factory=dict)
    users: dict[tuple[ShardKey, int], dict[int, int]] = field(default_factory=dict)
    """Units of users by shard and epoch."""

    def follow(self, partition: int, entry: Entry, event: Event) -> None:
        """Note an entry that was applied."""
        if event.kind is not Kind.MARK:
            self.entries.setdefault(partition, []).append(entry)
        batch = merge([Chunk(partition, EventId(0, 0), [Delivery(entry, event)])], taken=set())
        for key, change in batch.shards.items():
            row = self.rows.setdefault(key, ShardRow())
            if change.reset:
                row = self.rows[key] = ShardRow(epoch=change.epoch, began=change.began)
            row.layout = change.layout_version or row.layout
            row.state = change.state or row.state
            row.serves = row.serves if change.serves < 0 else change.serves
            row.released += change.released
            row.available, row.held, row.sold, row.loaded = change.counts
            self._count_users(key, row.epoch, event)
        for side, note in batch.transfers.items():
            self.transfers[side] = later_note(self.transfers.get(side, note), note)

    def sides(self, partition: int, *, of_peers: bool) -> Sides:
        """As the rows of shard_transfer are read."""
        found: Sides = {}
        for side, note in self.transfers.items():
            mine, other = side.partition, side.peer
            if of_peers:
                mine, other = other, mine
            if mine == partition:
                found.setdefault(side.product_id, {})[other, side.is_out] = note
        return found

    def _count_users(self, key: ShardKey, epoch: int, event: Event) -> None:
        users = self.users.setdefault((key, epoch), {})
        for taken in (*event.sales, *event.holds):
            users[taken.user_id] = users.get(taken.user_id, 0) + taken.quantity
        for end in event.ends:
            if not end.is_sold:
                users[end.user_id] -= end.quantity
