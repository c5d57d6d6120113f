"""From a script's status bytes to answers. Pure."""

from collections.abc import Sequence

from sharding.events import Status
from sharding.outcomes import Answer, Deduction, Outcome, Reason, State
from sharding.shards import Served

_DEDUCTED = ord(Status.DEDUCTED)
_REPLAYED = ord(Status.REPLAYED)
_HELD = ord(Status.HELD)
_TAKEN = frozenset((_DEDUCTED, _HELD))
_STOPPED = {
    State.LOADING: Reason.PRODUCT_LOADING,
    State.OPEN: Reason.PRODUCT_FROZEN,
    State.CLOSING: Reason.PRODUCT_CLOSED,
    State.CLOSED: Reason.PRODUCT_CLOSED,
}
_FROZEN = {state: Answer(Outcome.FROZEN, reason=reason) for state, reason in _STOPPED.items()}
_PLAIN = {
    ord(Status.MISMATCH): Answer(Outcome.REQUEST_MISMATCH),
    ord(Status.REFUSED_BEFORE): Answer(Outcome.INSUFFICIENT_STOCK, replayed=True),
    ord(Status.NEVER): Answer(Outcome.REQUEST_MISMATCH, reason=Reason.RESOLVED_NEVER),
    ord(Status.BARRED): Answer(Outcome.UNAVAILABLE, reason=Reason.NOT_EXECUTED),
    ord(Status.REFUSED): Answer(Outcome.INSUFFICIENT_STOCK),
    ord(Status.STALE): Answer(Outcome.UNAVAILABLE, reason=Reason.LAYOUT_CHANGING),
    ord(Status.LEDGER_BEHIND): Answer(Outcome.UNAVAILABLE, reason=Reason.LEDGER_BEHIND),
    ord(Status.USER_LIMIT): Answer(Outcome.USER_LIMIT),
    ord(Status.OVERLOADED): Answer(Outcome.OVERLOADED, reason=Reason.RECORDS_FULL),
    ord(Status.INSUFFICIENT): Answer(Outcome.INSUFFICIENT_STOCK),
}
CLOSED = _FROZEN[State.CLOSED]
INSUFFICIENT = _PLAIN[ord(Status.INSUFFICIENT)]
"""One shard has too few units."""
BARRED = _PLAIN[ord(Status.BARRED)]
"""A stand-in takes this request no more: another copy of it went home. Told apart by identity."""
SOLD_OUT = _PLAIN[ord(Status.REFUSED)]
"""All shards together have too few."""
STALE = _PLAIN[ord(Status.STALE)]
MISSING = Answer(Outcome.UNAVAILABLE, reason=Reason.SHARD_CORRUPT)
"""The shard has no key: it is being loaded just now, or somebody deleted it."""


_PASSING = frozenset(
    (
        Reason.PRODUCT_LOADING,
        Reason.PRODUCT_FROZEN,
        Reason.RECORDS_FULL,
        Reason.LEDGER_BEHIND,
    )
)


def may_pass(answer: Answer) -> bool:
    """Whether what stood against a request may be over by the time that a lost try of it runs."""
    return answer.reason in _PASSING or answer.outcome is Outcome.USER_LIMIT


def answers(requests: Sequence[Deduction], served: Served, *, shard: int) -> list[Answer]:
    """One answer a request, in their order."""
    plain = _FROZEN_PLAIN[served.state]
    firsts = iter(served.firsts)
    left = served.available + _units_sold(requests, served.statuses)
    result: list[Answer] = []
    for request, status in zip(requests, served.statuses, strict=True):
        if status == _DEDUCTED:
            left -= request[2]
            place = served.partition if type(request[4]) is str else shard
            result.append(
                Answer(
                    Outcome.DEDUCTED,
                    replayed=False,
                    shard=place,
                    available=left,
                    at_ms=served.at_ms,
                )
            )
        elif status == _HELD:
            left -= request[2]
            result.append(
                Answer(
                    Outcome.HELD,
                    replayed=False,
                    shard=served.partition,
                    available=left,
                    at_ms=served.at_ms,
                )
            )
        elif status == _REPLAYED:
            result.append(_first(next(firsts)))
        else:
            result.append(plain[status])
    return result


def _first(answered: bytes) -> Answer:
    left, _, shard = answered.partition(b":")
    return Answer(Outcome.DEDUCTED, replayed=True, shard=int(shard or 0), available=int(left))


_FROZEN_PLAIN = {state: {**_PLAIN, ord(Status.FROZEN): answer} for state, answer in _FROZEN.items()}


def _units_sold(requests: Sequence[Deduction], statuses: bytes) -> int:
    return sum(
        request[2] for request, status in zip(requests, statuses, strict=True) if status in _TAKEN
    )


def unavailable(reason: Reason) -> Answer:
    """The answer to a request that could not be carried out, or whose outcome is unknown."""
    if reason is Reason.QUEUE_FULL:
        return Answer(Outcome.OVERLOADED, reason=reason)
    return Answer(Outcome.UNAVAILABLE, reason=reason)
