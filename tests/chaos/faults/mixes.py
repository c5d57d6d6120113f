"""Everything in any order, and everything in virtual time."""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Sequence

from tests.acceptance.shop import SERVERS, WORKERS
from tests.chaos.faults.processes import stall_beyond_lease
from tests.chaos.faults.register import fault
from tests.chaos.processes import descriptors, resident_bytes_each
from tests.chaos.proxy import Way
from tests.chaos.scene import Scene

BREATH = 150
"""Answers between two strikes."""
TROUBLE_S = 1.0
SLOW_S = 0.05
LOST = 0.05
CUT_BYTES_MAX = 20_000
MEMORY_SLOPE_BYTES_MAX = 1_000_000
"""A minute, of the server and the worker that live through all of it."""
JUDGED_FROM_S = 240.0
"""In less time a process that was just started has not filled what it keeps: it is only told."""
GARBAGE_BYTES = 15_000_000
"""So much more of what servers have may be garbage that they have not looked for yet."""
DESCRIPTORS_SLACK = 50
KILLED_SERVER, KILLED_WORKER = SERVERS[-1], WORKERS[-1]
"""The others meet everything else, and live to tell how their memory grows."""
SEEDS = 40
"""A part of what `python -m tests.simulation --seeds 2000` plays."""


async def _server_killed(scene: Scene) -> None:
    server = scene.stage.stack.servers[KILLED_SERVER]
    server.kill()
    await server.start()


async def _worker_killed(scene: Scene) -> None:
    worker = scene.stage.stack.workers[KILLED_WORKER]
    worker.kill()
    await worker.start()


async def _worker_asked_to_end(scene: Scene) -> None:
    worker = scene.stage.stack.workers[KILLED_WORKER]
    await worker.restart()


async def _worker_stalls(scene: Scene) -> None:
    await stall_beyond_lease(scene)


async def _master_stalls(scene: Scene) -> None:
    victim = await scene.stage.a_master()
    victim.process.pause()
    await asyncio.sleep(TROUBLE_S)
    victim.process.resume()


async def _replica_away(scene: Scene) -> None:
    victim = await scene.stage.replica_of(await scene.stage.a_master())
    scene.stage.kill_node(victim)
    await asyncio.sleep(TROUBLE_S)
    await scene.stage.start_node(victim)
    await scene.stage.until_settled()


async def _master_away(scene: Scene) -> None:
    victim = await scene.stage.a_master()
    scene.stage.kill_node(victim)
    await asyncio.sleep(3 * TROUBLE_S)
    await scene.stage.start_node(victim)
    await scene.stage.until_settled()


async def _connections_reset(scene: Scene) -> None:
    for proxy in scene.stage.proxies:
        proxy.reset()


async def _connections_cut(scene: Scene) -> None:
    for proxy in scene.stage.proxies:
        proxy.cut_after_bytes = scene.choice.randint(1, CUT_BYTES_MAX)


async def _one_slow(scene: Scene) -> None:
    proxy = scene.stage.proxy_of(await scene.stage.a_master())
    proxy.latency_s = SLOW_S
    await asyncio.sleep(TROUBLE_S)
    proxy.heal()


async def _one_silent(scene: Scene) -> None:
    proxy = scene.stage.proxy_of(await scene.stage.a_master())
    proxy.drops = frozenset(scene.choice.choice(([Way.REPLIES], [Way.REQUESTS], list(Way))))
    await asyncio.sleep(TROUBLE_S)
    proxy.heal()


async def _replies_lost(scene: Scene) -> None:
    for proxy in scene.stage.proxies:
        proxy.lost_replies = LOST
    await asyncio.sleep(TROUBLE_S)
    for proxy in scene.stage.proxies:
        proxy.heal()


async def _scripts_flushed(scene: Scene) -> None:
    await scene.stage.on_nodes("SCRIPT", "FLUSH", "SYNC")


async def _mysql_stalls(scene: Scene) -> None:
    process = scene.stage.stack.database.process
    process.signal(signal.SIGSTOP)
    await asyncio.sleep(TROUBLE_S)
    process.resume()


async def _mysql_killed(scene: Scene) -> None:
    scene.stage.stack.database.process.kill()
    await scene.stage.stack.database.process.start()


STRIKES: tuple[Callable[[Scene], Awaitable[None]], ...] = (
    _server_killed,
    _worker_killed,
    _worker_asked_to_end,
    _worker_stalls,
    _master_stalls,
    _replica_away,
    _master_away,
    _connections_reset,
    _connections_cut,
    _one_slow,
    _one_silent,
    _replies_lost,
    _scripts_flushed,
    _mysql_stalls,
    _mysql_killed,
)


@fault("F35", "everything, one after the other, in an order that the seed says", back_within_s=5.0)
async def mix(scene: Scene) -> None:
    stage = scene.stage
    async with scene.selling() as buyers:
        files = descriptors(stage.service_pids)
        begun_s = stage.now_s
        memory: list[dict[int, int]] = []
        while stage.now_s - begun_s < scene.mix_s:
            strike = scene.choice.choice(STRIKES)
            await strike(scene)
            await buyers.flows(BREATH)
            memory.append(resident_bytes_each(stage.service_pids))
        scene.broke()
        _judge_memory(scene, memory, stage.now_s - begun_s)
        more = descriptors(stage.service_pids) - files
        scene.note(f"{len(memory)} strikes; {more:+} descriptors")
    scene.expect(more <= DESCRIPTORS_SLACK, f"{more} descriptors more than at the begin")


def _judge_memory(scene: Scene, memory: Sequence[dict[int, int]], passed_s: float) -> None:
    """By the least that processes had in the last third and in the one before: in between there is
    garbage that has not been looked for yet. `memory`: of each process, from time to time."""
    third = len(memory) // 3
    if not third:
        return
    middle, last = memory[third : 2 * third], memory[2 * third :]
    lived = set.intersection(*(set(each) for each in (*middle, *last)))
    growth = sum(_least(last, pid) - _least(middle, pid) for pid in lived)
    minutes = passed_s / 3 / 60
    scene.note(f"memory {growth / 1e6:+.1f} MB in {minutes:.1f} minutes, of {len(lived)} processes")
    scene.expect(bool(lived), "no process lived through the last two thirds")
    if passed_s >= JUDGED_FROM_S:
        allowed = minutes * MEMORY_SLOPE_BYTES_MAX + GARBAGE_BYTES
        scene.expect(growth < allowed, f"memory grew by {growth} bytes")


def _least(memory: Sequence[dict[int, int]], pid: int) -> int:
    return min(each[pid] for each in memory)


@fault("F36", "the scripts in virtual time, see tests/simulation")
async def simulation(scene: Scene) -> None:
    first = scene.choice.randrange(1_000_000)
    seeds = ("--seeds", str(SEEDS), "--first", str(first))
    await scene.stage.stack.run_python("simulation", "-m", "tests.simulation", *seeds)
    scene.note(f"{SEEDS} seeds from {first} on")
