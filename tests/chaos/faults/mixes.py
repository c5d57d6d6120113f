"""Everything in any order, and everything in virtual time."""

import asyncio
import signal
from collections.abc import Awaitable, Callable

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
"""A minute, of all servers and workers that lived through the second half."""
JUDGED_FROM_S = 120.0
"""In less time a process that was just started has not filled what it keeps: it is only told."""
DESCRIPTORS_SLACK = 50
SEEDS = 40
"""A part of what `python -m tests.simulation --seeds 2000` plays."""


async def _server_killed(scene: Scene) -> None:
    server = scene.stage.stack.servers[scene.choice.choice(SERVERS)]
    server.kill()
    await server.start()


async def _worker_killed(scene: Scene) -> None:
    worker = scene.stage.stack.workers[scene.choice.choice(WORKERS)]
    worker.kill()
    await worker.start()


async def _worker_asked_to_end(scene: Scene) -> None:
    worker = scene.stage.stack.workers[scene.choice.choice(WORKERS)]
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
        begun_s, middle_s = stage.now_s, 0.0
        middle: dict[int, int] = {}
        struck = 0
        while (passed_s := stage.now_s - begun_s) < scene.mix_s:
            if not middle and passed_s > scene.mix_s / 2:
                middle, middle_s = resident_bytes_each(stage.service_pids), stage.now_s
            strike = scene.choice.choice(STRIKES)
            await strike(scene)
            struck += 1
            await buyers.flows(BREATH)
        scene.broke()
        _judge_memory(scene, middle, stage.now_s - middle_s)
        more = descriptors(stage.service_pids) - files
        scene.note(f"{struck} strikes; {more:+} descriptors")
    scene.expect(more <= DESCRIPTORS_SLACK, f"{more} descriptors more than at the begin")


def _judge_memory(scene: Scene, middle: dict[int, int], passed_s: float) -> None:
    now = resident_bytes_each(scene.stage.service_pids)
    growth = sum(now[pid] - middle[pid] for pid in now.keys() & middle.keys())
    slope = growth / passed_s * 60
    scene.note(f"memory {slope / 1e6:+.1f} MB a minute")
    if passed_s >= JUDGED_FROM_S:
        scene.expect(slope < MEMORY_SLOPE_BYTES_MAX, f"memory grows by {slope:.0f} bytes a minute")


@fault("F36", "the scripts in virtual time, see tests/simulation")
async def simulation(scene: Scene) -> None:
    first = scene.choice.randrange(1_000_000)
    seeds = ("--seeds", str(SEEDS), "--first", str(first))
    await scene.stage.stack.run_python("simulation", "-m", "tests.simulation", *seeds)
    scene.note(f"{SEEDS} seeds from {first} on")
