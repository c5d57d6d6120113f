"""Failures of the live stock. Above this package nobody sees an error of the Redis library."""

from sharding.outcomes import Reason


class StockError(Exception):
    """Base of all failures here."""


class StockUnavailableError(StockError):
    """A script had no effect, or nobody knows whether it had one: `reason` says which.

    Only OUTCOME_UNKNOWN and NOT_REPLICATED mean that it may have had one.
    """

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason.value}: {detail}")
        self.reason = reason
        self.detail = detail


class NodeAwayError(StockUnavailableError):
    """A node could not be connected to, or did not answer."""


class RetiredAwayError(StockUnavailableError):
    """A layout is in force, and a shard that left could not be told so. Calling again tells it."""


class PartitionCountError(StockError):
    """The cluster was set up with another number of partitions than this process is set to."""


class ServerCountError(StockError):
    """The cluster was set up for another number of MySQL servers than this process is set to."""


class NodeUnfitError(StockError):
    """A Redis node can lose units by the way that it is set up; the text says what mends it."""


class NotOpenableError(StockError):
    """A partition cannot be opened by comparing heads alone; the text says what differs.

    `found`: who opened it last, for Restoring.shut, which leaves alone what was opened since.
    `may_be_past`: what it has may be no more than the ledger's past, because its head is at an earlier
    event than the ledger, or because it was being restored.
    """

    def __init__(self, text: str, *, found: str = "", may_be_past: bool = False) -> None:
        super().__init__(text)
        self.found = found
        self.may_be_past = may_be_past


class RestorationPassedError(StockError):
    """Another attempt to restore the partition began or ended after this one had looked at it, or its
    node has changed."""


class LoadConflictError(StockError):
    """A shard has another epoch than the one that is to be loaded or closed."""


class CloseBusyError(StockError):
    """Units are held or on their way; the text says which. Close again later."""


class RepairImpossibleError(StockError):
    """A live count would be below zero after a compensation; nothing was changed."""


class LayoutPassedError(StockError):
    """The product was closed or loaded again, or has a later layout."""
