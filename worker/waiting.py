"""Pauses that end early when the process is to stop."""

import asyncio


async def wait_until(event: asyncio.Event, timeout_s: float) -> bool:
    """Wait for an event; whether it came in time."""
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return False
    return True
