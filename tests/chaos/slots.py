"""Moves hash slots between masters as an operator does, while everybody goes on."""

from redis.exceptions import RedisError

from deploy.local.ports import HOST
from deploy.local.redis_cluster import RedisNode
from sharding.keys import tags
from sharding.slots import slot_of
from tests.chaos.scene import PARTITIONS, Scene
from tests.chaos.stack import Stage

KEYS_AT_ONCE = 10
MIGRATE_WITHIN_MS = 5_000


async def slots_of_product(scene: Scene, node: RedisNode) -> list[int]:
    """The slots of the product's shards that a node leads."""
    stock = await scene.stage.shop.caller.get_stock(scene.buyers.product_id)
    slots = [slot_of(tags(PARTITIONS)[shard.partition]) for shard in stock.shards]
    return [
        slot for slot in slots if any(slot in each for each in await scene.stage.slots_of(node))
    ]


async def move_slot(stage: Stage, slot: int, donor: RedisNode, receiver: RedisNode) -> None:
    """All keys of a slot, and then the slot."""
    await receiver.call("CLUSTER", "SETSLOT", slot, "IMPORTING", await donor.identity())
    await donor.call("CLUSTER", "SETSLOT", slot, "MIGRATING", await receiver.identity())
    while found := await donor.call("CLUSTER", "GETKEYSINSLOT", slot, KEYS_AT_ONCE):
        await donor.call("MIGRATE", HOST, receiver.port, "", 0, MIGRATE_WITHIN_MS, "KEYS", *found)
    owner = await receiver.identity()
    for node in (receiver, donor, *await stage.masters()):
        try:
            await node.call("CLUSTER", "SETSLOT", slot, "NODE", owner)
        except RedisError:  # a replica is told by its master
            continue
