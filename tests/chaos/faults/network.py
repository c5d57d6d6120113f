"""What lies between the servers and a Redis node."""

import asyncio

from tests.chaos.faults.register import fault
from tests.chaos.history import back_after_s, p99_s
from tests.chaos.proxy import Way
from tests.chaos.scene import Scene

SLOW_S = 0.2
LOST = 0.05
TROUBLE_S = 4.0
SOCKET_TIMEOUT_S = 1.0
"""INVENTORY_REDIS_TIMEOUT_MS."""
UNKNOWN_TRY, FIRST_TRY = 0, 1


@fault("F21", "one master answers 200 ms late")
async def one_slow(scene: Scene) -> None:
    async with scene.selling() as buyers:
        victim = await scene.stage.a_master()
        elsewhere = await scene.shards_elsewhere(victim)
        since_s = scene.broke()
        scene.stage.proxy_of(victim).latency_s = SLOW_S
        await buyers.flows(4 * 300)
        unsaying = [each for each in scene.first_tries(elsewhere) if each.attempt == UNKNOWN_TRY]
        slowest_s = p99_s([each for each in unsaying if each.started_s >= since_s])
        scene.note(f"p99 {slowest_s:.3f} s of other homes where the caller does not say which try")
        scene.expect_as_quick(elsewhere, since_s, times=2.0)
        scene.stage.proxy_of(victim).heal()
        scene.broke()


@fault("F22", "nothing comes through to one master, nor back")
async def black_hole(scene: Scene) -> None:
    async with scene.selling() as buyers:
        victim = await scene.stage.a_master()
        elsewhere = await scene.shards_elsewhere(victim)
        since_s = scene.broke()
        scene.stage.proxy_of(victim).drops = frozenset(Way)
        await asyncio.sleep(TROUBLE_S)
        noticed_s = back_after_s(
            [each for each in buyers.record.first_tries if each.attempt == FIRST_TRY],
            since_s=since_s,
            before=buyers.before,
            until_s=scene.stage.now_s,
        )
        scene.note(f"first tries went elsewhere after {noticed_s} s")
        scene.expect_in_time(
            noticed_s is not None and noticed_s <= SOCKET_TIMEOUT_S + 0.25,
            f"noticed after {noticed_s} s, the socket's time-out is {SOCKET_TIMEOUT_S} s",
        )
        scene.expect_selling(elsewhere, since_s)
        scene.stage.proxy_of(victim).heal()
        scene.broke()


@fault("F23", "one in twenty replies lost after the execution")
async def replies_lost(scene: Scene) -> None:
    async with scene.selling():
        for proxy in scene.stage.proxies:
            proxy.lost_replies = LOST
        await asyncio.sleep(TROUBLE_S)
        lost = sum(proxy.lost for proxy in scene.stage.proxies)
        for proxy in scene.stage.proxies:
            proxy.heal()
        scene.broke()
        scene.expect(lost > 0, "no reply was lost")
        scene.note(f"{lost} replies lost")
