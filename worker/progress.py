"""What a worker knows about its partitions: how far they are applied, trimmed and behind. Pure."""

from collections import deque

from sharding.events import EventId

NOTE_EVERY_S = 1.0


class TrimPlan:
    """Remembers since when each entry of one partition has been applied, about once a second."""

    def __init__(self, lag_s: float) -> None:
        self._lag_s = lag_s
        self._notes: deque[tuple[float, EventId]] = deque()
        self._latest: tuple[float, EventId] | None = None
        """What came too soon after the last note; it becomes one if nothing follows."""

    def applied(self, event_id: EventId, now_s: float) -> None:
        """The checkpoint stands at `event_id` now; `now_s` on a clock that only goes forward."""
        if not self._notes or now_s - self._notes[-1][0] >= NOTE_EVERY_S:
            self._notes.append((now_s, event_id))
            self._latest = None
        else:
            self._latest = now_s, event_id

    def due(self, now_s: float) -> EventId | None:
        """Entries strictly below it have been applied for the lag at least; told once."""
        found = None
        if self._latest and now_s - self._latest[0] >= NOTE_EVERY_S:
            self._notes.append(self._latest)
            self._latest = None
        while self._notes and now_s - self._notes[0][0] >= self._lag_s:
            found = self._notes.popleft()[1]
        return found


class Lag:
    """How far the ledger is behind one partition's stream."""

    def __init__(self) -> None:
        self.entries = 0
        self._behind_since_s: float | None = None

    def seen(self, last: int, applied: int, now_s: float) -> None:
        """Compare the numbers of the stream's last event and of the last one that the ledger has."""
        self.entries = max(0, last - applied)
        if not self.entries:
            self._behind_since_s = None
        elif self._behind_since_s is None:
            self._behind_since_s = now_s

    def applied_until(self, at_s: float) -> None:
        """Everything up to that time has been applied, so what is missing is younger."""
        if self._behind_since_s is not None:
            self._behind_since_s = max(self._behind_since_s, at_s)

    def seconds(self, now_s: float) -> float:
        """At most for how long the ledger has been behind; 0: it is not."""
        return 0.0 if self._behind_since_s is None else max(0.0, now_s - self._behind_since_s)
