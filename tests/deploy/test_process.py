"""Starting, losing and stopping one program of the stack."""

import asyncio
import itertools
import os
import sys
from pathlib import Path

import pytest

from deploy.local.errors import StackError
from deploy.local.process import Process
from deploy.local.supervision import DELAY_S_MAX, delays, keep_down, keep_running
from deploy.local.waiting import until

# Says that it is there, then waits to be killed; SIGTERM alone does not end it.
STUBBORN = """
import pathlib, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path(sys.argv[1]).touch()
signal.pause()
"""


def program(directory: Path, code: str, *, flag: Path | None = None) -> Process:
    async def ready() -> bool:
        return flag is not None and flag.exists()

    return Process(
        "program",
        [sys.executable, "-c", code, str(flag)],
        log=directory / "program.log",
        directory=directory,
        ready=ready,
    )


async def test_one_that_ends_at_start_is_reported_with_its_last_line(tmp_path: Path) -> None:
    process = program(
        tmp_path, "print('starting', flush=True); raise SystemExit('no such database')"
    )
    with pytest.raises(StackError) as failure:
        await process.start()
    assert str(failure.value) == (
        f"program ended at start; last line of {tmp_path}/program.log: no such database"
    )


async def test_one_that_does_not_get_ready_is_not_left_running(tmp_path: Path) -> None:
    process = program(tmp_path, STUBBORN, flag=tmp_path / "flag" / "missing")
    with pytest.raises(StackError):
        await process.start(ready_within_s=5)
    assert not process.alive


async def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    process = Process(
        "program",
        ["no-such-program"],
        log=tmp_path / "program.log",
        directory=tmp_path,
        ready=lambda: asyncio.sleep(0, result=False),
    )
    with pytest.raises(StackError, match="no-such-program: No such file or directory"):
        await process.start()


async def test_one_that_ignores_sigterm_is_killed_after_the_grace(tmp_path: Path) -> None:
    process = program(tmp_path, STUBBORN, flag=tmp_path / "flag")
    await process.start()
    await process.stop(grace_s=0.1)
    assert process.exit_code == -9


async def test_a_paused_one_can_be_stopped(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    polite = STUBBORN.replace("signal.SIG_IGN", "signal.SIG_DFL")
    process = program(tmp_path, polite, flag=flag)
    await process.start()
    process.pause()
    await process.stop(grace_s=10)
    assert process.exit_code == -15


async def test_a_killed_one_is_started_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    process = program(tmp_path, STUBBORN, flag=tmp_path / "flag")
    await process.start()
    first = process.pid
    keeper = asyncio.create_task(keep_running(process), name="keeper")
    process.kill()

    async def replaced() -> bool:
        return process.alive and process.pid != first

    await until(replaced, what="restart", within_s=10)
    keeper.cancel()
    process.kill()
    assert "program was killed by signal 9; restart in 0.5 s" in capsys.readouterr().err


async def test_a_store_stays_down_until_it_is_asked_for_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flag, again, said = tmp_path / "flag", asyncio.Event(), ""
    process = program(tmp_path, STUBBORN, flag=flag)
    await process.start()
    keeper = asyncio.create_task(keep_down(process, again), name="keeper")

    async def tells_how_to_start_it() -> bool:
        nonlocal said
        said += capsys.readouterr().err
        return f"stays down until you type: kill -USR1 {os.getpid()}" in said

    async def is_back() -> bool:
        return process.alive

    process.kill()
    await until(tells_how_to_start_it, what="said", within_s=10)
    assert not process.alive
    again.set()
    again.clear()
    await until(is_back, what="start", within_s=10)
    keeper.cancel()
    process.kill()


def test_the_delay_between_restarts_is_bounded() -> None:
    first_ten = list(itertools.islice(delays(), 10))
    assert first_ten == sorted(first_ten)
    assert first_ten[-1] == DELAY_S_MAX
