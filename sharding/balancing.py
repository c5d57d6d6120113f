"""Moving units between shards before anybody is short of them."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

from sharding.catalogue import Catalogue
from sharding.errors import StockUnavailableError
from sharding.outcomes import Reason
from sharding.readings import ShardReading
from sharding.shards import MissingShardError, Shards
from sharding.shortage import Survey, survey

LEVEL_UNITS_MIN = 16
"""Mean units a shard below which levelling is not worth its script calls: shortages find the rest."""
BEHIND = 4
"""A shard with less than a fourth of the mean has fallen behind."""
FRAGMENTS = 4
"""With less than one unit for each four shards, what is left is gathered in one of them: a request for
several units then needs one move, and a survey one donor."""
MOVES_AT_ONCE = 8
PREPARATIONS = 3
"""So often what is lacking is brought: once more if others were faster."""


class Move(NamedTuple):
    """Units to bring from one partition to another."""

    donor: int
    receiver: int
    units: int


def emptying(readings: Sequence[ShardReading], serving: int) -> list[Move]:
    """The moves that empty the shards behind the first `serving`, to those that have least."""
    levels = {reading.partition: reading.available for reading in readings[:serving]}
    moves = []
    for reading in readings[serving:]:
        if reading.available:
            receiver = min(levels, key=levels.__getitem__)
            moves.append(Move(reading.partition, receiver, reading.available))
            levels[receiver] += reading.available
    return moves


def levelling(
    readings: Sequence[ShardReading], *, behind: int = BEHIND, least: int = LEVEL_UNITS_MIN
) -> list[Move]:
    """The moves that lift shards which have fallen far behind to the mean; each from the richest. None
    where the mean is below `least`."""
    levels = {reading.partition: reading.available for reading in readings}
    total = sum(levels.values())
    mean = total // len(levels)
    if 0 < total * FRAGMENTS <= len(levels):
        return _merging(levels)
    if mean < least:
        return []
    moves = []
    for receiver in sorted(levels, key=levels.__getitem__):
        if levels[receiver] * behind >= mean:
            break
        moves += _lifting(receiver, levels, mean)
    return moves


def _lifting(receiver: int, levels: dict[int, int], mean: int) -> list[Move]:
    moves = []
    while levels[receiver] < mean:
        donor = max(levels, key=levels.__getitem__)
        units = min(levels[donor] - mean, mean - levels[receiver])
        if units <= 0:
            break
        levels[donor] -= units
        levels[receiver] += units
        moves.append(Move(donor, receiver, units))
    return moves


def _merging(levels: dict[int, int]) -> list[Move]:
    richest = max(levels, key=levels.__getitem__)
    return [
        Move(donor, richest, units) for donor, units in levels.items() if units and donor != richest
    ]


class Balancing:
    """Carries such moves out. A move that does not come about is left to the next look."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue

    async def drain_retired(self, product_id: int) -> bool:
        """Bring the units of shards that left to the others; whether nothing is left there.

        StockUnavailableError if a shard cannot be asked.
        """
        # Another process may have changed the layout since this one looked.
        self._catalogue.forget(product_id)
        product = await self._catalogue.find(product_id)
        if product is None:
            return True
        shards = product.shards
        seen = await self._look(shards)
        moves = emptying(seen.readings, len(shards.partitions))
        await self._carry_out(shards, seen, moves)
        retired = seen.readings[len(shards.partitions) :]
        return seen.proven and not any(r.available or r.held for r in retired)

    async def rebalance(self, product_id: int) -> int:
        """Lift shards that have fallen behind, merge fragments; returns the units that moved."""
        return await self._level(product_id, behind=BEHIND)

    async def repay(self, product_id: int, donor: int, receiver: int, *, owed: int) -> None:
        """Bring a shard what it is to give up once more: it has sold units that it had forgotten to have
        given another one. StockUnavailableError: not all of that could be had from others."""
        for _ in range(PREPARATIONS):
            self._catalogue.forget(product_id)
            product = await self._catalogue.find(product_id)
            if product is None:
                return
            await self._bring(product.shards, donor, owed)
            with self._all_there(product.shards):
                known = await product.shards.finish(donor, receiver)
            if not known.owed:
                return
            owed = known.owed
        raise StockUnavailableError(Reason.NOT_EXECUTED, f"p{donor:02d} lacks {owed} units")

    async def _bring(self, shards: Shards, receiver: int, units: int) -> None:
        """Move units to one shard from the richest of the others."""
        seen = await self._look(shards)
        donor = seen.richest_but(receiver)
        if donor is not None:
            with self._all_there(shards):
                await _move(shards, donor, Move(donor.partition, receiver, units))

    async def spread(self, product_id: int) -> None:
        """Give every shard of a new layout its share of all that there is, as far as that can be done
        now: shortages and the next look find what is left."""
        with suppress(StockUnavailableError):
            await self.drain_retired(product_id)
        await self.share_out(product_id)

    async def share_out(self, product_id: int) -> None:
        """The same of what those shards have that serve, without a word of those that left."""
        with suppress(StockUnavailableError):
            await self._level(product_id, behind=2, least=1)

    async def _level(self, product_id: int, *, behind: int, least: int = LEVEL_UNITS_MIN) -> int:
        product = await self._catalogue.find(product_id)
        if product is None:
            return 0
        shards = product.shards.serving()  # one that left and is away keeps no unit from those
        seen = await self._look(shards)
        if not seen.on_sale:
            self._catalogue.forget(product_id)
            return 0
        moves = levelling(seen.readings, behind=behind, least=least)
        return await self._carry_out(shards, seen, moves)

    async def _look(self, shards: Shards) -> Survey:
        """A reading without open transfers among its shards, as far as they can be finished."""
        with self._all_there(shards):
            seen = await survey(shards)
            asked = {*shards.partitions, *shards.retired}
            unfinished = [each for each in seen.unfinished if {each.donor, each.receiver} <= asked]
            if not unfinished:
                return seen
            for transfer in unfinished:
                await shards.finish(transfer.donor, transfer.receiver)
            return await survey(shards)

    async def _carry_out(self, shards: Shards, seen: Survey, moves: Sequence[Move]) -> int:
        donors = {reading.partition: reading for reading in seen.readings}
        moved = 0
        for start in range(0, len(moves), MOVES_AT_ONCE):
            steps = [
                _move(shards, donors[move.donor], move)
                for move in moves[start : start + MOVES_AT_ONCE]
            ]
            results = await asyncio.gather(*steps, return_exceptions=True)
            with self._all_there(shards):
                for result in results:
                    if isinstance(result, BaseException):
                        raise result
                    moved += result
        return moved

    @contextmanager
    def _all_there(self, shards: Shards) -> Iterator[None]:
        """A shard without its key may be cleared by a restoration just now."""
        try:
            yield
        except MissingShardError:
            self._catalogue.forget(shards.product_id)
            raise StockUnavailableError(
                Reason.SHARD_CORRUPT, f"product {shards.product_id}"
            ) from None


async def _move(shards: Shards, donor: ShardReading, move: Move) -> int:
    """Units that were moved; 0 if somebody else was faster. An open transfer is anybody's to finish."""
    taken = await shards.take(
        move.donor,
        receiver=move.receiver,
        before=donor.given_to(move.receiver),
        quantity=move.units,
    )
    if taken.given is None:
        return 0
    served = await shards.put(taken.given)
    await shards.ack(taken.given._replace(units=served.got))
    return taken.units
