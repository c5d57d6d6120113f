"""What of a stream may be removed, as the checkpoint moves."""

from sharding.events import EventId
from worker.progress import TrimPlan


def test_the_last_entry_is_noted_though_it_came_soon_after_another() -> None:
    plan = TrimPlan(0)
    plan.applied(EventId(1, 1), 10.0)
    plan.applied(EventId(1, 2), 10.1)
    assert plan.due(10.2) == EventId(1, 1)
    assert plan.due(10.3) is None
    assert plan.due(12.0) == EventId(1, 2)
    assert plan.due(13.0) is None


def test_nothing_is_due_before_the_lag_is_over() -> None:
    plan = TrimPlan(60)
    plan.applied(EventId(1, 1), 10.0)
    assert plan.due(69.0) is None
    assert plan.due(70.0) == EventId(1, 1)
