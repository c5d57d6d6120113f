"""Deciding what became of a request whose answer was lost."""

import asyncio
from collections.abc import Iterator

from sharding.answers import MISSING, unavailable
from sharding.catalogue import Catalogue, Product
from sharding.errors import StockUnavailableError
from sharding.events import Status
from sharding.outcomes import Answer, Outcome, Reason, Resolution, Resolved
from sharding.placement import Layout, alternate_shard, home_shard
from sharding.shards import Found, MissingShardError, Tombstone

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
    slip in there, and the home decides last.
    """

    def __init__(self, catalogue: Catalogue, *, partitions: int) -> None:
        self._catalogue = catalogue
        self._partitions = partitions

    async def resolve(self, product_id: int, request_id: str) -> Resolved | Answer:
        """The request's end, or why it cannot be told now: every failure is an answer."""
        try:
            for _ in range(LOOKS_MAX):
                product = await self._catalogue.find(product_id)
                if product is None:
                    return Answer(Outcome.UNKNOWN_PRODUCT)
                found = await self._resolve(product, request_id)
                if found.status is not Status.STALE:
                    return _end(found)
                self._catalogue.forget(product_id)
                await asyncio.sleep(PAUSE_S)
        except StockUnavailableError as failure:
            return unavailable(_reason(failure))
        except MissingShardError:
            self._catalogue.forget(product_id)
            return MISSING
        return unavailable(Reason.LAYOUT_CHANGING)

    async def _resolve(self, product: Product, request_id: str) -> Found:
        """STALE: the layout has changed meanwhile."""
        shards = product.shards
        home = home_shard(request_id, shards.layout.shards)
        for partition in self._everywhere_else(product, request_id):
            found = await self._look(product, partition, request_id)
            if found.status not in (Status.STALE, Status.BARRED):
                return found
        at_home = shards.partitions[home]
        found = await shards.resolve(at_home, request_id, Tombstone.NONE)
        if found.status not in (Status.STALE, Status.BARRED):
            return found
        alternate = alternate_shard(home, shards.layout.shards)
        if alternate is not None:
            found = await shards.resolve(shards.partitions[alternate], request_id, Tombstone.BARRED)
            if found.status is not Status.BARRED:
                return found
        return await shards.resolve(at_home, request_id, Tombstone.NEVER)

    async def _look(self, product: Product, partition: int, request_id: str) -> Found:
        """Look at a partition that the product may have left altogether: then it knows nothing."""
        try:
            return await product.shards.resolve(partition, request_id, Tombstone.NONE)
        except MissingShardError:
            return Found(Status.STALE, 0)

    def _everywhere_else(self, product: Product, request_id: str) -> Iterator[int]:
        """Homes and alternates that the request had under earlier layouts."""
        product_id = product.shards.product_id
        for count in product.listing.former:
            layout = Layout(0, count)
            home = home_shard(request_id, count)
            for shard in (home, alternate_shard(home, count)):
                if shard is not None:
                    yield layout.partition(
                        shard, product_id=product_id, partitions=self._partitions
                    )


def _end(found: Found) -> Resolved | Answer:
    if found.status in _ENDS:
        return Resolved(_ENDS[found.status], found.quantity if found.status is _TAKEN else 0)
    if found.status is Status.OVERLOADED:
        return Answer(Outcome.OVERLOADED, reason=Reason.RECORDS_FULL)
    return Answer(Outcome.REQUEST_MISMATCH)


_TAKEN = Status.REPLAYED


def _reason(failure: StockUnavailableError) -> Reason:
    """Whatever became of a tombstone, the same call again finds it."""
    if failure.reason in (Reason.OUTCOME_UNKNOWN, Reason.NOT_REPLICATED):
        return Reason.SHARDS_UNREACHABLE
    return failure.reason
