"""A sale with many buyers at once, and the account of it: who got what, how fast, and does it add up.

async with AsyncInventoryClient(target) as client:
    report = await simulate(client, Sale(product_id=1001, buyers=5_000, concurrency=200))
    assert report.balanced
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from uuid import uuid4
from zlib import crc32

from inventory.client import AsyncInventoryClient, Deduction, DeductItem, Outcome, Stock
from inventory.client.outcomes import OF_ORDERS

QUIET_READS_MAX = 20
QUIET_PAUSE_S = 0.1
UNKNOWN_ROUNDS_MAX = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Sale:
    """What the buyers do.

    `duplicates` is the share of buyers, 0 to 1, who send their request twice at the same time. Equal
    seeds choose equal buyers to do so; request ids are new each time.
    """

    product_id: int
    buyers: int
    concurrency: int = 200
    quantity: int = 1
    duplicates: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.product_id, self.buyers, self.concurrency, self.quantity) < 1:
            raise ValueError("product_id, buyers, concurrency and quantity are at least 1")
        if not 0 <= self.duplicates <= 1:
            raise ValueError("duplicates is a share from 0 to 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Milliseconds from a buyer's call to its answer, retries included."""

    p50_ms: float
    p90_ms: float
    p99_ms: float
    p999_ms: float
    max_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """Answers that took at most `upto_ms` and more than the bar before."""

    upto_ms: float
    answers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SaleReport:
    """What came of a sale. `accepted` and `refused` count buyers and are never added up; units are
    balanced when `imbalances` is empty."""

    product_id: int
    buyers: int
    quantity: int
    accepted: int
    refused: int
    outcomes: dict[str, int]
    duplicates: int
    replayed: int
    accepted_units: int
    elapsed_s: float
    answers_per_s: float
    latency: Latency
    histogram: tuple[Bar, ...]
    before: Stock
    after: Stock
    imbalances: tuple[str, ...]

    @property
    def balanced(self) -> bool:
        return not self.imbalances


