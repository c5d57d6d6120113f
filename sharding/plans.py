"""How the ledger and the live stock agree on putting a product on sale and taking it off."""

from dataclasses import dataclass
from typing import NamedTuple

from sharding.placement import Layout


class Freeze(NamedTuple):
    """The last decision to stop or to resume a product's sale; `version` grows with each, 0: none."""

    version: int
    frozen: bool


NEVER_FROZEN = Freeze(0, frozen=False)


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """What a product's shards are to hold when they open. Stored in the ledger before any shard sees it,
    so a load that broke off is resumed with the same numbers."""

    product_id: int
    epoch: int
    layout: Layout
    amounts: tuple[int, ...]
    """Units per shard, in the order of the shards."""
    buffer: int
    sold_before: int
    """Units sold in earlier epochs."""
    former_shards: tuple[int, ...] = ()
    """Other shard counts that the product had; their shards still know the requests of that time."""
    max_per_user: int = 0
    """Units that one user may hold and buy until the product is closed; 0: no limit."""
    freeze: Freeze = NEVER_FROZEN


def split_evenly(total: int, shards: int) -> tuple[int, ...]:
    """Units per shard, differing by at most one."""
    quotient, remainder = divmod(total, shards)
    return tuple(quotient + (shard < remainder) for shard in range(shards))
