"""When to try again and how long to wait: pure, with the time passed in."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How long one call may take and how it is tried.

    A call ends at `deadline_s` or after `tries_max` tries, whichever comes first. Pauses double
    from `pause_s` to `pause_s_max`, each shortened at random by up to half so that callers part.
    """

    deadline_s: float = 5.0
    try_timeout_s: float = 2.0
    tries_max: int = 20
    pause_s: float = 0.02
    pause_s_max: float = 1.0

    def __post_init__(self) -> None:
        if min(self.deadline_s, self.try_timeout_s, self.pause_s, self.pause_s_max) <= 0:
            raise ValueError("times of a RetryPolicy are above zero")
        if self.tries_max < 1:
            raise ValueError("tries_max is at least 1")


FOR_CALLS = RetryPolicy()
FOR_ADMIN = RetryPolicy(deadline_s=60.0, try_timeout_s=30.0)
"""Loading and closing move every unit of a product; that takes longer than to take a few."""


class Budget:
    """The tries and the time that one call has left."""

    def __init__(self, policy: RetryPolicy, *, start_s: float, deadline_s: float | None) -> None:
        self._policy = policy
        self._end_s = start_s + (policy.deadline_s if deadline_s is None else deadline_s)
        self._failed = 0

    @property
    def tries(self) -> int:
        """Tries that failed so far."""
        return self._failed

    def try_timeout_s(self, *, now_s: float) -> float:
        """How long the next try may take; never below a millisecond."""
        return max(min(self._policy.try_timeout_s, self._end_s - now_s), 0.001)

    def pause_s(self, *, now_s: float, asked_s: float, jitter: float) -> float | None:
        """How long to wait after a failed try; None: give up.

        asked_s is what the service asked for, and the least that is waited; jitter is in [0, 1).
        """
        self._failed += 1
        if self._failed >= self._policy.tries_max:
            return None
        doubled_s = self._policy.pause_s * 2 ** (self._failed - 1)
        own_s = min(doubled_s, self._policy.pause_s_max) * (1 - jitter / 2)
        pause_s = asked_s + own_s
        return pause_s if now_s + pause_s < self._end_s else None
