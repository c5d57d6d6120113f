"""What happens when home is short: the units come to the request, or the refusal is proven.

Reading shards one after another is no snapshot: B is read empty, a unit moves from A to B, A is read
empty. So a refusal needs two readings between which no shard's `moves` changed and no transfer was open:
between the two nothing but deductions happened, and those only lower the sum that was read. Of such a
reading each two shards know the same of what one gave the other; where they do not, one of them has lost
a step of a transfer with its node, and that is made up for first.
"""

import asyncio
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from enum import Enum
from math import inf
from typing import NamedTuple

from sharding.answers import INSUFFICIENT, MISSING, SOLD_OUT, answers, may_pass, unavailable
from sharding.errors import StockUnavailableError
from sharding.metrics import StockMetrics
from sharding.notes import NOTE_S, Note
from sharding.outcomes import MAY_HAVE_RUN, Answer, Deduction, Outcome, Reason, State
from sharding.packing import pack
from sharding.readings import Given, OpenTransfer, Sent, ShardReading
from sharding.shards import MissingShardError, Mode, Served, Shards
from sharding.turnstile import Turnstile

ROUNDS_MIN = 64
"""Steps that one shortage is worth; more where there are more shards to gather from."""
YIELD_S = 0.005
"""How long a home steps back when there is nothing for it to do just now."""

Waiting = Mapping[int, Deduction]
"""Requests by their position in what was asked: the same request may stand there twice."""
Answered = dict[int, Answer]
"""Answers by the position of their requests."""


class Gathered(Enum):
    """What a step of gathering units came to."""

    SOME = "some"
    """Units moved: ask home again."""
    NOTHING_NOW = "nothing now"
    """Nobody can give just now: ask home again after a while."""
    TOO_FEW = "too few"
    """All shards together have fewer units than are wanted."""


class Survey(NamedTuple):
    """One reading of all shards; `proven` says that a second one found nothing moved, and that nothing
    was on its way."""

    readings: Sequence[ShardReading]
    proven: bool
    open_transfers: Sequence[OpenTransfer] = ()
    """Units that may arrive yet."""
    owed: Sequence[OpenTransfer] = ()
    """Units that are at both shards, below zero: none that could be lacking."""
    on_sale: bool = True
    """Whether every shard of the layout that was asked for was open and served it."""

    @property
    def available(self) -> int:
        return sum(reading.available for reading in self.readings)

    @property
    def unfinished(self) -> list[OpenTransfer]:
        """What somebody can and should bring to an end: what may arrive, and what can be given up."""
        return [*self.open_transfers, *(o for o in self.owed if self.available_at(o.donor))]

    def available_at(self, partition: int) -> int:
        return sum(r.available for r in self.readings if r.partition == partition)

    def richest_but(self, home: int) -> ShardReading | None:
        """The shard with the most units, home left out; None if the others have none."""
        others = [r for r in self.readings if r.partition != home and r.available > 0]
        return max(others, key=lambda reading: reading.available, default=None)


async def survey(shards: Shards) -> Survey:
    """Read all shards twice. StockUnavailableError or MissingShardError if one cannot be read."""
    first = await shards.read_all()
    serving = first[: len(shards.partitions)]
    on_sale = all(reading.is_on_sale(shards.layout) for reading in serving)
    begun = begun_by_donors(first)
    if begun:
        return Survey(first, proven=False, open_transfers=begun, on_sale=on_sale)
    second = await shards.read_all()
    if versions(first) != versions(second):
        return Survey(first, proven=False, on_sale=on_sale)
    uneven = in_transit(first)
    coming = [each for each in uneven if each.units > 0]
    owed = [each for each in uneven if each.units < 0]
    return Survey(first, not coming, coming, owed, on_sale)


def versions(readings: Sequence[ShardReading]) -> list[tuple[int, int]]:
    """What is the same in two readings between which nothing came in or moved."""
    return [reading.version for reading in readings]


