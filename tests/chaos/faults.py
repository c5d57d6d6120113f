"""The faults, by their numbers: what each breaks, and what must hold besides what the oracle asks.

Each strikes while buyers buy; see scene.py. A node that is silent for two seconds is failed over
(redis.conf).
"""

import asyncio
from collections.abc import Awaitable, Callable

from inventory.client import Outcome
from tests.acceptance.shop import SERVERS
from tests.chaos.scene import Fault, Scene

NODE_TIMEOUT_S = 2.0
BURST_UNITS, BURST_BUYERS = 500, 5_000
AT_ONCE = 200
STORM = 300

FAULTS: dict[str, Fault] = {}


def fault(
    number: str, name: str, *, back_within_s: float = 2.0
) -> Callable[[Callable[[Scene], Awaitable[None]]], Callable[[Scene], Awaitable[None]]]:
    """Enter a strike in the register."""

    def register(strike: Callable[[Scene], Awaitable[None]]) -> Callable[[Scene], Awaitable[None]]:
        assert number not in FAULTS
        FAULTS[number] = Fault(number, name, strike, back_within_s)
        return strike

    return register


async def together(number: int, call: Callable[[], Awaitable[object]]) -> None:
    """So many calls, some of them at a time."""
    places = asyncio.Semaphore(AT_ONCE)

    async def one() -> None:
        async with places:
            await call()

    await asyncio.gather(*(one() for _ in range(number)))


@fault("F01", "oversubscribed burst, nothing broken")
async def burst(scene: Scene) -> None:
    buyers = await scene.put_on_sale(BURST_UNITS, orders=False)

    async def buy() -> None:
        purchase = buyers.purchase(quantity=1)
        await buyers.buy(purchase, attempt=1)

    await together(BURST_BUYERS, buy)
    history = buyers.record.deductions
    scene.expect(
        len(history.accepted) == BURST_UNITS, f"{len(history.accepted)} of {BURST_UNITS} sold"
    )
    scene.expect(history.refused == BURST_BUYERS - BURST_UNITS, f"{history.refused} refused")


@fault("F02", "retry storm: each request three times at once over two servers")
async def storm(scene: Scene) -> None:
    buyers = await scene.put_on_sale(orders=False)
    purchases = [buyers.purchase() for _ in range(STORM)]
    for each in purchases:
        buyers.record.wants(each)
    copies = iter(purchases * 3)
    await together(3 * STORM, lambda: buyers.ask(next(copies), attempt=0))
    told = [each for each in buyers.record.tries if each.outcome is Outcome.DEDUCTED]
    first = [each for each in told if not each.replayed]
    scene.expect(len(first) == STORM, f"{len(first)} effects of {STORM} requests")
    scene.expect(len(told) == 3 * STORM, f"{3 * STORM - len(told)} copies were not told so")


@fault("F04", "a server killed", back_within_s=2.0)
async def server_killed(scene: Scene) -> None:
    async with scene.selling():
        scene.stage.stack.servers[scene.choice.choice(SERVERS)].kill()


@fault("F06", "a Redis master killed, and restarted later", back_within_s=NODE_TIMEOUT_S + 3)
async def master_killed(scene: Scene) -> None:
    async with scene.selling() as buyers:
        victim = await scene.stage.a_master()
        elsewhere = await scene.shards_elsewhere(victim)
        since_s = scene.broke()
        scene.stage.kill_node(victim)
        await buyers.flows()
    scene.expect_selling(elsewhere, since_s)
