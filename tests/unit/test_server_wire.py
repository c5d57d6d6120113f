"""The hand-written bytes of results are protobuf's."""

from hypothesis import given
from hypothesis import strategies as st

from inventory.v1.inventory_pb2 import BatchDeductResponse, DeductResponse
from server.errors import public_reason
from server.wire import OUTCOMES, ResultEncoder
from sharding.outcomes import Answer, Outcome, Reason

ENCODER = ResultEncoder()

NUMBERS = st.one_of(
    st.integers(0, 2**63 - 1),
    st.sampled_from([2 ** (7 * i) + d for i in range(1, 9) for d in (-1, 0, 1)]),
)
ANSWERS = st.builds(
    Answer,
    outcome=st.sampled_from(Outcome),
    replayed=st.booleans(),
    shard=st.integers(0, 959),
    available=NUMBERS,
    reason=st.sampled_from(Reason),
)


def message_of(answer: Answer) -> DeductResponse:
    return DeductResponse(
        outcome=OUTCOMES[answer.outcome],
        replayed=answer.replayed,
        shard=answer.shard,
        shard_available=answer.available,
        reason=public_reason(answer.reason),
    )


@given(st.lists(ANSWERS, max_size=20))
def test_bytes_mean_what_the_answers_say(answers: list[Answer]) -> None:
    encoded = ENCODER.results(answers, {})
    expected = BatchDeductResponse(results=map(message_of, answers))
    assert BatchDeductResponse.FromString(encoded) == expected
    assert len(encoded) == expected.ByteSize()


@given(st.lists(st.one_of(ANSWERS, st.just("INVALID_QUANTITY")), max_size=20))
def test_invalid_items_stand_at_their_places(items: list[Answer | str]) -> None:
    answers = [item for item in items if isinstance(item, Answer)]
    invalid = {i: item for i, item in enumerate(items) if isinstance(item, str)}
    decoded = BatchDeductResponse.FromString(ENCODER.results(answers, invalid))
    assert list(decoded.results) == [
        message_of(item)
        if isinstance(item, Answer)
        else DeductResponse(outcome=OUTCOMES[Outcome.INVALID], reason=item)
        for item in items
    ]


def test_every_outcome_has_a_number_of_its_own() -> None:
    assert len(set(OUTCOMES.values())) == len(Outcome)
    assert 0 not in OUTCOMES.values()
