"""Failures of the ledger. Above this package nobody sees an error of the MySQL library."""

from collections.abc import Collection
from enum import StrEnum


class LedgerError(Exception):
    """Base of all failures here; the text is one line."""


class LedgerUnavailableError(LedgerError):
    """MySQL cannot be reached or does not answer; a change that was asked for may have happened, unless
    `may_have_run` is false: then it certainly has not."""

    def __init__(self, text: str, *, may_have_run: bool = True) -> None:
        super().__init__(text)
        self.may_have_run = may_have_run


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
    DEAD_LETTERS_OPEN = "dead_letters_open"
    """Passes by retrying or discarding them."""
    DEAD_LETTER_UNKNOWN = "dead_letter_unknown"
    DEAD_LETTER_CLOSED = "dead_letter_closed"
    """It was retried or discarded before."""
    DEAD_LETTER_CUT = "dead_letter_cut"
    """Only its beginning was kept."""
    DEAD_LETTER_REFUSED = "dead_letter_refused"
    """The ledger cannot hold it; the text names the class of the reason."""


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


class LostRaceError(LedgerError):
    """A row was changed by another between its reading and its conditional update; nothing was written.

    `may_have_run`: an earlier attempt at the same work may have been committed.
    """

    def __init__(self, text: str, *, may_have_run: bool) -> None:
        super().__init__(text)
        self.may_have_run = may_have_run


class EngineDiffersError(LedgerError):
    """The ledger belongs to another engine than this process is set to."""
