"""Buyers at a steady rate over two clients, whatever the service does, and what they were told."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from random import Random

from deploy.demo.purchases import QUANTITIES, WEIGHTS, Purchase
from deploy.local.waiting import until
from inventory.client import (
    AsyncInventoryClient,
    Deduction,
    DeductItem,
    OrderLine,
    OrderResult,
    Outcome,
    Reservation,
)
from tests.chaos.history import Record, Try, back_after_s, success_rate

RATE_PER_S = 300
ORDERS_PER_S = 10
TICK_S = 0.02
UNDER_WAY_MAX = 3_000
UNSAYING = 0.3
"""Share of the callers who do not say which try it is: their requests wait for their homes."""
BEFORE = 300
"""Answers by which the rate before the fault is known."""
SOLD_PART = 0.8
"""Of the orders that hold their units; the others are released."""
TRIES_MAX = 4
PAUSE_S = 0.15
FLOWS_WITHIN_S = 30.0

PASSING = {Outcome.UNKNOWN, Outcome.NOT_EXECUTED, Outcome.OVERLOADED}
_order_ids = count(1_000_000)


class Buyers:
    """Sends and notes; `record` is what they know."""

    def __init__(
        self,
        clients: Sequence[AsyncInventoryClient],
        choice: Random,
        *,
        product_id: int,
        order_products: Sequence[int] = (),
        rate_per_s: int = RATE_PER_S,
    ) -> None:
        """Deductions are of one product; orders have a line of each of the others."""
        self.record = Record()
        self.product_id = product_id
        self.order_products = sorted(order_products)
        self._clients = clients
        self._choice = choice
        self.rate_per_s = rate_per_s
        self._under_way = 0
        self._asking: dict[str, float] = {}
        """Requests asked for the first time, without an answer yet, and since when."""
        self._stopping = False
        self.before = 0.0
        """The success rate while nothing was wrong."""

    @property
    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    # Purchases.

    async def buy(self, purchase: Purchase, *, attempt: int) -> Deduction:
        """One buyer, with retries as an order service makes them."""
        self.record.wants(purchase)
        for number in range(TRIES_MAX):
            attempt = attempt if number == 0 else number + 1
            answer = await self.ask(purchase, attempt=attempt, is_first=number == 0)
            if answer.outcome not in PASSING or number + 1 == TRIES_MAX:
                break
            await self._pause(number)
        return answer

    async def ask(self, purchase: Purchase, *, attempt: int, is_first: bool = False) -> Deduction:
        """One try, by either client."""
        item = DeductItem(
            self.product_id,
            purchase.quantity,
            request_id=purchase.request_id,
            user_id=purchase.user_id,
            attempt=attempt,
        )
        started_s = self.now_s
        if is_first:
            self._asking[purchase.request_id] = started_s
        answer = await self._choice.choice(self._clients).deduct_item(item)
        self._asking.pop(purchase.request_id, None)
        times = (started_s, self.now_s)
        self.record.add(
            Try.of(answer, "deduct", purchase.request_id, attempt, is_first=is_first, times=times)
        )
        self.record.deductions.answered([answer])
        return answer

    def purchase(self, quantity: int | None = None) -> Purchase:
        """Somebody new; without a quantity they choose one."""
        return Purchase(
            request_id=f"chaos-{self._choice.getrandbits(64):016x}",
            quantity=quantity or self._choice.choices(QUANTITIES, WEIGHTS)[0],
            user_id=self._choice.randint(1, 1_000_000),
            twice=False,
            again=False,
        )

    # Orders.

    async def order(self) -> None:
        """Reserve, and then confirm most and release some."""
        order_id = next(_order_ids)
        reserved = await self._insist(order_id, "reserve")
        if reserved is Outcome.HELD:
            sells = self._choice.random() < SOLD_PART
            await self._insist(order_id, "confirm" if sells else "release")

    async def held_orders(self, number: int) -> list[int]:
        """Orders that hold their units, and whose callers wait."""
        order_ids = [next(_order_ids) for _ in range(number)]
        for order_id in order_ids:
            assert await self.ask_order(order_id, "reserve") is Outcome.HELD
        return order_ids

    async def _insist(self, order_id: int, what: str) -> Outcome:
        """Ask until it is known what became of it, or the caller gives up."""
        for number in range(TRIES_MAX):
            outcome = await self.ask_order(order_id, what, number)
            if outcome not in PASSING:
                return outcome
            await self._pause(number)
        return Outcome.UNKNOWN

    async def ask_order(self, order_id: int, what: str, number: int = 0) -> Outcome:
        """One call on an order; `number` counts its tries from 0."""
        started_s = self.now_s
        result = await self._call(what, order_id, attempt=number + 1)
        times = (started_s, self.now_s)
        self.record.add(
            Try.of(result, what, str(order_id), number + 1, is_first=not number, times=times)
        )
        return result.outcome

    async def _call(self, what: str, order_id: int, *, attempt: int) -> OrderResult:
        client = self._choice.choice(self._clients)
        if what == "confirm":
            (result,) = await client.batch_confirm([order_id])
        elif what == "release":
            (result,) = await client.batch_release([order_id])
        else:
            lines = tuple(OrderLine(each, 1) for each in self.order_products)
            wanted = Reservation(order_id, lines, user_id=1, attempt=attempt)
            (result,) = await client.batch_reserve([wanted])
        return result

    async def _pause(self, number: int) -> None:
        await asyncio.sleep(PAUSE_S * 2**number * self._choice.uniform(0.5, 1.0))

    # The load.

    async def run(self) -> None:
        """New buyers at the rate until told to stop; then the end of those under way."""
        begun_s = looked_s = self.now_s
        due, ordered = 0.0, 0
        async with asyncio.TaskGroup() as buyers:
            while not self._stopping:
                now_s = self.now_s
                due += (now_s - looked_s) * self.rate_per_s
                looked_s = now_s
                # Those whom there is no room for go elsewhere.
                for _ in range(min(int(due), UNDER_WAY_MAX - self._under_way)):
                    buyers.create_task(self._buy_once())
                due %= 1
                if self.order_products and ordered < (now_s - begun_s) * ORDERS_PER_S:
                    ordered += 1
                    buyers.create_task(self.order())
                await asyncio.sleep(TICK_S)

    def stop(self) -> None:
        self._stopping = True

    async def _buy_once(self) -> None:
        self._under_way += 1
        attempt = 0 if self._choice.random() < UNSAYING else 1
        await self.buy(self.purchase(), attempt=attempt)
        self._under_way -= 1

    # What a fault waits for.

    async def flows(self, answers: int = BEFORE) -> None:
        """Return when another lot of first tries was answered, and note their success rate."""
        have = len(self.record.first_tries)

        async def enough() -> bool:
            return len(self.record.first_tries) >= have + answers

        await until(enough, what="buyers are answered", within_s=FLOWS_WITHIN_S)
        self.before = self.before or success_rate(self.record.first_tries[have:])

    async def back(self, since_s: float, *, within_s: float) -> float | None:
        """How long after `since_s` the old success rate was back; None: not within so long."""
        while True:
            found = back_after_s(
                self.record.first_tries,
                since_s=since_s,
                before=self.before,
                until_s=self._settled_until_s(),
            )
            if found is not None or self.now_s > since_s + within_s:
                return found
            await asyncio.sleep(0.1)

    def _settled_until_s(self) -> float:
        """Up to when all calls that began have ended."""
        return min(self._asking.values(), default=self.now_s)


@asynccontextmanager
async def selling(buyers: Buyers) -> AsyncIterator[Buyers]:
    """Buyers within the block, who know their success rate before it begins."""
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(buyers.run())
        await buyers.flows()
        try:
            yield buyers
        finally:
            buyers.stop()
