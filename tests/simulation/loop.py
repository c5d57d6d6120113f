"""An event loop in virtual time: its clock jumps to the next timer, so nothing ever sleeps."""

import asyncio
from asyncio.base_events import BaseEventLoop
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, Protocol

EPOCH_S = 1_700_000_000.0
"""What a wall clock shows when a simulation begins, in seconds since 1970."""
_ROUNDING_S = 1e-9


class StuckError(Exception):
    """Somebody waits, and nothing will ever happen any more."""


class TaskOwner(Protocol):
    """Whoever has tasks of its own: a server process."""

    def adopt(self, task: asyncio.Task[Any]) -> None:
        """Learn of a task that was started in the owner's name."""


class VirtualLoop(BaseEventLoop):
    """asyncio without sockets and without waiting; the same callbacks run in the same order each time.

    `owner_of` names the owner of a task by the context that it runs in, None where it has none.
    """

    def __init__(self, owner_of: Callable[[Context | None], TaskOwner | None]) -> None:
        super().__init__()
        self._now_s = 0.0
        self._selector = _Jump(self)
        self._owner_of = owner_of
        self.set_task_factory(self._make_task)  # type: ignore[arg-type]

    def time(self) -> float:
        return self._now_s

    def wall_s(self) -> float:
        """Seconds since 1970, in virtual time."""
        return EPOCH_S + self._now_s

    def advance(self, delay_s: float) -> None:
        """Let the clock go on."""
        self._now_s += max(delay_s, _ROUNDING_S)

    def _make_task(
        self,
        loop: asyncio.AbstractEventLoop,
        coro: Coroutine[Any, Any, Any],
        context: Context | None = None,
    ) -> asyncio.Task[Any]:
        task = asyncio.Task(coro, loop=loop, context=context)
        owner = self._owner_of(context)
        if owner is not None:
            owner.adopt(task)
        return task

    def _process_events(self, event_list: list[object]) -> None:
        """There are no sockets, so there is nothing to do."""

    def _write_to_self(self) -> None:
        """There are no other threads, so nobody has to be woken."""


class _Jump:
    """Stands where a loop has its selector."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def select(self, timeout_s: float | None) -> list[object]:
        if timeout_s is None:
            raise StuckError
        if timeout_s > 0:
            self._loop.advance(timeout_s)
        return []
