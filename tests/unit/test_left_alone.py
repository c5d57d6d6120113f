"""When a node goes on without a replica."""

import pytest

from sharding.nodes import Replication
from worker.degraded import SYNC_GRACE_S, is_left_alone


@pytest.mark.parametrize(
    ("in_sync", "known", "lacking_s", "expected"),
    [
        (0, 0, 0.0, True),
        (0, 1, 0.0, False),
        (0, 1, SYNC_GRACE_S, True),
        (1, 1, 0.0, False),
        (1, 1, 100.0, False),
        (1, 2, 100.0, False),
    ],
)
def test_a_replica_that_may_come_is_waited_for_a_moment(
    in_sync: int, known: int, lacking_s: float, expected: bool
) -> None:
    state = Replication(in_sync=in_sync, known=known, demanded=1)
    assert is_left_alone(state, lacking_s=lacking_s) is expected


@pytest.mark.parametrize(
    ("in_sync", "known", "lacking_s", "expected"),
    [
        (0, 0, 0.0, False),
        (0, 0, SYNC_GRACE_S, True),
        (0, 1, 100.0, False),
        (1, 1, 100.0, False),
    ],
)
def test_an_empty_node_waits_for_the_replicas_that_a_new_one_has(
    in_sync: int, known: int, lacking_s: float, expected: bool
) -> None:
    state = Replication(in_sync=in_sync, known=known, demanded=1)
    assert is_left_alone(state, lacking_s=lacking_s, is_empty=True) is expected
