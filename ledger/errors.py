"""Failures of the ledger. Above this package nobody sees an error of the MySQL library."""

from collections.abc import Collection
from enum import StrEnum


class LedgerError(Exception):
    """Base of all failures here; the text is one line."""


class LedgerUnavailableError(LedgerError):
    """MySQL cannot be reached or does not answer; a change that was asked for may have happened."""


class SchemaError(LedgerError):
    """The tables are not those that this program works with."""


class PartitionsDifferError(LedgerError):
    """The ledger was set up for another number of partitions than this process is set to."""


class ServersDifferError(LedgerError):
    """A MySQL server was set up as another one of the ledger's servers, or as one of another number."""


class UnknownProductError(LedgerError):
    """The ledger has no such product."""

    def __init__(self, product_id: int) -> None:
        super().__init__(f"product {product_id} is unknown")
        self.product_id = product_id


class Conflict(StrEnum):
    """What stands against a change."""

    NOT_CLOSED = "not_closed"
    NOT_OPEN = "not_open"
    NOT_CLOSING = "not_closing"
    LAYOUT_CHANGING = "layout_changing"
    """Passes by itself."""
    STATUS_CHANGING = "status_changing"
    """Passes by itself, or by calling Load or Close again."""
    OTHER_EPOCH = "other_epoch"
    TOTAL_FIXED = "total_fixed"
    REQUEST_MISMATCH = "request_mismatch"
    INSUFFICIENT_STOCK = "insufficient_stock"
    LIMIT_FIXES_SHARDS = "limit_fixes_shards"
    """Passes by closing the product."""


class LedgerConflictError(LedgerError):
    """The change does not fit what the ledger holds; nothing was changed."""

    def __init__(self, conflict: Conflict, text: str) -> None:
        super().__init__(text)
        self.conflict = conflict


class CheckpointMovedError(LedgerError):
    """Another worker has applied events of these partitions; nothing of the batch was applied."""

    def __init__(self, partitions: Collection[int]) -> None:
        super().__init__(f"checkpoints moved: {sorted(partitions)}")
        self.partitions = frozenset(partitions)


class DuplicateEffectsError(LedgerError):
    """The journal has an effect of one of the batch's requests already; nothing was applied."""


class BatchRefusedError(LedgerError):
    """The ledger cannot hold what a batch says; nothing of it was applied."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason} {detail}")
        self.reason = reason
