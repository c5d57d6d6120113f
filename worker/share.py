"""The partitions that this worker serves just now, as its tasks tell each other."""

from collections.abc import Sequence
from time import monotonic

from ledger.servers import ALONE, Place
from sharding.errors import StockUnavailableError
from sharding.partitions import Checkpoint, StreamState
from sharding.placement import base_partition
from worker.metrics import WorkerMetrics
from worker.progress import Lag, TrimPlan


class Share:
    """Partitions whose streams for one MySQL server this worker has leased, with what is known of each.

    All times are of the monotonic clock.
    """

    def __init__(
        self,
        metrics: WorkerMetrics,
        *,
        trim_lag_s: float,
        partitions: int,
        place: Place = ALONE,
    ) -> None:
        """`partitions`: of the whole cluster; `place`: of the MySQL server."""
        self.place = place
        """Of the MySQL server."""
        self._metrics = metrics
        self._trim_lag_s = trim_lag_s
        self._partitions = partitions
        self.owned: frozenset[int] = frozenset()
        self.leased_until_s = 0.0
        self.away: set[int] = set()
        """Partitions that did not answer or are fenced; not read until their head is seen open."""
        self.applied: dict[int, Checkpoint] = {}
        """Known checkpoints; a missing one is to be read from the ledger."""
        self.trims: dict[int, TrimPlan] = {}
        self.lags: dict[int, Lag] = {}
        self.behind: set[int] = set()
        """Partitions that sell nothing of the server's products because too many events wait for it."""

    @property
    def is_leased(self) -> bool:
        """Whether the leases hold by this process's own clock."""
        return monotonic() < self.leased_until_s

    @property
    def readable(self) -> list[int]:
        """Partitions whose events are to be read."""
        return sorted(self.owned - self.away)

    def owns(self, product_id: int) -> bool:
        """Whether a product is this worker's to look after: its base partition is."""
        return base_partition(product_id, self._partitions) in self.owned

    def lease(self, owned: frozenset[int], until_s: float) -> None:
        """Take over what the ledger has leased to this worker."""
        for partition in self.owned - owned:
            self._forget(partition)
        for partition in owned - self.owned:
            self.trims[partition] = TrimPlan(self._trim_lag_s)
            self.lags[partition] = Lag()
            self._metrics.lag_entries.labels(str(partition)).set(0)
            self._metrics.lag_seconds.labels(str(partition)).set(0)
        self.owned, self.leased_until_s = owned, until_s
        self._metrics.owned.set(len(owned))

    def advance(self, partition: int, checkpoint: Checkpoint) -> None:
        """Note that everything up to a checkpoint is in the ledger."""
        if partition in self.owned:
            self.applied[partition] = checkpoint
            self.trims[partition].applied(checkpoint.id, monotonic())

    def show(self, partition: int, stream: StreamState, now_s: float) -> None:
        """Show what a partition's head says of its stream; `now_s`: since 1970, as in events.

        While the ledger is away, its own word on how far it is lacks; then the partition's counts.
        """
        if partition not in self.lags:
            return
        (self.behind.add if stream.is_behind else self.behind.discard)(partition)
        self._metrics.behind.set(len(self.behind))
        known = self.applied.get(partition)
        applied = known.id.number if known else stream.applied
        if applied is None:
            return
        lag = self.lags[partition]
        lag.seen(stream.last.number, applied, now_s)
        self._metrics.lag_entries.labels(str(partition)).set(lag.entries)
        self._metrics.lag_seconds.labels(str(partition)).set(lag.seconds(now_s))

    def lose(self, partition: int, error: StockUnavailableError) -> None:
        """Note that a partition did not answer."""
        self.found(partition, is_open=False)
        self._metrics.redis_failures.labels(error.reason.value).inc()

    def found(self, partition: int, *, is_open: bool) -> None:
        """Note whether a partition can be read; nothing if it was lost while it was asked."""
        if is_open:
            self.away.discard(partition)
        elif partition in self.owned:
            self.away.add(partition)

    def _forget(self, partition: int) -> None:
        self.away.discard(partition)
        self.behind.discard(partition)
        self.applied.pop(partition, None)
        del self.trims[partition], self.lags[partition]
        self._metrics.lag_entries.remove(str(partition))
        self._metrics.lag_seconds.remove(str(partition))


class Shares:
    """This worker's share at each MySQL server.

    What is to be done for a partition once, and not for each of its streams, is done by whoever has it
    at the first server that keeps leases: as long as one does, somebody has each partition.
    """

    def __init__(self, shares: Sequence[Share]) -> None:
        self.all = tuple(shares)

    @property
    def leading(self) -> Share:
        """That of the first server whose leases hold; the first of all where none do."""
        return next((share for share in self.all if share.is_leased), self.all[0])

    @property
    def is_leased(self) -> bool:
        """Whether there is somebody to care for."""
        return self.leading.is_leased

    @property
    def owned(self) -> frozenset[int]:
        """Partitions that this worker cares for."""
        return self.leading.owned

    @property
    def readable(self) -> list[int]:
        """Those of them that answer."""
        return self.leading.readable

    @property
    def served(self) -> frozenset[int]:
        """Partitions of which this worker serves some stream."""
        return frozenset().union(*(share.owned for share in self.all))

    def found(self, partition: int, *, is_open: bool) -> None:
        """Note for all whether a partition can be read."""
        for share in self.all:
            share.found(partition, is_open=is_open)
