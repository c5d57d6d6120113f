"""Events that could not be applied, as the ledger keeps them, until somebody has dealt with them."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from msgpack import UnpackException, unpackb

from ledger.database import Database, Row, Transaction
from ledger.errors import Conflict, LedgerConflictError
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
    actor: str
    """Who dealt with it; empty while it is open."""
    remark: str
    """Why; empty while it is open."""
    created_ms: int
    """Milliseconds since 1970 UTC."""


class DeadLetters:
    """Reads what was set aside, and gives it up; `LetterRetries` applies it again."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list(
        self, *, after: int, limit: int, closed_too: bool = False
    ) -> Sequence[DeadLetterRow]:
        """Letters with greater ids than `after` that nobody has dealt with, by id; or all."""

        async def run(transaction: Transaction) -> Sequence[DeadLetterRow]:
            values = (after, closed_too, limit)
            rows = await transaction.rows(statement("dead_letter_list"), values)
            return [_listed(_stored_letter(row)) for row in rows]

        return await self._database.transaction(run)

    async def discard(self, letter_id: int, *, actor: str, reason: str) -> None:
        """Give a letter up, once. LedgerConflictError DEAD_LETTER_UNKNOWN, DEAD_LETTER_CLOSED."""
        named = self._database.place.number(letter_id)
        ending = Ending(letter_id, LetterState.DISCARDED, actor, reason, named=named)

        async def run(transaction: Transaction) -> None:
            if await ending.opened(transaction):
                await ending.close(transaction)

        await self._database.transaction(run)


class LetterState(StrEnum):
    """How a letter stands."""

    OPEN = "open"
    RETRIED = "retried"
    DISCARDED = "discarded"


class StoredLetter(NamedTuple):
    """One row of dead_letter."""

    id: int
    partition: int
    event_id: EventId
    product_id: int
    request_id: str
    reason: str
    packed: bytes
    shard_followed: bool | None
    """None: an earlier version wrote the letter and did not say."""
    state: str
    actor: str
    remark: str
    created_ms: int


class Ending:
    """One call that ends a letter: it does so once, however often its transaction is run.

    `named`: the number that callers know it by.
    """

    def __init__(
        self, letter_id: int, state: LetterState, actor: str, reason: str, *, named: int
    ) -> None:
        self._id = letter_id
        self._named = named
        self._end = (state.value, actor, reason)
        self._has_closed = False

    async def opened(self, transaction: Transaction) -> StoredLetter | None:
        """The letter, which nobody else can end now; None where this very call has ended it, and the
        reply to its commit was lost.

        LedgerConflictError DEAD_LETTER_UNKNOWN, DEAD_LETTER_CLOSED.
        """
        row = await transaction.row(statement("dead_letter_lock"), (self._id,))
        if row is None:
            raise unknown_letter(self._named)
        letter = _stored_letter(row)
        if letter.state == LetterState.OPEN:
            return letter
        if self._has_closed and (letter.state, letter.actor, letter.remark) == self._end:
            return None
        text = f"dead letter {self._named} was {letter.state} before"
        raise LedgerConflictError(Conflict.DEAD_LETTER_CLOSED, text)

    async def close(self, transaction: Transaction) -> None:
        """Write down how it ended."""
        closed = await transaction.execute(statement("dead_letter_close"), (*self._end, self._id))
        assert closed == 1  # it was seen open, and is locked
        self._has_closed = True


def unknown_letter(named: int) -> LedgerConflictError:
    """What there is to say of an id that no letter has."""
    text = f"there is no dead letter {named}"
    return LedgerConflictError(Conflict.DEAD_LETTER_UNKNOWN, text)


def _stored_letter(row: Row) -> StoredLetter:
    """A row in the columns of include/dead_letter_row.sql."""
    id_, partition, generation, number, product_id, request_id, reason, packed, *rest = row
    followed, state, actor, remark, created_ms = rest
    return StoredLetter(
        id=id_,
        partition=partition,
        event_id=EventId(generation, number),
        product_id=product_id,
        request_id=request_id,
        reason=reason,
        packed=packed,
        shard_followed=None if followed is None else bool(followed),
        state=state,
        actor=actor,
        remark=remark,
        created_ms=int(created_ms),
    )


def _listed(letter: StoredLetter) -> DeadLetterRow:
    return DeadLetterRow(
        id=letter.id,
        partition=letter.partition,
        event_id=letter.event_id,
        product_id=letter.product_id,
        request_id=letter.request_id,
        reason=letter.reason,
        event=_readable(letter.packed),
        state=letter.state,
        actor=letter.actor,
        remark=letter.remark,
        created_ms=letter.created_ms,
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
