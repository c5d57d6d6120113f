"""The loop that finds out where units are to be sold from, and agrees on it with all other processes."""

import asyncio
from collections.abc import Sequence
from time import monotonic
from typing import Protocol

from ledger.checkpoints import Checkpoints
from ledger.database import Database
from ledger.errors import LedgerError
from ledger.metrics import LedgerMetrics
from ledger.sales_mode import Mode, ModeRow, Modes
from ledger.servers import together
from ledger.settings import MysqlUrl
from server.gate import Gate, Stance
from sharding.partitions import Partitions

LOOK_S = 0.2
"""Time between two looks at whether Redis is there."""
BEAT_S = 0.5
"""Time between two words to the other processes while all is well; well below what they count for."""
LEDGER_ANSWER_S = 1.0
"""How long the ledger may take; without it the live stock sells, if it is there."""
MISSES = 2
"""Looks in a row without an answer after which Redis counts as away."""


def quick_database(url: MysqlUrl, metrics: LedgerMetrics) -> Database:
    """A pool of its own for what processes tell each other: no other work keeps it waiting."""
    timeout_ms = round(LEDGER_ANSWER_S * 1_000)
    return Database(
        url,
        metrics,
        connections=1,
        connect_timeout_ms=timeout_ms,
        timeout_ms=timeout_ms,
        lock_wait_s=1,
    )


class Reach(Protocol):
    """Knows whether Redis is there."""

    async def reaches_redis(self) -> bool: ...


class ModeKeeper:
    """Turns a process's gate. `step` is called every LOOK_S."""

    def __init__(
        self,
        gate: Gate,
        reach: Reach,
        partitions: Partitions,
        modes: Modes,
        checkpoints: Checkpoints,
        *,
        name: str,
        enters: bool,
    ) -> None:
        """`name` is unique among all processes; without `enters` it never asks for the buffer."""
        self._gate = gate
        self._reach = reach
        self._partitions = partitions
        self._modes = modes
        self._checkpoints = checkpoints
        self._name = name
        self._enters = enters
        self._misses = MISSES
        self._told: bool | None = None
        """What the ledger was told last of whether Redis is reached; None: it does not know."""
        self._beat_due_s = 0.0
        self.row = ModeRow(Mode.REDIS, 0)
        """The mode as it was last read."""

    async def step(self) -> None:
        """Look at Redis, tell the others where that is news or it is time, and turn the gate."""
        reached = await self._reach.reaches_redis()
        self._misses = 0 if reached else self._misses + 1
        reaches = self._misses < MISSES
        is_settled = self._gate.is_live and self._told == reaches
        if is_settled and monotonic() < self._beat_due_s:
            return
        self._beat_due_s = monotonic() + BEAT_S
        row = await self._agreed(reaches=reaches)
        self._told = None if row is None else reaches
        if row is not None:
            self.row, self._gate.mode_epoch = row, row.epoch
        self._gate.turn(stance_of(row and row.mode, self._gate.stance, reaches=reaches))

    async def leave(self) -> None:
        """The process ends. Its last word runs out by itself if the ledger does not answer."""
        try:
            async with asyncio.timeout(LEDGER_ANSWER_S):
                await self._modes.gone(self._name)
        except (LedgerError, TimeoutError):
            pass

    async def _agreed(self, *, reaches: bool) -> ModeRow | None:
        """The mode, after what this process has to say of it; None where the ledger does not answer."""
        try:
            async with asyncio.timeout(LEDGER_ANSWER_S):
                row = await self._modes.beat(self._name, reaches_redis=reaches)
                if reaches:
                    await self._learn()
                    return await self._modes.leave(row.epoch) if row.mode is Mode.BUFFER else row
                if self._enters and row.mode is not Mode.BUFFER:
                    return await self._modes.enter()
                return row
        except (LedgerError, TimeoutError):
            return None

    async def _learn(self) -> None:
        """Redis may have come back with old data, and this process be new or never have seen its last
        events: what the ledger has was there."""
        self._partitions.learn(await self._checkpoints.all())


class ModeKeepers:
    """One for each MySQL server; what one of them waits for, no other does."""

    def __init__(self, keepers: Sequence[ModeKeeper]) -> None:
        self._keepers = keepers
        self._steps: dict[ModeKeeper, asyncio.Task[None]] = {}
        self._patience_s: float | None = None
        """None: the first steps, which the services are opened after."""

    async def step(self) -> None:
        """A step of each that is not in the middle of one; waits a moment for those that hang.

        PartitionCountError, ServerCountError.
        """
        for keeper in self._keepers:
            if keeper not in self._steps:
                self._steps[keeper] = asyncio.create_task(keeper.step(), name="mode")
        await asyncio.wait(self._steps.values(), timeout=self._patience_s)
        self._patience_s = LOOK_S
        for keeper in [each for each, step in self._steps.items() if step.done()]:
            self._steps.pop(keeper).result()

    async def leave(self) -> None:
        """The process ends."""
        for step in self._steps.values():
            step.cancel()
        await asyncio.gather(*self._steps.values(), return_exceptions=True)
        await together([keeper.leave() for keeper in self._keepers])


def stance_of(mode: Mode | None, before: Stance, *, reaches: bool) -> Stance:
    """What a process does that reaches Redis or not, in a mode; None: the ledger does not answer.

    Without the ledger the live stock sells: nobody can sell from the buffer then, units of the two are
    never the same, and a second effect of a request is found and undone.
    """
    if mode is None:
        if reaches:
            return Stance.LIVE
        return Stance.BUFFER if before is Stance.BUFFER else Stance.AWAY
    if mode is Mode.REDIS:
        return Stance.LIVE if reaches else Stance.AWAY
    if mode is Mode.BUFFER and not reaches:
        return Stance.BUFFER
    return Stance.LEAVING
