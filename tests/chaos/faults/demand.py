"""Nothing is broken, but callers ask for more than there is, or again and again."""

import asyncio
from collections.abc import Awaitable, Callable

from inventory.client import Outcome
from tests.chaos.crowd import Crowd
from tests.chaos.faults.register import fault
from tests.chaos.scene import Scene

BURST_UNITS, BURST_BUYERS = 500, 5_000
AT_ONCE = 200
STORM = 300
COPIES = 3
CROWD_UNITS = 100_000_000
PEAK_S, OVERLOAD_S = 3.0, 10.0
OVERLOAD, GOODPUT_PART = 5, 0.8


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


@fault("F32", "five times as many buyers as can be served, for ten seconds", back_within_s=2.0)
async def overload(scene: Scene) -> None:
    async with scene.selling():
        crowd = Crowd(scene.stage, await scene.stage.shop.on_sale(CROWD_UNITS, shards=12))
        peak = await crowd.peak_per_s(PEAK_S)
        goodput = await crowd.goodput_per_s(OVERLOAD_S, rate_per_s=OVERLOAD * peak)
        scene.broke()
        scene.note(f"peak {peak:.0f}/s, {goodput:.0f}/s of {OVERLOAD * peak:.0f}/s")
        scene.note(f"{crowd.refused_for_load} OVERLOADED, {len(crowd.unknown)} unknown")
        scene.expect(
            goodput >= GOODPUT_PART * peak, f"{goodput:.0f}/s accepted of a peak of {peak:.0f}/s"
        )
    await crowd.ask_again()
    _, ledger = await scene.stage.shop.drained(crowd.product_id)
    scene.expect(not crowd.unknown, f"I8: {len(crowd.unknown)} still unknown when asked again")
    differing = crowd.accepted ^ ledger.deductions.keys()
    scene.expect(not differing, f"I5: the crowd and the journal differ in {len(differing)}")
