"""Work that arrives item by item and is done in lots: what queued up while the last lot was out goes in
the next one."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from sharding.tasks import Tasks

Item = TypeVar("Item")
Result = TypeVar("Result")


class Desk(Generic[Item, Result]):
    """Hands lots of at most `size_max` items to `work`, which answers them in their order.

    A result that is an exception is raised for whoever asked. Where `work` itself fails, everybody in
    the lot gets its error.
    """

    def __init__(
        self,
        work: Callable[[Sequence[Item]], Awaitable[Sequence[Result | Exception]]],
        tasks: Tasks,
        *,
        size_max: int,
    ) -> None:
        self._work = work
        self._tasks = tasks
        self._size_max = size_max
        self._waiting: deque[tuple[Item, asyncio.Future[Result]]] = deque()
        self._is_served = False

    @property
    def is_idle(self) -> bool:
        return not self._is_served

    def ask(self, item: Item) -> asyncio.Future[Result]:
        """The item's result, or the error of its lot."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        # Whoever asked may have gone: then nobody else will look at how it ended.
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._waiting.append((item, future))
        if not self._is_served:
            self._is_served = True
            self._tasks.spawn(self._serve(), "desk")
        return future

    async def _serve(self) -> None:
        try:
            while self._waiting:
                size = min(len(self._waiting), self._size_max)
                await self._serve_lot([self._waiting.popleft() for _ in range(size)])
        finally:
            self._is_served = False

    async def _serve_lot(self, lot: Sequence[tuple[Item, asyncio.Future[Result]]]) -> None:
        try:
            results = await self._work([item for item, _ in lot])
        except Exception as error:  # noqa: BLE001 - handed to everybody who waits
            for _, future in lot:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), result in zip(lot, results, strict=True):
            if future.done():
                continue
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)
