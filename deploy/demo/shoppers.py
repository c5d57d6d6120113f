"""The buyers, as order services send them: in batches and alone, with duplicates and repeats."""

import asyncio
from collections.abc import Iterator, Sequence

from deploy.demo.history import History
from deploy.demo.purchases import Errand, Purchase
from deploy.local.waiting import together
from inventory.client import AsyncInventoryClient, Deduction, DeductItem, RetryPolicy

PATIENT = RetryPolicy(deadline_s=60.0)
"""A buyer outlasts the restart of a server process and the failover of a Redis master."""
LANES = 64
FIRST, UNKNOWN, REPEATED = 1, 0, 2
ROUNDS_MAX = 5


class Shoppers:
    """Sends purchases and notes every answer."""

    def __init__(
        self, clients: Sequence[AsyncInventoryClient], product_id: int, history: History
    ) -> None:
        """Copies of one request go by different clients, so that they can meet in two processes."""
        self._clients = clients
        self._product_id = product_id
        self._history = history

    async def buy(self, errands: Sequence[Errand]) -> None:
        """Send everything, some of it at a time, and ask again for what was not decided."""
        queue = iter(errands)
        await together(*(self._lane(queue) for _ in range(LANES)))
        for _ in range(ROUNDS_MAX):
            await asyncio.gather(*map(self._ask_again, self._history.open))

    async def _lane(self, queue: Iterator[Errand]) -> None:
        for errand in queue:
            if len(errand) > 1:
                await self._together(errand)
            else:
                await self._alone(errand[0])
            for purchase in errand:
                if purchase.again:
                    await self._ask_again(purchase)

    async def _together(self, errand: Errand) -> None:
        """One batch; who sends twice is in it twice."""
        copies = [copy for purchase in errand for copy in [purchase] * (1 + purchase.twice)]
        client = self._clients[len(errand) % len(self._clients)]
        self._history.answered(await client.batch_deduct([self._first(copy) for copy in copies]))

    async def _alone(self, purchase: Purchase) -> None:
        clients = self._clients[: 1 + purchase.twice]
        item = self._first(purchase)
        answers = await asyncio.gather(*(client.deduct_item(item) for client in clients))
        self._history.answered(answers)

    async def _ask_again(self, purchase: Purchase) -> None:
        answer: Deduction = await self._clients[-1].deduct_item(self._item(purchase, REPEATED))
        self._history.answered([answer])

    def _first(self, purchase: Purchase) -> DeductItem:
        return self._item(purchase, UNKNOWN if purchase.twice else FIRST)

    def _item(self, purchase: Purchase, attempt: int) -> DeductItem:
        return DeductItem(
            self._product_id,
            purchase.quantity,
            request_id=purchase.request_id,
            user_id=purchase.user_id,
            attempt=attempt,
        )
