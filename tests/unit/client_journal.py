"""The journal and the dead letters of the inventory in this process."""

from dataclasses import dataclass, field
from typing import Any

import grpc

from inventory.v1 import admin_pb2


@dataclass(slots=True)
class Journal:
    """Entries and letters by id."""

    entries: list[admin_pb2.TimelineEntry] = field(default_factory=list)
    letters: list[admin_pb2.DeadLetter] = field(default_factory=list)

    def happen(self, **fields: Any) -> None:
        self.entries.append(admin_pb2.TimelineEntry(id=len(self.entries) + 1, **fields))

    def set_aside(self, reason: str, **fields: Any) -> None:
        letter = admin_pb2.DeadLetter(
            id=len(self.letters) + 1, reason=reason, state="open", **fields
        )
        self.letters.append(letter)


class JournalCalls:
    """Methods of the operator's service on the journal; `_refuse` ends a call with a status."""

    _journal: Journal

    def _refuse(self, context: grpc.ServicerContext, code: grpc.StatusCode, reason: str) -> None:
        raise NotImplementedError

    def ListDeadLetters(self, request, context):  # noqa: N802
        found = [
            each
            for each in self._journal.letters
            if each.id > request.after_id and (request.include_closed or each.state == "open")
        ]
        size = request.page_size or 100
        more = len(found) > size
        return admin_pb2.ListDeadLettersResponse(
            letters=found[:size], next_after_id=found[size - 1].id if more else 0
        )

    def RetryDeadLetter(self, request, context):  # noqa: N802
        self._end(request, context, "retried")
        return admin_pb2.RetryDeadLetterResponse()

    def DiscardDeadLetter(self, request, context):  # noqa: N802
        self._end(request, context, "discarded")
        return admin_pb2.DiscardDeadLetterResponse()

    def GetTimeline(self, request, context):  # noqa: N802
        found = [
            each
            for each in reversed(self._journal.entries)
            if request.product_id in (0, each.product_id)
            and request.order_id in (0, each.order_id)
            and request.request_id in ("", each.request_id)
            and (not request.before_id or each.id < request.before_id)
        ]
        size = request.page_size or 100
        more = len(found) > size
        return admin_pb2.GetTimelineResponse(
            entries=found[:size], next_before_id=found[size - 1].id if more else 0
        )

    def _end(self, request: Any, context: grpc.ServicerContext, state: str) -> None:
        found = [each for each in self._journal.letters if each.id == request.id]
        if not found:
            self._refuse(context, grpc.StatusCode.NOT_FOUND, "DEAD_LETTER_UNKNOWN")
        (letter,) = found
        if letter.state != "open":
            self._refuse(context, grpc.StatusCode.FAILED_PRECONDITION, "DEAD_LETTER_CLOSED")
        letter.state, letter.remark = state, f"{request.actor}: {request.reason}"
