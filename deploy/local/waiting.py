"""Wait for a condition, never for a time."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from deploy.local.errors import StackError

POLL_S = 0.02

Condition = Callable[[], Awaitable[bool]]


async def until(condition: Condition, *, what: str, within_s: float) -> None:
    """Return when `condition` holds; raise StackError naming `what` if it does not in time."""
    try:
        async with asyncio.timeout(within_s):
            while not await condition():  # noqa: ASYNC110  # nothing sets an event for it
                await asyncio.sleep(POLL_S)
    except TimeoutError as error:
        raise StackError(f"{what}: not within {within_s:g} s") from error


async def together(*steps: Coroutine[Any, Any, None]) -> None:
    """Run the steps side by side; the first failure cancels the others and is raised as it is."""
    try:
        async with asyncio.TaskGroup() as group:
            for step in steps:
                group.create_task(step)
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from failures
