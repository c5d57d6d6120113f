"""Where units are sold from: one row that all processes agree on, and who reaches the live stock.

Every word of a serving process and every entry into the buffer's mode hold the row, so whichever comes
later sees the other: a process that reaches the live stock again either keeps the mode from being
entered, or learns that it was.
"""

from datetime import timedelta
from enum import StrEnum
from hashlib import sha1
from typing import NamedTuple

from ledger.database import Database, Row, Transaction
from ledger.statements import statement

BEAT_TTL = timedelta(seconds=1.5)
"""How long a process's word counts."""
_BEAT_TTL_US = BEAT_TTL // timedelta(microseconds=1)
_REACHES, _AWAY = "reaches", "away"
"""What a process says of itself; its row's mode."""


class Mode(StrEnum):
    """Where units are sold from."""

    REDIS = "redis"
    """The live stock."""
    BUFFER = "buffer"
    """The buffer in the ledger: nobody reaches the live stock."""
    LEAVING = "leaving"
    """Nowhere: the live stock is back and is told what was sold meanwhile."""


class ModeRow(NamedTuple):
    """The mode and its epoch, which every change raises."""

    mode: Mode
    epoch: int


class Modes:
    """Reads and changes the mode. Whatever was called, what it returns is the mode by then."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self) -> ModeRow:
        """The mode, without waiting for a change that is under way."""

        async def run(transaction: Transaction) -> ModeRow:
            return _row(await transaction.row(statement("sales_mode_get")))

        return await self._database.transaction(run)

    async def beat(self, server: str, *, reaches_redis: bool) -> ModeRow:
        """Say that a serving process is alive, and whether it reaches the live stock."""
        said = _REACHES if reaches_redis else _AWAY

        async def run(transaction: Transaction) -> ModeRow:
            found = await shared(transaction)
            values = (_row_name(server), said, server)
            await transaction.execute(statement("heartbeat"), values)
            return found

        return await self._database.transaction(run)

    async def enter(self) -> ModeRow:
        """Sell from the buffer, unless a serving process says that it reaches the live stock."""

        async def run(transaction: Transaction) -> ModeRow:
            found = await _locked(transaction)
            if found.mode is Mode.BUFFER or await _somebody_reaches(transaction):
                return found
            await transaction.execute(statement("heartbeat_forget"))
            return await _change(transaction, found, Mode.BUFFER)

        return await self._database.transaction(run)

    async def leave(self, epoch: int) -> ModeRow:
        """Stop selling from the buffer, if that is what `epoch` stands for and still lasts.

        Once this has returned, no sale from the buffer of that epoch can be committed any more.
        """
        return await self._replace(ModeRow(Mode.BUFFER, epoch), Mode.LEAVING)

    async def finish(self, epoch: int) -> ModeRow:
        """Sell from the live stock again, if it was being left for that under `epoch` and still is."""
        return await self._replace(ModeRow(Mode.LEAVING, epoch), Mode.REDIS)

    async def gone(self, server: str) -> None:
        """A serving process ends; it is not waited for."""

        async def run(transaction: Transaction) -> None:
            await transaction.execute(statement("heartbeat_gone"), (_row_name(server),))

        await self._database.transaction(run)

    async def _replace(self, expected: ModeRow, mode: Mode) -> ModeRow:
        async def run(transaction: Transaction) -> ModeRow:
            found = await _locked(transaction)
            return await _change(transaction, found, mode) if found == expected else found

        return await self._database.transaction(run)


async def _somebody_reaches(transaction: Transaction) -> bool:
    found = await transaction.row(statement("heartbeat_reaching"), (_BEAT_TTL_US,))
    return found is not None


def _row_name(server: str) -> str:
    """32 characters at most, whatever processes are called."""
    return f"server {sha1(server.encode(), usedforsecurity=False).hexdigest()[:24]}"


async def shared(transaction: Transaction) -> ModeRow:
    """The mode, which nobody changes before the transaction has ended."""
    return await _held(transaction, "sales_mode_share")


async def _locked(transaction: Transaction) -> ModeRow:
    """The mode, which is this transaction's to change."""
    return await _held(transaction, "sales_mode_lock")


async def _held(transaction: Transaction, name: str) -> ModeRow:
    """A row that is not there cannot be held, so the first who looks makes it."""
    found = await transaction.row(statement(name))
    if found is None:
        await transaction.execute(statement("sales_mode_create"))
        found = await transaction.row(statement(name))
    return _row(found)


async def _change(transaction: Transaction, found: ModeRow, mode: Mode) -> ModeRow:
    await transaction.execute(statement("sales_mode_change"), (mode.value,))
    return ModeRow(mode, found.epoch + 1)


def _row(found: Row | None) -> ModeRow:
    """No row: the mode was never looked at."""
    if found is None:
        return ModeRow(Mode.REDIS, 0)
    mode, epoch = found
    return ModeRow(Mode(mode), epoch)
