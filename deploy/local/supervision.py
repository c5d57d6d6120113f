"""Restart what dies while the stack runs, and say so."""

import asyncio
import os
import signal
import time
from collections.abc import Iterator

from deploy.local.errors import StackError
from deploy.local.process import Process
from deploy.local.report import report

AGAIN = signal.SIGUSR1
"""Has the stack start what stays down."""
DELAY_S_MIN, DELAY_S_MAX = 0.5, 10.0
# A process that lasted so long did not die of what its predecessor died of.
HEALTHY_AFTER_S = 30.0


def delays() -> Iterator[float]:
    """How long to wait before each restart in a row: doubling, up to a limit."""
    delay_s = DELAY_S_MIN
    while True:
        yield delay_s
        delay_s = min(delay_s * 2, DELAY_S_MAX)


async def keep_running(process: Process) -> None:
    """Restart `process` whenever it ends, for ever; ends by cancellation."""
    waits = delays()
    while True:
        started = time.monotonic()
        exit_code = await process.wait()
        if time.monotonic() - started > HEALTHY_AFTER_S:
            waits = delays()
        delay_s = next(waits)
        report(f"{_end(process, exit_code)}; restart in {delay_s:g} s; {process.last_words()}")
        await asyncio.sleep(delay_s)
        await _start(process)


async def keep_down(process: Process, again: asyncio.Event) -> None:
    """Say when a store ends, and start it when `again` is set: who kills it wants to see what follows.

    For ever; ends by cancellation.
    """
    while True:
        exit_code = await process.wait()
        back = f"it stays down until you type: kill -{AGAIN.name[3:]} {os.getpid()}"
        report(f"{_end(process, exit_code)}; {back}; {process.last_words()}")
        await again.wait()
        await _start(process)


async def _start(process: Process) -> None:
    try:
        await process.start()
    except StackError as error:
        report(str(error))
    else:
        report(f"{process.name} is back")


def _end(process: Process, exit_code: int) -> str:
    if exit_code < 0:
        return f"{process.name} was killed by signal {-exit_code}"
    return f"{process.name} ended with exit code {exit_code}"
