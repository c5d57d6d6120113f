"""Servers and workers that end in the middle of anything."""

import asyncio
import signal

from deploy.local.process import Process
from ledger.failpoints import VARIABLE as FAILPOINTS
from tests.acceptance.shop import SERVERS, WORKERS, ended
from tests.chaos.faults.register import fault
from tests.chaos.processes import is_stopped
from tests.chaos.scene import Scene
from tests.chaos.stack import LEASE_TTL_S

RESTARTS = 3
STALLS_AT = "worker.after_read=stop@20"
EXIT_WITHIN_S = 10.0
DIES_WITHIN_S = 30.0
STEPS = (
    "worker.before_read=kill@20",
    "worker.after_read=kill@2",
    "worker.before_insert=kill@2",
    "worker.after_insert=kill@2",
    "worker.before_commit=kill@2",
    "worker.after_commit=kill@2",
    "worker.before_trim=kill",
    "worker.after_trim=kill",
)
TRIMS_AT_ONCE = {"INVENTORY_TRIM_LAG_S": "0"}


@fault("F04", "a server killed", back_within_s=2.0)
async def server_killed(scene: Scene) -> None:
    async with scene.selling():
        scene.stage.stack.servers[scene.choice.choice(SERVERS)].kill()


@fault("F05", "servers restarted in turn, three times")
async def rolling_restart(scene: Scene) -> None:
    async with scene.selling() as buyers:
        for number in range(RESTARTS):
            server = scene.stage.stack.servers[SERVERS[number % len(SERVERS)]]
            server.terminate()
            code = await _exit_code(scene, server)
            scene.expect(code == 0, f"a server ended with {code} after SIGTERM")
            await server.start()
            await buyers.flows()
        scene.broke()
    given_up = buyers.record.deductions.open
    scene.expect(not given_up, f"{len(given_up)} buyers had no answer after their last try")


@fault("F28", "a worker killed at each of its steps")
async def worker_killed_at_each_step(scene: Scene) -> None:
    async with scene.selling():
        since_s = scene.broke()
        for number in WORKERS:
            await scene.stage.stop_worker(number)
        for place in STEPS:
            await _kill_worker_at(scene, place)
        for number in WORKERS:
            await scene.stage.start_worker(number)
        scene.expect_selling(scene.all_shards, since_s)


@fault("F28-stall", "a worker stalls beyond its lease, and wakes up")
async def worker_stalls(scene: Scene) -> None:
    async with scene.selling() as buyers:
        since_s = scene.broke()
        for number in WORKERS:
            await _stall_with_a_batch(scene, number)
            await buyers.flows(100)
        scene.expect_selling(scene.all_shards, since_s)
    # What restarts one of them later is not to have it stall again, and nobody to wake it up.
    await scene.stage.restart_workers()


async def _stall_with_a_batch(scene: Scene, number: int) -> None:
    """It has read events and not written them; the other one has by the time that it wakes up."""
    await scene.stage.stop_worker(number)
    worker = await scene.stage.start_worker(number, {FAILPOINTS: STALLS_AT})

    async def stalls() -> bool:
        return is_stopped(worker.pid)

    await scene.until(stalls, "the worker has read events")
    await asyncio.sleep(LEASE_TTL_S + 1.0)
    worker.resume()


async def stall_beyond_lease(scene: Scene) -> None:
    """The other worker has its partitions by then, and both think that they own them."""
    worker = scene.stage.stack.workers[scene.choice.choice(WORKERS)]
    worker.pause()
    await asyncio.sleep(LEASE_TTL_S + 1.0)
    worker.resume()


async def _kill_worker_at(scene: Scene, place: str) -> None:
    """No other worker is there, so that the victim has something to do as soon as it starts."""
    victim = await scene.stage.start_worker(WORKERS[0], {**TRIMS_AT_ONCE, FAILPOINTS: place})
    code = await _exit_code(scene, victim, within_s=DIES_WITHIN_S)
    scene.expect(code == -signal.SIGKILL, f"{place}: the worker ended with {code}")


async def _exit_code(
    scene: Scene, process: Process, *, within_s: float = EXIT_WITHIN_S
) -> int | None:
    """None: it did not end in time, and was killed."""
    try:
        return await ended(process, within_s=within_s)
    except TimeoutError:
        scene.report.wrong.append(f"{process.name} had not ended after {within_s:g} s")
        process.kill()
        return None
