"""Which layout a product has, as its partitions remember it."""

from asyncio import gather, timeout

from sharding import keys
from sharding.cluster import Cluster, LaneKind
from sharding.errors import StockUnavailableError
from sharding.outcomes import Reason
from sharding.placement import Layout, base_partition, is_shard_count
from sharding.scripts import script

_LISTING = script("listing")
PRESENT_S = 0.5
"""How long who only looks waits for a partition, once it is known that one does not answer."""
_COPIES = (2, 3)
"""A product of 2, 3 or a multiple of them has shards a half and a third of the partitions away."""


class Listing:
    """What a product's partitions say of it. ValueError, KeyError if it makes no sense.

    `former`: shard counts that it had before, whose shards still know the requests of that time;
    `earlier`: those of this epoch. `since_s`: when the layout came into force, in seconds since 1970 by
    the node's clock. `next_version`, `next_shards`: of a layout that is on its way; version 0: none.
    `given_up`: the last version of one that will never be.
    `is_copy`: not from the product's own base, so a later load may not have reached it.
    """

    __slots__ = (
        "buffer",
        "earlier",
        "epoch",
        "former",
        "given_up",
        "is_copy",
        "layout",
        "max_per_user",
        "next_shards",
        "next_version",
        "since_s",
        "sold_before",
    )

    def __init__(self, fields: dict[bytes, bytes], *, partitions: int) -> None:
        self.is_copy = False
        self.layout = Layout(int(fields[b"layout"]), int(fields[b"shards"]))
        self.former = tuple(int(count) for count in fields[b"former"].split())
        # A product that an earlier version loaded may lack the fields with a default.
        self.earlier = tuple(int(count) for count in fields.get(b"earlier", b"").split())
        self.next_version = int(fields.get(b"next_layout", b"0"))
        self.next_shards = int(fields.get(b"next_shards", b"1"))
        self.given_up = int(fields.get(b"given_up", b"0"))
        self.epoch = int(fields[b"epoch"])
        self.buffer = int(fields[b"buffer"])
        self.sold_before = int(fields[b"sold_before"])
        self.max_per_user = int(fields.get(b"max_per_user", b"0"))
        self.since_s = int(fields.get(b"since_ms", b"0")) / 1_000
        counts = (self.layout.shards, *self.former, *self.earlier)
        if not all(is_shard_count(count, partitions) for count in counts):
            raise ValueError(f"shard counts {counts}")

    def fields(self) -> list[tuple[str, str]]:
        """The same as a partition keeps it, for a copy."""
        return [
            ("layout", str(self.layout.version)),
            ("shards", str(self.layout.shards)),
            ("former", " ".join(map(str, self.former))),
            ("earlier", " ".join(map(str, self.earlier))),
            ("epoch", str(self.epoch)),
            ("buffer", str(self.buffer)),
            ("sold_before", str(self.sold_before)),
            ("since_ms", str(round(self.since_s * 1_000))),
            ("max_per_user", str(self.max_per_user)),
            ("next_layout", "0"),
        ]


class Directory:
    """Looks products up in Redis; every shard's partition has a copy of the listing."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def find(self, product_id: int) -> Listing | None:
        """The product's listing, None if it was never loaded. StockUnavailableError."""
        partitions = self._cluster.settings.partitions
        base = base_partition(product_id, partitions)
        try:
            return await self.at_base(product_id)
        except StockUnavailableError:
            others = ((base + partitions // share) % partitions for share in _COPIES)
            copies = await gather(*(self._copy(other, product_id) for other in others))
            known = [copy for copy in copies if copy is not None]
            if not known:
                raise
            # A copy that an earlier load left may be older.
            newest = max(known, key=lambda listing: listing.layout.version)
            newest.is_copy = True
            return newest

    async def find_present(self, product_id: int) -> Listing | None:
        """The newest listing of those partitions that answer within PRESENT_S; good for looking alone.

        StockUnavailableError if none has one and one does not answer.
        """
        partitions = self._cluster.settings.partitions
        base = base_partition(product_id, partitions)
        asked = (base, *((base + partitions // share) % partitions for share in _COPIES))
        said = await gather(*(self._soon(each, product_id) for each in asked))
        known = [each for each in said if isinstance(each, Listing)]
        if known:
            return max(known, key=lambda listing: listing.layout.version)
        for each in said:
            if isinstance(each, StockUnavailableError):
                raise each
        return None

    async def _soon(
        self, partition: int, product_id: int
    ) -> Listing | StockUnavailableError | None:
        try:
            async with timeout(PRESENT_S):
                return await self._listing(partition, product_id, hasty=True)
        except TimeoutError:
            return StockUnavailableError(Reason.NOT_EXECUTED, f"p{partition:02d} is silent")
        except StockUnavailableError as error:
            return error

    async def at_base(self, product_id: int) -> Listing | None:
        """What the partition says that decides about the product. StockUnavailableError."""
        base = base_partition(product_id, self._cluster.settings.partitions)
        return await self._listing(base, product_id)

    async def _copy(self, partition: int, product_id: int) -> Listing | None:
        try:
            return await self._listing(partition, product_id)
        except StockUnavailableError:
            return None

    async def _listing(
        self, partition: int, product_id: int, *, hasty: bool = False
    ) -> Listing | None:
        tag = self._cluster.tags[partition]
        key = keys.product_info(tag, product_id)
        reply = await self._cluster.run(
            _LISTING, partition, [keys.head(tag), key], (), lane=LaneKind.READ, hasty=hasty
        )
        flat = reply[3]
        assert isinstance(flat, list)
        if not flat:
            return None
        try:
            fields = dict(zip(flat[::2], flat[1::2], strict=True))
            return Listing(fields, partitions=self._cluster.settings.partitions)
        except (KeyError, ValueError) as error:
            self._cluster.metrics.corrupt.inc()
            raise StockUnavailableError(Reason.SHARD_CORRUPT, key) from error
