"""What processes have seen of a partition that is shut, or was opened anew, for whoever opens it: a node
that was promoted without its last events cannot say how many there were."""

import asyncio
from collections.abc import Callable, Coroutine

from sharding.errors import StockUnavailableError
from sharding.events import BEFORE_ALL, EventId

Telling = Callable[[int, EventId], Coroutine[object, object, object]]
"""Leaves word of an event in its partition. StockUnavailableError."""


class Witness:
    """Has each event told at most once by this process."""

    def __init__(self, tell: Telling) -> None:
        self._tell = tell
        self._wanted: dict[int, EventId] = {}
        """What was said of each partition, or is to be."""
        self._telling: dict[int, asyncio.Task[None]] = {}

    def tell(self, partition: int, seen: EventId) -> None:
        """Begin to say what the last event was that this process saw.

        What could not be said is said when the partition is next found shut, if that is the same
        opening's; else nobody says it any more.
        """
        if self._wanted.get(partition, BEFORE_ALL) >= seen:
            return
        self._wanted[partition] = seen
        if partition in self._telling:
            return
        task = asyncio.create_task(self._carry_out(partition), name=f"witness {partition}")
        self._telling[partition] = task

    def forget(self, partition: int) -> None:
        """Have it said once more: another node has the partition, and may lack what was said."""
        self._wanted.pop(partition, None)

    async def close(self) -> None:
        """Leave the rest unsaid."""
        telling = list(self._telling.values())
        for task in telling:
            task.cancel()
        await asyncio.gather(*telling, return_exceptions=True)

    async def _carry_out(self, partition: int) -> None:
        told = BEFORE_ALL
        try:
            while (wanted := self._wanted.get(partition, told)) > told:
                await self._tell(partition, wanted)
                told = wanted
        except StockUnavailableError:
            self._wanted[partition] = told
        finally:  # in one step with the last look at what is wanted
            del self._telling[partition]
