"""When the client tries again, and what its tries add up to; no network, no clock."""

from itertools import pairwise

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inventory.client import DeductItem, Outcome, RetryPolicy
from inventory.client.errors import NotExecuted, OutcomeUnknown, ServiceFault, Unavailable
from inventory.client.failures import Failure, error_of, failure_of
from inventory.client.retrier import Retrier
from inventory.client.retry import Budget
from inventory.client.rpcs import GET_STOCK, LOAD, RESTOCK
from inventory.client.steps import Pause, Send
from inventory.v1 import admin_pb2, inventory_pb2
from tests.unit.client_service import Fault, trailers_of

DEDUCTED = inventory_pb2.DeductResponse(outcome=inventory_pb2.OUTCOME_DEDUCTED)


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Ended(grpc.RpcError):
    """An error as grpc raises it."""

    def __init__(self, fault: Fault, details: str = "as asked") -> None:
        self._fault = fault
        self._details = details

    def code(self):
        return self._fault.code

    def details(self):
        return self._details

    def trailing_metadata(self):
        return () if self._fault.reason is None else trailers_of(self._fault)


def failure(code=grpc.StatusCode.UNAVAILABLE, reason=None, retry_s=0, details="as asked"):
    return failure_of(Ended(Fault(code, reason, retry_s), details))


def played(steps, replies, clock):
    """Performs steps with these replies to its tries; gives the steps and the call's result."""
    seen, reply, replies = [], None, iter(replies)
    while True:
        try:
            step = steps.send(reply)
        except StopIteration as end:
            return seen, end.value
        seen.append(step)
        if isinstance(step, Pause):
            clock.now_s += step.seconds
            reply = None
        else:
            reply = next(replies)


@pytest.fixture
def clock():
    return Clock()


def retrier(clock, *, jitter=0.0, **policy):
    return Retrier(RetryPolicy(**policy), clock=clock, jitter=lambda: jitter)


def test_pauses_double_up_to_their_limit(clock):
    steps = retrier(clock, pause_s=0.1, pause_s_max=0.5).deduct(DeductItem(1, 1))
    seen, _ = played(steps, [*[failure()] * 5, DEDUCTED], clock)
    pauses = [step.seconds for step in seen if isinstance(step, Pause)]
    assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.5, 0.5])


@given(jitter=st.floats(0, 1, exclude_max=True), tries=st.integers(1, 15), asked_s=st.floats(0, 9))
def test_jitter_shortens_a_pause_by_half_at_most_and_never_below_what_was_asked(
    jitter, tries, asked_s
):
    policy = RetryPolicy(deadline_s=1e6, pause_s=0.1, pause_s_max=2.0, tries_max=99)
    budget = Budget(policy, start_s=0.0, deadline_s=None)
    for _ in range(tries):
        pause_s = budget.pause_s(now_s=0.0, asked_s=asked_s, jitter=jitter)
    full_s = min(0.1 * 2 ** (tries - 1), 2.0)
    assert pause_s is not None
    assert asked_s + full_s / 2 <= pause_s <= asked_s + full_s + 1e-9


def test_the_service_is_given_the_time_it_asked_for(clock):
    steps = retrier(clock).deduct(DeductItem(1, 1))
    seen, _ = played(steps, [failure(reason="LEDGER_BEHIND", retry_s=3), DEDUCTED], clock)
    assert seen[1].seconds >= 3


def test_all_tries_and_pauses_stay_within_the_deadline(clock):
    def hanging():
        while True:
            clock.now_s += 0.7
            yield failure(grpc.StatusCode.DEADLINE_EXCEEDED)

    steps = retrier(clock, deadline_s=2.0, try_timeout_s=0.7).deduct(DeductItem(1, 1))
    seen, deduction = played(steps, hanging(), clock)
    tries = [step.timeout_s for step in seen if isinstance(step, Send)]
    assert len(tries) == 3
    assert sum(tries) <= 2.0
    assert deduction.outcome is Outcome.UNKNOWN


def test_each_retry_takes_another_channel(clock):
    steps = retrier(clock).deduct(DeductItem(1, 1))
    seen, _ = played(steps, [failure(), failure(), DEDUCTED], clock)
    turns = [step.turn for step in seen if isinstance(step, Send)]
    assert all(later == earlier + 1 for earlier, later in pairwise(turns))


def test_that_a_call_may_have_taken_effect_is_said_once():
    said = failure(reason="OUTCOME_UNKNOWN", details="the call may have taken effect; again")
    error = error_of(said, acts=True, doubtful=False, request_id="r")
    assert str(error) == (
        "the call may have taken effect; send the same request_id again (request r) [OUTCOME_UNKNOWN]"
    )


