"""The callers' side of a simulation: sends requests through any process and remembers what is open."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from typing import TypeVar

from sharding.errors import StockUnavailableError
from sharding.outcomes import Answer, Deduction, Outcome, Resolved
from tests.simulation.ledger import Ledger
from tests.simulation.observed import Copy, Request, ViolationError
from tests.simulation.oracle import Oracle
from tests.simulation.world import PARTITIONS, CrashedError, Process, World

Result = TypeVar("Result")

ANSWER_WITHIN_S = 600.0
"""Virtual seconds within which every call must be answered; far above any bound of the kernel's."""
TRIES_MAX = 200


class Shop:
    """The callers of one simulation and what they remember."""

    def __init__(self, world: World, oracle: Oracle) -> None:
        self.world = world
        self.rng = world.rng
        self.oracle = oracle
        self.ledger = Ledger(PARTITIONS)
        self.open_requests: list[Request] = []
        """Those whose last answer left open what happened."""
        self.newcomers = count(1_001)
        """Users who have bought nothing yet."""
        self._numbers = count(1)

    def any_product(self) -> int:
        """A product, on sale or not."""
        return self.rng.choice(list(self.ledger.rows))

    def new_request(self, product_id: int, kind: str, quantity: int) -> Request:
        """A request under an id of its own."""
        user_id = self.rng.randrange(1, 4) if kind == "deduct" else 0
        return Request(product_id, f"{kind[:3]}-{next(self._numbers)}", kind, quantity, user_id)

    def quantity(self, product_id: int) -> int:
        """Mostly few units, sometimes more than a shard's share, sometimes about all that there are."""
        drawn, offered = self.rng.random(), self.oracle.products[product_id].offered[-1]
        if drawn < 0.5:
            return self.rng.randint(1, 3)
        if drawn < 0.85:
            share = offered // self.ledger.rows[product_id].shards
            return max(1, share + self.rng.randint(-2, 4))
        return max(1, offered + self.rng.randint(-3, 2))

    async def deduct(self, wanted: Sequence[tuple[Request, int]]) -> list[Answer | None]:
        """Send copies of requests, each with its attempt, in one batch through any process.

        The answers; None for all of them if the process crashed.
        """
        copies = [self.oracle.sends(request, attempt=attempt) for request, attempt in wanted]
        return await self.deliver(copies)

    async def deliver(self, copies: Sequence[Copy]) -> list[Answer | None]:
        """Let copies reach any process, as `deduct` does."""
        deductions = [_deduction(copy) for copy in copies]
        self.world.trace.note("deduct", [tuple(deduction) for deduction in deductions])
        answers = await self.ask(lambda process: process.stock.deduct(deductions))
        if answers is None:
            return [None] * len(copies)
        for copy, answer in zip(copies, answers, strict=True):
            self._heard(copy, answer)
        return list(answers)

    async def adjust(self, request: Request) -> Answer | None:
        """Send one copy of a restock or removal; None if the process crashed."""
        copy = self.oracle.sends(request, attempt=0)
        self.world.trace.note(request.kind, copy.number, request.request_id, request.quantity)

        async def work(process: Process) -> Answer:
            stock = process.stock
            change = stock.restock if request.kind == "restock" else stock.remove
            try:
                return await change(
                    request.product_id,
                    request_id=request.request_id,
                    quantity=request.quantity,
                    reason=str(copy.number),
                )
            except StockUnavailableError as failure:
                return Answer(Outcome.UNAVAILABLE, reason=failure.reason)

        answer = await self.ask(work)
        if answer is not None:
            self._heard(copy, answer)
        return answer

    async def send(self, request: Request, *, attempt: int) -> Answer | None:
        """Send one copy of any request."""
        if request.kind == "deduct":
            return (await self.deduct([(request, attempt)]))[0]
        return await self.adjust(request)

    async def resolve(self, request: Request) -> Resolved | Answer | None:
        """Ask what became of a request; None if the process crashed."""
        request.is_resolved = True
        self.world.trace.note("resolve", request.product_id, request.request_id)
        found = await self.ask(
            lambda process: process.stock.resolve(request.product_id, request.request_id)
        )
        self.world.trace.note("resolved", request.request_id, repr(found))
        if found is not None:
            self.oracle.resolved(request, found)
        return found

    async def insist(self, request: Request, answer: Answer | None, *, tries: int) -> Answer | None:
        """Ask again while the outcome is unknown, so many times; what stays open is remembered."""
        for _ in range(tries):
            if not self.is_open(answer):
                return answer
            await self.pause(0.3)
            answer = await self.send(request, attempt=self.rng.choice((0, 2)))
        if self.is_open(answer):
            self.open_requests.append(request)
        return answer

    def is_open(self, answer: Answer | None) -> bool:
        """Whether only asking again tells what happened."""
        return answer is None or self.oracle.is_unknown(answer)

    async def pause(self, longest_s: float) -> None:
        """Do nothing for a while."""
        await asyncio.sleep(self.rng.uniform(0.0, longest_s))

    async def ask(self, work: Callable[[Process], Awaitable[Result]]) -> Result | None:
        """Have any process do something; None if it crashed. ViolationError if it never ends."""
        process = self.world.any_process()
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                return await process.ask(work)
        except CrashedError:
            return None
        except TimeoutError:
            raise ViolationError(f"no answer within {ANSWER_WITHIN_S:.0f} s") from None

    async def manage(self, work: Callable[[Process], Awaitable[object]]) -> None:
        """Have any process do something until it succeeds, in the end with nothing going wrong: where
        many shards have to answer at once, bad weather can keep that from ever coming about."""
        for number in range(TRIES_MAX):
            if number == TRIES_MAX // 2:
                self.world.network.heal()
            try:
                # A result that is never None tells success from a crash.
                if await self.ask(lambda process: _done(work(process))):
                    return
            except StockUnavailableError:
                pass
            await self.pause(0.3)
        raise ViolationError(f"not done after {TRIES_MAX} tries")

    def _heard(self, copy: Copy, answer: Answer) -> None:
        self.world.trace.note("answer", copy.number, tuple(answer))
        self.oracle.answered(copy, answer)


async def together(*work: Awaitable[object]) -> None:
    """Do several things at once; the first that fails ends all of them."""
    async with asyncio.TaskGroup() as group:
        for each in work:
            group.create_task(_awaited(each))


async def _awaited(work: Awaitable[object]) -> None:
    await work


async def _done(work: Awaitable[object]) -> bool:
    await work
    return True


def _deduction(copy: Copy) -> Deduction:
    request = copy.request
    return Deduction(
        request.request_id,
        request.product_id,
        request.quantity,
        user_id=request.user_id,
        order_id=copy.number,
        attempt=copy.attempt,
    )
