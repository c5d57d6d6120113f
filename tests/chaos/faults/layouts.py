"""Nodes that lose their data while units are on their way between the shards of products."""

import asyncio
from collections.abc import Collection
from contextlib import suppress
from functools import partial

from deploy.local.redis_cluster import RedisNode
from inventory.client import DeductItem, InventoryError, Outcome
from tests.chaos.faults.register import fault
from tests.chaos.scene import Scene
from tests.chaos.stack import DEADLINE_S

PRODUCTS, UNITS, PIECE = 8, 3_000, 100
SHARDS_BEFORE, SHARDS_AFTER = (3, 6, 12), (1, 2, 4, 8, 16, 48)
BEGUN_WITHIN_S, STRUCK_WITHIN_S = 0.2, 0.35
"""So changes of the shard count, and the units that they move, are at all of their steps."""
ROUNDS = 3
WHOLE_WITHIN_S = 30.0


@fault("F15-layout", "all masters, or one, emptied while products change their shards")
async def emptied_while_shards_change(scene: Scene) -> None:
    for _ in range(ROUNDS):
        await _strike(scene, await scene.stage.masters())
    for _ in range(ROUNDS):
        await _strike(scene, [await scene.stage.a_master()])


async def _strike(scene: Scene, victims: Collection[RedisNode]) -> None:
    """Nothing is sold meanwhile: all units must be there again, and are sold then."""
    shop, choice = scene.stage.shop, scene.choice
    products = [
        await shop.on_sale(UNITS, shards=choice.choice(SHARDS_BEFORE)) for _ in range(PRODUCTS)
    ]
    for product_id in products:
        await shop.drained(product_id)
    async with asyncio.TaskGroup() as changes:
        for product_id in products:
            changes.create_task(_change(scene, product_id, choice.choice(SHARDS_AFTER)))
        await asyncio.sleep(choice.uniform(0, STRUCK_WITHIN_S))
        await asyncio.gather(*(victim.call("FLUSHALL") for victim in victims))
    await scene.until(scene.stage.all_open, "all partitions are open")
    for product_id in products:
        what = f"product {product_id} has all its units"
        if await scene.until(partial(_is_whole, scene, product_id), what, within_s=WHOLE_WITHIN_S):
            await _sell_out(scene, product_id)


async def _change(scene: Scene, product_id: int, shards: int) -> None:
    """What does not come about by that is brought about by the workers."""
    await asyncio.sleep(scene.choice.uniform(0, BEGUN_WITHIN_S))
    with suppress(InventoryError):
        await scene.stage.shop.caller.set_shards(product_id, shards, deadline_s=DEADLINE_S)


async def _is_whole(scene: Scene, product_id: int) -> bool:
    try:
        stock = await scene.stage.shop.caller.get_stock(product_id)
    except InventoryError:
        return False
    return not stock.inexact and (stock.available, stock.in_transit) == (UNITS, 0)


async def _sell_out(scene: Scene, product_id: int) -> None:
    """Exactly all units, in pieces."""
    names = [f"all-{product_id}-{number}" for number in range(UNITS // PIECE + 1)]
    items = [DeductItem(product_id, PIECE, request_id=name) for name in names]
    told = [(await scene.stage.shop.caller.deduct_item(item)).outcome for item in items]
    sold = told.count(Outcome.DEDUCTED) * PIECE
    scene.expect(sold == UNITS, f"I1, I3: {sold} of {UNITS} units of product {product_id} sold")
    scene.expect(told[-1] is Outcome.INSUFFICIENT_STOCK, f"I2: the last was told {told[-1]}")
