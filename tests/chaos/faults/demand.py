"""Nothing is broken, but callers ask for more than there is, or again and again."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from inventory.client import DeductItem, Outcome
from tests.acceptance.shop import SERVERS
from tests.bench.programs import carried_out
from tests.chaos.crowd import SIZE, CrowdPlan, Ids, Told
from tests.chaos.faults.register import fault
from tests.chaos.processes import served_after_others, served_first
from tests.chaos.scene import Scene
from tests.chaos.stack import DEADLINE_S, Stage

BURST_UNITS, BURST_BUYERS = 500, 5_000
AT_ONCE = 200
STORM = 300
COPIES = 3
CROWD_UNITS, CROWD_SHARDS = 100_000_000, 12
PEAK_S, OVERLOAD_S, BACK_S = 6.0, 10.0, 2.0
OVERLOAD, GOODPUT_PART = 5, 0.8
SENT_PART = 0.9
"""Of what the crowd was to send; with less, it is the crowd that is measured."""
FEW_PER_S, BESIDE_PER_S = 100, 25
"""Buyers before and after the crowd, and beside it, where each tries four times: they are to tell, not
to burden, and a call of one is not much cheaper than a refused batch of the crowd."""
SETTLED = 600
"""Answers by which it is known how quick the service is afterwards."""


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


@fault("F32", "five times as many buyers as can be served, for ten seconds", back_within_s=BACK_S)
async def overload(scene: Scene) -> None:
    ids = scene.stage.stack.directory / "crowd.json"
    async with scene.selling(rate_per_s=FEW_PER_S) as buyers:
        begun_s = scene.stage.now_s
        product_id = await scene.stage.shop.on_sale(CROWD_UNITS, shards=CROWD_SHARDS)
        with served_after_others(scene.stage.ledger_pids):
            buyers.rate_per_s = BESIDE_PER_S
            with served_first():
                told = await _crowd(scene.stage, product_id, ids)
            buyers.rate_per_s = FEW_PER_S
            scene.broke(told.ended_s)
            _judge_goodput(scene, told)
            await buyers.flows(SETTLED)
        scene.expect_quick_again(before_s=begun_s, after_s=told.ended_s + BACK_S)
    # Only now: it keeps this process, and so the network, busy for a second.
    await _compare_with_journal(scene, product_id, Ids(**json.loads(ids.read_text())))


async def _crowd(stage: Stage, product_id: int, ids: Path) -> Told:
    """Overload one product."""
    plan = CrowdPlan(
        targets=[stage.stack.grpc_address(each) for each in SERVERS],
        product_id=product_id,
        peak_s=PEAK_S,
        overload_s=OVERLOAD_S,
        times=OVERLOAD,
        deadline_s=DEADLINE_S,
        ids=str(ids),
    )
    return Told(**json.loads(await carried_out(plan, stage.stack.environment())))


def _judge_goodput(scene: Scene, told: Told) -> None:
    peak, goodput, offered = told.peak_per_s, told.goodput_per_s, told.offered_per_s
    scene.note(
        f"peak {peak:.0f}/s; {goodput:.0f}/s of {offered:.0f}/s, {goodput / peak:.0%} of the peak; "
        f"{told.refused_for_load} OVERLOADED, {told.undecided} undecided; "
        f"the crowd used {told.cpu_part:.0%} of a processor"
    )
    scene.expect_in_time(
        offered >= SENT_PART * OVERLOAD * peak,
        f"the crowd sent {offered:.0f}/s, {offered / peak:.1f} times the peak",
    )
    scene.expect_in_time(
        goodput >= GOODPUT_PART * peak, f"{goodput:.0f}/s accepted of a peak of {peak:.0f}/s"
    )


async def _compare_with_journal(scene: Scene, product_id: int, ids: Ids) -> None:
    accepted = {*ids.accepted, *await _ask_again(scene.stage, product_id, ids.undecided)}
    _, ledger = await scene.stage.shop.drained(product_id)
    differing = accepted ^ ledger.deductions.keys()
    scene.expect(not differing, f"I5: the crowd and the journal differ in {len(differing)}")


async def _ask_again(stage: Stage, product_id: int, names: Sequence[str]) -> set[str]:
    """Whoever has no answer asks until they have one; returns who was accepted."""
    accepted: set[str] = set()
    for start in range(0, len(names), SIZE):
        items = [
            DeductItem(product_id, 1, request_id=name, attempt=2)
            for name in names[start : start + SIZE]
        ]
        answers = await stage.shop.caller.batch_deduct(items)
        assert all(answer.outcome is Outcome.DEDUCTED for answer in answers)
        accepted.update(answer.request_id for answer in answers)
    return accepted
