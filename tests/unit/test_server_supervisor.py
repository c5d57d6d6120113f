"""The parent process: children are restarted, stopped, killed, believed."""

import asyncio
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import structlog

from server.supervisor import ChildPlan, SetupError, Supervisor

WAIT_S = 20


def supervisor(*scripts: str, stop_s_max: float = 10) -> Supervisor:
    """Children run Python scripts; argv is [..., "--lifeline", descriptor]."""
    plans = [ChildPlan(i, (sys.executable, "-c", text)) for i, text in enumerate(scripts)]
    return Supervisor(plans, structlog.get_logger(), stop_s_max=stop_s_max)


async def lines_in(path: Path, count: int) -> Sequence[str]:
    async with asyncio.timeout(WAIT_S):
        while True:
            lines = path.read_text().splitlines() if path.exists() else []
            if len(lines) >= count:
                return lines
            await asyncio.sleep(0.02)


def noting(path: Path, then: str) -> str:
    return (
        f"import os, signal, socket, sys, time\nwith open({str(path)!r}, 'a') as notes:\n"
        f"    print(os.getpid(), file=notes)\n{then}"
    )


async def test_a_child_that_ends_is_started_again(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    parent = supervisor(noting(notes, "sys.exit(1)"))
    running = asyncio.create_task(parent.run())
    pids = await lines_in(notes, 3)
    parent.stopping.set()
    await asyncio.wait_for(running, WAIT_S)
    assert len(set(pids)) == len(pids)


async def test_stopping_ends_all_children(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in "ab"]
    parent = supervisor(*(noting(path, "time.sleep(60)") for path in paths))
    running = asyncio.create_task(parent.run())
    pids = [(await lines_in(path, 1))[0] for path in paths]
    parent.stopping.set()
    await asyncio.wait_for(running, WAIT_S)
    assert not any(Path("/proc", pid).exists() for pid in pids)


async def test_a_child_that_does_not_stop_is_killed(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint(1, file=open(notes.name, 'a'))\n"
    parent = supervisor(noting(notes, f"{deaf}time.sleep(60)"), stop_s_max=0.3)
    running = asyncio.create_task(parent.run())
    pid, _ = await lines_in(notes, 2)
    parent.stopping.set()
    await asyncio.wait_for(running, WAIT_S)
    assert not Path("/proc", pid).exists()


async def test_a_wrong_setting_stops_everything_with_the_childs_words(tmp_path: Path) -> None:
    tell = "socket.socket(fileno=int(sys.argv[-1])).sendall(b'48, not 24')\nsys.exit(2)"
    other = tmp_path / "other"
    parent = supervisor(
        noting(other, "time.sleep(60)"), noting(tmp_path / "notes", f"time.sleep(.3)\n{tell}")
    )
    with pytest.raises(SetupError, match="48, not 24"):
        await asyncio.wait_for(parent.run(), WAIT_S)
    (pid,) = await lines_in(other, 1)
    assert not Path("/proc", pid).exists()


async def test_a_child_sees_its_parent_die(tmp_path: Path) -> None:
    """The lifeline reads as closed: nobody else holds its other end."""
    notes = tmp_path / "notes"
    read = "socket.socket(fileno=int(sys.argv[-1])).recv(1)\nprint(1, file=open(notes.name, 'a'))"
    child = noting(notes, read)
    script = (
        "import asyncio, os, structlog\n"
        "from tests.unit.test_server_supervisor import supervisor\n"
        f"parent = supervisor({child!r}, {'import time; time.sleep(5)'!r})\n"
        "async def run():\n"
        "    asyncio.get_running_loop().call_later(1, os._exit, 9)\n"
        "    await parent.run()\n"
        "asyncio.run(run())\n"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, env={"PYTHONPATH": ":".join(sys.path)}
    )
    assert await asyncio.wait_for(process.wait(), WAIT_S) == 9
    assert len(await lines_in(notes, 2)) == 2


def test_the_parent_never_loads_grpc() -> None:
    check = "import server.__main__, sys; sys.exit('grpc' in sys.modules)"
    environment = {"PYTHONPATH": ":".join(sys.path)}
    assert (
        subprocess.run([sys.executable, "-c", check], env=environment, check=False).returncode == 0
    )
