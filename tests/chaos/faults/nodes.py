"""Redis nodes that die, stall, lose their data or their room, or hand their slots on."""

import asyncio
import resource
import shutil
from collections.abc import Collection
from contextlib import suppress

from redis.exceptions import RedisError

from deploy.local.process import Process
from deploy.local.redis_cluster import RedisNode
from inventory.client import Outcome
from tests.chaos.faults.register import NODE_TIMEOUT_S, fault
from tests.chaos.load import PASSING, Buyers
from tests.chaos.scene import Scene
from tests.chaos.slots import move_slot, slots_of_product

RESTORED = "inventory_worker_partitions_restored_total"
RESTORING = "inventory_worker_partitions_restoring"
EVENTS_LOST = "inventory_worker_restored_events_lost_total"
NOTICED_S, HEARD_S = 1.0, 2.5
FAST = {"INVENTORY_DURABILITY": "fast"}
STALLS, STALL_S = 10, 1.0
FAILOVERS = 5
WITHOUT_REPLICA_S = 10.0
UNDER_WAY_S = 1.0
"""What was answered by then may have been acknowledged by the replica that is gone."""
FLUSH_EVERY_S, FLUSHES = 0.2, 10
SLOT_ROUNDS = 3
RETURNS = 3
SOLD_SINCE = 300
"""Answers between the data that a node comes back with and its end."""
SOLD_UNREPLICATED = 300
"""Answers between the cut of the replication and its master's death."""


@fault("F06", "a master killed, and restarted later", back_within_s=NODE_TIMEOUT_S + 3)
async def master_killed(scene: Scene) -> None:
    async with scene.selling():
        victim = await scene.stage.a_master()
        elsewhere = await scene.shards_elsewhere(victim)
        since_s = scene.broke()
        scene.stage.kill_node(victim)
    scene.expect_selling(elsewhere, since_s)


@fault(
    "F06-again", "a master killed and at once started again, ×3", back_within_s=NODE_TIMEOUT_S + 3
)
async def master_back_at_once(scene: Scene) -> None:
    """Nobody is promoted, as a rule: it is the node that it was, and has all that it has said."""
    async with scene.selling() as buyers:
        for _ in range(RETURNS):
            victim = await scene.stage.a_master()
            elsewhere = await scene.shards_elsewhere(victim)
            since_s = scene.broke()
            scene.stage.kill_node(victim)
            await scene.stage.start_node(victim)
            await scene.expect_back()
            await scene.stage.until_settled()
            await buyers.flows(100)
            scene.expect_selling(elsewhere, since_s)
        scene.broke()


@fault("F06-older", "a master comes back at once with older data", back_within_s=10.0)
async def master_back_with_older_data(scene: Scene) -> None:
    """As the node that it was, so its replica forgets with it: the ledger gives it what it lacks."""
    scene.may_lose = True  # the ledger is some milliseconds behind
    async with scene.selling() as buyers:
        victim = await scene.stage.a_master()
        data = victim.directory / "appendonlydir"
        older = data.with_name("older")
        shutil.copytree(data, older)
        await buyers.flows(SOLD_SINCE)
        elsewhere = await scene.shards_elsewhere(victim)
        restored = await scene.stage.counted(RESTORED)
        since_s = scene.broke()
        scene.stage.kill_node(victim)
        shutil.rmtree(data)
        older.rename(data)
        await scene.stage.start_node(victim)

    scene.expect_selling(elsewhere, since_s)
    if await victim.is_master():
        scene.expect(
            await scene.stage.counted(RESTORED) > restored, "nothing was restored from the ledger"
        )
    else:
        scene.note("its replica was promoted before it was back")


@fault("F07", "replication cut, then the master killed", back_within_s=NODE_TIMEOUT_S + 3)
async def master_killed_unreplicated(scene: Scene) -> None:
    """Nor does the ledger hear of it: what was lost is to be nowhere."""
    async with scene.selling() as buyers:
        await _kill_unreplicated(scene, buyers, scene.stage.stack.workers.values())


async def _kill_unreplicated(
    scene: Scene, buyers: Buyers, silenced: Collection[Process]
) -> RedisNode:
    """Returns the replica, which lacks what was sold last."""
    while len(buyers.record.deductions.accepted) < scene.sold:
        await buyers.flows()
    master = await scene.stage.a_master()
    replica = await scene.stage.replica_of(master)
    # So that the master goes on by itself, and WAIT alone keeps what it did from being acknowledged.
    await master.call("CONFIG", "SET", "min-replicas-to-write", 0)
    replica.process.pause()
    await master.call("CLIENT", "KILL", "TYPE", "replica")
    for process in silenced:
        process.pause()
    await buyers.flows(SOLD_UNREPLICATED)
    scene.broke()
    scene.stage.kill_node(master)
    for process in (replica.process, *silenced):
        process.resume()
    return replica


