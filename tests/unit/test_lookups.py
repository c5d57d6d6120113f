"""Where a request is looked up before its home acts on it."""

from types import SimpleNamespace
from typing import cast

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from sharding.cluster import Cluster
from sharding.lookups import Lookups, Place
from sharding.metrics import StockMetrics
from sharding.outcomes import Deduction
from sharding.placement import Layout, home_shard
from sharding.shards import Shards
from sharding.tasks import Tasks

PARTITIONS = 48
PRODUCT = 7
counts = st.sampled_from([1, 2, 3, 4, 6, 12, 24, 48])


def lookups_of(shards: int, former: list[int]) -> Lookups:
    settings = SimpleNamespace(partitions=PARTITIONS, record_cap=1, tombstone_cap=1, backlog_max=1)
    cluster = cast("Cluster", SimpleNamespace(settings=settings))
    return Lookups(
        Shards(cluster, PRODUCT, Layout(9, shards)),
        former,
        0.0,
        StockMetrics(CollectorRegistry()),
        Tasks(),
        partitions=PARTITIONS,
        by_user=False,
    )


def where(lookups: Lookups, requests: list[Deduction], shard: int) -> list[set[Place]]:
    """For each request, everywhere that it is looked up."""
    found = lookups._places(requests, shard)
    return [
        {place for asked in found for place, positions in asked.items() if i in positions}
        for i in range(len(requests))
    ]


@given(counts, st.lists(counts, max_size=3, unique=True), st.integers(0, 2))
def test_a_request_is_looked_up_at_the_same_places_alone_and_with_others(
    shards: int, former: list[int], attempt: int
) -> None:
    lookups = lookups_of(shards, former)
    for home in range(min(shards, 3)):
        names = [f"id-{i}" for i in range(200) if home_shard(f"id-{i}", shards) == home][:20]
        group = [Deduction(name, PRODUCT, 1, attempt=attempt) for name in names]
        alone = [where(lookups, [request], home)[0] for request in group]
        assert where(lookups, group, home) == alone
        own = lookups._shards.partitions[home]
        assert all(place.partition != own for places in alone for place in places)
