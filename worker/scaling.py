"""How many shards a product should have for what is asked of it. Pure: no I/O, time passed in."""

from collections.abc import Iterable
from typing import NamedTuple

from ledger.demand import LiveProduct, Report
from ledger.layouts import Cause
from sharding.placement import is_shard_count

REPORT_AGE_S_MAX = 5
"""Reports that are older say nothing of the demand."""
AUTOMATIC_CHANGES_MAX = 6
"""Changes of one product that nobody asked for, as long as a request is remembered: each can make its
retries be looked up at one more place."""
UNSEEN_S_MAX = 10.0
"""A product that was not looked at for longer was not watched without a break."""
COLD_SHARE = 8
"""Below this fraction of the hot rate a shard is cold."""


class Wish(NamedTuple):
    """A product should have another number of shards."""

    product_id: int
    shards: int
    cause: Cause


class _Cold(NamedTuple):
    """A product that has been cold with so many shards, from when to when at least."""

    shards: int
    since_s: float
    seen_s: float


def demand_of(reports: Iterable[Report]) -> dict[int, int]:
    """Requests a second of each product, over all server processes that were heard lately."""
    demand: dict[int, int] = {}
    for product_id, requests_per_s, age_s in reports:
        if age_s < REPORT_AGE_S_MAX:
            demand[product_id] = demand.get(product_id, 0) + requests_per_s
    return demand


class Scaling:
    """Decides for one product after the other; remembers for how long each has been cold.

    `hot_rate_per_s` is meant per shard. A change aims at half of it, so that neither a little more nor
    a little less demand asks for the next one.
    """

    def __init__(
        self, *, hot_rate_per_s: int, cold_after_s: float, partitions: int, default_shards: int
    ) -> None:
        self._hot_rate_per_s = hot_rate_per_s
        self._cold_after_s = cold_after_s
        self._default_shards = default_shards
        self._counts = [n for n in range(1, partitions + 1) if is_shard_count(n, partitions)]
        self._cold: dict[int, _Cold] = {}

    def decide(self, product: LiveProduct, demand: int, now_s: float) -> Wish | None:
        """What a product of that demand, in requests a second, should have instead; None: as it is.

        `now_s` on a clock that only goes forward. A product with a pin or a limit stays as it is.
        """
        cold = self._cold.pop(product.product_id, None)
        if product.pin or product.is_fixed:
            return None
        if demand > self._hot_rate_per_s * product.shards:
            return _wish(product, max(self._fitting(demand), product.shards), Cause.HOT)
        fewer = max(self._fitting(demand), self._default_shards)
        is_cold = demand * COLD_SHARE < self._hot_rate_per_s * product.shards
        if not is_cold or fewer >= product.shards:
            return None
        since_s = now_s
        if cold and cold.shards == product.shards and now_s - cold.seen_s <= UNSEEN_S_MAX:
            since_s = cold.since_s
        self._cold[product.product_id] = _Cold(product.shards, since_s, now_s)
        if now_s - since_s < self._cold_after_s:
            return None
        return _wish(product, fewer, Cause.COLD)

    def forget_unseen(self, now_s: float) -> None:
        """Drop what is known of products that nobody asks about any more."""
        self._cold = {
            product_id: cold
            for product_id, cold in self._cold.items()
            if now_s - cold.seen_s <= UNSEEN_S_MAX
        }

    def _fitting(self, demand: int) -> int:
        """The smallest shard count that leaves each shard half of the hot rate at most, or all."""
        fitting = (n for n in self._counts if demand * 2 <= self._hot_rate_per_s * n)
        return next(fitting, self._counts[-1])


def _wish(product: LiveProduct, shards: int, cause: Cause) -> Wish | None:
    if shards == product.shards:
        return None
    return Wish(product.product_id, shards, cause)
