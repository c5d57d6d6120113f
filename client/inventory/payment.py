"""A sale with payment: buyers reserve, then pay, cancel, vanish or pay too late, and the account of it.

async with AsyncInventoryClient(target) as client:
    report = await simulate_payment(client, PaidSale(product_id=1001, buyers=500, ttl_s=3))
    assert report.balanced
"""

import asyncio
import random
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from inventory.client import (
    AsyncInventoryClient,
    InventoryError,
    OrderLine,
    OrderResult,
    OrderState,
    Outcome,
    OutcomeUnknown,
    Stock,
    Unavailable,
)
from inventory.simulation import imbalances_of, quiet_stock

SETTLE_S_MAX = 120.0
"""How long it may take, beyond the holds' own time, until the last of them has ended."""
LOOK_S = 0.25
TRIES_MAX = 5


class Conduct(StrEnum):
    """What a buyer does whose units are held."""

    PAYS = "pays"
    CANCELS = "cancels"
    VANISHES = "vanishes"
    PAYS_LATE = "pays_late"


@dataclass(frozen=True, slots=True, kw_only=True)
class PaidSale:
    """What the buyers do.

    `cancel`, `vanish`, `late`: shares of buyers, 0 to 1; all others pay in time. Equal seeds choose
    equal buyers; order ids are new each time.
    """

    product_id: int
    buyers: int
    concurrency: int = 200
    quantity: int = 1
    cancel: float = 0.1
    vanish: float = 0.1
    late: float = 0.1
    ttl_s: int = 3
    seed: int = 0

    def __post_init__(self) -> None:
        counts = (self.product_id, self.buyers, self.concurrency, self.quantity, self.ttl_s)
        if min(counts) < 1:
            raise ValueError("product_id, buyers, concurrency, quantity and ttl_s are at least 1")
        shares = (self.cancel, self.vanish, self.late)
        if min(shares) < 0 or sum(shares) > 1:
            raise ValueError("cancel, vanish and late are shares that add up to 1 at most")


@dataclass(frozen=True, slots=True, kw_only=True)
class PaidSaleReport:
    """What came of a sale with payment. All but `units_sold` count buyers.

    `held`: whose units were held, and of them `conduct` by what they did; `refused`: for shortage;
    `failed`: one of whose calls was answered by an error; `unknown`: whose last call has no answer;
    `outcomes`: how all calls but the first ended. Balanced when `imbalances` is empty.
    """

    product_id: int
    buyers: int
    quantity: int
    held: int
    refused: int
    failed: int
    conduct: dict[str, int]
    outcomes: dict[str, int]
    units_sold: int
    unknown: int
    elapsed_s: float
    before: Stock
    after: Stock
    imbalances: tuple[str, ...]

    @property
    def balanced(self) -> bool:
        return not self.imbalances


