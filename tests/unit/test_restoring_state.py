"""What a partition is given of what the ledger knows, as far as no table is needed to tell."""

import pytest

from ledger.restoring import Facts, KnownShard, state_of

PARTITIONS = 12
PRODUCT = 7
BASE_SHARD = KnownShard(
    product_id=PRODUCT,
    epoch=1,
    layout_version=2,
    state="open",
    serves=1,
    began=1,
    available=8,
    held=0,
    sold=0,
    loaded=8,
    released=0,
    status="open",
    product_epoch=1,
    product_layout=2,
    product_shards=4,
    former="3 5",
    max_per_user=0,
    buffer=0,
    sold_before=0,
    released_in_all=0,
    freeze_version=0,
    frozen=0,
)


@pytest.mark.parametrize(
    ("resharded", "earlier"),
    [({PRODUCT}, "3 5"), (set(), "")],
    ids=["changed on sale", "loaded like that"],
)
def test_shards_that_left_are_looked_for_whether_or_not_the_ledger_has_heard_of_them(
    resharded: set[int], earlier: str
) -> None:
    # No event of any other partition is applied yet.
    facts = Facts(resharded=resharded)
    (shard,) = state_of([BASE_SHARD], facts, 0, PARTITIONS).shards
    assert (shard.listing["former"], shard.listing["earlier"]) == ("3 5", earlier)
