"""Nothing is broken, but callers ask for more than there is, or again and again."""

import asyncio
from collections.abc import Awaitable, Callable

from inventory.client import Outcome
from tests.chaos.faults.register import fault
from tests.chaos.scene import Scene

BURST_UNITS, BURST_BUYERS = 500, 5_000
AT_ONCE = 200
STORM = 300
COPIES = 3


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
    await together(BURST_BUYERS, lambda: buyers.buy(buyers.purchase(quantity=1), attempt=1))
    history = buyers.record.deductions
    sold, refused = len(history.accepted), history.refused
    scene.expect(sold == BURST_UNITS, f"I2, I3: {sold} of {BURST_UNITS} sold")
    scene.expect(refused == BURST_BUYERS - BURST_UNITS, f"I3: {refused} refused")


@fault("F02", "each request three times at once over two servers")
async def storm(scene: Scene) -> None:
    buyers = await scene.put_on_sale(orders=False)
    purchases = [buyers.purchase() for _ in range(STORM)]
    for each in purchases:
        buyers.record.wants(each)
    copies = iter([each for each in purchases for _ in range(COPIES)])
    await together(COPIES * STORM, lambda: buyers.ask(next(copies), attempt=0))
    told = [each for each in buyers.record.tries if each.outcome is Outcome.DEDUCTED]
    effects = sum(not each.replayed for each in told)
    scene.expect(effects == STORM, f"I4: {effects} effects of {STORM} requests")
    scene.expect(
        len(told) == COPIES * STORM, f"I4: {COPIES * STORM - len(told)} copies not told so"
    )