@pytest.mark.parametrize(
    ("code", "reason", "details", "may_have_acted"),
    [
        (grpc.StatusCode.UNAVAILABLE, "OUTCOME_UNKNOWN", "", True),
        (grpc.StatusCode.UNAVAILABLE, "LOAD_PENDING", "", True),
        (grpc.StatusCode.UNAVAILABLE, "CLOSE_PENDING", "", True),
        (grpc.StatusCode.UNAVAILABLE, "RESHARD_PENDING", "", True),
        (grpc.StatusCode.UNAVAILABLE, "LAYOUT_CHANGING", "", False),
        (grpc.StatusCode.UNAVAILABLE, "NOT_EXECUTED", "", False),
        (grpc.StatusCode.UNAVAILABLE, "LEDGER_BEHIND", "", False),
        (grpc.StatusCode.UNAVAILABLE, None, "Socket closed", True),
        (grpc.StatusCode.UNAVAILABLE, None, "failed to connect to all addresses; …", False),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL", "", False),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, None, "Received message larger than max", True),
        (grpc.StatusCode.DEADLINE_EXCEEDED, None, "", True),
        (grpc.StatusCode.INTERNAL, "INTERNAL", "", True),
        (grpc.StatusCode.INVALID_ARGUMENT, None, "", False),
        (grpc.StatusCode.UNIMPLEMENTED, None, "", False),
    ],
)
def test_only_what_is_sure_to_have_done_nothing_counts_as_not_executed(
    code, reason, details, may_have_acted
):
    found = failure_of(Ended(Fault(code, reason), details or "as asked"))
    assert found.may_have_acted is may_have_acted


@pytest.mark.parametrize("reason", ["OUTCOME_UNKNOWN", None])
def test_a_change_without_answer_is_unknown(clock, reason):
    steps = retrier(clock, tries_max=2).answer(RESTOCK, admin_pb2.RestockRequest(), request_id="r")
    with pytest.raises(OutcomeUnknown) as caught:
        played(steps, [failure(reason=reason)] * 2, clock)
    assert caught.value.request_id == "r"


def test_a_change_that_has_begun_says_so(clock):
    steps = retrier(clock, tries_max=2).answer(LOAD, admin_pb2.LoadRequest())
    with pytest.raises(OutcomeUnknown) as caught:
        played(steps, [failure(reason="LOAD_PENDING")] * 2, clock)
    assert caught.value.reason == "LOAD_PENDING"


def test_a_doubt_about_a_change_outlives_a_later_try_that_did_nothing(clock):
    steps = retrier(clock, tries_max=2).answer(RESTOCK, admin_pb2.RestockRequest())
    with pytest.raises(OutcomeUnknown):
        played(steps, [failure(), failure(reason="NOT_EXECUTED")], clock)


def test_a_change_that_was_never_carried_out_says_so(clock):
    steps = retrier(clock, tries_max=2).answer(RESTOCK, admin_pb2.RestockRequest())
    with pytest.raises(NotExecuted):
        played(steps, [failure(reason="NOT_EXECUTED")] * 2, clock)


def test_a_read_leaves_no_doubt(clock):
    steps = retrier(clock, tries_max=1).answer(GET_STOCK, inventory_pb2.GetStockRequest())
    with pytest.raises(Unavailable):
        played(steps, [failure(reason="OUTCOME_UNKNOWN")], clock)


def test_a_defect_of_the_service_is_not_tried_again(clock):
    steps = retrier(clock).answer(GET_STOCK, inventory_pb2.GetStockRequest())
    with pytest.raises(ServiceFault):
        played(steps, [failure(grpc.StatusCode.INTERNAL, "INTERNAL")], clock)


def test_an_answer_with_items_missing_answers_none_of_them(clock):
    steps = retrier(clock).deduct_batch([DeductItem(1, 1), DeductItem(1, 1)])
    short = inventory_pb2.BatchDeductResponse(results=[DEDUCTED])
    _, deductions = played(steps, [short], clock)
    assert [each.outcome for each in deductions] == [Outcome.UNKNOWN] * 2


def test_an_outcome_of_a_newer_service_is_not_guessed_at(clock):
    steps = retrier(clock, tries_max=1).deduct(DeductItem(1, 1))
    _, deduction = played(steps, [inventory_pb2.DeductResponse(outcome=99)], clock)
    assert deduction.outcome is Outcome.UNKNOWN


_ANSWERS = st.one_of(
    st.sampled_from([failure(), failure(reason="NOT_EXECUTED"), failure(reason="OUTCOME_UNKNOWN")]),
    st.integers(0, 10).map(lambda word: inventory_pb2.DeductResponse(outcome=word)),
)
_POSSIBLE = {Outcome.NOT_EXECUTED, Outcome.OVERLOADED, Outcome.FROZEN, Outcome.USER_LIMIT}


@given(replies=st.lists(_ANSWERS, min_size=4, max_size=4))
def test_no_order_of_answers_words_a_doubt_as_nothing_done(replies):
    clock = Clock()
    seen, deduction = played(retrier(clock, tries_max=4).deduct(DeductItem(1, 1)), replies, clock)
    told = replies[: sum(isinstance(step, Send) for step in seen)]
    doubted = any(
        answer.may_have_acted if isinstance(answer, Failure) else answer.outcome in (0, 10)
        for answer in told
    )
    assert not (doubted and deduction.outcome in _POSSIBLE)
