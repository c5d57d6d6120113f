"""Whether this process had a processor: while it has none, everything that it waits for seems late."""

import asyncio
from types import TracebackType
from typing import Self

TICK_S = 0.02


class Standstill:
    """Within the block, `lasted_s` is how long the event loop came late to what was due, in sum."""

    def __init__(self) -> None:
        self.lasted_s = 0.0
        self._now_s = asyncio.get_running_loop().time
        self._due_s = self._now_s()

    async def __aenter__(self) -> Self:
        self._ticks = asyncio.create_task(self._tick(), name="standstill")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ticks.cancel()
        self._note()

    async def _tick(self) -> None:
        while True:
            self._due_s = self._now_s() + TICK_S
            await asyncio.sleep(TICK_S)
            self._note()

    def _note(self) -> None:
        self.lasted_s += max(0.0, self._now_s() - self._due_s)
