"""Floods beside healthy callers."""

import asyncio
import json

import grpc

from tests.acceptance.shop import SERVERS
from tests.bench.programs import carried_out
from tests.chaos.faults.register import fault
from tests.chaos.flooder import FLOODS, Flooded, FloodPlan
from tests.chaos.processes import served_first
from tests.chaos.scene import Scene

FLOOD_S = 3.0
QUIET = 900
"""Answers by which it is known how quick the service is without a flood."""
TOO_LARGE = grpc.StatusCode.RESOURCE_EXHAUSTED.name


@fault("F33", "floods of connections, oversize, slow HTTP/2, pings, bad TLS")
async def floods(scene: Scene) -> None:
    stack = scene.stage.stack
    ports = [stack.ports.grpc(server) for server in SERVERS]
    async with scene.selling() as buyers:
        await buyers.flows(QUIET)
        quiet_until_s = scene.broke()
        for kind in FLOODS:
            scene.broke()
            plan = FloodPlan(kind=kind, ports=ports, seconds=FLOOD_S)
            async with asyncio.timeout(10 * FLOOD_S):
                with served_first():
                    told = Flooded(**json.loads(await carried_out(plan, stack.environment())))
            wrong = {code for code in told.codes if code != TOO_LARGE}
            scene.expect(not wrong, f"{kind}: ended with {wrong}")
            scene.expect_selling(scene.all_shards, told.began_s)
            scene.expect_as_quick(scene.all_shards, told.began_s, times=3.0, before_s=quiet_until_s)
        scene.broke()
