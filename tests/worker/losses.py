"""What a node can lose, done to single partitions: other tests have theirs on the same nodes."""

import asyncio
from collections.abc import Collection, Mapping

from sharding import keys
from sharding.cluster import LaneKind
from tests.waiting import eventually
from tests.worker.conftest import PARTITIONS, World

Dump = Mapping[str, bytes]
"""Keys of a partition and what they held."""


async def keys_of(world: World, partition: int) -> list[str]:
    """All that are there."""
    reply = await world.cluster.command(
        partition, "KEYS", f"inv:{{{world.cluster.tags[partition]}}}:*", lane=LaneKind.READ
    )
    assert isinstance(reply, list)
    return sorted(key.decode() for key in reply)


async def empty(world: World, partitions: Collection[int]) -> None:
    """As FLUSHALL does, also to the replicas."""
    for partition in partitions:
        if found := await keys_of(world, partition):
            await world.cluster.command(partition, "DEL", *found, lane=LaneKind.MOVE)


async def dump(world: World, partition: int) -> Dump:
    """What a snapshot of the node would have of a partition."""
    found = {}
    for key in await keys_of(world, partition):
        value = await world.cluster.command(partition, "DUMP", key, lane=LaneKind.READ)
        assert isinstance(value, bytes)
        found[key] = value
    return found


async def set_back(world: World, partition: int, to: Dump) -> None:
    """As a restart with an old snapshot does; in one step, since nobody sees a node in the middle."""
    source = (
        "redis.call('DEL', unpack(KEYS)) "
        "for i = 1, #ARGV do redis.call('RESTORE', KEYS[i], 0, ARGV[i]) end return 'OK'"
    )
    rest = [key for key in await keys_of(world, partition) if key not in to]
    declared = [*to, *rest]
    command = ("EVAL", source, str(len(declared)), *declared, *to.values())
    reply = await world.cluster.command(partition, *command, lane=LaneKind.MOVE)  # type: ignore[arg-type]
    assert reply == b"OK"


async def all_restored(world: World, opened_before: Mapping[int, int]) -> None:
    """Return when partitions that were open under these generations are open under later ones."""

    async def is_restored(partition: int, generation: int) -> bool:
        head = await world.partitions.head(partition)
        return head.is_open and head.generation > generation

    async def are_restored() -> bool:
        found = await asyncio.gather(*(is_restored(*each) for each in opened_before.items()))
        return all(found)

    await eventually(are_restored)


async def generations(world: World, partitions: Collection[int]) -> dict[int, int]:
    heads = await asyncio.gather(*map(world.partitions.head, partitions))
    return {each: head.generation for each, head in zip(partitions, heads, strict=True)}


async def fields_of(world: World, partition: int, product_id: int) -> dict[str, str]:
    """A shard's hash."""
    key = keys.stock(world.cluster.tags[partition], product_id)
    reply = await world.cluster.command(partition, "HGETALL", key, lane=LaneKind.READ)
    assert isinstance(reply, list)
    texts = [part.decode() for part in reply]
    return dict(zip(texts[::2], texts[1::2], strict=True))


EVERYWHERE = range(PARTITIONS)
