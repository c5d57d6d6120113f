"""More buyers than the service can serve, in batches, at a rate that does not wait for answers."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count

from inventory.client import AsyncInventoryClient, DeductItem, Outcome
from tests.chaos.stack import Stage

BATCH = 200
LANES = 16
"""Batches at a time by which the service is as busy as it can be, and no busier."""
UNDER_WAY_MAX = 2_000


class Crowd:
    """Buyers of one unit each; `accepted` and `unknown` are their ids."""

    def __init__(self, stage: Stage, product_id: int) -> None:
        self._stage = stage
        self.product_id = product_id
        self._names = (f"crowd-{stage.choice.getrandbits(32):08x}-{number}" for number in count())
        self._turns = count()
        self.accepted: set[str] = set()
        self.unknown: set[str] = set()
        self.refused_for_load = 0

    async def peak_per_s(self, seconds: float) -> float:
        """What is accepted when each batch waits for one before it."""
        async with self._counting() as accepted_per_s, asyncio.TaskGroup() as lanes:
            end_s = self._stage.now_s + seconds
            for _ in range(LANES):
                lanes.create_task(self._lane(end_s))
        return accepted_per_s()

    async def goodput_per_s(self, seconds: float, *, rate_per_s: float) -> float:
        """What is accepted when so many are sent, whatever becomes of them."""
        async with self._counting() as accepted_per_s, asyncio.TaskGroup() as batches:
            begun_s, made = self._stage.now_s, 0
            under_way: set[asyncio.Task[None]] = set()
            while (passed_s := self._stage.now_s - begun_s) < seconds:
                due = int(passed_s * rate_per_s / BATCH)
                for _ in range(min(due - made, UNDER_WAY_MAX - len(under_way))):
                    task = batches.create_task(self._send())
                    under_way.add(task)
                    task.add_done_callback(under_way.discard)
                made = due
                await asyncio.sleep(0.01)
        return accepted_per_s()

    async def ask_again(self) -> None:
        """Whoever does not know asks until they do."""
        names = sorted(self.unknown)
        for start in range(0, len(names), BATCH):
            await self._ask(self._stage.shop.caller, names[start : start + BATCH], attempt=2)

    @asynccontextmanager
    async def _counting(self) -> AsyncIterator[Callable[[], float]]:
        """Accepted a second within the block, as known after it."""
        had, begun_s = len(self.accepted), self._stage.now_s
        rates: list[float] = []
        yield lambda: rates[0]
        rates.append((len(self.accepted) - had) / (self._stage.now_s - begun_s))

    async def _lane(self, end_s: float) -> None:
        while self._stage.now_s < end_s:
            await self._send()

    async def _send(self) -> None:
        client = self._stage.callers[next(self._turns) % len(self._stage.callers)]
        await self._ask(client, [next(self._names) for _ in range(BATCH)], attempt=1)

    async def _ask(self, client: AsyncInventoryClient, names: list[str], *, attempt: int) -> None:
        items = [DeductItem(self.product_id, 1, request_id=each, attempt=attempt) for each in names]
        for answer in await client.batch_deduct(items):
            self.unknown.discard(answer.request_id)
            if answer.accepted:
                self.accepted.add(answer.request_id)
            elif answer.outcome is Outcome.UNKNOWN:
                self.unknown.add(answer.request_id)
            else:
                self.refused_for_load += answer.outcome is Outcome.OVERLOADED
