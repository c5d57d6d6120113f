"""Pauses that end early when the process is to stop."""

import asyncio
from collections.abc import Sequence


async def wait_until(event: asyncio.Event, timeout_s: float) -> bool:
    """Wait for an event; whether it came in time."""
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return False
    return True


async def wait_for_any(events: Sequence[asyncio.Event], timeout_s: float) -> None:
    """Wait for the first of several events, or until the time is over."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
