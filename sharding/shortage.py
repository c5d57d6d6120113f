"""What happens when home is short: the units come to the request, or the refusal is proven.

Reading shards one after another is no snapshot: B is read empty, a unit moves from A to B, A is read
empty. So a refusal needs two readings between which no shard's `moves` changed and no transfer was open:
between the two nothing but deductions happened, and those only lower the sum that was read.
"""

import asyncio
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from sharding.answers import INSUFFICIENT, MISSING, answers, unavailable
from sharding.errors import StockUnavailableError
from sharding.metrics import StockMetrics
from sharding.outcomes import Answer, Deduction, Reason
from sharding.packing import pack
from sharding.shards import MissingShardError, OpenTransfer, Served, ShardReading, Shards
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
    """One reading of all shards; `proven` says that a second one found nothing moved."""

    readings: Sequence[ShardReading]
    proven: bool
    on_sale: bool = True
    """Whether every shard was open, in the layout that was asked for."""

    @property
    def available(self) -> int:
        return sum(reading.available for reading in self.readings)

    @property
    def open_transfers(self) -> list[OpenTransfer]:
        return [transfer for reading in self.readings for transfer in reading.open_transfers]

    def available_at(self, partition: int) -> int:
        return sum(r.available for r in self.readings if r.partition == partition)

    def richest_but(self, home: int) -> ShardReading | None:
        """The shard with the most units, home left out; None if the others have none."""
        others = [r for r in self.readings if r.partition != home and r.available > 0]
        return max(others, key=lambda reading: reading.available, default=None)


async def survey(shards: Shards) -> Survey:
    """Read all shards twice. StockUnavailableError or MissingShardError if one cannot be read."""
    first = await shards.read_all()
    on_sale = all(reading.is_on_sale(shards.layout) for reading in first)
    if any(reading.open_transfers for reading in first):
        return Survey(first, proven=False, on_sale=on_sale)
    second = await shards.read_all()
    unmoved = [reading.version for reading in first] == [reading.version for reading in second]
    return Survey(first, proven=unmoved, on_sale=on_sale)


