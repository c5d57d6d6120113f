"""Work that goes on when whoever asked for it stops waiting."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from sharding.errors import StockError

Result = TypeVar("Result")

_LOG = logging.getLogger(__name__)


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
        task = self.spawn(work, name)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_look_at_what_nobody_waits_for)
            raise

    async def drain(self) -> None:
        """Return once everything that was begun has ended."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))


def _look_at_what_nobody_waits_for(task: asyncio.Task[Any]) -> None:
    """How far work could be done is nobody's business any more; a defect is."""
    error = None if task.cancelled() else task.exception()
    if error is not None and not isinstance(error, StockError):
        _LOG.error("%s failed after its caller had left", task.get_name(), exc_info=error)
