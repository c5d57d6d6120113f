"""One deduction through all of its tries: what is sent, and what the answers add up to."""

from dataclasses import replace
from uuid import uuid4

import grpc

from inventory.client.errors import (
    Frozen,
    InvalidRequest,
    InventoryError,
    NotExecuted,
    Overloaded,
    RequestMismatch,
    UnknownProduct,
    UserLimit,
)
from inventory.client.failures import Failure, outcome_unknown
from inventory.client.messages import build, later
from inventory.client.outcomes import OUTCOME_UNKNOWN, Deduction, DeductItem, Outcome
from inventory.v1 import inventory_pb2

_PASSING = frozenset({Outcome.OVERLOADED, Outcome.NOT_EXECUTED, Outcome.UNKNOWN})
"""Outcomes that another try can change."""

_DECIDING = frozenset(
    {
        Outcome.DEDUCTED,
        Outcome.INSUFFICIENT_STOCK,
        Outcome.UNKNOWN_PRODUCT,
        Outcome.REQUEST_MISMATCH,
        Outcome.INVALID,
    }
)
"""Outcomes that settle a request of which an earlier copy may have acted. The others tell only what
became of the copy that they answer."""


class Ticket:
    """One request on its way to an answer."""

    __slots__ = ("_doubtful", "_request", "asked_s", "deduction", "open")

    def __init__(self, item: DeductItem) -> None:
        made = item.request_id is None
        self._request = build(
            inventory_pb2.DeductRequest,
            request_id=uuid4().hex if item.request_id is None else item.request_id,
            product_id=item.product_id,
            quantity=item.quantity,
            order_id=item.order_id,
            user_id=item.user_id,
            attempt=int(made) if item.attempt is None else item.attempt,
        )
        self._doubtful = False
        self.open = True
        self.asked_s = 0.0
        self.deduction = self._word(Outcome.NOT_EXECUTED, reason="NOT_SENT")

    def request(self, tries: int) -> inventory_pb2.DeductRequest:
        """The message of the next try, after so many that failed."""
        return later(self._request, tries)

    def answered(self, response: inventory_pb2.DeductResponse) -> None:
        """Takes what the service said about this request."""
        outcome = outcome_of(response.outcome, response.reason)
        self.asked_s = 0.0
        self._take(
            Deduction(
                request_id=self._request.request_id,
                outcome=outcome,
                replayed=response.replayed,
                shard=response.shard,
                shard_available=response.shard_available,
                reason=response.reason,
            ),
            passing=outcome in _PASSING,
        )

    def failed(self, failure: Failure) -> None:
        """Takes what went wrong with the call that carried this request."""
        self.asked_s = failure.asked_s
        self._take(
            self._word(outcome_of_failure(failure), reason=failure.reason, message=failure.message),
            passing=failure.passing,
        )

    def _take(self, answer: Deduction, *, passing: bool) -> None:
        self._doubtful |= answer.outcome is Outcome.UNKNOWN
        if self._doubtful and answer.outcome not in _DECIDING:
            answer = replace(answer, outcome=Outcome.UNKNOWN, reason=OUTCOME_UNKNOWN)
        self.deduction = answer
        self.open = passing

    def _word(self, outcome: Outcome, *, reason: str, message: str = "") -> Deduction:
        return Deduction(
            request_id=self._request.request_id, outcome=outcome, reason=reason, message=message
        )


def settled(deduction: Deduction) -> Deduction:
    """The deduction if it is a fact about stock, else its error is raised."""
    if deduction.outcome in (Outcome.DEDUCTED, Outcome.INSUFFICIENT_STOCK):
        return deduction
    if deduction.outcome is Outcome.UNKNOWN:
        raise outcome_unknown(deduction.message, deduction.request_id)
    kind = KINDS[deduction.outcome]
    message = deduction.message or MESSAGES[deduction.outcome]
    raise kind(message, reason=deduction.reason, request_id=deduction.request_id)


KINDS: dict[Outcome, type[InventoryError]] = {
    Outcome.UNKNOWN_PRODUCT: UnknownProduct,
    Outcome.FROZEN: Frozen,
    Outcome.REQUEST_MISMATCH: RequestMismatch,
    Outcome.INVALID: InvalidRequest,
    Outcome.USER_LIMIT: UserLimit,
    Outcome.OVERLOADED: Overloaded,
    Outcome.NOT_EXECUTED: NotExecuted,
}

MESSAGES = {
    Outcome.UNKNOWN_PRODUCT: "the product was never loaded",
    Outcome.FROZEN: "the product is not on sale",
    Outcome.REQUEST_MISMATCH: "this request_id was used for something else",
    Outcome.INVALID: "a field is out of its bounds",
    Outcome.USER_LIMIT: "the buyer has as many units as the product allows",
    Outcome.OVERLOADED: "the service has more work than it takes on",
    Outcome.NOT_EXECUTED: "the service could not do it now; nothing was taken",
}

_OUTCOMES = {
    number: Outcome[name.removeprefix("OUTCOME_")]
    for name, number in inventory_pb2.Outcome.items()
    if name.removeprefix("OUTCOME_") in Outcome.__members__
} | {inventory_pb2.OUTCOME_UNAVAILABLE: Outcome.NOT_EXECUTED}

_OUTCOMES_OF_CODES = {
    grpc.StatusCode.NOT_FOUND: Outcome.UNKNOWN_PRODUCT,
    grpc.StatusCode.ALREADY_EXISTS: Outcome.REQUEST_MISMATCH,
    grpc.StatusCode.INVALID_ARGUMENT: Outcome.INVALID,
    grpc.StatusCode.OUT_OF_RANGE: Outcome.INVALID,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Outcome.OVERLOADED,
}


def outcome_of(word: inventory_pb2.Outcome.ValueType, reason: str) -> Outcome:
    """A word that this client does not know, from a newer service, may mean anything: UNKNOWN."""
    outcome = _OUTCOMES.get(word, Outcome.UNKNOWN)
    if outcome is Outcome.NOT_EXECUTED and reason == OUTCOME_UNKNOWN:
        return Outcome.UNKNOWN
    return outcome


def outcome_of_failure(failure: Failure) -> Outcome:
    """What a call that ended with a status says about the request that it carried."""
    if failure.may_have_acted:
        return Outcome.UNKNOWN
    if failure.code is grpc.StatusCode.FAILED_PRECONDITION:
        limited = failure.reason == Outcome.USER_LIMIT.name
        return Outcome.USER_LIMIT if limited else Outcome.FROZEN
    return _OUTCOMES_OF_CODES.get(failure.code, Outcome.NOT_EXECUTED)
