"""Gates of several MySQL servers: products of each go where their own gate sends them."""

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import structlog
from prometheus_client import CollectorRegistry

from ledger.servers import Place
from server.gate import Gate, Gates, Stance
from server.metrics import Metrics
from server.modes import ModeKeepers
from sharding.outcomes import Answer, Deduction, Outcome, Reason
from sharding.placement import ledger_of

SERVERS = 3


class Till:
    """Answers with the number of its last customer."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.served: list[list[int]] = []

    def deduct(self, deductions: Sequence[Deduction]) -> asyncio.Future[list[Answer]]:
        done: asyncio.Future[list[Answer]] = asyncio.get_running_loop().create_future()
        self.served.append([each.product_id for each in deductions])
        answers = [Answer(Outcome.DEDUCTED, shard=each.product_id) for each in deductions]
        asyncio.get_running_loop().call_soon(done.set_result, answers)
        return done


def gates_of(live: Till, buffers: Sequence[Till]) -> tuple[Gates, CollectorRegistry]:
    registry = CollectorRegistry()
    metrics = Metrics(registry, servers=len(buffers))
    log = cast(Any, structlog.testing.CapturingLogger())
    places = [Place(index, len(buffers)) for index in range(len(buffers))]
    made = [
        Gate(live, buffer, metrics, log, place=place)
        for buffer, place in zip(buffers, places, strict=True)
    ]
    return Gates(made), registry


async def test_where_all_agree_a_list_goes_whole() -> None:
    live, buffers = Till("live"), [Till("buffer") for _ in range(SERVERS)]
    gates = gates_of(live, buffers)[0]
    for gate in gates.all:
        gate.turn(Stance.LIVE)
    products = list(range(1, 9))
    await gates.sales.deduct([Deduction("r", each, 1) for each in products])
    assert live.served == [products]
    assert (gates.are_live, gates.take_deductions, gates.objection) == (True, True, Reason.NONE)


async def test_where_they_differ_each_request_goes_to_its_own_and_answers_keep_their_order() -> (
    None
):
    live, buffers = Till("live"), [Till(f"buffer {each}") for each in range(SERVERS)]
    gates, registry = gates_of(live, buffers)
    for gate, stance in zip(gates.all, (Stance.LIVE, Stance.BUFFER, Stance.LEAVING), strict=True):
        gate.turn(stance)
    products = list(range(1, 41))
    answers = await gates.sales.deduct([Deduction("r", each, 1) for each in products])
    of = {
        server: [each for each in products if ledger_of(each, SERVERS) == server]
        for server in range(3)
    }
    assert live.served == [of[0]]
    assert [till.served for till in buffers] == [[], [of[1]], []]
    for product_id, answer in zip(products, answers, strict=True):
        if product_id in of[2]:
            assert (answer.outcome, answer.reason) == (
                Outcome.UNAVAILABLE,
                Reason.LIVE_STOCK_RETURNING,
            )
        else:
            assert (answer.outcome, answer.shard) == (Outcome.DEDUCTED, product_id)
    assert (gates.are_live, gates.take_deductions) == (False, True)
    assert gates.objection is Reason.LIVE_STOCK_AWAY
    for server, mode in enumerate(("live", "buffer", "leaving")):
        labels = {"mode": mode, "ledger": str(server)}
        assert registry.get_sample_value("inventory_sales_mode", labels) == 1


class Keeper:
    """Steps at once unless it is held up."""

    def __init__(self) -> None:
        self.steps = 0
        self.goes_on = asyncio.Event()
        self.goes_on.set()
        self.has_left = False

    async def step(self) -> None:
        await self.goes_on.wait()
        self.steps += 1

    async def leave(self) -> None:
        self.has_left = True


async def test_a_server_whose_mode_hangs_keeps_no_other_from_its_steps() -> None:
    hanging, other = Keeper(), Keeper()
    keepers = ModeKeepers(cast(Any, [hanging, other]))
    await keepers.step()
    hanging.goes_on.clear()
    for _ in range(3):
        await keepers.step()
    assert (hanging.steps, other.steps) == (1, 4)
    hanging.goes_on.set()
    await keepers.step()
    assert hanging.steps == 2
    await keepers.leave()
    assert hanging.has_left
    assert other.has_left