def begun_by_donors(readings: Sequence[ShardReading]) -> list[OpenTransfer]:
    """What shards gave and were never told to have arrived, whether it has or not."""
    return [each for reading in readings for each in reading.open_transfers if each.units > 0]


def in_transit(readings: Sequence[ShardReading]) -> list[OpenTransfer]:
    """What shards gave each other and has not arrived by both sides' word, where all were read while
    nothing moved; by the donor's alone where the receiver was not read, or is of another epoch."""
    read = {reading.partition: reading for reading in readings}
    pairs = {(d, r) for d, reading in read.items() for r in reading.sent}
    pairs |= {(d, r) for r, reading in read.items() for d in reading.got if d in read}
    found = []
    for donor, receiver in sorted(pairs):
        units = _on_their_way(read[donor], read.get(receiver), receiver)
        if units:
            found.append(OpenTransfer(donor, receiver, units))
    return found


def _on_their_way(donor: ShardReading, other: ShardReading | None, receiver: int) -> int:
    sent = donor.sent.get(receiver, Sent())
    if other is not None and other.epoch == donor.epoch:
        return sent.given - other.got.get(donor.partition, 0)
    return 0 if donor.state is State.CLOSED else sent.given - sent.arrived


class Shortage:
    """Settles shortages of one product; one survey serves all homes that wait for one."""

    def __init__(self, shards: Shards, metrics: StockMetrics) -> None:
        self._shards = shards
        self._metrics = metrics
        self._rounds_max = max(ROUNDS_MIN, 2 * shards.layout.shards)
        self._surveys = Turnstile(self._survey, name=f"survey {shards.product_id}")
        self._note: Note | None = None
        self._last_available: float = inf
        """What the last note said."""

    @property
    def note(self) -> Note | None:
        """The last proof, None if it is too old to refuse anybody."""
        note = self._note
        if note is not None and asyncio.get_running_loop().time() >= note.until_s:
            note = self._note = None
        return note

    @property
    def is_proving(self) -> bool:
        """Whether the shards are being read just now."""
        return self._surveys.is_running

    def had_fewer_than(self, quantity: int) -> bool:
        """Whether the last note said that all shards together have fewer units; it may be over."""
        return self._last_available < quantity

    async def proves_fewer_than(self, quantity: int) -> bool:
        """Whether all shards together have fewer units: by the note, or by a proof that begins now."""
        note = self.note
        if note is not None:
            return note.available < quantity
        try:
            seen = await self._surveys.run()
        except (StockUnavailableError, MissingShardError):
            self._metrics.proofs.labels("failed").inc()
            self._last_available = inf  # so that nobody waits for it again
            return False
        return seen.proven and seen.on_sale and seen.available < quantity

    def forget_note(self) -> None:
        """Units have come in."""
        self._note, self._last_available = None, inf

    async def renew_note(self) -> None:
        """Prove it again before the note ends, as long as there is somebody to refuse."""
        try:
            await self._surveys.run()
        except (StockUnavailableError, MissingShardError):
            self._metrics.proofs.labels("failed").inc()

    async def settle(self, home: int, requests: Sequence[Deduction]) -> list[Answer]:
        """Answer requests that the shard in partition `home` had too few units for, in their order.

        Every failure is an answer.
        """
        case = _Case(home, requests)
        return case.answers(await self._settle(case))

    async def gather(self, home: int, quantity: int, *, at_home: int) -> Gathered:
        """Take one step towards `quantity` units at `home`, which has `at_home`.

        StockUnavailableError or MissingShardError if a shard cannot be asked.
        """
        seen = await self._surveys.run()
        if seen.unfinished:
            has_moved = await self._finish(seen.unfinished)
            return Gathered.SOME if has_moved else Gathered.NOTHING_NOW
        if not seen.on_sale:
            return Gathered.NOTHING_NOW
        if seen.proven and seen.available < quantity:
            return Gathered.TOO_FEW
        donor = seen.richest_but(home)
        if donor is None:
            return Gathered.NOTHING_NOW
        lacking = max(1, quantity - at_home)
        await self._shards.mark_gathering(home)
        given = await self._take(home, donor, quantity=lacking)
        if given is None:
            return Gathered.NOTHING_NOW
        served = await self._shards.put(given)
        await self._ack(given, served)
        return Gathered.SOME

    async def _settle(self, case: "_Case") -> Answer:
        """Close the case as far as possible; returns the answer to all that are still waiting then."""
        note = self.note
        if note is not None:
            await self._refuse(case, case.waiting_for_more_than(note.available))
        for step in range(self._rounds_max):
            if not case.waiting:
                break
            try:
                seen = await self._surveys.run()
                went_on = await self._settle_once(case, seen, insists=step > 0)
            except StockUnavailableError as failure:
                return unavailable(_reason(failure))
            except MissingShardError:
                return MISSING
            if not went_on:
                await asyncio.sleep(YIELD_S)
        return unavailable(Reason.CONTENDED)

    async def _survey(self) -> Survey:
        begun_s = asyncio.get_running_loop().time()
        result = await survey(self._shards)
        self._metrics.proofs.labels("proven" if result.proven else "moved").inc()
        self._note, self._last_available = None, inf
        if result.proven and result.on_sale:
            self._note = Note(result.available, begun_s + NOTE_S)
            self._last_available = result.available
        return result

    async def _settle_once(self, case: "_Case", seen: Survey, *, insists: bool) -> bool:
        """Take one step; whether there was anything to do.

        `insists`: an earlier step was not enough, so another home may be taking units away from here.
        """
        if seen.unfinished:
            return await self._finish(seen.unfinished)
        if not seen.on_sale:
            return case.close(await self._ask_home(case, case.waiting)) > 0
        hopeless = case.waiting_for_more_than(seen.available)
        if hopeless and seen.proven:
            await self._refuse(case, hopeless)
            return True
        donor = seen.richest_but(case.home)
        if donor is None:
            case.close(await self._ask_home(case, case.waiting))
            return True
        return await self._bring(case, donor, seen.available_at(case.home), insists=insists)

    async def _finish(self, transfers: Iterable[OpenTransfer]) -> bool:
        """Whether any came to its end: a receiver that is being restored takes nothing as yet."""
        ended = [await self._shards.finish(each.donor, each.receiver) for each in transfers]
        return any(each.is_even for each in ended)

    async def _refuse(self, case: "_Case", hopeless: Waiting) -> None:
        """An earlier copy may have been accepted since home was asked: look again, last of all.

        A retry's refusal is final, so that the caller who gives up is never sold to later.
        """
        case.close({i: SOLD_OUT for i, r in hopeless.items() if r.attempt == 1})
        unsure = {i: r for i, r in hopeless.items() if r.attempt == 0}
        if unsure:
            asked = await self._ask_home(case, unsure)
            case.close({i: SOLD_OUT if case.is_short(i, a) else a for i, a in asked.items()})
        repeated = {i: case.waiting[i] for i in hopeless if i in case.waiting}
        if repeated:
            case.close(await self._ask_home(case, repeated, mode=Mode.FINAL))

    async def _ask_home(
        self, case: "_Case", requests: Waiting, *, mode: Mode = Mode.HOME
    ) -> Answered:
        asking = self._shards.deduct(case.home, pack(requests.values()), mode=mode)
        answered, _ = await self._served(case, requests, asking)
        return answered

    async def _bring(
        self, case: "_Case", donor: ShardReading, at_home: int, *, insists: bool
    ) -> bool:
        requests = dict(case.waiting)
        quantity = units_to_move(requests.values(), at_home=at_home, at_donor=donor.available)
        least = min(request.quantity for request in requests.values()) - at_home
        if insists or donor.available < least:
            await self._shards.mark_gathering(case.home)
        given = await self._take(case.home, donor, quantity=quantity)
        if given is None:
            return False
        putting = self._shards.put(given, pack(requests.values()))
        answered, served = await self._served(case, requests, putting)
        if served is not None:
            await self._ack(given, served)
        case.close(answered)
        return True

    async def _take(self, home: int, donor: ShardReading, *, quantity: int) -> Given | None:
        """Begin a transfer to `home`; None if the donor gives nothing now."""
        taken = await self._shards.take(
            donor.partition, receiver=home, before=donor.given_to(home), quantity=quantity
        )
        return taken.given

    async def _served(
        self, case: "_Case", requests: Waiting, serving: Awaitable[Served]
    ) -> tuple[Answered, Served | None]:
        """The answers of a step that serves requests, and what it came to; None: nobody knows.

        Here alone the requests' own outcome can be unknown.
        """
        try:
            served = await serving
        except StockUnavailableError as failure:
            return dict.fromkeys(requests, unavailable(failure.reason)), None
        shard = self._shards.partitions.index(case.home)
        given = answers(list(requests.values()), served, shard=shard)
        answered = dict(zip(requests, given, strict=True))
        if served.may_echo:
            case.note_echoes(i for i, answer in answered.items() if answer is INSUFFICIENT)
            answered = {i: _while_it_may_run(answer) for i, answer in answered.items()}
        return answered, served

    async def _ack(self, given: Given, served: Served) -> None:
        try:
            await self._shards.ack(given._replace(units=served.got))
        except StockUnavailableError:
            # The units have arrived and the requests are served; who next reads the note closes it.
            self._metrics.moves.labels("ack_left_open").inc()


