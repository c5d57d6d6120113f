"""Sends a call until it has an answer, with one request id for all of its tries."""

from collections.abc import Callable, Sequence
from itertools import count

from inventory.client.deductions import Ticket
from inventory.client.failures import Failure, error_of, malformed
from inventory.client.outcomes import Deduction, DeductItem
from inventory.client.retry import Budget, RetryPolicy
from inventory.client.rpcs import (
    BATCH_DEDUCT,
    DEDUCT,
    STREAM_DEDUCT,
    RequestT,
    ResponseT,
    Rpc,
)
from inventory.client.steps import Pause, Send, Steps, sent
from inventory.v1 import inventory_pb2

_Responses = Sequence[inventory_pb2.DeductResponse]
_Courier = Callable[
    [Sequence[inventory_pb2.DeductRequest], float, int], Steps[_Responses | Failure]
]
"""Carries requests in one try: (requests, timeout_s, turn) to one response each, or a Failure."""


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
                raise error_of(reply, acts=rpc.acts, doubtful=doubtful, request_id=request_id)
            doubtful |= reply.may_have_acted
            yield Pause(pause_s)

    def deduct(self, item: DeductItem, *, deadline_s: float | None = None) -> Steps[Deduction]:
        """What became of one item; never raises InventoryError."""
        (deduction,) = yield from self._deduct([item], _carried_alone, deadline_s)
        return deduction

    def deduct_batch(
        self, items: Sequence[DeductItem], *, deadline_s: float | None = None
    ) -> Steps[tuple[Deduction, ...]]:
        """What became of each item; only those without a lasting answer travel again."""
        return (yield from self._deduct(items, _carried_in_batch, deadline_s))

    def deduct_on_stream(
        self, items: Sequence[DeductItem], *, deadline_s: float | None = None
    ) -> Steps[tuple[Deduction, ...]]:
        """The same over a stream."""
        return (yield from self._deduct(items, _carried_on_stream, deadline_s))

    def _deduct(
        self, items: Sequence[DeductItem], courier: _Courier, deadline_s: float | None
    ) -> Steps[tuple[Deduction, ...]]:
        budget = self.budget(deadline_s)
        turn = self.turn()
        tickets = [Ticket(item) for item in items]
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
        return tuple(ticket.deduction for ticket in tickets)


def _hand_out(tickets: Sequence[Ticket], answers: _Responses | Failure) -> None:
    if not isinstance(answers, Failure) and len(answers) != len(tickets):
        answers = malformed(f"{len(tickets)} items were sent and {len(answers)} answered")
    if isinstance(answers, Failure):
        for ticket in tickets:
            ticket.failed(answers)
        return
    for ticket, response in zip(tickets, answers, strict=True):
        ticket.answered(response)


def _carried_alone(
    requests: Sequence[inventory_pb2.DeductRequest], timeout_s: float, turn: int
) -> Steps[_Responses | Failure]:
    (request,) = requests
    reply = yield from sent(Send(DEDUCT, request, timeout_s, turn))
    return reply if isinstance(reply, Failure) else (reply,)


def _carried_in_batch(
    requests: Sequence[inventory_pb2.DeductRequest], timeout_s: float, turn: int
) -> Steps[_Responses | Failure]:
    batch = inventory_pb2.BatchDeductRequest(items=requests)
    reply = yield from sent(Send(BATCH_DEDUCT, batch, timeout_s, turn))
    return reply if isinstance(reply, Failure) else reply.results


def _carried_on_stream(
    requests: Sequence[inventory_pb2.DeductRequest], timeout_s: float, turn: int
) -> Steps[_Responses | Failure]:
    batch = inventory_pb2.StreamDeductRequest(items=requests)
    reply = yield from sent(Send(STREAM_DEDUCT, batch, timeout_s, turn))
    return reply if isinstance(reply, Failure) else reply.results
