"""Where a process sends requests, and when the way back from the buffer is free: pure decisions."""

import pytest

from ledger.sales_mode import Mode
from server.gate import Stance
from server.modes import stance_of
from sharding.events import EventId
from sharding.partitions import UNKNOWN_STREAM, PartitionHead
from worker.leaving import _Leave

SHUT = PartitionHead(is_open=False, reason="CORRUPT", generation=0, number=0, partitions=0)


def open_at(number: int) -> PartitionHead:
    stream = UNKNOWN_STREAM._replace(last=EventId(1, number))
    return PartitionHead(True, "", generation=1, number=number, partitions=3, streams=[stream])


@pytest.mark.parametrize(
    ("reaches", "mode", "stance"),
    [
        (True, Mode.REDIS, Stance.LIVE),
        (False, Mode.REDIS, Stance.AWAY),
        (False, Mode.BUFFER, Stance.BUFFER),
        (True, Mode.BUFFER, Stance.LEAVING),
        (True, Mode.LEAVING, Stance.LEAVING),
        (False, Mode.LEAVING, Stance.LEAVING),
    ],
)
@pytest.mark.parametrize("before", list(Stance))
def test_the_ledgers_word_decides_together_with_what_is_reached(
    reaches: bool, mode: Mode, stance: Stance, before: Stance
) -> None:
    assert stance_of(mode, before, reaches=reaches) is stance


@pytest.mark.parametrize("before", list(Stance))
def test_without_the_ledger_the_live_stock_sells_if_it_is_there(before: Stance) -> None:
    assert stance_of(None, before, reaches=True) is Stance.LIVE
    kept = Stance.BUFFER if before is Stance.BUFFER else Stance.AWAY
    assert stance_of(None, before, reaches=False) is kept


def test_the_way_is_free_when_the_ledger_has_what_there_was_when_it_began() -> None:
    leave = _Leave(1, 0.0)
    leave.look({0: open_at(5), 1: open_at(7)}, {0: 5, 1: 6}, may_open=True)
    assert leave.waited_for(range(2)) == [1]
    # What is written while the streams are drained keeps nobody waiting.
    leave.look({1: open_at(100)}, {0: 5, 1: 7}, may_open=True)
    assert leave.waited_for(range(2)) == []


def test_partitions_that_are_away_or_shut_hold_nobody_up() -> None:
    leave = _Leave(1, 0.0)
    leave.look({0: None, 1: SHUT, 2: open_at(3)}, {2: 3}, may_open=True)
    assert leave.waited_for(range(3)) == []


def test_a_partition_that_goes_away_before_it_is_drained_is_not_waited_for_any_more() -> None:
    leave = _Leave(1, 0.0)
    leave.look({0: open_at(3)}, {}, may_open=True)
    assert leave.waited_for(range(1)) == [0]
    leave.look({0: None}, {}, may_open=True)
    assert leave.waited_for(range(1)) == []


@pytest.mark.parametrize(
    "reason",
    ["NEW_OWNER", "RESTARTED", "NO_HEAD", "RESTORING", "WENT_BACK", "EVENTS_AHEAD"],
)
def test_a_partition_that_is_about_to_be_opened_is_waited_for_a_while(reason: str) -> None:
    leave, shut = _Leave(1, 0.0), SHUT._replace(reason=reason)
    leave.look({0: shut, 1: shut}, {}, may_open=True)
    assert leave.waited_for(range(2)) == [0, 1]
    leave.look({0: open_at(10), 1: shut}, {0: 10}, may_open=False)
    assert leave.waited_for(range(2)) == []
