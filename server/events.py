"""WatchEvents: the ledger's events for callers, as they are committed."""

import asyncio
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TypeVar

from inventory.v1 import inventory_pb2 as messages
from ledger.errors import LedgerUnavailableError
from ledger.events_feed import IDS_AT_ONCE, EventsFeed, ServiceEvent
from ledger.service_events import ServiceEventKind
from server import validation
from server.calls import Context
from server.errors import cursor_ahead, cursor_too_old
from server.streams import Lives, explain

POLL_S = 0.25
"""Time between two looks at whether the ledger has new events."""
HEARTBEAT_S = 5.0
"""After so long without an event a caller is told where the feed is."""
ANSWER_S = 2.0
"""How long the ledger may take before it counts as away."""
PAGE = 500
"""Events that are read at a time for a caller who is behind."""
TAIL = 2_000
"""Events of which the end of the feed is made; who is further behind has the ledger asked."""
STALE_S = 5.0
"""After so long without an answer the end of the feed is taken anew; no event is forgotten so early."""

KINDS: Mapping[ServiceEventKind, messages.EventKind.ValueType] = {
    kind: messages.EventKind.Value(f"EVENT_KIND_{kind.name}") for kind in ServiceEventKind
}
_Answer = TypeVar("_Answer")
_id_of = attrgetter("id")
_KINDS_OF_NUMBERS = {number: kind for kind, number in KINDS.items()}


class Tail:
    """The end of the feed in memory, read once in POLL_S however many follow it."""

    def __init__(self, feed: EventsFeed) -> None:
        self._feed = feed
        self._asking = asyncio.Lock()
        self._due_s = self._seen_s = float("-inf")
        self._is_away = True
        self._since = 0
        """Every event with a greater id, up to `_last`, is in `_events`."""
        self._last = 0
        self._events: list[ServiceEvent] = []

    async def last(self) -> int | None:
        """The id of the last event, at most POLL_S old; None while the ledger is away."""
        async with self._asking:
            now_s = asyncio.get_running_loop().time()
            if now_s >= self._due_s:
                await self._look(anew=now_s - self._seen_s >= STALE_S)
            return None if self._is_away else self._last

    def after(self, cursor: int) -> Sequence[ServiceEvent] | None:
        """The events after a cursor, by id; None: they have to be read."""
        if cursor < self._since:
            return None
        return self._events[bisect_right(self._events, cursor, key=_id_of) :]

    async def _look(self, *, anew: bool) -> None:
        """`anew`: nothing was seen for a while, and what happened meanwhile may not be kept any more."""
        pause_s = POLL_S
        try:
            async with asyncio.timeout(ANSWER_S):
                if anew:
                    self._begin(await self._feed.last())
                elif self._add(await self._feed.after(self._last, limit=TAIL)):
                    pause_s = 0
            self._is_away = False
            self._seen_s = asyncio.get_running_loop().time()
        except (LedgerUnavailableError, TimeoutError):
            self._is_away = True
        self._due_s = asyncio.get_running_loop().time() + pause_s

    def _begin(self, last: int) -> None:
        self._since = self._last = last
        self._events = []

    def _add(self, page: Sequence[ServiceEvent]) -> bool:
        """Whether there may be more already."""
        self._events = [*self._events, *page]
        gone = len(self._events) - TAIL
        if gone > 0:
            self._since = self._events[gone - 1].id
            self._events = self._events[gone:]
        if page:
            self._last = page[-1].id
        return len(page) == TAIL


@dataclass(frozen=True, slots=True)
class EventService:
    """One method for each call of the contract on events, by its name in snake_case."""

    feed: EventsFeed
    tail: Tail
    lives: Lives

    async def watch_events(self, request: messages.WatchEventsRequest, context: Context) -> None:
        """Events from a cursor on, and the cursor itself at once and while nothing happens.

        While the ledger is away nothing comes; the stream's own time goes on. RefusedError for a cursor
        whose next events are not kept any more, or that no event has reached yet.
        """
        cursor = validation.cursor(request.cursor)
        validation.watched(
            kinds=request.kinds, known=_KINDS_OF_NUMBERS, product_ids=request.product_ids
        )
        async with self.lives.bounded() as life:
            present = await _patiently(self.tail.last)
            if cursor is None:
                cursor = present
            elif cursor > present:
                await self._require_reached(cursor)
            await _Watch(self, context, _wanted(request), cursor).run()
        explain(context, life.ending)

    async def _require_reached(self, cursor: int) -> None:
        """RefusedError if no event has got that far; another process may know of more than the tail."""

        async def last() -> int | None:
            return await _answer(self.feed.last())

        if cursor > await _patiently(last):
            raise cursor_ahead()


