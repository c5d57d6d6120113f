"""What a call that was tried several times may say at its end."""

import pytest

from sharding.errors import StockUnavailableError
from sharding.lane import LaneError, LostError, Node, NotReplicatedError, NotSentError
from sharding.outcomes import Reason
from sharding.pending import PendingCall
from sharding.scripts import script

NODE = Node("127.0.0.1", 7000)


def a_call() -> PendingCall:
    call = PendingCall(3, script("deduct"), deadline=1.0)
    call.prepare(script("deduct").call(["k"], ["a"]))
    return call


@pytest.mark.parametrize("lost", [LostError("cut"), NotReplicatedError("none")])
@pytest.mark.parametrize("later", [Reason.PARTITION_FENCED, Reason.NOT_EXECUTED, Reason.QUEUE_FULL])
def test_after_a_lost_try_no_later_trouble_says_that_nothing_happened(
    lost: LaneError, later: Reason
) -> None:
    call = a_call()
    call.note_lost(lost)
    call.note(later, "later")
    assert call.failure().reason is Reason.OUTCOME_UNKNOWN
    assert call.failure(Reason.SHARD_CORRUPT, "bad").reason is Reason.OUTCOME_UNKNOWN


def test_after_a_lost_try_an_error_that_ends_all_tries_is_unknown_too() -> None:
    call = a_call()
    call.note_lost(LostError("cut"))
    with pytest.raises(StockUnavailableError) as failure:
        call.note_error(NODE, "ERR something else")
    assert failure.value.reason is Reason.OUTCOME_UNKNOWN


def test_tries_that_never_left_say_that_nothing_happened() -> None:
    call = a_call()
    call.note_lost(NotSentError("refused"))
    assert call.failure().reason is Reason.NOT_EXECUTED


@pytest.mark.parametrize("code", ["TRYAGAIN", "CLUSTERDOWN x", "OOM x", "LOADING x", "BUSY x"])
def test_errors_without_an_effect_are_tried_again_after_a_pause(code: str) -> None:
    call = a_call()
    assert call.note_error(NODE, code) is None
    assert call.pause_s > 0
    assert call.failure().reason is Reason.NOT_EXECUTED


def test_redirections_are_followed_at_once() -> None:
    call = a_call()
    assert call.note_error(NODE, "MOVED 12 127.0.0.2:7001") == Node("127.0.0.2", 7001)
    assert call.note_error(NODE, "MOVED 12 :7002") == Node("127.0.0.1", 7002)
    assert call.pause_s == 0
    assert call.note_error(NODE, "ASK 12 127.0.0.3:7003") is None
    assert call.redirected_to == Node("127.0.0.3", 7003)


def test_a_node_that_lost_its_scripts_gets_the_whole_text() -> None:
    call = a_call()
    digest_only = call.packed
    call.note_error(NODE, "NOSCRIPT No matching script")
    assert call.packed != digest_only
    assert script("deduct").source.encode() in call.packed


def test_a_script_that_fails_in_the_middle_may_have_run() -> None:
    with pytest.raises(StockUnavailableError) as failure:
        a_call().note_error(NODE, "ERR user_script:12: attempt to index a nil value")
    assert failure.value.reason is Reason.OUTCOME_UNKNOWN


@pytest.mark.parametrize("code", ["NOAUTH", "NOPERM", "WRONGPASS"])
def test_a_node_that_refuses_the_caller_has_done_nothing(code: str) -> None:
    with pytest.raises(StockUnavailableError) as failure:
        a_call().note_error(NODE, f"{code} no")
    assert failure.value.reason is Reason.NOT_EXECUTED
