"""Who waits for a home, and for how long at most."""

import asyncio
from collections.abc import Sequence

import pytest

from sharding.answers import SOLD_OUT
from sharding.batches import Batch
from sharding.home import CALL_REQUESTS_MAX, QUEUE_S_MAX, Group, _Queue
from sharding.outcomes import Answer, Deduction, Outcome, Reason
from sharding.tasks import Tasks


class Home:
    """A queue whose work ends when it is told to; its clock goes when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.may_end = asyncio.Event()
        self.now_s = 100.0
        self.worked: list[int] = []
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: self.now_s)
        self._tasks = Tasks()
        self._queue = _Queue(self._work, Group.answer, self._tasks.spawn)

    async def _work(self, requests: Sequence[Deduction]) -> list[Answer]:
        self.worked.append(len(requests))
        await self.may_end.wait()
        return [SOLD_OUT] * len(requests)

    def put(self, size: int) -> asyncio.Future[list[Answer]]:
        done: asyncio.Future[list[Answer]] = asyncio.get_running_loop().create_future()
        batch = Batch(size, done, lambda _size: None)
        requests = [Deduction(f"r{each}", 1, 1, 0, 0, 1) for each in range(size)]
        self._queue.put(Group(requests, list(range(size)), batch, self.now_s))
        return done

    async def end(self) -> None:
        self.may_end.set()
        await self._tasks.drain()


async def outcomes(done: asyncio.Future[list[Answer]]) -> set[tuple[Outcome, Reason]]:
    return {(answer.outcome, answer.reason) for answer in await done}


async def test_who_waits_too_long_is_refused_and_who_came_later_is_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    home = Home(monkeypatch)
    first = home.put(CALL_REQUESTS_MAX)
    await asyncio.sleep(0)
    second, third = home.put(CALL_REQUESTS_MAX), home.put(CALL_REQUESTS_MAX)
    home.now_s += 2 * QUEUE_S_MAX
    last = home.put(1)
    await home.end()
    for served in (first, second, last):
        assert await outcomes(served) == {(SOLD_OUT.outcome, SOLD_OUT.reason)}
    assert await outcomes(third) == {(Outcome.OVERLOADED, Reason.QUEUE_FULL)}
    assert home.worked == [CALL_REQUESTS_MAX, CALL_REQUESTS_MAX, 1]
