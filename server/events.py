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
from ledger.servers import PerServer, together
from ledger.service_events import ServiceEventKind
from server import validation
from server.calls import Context
from server.errors import cursor_ahead, cursor_too_old
from server.streams import Lives, explain, sent

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
        self.feed = feed
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

    async def known(self) -> int | None:
        """The same, or what it was when the ledger last answered: no event is committed without it."""
        last = await self.last()
        return self._last if last is None and self._seen_s > float("-inf") else last

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
                    self._begin(await self.feed.last())
                elif self._add(await self.feed.after(self._last, limit=TAIL)):
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

    tails: PerServer[Tail]
    lives: Lives

    async def watch_events(self, request: messages.WatchEventsRequest, context: Context) -> None:
        """Events from a cursor on, and the cursor itself at once and while nothing happens.

        While a MySQL server is away nothing of its products comes; the stream's own time goes on.
        RefusedError for a cursor whose next events are not kept any more, or that no event has reached.
        """
        cursor = validation.cursor(request.cursor, servers=len(self.tails))
        validation.watched(
            kinds=request.kinds, known=_KINDS_OF_NUMBERS, product_ids=request.product_ids
        )
        async with self.lives.bounded() as life:
            begin = (
                cursor
                if cursor is not None
                else await self.tails.from_all(lambda tail: _patiently(tail.known))
            )
            watch = _Watch(context, begin)
            ways = [
                _Way(watch, tail, _wanted(request), server)
                for server, tail in enumerate(self.tails.all)
            ]
            await together([way.run() for way in ways])
        explain(context, life.ending)


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
    """What one caller is told, of whichever MySQL server: one message after the other."""

    def __init__(self, context: Context, positions: Sequence[int]) -> None:
        self._context = context
        self._positions = list(positions)
        """By server: the last event that the caller was told of, or that is not wanted."""
        self._told_s = float("-inf")
        self._writing = asyncio.Lock()

    def position(self, server: int) -> int:
        """How far the caller has come with one server's events."""
        return self._positions[server]

    def move(self, server: int, position: int) -> None:
        """Pass over events that are not wanted."""
        self._positions[server] = max(self._positions[server], position)

    async def begin(self) -> None:
        """Tell the cursor unless something was told already."""
        async with self._writing:
            if self._told_s == float("-inf"):
                await self._write(messages.WatchEventsResponse(cursor=_cursor(self._positions)))

    async def tell(self, server: int, event: ServiceEvent) -> None:
        """Tell of the next event of one server."""
        async with self._writing:
            positions = [*self._positions]
            positions[server] = event.id
            await self._write(_message(event, _cursor(positions)))
            self._positions[server] = event.id

    async def beat(self) -> None:
        """Tell the cursor if nothing was told for a while; it moves past what is not wanted, too."""
        async with self._writing:
            if asyncio.get_running_loop().time() - self._told_s >= HEARTBEAT_S:
                await self._write(messages.WatchEventsResponse(cursor=_cursor(self._positions)))

    async def _write(self, message: messages.WatchEventsResponse) -> None:
        await sent(self._context.write(message))
        self._told_s = asyncio.get_running_loop().time()


class _Way:
    """A watch's way through the events of one MySQL server."""

    def __init__(self, watch: _Watch, tail: Tail, wanted: _Wanted, server: int) -> None:
        self._watch = watch
        self._tail = tail
        self._wanted = wanted
        self._server = server

    async def run(self) -> None:
        """Until the life of the stream is over, which cancels it."""
        await self._require_reached(await _patiently(self._tail.last))
        await self._watch.begin()
        while True:
            await self._catch_up()
            await self._watch.beat()
            await asyncio.sleep(POLL_S)

    async def _require_reached(self, present: int) -> None:
        """RefusedError if no event has got so far; another process may know of more than the tail."""

        async def last() -> int | None:
            return await _answer(self._tail.feed.last())

        if self._position > present and self._position > await _patiently(last):
            raise cursor_ahead()

    @property
    def _position(self) -> int:
        return self._watch.position(self._server)

    async def _catch_up(self) -> None:
        last = await self._tail.last()
        while last is not None and self._position < last:
            recent = self._tail.after(self._position)
            events = await self._read(last) if recent is None else self._wanted.among(recent)
            if events is None:
                return
            until = last if recent is not None else min(last, self._position + IDS_AT_ONCE)
            for event in events:
                await self._watch.tell(self._server, event)
            if recent is not None or len(events) < PAGE:
                # Ids are in the order of the commits, so nothing up to `until` is yet to come.
                self._watch.move(self._server, until)
            await self._watch.beat()

    async def _read(self, last: int) -> Sequence[ServiceEvent] | None:
        return await _answer(self._read_kept(last))

    async def _read_kept(self, last: int) -> Sequence[ServiceEvent]:
        """RefusedError if events after the cursor are gone; at 0 those that are kept are all."""
        feed = self._tail.feed
        if self._position == 0:
            oldest = await feed.oldest()
            self._watch.move(self._server, oldest - 1 if oldest else last)
            return await self._read_page()
        events = await self._read_page()
        oldest = await feed.oldest()
        if (
            oldest == 0 or self._position < oldest - 1
        ):  # asked last, so that no pruning is overlooked
            raise cursor_too_old()
        return events

    async def _read_page(self) -> Sequence[ServiceEvent]:
        return await self._tail.feed.after(
            self._position,
            until=self._position + IDS_AT_ONCE,
            kinds=self._wanted.kinds,
            product_ids=self._wanted.product_ids,
            limit=PAGE,
        )


def _wanted(request: messages.WatchEventsRequest) -> _Wanted:
    kinds = frozenset(_KINDS_OF_NUMBERS[number] for number in request.kinds)
    return _Wanted(kinds, frozenset(request.product_ids))


def _cursor(positions: Sequence[int]) -> str:
    return ".".join(map(str, positions))


def _message(event: ServiceEvent, cursor: str) -> messages.WatchEventsResponse:
    return messages.WatchEventsResponse(
        cursor=cursor,
        kind=KINDS[event.kind],
        product_id=event.product_id,
        order_id=event.order_id,
        user_id=event.user_id,
        available=event.available,
        at_ms=event.at_ms,
    )
