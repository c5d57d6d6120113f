"""The operator's calls on the journal and on what could not be applied to it. Protobuf ends here."""

from dataclasses import dataclass

from inventory.v1 import admin_pb2 as messages
from ledger.dead_letters import DeadLetterRow, DeadLetters
from ledger.letter_retries import LetterRetries
from ledger.servers import PerServer
from ledger.timeline import Timeline, TimelineRow
from server import validation
from server.calls import Context

NO_PARTITION = -1


@dataclass(frozen=True, slots=True)
class JournalService:
    """One method for each call of the contract on the journal, by its name in snake_case."""

    letters: PerServer[DeadLetters]
    retries: PerServer[LetterRetries]
    timeline: PerServer[Timeline]

    async def list_dead_letters(
        self, request: messages.ListDeadLettersRequest, _context: Context
    ) -> messages.ListDeadLettersResponse:
        """Read a page of events that could not be applied."""
        validation.check(validation.at_least("after_id", request.after_id, 0))
        size = validation.page_size(request.page_size)
        rows = await self.letters.page(
            lambda each, after: each.list(
                after=after, limit=size, closed_too=request.include_closed
            ),
            after=request.after_id,
            limit=size,
        )
        return messages.ListDeadLettersResponse(
            letters=map(_letter, rows),
            next_after_id=rows[-1].id if len(rows) == size else 0,
        )

    async def retry_dead_letter(
        self, request: messages.RetryDeadLetterRequest, _context: Context
    ) -> messages.RetryDeadLetterResponse:
        """Apply a letter again."""
        _check_ending(request)
        retries, own_id = self.retries.numbered(request.id)
        await retries.retry(own_id, actor=request.actor, reason=request.reason)
        return messages.RetryDeadLetterResponse()

    async def discard_dead_letter(
        self, request: messages.DiscardDeadLetterRequest, _context: Context
    ) -> messages.DiscardDeadLetterResponse:
        """Give a letter up."""
        _check_ending(request)
        letters, own_id = self.letters.numbered(request.id)
        await letters.discard(own_id, actor=request.actor, reason=request.reason)
        return messages.DiscardDeadLetterResponse()

    async def get_timeline(
        self, request: messages.GetTimelineRequest, _context: Context
    ) -> messages.GetTimelineResponse:
        """Read a page of the journal, the newest first."""
        validation.timeline(request)
        size = validation.page_size(request.page_size)
        rows = await self.timeline.page_back(
            lambda each, before: each.page(
                product_id=request.product_id,
                request_id=request.request_id,
                order_id=request.order_id,
                before_id=before,
                limit=size,
            ),
            before=request.before_id,
            limit=size,
            product_id=request.product_id,
        )
        return messages.GetTimelineResponse(
            entries=map(_entry, rows), next_before_id=rows[-1].id if len(rows) == size else 0
        )


def _check_ending(
    request: messages.RetryDeadLetterRequest | messages.DiscardDeadLetterRequest,
) -> None:
    validation.check(
        validation.at_least("id", request.id, 1),
        *validation.why_and_who(reason=request.reason, actor=request.actor),
    )


def _letter(row: DeadLetterRow) -> messages.DeadLetter:
    return messages.DeadLetter(
        id=row.id,
        partition=row.partition,
        event_id=str(row.event_id),
        reason=row.reason,
        event=row.event,
        created_ms=row.created_ms,
        product_id=row.product_id,
        request_id=row.request_id,
        state=row.state,
        remark=f"{row.actor}: {row.remark}" if row.actor else row.remark,
    )


def _entry(row: TimelineRow) -> messages.TimelineEntry:
    came_by_stream = row.partition is not None
    return messages.TimelineEntry(
        kind=row.kind,
        request_id=row.request_id,
        order_id=row.order_id,
        user_id=row.user_id,
        quantity=row.quantity,
        partition=NO_PARTITION if row.partition is None else row.partition,
        event_id=str(row.event_id) if came_by_stream else "",
        reason=row.remark,
        created_ms=row.created_ms,
        id=row.id,
        product_id=row.product_id,
        actor=row.actor,
        available_before=row.available_before,
        available_after=row.available_after,
    )