def units_to_move(requests: Iterable[Deduction], *, at_home: int, at_donor: int) -> int:
    """What the waiting requests lack, or an even share of both shards where that is more, so that the
    requests behind them lack none."""
    lacking = sum(request.quantity for request in requests) - at_home
    even_share = (at_donor - at_home) // 2
    return max(1, lacking, even_share)


class _Case:
    """Requests of one home on their way to their answers, by their position in what was asked."""

    __slots__ = ("_answered", "_echoing", "_size", "home", "waiting")

    def __init__(self, home: int, requests: Sequence[Deduction]) -> None:
        self.home = home
        self.waiting = dict(enumerate(requests))
        self._size = len(requests)
        self._answered: Answered = {}
        self._echoing: set[int] = set()

    def waiting_for_more_than(self, units: int) -> dict[int, Deduction]:
        return {i: request for i, request in self.waiting.items() if request.quantity > units}

    def note_echoes(self, positions: Iterable[int]) -> None:
        """A lost try of these may run yet: if they are refused, then for good."""
        for i in positions:
            self._echoing.add(i)
            self.waiting[i] = self.waiting[i]._replace(attempt=2)

    def is_short(self, position: int, answer: Answer) -> bool:
        """Whether home has too few units, and no lost try may change that yet."""
        return answer is INSUFFICIENT and position not in self._echoing

    def close(self, answered: Answered) -> int:
        """Take answers; who is short goes on waiting. Returns how many were answered."""
        final = {i: answer for i, answer in answered.items() if answer is not INSUFFICIENT}
        self._answered.update(final)
        for position in final:
            del self.waiting[position]
        return len(final)

    def answers(self, failure: Answer) -> list[Answer]:
        """All answers in their order; `failure` to those that wait in vain."""
        return [
            unknown_if_echoing(self._answered.get(i, failure), is_echoing=i in self._echoing)
            for i in range(self._size)
        ]


def unknown_if_echoing(answer: Answer, *, is_echoing: bool) -> Answer:
    """Nobody can say that nothing happened to a request of which a lost try may run yet."""
    if is_echoing and answer.outcome is Outcome.UNAVAILABLE:
        return unavailable(Reason.OUTCOME_UNKNOWN)
    return answer


def _while_it_may_run(answer: Answer) -> Answer:
    return unavailable(Reason.OUTCOME_UNKNOWN) if may_pass(answer) else answer


def _reason(failure: StockUnavailableError) -> Reason:
    """A step that failed did nothing to the requests themselves, whatever became of the step."""
    if failure.reason in MAY_HAVE_RUN or failure.reason is Reason.NOT_EXECUTED:
        return Reason.SHARDS_UNREACHABLE
    return failure.reason
