"""Changing a product's number of shards while it sells.

    prepare  the base notes which layout is on its way
    join     shards that are new begin without units and serve nobody yet
    fence    every shard of the old layout serves nobody any more; from here on nothing is accepted
    commit   the base decides: the new layout, or back to the old one
    tell     every shard of the layout decided on serves it
    spread   units move to where the requests go

The base's decision is what counts: before it a change can be undone, after it only finished. So each
step may be repeated, by several processes at once, and a change that broke off is taken up by whoever
calls next. A shard accepts requests of one layout only, and only after the base has decided for it, so
no two shards ever accept the same request under two layouts. Going back uses a version of its own,
because some shards may have been fenced for the one that was given up. A shard that was out of reach
then and still serves the old layout does no harm: it has the same number of shards, so every id has the
same home.
"""

import asyncio
from collections.abc import Iterable, Sequence

from msgpack import packb

from sharding import keys
from sharding.balancing import Balancing
from sharding.catalogue import Catalogue
from sharding.cluster import Cluster, LaneKind
from sharding.directory import Directory, Listing
from sharding.errors import LayoutPassedError, RetiredAwayError, StockUnavailableError
from sharding.loading import together
from sharding.outcomes import Reason
from sharding.placement import Layout, base_partition, is_shard_count, ledger_of
from sharding.plans import NEVER_FROZEN, Freeze
from sharding.scripts import script
from sharding.shards import Shards

_PREPARE = script("prepare")
_COMMIT = script("commit")
_INFORM = script("inform")


class Layouts:
    """Drives changes of products' layouts."""

    def __init__(
        self, cluster: Cluster, directory: Directory, catalogue: Catalogue, balancing: Balancing
    ) -> None:
        self._cluster = cluster
        self._directory = directory
        self._catalogue = catalogue
        self._balancing = balancing

    async def change(self, product_id: int, *, version: int, shards: int, cause: str) -> bool:
        """Bring a change to its end. True: it is in force everywhere; False: it was not begun because a
        shard could not be reached, or it was rolled back under `version` + 1.

        LayoutPassedError: the product has gone on. StockUnavailableError: call again; before the
        decision nothing has changed, or everything will be undone. RetiredAwayError: it is in force.
        """
        assert is_shard_count(shards, self._cluster.settings.partitions)
        listing = await self._listing(product_id)
        if listing.layout.version < version <= listing.given_up:
            return False
        if listing.layout.version < version:
            wanted = Layout(version, shards)
            change = _Change(self._cluster, product_id, listing, wanted, cause)
            if not await change.decide():
                return False
            listing = await self._listing(product_id)
        if listing.layout.version < version:
            raise _was_set_back(product_id)
        if listing.layout.version > version + 1:
            raise LayoutPassedError(f"product {product_id} has layout {listing.layout.version}")
        # What was read may be on no replica yet, and the shards must not know more than the base.
        await _Base(self._cluster, product_id, listing.epoch).confirm(listing)
        told = _Told(self._cluster, product_id, listing)
        await told.in_force()
        self._catalogue.forget(product_id)
        is_in_force = listing.layout.version == version
        if is_in_force:  # who has left may be away, and is to keep nobody from selling
            await self._balancing.share_out(product_id)
        away = await told.retire()
        if is_in_force:
            await self._balancing.spread(product_id)
        if away and is_in_force:
            raise RetiredAwayError(away.reason, away.detail)
        if away:
            raise away
        return is_in_force

    async def _listing(self, product_id: int) -> Listing:
        listing = await self._directory.at_base(product_id)
        if listing is None:
            raise LayoutPassedError(f"product {product_id} was never loaded")
        return listing


