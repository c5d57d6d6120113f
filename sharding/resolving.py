"""Deciding what became of a request whose answer was lost."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress

from sharding.answers import MISSING, unavailable
from sharding.cluster import Cluster
from sharding.directory import Directory, Listing
from sharding.errors import StockUnavailableError
from sharding.events import Status
from sharding.outcomes import MAY_HAVE_RUN, Answer, Outcome, Reason, Resolution, Resolved
from sharding.placement import Layout, alternate_shard, home_shard
from sharding.shards import Found, MissingShardError, Shards, Tombstone

LOOKS_MAX = 16
PAUSE_S = 0.02

_ENDS = {
    Status.REPLAYED: Resolution.DEDUCTED,
    Status.REFUSED_BEFORE: Resolution.REFUSED,
    Status.NEVER: Resolution.NEVER,
}


class Resolving:
    """Looks everywhere a request can have had its effect, and leaves tombstones where it has none.

    Everything is looked at before anything is decided; then the alternate is barred, so that no copy can
    slip in there, and the home decides last. What counts is the product's base, before and after: a
    request may have been sold since by a layout or a load that this process does not know.
    """

    def __init__(self, cluster: Cluster, directory: Directory) -> None:
        self._cluster = cluster
        self._directory = directory

    async def resolve(self, product_id: int, request_id: str) -> Resolved | Answer:
        """The request's end, or why it cannot be told now: every failure is an answer."""
        found = await self.find(product_id, request_id)
        return _end(found) if isinstance(found, Found) else found

    async def find(self, product_id: int, request_id: str) -> Found | Answer:
        """The same, and where its record is."""
        try:
            listing = await self._directory.at_base(product_id)
            for _ in range(LOOKS_MAX):
                if listing is None:
                    return Answer(Outcome.UNKNOWN_PRODUCT)
                found = await _Search(self._cluster, product_id, listing, request_id).end()
                later = await self._directory.at_base(product_id)
                if found.status is not Status.STALE and _is_same(listing, later):
                    return found
                listing = later
                await asyncio.sleep(PAUSE_S)
        except StockUnavailableError as failure:
            return unavailable(_reason(failure))
        except MissingShardError:
            return MISSING
        return unavailable(Reason.LAYOUT_CHANGING)


def _is_same(listing: Listing, later: Listing | None) -> bool:
    if later is None:
        return False
    return (listing.epoch, listing.layout) == (later.epoch, later.layout)


class _Search:
    """One look at everything, under one layout."""

    def __init__(
        self, cluster: Cluster, product_id: int, listing: Listing, request_id: str
    ) -> None:
        self._shards = Shards(cluster, product_id, listing.layout)
        self._listing = listing
        self._request_id = request_id
        self._partitions = cluster.settings.partitions

    async def end(self) -> Found:
        """STALE: the layout has changed meanwhile."""
        if self._listing.max_per_user:
            return await self._end_anywhere()
        count = self._listing.layout.shards
        home = home_shard(self._request_id, count)
        at_home = self._shards.partitions[home]
        alternate = alternate_shard(home, count)
        stand_in = None if alternate is None else self._shards.partitions[alternate]
        found = await self._look_everywhere(at_home, stand_in)
        if found.status not in _OPEN_ENDS:
            return found
        if stand_in is not None:
            found = await self._at(stand_in, Tombstone.BARRED)
            if found.status is not Status.BARRED:
                return found
        return await self._at(at_home, Tombstone.NEVER)

    async def _end_anywhere(self) -> Found:
        """The user whose home the request belongs to is not known, so every shard decides.

        A tombstone at one of them says nothing of the others: who left it may never have come to those.
        """
        found = await self._at_all(Tombstone.NONE)
        found += [await self._at_former(partition) for partition in self._former_partitions()]
        if not any(each.status is Status.REPLAYED for each in found):
            found = await self._at_all(Tombstone.NEVER)
        for status in (Status.REPLAYED, Status.STALE):
            for each in found:
                if each.status is status:
                    return each
        return next((each for each in found if each.status is not Status.NEVER), found[0])

    async def _at_all(self, tombstone: Tombstone) -> list[Found]:
        return [await self._at(partition, tombstone) for partition in self._shards.partitions]

    async def _at_former(self, partition: int) -> Found:
        """A place that the product may have left altogether."""
        try:
            return await self._at(partition, Tombstone.NONE)
        except MissingShardError:
            return Found(Status.STALE, 0, partition)

    def _former_partitions(self) -> Sequence[int]:
        former = {
            partition
            for count in self._listing.former
            for partition in Layout(0, count).all_partitions(
                product_id=self._shards.product_id, partitions=self._partitions
            )
        }
        return sorted(former - set(self._shards.partitions))

    async def _look_everywhere(self, at_home: int, stand_in: int | None) -> Found:
        """What anybody knows; who has sold it knows better than who has refused it."""
        found = await self._at(at_home, Tombstone.NONE)
        now = () if stand_in is None else (stand_in,)
        for partition in (*now, *self._former_places()):
            if found.status is Status.REPLAYED:
                break
            with suppress(MissingShardError):  # a place that the product has left altogether
                there = await self._at(partition, Tombstone.NONE)
                if there.status is Status.REPLAYED or found.status in _OPEN_ENDS:
                    found = there
        return found

    async def _at(self, partition: int, tombstone: Tombstone) -> Found:
        return await self._shards.resolve(
            partition, self._request_id, tombstone, epoch=self._listing.epoch
        )

    def _former_places(self) -> Iterator[int]:
        """Homes and alternates that the request had under earlier layouts."""
        for count in self._listing.former:
            layout = Layout(0, count)
            home = home_shard(self._request_id, count)
            for shard in (home, alternate_shard(home, count)):
                if shard is not None:
                    yield layout.partition(
                        shard, product_id=self._shards.product_id, partitions=self._partitions
                    )


_OPEN_ENDS = (Status.STALE, Status.BARRED)
"""What a look says where nothing was decided."""


def _end(found: Found) -> Resolved | Answer:
    if found.status in _ENDS:
        quantity = found.quantity if found.status is _TAKEN else 0
        return Resolved(_ENDS[found.status], quantity)
    if found.status is Status.OVERLOADED:
        return Answer(Outcome.OVERLOADED, reason=Reason.RECORDS_FULL)
    return Answer(Outcome.REQUEST_MISMATCH)


_TAKEN = Status.REPLAYED


def _reason(failure: StockUnavailableError) -> Reason:
    """Whatever became of a tombstone, the same call again finds it."""
    if failure.reason in MAY_HAVE_RUN:
        return Reason.SHARDS_UNREACHABLE
    return failure.reason
