"""Telling the live stock of requests that were sold from the ledger's buffer while it was away."""

from asyncio import gather
from collections.abc import Sequence

from sharding.cluster import Cluster
from sharding.errors import StockUnavailableError
from sharding.outcomes import Deduction
from sharding.packing import pack
from sharding.placement import Layout, home_shard
from sharding.shards import Shards

CALL_REQUESTS_MAX = 500


class Recalling:
    """Leaves a record at each request's home.

    Former homes and alternates need none: whoever asks those asks the home as well. Nor does it matter
    whether the layout is the newest: the home of an older one is asked about every repeat, too.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def recall(
        self, product_id: int, layout: Layout, sold: Sequence[Deduction]
    ) -> list[Deduction]:
        """Have repeats of these requests of one product answered as replays.

        Returns those of which that is certain; the homes of the others do not answer. Safe to repeat.
        """
        shards = Shards(self._cluster, product_id, layout)
        homes: dict[int, list[Deduction]] = {}
        for request in sold:
            homes.setdefault(home_shard(request.request_id, layout.shards), []).append(request)
        told = await gather(*(_tell(shards, shard, requests) for shard, requests in homes.items()))
        return [request for requests in told for request in requests]


async def _tell(shards: Shards, shard: int, requests: Sequence[Deduction]) -> list[Deduction]:
    """One home; returns the requests that it knows by now."""
    told: list[Deduction] = []
    for start in range(0, len(requests), CALL_REQUESTS_MAX):
        lot = requests[start : start + CALL_REQUESTS_MAX]
        try:
            await shards.recall(shards.partitions[shard], pack(lot))
        except StockUnavailableError:
            break
        told += lot
    return told
