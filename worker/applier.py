"""Brings chunks of events into the ledger, whatever single events are worth."""

from collections.abc import Sequence
from dataclasses import replace

from ledger.errors import BatchRefusedError, DuplicateEffectsError
from ledger.journal import Journal
from ledger.merge import Chunk, Delivery, merge

DUPLICATE_LOOKUPS_MAX = 3


class Applier:
    """Applies chunks; an event that the ledger cannot hold ends as a dead letter."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    async def apply(self, chunks: Sequence[Chunk]) -> None:
        """Apply all entries of the chunks and move their checkpoints.

        CheckpointMovedError, LedgerUnavailableError: some may have been applied, the checkpoints say
        which.
        """
        try:
            await self._attempt(chunks)
        except BatchRefusedError as refused:
            for part in _parts(chunks, str(refused)):
                await self.apply(part)

    async def _attempt(self, chunks: Sequence[Chunk]) -> None:
        try:
            await self._journal.apply(merge(chunks))
        except DuplicateEffectsError:
            await self._without_duplicates(chunks)

    async def _without_duplicates(self, chunks: Sequence[Chunk]) -> None:
        """Look which effects the journal has; again if another worker adds one meanwhile.

        Ids that only the journal's unique key takes for one are never found: refused in the end.
        """
        for lookup in range(1, DUPLICATE_LOOKUPS_MAX + 1):
            taken = await self._journal.existing(merge(chunks))
            try:
                await self._journal.apply(merge(chunks, taken))
            except DuplicateEffectsError as error:
                if lookup == DUPLICATE_LOOKUPS_MAX:
                    raise BatchRefusedError("duplicate_effect", str(error)) from error
            else:
                return


def _parts(chunks: Sequence[Chunk], reason: str) -> list[Sequence[Chunk]]:
    """A refused batch in halves, or its only event set aside: shorter or milder, so this ends."""
    if len(chunks) > 1:
        middle = len(chunks) // 2
        return [chunks[:middle], chunks[middle:]]
    partition, start, deliveries = chunks[0]
    if len(deliveries) > 1:
        middle = len(deliveries) // 2
        first, second = deliveries[:middle], deliveries[middle:]
        return [
            [Chunk(partition, start, first)],
            [Chunk(partition, first[-1].entry.id, second)],
        ]
    return [[Chunk(partition, start, [_set_aside(deliveries[0], reason)])]]


def _set_aside(delivery: Delivery, reason: str) -> Delivery:
    """First the shard's counts follow the event all the same; if they cannot, they do not."""
    if not delivery.problem:
        return replace(delivery, problem=reason, shard_follows=True)
    assert delivery.shard_follows  # a bare letter holds nothing that could be refused
    return replace(delivery, shard_follows=False)
