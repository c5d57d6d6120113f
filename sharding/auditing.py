"""Having the shards of a product tell their counts, and compensating what was found to differ."""

import asyncio
from secrets import token_hex
from typing import NamedTuple

from sharding.cluster import Cluster
from sharding.directory import Directory
from sharding.errors import RepairImpossibleError, StockUnavailableError
from sharding.events import Repair
from sharding.outcomes import Reason
from sharding.placement import Layout
from sharding.shards import Marker, MissingShardError, Shards


class Fault(NamedTuple):
    """A shard that told nothing. SHARD_CORRUPT: its key is gone or makes no sense; else it is away."""

    partition: int
    reason: Reason
    detail: str


class Marked(NamedTuple):
    """The markers of one product under one load, and the shards that have none."""

    epoch: int
    markers: tuple[Marker, ...]
    faults: tuple[Fault, ...]


class Auditing:
    """Marks and repairs shards."""

    def __init__(self, cluster: Cluster, directory: Directory) -> None:
        self._cluster = cluster
        self._directory = directory

    async def mark(self, product_id: int) -> Marked | None:
        """Append a marker to the stream of each of its shards, retired ones included.

        None: the product was never loaded. StockUnavailableError: nobody says which shards it has.
        """
        listing = await self._directory.find(product_id)
        if listing is None:
            return None
        shards = Shards(self._cluster, product_id, listing.layout, earlier=listing.earlier)
        found = await asyncio.gather(
            *(
                _mark(shards, partition, listing.epoch)
                for partition in (*shards.partitions, *shards.retired)
            )
        )
        return Marked(
            listing.epoch,
            tuple(each for each in found if isinstance(each, Marker)),
            tuple(each for each in found if isinstance(each, Fault)),
        )

    async def repair(
        self, product_id: int, partition: int, repair: Repair, *, epoch: int, reason: str
    ) -> bool:
        """Enter a compensation once; whether this call did.

        RepairImpossibleError: a live count would be below zero. StockUnavailableError: call again.
        """
        shards = Shards(self._cluster, product_id, Layout(0, 1))
        try:
            word, is_ours = await shards.repair(
                partition, repair, epoch=epoch, call=token_hex(8), reason=reason
            )
        except MissingShardError:
            raise StockUnavailableError(
                Reason.SHARD_CORRUPT, f"p{partition:02d}: the shard's key is gone"
            ) from None
        if word == "impossible":
            raise RepairImpossibleError(f"product {product_id}, partition {partition}")
        return is_ours


async def _mark(shards: Shards, partition: int, epoch: int) -> Marker | Fault | None:
    """None: the shard has another epoch, and nothing to say of this one; or it is one that left, and the
    change that brought it was taken back before it came."""
    try:
        return await shards.mark(partition, epoch=epoch)
    except MissingShardError:
        if partition in shards.retired:
            return None
        return Fault(partition, Reason.SHARD_CORRUPT, "its key is gone")
    except StockUnavailableError as error:
        return Fault(partition, error.reason, error.detail)
