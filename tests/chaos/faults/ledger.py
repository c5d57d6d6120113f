"""MySQL away, slow or crowded, and events that nobody can apply."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from prometheus_client import CollectorRegistry

from ledger.database import Database, Transaction
from ledger.errors import LedgerError
from ledger.metrics import LedgerMetrics
from ledger.settings import parse_url
from sharding import keys
from tests.chaos.faults.register import fault
from tests.chaos.processes import resident_bytes
from tests.chaos.scene import PARTITIONS, Scene

KILLS = 5
STALL_S = 20.0
GROWTH_BYTES_MAX = 50_000_000
RIVALRY_S = 5.0
HELD_S = 2.5
"""Longer than a worker waits for a row."""
RUBBISH: Sequence[dict[str, str]] = (
    {"nothing": ""},
    {"v": "99", "kind": "deduct", "product": "1"},
    {"v": "1", "kind": "restock", "product": "1", "quantity": "abc"},
    {"rubbish": "x" * 1_000_000},
)
APPEND = """
local number = redis.call("HINCRBY", KEYS[1], "number", 1)
local generation = redis.call("HGET", KEYS[1], "generation")
return redis.call("XADD", KEYS[2], generation .. "-" .. number, unpack(ARGV))
"""
"""An entry that no script of ours writes, where the next one belongs."""
SET_ASIDE = """
redis.call("RENAME", KEYS[1], KEYS[2])
return redis.call("SET", KEYS[1], "of another type")
"""
LOCK = "SELECT available_stock FROM product_inventory WHERE product_id = %s FOR UPDATE"
LETTERS = "SELECT COUNT(*) FROM dead_letter"


@fault("F24", "MySQL killed in mid-commit, five times")
async def mysql_killed(scene: Scene) -> None:
    database = scene.stage.stack.database
    async with scene.selling() as buyers:
        since_s = scene.broke()
        for _ in range(KILLS):
            await buyers.flows(100)
            database.process.kill()
            await buyers.flows(100)
            await database.process.start()
        scene.expect_selling(scene.all_shards, since_s)


@fault("F25", "MySQL stalls for 20 s")
async def mysql_stalls(scene: Scene) -> None:
    stage = scene.stage
    async with scene.selling():
        before = resident_bytes(stage.service_pids)
        since_s = scene.broke()
        stage.stack.database.process.pause()
        await asyncio.sleep(STALL_S)
        stage.stack.database.process.resume()
        scene.expect_selling(scene.all_shards, since_s)
        scene.expect_as_quick(scene.all_shards, since_s, times=2.0)
        growth = resident_bytes(stage.service_pids) - before
        scene.note(f"servers and workers grew by {growth / 1e6:.0f} MB")
        scene.expect(growth < GROWTH_BYTES_MAX, f"they grew by {growth} bytes")


@fault("F26", "rival transactions hold the products' rows, in the other order")
async def rivals(scene: Scene) -> None:
    async with scene.selling() as buyers:
        since_s = scene.broke()
        rival = Database(parse_url(scene.stage.stack.mysql_url), LedgerMetrics(CollectorRegistry()))
        rows = sorted([buyers.product_id, *buyers.order_products], reverse=True)

        async def run(transaction: Transaction) -> None:
            for product_id in rows:
                await transaction.row(LOCK, (product_id,))
                await asyncio.sleep(HELD_S / len(rows))

        end_s = scene.stage.now_s + RIVALRY_S
        while scene.stage.now_s < end_s:
            with suppress(LedgerError):  # it was the rival's turn to give way
                await rival.transaction(run)
        await rival.close()
        scene.expect_selling(scene.all_shards, since_s)


@fault("F30", "rubbish in a stream")
async def rubbish(scene: Scene) -> None:
    before = await _letters(scene)
    async with scene.selling() as buyers:
        master = await scene.stage.a_master()
        partition = await scene.a_partition_of(master)
        tag = keys.tags(PARTITIONS)[partition]
        scene.broke()
        for fields in RUBBISH:
            flat = [part for pair in fields.items() for part in pair]
            await master.call("EVAL", APPEND, 2, keys.head(tag), keys.events(tag, 0), *flat)
        await buyers.flows()

        async def set_aside() -> bool:
            return await _letters(scene) == before + len(RUBBISH)

        await scene.until(set_aside, "all rubbish is set aside, and nothing else")


@fault("F30-shard", "a shard's key is of another type for a while")
async def shard_of_another_type(scene: Scene) -> None:
    async with scene.selling() as buyers:
        master = await scene.stage.a_master()
        partition = await scene.a_partition_of(master)
        tag = keys.tags(PARTITIONS)[partition]
        key = keys.stock(tag, buyers.product_id)
        elsewhere = await scene.shards_elsewhere(master)
        since_s = scene.broke()
        await master.call("EVAL", SET_ASIDE, 2, key, f"{key}:aside")
        await buyers.flows()
        await master.call("RENAME", f"{key}:aside", key)
        scene.expect_selling(elsewhere, since_s)
        scene.broke()


async def _letters(scene: Scene) -> int:
    database = Database(parse_url(scene.stage.stack.mysql_url), LedgerMetrics(CollectorRegistry()))

    async def run(transaction: Transaction) -> int:
        row = await transaction.row(LETTERS, ())
        assert row is not None
        return int(row[0])

    try:
        return await database.transaction(run)
    finally:
        await database.close()
