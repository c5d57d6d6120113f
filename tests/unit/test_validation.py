"""Bounds of requests: the fast check of batches and the slow one that words violations agree."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inventory.v1.inventory_pb2 import DeductRequest
from server import validation
from server.errors import RefusedError
from sharding.outcomes import Deduction

INT64 = st.one_of(
    st.sampled_from([-(2**63), -1, 0, 1, 1_000_000, 1_000_001, 2**63 - 1]),
    st.integers(-(2**63), 2**63 - 1),
)
INT32 = st.integers(-(2**31), 2**31 - 1)
IDS = st.one_of(
    st.text(max_size=70),
    st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7F), max_size=70),
)
REQUESTS = st.builds(
    DeductRequest,
    request_id=IDS,
    product_id=INT64,
    quantity=INT64,
    order_id=INT64,
    user_id=INT64,
    attempt=INT32,
)


def of(request: DeductRequest) -> Deduction:
    return Deduction(
        request.request_id,
        request.product_id,
        request.quantity,
        request.user_id,
        request.order_id,
        request.attempt,
    )


@given(REQUESTS)
def test_a_batch_and_a_single_call_agree(request: DeductRequest) -> None:
    wrong = validation.violations(of(request))
    batch = validation.batch([request], resent=False)
    if wrong:
        assert (batch.deductions, batch.invalid) == ([], {0: wrong[0].reason})
    else:
        assert (batch.deductions, batch.invalid) == ([of(request)], {})
        assert isinstance(batch.deductions[0], Deduction)


@given(st.lists(REQUESTS, min_size=1, max_size=30))
def test_no_item_is_lost_or_moved(requests: list[DeductRequest]) -> None:
    batch = validation.batch(requests, resent=False)
    rest = iter(batch.deductions)
    for index, request in enumerate(requests):
        if index not in batch.invalid:
            assert next(rest) == of(request)
    assert next(rest, None) is None
    assert list(batch.invalid) == sorted(batch.invalid)


@pytest.mark.parametrize("name", ["a", "~" * 64, "0-9_A.z:/#", "!"])
def test_good_request_ids_pass(name: str) -> None:
    assert validation.request_id(name) is None


@pytest.mark.parametrize("name", ["", " ", "a ", "a\n", "\0", "ä", "a" * 65, "\x7f", "٣"])
def test_bad_request_ids_do_not(name: str) -> None:
    assert validation.request_id(name) is not None


@pytest.mark.parametrize(("attempt", "becomes"), [(0, 0), (1, 2), (2, 2), (9, 9)])
def test_a_call_that_was_resent_is_no_first_attempt(attempt: int, becomes: int) -> None:
    request = DeductRequest(request_id="r", product_id=1, quantity=1, attempt=attempt)
    assert validation.deduction(request, resent=True).attempt == becomes
    (wanted,) = validation.batch([request], resent=True).deductions
    assert wanted.attempt == becomes


def test_a_violation_does_not_repeat_what_was_sent() -> None:
    with pytest.raises(RefusedError) as refused:
        validation.check(validation.request_id("secret value"))
    assert "secret" not in refused.value.message
