"""Rounds of audits, what counts as evidence, and what a compensation is: pure, step by step."""

import pytest

from ledger.audits import DriftRow, Side
from server.auditing import compensation
from sharding.auditing import Fault, Marked
from sharding.events import Counts, EventId
from sharding.outcomes import Reason
from sharding.shards import Marker
from worker.breaker import PASSES, Damage, Deficits, Suspects, of_drift
from worker.rounds import Round

NOTHING = Counts(0, 0, 0, 0)
AWAY = Fault(3, Reason.NOT_EXECUTED, "away")


def marked(*partitions: int, number: int = 5, faults: tuple[Fault, ...] = ()) -> Marked:
    markers = [Marker(each, EventId(1, number), "", Counts(2, 0, 1, 3)) for each in partitions]
    return Marked(1, tuple(markers), faults)


def drift(units: Counts, *, damaged: str = "", changes: int = 0) -> DriftRow:
    return DriftRow(7, 11, 4, 2, units, damaged, EventId(1, 9), changes, 1_000)


def test_a_round_spreads_its_products_and_tells_each_once() -> None:
    found = Round(list(range(10)), since_s=100.0, for_s=10.0)
    told = [list(found.due(now_s)) for now_s in (100.0, 100.5, 103.0, 103.0, 109.9, 200.0)]
    assert told == [[], [0], [1, 2], [], [3, 4, 5, 6, 7, 8, 9], []]
    assert not found.is_over(200.0)
    for _ in range(10):
        found.note(marked(1))
    assert found.is_over(110.0)
    assert not found.is_over(109.0)


def test_a_round_without_products_ends_with_its_time() -> None:
    found = Round([], since_s=0.0, for_s=10.0)
    assert list(found.due(5.0)) == []
    assert [found.is_over(now_s) for now_s in (9.0, 10.0)] == [False, True]
    assert found.is_compared({})


def test_a_round_is_compared_when_the_ledger_has_passed_its_last_markers() -> None:
    found = Round([1, 2], since_s=0.0, for_s=1.0)
    found.note(marked(1, 2, number=8))
    found.note(marked(2, number=6))
    assert (found.shards, found.totals) == (3, Counts(6, 0, 3, 9))
    assert not found.is_compared({1: EventId(1, 8)})
    assert not found.is_compared({1: EventId(1, 8), 2: EventId(1, 7)})
    assert found.is_compared({1: EventId(1, 8), 2: EventId(2, 1)})


@pytest.mark.parametrize("gap", [None, marked(1, faults=(AWAY,))])
def test_a_round_that_missed_a_shard_is_no_success(gap: Marked | None) -> None:
    found = Round([1], since_s=0.0, for_s=1.0)
    found.note(gap)
    assert found.is_over(1.0)
    assert not found.is_compared({1: EventId(9, 9)})


def test_damage_is_believed_when_two_looks_in_a_row_find_it() -> None:
    suspects, gone = Suspects(), Damage(11, 1, 4, "its key is gone")
    assert suspects.look(11, frozenset({gone}))
    assert suspects.confirmed == []
    assert not suspects.look(11, frozenset())
    assert suspects.look(11, frozenset({gone}))
    assert not suspects.look(11, frozenset({gone}))
    assert suspects.confirmed == [gone]
    suspects.presented([gone])
    assert suspects.confirmed == []
    assert not suspects.look(12, frozenset())


def test_a_deficit_counts_after_two_rounds_of_markers_and_not_before() -> None:
    deficits = Deficits()
    for number in range(1, PASSES + 1):
        deficits.seen({11})
        assert deficits.unmarked() == [11]
        deficits.marked(11, {1: EventId(1, number), 2: EventId(1, number)})
        assert deficits.partitions == {1, 2}
        assert deficits.unmarked() == []
        behind = {1: EventId(1, number), 2: EventId(1, number - 1)}
        assert deficits.proven(behind) == []
        passed = {1: EventId(1, number), 2: EventId(1, number)}
        assert deficits.proven(passed) == ([11] if number == PASSES else [])


def test_a_deficit_that_was_gone_in_between_begins_anew() -> None:
    deficits = Deficits()
    for products in ({11}, set[int](), {11}):
        deficits.seen(products)
        for product in deficits.unmarked():
            deficits.marked(product, {1: EventId(1, 1)})
        assert deficits.proven({1: EventId(1, 1)}) == []
    deficits.marked(12, {1: EventId(1, 1)})
    assert deficits.partitions == frozenset()


def test_a_difference_that_changed_is_another_piece_of_evidence() -> None:
    first, later = (
        of_drift(drift(Counts(1, 0, 0, 0))),
        of_drift(drift(Counts(2, 0, 0, 0), changes=1)),
    )
    assert (first.key, later.key) == ("drift 7-0", "drift 7-1")
    assert first.reason == "partition 4 differs from the ledger since event 1-9: available +1"
    huge = Counts(*([-(2**53)] * 4))
    assert len(of_drift(drift(huge, damaged="available held sold loaded")).reason) <= 200


@pytest.mark.parametrize(
    ("units", "damaged", "side"),
    [
        (Counts(1, 0, 0, 0), "", Side.LIVE),
        (Counts(-1, 0, 1, 0), "", Side.LEDGER),
        (Counts(5, 0, 0, 5), "", Side.LEDGER),
        (Counts(0, 0, 0, 5), "", Side.LIVE),
        (Counts(0, 0, 0, 0), "held", Side.LIVE),
        (Counts(-1, 1, 0, 0), "held", Side.LIVE),
    ],
)
def test_the_ledger_follows_only_what_operations_can_explain(
    units: Counts, damaged: str, side: Side
) -> None:
    assert drift(units, damaged=damaged).side is side


@pytest.mark.parametrize("side", list(Side))
@pytest.mark.parametrize(
    "units", [Counts(1, 0, 0, 0), Counts(-3, 1, 2, 0), Counts(4, -1, 2, 7), Counts(0, 0, 0, -2)]
)
def test_a_compensation_makes_both_halves_equal_and_keeps_the_ledgers_sums(
    units: Counts, side: Side
) -> None:
    repair = compensation(drift(units), side, "ann")
    left = [d + a - b for d, a, b in zip(units, repair.live, repair.ledger, strict=True)]
    assert left == [0, 0, 0, 0]
    available, held, sold, loaded = repair.ledger
    assert available + held + sold == loaded
    if side is Side.LIVE:
        assert repair.ledger == NOTHING
