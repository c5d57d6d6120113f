"""Applies again what was set aside: exactly once, by whomever and however often it is asked for."""

from collections.abc import Awaitable, Callable
from dataclasses import replace

from msgpack import UnpackException, unpackb

from ledger.batch import ENDS, EffectKey, LedgerBatch, ShardChange, ShardKey
from ledger.database import Database, Row, Transaction
from ledger.dead_letters import Ending, LetterState, StoredLetter, unknown_letter
from ledger.errors import (
    BatchRefusedError,
    Conflict,
    DuplicateEffectsError,
    LedgerConflictError,
)
from ledger.failpoints import Failpoints
from ledger.journal import found_effects, rivals, write
from ledger.merge import Delivery, merge_late, received
from ledger.statements import placeholders, statement
from sharding.events import BEFORE_ALL, Event, EventId
from sharding.partitions import Entry

MALFORMED, DUPLICATE = "malformed", "duplicate_effect"
DUPLICATE_LOOKUPS_MAX = 3
_Run = Callable[[Transaction], Awaitable[None]]


class LetterRetries:
    """Retries letters, one transaction each."""

    def __init__(self, database: Database, failpoints: Failpoints) -> None:
        self._database = database
        self._failpoints = failpoints

    async def retry(self, letter_id: int, *, actor: str, reason: str) -> None:
        """Do all that the letter's event, or its one request, is to do to the ledger, and close it.

        LedgerConflictError DEAD_LETTER_UNKNOWN, DEAD_LETTER_CLOSED, DEAD_LETTER_CUT,
        DEAD_LETTER_REFUSED: nothing was changed.
        """
        named = self._database.place.number(letter_id)
        ending = Ending(letter_id, LetterState.RETRIED, actor, reason, named=named)

        async def run(transaction: Transaction) -> None:
            await _hold_partition(transaction, letter_id, named=named)
            if letter := await ending.opened(transaction):
                await self._apply(transaction, letter, actor=actor, reason=reason)
                await ending.close(transaction)
                self._failpoints.hit("letter.before_commit")

        await self._without_races(named, run)
        self._failpoints.hit("letter.after_commit")

    async def _without_races(self, named: int, run: _Run) -> None:
        """Look again for effects of the same requests if somebody writes one meanwhile."""
        for _ in range(DUPLICATE_LOOKUPS_MAX):
            try:
                await self._database.transaction(run)
            except DuplicateEffectsError:
                continue
            except BatchRefusedError as error:
                raise _refused(named, error.reason) from error
            return
        raise _refused(named, DUPLICATE)

    async def _apply(
        self, transaction: Transaction, letter: StoredLetter, *, actor: str, reason: str
    ) -> None:
        named = self._database.place.number(letter.id)
        delivery = _delivery(letter, named=named)
        assert delivery.event is not None
        batch = await _batch(transaction, letter, delivery)
        if letter.request_id and not batch.effects:
            raise BatchRefusedError(DUPLICATE, letter.request_id)
        await _fit_shard(transaction, batch, letter.partition, delivery.event)
        await _forget_ended(transaction, batch)
        _sign(batch, actor=actor, remark=f"retried letter {named}: {reason}")
        await write(transaction, batch, self._failpoints)


async def _hold_partition(transaction: Transaction, letter_id: int, *, named: int) -> None:
    """Keep workers from the partition's rows: they lock its checkpoint before all others, too."""
    row = await transaction.row(statement("dead_letter_partition"), (letter_id,))
    if row is None:
        raise unknown_letter(named)
    await transaction.rows(placeholders("checkpoint_lock", 1), row)


def _delivery(letter: StoredLetter, *, named: int) -> Delivery:
    """The letter's entry as a worker reads it; what an earlier version could not read this one may."""
    try:
        fields = unpackb(letter.packed)
    except (ValueError, UnpackException) as error:
        text = f"only the beginning of dead letter {named} was kept"
        raise LedgerConflictError(Conflict.DEAD_LETTER_CUT, text) from error
    delivery = received(Entry(letter.event_id, tuple(fields)))
    if delivery.event is None:
        raise BatchRefusedError(MALFORMED, delivery.problem)
    return delivery


async def _batch(transaction: Transaction, letter: StoredLetter, delivery: Delivery) -> LedgerBatch:
    def merged(taken: set[EffectKey]) -> LedgerBatch:
        return merge_late(
            letter.partition,
            delivery,
            taken,
            request_id=letter.request_id,
            shard_follows=_shard_follows(letter),
            tells=letter.reason.startswith(f"{MALFORMED} "),
        )

    return merged(await rivals(transaction, merged(set())))


def _shard_follows(letter: StoredLetter) -> bool:
    """Whether the shard's row is still to take over what the event says of its counts."""
    if letter.request_id:
        return False  # the rest of its event was applied
    if letter.shard_followed is None:
        raise BatchRefusedError("shard_not_known", "an earlier version set it aside")
    return not letter.shard_followed


async def _fit_shard(
    transaction: Transaction, batch: LedgerBatch, partition: int, event: Event
) -> None:
    key = ShardKey(event.product_id, partition)
    if change := batch.shards.pop(key, None):
        row = await transaction.row(statement("shard_position"), key)
        if fitted := _fitted(change, event, row):
            batch.shards[key] = fitted


def _fitted(change: ShardChange, event: Event, row: Row | None) -> ShardChange | None:
    """The change as the shard's row can take it after later events; None: a later epoch began anew."""
    if row is None:
        return change  # a load makes the row, anything else is refused
    epoch, generation, number = row
    is_late = EventId(generation, number) > event.id
    if epoch > event.epoch:
        return None
    if change.reset and (epoch == event.epoch or is_late):
        raise BatchRefusedError("superseded", "the shard's row goes on from a later event")
    if not change.reset and epoch < event.epoch:
        raise BatchRefusedError("unknown_shard", f"in epoch {event.epoch}")
    if is_late:
        return replace(change, layout_version=0, state="", last_event=BEFORE_ALL)
    return change


async def _forget_ended(transaction: Transaction, batch: LedgerBatch) -> None:
    """A hold whose end has been applied holds nothing any more."""
    for key in list(batch.held):
        for kind in ENDS:
            if await found_effects(transaction, key.product_id, kind.value, [key.request_id]):
                batch.held.pop(key, None)


def _sign(batch: LedgerBatch, *, actor: str, remark: str) -> None:
    """Say in every row who wanted it, and why, before what the event itself says."""
    batch.effects = [
        each._replace(actor=actor, remark="; ".join(filter(None, (remark, each.remark))))
        for each in batch.effects
    ]
    batch.undone = [
        each._replace(actor=actor, remark=f"{remark}; {each.remark}") for each in batch.undone
    ]


def _refused(named: int, reason_class: str) -> LedgerConflictError:
    text = f"the ledger cannot hold dead letter {named}: {reason_class}"
    return LedgerConflictError(Conflict.DEAD_LETTER_REFUSED, text)
