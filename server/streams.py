"""Streams whose life is bounded, and the pipeline of batches on one of them."""

import asyncio
from collections.abc import Awaitable, Callable
from enum import StrEnum
from types import TracebackType
from typing import Self

from server.calls import Context
from server.errors import RefusedError, overloaded, unknown_outcome
from server.metrics import Metrics

Answer = Callable[[], Awaitable[bytes]]
Read = Callable[[], Awaitable[Answer | None]]
"""Reads a batch, submits it and says how to wait for its answer; None at the end."""
Write = Callable[[bytes], Awaitable[None]]


class Ending(StrEnum):
    """Why the server ended a stream that the caller had not ended; in its trailing metadata."""

    AGE = "age"
    DRAINING = "draining"


ENDING_METADATA = "inventory-stream-end"
STALLED_S = 30
"""How long the answers of a stream that has ended may wait for a caller who does not read."""


def explain(context: Context, ending: Ending | None) -> None:
    """Say why a stream ends that the caller did not end; what had no answer was not done."""
    if ending:
        context.set_trailing_metadata(((ENDING_METADATA, ending.value),))


class Lives:
    """Bounds streams in number and in age, and ends all of them when the process drains.

    A stream holds a caller to one process and memory of gRPC to that stream, so none lives for ever.
    """

    def __init__(self, metrics: Metrics, *, age_s_max: float, streams_max: int) -> None:
        self._metrics = metrics
        self._age_s_max = age_s_max
        self._streams_max = streams_max
        self._open: set[Life] = set()
        self._draining = False

    def bounded(self) -> "Life":
        """A block that ends when its time is over; RefusedError if too many run already."""
        if len(self._open) >= self._streams_max:
            raise overloaded()
        return Life(self, age_s_max=0 if self._draining else self._age_s_max)

    def drain(self) -> None:
        """End all streams, also those that are yet to come."""
        self._draining = True
        for life in self._open:
            life.end(Ending.DRAINING)

    def enter(self, life: "Life") -> None:
        """A stream has begun."""
        self._open.add(life)
        self._metrics.streams.set(len(self._open))

    def leave(self, life: "Life") -> None:
        """It has ended."""
        self._open.discard(life)
        self._metrics.streams.set(len(self._open))


class Life:
    """One stream's time. Leaving the block because it is over is no error; `ending` then says why."""

    def __init__(self, lives: Lives, *, age_s_max: float) -> None:
        self._lives = lives
        self._timeout = asyncio.timeout(age_s_max)
        self._why = Ending.AGE if age_s_max else Ending.DRAINING
        self.ending: Ending | None = None

    async def __aenter__(self) -> Self:
        await self._timeout.__aenter__()
        self._lives.enter(self)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        self._lives.leave(self)
        try:
            await self._timeout.__aexit__(kind, error, trace)
        except TimeoutError:
            self.ending = self._why
            return True
        return False

    def end(self, why: Ending) -> None:
        """End the block now, unless its time is over already."""
        if self._timeout.expired():
            return
        self._why = why
        self._timeout.reschedule(asyncio.get_running_loop().time())


class Pipeline:
    """Answers batches in their order while up to `batches_max` of them are under way.

    The next batch is read only when there is room. A batch that is refused ends the stream, after
    the answers to those before it.
    """

    def __init__(self, lives: Lives, read: Read, write: Write, *, batches_max: int) -> None:
        self._lives = lives
        self._read = read
        self._write = write
        self._room = asyncio.Semaphore(batches_max)
        self._under_way: asyncio.Queue[Answer | None] = asyncio.Queue()

    async def run(self) -> Ending | None:
        """Run until the caller ends the stream or its time is over; RefusedError for a bad batch."""
        life = self._lives.bounded()
        async with asyncio.TaskGroup() as group:
            writing = group.create_task(self._write_all(), name="stream-write")
            refusal = await self._read_all(life)
            self._under_way.put_nowait(None)
            await _finished(writing)
        if refusal:
            try:
                raise refusal
            finally:
                del refusal  # or this frame and the error keep each other, and the batch
        return life.ending

    async def _read_all(self, life: Life) -> RefusedError | None:
        try:
            async with life:
                await self._read_until_end()
        except RefusedError as refusal:
            return refusal
        return None

    async def _read_until_end(self) -> None:
        while True:
            await self._room.acquire()
            answer = await self._read()
            if answer is None:
                return
            self._under_way.put_nowait(answer)

    async def _write_all(self) -> None:
        while answer := await self._under_way.get():
            await self._write(await answer())
            self._room.release()


async def sent(writing: Awaitable[None]) -> None:
    """Write a message to its end although the stream's time is over: gRPC has no status for a call whose
    last message was cut off, and the caller would wait for one until its deadline."""
    task = asyncio.ensure_future(writing)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task], timeout=STALLED_S)
        task.cancel()  # of a caller who does not read; it has no effect on one that is done
        raise


async def _finished(writing: asyncio.Task[None]) -> None:
    """What is under way was sent; its answers are owed, but not to a caller who does not read."""
    try:
        async with asyncio.timeout(STALLED_S):
            await asyncio.shield(writing)
    except TimeoutError:
        raise unknown_outcome() from None