async def _notice_loss(scene: Scene, replica: RedisNode, restored: float) -> None:
    """A worker compares the node that leads now with the ledger, and gives it what it lacks."""

    async def is_noticed() -> bool:
        began = await scene.stage.counted(RESTORING)
        return began > 0 or await scene.stage.counted(RESTORED) > restored

    async def is_restored() -> bool:
        return await scene.stage.counted(RESTORED) > restored

    await scene.until(replica.is_master, "the replica takes over")
    led_s = scene.stage.now_s
    await scene.until(is_noticed, "a worker finds that the replica lacks something")
    took_s = scene.stage.now_s - led_s
    await scene.until(is_restored, "a worker restores what the replica lacks")
    await scene.until(scene.stage.all_open, "all partitions are open")
    scene.note(f"noticed {took_s:.2f} s after the replica led")
    scene.expect_in_time(took_s <= NOTICED_S, f"the loss was noticed after {took_s:.2f} s")


@fault("F07-fast", "the same where answers wait for no replica", back_within_s=NODE_TIMEOUT_S + 3)
async def master_killed_unreplicated_fast(scene: Scene) -> None:
    """The ledger hears of it, and must not be contradicted by the node that did not."""
    scene.may_lose = True
    stage = scene.stage
    await stage.restart_servers(FAST)
    await stage.restart_workers(FAST)
    try:
        async with scene.selling() as buyers:
            restored, told = await stage.counted(RESTORED), await stage.counted(EVENTS_LOST)
            replica = await _kill_unreplicated(scene, buyers, silenced=())
            await _notice_loss(scene, replica, restored)
        # By now whoever had seen what was lost has come by again, and a worker looks once a second.
        await asyncio.sleep(HEARD_S)
        scene.named = await stage.counted(EVENTS_LOST) - told
        scene.note(f"events lost and named: {scene.named:.0f}")
    finally:
        await stage.heal()
        await stage.restart_servers()
        await stage.restart_workers()


@fault("F09", "a master stalls for a second, ten times", back_within_s=2.0)
async def master_stalls(scene: Scene) -> None:
    async with scene.selling() as buyers:
        leading = {node.address for node in await scene.stage.masters()}
        for _ in range(STALLS):
            victim = await scene.stage.a_master()
            victim.process.pause()
            await asyncio.sleep(STALL_S)
            victim.process.resume()
            await buyers.flows(100)
        scene.broke()
        now = {node.address for node in await scene.stage.masters()}
        scene.expect(now == leading, "a stall below the node time-out led to a failover")


@fault("F10", "a replica told to take over, five times", back_within_s=1.0)
async def failovers(scene: Scene) -> None:
    async with scene.selling():
        masters = await scene.stage.masters()
        pairs = [(master, await scene.stage.replica_of(master)) for master in masters]
        for number in range(FAILOVERS):
            # In turn: a node that has taken over before, some seconds ago, may count its old votes
            # (Redis 7.0) and is then overruled.
            round_, pair = divmod(number, len(pairs))
            replica = pairs[pair][1 - round_]
            await replica.call("CLUSTER", "FAILOVER")
            scene.broke()
            await scene.until(replica.is_master, "the replica takes over")
            await scene.stage.until_settled()
            await scene.expect_back()


@fault("F12", "slots move away and back under load, three times")
async def slots_move(scene: Scene) -> None:
    async with scene.selling() as buyers:
        donor, receiver = (await scene.stage.masters())[:2]
        for _ in range(SLOT_ROUNDS):
            moving = await slots_of_product(scene, donor)
            for slot in moving:
                await move_slot(scene.stage, slot, donor, receiver)
            await buyers.flows(100)
            for slot in moving:
                await move_slot(scene.stage, slot, receiver, donor)
            await buyers.flows(100)
        scene.broke()


