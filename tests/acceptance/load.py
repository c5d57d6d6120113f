"""Buyers who go on buying while a test does something to the service."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count

from deploy.local.waiting import until
from inventory.client import AsyncInventoryClient, Outcome

LANES = 16
MORE = 150
"""Answers that count as load before and after what happens."""
ANSWERS_WITHIN_S = 30.0


class Load:
    """What the buyers were told so far."""

    def __init__(self, client: AsyncInventoryClient, product_id: int) -> None:
        self.accepted: dict[str, int] = {}
        self.outcomes: Counter[Outcome] = Counter()
        self._client = client
        self._product_id = product_id
        self._numbers = count()
        self._stopping = False

    async def flows(self) -> None:
        """Return when another lot of buyers was answered."""
        goal = self.outcomes.total() + MORE

        async def enough() -> bool:
            return self.outcomes.total() >= goal

        await until(enough, what="buyers are answered", within_s=ANSWERS_WITHIN_S)

    async def buy(self) -> None:
        """One buyer after the other, until told to stop."""
        while not self._stopping:
            request_id = f"load-{next(self._numbers)}"
            answer = await self._client.deduct(self._product_id, 1, request_id=request_id)
            self.outcomes[answer.outcome] += 1
            if answer.accepted:
                self.accepted[request_id] = 1

    def stop(self) -> None:
        """No new buyers; those under way get their answer."""
        self._stopping = True


@asynccontextmanager
async def load(client: AsyncInventoryClient, product_id: int) -> AsyncIterator[Load]:
    """Buyers within the block; a call that fails ends the test."""
    buyers = Load(client, product_id)
    async with asyncio.TaskGroup() as tasks:
        for lane in range(LANES):
            tasks.create_task(buyers.buy(), name=f"buyers-{lane}")
        await buyers.flows()
        yield buyers
        await buyers.flows()
        buyers.stop()