class _Change:
    """One change before it is decided."""

    def __init__(
        self, cluster: Cluster, product_id: int, listing: Listing, wanted: Layout, cause: str
    ) -> None:
        self._base = _Base(cluster, product_id, listing.epoch)
        self._old = listing
        self._wanted = wanted
        self._cause = cause
        self._present = Shards(cluster, product_id, listing.layout)
        self._coming = Shards(cluster, product_id, wanted)

    async def decide(self) -> bool:
        """Have the base decide for the new layout, or, once it was prepared, for the old one. False: a
        shard cannot be reached, and nothing was begun.

        Before the base has prepared the change no shard hears of it, so whatever a shard was told is
        listed, and undone, by whoever takes the change up.
        """
        if self._old.next_version == 0 and not await self._reaches_all():
            await self._base.give_up(self._wanted)
            return False
        if self._old.next_version not in (0, self._wanted.version):
            await self._take_back(self._old.next_version, self._old.next_shards)
            raise StockUnavailableError(Reason.LAYOUT_CHANGING, "an earlier change was taken back")
        await self._base.prepare(self._wanted)
        try:
            await self._fence(set(self._coming.partitions) - set(self._present.partitions))
            await self._fence(self._present.partitions)
        except (StockUnavailableError, LayoutPassedError):
            await self._take_back(self._wanted.version, self._wanted.shards)
            raise
        await self._commit(self._wanted, prepared=self._wanted, reason=self._cause)
        return True

    async def _reaches_all(self) -> bool:
        try:
            present = set(self._present.partitions)
            await together(
                self._coming.reach(each, has_shard=each in present) for each in self._everywhere()
            )
        except StockUnavailableError:
            return False
        return True

    def _everywhere(self) -> set[int]:
        return {*self._present.partitions, *self._coming.partitions}

    async def _take_back(self, version: int, shards: int) -> None:
        old = Layout(version + 1, self._old.layout.shards)
        await self._commit(old, prepared=Layout(version, shards), reason="rolled back")

    async def _fence(self, partitions: Iterable[int]) -> None:
        await together(self._fence_one(partition) for partition in partitions)

    async def _fence_one(self, partition: int) -> None:
        word = await self._coming.tell(
            partition, epoch=self._old.epoch, version=self._wanted.version, serves=False
        )
        if word != "done":
            raise LayoutPassedError(f"p{partition:02d} answers {word} to {self._wanted}")

    async def _commit(self, layout: Layout, *, prepared: Layout, reason: str) -> None:
        old = self._old
        counts = {old.layout.shards, prepared.shards}
        await self._base.commit(
            prepared=prepared.version,
            layout=layout,
            earlier=sorted({*old.earlier, *counts} - {layout.shards}),
            former=sorted({*old.former, *counts} - {layout.shards}),
            reason=f"{old.layout.shards} -> {prepared.shards} shards, {reason}",
        )


class _Base:
    """The partition that decides about a product's layout."""

    def __init__(self, cluster: Cluster, product_id: int, epoch: int) -> None:
        self._cluster = cluster
        self._product_id = product_id
        self._epoch = str(epoch)
        self._partition = base_partition(product_id, cluster.settings.partitions)
        tag = cluster.tags[self._partition]
        self._keys = (keys.head(tag), keys.product_info(tag, product_id))
        self._events = keys.events(tag, ledger_of(product_id, cluster.ledgers))

    async def prepare(self, layout: Layout) -> None:
        """Note that a layout is on its way. LayoutPassedError if that cannot be."""
        reply = await self._cluster.run(
            _PREPARE,
            self._partition,
            self._keys,
            (self._epoch, str(layout.version), str(layout.shards)),
            lane=LaneKind.MOVE,
        )
        if reply[0] != b"done":
            raise LayoutPassedError(f"product {self._product_id}: {reply[0]!r} to {layout}")

    async def give_up(self, layout: Layout) -> None:
        """Note that a layout will never be. StockUnavailableError if somebody was faster: look again."""
        reply = await self._cluster.run(
            _PREPARE,
            self._partition,
            self._keys,
            (self._epoch, str(layout.version), "0"),
            lane=LaneKind.MOVE,
        )
        if reply[0] != b"done":
            raise StockUnavailableError(Reason.LAYOUT_CHANGING, f"{layout} was begun by another")

    async def confirm(self, listing: Listing) -> None:
        """Have a replica know what was decided."""
        await self.commit(
            prepared=listing.layout.version,
            layout=listing.layout,
            earlier=listing.earlier,
            former=listing.former,
            reason="",
        )

    async def commit(
        self,
        *,
        prepared: int,
        layout: Layout,
        earlier: Sequence[int],
        former: Sequence[int],
        reason: str,
    ) -> None:
        """Decide for a layout, unless it was decided already: then that stands.

        StockUnavailableError if the base decided otherwise, or has forgotten what it had prepared or
        decided, because its node lost that: look again.
        """
        reply = await self._cluster.run(
            _COMMIT,
            self._partition,
            (*self._keys, self._events),
            (
                str(self._product_id),
                self._epoch,
                str(prepared),
                str(layout.version),
                str(layout.shards),
                " ".join(map(str, earlier)),
                " ".join(map(str, former)),
                reason,
            ),
            lane=LaneKind.MOVE,
        )
        if reply[0] != b"done":
            raise _was_set_back(self._product_id)


