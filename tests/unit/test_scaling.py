"""How many shards a product gets for what is asked of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.demand import LiveProduct, Report
from ledger.layouts import Cause
from worker.scaling import UNSEEN_S_MAX, Scaling, Wish, demand_of

HOT, PARTITIONS, DEFAULT, COLD_AFTER_S = 20_000, 48, 6, 300.0
COUNTS = [n for n in range(1, PARTITIONS + 1) if PARTITIONS % n == 0]


def scaling() -> Scaling:
    return Scaling(
        hot_rate_per_s=HOT,
        cold_after_s=COLD_AFTER_S,
        partitions=PARTITIONS,
        default_shards=DEFAULT,
    )


def product(shards: int, pin: int = 0) -> LiveProduct:
    return LiveProduct(1, pin, shards)


def watched(policy: Scaling, shards: int, demand: int, *, for_s: float) -> Wish | None:
    """The decision after a product was looked at once a second for so long."""
    wish = None
    for second in range(int(for_s) + 1):
        wish = policy.decide(product(shards), demand, float(second))
    return wish


@pytest.mark.parametrize(
    ("shards", "demand", "grows_to"),
    [
        (1, HOT, None),
        (1, HOT + 1, 3),
        (6, 6 * HOT, None),
        (6, 6 * HOT + 1, 16),
        (6, 12 * HOT, 24),
        (24, 24 * HOT + 1, 48),
        (6, 1_000 * HOT, 48),
        (48, 1_000 * HOT, None),
    ],
)
def test_a_hot_product_gets_so_many_shards_that_each_has_half_of_the_hot_rate(
    shards: int, demand: int, grows_to: int | None
) -> None:
    expected = Wish(1, grows_to, Cause.HOT) if grows_to else None
    assert scaling().decide(product(shards), demand, 0.0) == expected


def test_a_product_with_a_limit_per_user_stays_as_it_is() -> None:
    policy, limited = scaling(), LiveProduct(1, 0, 24, is_fixed=True)
    assert policy.decide(limited, 1_000 * HOT, 0.0) is None
    for second in range(int(COLD_AFTER_S) + 2):
        assert policy.decide(limited, 0, float(second)) is None


@pytest.mark.parametrize(
    ("shards", "demand", "shrinks_to"),
    [
        (24, 0, 6),
        (24, 3 * HOT - 1, 6),
        (24, 3 * HOT, None),
        (48, 5 * HOT, 12),
        (6, 0, None),
        (3, 0, None),
    ],
)
def test_a_cold_product_loses_shards_but_not_below_the_default(
    shards: int, demand: int, shrinks_to: int | None
) -> None:
    policy = scaling()
    assert watched(policy, shards, demand, for_s=COLD_AFTER_S - 1) is None
    expected = Wish(1, shrinks_to, Cause.COLD) if shrinks_to else None
    assert watched(policy, shards, demand, for_s=COLD_AFTER_S) == expected


def test_a_moment_of_warmth_begins_the_time_anew() -> None:
    policy = scaling()
    watched(policy, 24, 0, for_s=290)
    assert policy.decide(product(24), 10 * HOT, 291.0) is None
    assert policy.decide(product(24), 0, 292.0) is None
    assert policy.decide(product(24), 0, 301.0) is None


def test_a_time_that_nobody_watched_is_no_time_of_cold() -> None:
    policy = scaling()
    watched(policy, 24, 0, for_s=290)
    assert policy.decide(product(24), 0, 290 + UNSEEN_S_MAX + 1) is None
    policy.forget_unseen(10_000.0)
    assert policy.decide(product(24), 0, 10_001.0) is None


def test_another_layout_begins_the_time_anew() -> None:
    policy = scaling()
    watched(policy, 48, 0, for_s=299)
    assert policy.decide(product(24), 0, 300.0) is None


@given(st.sampled_from(COUNTS), st.integers(0, 10_000_000))
def test_a_pinned_product_stays_as_it_is(shards: int, demand: int) -> None:
    policy = scaling()
    for second in (0.0, 400.0):
        assert policy.decide(product(shards, pin=shards), demand, second) is None


@given(st.sampled_from(COUNTS), st.integers(0, 10_000_000))
def test_what_is_wanted_is_possible_and_asks_for_nothing_more(shards: int, demand: int) -> None:
    policy = scaling()
    wish = watched(policy, shards, demand, for_s=COLD_AFTER_S)
    if wish is None:
        return
    assert wish.shards in COUNTS
    assert (wish.shards > shards) == (wish.cause is Cause.HOT)
    if wish.cause is Cause.COLD:
        assert wish.shards >= DEFAULT
    assert demand <= HOT * wish.shards / 2 or wish.shards == PARTITIONS
    assert watched(scaling(), wish.shards, demand, for_s=COLD_AFTER_S) is None


def test_demand_is_what_all_servers_said_lately() -> None:
    reports = [Report(1, 500, 0.0), Report(1, 300, 4.9), Report(2, 7, 1.0), Report(1, 900, 5.0)]
    assert demand_of(reports) == {1: 800, 2: 7}