@fault("F14", "scripts forgotten every 200 ms, also at a failover", back_within_s=1.0)
async def scripts_flushed(scene: Scene) -> None:
    async with scene.selling() as buyers:
        begun = len(buyers.record.tries)
        await _flush_scripts(scene)
        odd = [each for each in buyers.record.tries[begun:] if each.outcome in PASSING]
        scene.expect(not odd, f"{len(odd)} calls noticed, the first: {odd[:1]}")
        replica = await scene.stage.replica_of(await scene.stage.a_master())
        await replica.call("CLUSTER", "FAILOVER")
        scene.broke()
        await _flush_scripts(scene)


async def _flush_scripts(scene: Scene) -> None:
    for _ in range(FLUSHES):
        await scene.stage.on_nodes("SCRIPT", "FLUSH", "SYNC")
        await asyncio.sleep(FLUSH_EVERY_S)


@fault("F15", "FLUSHALL on a master in the middle of the sale", back_within_s=10.0)
async def master_emptied(scene: Scene) -> None:
    scene.may_lose = (
        True  # its replica is emptied with it, and the ledger is some milliseconds behind
    )
    async with scene.selling():
        victim = await scene.stage.a_master()
        elsewhere = await scene.shards_elsewhere(victim)
        since_s = scene.broke()
        await victim.call("FLUSHALL")
    scene.expect_selling(elsewhere, since_s)


@fault("F17", "a master's memory is full")
async def memory_full(scene: Scene) -> None:
    async with scene.selling() as buyers:
        victim = await scene.stage.a_master()
        elsewhere = await scene.shards_elsewhere(victim)
        held = await buyers.held_orders(20)
        since_s = scene.broke()
        await victim.call("CONFIG", "SET", "maxmemory", 1)
        outcomes = [await buyers.ask_order(order_id, "release") for order_id in held]
        await buyers.flows()
        await victim.call("CONFIG", "SET", "maxmemory", "1gb")
        scene.expect_selling(elsewhere, since_s)
        scene.broke()
    given_back = outcomes.count(Outcome.RELEASED)
    scene.expect(given_back == len(held), f"{given_back} of {len(held)} holds were released")


@fault("F18", "a master's disk is full")
async def disk_full(scene: Scene) -> None:
    async with scene.selling() as buyers:
        victim = await scene.stage.a_master()
        elsewhere = await scene.shards_elsewhere(victim)
        since_s = scene.broke()
        _let_files_grow(victim, at_most_bytes=_log_bytes(victim))
        await scene.until(lambda: _cannot_write(victim), "its log cannot be written")
        await buyers.flows(600)
        _let_files_grow(victim, at_most_bytes=resource.RLIM_INFINITY)
        scene.expect_selling(elsewhere, since_s)
        scene.broke()


def _let_files_grow(node: RedisNode, *, at_most_bytes: int) -> None:
    """A write beyond that fails, as on a full disk: the leash has the signal for it ignored."""
    limits = (at_most_bytes, resource.RLIM_INFINITY)
    resource.prlimit(node.process.pid, resource.RLIMIT_FSIZE, limits)


def _log_bytes(node: RedisNode) -> int:
    """Of its append-only log."""
    return max(each.stat().st_size for each in node.directory.rglob("*.incr.aof"))


async def _cannot_write(node: RedisNode) -> bool:
    return str((await node.call("INFO", "persistence"))["aof_last_write_status"]) != "ok"


@fault("F19", "a master without its replica for ten seconds")
async def no_replica(scene: Scene) -> None:
    async with scene.selling():
        master = await scene.stage.a_master()
        replica = await scene.stage.replica_of(master)
        elsewhere = await scene.shards_elsewhere(master)
        since_s = scene.broke()
        scene.stage.kill_node(replica)
        await _without_acknowledgements(scene, master)
        first = len(scene.buyers.record.tries)
        await asyncio.sleep(WITHOUT_REPLICA_S)
        told = scene.buyers.record.tries[first:]
        scene.expect_selling(elsewhere, since_s)
        unreplicated = await scene.accepted_at(master, told)
        scene.expect(not unreplicated, f"I2: {unreplicated} were acknowledged without a replica")
        await scene.stage.start_node(replica)
        with suppress(RedisError):
            await scene.until(replica.settled, "the replica follows")
        scene.broke()


async def _without_acknowledgements(scene: Scene, master: RedisNode) -> None:
    """Until it knows that nobody follows, and what was under way is over."""

    async def is_alone() -> bool:
        return int((await master.call("INFO", "replication"))["connected_slaves"]) == 0

    await scene.until(is_alone, "the master knows that nobody follows")
    await asyncio.sleep(UNDER_WAY_S)
