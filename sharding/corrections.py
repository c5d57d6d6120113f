"""Restock and remove on a product that is on sale."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from sharding.answers import CLOSED, INSUFFICIENT, MISSING, STALE, answers, unavailable
from sharding.catalogue import Catalogue, Product
from sharding.notes import NOTE_S
from sharding.outcomes import Answer, Deduction, Outcome, Reason
from sharding.placement import Layout, home_shard
from sharding.shards import MissingShardError, Served, Shards
from sharding.shortage import Gathered

ROUNDS_MIN = 64
PAUSE_S = 0.02
CLOSED_LOOKS = 2
"""How often a product is looked up again before closed is believed; the first look may have begun just
before it was loaded anew."""


class Correction(NamedTuple):
    """Units to add ("restock") or to take away ("remove"), once per request id."""

    kind: str
    product_id: int
    request_id: str
    quantity: int
    reason: str
    actor: str = ""


class Corrections:
    """Applies corrections at the home that their ids select."""

    def __init__(self, catalogue: Catalogue, *, partitions: int) -> None:
        self._catalogue = catalogue
        self._partitions = partitions

    async def apply(self, wanted: Correction) -> Answer:
        """DEDUCTED means that it was applied, now or before."""
        answer = await self._apply(wanted)
        if wanted.kind == "restock" and answer.outcome is Outcome.DEDUCTED:
            await self._outlive_notes(wanted.product_id)
        return answer

    async def _outlive_notes(self, product_id: int) -> None:
        """Until no process refuses anybody by a proof from before the units came."""
        product = self._catalogue.get(product_id)
        if product is not None:
            product.shortage.forget_note()
        await asyncio.sleep(NOTE_S)

    async def _apply(self, wanted: Correction) -> Answer:
        looks = 0
        echoes: list[bool] = []
        for _ in range(ROUNDS_MIN + 4 * self._partitions):
            product = await self._catalogue.find(wanted.product_id)
            if product is None:
                return Answer(Outcome.UNKNOWN_PRODUCT)
            answer = await self._apply_once(product, wanted, echoes)
            if answer in (STALE, MISSING) or (answer == CLOSED and looks < CLOSED_LOOKS):
                looks += answer == CLOSED
                self._catalogue.forget(wanted.product_id)
                await asyncio.sleep(PAUSE_S)
            elif answer == CLOSED and product.listing.is_copy:
                return unavailable(Reason.SHARDS_UNREACHABLE)
            elif answer is not None:
                return answer
        return unavailable(Reason.CONTENDED)

    async def _apply_once(
        self, product: Product, wanted: Correction, echoes: list[bool]
    ) -> Answer | None:
        """None: units were brought to the request's home, ask again.

        `echoes`: of each time that the home was asked, whether a try was lost.
        """
        shards = product.shards
        shard = home_shard(wanted.request_id, shards.layout.shards)
        earlier = await self._known_before(product, wanted)
        if earlier is not None:
            return earlier
        try:
            served = await _apply_at(shards, shards.partitions[shard], wanted)
            if served.statuses != b"I":
                return _answer(served, shard=shard)
            echoes.append(served.may_echo)
            gathered = await product.shortage.gather(
                shards.partitions[shard], wanted.quantity, at_home=served.available
            )
        except MissingShardError:
            return MISSING
        if gathered is Gathered.TOO_FEW:
            # A try that was lost may run yet, when there are enough units again.
            return unavailable(Reason.OUTCOME_UNKNOWN) if any(echoes) else INSUFFICIENT
        if gathered is Gathered.NOTHING_NOW:
            await asyncio.sleep(PAUSE_S)
        return None

    async def _known_before(self, product: Product, wanted: Correction) -> Answer | None:
        """What the homes that the request had in earlier layouts say, if they know it."""
        for partition, shard in self._former_homes(product, wanted):
            # A change that was taken back may never have come to a shard.
            with suppress(MissingShardError):
                found = await _apply_at(product.shards, partition, wanted, look=True)
                if found.statuses in (b"R", b"M"):
                    return _answer(found, shard=shard)
        return None

    def _former_homes(self, product: Product, wanted: Correction) -> Iterator[tuple[int, int]]:
        """Partition and shard of the homes that the request had in earlier layouts."""
        for count in product.listing.former:
            shard = home_shard(wanted.request_id, count)
            partition = Layout(0, count).partition(
                shard, product_id=wanted.product_id, partitions=self._partitions
            )
            yield partition, shard


async def _apply_at(
    shards: Shards, partition: int, wanted: Correction, *, look: bool = False
) -> Served:
    return await shards.adjust(
        partition,
        wanted.kind,
        request_id=wanted.request_id,
        quantity=wanted.quantity,
        reason=wanted.reason,
        actor=wanted.actor,
        look=look,
    )


def _answer(served: Served, *, shard: int) -> Answer:
    firsts = (f"{served.available}:{shard}".encode(),) if served.statuses == b"R" else ()
    request = Deduction("", 0, 0)
    return answers([request], served._replace(firsts=firsts), shard=shard)[0]