def _was_set_back(product_id: int) -> StockUnavailableError:
    return StockUnavailableError(
        Reason.LAYOUT_CHANGING, f"product {product_id}: its base knows of another decision"
    )


class _Told:
    """A layout that was decided on, on its way to the shards and to the copies of the listing."""

    def __init__(self, cluster: Cluster, product_id: int, listing: Listing) -> None:
        self._cluster = cluster
        self._product_id = product_id
        self._listing = listing
        self._shards = Shards(cluster, product_id, listing.layout, earlier=listing.earlier)

    async def in_force(self) -> None:
        """StockUnavailableError if a shard of the layout could not be told."""
        freeze = await self._latest_freeze()
        await together(self._tell(partition, freeze) for partition in self._shards.partitions)
        await together(self._inform(partition) for partition in self._shards.partitions[1:])

    async def retire(self) -> StockUnavailableError | None:
        """Tell those that left as well: one that was restored may have forgotten that it did, and would
        keep its units. Returns why not all could be told."""
        retired = self._shards.retired
        try:
            await together([*map(self._inform, retired), *map(self._retire, retired)])
        except StockUnavailableError as error:
            return error
        return None

    async def _latest_freeze(self) -> Freeze:
        """What the shards of the old layout know: those that join have not heard of it.

        Whoever freezes the product later finds the new layout listed. Shards that cannot be asked are
        left out, for the product sells nothing until all are told.
        """
        everywhere = self._shards.partitions + self._shards.retired
        found = await asyncio.gather(
            *map(self._shards.freeze_of, everywhere), return_exceptions=True
        )
        return max((each for each in found if isinstance(each, Freeze)), default=NEVER_FROZEN)

    async def _tell(self, partition: int, freeze: Freeze) -> None:
        word = await self._shards.tell(
            partition,
            epoch=self._listing.epoch,
            version=self._listing.layout.version,
            serves=True,
            freeze=freeze,
        )
        if word != "done":
            raise LayoutPassedError(f"p{partition:02d} answers {word} to {self._listing.layout}")

    async def _retire(self, partition: int) -> None:
        """Have a shard serve nobody; one that is closed, or knows a later layout, does not."""
        await self._shards.tell(
            partition,
            epoch=self._listing.epoch,
            version=self._listing.layout.version,
            serves=False,
        )

    async def _inform(self, partition: int) -> None:
        """A copy that cannot be written now only sends servers that lost the base to an older layout."""
        tag = self._cluster.tags[partition]
        try:
            await self._cluster.run(
                _INFORM,
                partition,
                (keys.head(tag), keys.product_info(tag, self._product_id)),
                (packb([part for field in self._listing.fields() for part in field]),),
                lane=LaneKind.WRITE,
            )
        except StockUnavailableError as error:
            if error.reason is Reason.SHARD_CORRUPT:
                raise
