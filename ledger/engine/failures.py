"""What a caller is told of a transaction that failed."""

import structlog

from ledger.errors import LedgerError, LedgerUnavailableError
from sharding.outcomes import Answer, Outcome, Reason

log = structlog.get_logger()


def reason_of(error: LedgerError, *, may_have_run: bool = False) -> Reason:
    """`may_have_run`: an earlier try of the same work may have been committed."""
    is_away = isinstance(error, LedgerUnavailableError)
    if may_have_run or (isinstance(error, LedgerUnavailableError) and error.may_have_run):
        return Reason.OUTCOME_UNKNOWN
    return Reason.NOT_EXECUTED if is_away else Reason.SHARD_CORRUPT


def unavailable(error: LedgerError, *, product_id: int, may_have_run: bool = False) -> Answer:
    """The answer to all requests of the transaction. What is no passing failure is logged."""
    if not isinstance(error, LedgerUnavailableError):
        log.error(
            "a product's rows contradict each other", product_id=product_id, detail=str(error)
        )
    return Answer(Outcome.UNAVAILABLE, reason=reason_of(error, may_have_run=may_have_run))
