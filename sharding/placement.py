"""Where a product's shards are and which of them a request belongs to. Pure: no I/O, no clock.

All hashes here are fixed for ever: a change would send retries away from their records.
"""

from dataclasses import dataclass
from zlib import crc32

from sharding.outcomes import Deduction

BUCKETS = 1_024
"""A product belongs to one of these; the ledger's MySQL servers share them out."""

_GOLDEN = 0x9E3779B1
_MASK_32 = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Layout:
    """How a product is split: `shards` of them, known to every script call by `version`."""

    version: int
    shards: int

    def partition(self, shard: int, *, product_id: int, partitions: int) -> int:
        """The partition of one shard; shards stand at even distances over the partitions."""
        base = base_partition(product_id, partitions)
        return (base + shard * partitions // self.shards) % partitions

    def all_partitions(self, *, product_id: int, partitions: int) -> tuple[int, ...]:
        """The partitions of all shards, in the order of the shards."""
        return tuple(
            self.partition(shard, product_id=product_id, partitions=partitions)
            for shard in range(self.shards)
        )


def stable_hash(text: str) -> int:
    """32 bits, the same in every process and version. CRC-32 alone leaves runs of similar ids
    uneven in their high bits; the multiplication spreads them."""
    return crc32(text.encode()) * _GOLDEN & _MASK_32


def home_shard(request_id: str, shards: int) -> int:
    """The shard that a request's id selects: floor(h * shards) with h in [0, 1)."""
    return stable_hash(request_id) * shards >> 32


def home_key(request: Deduction, *, by_user: bool) -> str:
    """What selects a request's home: its id, or the user where a product has a limit per user."""
    return str(request.user_id) if by_user else request.request_id


def alternate_shard(home: int, shards: int) -> int | None:
    """The one shard that may stand in for a home whose node is down: half the ring away, so that any
    contiguous assignment of slots to two or more masters has it on another one. None for one shard."""
    return (home + shards // 2) % shards if shards > 1 else None


def base_partition(product_id: int, partitions: int) -> int:
    """The partition of a product's shard 0, whatever its layout."""
    return stable_hash(str(product_id)) % partitions


def ledger_of(product_id: int, ledgers: int) -> int:
    """Index of the MySQL server that keeps a product, in the order of the setting."""
    return stable_hash(f"bucket:{product_id}") % BUCKETS * ledgers // BUCKETS


def is_shard_count(shards: int, partitions: int) -> bool:
    """Whether a product may have that many shards: a divisor of the partition count."""
    return 1 <= shards <= partitions and partitions % shards == 0