async def simulate_payment(
    client: AsyncInventoryClient,
    sale: PaidSale,
    *,
    on_answer: Callable[[int], None] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> PaidSaleReport:
    """Holds the sale, waits until no unit is held any more and balances it.

    Nobody else may buy, sell or restock the product meanwhile. on_answer is called with the number of
    buyers that just were served. Raises InventoryError where the stock cannot be read.
    """
    before = await quiet_stock(client, sale.product_id)
    start_s = clock()
    shop = _Shop(client, sale, on_answer)
    await shop.run()
    after = await _settled_stock(client, sale, held=before.held)
    return shop.report(before=before, after=after, elapsed_s=clock() - start_s)


def payment_imbalances_of(
    before: Stock, after: Stock, *, units_sold: int, unknown: int
) -> Iterator[str]:
    """Sentences on what does not add up; none when everything does."""
    yield from imbalances_of(before, after, accepted_units=units_sold, unknown=unknown)
    if after.held != before.held:
        yield f"{after.held} units are still held, before it were {before.held}"


@dataclass(frozen=True, slots=True)
class _Buyer:
    order_id: int
    user_id: int
    conduct: Conduct


class _Shop:
    """Serves the buyers and counts what becomes of them."""

    def __init__(
        self,
        client: AsyncInventoryClient,
        sale: PaidSale,
        on_answer: Callable[[int], None] | None,
    ) -> None:
        self._client = client
        self._sale = sale
        self._on_answer = on_answer
        self._late: list[_Buyer] = []
        self._conduct: Counter[Conduct] = Counter()
        self._reserved: Counter[Outcome] = Counter()
        self._ended: Counter[Outcome] = Counter()
        self._failed = 0
        self._unknown = 0

    async def run(self) -> None:
        """All buyers; those who pay late come back when their time is over."""
        queue = _buyers(self._sale)
        await self._in_lanes(queue, self._serve)
        await self._in_lanes(iter(self._late), self._pay_late)

    def report(self, *, before: Stock, after: Stock, elapsed_s: float) -> PaidSaleReport:
        units = self._sale.quantity * (
            self._ended[Outcome.CONFIRMED] + self._ended[Outcome.RETAKEN]
        )
        off = payment_imbalances_of(before, after, units_sold=units, unknown=self._unknown)
        return PaidSaleReport(
            product_id=self._sale.product_id,
            buyers=self._sale.buyers,
            quantity=self._sale.quantity,
            held=self._reserved[Outcome.HELD],
            refused=self._reserved[Outcome.INSUFFICIENT_STOCK],
            failed=self._failed,
            conduct={each.value: self._conduct[each] for each in Conduct},
            outcomes={each.value: count for each, count in sorted(self._ended.items())},
            units_sold=units,
            unknown=self._unknown,
            elapsed_s=elapsed_s,
            before=before,
            after=after,
            imbalances=tuple(off),
        )

    async def _in_lanes(
        self, queue: Iterator[_Buyer], serve: Callable[[_Buyer], Awaitable[None]]
    ) -> None:
        async def lane() -> None:
            for buyer in queue:
                await serve(buyer)

        async with asyncio.TaskGroup() as tasks:
            for number in range(min(self._sale.concurrency, self._sale.buyers)):
                tasks.create_task(lane(), name=f"inventory-buyers-{number}")

    async def _serve(self, buyer: _Buyer) -> None:
        if await self._holds(buyer):
            self._conduct[buyer.conduct] += 1
            await self._behave(buyer)
        if self._on_answer:
            self._on_answer(1)

    async def _holds(self, buyer: _Buyer) -> bool:
        """Whether the buyer's units are held. What is not known is given back, and then is."""
        sale = self._sale
        try:
            result = await self._client.reserve(
                buyer.order_id,
                [OrderLine(sale.product_id, sale.quantity)],
                user_id=buyer.user_id,
                ttl_s=sale.ttl_s,
                attempt=1,
            )
        except OutcomeUnknown:
            await self._end(lambda: self._client.release(buyer.order_id))
            return False
        except InventoryError:
            self._failed += 1
            return False
        self._reserved[result.outcome] += 1
        return result.held

    async def _behave(self, buyer: _Buyer) -> None:
        if buyer.conduct is Conduct.PAYS:
            await self._end(lambda: self._pay(buyer))
        elif buyer.conduct is Conduct.CANCELS:
            await self._end(lambda: self._client.release(buyer.order_id))
        elif buyer.conduct is Conduct.PAYS_LATE:
            self._late.append(buyer)

    async def _pay_late(self, buyer: _Buyer) -> None:
        give_up_s = time.monotonic() + self._sale.ttl_s + SETTLE_S_MAX
        while await self._may_be_held(buyer) and time.monotonic() < give_up_s:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)  # a buyer looks again: nobody calls
        await self._end(lambda: self._pay(buyer))

    async def _may_be_held(self, buyer: _Buyer) -> bool:
        try:
            order = await self._client.get_order(buyer.order_id, product_id=self._sale.product_id)
        except InventoryError:
            return True
        return order.state is OrderState.HELD

    async def _pay(self, buyer: _Buyer) -> OrderResult:
        return await self._client.confirm(buyer.order_id, product_id=self._sale.product_id)

    async def _end(self, call: Callable[[], Awaitable[OrderResult]]) -> None:
        """One call that ends an order, again until it is known what it came to."""
        for _ in range(TRIES_MAX):
            try:
                result = await call()
            except (OutcomeUnknown, Unavailable):
                continue
            except InventoryError:
                self._failed += 1
            else:
                self._ended[result.outcome] += 1
            return
        self._unknown += 1


def _buyers(sale: PaidSale) -> Iterator[_Buyer]:
    choice = random.Random(sale.seed)
    for _ in range(sale.buyers):
        conduct = _conduct(sale, choice.random())
        yield _Buyer(1 + secrets.randbits(62), 1 + secrets.randbits(62), conduct)


def _conduct(sale: PaidSale, drawn: float) -> Conduct:
    if drawn < sale.cancel:
        return Conduct.CANCELS
    if drawn < sale.cancel + sale.vanish:
        return Conduct.VANISHES
    if drawn < sale.cancel + sale.vanish + sale.late:
        return Conduct.PAYS_LATE
    return Conduct.PAYS


async def _settled_stock(client: AsyncInventoryClient, sale: PaidSale, *, held: int) -> Stock:
    """The counts once no more units are held than before; the last ones where that does not come."""
    give_up_s = time.monotonic() + sale.ttl_s + SETTLE_S_MAX
    stock = await quiet_stock(client, sale.product_id)
    while stock.held != held and time.monotonic() < give_up_s:
        await asyncio.sleep(LOOK_S)
        stock = await quiet_stock(client, sale.product_id)
    return stock
