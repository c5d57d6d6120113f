"""Conditions instead of pauses."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE_S = 30.0
POLL_S = 0.02


async def eventually(
    condition: Callable[[], T | Awaitable[T]], *, within_s: float = PATIENCE_S
) -> T:
    """The first truthy value of a condition, sync or async; AssertionError with the last otherwise."""
    deadline_s = asyncio.get_running_loop().time() + within_s
    while True:
        value = condition()
        found: T = await value if inspect.isawaitable(value) else value
        if found:
            return found
        assert asyncio.get_running_loop().time() < deadline_s, f"still {found!r}"
        await asyncio.sleep(POLL_S)
