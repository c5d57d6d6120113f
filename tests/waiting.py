"""Conditions instead of pauses."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE_S = 30.0
POLL_S = 0.02


class Unmet(str):
    """What a condition says that does not hold yet; false for all its text."""

    __slots__ = ()

    def __bool__(self) -> bool:
        return False


async def eventually(
    condition: Callable[[], T | Awaitable[T]], *, within_s: float = PATIENCE_S
) -> T:
    """The first truthy value of a condition, sync or async; AssertionError with the last otherwise, also
    if the condition itself takes so long."""
    found: T | None = None
    try:
        async with asyncio.timeout(within_s) as limit:
            while True:
                value = condition()
                found = await value if inspect.isawaitable(value) else value
                if found:
                    return found
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        if not limit.expired():
            raise
    raise AssertionError(f"still {found!r}")