class Shortage:
    """Settles shortages of one product; one survey serves all homes that wait for one."""

    def __init__(self, shards: Shards, metrics: StockMetrics) -> None:
        self._shards = shards
        self._metrics = metrics
        self._rounds_max = max(ROUNDS_MIN, 2 * shards.layout.shards)
        self._surveys = Turnstile(self._survey, name=f"survey {shards.product_id}")

    async def settle(self, home: int, requests: Sequence[Deduction]) -> list[Answer]:
        """Answer requests that the shard in partition `home` had too few units for, in their order.

        Every failure is an answer.
        """
        answered: Answered = {}
        failure = await self._settle(home, dict(enumerate(requests)), answered)
        return [answered.get(i, failure) for i in range(len(requests))]

    async def gather(self, home: int, quantity: int, *, at_home: int) -> Gathered:
        """Take one step towards `quantity` units at `home`, which has `at_home`.

        StockUnavailableError or MissingShardError if a shard cannot be asked.
        """
        seen = await self._surveys.run()
        if seen.open_transfers:
            await self._finish(seen.open_transfers)
            return Gathered.SOME
        if not seen.on_sale:
            return Gathered.NOTHING_NOW
        if seen.proven and seen.available < quantity:
            return Gathered.TOO_FEW
        donor = seen.richest_but(home)
        if donor is None:
            return Gathered.NOTHING_NOW
        lacking = max(1, quantity - at_home)
        transfer = await self._take(home, donor, quantity=lacking, least=lacking)
        if transfer is None:
            return Gathered.NOTHING_NOW
        await self._shards.put(transfer)
        await self._ack(transfer)
        return Gathered.SOME

    async def _settle(self, home: int, waiting: dict[int, Deduction], answered: Answered) -> Answer:
        """Fill in `answered`; returns the answer to all that are still waiting at the end."""
        for _ in range(self._rounds_max):
            try:
                seen = await self._surveys.run()
                done = await self._settle_once(home, waiting, seen)
            except StockUnavailableError as failure:
                return unavailable(_reason(failure))
            except MissingShardError:
                return MISSING
            if done is None:
                await asyncio.sleep(YIELD_S)
                continue
            answered.update(done)
            for position in done:
                del waiting[position]
            if not waiting:
                break
        return unavailable(Reason.CONTENDED)

    async def _survey(self) -> Survey:
        result = await survey(self._shards)
        self._metrics.proofs.labels("proven" if result.proven else "moved").inc()
        return result

    async def _settle_once(self, home: int, waiting: Waiting, seen: Survey) -> Answered | None:
        """Take one step; returns the requests that it answered, None if there was nothing to do."""
        if seen.open_transfers:
            await self._finish(seen.open_transfers)
            return {}
        if not seen.on_sale:
            return _without_short(await self._ask_home(home, waiting)) or None
        hopeless = {i: r for i, r in waiting.items() if r.quantity > seen.available}
        if hopeless and seen.proven:
            return await self._refuse(home, hopeless)
        donor = seen.richest_but(home)
        if donor is None:
            return _without_short(await self._ask_home(home, waiting))
        return await self._bring(home, donor, waiting, seen.available_at(home))

    async def _finish(self, transfers: Iterable[OpenTransfer]) -> None:
        for transfer in transfers:
            await self._shards.finish(transfer)

    async def _refuse(self, home: int, hopeless: Waiting) -> Answered:
        """An earlier copy may have been accepted since home was asked: look again, last of all."""
        repeated = {i: request for i, request in hopeless.items() if request.attempt != 1}
        refused = {i: INSUFFICIENT for i in hopeless if i not in repeated}
        return refused | (await self._ask_home(home, repeated) if repeated else {})

    async def _ask_home(self, home: int, waiting: Waiting) -> Answered:
        asking = self._shards.deduct(home, pack(waiting.values()))
        answered, _ = await self._served(home, waiting, asking)
        return answered

    async def _bring(
        self, home: int, donor: ShardReading, waiting: Waiting, at_home: int
    ) -> Answered | None:
        quantity = units_to_move(waiting.values(), at_home=at_home, at_donor=donor.available)
        least = min(request.quantity for request in waiting.values()) - at_home
        transfer = await self._take(home, donor, quantity=quantity, least=least)
        if transfer is None:
            return None
        putting = self._shards.put(transfer, pack(waiting.values()))
        answered, is_done = await self._served(home, waiting, putting)
        if is_done:
            await self._ack(transfer)
        return _without_short(answered)

    async def _take(
        self, home: int, donor: ShardReading, *, quantity: int, least: int
    ) -> OpenTransfer | None:
        """Begin a transfer to `home`; None if the donor gives nothing now.

        Where one donor has less than the `least` that helps, home says that it is gathering.
        """
        if donor.available < least:
            await self._shards.mark_gathering(home)
        number = donor.last_out.get(home, 0) + 1
        taken = await self._shards.take(
            donor.partition, receiver=home, number=number, quantity=quantity
        )
        if taken.word != "taken":
            return None
        return OpenTransfer(donor.partition, home, number, taken.numbers[0])

    async def _served(
        self, partition: int, waiting: Waiting, serving: Awaitable[Served]
    ) -> tuple[Answered, bool]:
        """The answers of a step that serves requests, and whether it was carried out.

        Here alone the requests' own outcome can be unknown.
        """
        try:
            served = await serving
        except StockUnavailableError as failure:
            return dict.fromkeys(waiting, unavailable(failure.reason)), False
        shard = self._shards.partitions.index(partition)
        given = answers(list(waiting.values()), served, shard=shard)
        return dict(zip(waiting, given, strict=True)), True

    async def _ack(self, transfer: OpenTransfer) -> None:
        try:
            await self._shards.ack(transfer)
        except StockUnavailableError:
            # The units have arrived and the requests are served; who next reads the note closes it.
            self._metrics.moves.labels("ack_left_open").inc()


def units_to_move(requests: Iterable[Deduction], *, at_home: int, at_donor: int) -> int:
    """What the waiting requests lack, or an even share of both shards where that is more, so that the
    requests behind them lack none."""
    lacking = sum(request.quantity for request in requests) - at_home
    even_share = (at_donor - at_home) // 2
    return max(1, lacking, even_share)


def _without_short(answered: Answered) -> Answered:
    return {i: answer for i, answer in answered.items() if answer is not INSUFFICIENT}


_MAY_HAVE_RUN = frozenset((Reason.OUTCOME_UNKNOWN, Reason.NOT_REPLICATED))


def _reason(failure: StockUnavailableError) -> Reason:
    """A step that failed did nothing to the requests themselves, whatever became of the step."""
    if failure.reason in _MAY_HAVE_RUN or failure.reason is Reason.NOT_EXECUTED:
        return Reason.SHARDS_UNREACHABLE
    return failure.reason
