"""Which layout a product has, as its partitions remember it."""

from sharding import keys
from sharding.cluster import Cluster, LaneKind
from sharding.errors import StockUnavailableError
from sharding.outcomes import Reason
from sharding.placement import Layout, base_partition
from sharding.shards import Shards


class Listing:
    """What a product's partitions say of it."""

    __slots__ = ("buffer", "epoch", "layout", "sold_before")

    def __init__(self, fields: dict[bytes, bytes]) -> None:
        self.layout = Layout(int(fields[b"layout"]), int(fields[b"shards"]))
        self.epoch = int(fields[b"epoch"])
        self.buffer = int(fields[b"buffer"])
        self.sold_before = int(fields[b"sold_before"])


class Directory:
    """Looks products up in Redis; every shard's partition has a copy of the listing."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def find(self, product_id: int) -> Listing | None:
        """The product's listing, None if it was never loaded. StockUnavailableError."""
        partitions = self._cluster.settings.partitions
        base = base_partition(product_id, partitions)
        try:
            return await self._listing(base, product_id)
        except StockUnavailableError:
            # Two, three and their multiples of shards have a copy at one of these distances.
            for share in (2, 3):
                copy = await self._copy((base + partitions // share) % partitions, product_id)
                if copy is not None:
                    return copy
            raise

    def shards(self, product_id: int, listing: Listing) -> Shards:
        """The product's shards under its present layout."""
        return Shards(self._cluster, product_id, listing.layout)

    async def _copy(self, partition: int, product_id: int) -> Listing | None:
        try:
            return await self._listing(partition, product_id)
        except StockUnavailableError:
            return None

    async def _listing(self, partition: int, product_id: int) -> Listing | None:
        key = keys.product_info(self._cluster.tags[partition], product_id)
        reply = await self._cluster.command(partition, "HGETALL", key, lane=LaneKind.READ)
        assert isinstance(reply, list)
        if not reply:
            return None
        try:
            return Listing(dict(zip(reply[::2], reply[1::2], strict=True)))
        except (KeyError, ValueError) as error:
            self._cluster.metrics.corrupt.inc()
            raise StockUnavailableError(Reason.SHARD_CORRUPT, key) from error
