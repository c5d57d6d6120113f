"""Stopping and resuming the sale of a product at all of its shards."""

import asyncio
from collections.abc import Collection

from sharding.cluster import Cluster
from sharding.directory import Directory, Listing
from sharding.errors import StockUnavailableError
from sharding.placement import Layout
from sharding.plans import Freeze
from sharding.shards import MissingShardError, Shards

LAYOUTS_MAX = 8
"""Changes of the layout that may come in between before one is left to whoever applies it again."""


class Freezing:
    """Brings the ledger's decisions to the shards."""

    def __init__(self, cluster: Cluster, directory: Directory) -> None:
        self._cluster = cluster
        self._directory = directory

    async def apply(self, product_id: int, freeze: Freeze) -> frozenset[int]:
        """Tell every shard that can be reached; returns the partitions that could not be told.

        A shard that knows a later decision keeps it. Shards that joined meanwhile are told, too: they
        take over what the others knew before, see Layouts. StockUnavailableError: nobody says which
        shards the product has.
        """
        away: set[int] = set()
        told: Listing | None = None
        for _ in range(LAYOUTS_MAX):
            listing = await self._directory.find(product_id)
            if listing is None or _is_same(told, listing):
                break
            shards = Shards(self._cluster, product_id, listing.layout, earlier=listing.earlier)
            away |= await _tell(shards, freeze, shards.partitions + shards.retired)
            if listing.is_copy:  # of which a later layout may not know
                away.add(shards.partitions[0])
            told = listing
        return frozenset(away)

    async def apply_at(self, partition: int, product_id: int, freeze: Freeze) -> None:
        """Tell the shard in one partition, if it has one, open or not. StockUnavailableError."""
        shards = Shards(self._cluster, product_id, Layout(0, 1))
        try:
            await shards.freeze(partition, freeze)
        except MissingShardError:
            return


def _is_same(told: Listing | None, listing: Listing) -> bool:
    return told is not None and (told.epoch, told.layout) == (listing.epoch, listing.layout)


async def _tell(shards: Shards, freeze: Freeze, partitions: Collection[int]) -> set[int]:
    results = await asyncio.gather(
        *(shards.freeze(partition, freeze) for partition in partitions), return_exceptions=True
    )
    away = set()
    for partition, result in zip(partitions, results, strict=True):
        if isinstance(result, StockUnavailableError):
            away.add(partition)
        elif isinstance(result, BaseException) and not isinstance(result, MissingShardError):
            raise result
    return away