async def simulate(
    client: AsyncInventoryClient,
    sale: Sale,
    *,
    on_answer: Callable[[int], None] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> SaleReport:
    """Holds the sale and balances it; nobody else may buy, sell or restock the product meanwhile.

    on_answer is called with the number of buyers that just got theirs. Raises InventoryError where
    the stock cannot be read before or after.
    """
    before = await quiet_stock(client, sale.product_id)
    tally = _Tally(sale, clock)
    start_s = clock()
    queue = _buyers(sale)
    async with asyncio.TaskGroup() as tasks:
        for lane in range(min(sale.concurrency, sale.buyers)):
            work = _serve(client, queue, tally, on_answer)
            tasks.create_task(work, name=f"inventory-buyers-{lane}")
    elapsed_s = clock() - start_s
    await _ask_again(client, tally)
    after = await quiet_stock(client, sale.product_id)
    return tally.report(before=before, after=after, elapsed_s=elapsed_s)


def imbalances_of(
    before: Stock, after: Stock, *, accepted_units: int, unknown: int
) -> Iterator[str]:
    """Sentences on what does not add up; none when everything does."""
    for when, stock in (("before", before), ("after", after)):
        if stock.inexact:
            yield f"{when} the sale units kept moving, so the counts cannot be trusted"
        elif stock.total != stock.accounted:
            yield f"{when} the sale {stock.accounted} units are accounted for, of {stock.total}"
    if before.total != after.total:
        yield f"the total went from {before.total} to {after.total} during the sale"
    if before.sold + accepted_units != after.sold:
        yield (
            f"sold before {before.sold} + accepted {accepted_units} = "
            f"{before.sold + accepted_units}, but sold after is {after.sold}"
        )
    if unknown:
        yield f"{unknown} requests are still without an answer"


@dataclass(frozen=True, slots=True)
class _Buyer:
    request_id: str
    twice: bool


class _Tally:
    """Answers as they come in."""

    def __init__(self, sale: Sale, clock: Callable[[], float]) -> None:
        self.sale = sale
        self.clock = clock
        self.unknown: list[str] = []
        self._outcomes: Counter[Outcome] = Counter()
        self._latencies_ms: list[float] = []
        self._duplicates = 0
        self._replayed = 0
        self._taken_twice: list[str] = []

    def item(self, request_id: str, *, attempt: int) -> DeductItem:
        sale = self.sale
        # Of a product with a limit per user every buyer is a user, in each copy of the request the same.
        return DeductItem(
            sale.product_id,
            sale.quantity,
            request_id,
            user_id=1 + crc32(request_id.encode()),
            attempt=attempt,
        )

    def answered(self, answers: Sequence[Deduction], *, took_s: float) -> None:
        """Takes the answers to all copies of one buyer's request."""
        self._latencies_ms.append(took_s * 1_000)
        self._duplicates += len(answers) - 1
        self._replayed += sum(answer.replayed for answer in answers)
        if sum(answer.accepted and not answer.replayed for answer in answers) > 1:
            self._taken_twice.append(answers[0].request_id)
        self._count(answers[0].request_id, _verdict(answers))

    def found_out(self, answer: Deduction) -> None:
        """Takes what a later copy of a request without an answer was told."""
        self._count(answer.request_id, answer.outcome)

    def _count(self, request_id: str, outcome: Outcome) -> None:
        if outcome is Outcome.UNKNOWN:
            self.unknown.append(request_id)
        else:
            self._outcomes[outcome] += 1

    def report(self, *, before: Stock, after: Stock, elapsed_s: float) -> SaleReport:
        accepted = self._outcomes[Outcome.DEDUCTED]
        units = accepted * self.sale.quantity
        twice = [f"request {each} took units twice" for each in self._taken_twice]
        off = imbalances_of(before, after, accepted_units=units, unknown=len(self.unknown))
        outcomes = self._outcomes + Counter({Outcome.UNKNOWN: len(self.unknown)})
        return SaleReport(
            product_id=self.sale.product_id,
            buyers=self.sale.buyers,
            quantity=self.sale.quantity,
            accepted=accepted,
            refused=self._outcomes[Outcome.INSUFFICIENT_STOCK],
            outcomes={each.value: outcomes[each] for each in Outcome if each not in OF_ORDERS},
            duplicates=self._duplicates,
            replayed=self._replayed,
            accepted_units=units,
            elapsed_s=elapsed_s,
            answers_per_s=self.sale.buyers / elapsed_s if elapsed_s > 0 else 0.0,
            latency=latency_of(self._latencies_ms),
            histogram=histogram_of(self._latencies_ms),
            before=before,
            after=after,
            imbalances=(*off, *twice),
        )


def latency_of(latencies_ms: Sequence[float]) -> Latency:
    """Percentiles, each a value that was measured (nearest rank)."""
    ordered = sorted(latencies_ms)

    def at(permille: int) -> float:
        return ordered[-(-len(ordered) * permille // 1_000) - 1]

    return Latency(
        p50_ms=at(500), p90_ms=at(900), p99_ms=at(990), p999_ms=at(999), max_ms=ordered[-1]
    )


def histogram_of(latencies_ms: Sequence[float]) -> tuple[Bar, ...]:
    """Bars that double in width, from the fastest answer's to the slowest one's."""
    exponents = Counter(_exponent(each) for each in latencies_ms)
    first, last = min(exponents), max(exponents)
    return tuple(
        Bar(upto_ms=2.0**exponent, answers=exponents[exponent])
        for exponent in range(first, last + 1)
    )


def _exponent(latency_ms: float) -> int:
    """The least power of two, 2**-4 ms or more, that is not below it."""
    exponent = -4
    while 2.0**exponent < latency_ms:
        exponent += 1
    return exponent


def _buyers(sale: Sale) -> Iterator[_Buyer]:
    choice = random.Random(sale.seed)
    for _ in range(sale.buyers):
        yield _Buyer(uuid4().hex, twice=choice.random() < sale.duplicates)


async def _serve(
    client: AsyncInventoryClient,
    queue: Iterator[_Buyer],
    tally: _Tally,
    on_answer: Callable[[int], None] | None,
) -> None:
    for buyer in queue:
        start_s = tally.clock()
        answers = await _buy(client, buyer, tally)
        tally.answered(answers, took_s=tally.clock() - start_s)
        if on_answer:
            on_answer(1)


async def _buy(client: AsyncInventoryClient, buyer: _Buyer, tally: _Tally) -> Sequence[Deduction]:
    if not buyer.twice:
        return [await client.deduct_item(tally.item(buyer.request_id, attempt=1))]
    item = tally.item(buyer.request_id, attempt=2)
    return await asyncio.gather(client.deduct_item(item), client.deduct_item(item))


async def _ask_again(client: AsyncInventoryClient, tally: _Tally) -> None:
    """Sends what has no answer again, with the same ids, until it has one or the rounds are over."""
    for _ in range(UNKNOWN_ROUNDS_MAX):
        if not tally.unknown:
            return
        asked, tally.unknown = tally.unknown, []
        for start in range(0, len(asked), tally.sale.concurrency):
            some = asked[start : start + tally.sale.concurrency]
            items = [tally.item(request_id, attempt=2) for request_id in some]
            for answer in await asyncio.gather(*map(client.deduct_item, items)):
                tally.found_out(answer)


async def quiet_stock(client: AsyncInventoryClient, product_id: int) -> Stock:
    """The counts at a moment when no unit moved; the last ones read where there is no such moment."""
    stock = await client.get_stock(product_id)
    for _ in range(QUIET_READS_MAX):
        if not stock.inexact:
            break
        await asyncio.sleep(QUIET_PAUSE_S)
        stock = await client.get_stock(product_id)
    return stock


def _verdict(answers: Sequence[Deduction]) -> Outcome:
    """What the copies of one request add up to: taken if any says so, open if any does not know."""
    outcomes = {answer.outcome for answer in answers}
    for decisive in (Outcome.DEDUCTED, Outcome.UNKNOWN, Outcome.INSUFFICIENT_STOCK):
        if decisive in outcomes:
            return decisive
    return answers[0].outcome
