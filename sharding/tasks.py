"""Work that goes on when whoever asked for it stops waiting."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class Tasks:
    """Tasks of one event loop that somebody will wait for in the end."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[object, object, Result], name: str) -> asyncio.Task[Result]:
        """Begin work that `drain` waits for."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def whole(self, work: Coroutine[object, object, Result], name: str) -> Result:
        """The result of work of several steps, which goes on if the caller stops waiting for it."""
        return await asyncio.shield(self.spawn(work, name))

    async def drain(self) -> None:
        """Return once everything that was begun has ended."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))
