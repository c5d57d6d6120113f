"""One run serves everybody who asked before it started, and no two run at once."""

import asyncio

from sharding.turnstile import Turnstile


class Work:
    def __init__(self) -> None:
        self.runs = 0
        self.at_once = 0
        self.peak = 0

    async def __call__(self) -> int:
        self.runs += 1
        self.at_once += 1
        self.peak = max(self.peak, self.at_once)
        run = self.runs
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        self.at_once -= 1
        return run


async def test_who_comes_during_a_run_shares_the_next_one() -> None:
    work = Work()
    turnstile = Turnstile(work, name="test")
    first = asyncio.ensure_future(turnstile.run())
    await asyncio.sleep(0)
    later = await asyncio.gather(*(turnstile.run() for _ in range(10)))
    assert await first == 1
    assert later == [2] * 10


async def test_there_is_one_run_at_a_time_however_callers_come() -> None:
    work = Work()
    turnstile = Turnstile(work, name="test")

    async def caller(turns: int) -> None:
        for _ in range(20):
            started = work.runs
            assert await turnstile.run() > started - 1
            for _ in range(turns):
                await asyncio.sleep(0)

    await asyncio.gather(*(caller(turns) for turns in range(7)))
    assert work.peak == 1


async def test_a_cancelled_caller_does_not_end_the_run_of_others() -> None:
    work = Work()
    turnstile = Turnstile(work, name="test")
    callers = [asyncio.ensure_future(turnstile.run()) for _ in range(3)]
    await asyncio.sleep(0)
    callers[0].cancel()
    results = await asyncio.gather(*callers, return_exceptions=True)
    assert [type(result) for result in results] == [asyncio.CancelledError, int, int]
