"""Events that could not be applied, as the ledger keeps them."""

from collections.abc import Sequence
from dataclasses import dataclass

from msgpack import UnpackException, unpackb

from ledger.database import Database, Row, Transaction
from ledger.statements import statement
from sharding.events import EventId

TEXT_CHARS_MAX = 1_000


@dataclass(frozen=True, slots=True)
class DeadLetterRow:
    """One event, or one request of an event, that was set aside."""

    id: int
    partition: int
    event_id: EventId
    product_id: int
    """0: it has none that could be read."""
    request_id: str
    """Empty: the whole event is meant."""
    reason: str
    event: str
    """Its fields as text, cut after 1,000 characters."""
    state: str
    created_ms: int
    """Milliseconds since 1970 UTC."""


class DeadLetters:
    """Reads what was set aside."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list(self, *, after: int, limit: int) -> Sequence[DeadLetterRow]:
        """Letters with greater ids than `after` that nobody has dealt with, by id."""

        async def run(transaction: Transaction) -> Sequence[DeadLetterRow]:
            rows = await transaction.rows(statement("dead_letter_list"), (after, limit))
            return [_letter(row) for row in rows]

        return await self._database.transaction(run)


def _letter(row: Row) -> DeadLetterRow:
    id_, partition, generation, number, product_id, request_id, reason, packed, state, ms = row
    return DeadLetterRow(
        id=id_,
        partition=partition,
        event_id=EventId(generation, number),
        product_id=product_id,
        request_id=request_id,
        reason=reason,
        event=_readable(packed),
        state=state,
        created_ms=int(ms),
    )


def _readable(packed: bytes) -> str:
    """`name=value name=value …`; bytes that are no text are escaped."""
    try:
        fields = unpackb(packed)
    except (ValueError, UnpackException):
        return repr(packed[:TEXT_CHARS_MAX])[:TEXT_CHARS_MAX]
    parts = [part[:TEXT_CHARS_MAX].decode("utf-8", "backslashreplace") for part in fields]
    pairs = zip(parts[::2], parts[1::2], strict=False)
    return " ".join(f"{name}={value}" for name, value in pairs)[:TEXT_CHARS_MAX]