async def _patiently(look: Callable[[], Awaitable[int | None]]) -> int:
    """What the ledger says as soon as it answers."""
    while (found := await look()) is None:  # noqa: ASYNC110 - nobody tells of the ledger
        await asyncio.sleep(POLL_S)
    return found


async def _answer(asked: Awaitable[_Answer]) -> _Answer | None:
    """What the ledger says; None while it is away."""
    try:
        async with asyncio.timeout(ANSWER_S):
            return await asked
    except (LedgerUnavailableError, TimeoutError):
        return None


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What a caller is told of; empty: all."""

    kinds: Collection[ServiceEventKind]
    product_ids: Collection[int]

    def among(self, events: Sequence[ServiceEvent]) -> Sequence[ServiceEvent]:
        """Those of some events."""
        return [
            event
            for event in events
            if (not self.kinds or event.kind in self.kinds)
            and (not self.product_ids or event.product_id in self.product_ids)
        ]


class _Watch:
    """One caller's way through the feed."""

    def __init__(
        self, service: EventService, context: Context, wanted: _Wanted, cursor: int
    ) -> None:
        self._service = service
        self._context = context
        self._wanted = wanted
        self._cursor = cursor
        self._told_s = 0.0

    async def run(self) -> None:
        """Until the life of the stream is over, which cancels it."""
        await self._write(messages.WatchEventsResponse(cursor=str(self._cursor)))
        while True:
            await self._catch_up()
            await self._beat()
            await asyncio.sleep(POLL_S)

    async def _catch_up(self) -> None:
        last = await self._service.tail.last()
        while last is not None and self._cursor < last:
            recent = self._service.tail.after(self._cursor)
            events = await self._read(last) if recent is None else self._wanted.among(recent)
            if events is None:
                return
            until = last if recent is not None else min(last, self._cursor + IDS_AT_ONCE)
            for event in events:
                await self._write(_message(event))
                self._cursor = event.id
            if recent is not None or len(events) < PAGE:
                # Ids are in the order of the commits, so nothing up to `until` is yet to come.
                self._cursor = max(self._cursor, until)
            await self._beat()

    async def _read(self, last: int) -> Sequence[ServiceEvent] | None:
        return await _answer(self._read_kept(last))

    async def _read_kept(self, last: int) -> Sequence[ServiceEvent]:
        """RefusedError if events after the cursor are gone; at 0 those that are kept are all."""
        if self._cursor == 0:
            oldest = await self._service.feed.oldest()
            self._cursor = oldest - 1 if oldest else last
            return await self._read_page()
        events = await self._read_page()
        oldest = await self._service.feed.oldest()
        if oldest == 0 or self._cursor < oldest - 1:  # asked last, so that no pruning is overlooked
            raise cursor_too_old()
        return events

    async def _read_page(self) -> Sequence[ServiceEvent]:
        return await self._service.feed.after(
            self._cursor,
            until=self._cursor + IDS_AT_ONCE,
            kinds=self._wanted.kinds,
            product_ids=self._wanted.product_ids,
            limit=PAGE,
        )

    async def _beat(self) -> None:
        """Tell the cursor if nothing was told for a while; it moves past what is not wanted, too."""
        if asyncio.get_running_loop().time() - self._told_s >= HEARTBEAT_S:
            await self._write(messages.WatchEventsResponse(cursor=str(self._cursor)))

    async def _write(self, message: messages.WatchEventsResponse) -> None:
        await self._context.write(message)
        self._told_s = asyncio.get_running_loop().time()


def _wanted(request: messages.WatchEventsRequest) -> _Wanted:
    kinds = frozenset(_KINDS_OF_NUMBERS[number] for number in request.kinds)
    return _Wanted(kinds, frozenset(request.product_ids))


def _message(event: ServiceEvent) -> messages.WatchEventsResponse:
    return messages.WatchEventsResponse(
        cursor=str(event.id),
        kind=KINDS[event.kind],
        product_id=event.product_id,
        order_id=event.order_id,
        user_id=event.user_id,
        available=event.available,
        at_ms=event.at_ms,
    )
