"""What other shards know of a request before its home acts on it.

A request may have had its effect elsewhere: at its home under an earlier layout, or at the alternate
that stood in for a home whose node was down. Shards that only earlier layouts had accept nothing new,
so what they do not know they will never know: asking them is exact, and a request waits for their
answer. An alternate goes on accepting, so asking it catches an earlier copy and no copy that is still
on its way; what slips through is found by the ledger and undone. So one that does not answer is left
out: the request may be sold all the same, but not refused.

The second effect of an order's line cannot be undone: the order would be decided at two places. So the
alternate is barred from taking a line before its home does, and nothing is done without its word.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from sharding.answers import BARRED, INSUFFICIENT, MISSING, STALE, answers, unavailable
from sharding.errors import StockUnavailableError
from sharding.metrics import StockMetrics
from sharding.outcomes import MAY_HAVE_RUN, Answer, Deduction, Outcome, Reason
from sharding.packing import pack
from sharding.placement import Layout, alternate_shard, home_key, home_shard
from sharding.shards import MissingShardError, Mode, Shards
from sharding.tasks import Tasks
from sharding.turnstile import Turnstile

_LOG = logging.getLogger(__name__)

DOUBT_S = 600
"""So long after a layout came into force even a first try is looked up under the earlier ones: it may
have been sent, and sent again and sold, before, and have been held up since. No call is open longer."""
LOOKUP_REQUESTS_MAX = 2_000
ALTERNATE_S = 0.5
"""How long a request waits for a word of its alternate, that a stalled node stalls no neighbour. Once
a round of that node counts as stuck nobody waits at all."""
KNOWN_S = 1.0
"""How long it waits after that for what the alternate knows of it: one that has stood in for others."""


class Knowledge(NamedTuple):
    """What other shards said about requests, by position: their answers; for which of the others the
    alternate could not be asked: those may be sold, but not refused; and which had the same home under
    an earlier layout: what that knows of them it says itself, so nobody stands in for it."""

    known: dict[int, Answer]
    unsure: set[int]
    had_this_home: frozenset[int] = frozenset()


class Place(NamedTuple):
    """A shard of some layout."""

    partition: int
    shard: int


class Lookups:
    """Asks the other shards of one product; calls to one shard travel together."""

    def __init__(
        self,
        shards: Shards,
        former: Sequence[int],
        since_s: float,
        metrics: StockMetrics,
        tasks: Tasks,
        *,
        partitions: int,
        by_user: bool,
    ) -> None:
        self.by_user = by_user
        """Whether the user selects the home: where there is a limit per user. No shard stands in for
        another then."""
        self._shards = shards
        self._former = tuple(Layout(0, count) for count in former)
        self._doubt_until_s = since_s + DOUBT_S
        self._metrics = metrics
        self._tasks = tasks
        self._partitions = partitions
        self._desks: dict[tuple[Place, Mode], _Desk] = {}
        self._visits: dict[int, Turnstile[bool]] = {}

    @property
    def has_former(self) -> bool:
        """Whether the product had other layouts whose shards may know requests."""
        return bool(self._former)

    def doubtful(
        self, requests: Sequence[Deduction], *, rerouted: bool, is_new: bool
    ) -> Sequence[int]:
        """Positions of the requests that may have had their effect elsewhere.

        `rerouted`: they came here under an earlier layout. `is_new`: nobody has asked for them before.
        """
        if self._former and (rerouted or time.time() < self._doubt_until_s):
            return range(len(requests))
        if is_new or (not self._former and (self.by_user or len(self._shards.partitions) == 1)):
            return ()
        return [i for i, request in enumerate(requests) if request[5] != 1]

    async def known_at_alternate(self, requests: Sequence[Deduction], shard: int) -> Knowledge:
        """What the alternate `shard` knows of these requests."""
        place = Place(self._shards.partitions[shard], shard)
        return await self._ask_alternate(place, requests, range(len(requests)))

    async def known(
        self, requests: Sequence[Deduction], shard: int, *, bars: bool = False
    ) -> Knowledge:
        """What all shards that may know these requests say, but the home `shard`.

        `bars`: what the alternate does not know it never takes from then on. Whoever that cannot be said
        of is answered: nothing is done for it. STALE and MISSING: look the product up again.
        """
        former, alternates = self._places(requests, shard, bars=bars)
        asked = [self._ask_former(place, requests, at) for place, at in former.items()]
        asked += [self._ask_alternate(place, requests, at) for place, at in alternates.items()]
        if bars:
            asked.append(self.barred_at_alternate(requests, shard))
        known: dict[int, Answer] = {}
        unsure: set[int] = set()
        for found in await asyncio.gather(*asked):
            # Whoever has sold it knows better than whoever has refused it.
            sold = {i for i, answer in known.items() if answer.outcome is Outcome.DEDUCTED}
            known |= {i: answer for i, answer in found.known.items() if i not in sold}
            unsure |= found.unsure
        if bars:
            known = dict.fromkeys(unsure, unavailable(Reason.NOT_EXECUTED)) | known
        here = self._shards.partitions[shard]
        had_this_home = frozenset(
            i
            for i, request in enumerate(requests)
            if any(place.partition == here for place in self._former_homes(request))
        )
        return Knowledge(known, unsure - known.keys(), had_this_home)

    def _places(
        self, requests: Sequence[Deduction], shard: int, *, bars: bool = False
    ) -> tuple[dict[Place, list[int]], dict[Place, list[int]]]:
        """Where each request is to be looked up: at former homes, and at alternates. `bars`: the present
        alternate is asked in another way."""
        home = self._shards.partitions[shard]
        former: dict[Place, list[int]] = {}
        alternates: dict[Place, list[int]] = {}
        for i, request in enumerate(requests):
            homes = {p for p in self._former_homes(request) if p.partition != home}
            for place in homes:
                former.setdefault(place, []).append(i)
            present = None if bars else self._alternate(shard)
            stand_ins = {*self._former_alternates(request), *filter(None, (present,))}
            stand_ins = {place for place in stand_ins if place.partition != home}
            for place in stand_ins - homes:
                alternates.setdefault(place, []).append(i)
        return former, alternates

    def _former_homes(self, request: Deduction) -> Iterator[Place]:
        for layout in self._former:
            yield self._place(layout, home_shard(self._key(request), layout.shards))

    def _key(self, request: Deduction) -> str:
        return home_key(request, by_user=self.by_user)

    def _alternate(self, shard: int) -> Place | None:
        """What may stand in for the home `shard` now."""
        alternate = alternate_shard(shard, len(self._shards.partitions))
        if self.by_user or alternate is None:
            return None
        return Place(self._shards.partitions[alternate], alternate)

    def _former_alternates(self, request: Deduction) -> Iterator[Place]:
        if self.by_user:
            return
        for layout in self._former:
            home = home_shard(request.request_id, layout.shards)
            alternate = alternate_shard(home, layout.shards)
            if alternate is not None:
                yield self._place(layout, alternate)

    def _place(self, layout: Layout, shard: int) -> Place:
        partition = layout.partition(
            shard, product_id=self._shards.product_id, partitions=self._partitions
        )
        return Place(partition, shard)

    def _desk(self, place: Place, mode: Mode) -> "_Desk":
        desk = self._desks.get((place, mode))
        if desk is None:
            desk = _Desk(self._shards, place, mode, self._metrics, self._tasks)
            self._desks[place, mode] = desk
        return desk

    async def _ask(
        self, place: Place, requests: Sequence[Deduction], positions: Sequence[int]
    ) -> dict[int, Answer]:
        given = await self._desk(place, Mode.LOOK).ask([requests[i] for i in positions])
        pairs = zip(positions, given, strict=True)
        return {i: answer for i, answer in pairs if not _knows_nothing(answer)}

    async def barred_at_alternate(self, requests: Sequence[Deduction], shard: int) -> Knowledge:
        """What the alternate of the home `shard` knows; the others it never takes from then on. Known is
        also why a request could not be barred. A closed shard bars nobody: then no shard of the layout
        takes anything any more."""
        place = self._alternate(shard)
        if place is None:
            return Knowledge({}, set())
        given = await self._desk(place, Mode.BAR).ask(list(requests))
        barred = sum(answer is BARRED for answer in given)
        self._metrics.alternates.labels("barred").inc(barred)
        return Knowledge(
            {
                i: _as_nothing_done(answer)
                for i, answer in enumerate(given)
                if answer is not BARRED and answer.outcome is not Outcome.FROZEN
            },
            set(),
        )

    async def _ask_former(
        self, place: Place, requests: Sequence[Deduction], positions: Sequence[int]
    ) -> Knowledge:
        return Knowledge(await self._ask(place, requests, positions), set())

    async def _ask_alternate(
        self, place: Place, requests: Sequence[Deduction], positions: Sequence[int]
    ) -> Knowledge:
        try:
            async with asyncio.timeout(ALTERNATE_S):
                if not await self._was_visited(place.partition):
                    return Knowledge({}, set())
            async with asyncio.timeout(KNOWN_S):
                found = await self._ask(place, requests, positions)
        except (StockUnavailableError, TimeoutError):
            self._metrics.alternates.labels("not_asked").inc()
            return Knowledge({}, set(positions))
        unsure = {i for i, answer in found.items() if answer.outcome is Outcome.UNAVAILABLE}
        return Knowledge({i: a for i, a in found.items() if i not in unsure}, unsure)

    async def _was_visited(self, partition: int) -> bool:
        """Whether a shard ever stood in for another. One reading serves all who came before it."""
        turnstile = self._visits.get(partition)
        if turnstile is None:
            turnstile = self._visits[partition] = Turnstile(
                lambda: self._shards.was_visited(partition), name=f"visited p{partition:02d}"
            )
        return await turnstile.run()


def _knows_nothing(answer: Answer) -> bool:
    """Whether a shard said only that it takes nothing, or nothing any more."""
    is_plain = answer is INSUFFICIENT or answer is STALE or answer is MISSING
    return is_plain or answer.outcome is Outcome.FROZEN


def _as_nothing_done(answer: Answer) -> Answer:
    """A bar that may have been placed has done nothing for the request itself."""
    return unavailable(Reason.NOT_EXECUTED) if answer.reason in MAY_HAVE_RUN else answer


class _Desk:
    """Look-ups at one shard: what queued up while the last call was out goes in the next one."""

    def __init__(
        self, shards: Shards, place: Place, mode: Mode, metrics: StockMetrics, tasks: Tasks
    ) -> None:
        self._shards = shards
        self._place = place
        self._mode = mode
        self._metrics = metrics
        self._tasks = tasks
        self._waiting: deque[tuple[list[Deduction], asyncio.Future[list[Answer]]]] = deque()
        self._is_served = False

    def ask(self, requests: list[Deduction]) -> asyncio.Future[list[Answer]]:
        future: asyncio.Future[list[Answer]] = asyncio.get_running_loop().create_future()
        self._waiting.append((requests, future))
        if not self._is_served:
            self._is_served = True
            self._tasks.spawn(self._serve(), "look up")
        return future

    async def _serve(self) -> None:
        try:
            while self._waiting:
                await self._serve_once()
        finally:
            self._is_served = False

    async def _serve_once(self) -> None:
        lot = [self._waiting.popleft()]
        size = len(lot[0][0])
        while self._waiting and size + len(self._waiting[0][0]) <= LOOKUP_REQUESTS_MAX:
            size += len(self._waiting[0][0])
            lot.append(self._waiting.popleft())
        try:
            given = await self._look([request for requests, _ in lot for request in requests])
        except Exception:  # noqa: BLE001 - the top of the loop: whoever waits must be answered
            _LOG.exception("looking requests up failed")
            given = [unavailable(Reason.SHARD_CORRUPT)] * size
        start = 0
        for requests, future in lot:
            if not future.done():
                future.set_result(given[start : start + len(requests)])
            start += len(requests)

    async def _look(self, requests: Sequence[Deduction]) -> list[Answer]:
        partition, shard = self._place
        self._metrics.script_requests.observe(len(requests))
        try:
            served = await self._shards.deduct(partition, pack(requests), mode=self._mode)
        except StockUnavailableError as failure:
            return [unavailable(failure.reason)] * len(requests)
        except MissingShardError:
            return [MISSING] * len(requests)
        return answers(requests, served, shard=shard)
