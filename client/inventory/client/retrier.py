"""Sends a call until it has an answer, with one request id for all of its tries."""

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, Protocol

from inventory.client.deductions import Ticket
from inventory.client.failures import Failure, error_of, malformed
from inventory.client.ordering import OrderCall, OrderRequest, OrderTicket
from inventory.client.orders import OrderResult
from inventory.client.outcomes import Deduction, DeductItem
from inventory.client.retry import Budget, RetryPolicy
from inventory.client.rpcs import (
    BATCH_DEDUCT,
    DEDUCT,
    STREAM_DEDUCT,
    AnyRpc,
    RequestT,
    ResponseT,
    Rpc,
)
from inventory.client.steps import Pause, Send, Steps, sent

_Responses = Sequence[Any]
_Courier = Callable[[Sequence[Any], float, int], Steps[_Responses | Failure]]
"""Carries requests in one try: (requests, timeout_s, turn) to one response each, or a Failure."""


class _Traveller(Protocol):
    """A request on its way to an answer; `open`: another try can change what it has."""

    open: bool
    asked_s: float

    def request(self, tries: int) -> Any: ...
    def answered(self, response: Any) -> None: ...
    def failed(self, failure: Failure) -> None: ...


class Retrier:
    """Makes the steps of calls; `clock` is monotonic and in seconds, `jitter` gives [0, 1)."""

    def __init__(
        self, policy: RetryPolicy, *, clock: Callable[[], float], jitter: Callable[[], float]
    ) -> None:
        self._policy = policy
        self._clock = clock
        self._jitter = jitter
        self._turns = count()

    def turn(self) -> int:
        """A number that chooses the channel of the next call."""
        return next(self._turns)

    def budget(self, deadline_s: float | None = None, policy: RetryPolicy | None = None) -> Budget:
        return Budget(policy or self._policy, start_s=self._clock(), deadline_s=deadline_s)

    def pause_s(self, budget: Budget, asked_s: float) -> float | None:
        """How long to wait after a try that failed just now; None: give up."""
        return budget.pause_s(now_s=self._clock(), asked_s=asked_s, jitter=self._jitter())

    def answer(
        self,
        rpc: Rpc[RequestT, ResponseT],
        request: RequestT,
        *,
        deadline_s: float | None = None,
        policy: RetryPolicy | None = None,
        request_id: str | None = None,
        order_id: int | None = None,
    ) -> Steps[ResponseT]:
        """The answer to one call; raises InventoryError where the deadline passes without."""
        budget = self.budget(deadline_s, policy)
        turn = self.turn()
        doubtful = False
        while True:
            timeout_s = budget.try_timeout_s(now_s=self._clock())
            reply = yield from sent(Send(rpc, request, timeout_s, turn + budget.tries))
            if not isinstance(reply, Failure):
                return reply
            pause_s = self.pause_s(budget, reply.asked_s) if reply.passing else None
            if pause_s is None:
                raise error_of(
                    reply,
                    acts=rpc.acts,
                    doubtful=doubtful,
                    request_id=request_id,
                    order_id=order_id,
                )
            doubtful |= reply.may_have_acted
            yield Pause(pause_s)

    def deduct(self, item: DeductItem, *, deadline_s: float | None = None) -> Steps[Deduction]:
        """What became of one item; never raises InventoryError."""
        ticket = Ticket(item)
        yield from self._settle([ticket], _alone(DEDUCT), deadline_s)
        return ticket.deduction

    def deduct_batch(
        self, items: Sequence[DeductItem], *, deadline_s: float | None = None
    ) -> Steps[tuple[Deduction, ...]]:
        """What became of each item; only those without a lasting answer travel again."""
        return (yield from self._deduct(items, _together(BATCH_DEDUCT), deadline_s))

    def deduct_on_stream(
        self, items: Sequence[DeductItem], *, deadline_s: float | None = None
    ) -> Steps[tuple[Deduction, ...]]:
        """The same over a stream."""
        return (yield from self._deduct(items, _together(STREAM_DEDUCT), deadline_s))

    def order(
        self, call: OrderCall, request: OrderRequest, *, deadline_s: float | None = None
    ) -> Steps[OrderResult]:
        """What a call on one order came to; never raises InventoryError."""
        ticket = OrderTicket(request)
        yield from self._settle([ticket], _alone(call.alone), deadline_s)
        return ticket.result

    def order_batch(
        self, rpc: AnyRpc, requests: Sequence[OrderRequest], *, deadline_s: float | None = None
    ) -> Steps[tuple[OrderResult, ...]]:
        """The same for each of many; only those without a lasting answer travel again."""
        tickets = [OrderTicket(request) for request in requests]
        yield from self._settle(tickets, _together(rpc), deadline_s)
        return tuple(ticket.result for ticket in tickets)

    def _deduct(
        self, items: Sequence[DeductItem], courier: _Courier, deadline_s: float | None
    ) -> Steps[tuple[Deduction, ...]]:
        tickets = [Ticket(item) for item in items]
        yield from self._settle(tickets, courier, deadline_s)
        return tuple(ticket.deduction for ticket in tickets)

    def _settle(
        self, tickets: Sequence[_Traveller], courier: _Courier, deadline_s: float | None
    ) -> Steps[None]:
        """Has all of them carried until each has a lasting answer or the deadline passes."""
        budget = self.budget(deadline_s)
        turn = self.turn()
        travelling = tickets
        while travelling:
            timeout_s = budget.try_timeout_s(now_s=self._clock())
            requests = [ticket.request(budget.tries) for ticket in travelling]
            answers = yield from courier(requests, timeout_s, turn + budget.tries)
            _hand_out(travelling, answers)
            travelling = [ticket for ticket in travelling if ticket.open]
            if not travelling:
                break
            pause_s = self.pause_s(budget, max(ticket.asked_s for ticket in travelling))
            if pause_s is None:
                break
            yield Pause(pause_s)


def _hand_out(tickets: Sequence[_Traveller], answers: _Responses | Failure) -> None:
    if not isinstance(answers, Failure) and len(answers) != len(tickets):
        answers = malformed(f"{len(tickets)} items were sent and {len(answers)} answered")
    if isinstance(answers, Failure):
        for ticket in tickets:
            ticket.failed(answers)
        return
    for ticket, response in zip(tickets, answers, strict=True):
        ticket.answered(response)


def _alone(rpc: AnyRpc) -> _Courier:
    def carried(
        requests: Sequence[Any], timeout_s: float, turn: int
    ) -> Steps[_Responses | Failure]:
        (request,) = requests
        reply = yield from sent(Send(rpc, request, timeout_s, turn))
        return reply if isinstance(reply, Failure) else (reply,)

    return carried


def _together(rpc: AnyRpc) -> _Courier:
    def carried(
        requests: Sequence[Any], timeout_s: float, turn: int
    ) -> Steps[_Responses | Failure]:
        batch = rpc.request(items=requests)
        reply = yield from sent(Send(rpc, batch, timeout_s, turn))
        return reply if isinstance(reply, Failure) else reply.results

    return carried
