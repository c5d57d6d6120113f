"""Where products, shards and requests go. The pinned values may never change: live data lies by them."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharding.keys import tags
from sharding.placement import (
    BUCKETS,
    Layout,
    base_partition,
    home_shard,
    is_shard_count,
    ledger_of,
    stable_hash,
)
from sharding.plans import split_evenly
from sharding.slots import SLOTS, slot_of

DIVISORS_OF_48 = [n for n in range(1, 49) if is_shard_count(n, 48)]


def test_the_hashes_that_live_data_lies_by_are_what_they_were() -> None:
    assert tags(48)[:4] == ("p00-u2", "p01-5d", "p02-1fm", "p03-0nu")
    assert slot_of("123456789") == 12_739
    assert stable_hash("r1") == 4_233_124_961
    assert [home_shard(f"r{i}", 6) for i in range(8)] == [0, 5, 3, 3, 0, 1, 5, 1]
    assert [base_partition(i, 48) for i in (1001, 1002, 1003)] == [17, 43, 29]


@pytest.mark.parametrize("partitions", [1, 2, 12, 48, 96])
def test_tags_stand_at_even_distances_over_the_slots(partitions: int) -> None:
    width = SLOTS / partitions
    for i, tag in enumerate(tags(partitions)):
        assert tag.startswith(f"p{i:02d}-")
        assert abs(slot_of(tag) - (i + 0.5) * width) <= 9


@pytest.mark.parametrize("masters", range(1, 13))
def test_contiguous_slot_ranges_get_an_even_share_of_the_partitions(masters: int) -> None:
    share = Counter(slot_of(tag) * masters // SLOTS for tag in tags(48))
    assert max(share.values()) - min(share.values()) <= 1


@pytest.mark.parametrize("shards", [n for n in DIVISORS_OF_48 if n >= 3])
def test_a_products_shards_spread_evenly_over_three_masters(shards: int) -> None:
    for product_id in range(1, 200):
        layout = Layout(1, shards)
        partitions = layout.all_partitions(product_id=product_id, partitions=48)
        assert len(set(partitions)) == shards
        share = Counter(slot_of(tags(48)[p]) * 3 // SLOTS for p in partitions)
        assert max(share.values()) - min(share.get(m, 0) for m in range(3)) <= 1


@pytest.mark.parametrize("pattern", ["r{}", "req-{:08d}", "{}-order", "user{}:1"])
@pytest.mark.parametrize("shards", [2, 6, 12, 48])
def test_ids_of_any_pattern_spread_over_the_shards(pattern: str, shards: int) -> None:
    share = Counter(home_shard(pattern.format(i), shards) for i in range(24_000))
    mean = 24_000 / shards
    assert max(share.values()) < 1.25 * mean
    assert min(share.values()) > 0.75 * mean


@given(st.text(min_size=1), st.sampled_from(DIVISORS_OF_48))
def test_every_id_has_a_home(request_id: str, shards: int) -> None:
    assert 0 <= home_shard(request_id, shards) < shards


@given(st.integers(0, 10**12), st.integers(1, 960))
def test_a_split_keeps_every_unit_and_differs_by_one_at_most(total: int, shards: int) -> None:
    amounts = split_evenly(total, shards)
    assert sum(amounts) == total
    assert len(amounts) == shards
    assert max(amounts) - min(amounts) <= 1


@given(st.integers(1, 2**63 - 1), st.integers(1, 16))
def test_every_product_has_a_ledger(product_id: int, ledgers: int) -> None:
    assert 0 <= ledger_of(product_id, ledgers) < ledgers <= BUCKETS
