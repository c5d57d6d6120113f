"""Work that one run can do for everybody who asked before it started."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

Result = TypeVar("Result")


class Turnstile(Generic[Result]):
    """At most one run at a time; who comes while one is under way waits for the next.

    A run that was under way already may have read what has changed since, so it serves nobody who came
    after its start.
    """

    def __init__(self, work: Callable[[], Awaitable[Result]], *, name: str) -> None:
        self._work = work
        self._name = name
        self._running: asyncio.Task[Result] | None = None
        self._next: asyncio.Task[Result] | None = None

    @property
    def is_running(self) -> bool:
        """Whether a run is under way."""
        return self._running is not None and not self._running.done()

    async def run(self) -> Result:
        """The result of a run that starts after this call. Cancelling a caller does not end the run."""
        if self._next is not None:
            return await asyncio.shield(self._next)
        if self._running is None or self._running.done():
            self._running = self._begin(None)
            return await asyncio.shield(self._running)
        self._next = self._begin(self._running)
        return await asyncio.shield(self._next)

    def _begin(self, before: asyncio.Task[Result] | None) -> asyncio.Task[Result]:
        task = asyncio.create_task(self._guarded(before), name=self._name)
        # Whoever asked may have gone: then nobody else will look at how it ended.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return task

    async def _guarded(self, before: asyncio.Task[Result] | None) -> Result:
        if before is not None:
            await asyncio.wait([before])
            self._running, self._next = self._next, None
        return await self._work()
