"""The ledger's side of a restoration in a simulation: what PartitionStates reads and settles."""

from collections.abc import AsyncIterator, Collection, Mapping, Sequence

from ledger.batch import ShardKey
from ledger.errors import CheckpointMovedError
from ledger.restoring import Facts, KnownShard, NextLayout, Note, PartitionState, state_of
from sharding.events import decode
from sharding.memories import Memory, memories
from sharding.outcomes import State
from sharding.partitions import Entry
from sharding.restoring import checkpoint_at
from tests.simulation.ledger import Ledger, Row
from tests.simulation.world import PARTITIONS


class SimulatedStates:
    """As ledger/restoring.py has them, of the model."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._known = ledger.known

    async def freeze_missed(self, partition: int) -> Sequence[int]:
        """The model sets nothing aside."""
        return []

    async def read(self, partition: int) -> PartitionState:
        rows = [self._shard(key) for key in sorted(self._known.rows) if key.partition == partition]
        state = state_of(rows, self._facts(partition), partition, PARTITIONS)
        state.checkpoint = self._ledger.applied[partition]
        return state

    def _shard(self, key: ShardKey) -> KnownShard:
        row, product = self._known.rows[key], self._ledger.rows[key.product_id]
        plan = product.plan
        assert plan
        return KnownShard(
            product_id=key.product_id,
            epoch=row.epoch,
            layout_version=row.layout,
            state=row.state,
            serves=row.serves,
            began=row.began,
            available=row.available,
            held=row.held,
            sold=row.sold,
            loaded=row.loaded,
            released=row.released,
            status=product.status,
            product_epoch=product.epoch,
            product_layout=product.version,
            product_shards=product.shards,
            former=" ".join(map(str, sorted(product.former))),
            max_per_user=product.max_per_user,
            buffer=plan.buffer,
            sold_before=product.sold if product.status is State.CLOSED else plan.sold_before,
            released_in_all=product.released,
            freeze_version=product.freeze.version,
            frozen=int(product.freeze.frozen),
        )

    def _facts(self, partition: int) -> Facts:
        facts = Facts(self._ledger.applied[partition])
        facts.own = self._known.sides(partition, of_peers=False)
        facts.peers = self._known.sides(partition, of_peers=True)
        for (product_id, _), row in self._known.rows.items():
            if row.epoch == self._ledger.rows[product_id].epoch:
                facts.sold[product_id] = facts.sold.get(product_id, 0) + row.sold
                newest = max(facts.newest_layout.get(product_id, 0), row.layout)
                facts.newest_layout[product_id] = newest
        for product in self._ledger.rows.values():
            _note_changes(product, facts)
        return facts

    async def is_applied(self, partition: int, entry: Entry) -> bool:
        return entry in self._known.entries.get(partition, [])

    async def memories(self, partition: int) -> AsyncIterator[Sequence[Memory]]:
        for entry in list(self._known.entries.get(partition, [])):
            fields = dict(zip(entry.fields[::2], entry.fields[1::2], strict=True))
            yield list(memories(decode(entry.id, fields), fields, partition))

    async def holds(self, partition: int, product_id: int) -> AsyncIterator[Sequence[Memory]]:
        """The entries, which are all kept, tell of them."""
        for nothing in ():
            yield nothing

    async def users(self, partition: int, product_id: int, *, began: int) -> Mapping[int, int]:
        key = ShardKey(product_id, partition)
        return self._known.users.get((key, self._known.rows[key].epoch), {})

    async def settle(
        self, partition: int, *, state: PartitionState, opened: Entry, notes: Collection[Note]
    ) -> None:
        checkpoint = checkpoint_at(opened)
        if self._ledger.applied[partition] == checkpoint:
            return
        if self._ledger.applied[partition] != state.checkpoint:
            raise CheckpointMovedError([partition])
        self._ledger.applied[partition] = checkpoint
        self._known.entries.setdefault(partition, []).append(opened)
        assert not state.corrections, "nothing was lost"


def _note_changes(product: Row, facts: Facts) -> None:
    for change in product.changes:
        if change.version in (product.version, product.version - 1):
            facts.resharded.add(product.product_id)
        elif change.version > product.version:
            state = change.state.replace(" ", "_")
            facts.changes[product.product_id] = NextLayout(change.version, change.shards, state)
