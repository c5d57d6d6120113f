"""Work that goes on after its caller has left, and what becomes of its failures."""

import asyncio
import logging

import pytest

from sharding.errors import CloseBusyError, StockUnavailableError
from sharding.outcomes import Reason
from sharding.tasks import Tasks


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (StockUnavailableError(Reason.NOT_EXECUTED, "p07"), []),
        (CloseBusyError(), []),
        (RuntimeError("a defect"), ["load failed after its caller had left"]),
    ],
)
async def test_of_what_fails_after_its_caller_has_left_defects_alone_are_told(
    error: Exception, said: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    unheard: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, what: unheard.append(what))
    tasks, begun = Tasks(), asyncio.Event()

    async def load() -> None:
        await begun.wait()
        raise error

    caller = asyncio.ensure_future(tasks.whole(load(), "load"))
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    begun.set()
    with caplog.at_level(logging.ERROR):
        await tasks.drain()
        await asyncio.sleep(0)
    assert [record.getMessage() for record in caplog.records] == said
    assert unheard == []
