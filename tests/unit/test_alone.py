"""Who waits for a replica, decided by the generation that an answer names."""

from sharding.alone import Alone


def test_only_an_answer_of_the_degraded_generation_counts_without_a_replica() -> None:
    alone = Alone()
    alone.note_degraded(3, 7)
    assert 3 in alone
    assert alone.counts(3, [7, 100])
    assert not alone.is_in_doubt(3)
    for generation in (6, 8):
        alone.note_degraded(3, 7)
        assert not alone.counts(3, [generation, 100])
        assert alone.is_in_doubt(3)


def test_an_answer_that_did_nothing_counts_whatever_the_generation_is() -> None:
    alone = Alone()
    alone.doubt(3)
    assert alone.counts(3, [])


def test_in_doubt_no_generation_counts_and_an_answer_ends_the_doubt() -> None:
    alone = Alone()
    alone.doubt(3)
    assert 3 in alone
    assert not alone.counts(3, [1, 1])
    alone.note_replicated(3)
    assert 3 not in alone
    assert not alone.is_in_doubt(3)
