"""Every Redis key of the service, made here and nowhere else.

All keys of one partition carry its hash tag, so one script can declare all of them. They are fixed per
partition and product and exist from loading on: a key that is created in the middle of a slot's
migration would make every script call on that slot fail with TRYAGAIN.
"""

from collections.abc import Iterator
from functools import cache
from itertools import count, product
from string import ascii_lowercase, digits

from sharding.slots import SLOTS, slot_of

RECORD_GENERATIONS = 3
"""Generations of request records. Two of them cover `record_ttl_s`, the third is being filled."""

_TAG_TOLERANCE_SLOTS = 8
_ALPHABET = digits + ascii_lowercase


def head(tag: str) -> str:
    """Hash; its fields are listed in sharding/lua/include/head.lua."""
    return f"inv:{{{tag}}}:head"


def events(tag: str, ledger: int) -> str:
    """Stream: one entry per script call that changed something; one stream per MySQL server."""
    return f"inv:{{{tag}}}:events:{ledger}"


def stock(tag: str, product_id: int) -> str:
    """Hash: one shard of one product; the fields are listed in sharding/lua/include/stock.lua."""
    return f"inv:{{{tag}}}:stock:{product_id}"


def records(tag: str, generation: int) -> str:
    """Hash: `<product>:<request_id>` to what that request came to; see
    sharding/lua/include/records.lua."""
    return f"inv:{{{tag}}}:seen:{generation}"


def tombstones(tag: str, generation: int) -> str:
    """Hash: `<product>:<request_id>` to why that request takes nothing; see the same file."""
    return f"inv:{{{tag}}}:gone:{generation}"


def memory(tag: str) -> tuple[str, ...]:
    """The keys of all record generations and then those of the tombstones, in their order."""
    return tuple(
        of_kind(tag, generation)
        for of_kind in (records, tombstones)
        for generation in range(RECORD_GENERATIONS)
    )


def deadlines(tag: str) -> str:
    """Sorted set: orders by the time at which somebody has to look at them; see
    sharding/lua/include/orders.lua."""
    return f"inv:{{{tag}}}:deadlines"


def witness(tag: str) -> str:
    """String: the last event that anybody has seen who found the partition shut or opened anew, as its
    id."""
    return f"inv:{{{tag}}}:witness"


def streams(tag: str, ledgers: int) -> tuple[str, ...]:
    """The streams of events of all MySQL servers."""
    return tuple(events(tag, ledger) for ledger in range(ledgers))


def partition(tag: str, ledgers: int) -> tuple[str, ...]:
    """All that a partition consists of besides its shards; see sharding/lua/include/partition.lua."""
    return (head(tag), *memory(tag), deadlines(tag), *streams(tag, ledgers))


def users(tag: str, product_id: int) -> str:
    """Hash: user to the units that the user holds and has bought of a product in this epoch."""
    return f"inv:{{{tag}}}:users:{product_id}"


def product_info(tag: str, product_id: int) -> str:
    """Hash, in each shard's partition; the fields are listed in sharding/lua/include/info.lua."""
    return f"inv:{{{tag}}}:product:{product_id}"


@cache
def tags(partitions: int) -> tuple[str, ...]:
    """Hash tags of all partitions; their slots stand at even distances over the slot range.

    The tag of partition i hashes to within 8 slots of the middle of the i-th of `partitions` equal
    ranges, so every contiguous assignment of slots spreads the partitions evenly over the masters.
    """
    width = SLOTS / partitions
    return tuple(_tag_near(f"p{i:02d}", round((i + 0.5) * width)) for i in range(partitions))


def _tag_near(prefix: str, slot: int) -> str:
    return next(
        tag
        for tag in (prefix + suffix for suffix in _suffixes())
        if abs(slot_of(tag) - slot) <= _TAG_TOLERANCE_SLOTS
    )


def _suffixes() -> Iterator[str]:
    for length in count(1):
        for letters in product(_ALPHABET, repeat=length):
            yield "-" + "".join(letters)
