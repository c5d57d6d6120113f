"""The parent process: starts children, restarts those that die, stops all of them together.

It never imports grpc, whose threads do not survive in a process that starts others.
"""

import asyncio
import contextlib
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from time import monotonic

from structlog.typing import FilteringBoundLogger

SETUP_ERROR = 2
"""Exit status of a process that cannot work with its settings: starting it again would not help."""
INTERRUPTED = 130
"""Exit status of a process that was interrupted before it could end in order."""
SETUP_TEXT_BYTES_MAX = 4_096
PAUSE_S_MIN = 0.2
PAUSE_S_MAX = 5.0
STEADY_S = 30
"""A child that ran so long starts again at once and with the shortest pause."""


class SetupError(Exception):
    """What is wrong with the settings, in one line for the operator."""


@dataclass(frozen=True, slots=True)
class ChildPlan:
    """How to start a child; `--lifeline` and its file descriptor are added."""

    index: int
    command: Sequence[str]


@dataclass(slots=True)
class Supervisor:
    """Runs children until it is told to stop, or one of them finds the settings wrong."""

    plans: Sequence[ChildPlan]
    log: FilteringBoundLogger
    stop_s_max: float
    """How long children may take to stop before they are killed."""
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    _setup_error: str = ""

    async def run(self) -> None:
        """Return when all children have stopped; SetupError with what a child said."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stopping.set)
        async with asyncio.TaskGroup() as group:
            for plan in self.plans:
                group.create_task(self._keep_running(plan), name=f"child {plan.index}")
        if self._setup_error:
            raise SetupError(self._setup_error)

    async def _keep_running(self, plan: ChildPlan) -> None:
        pause_s = PAUSE_S_MIN
        while not self.stopping.is_set():
            began_s = monotonic()
            status = await self._run_once(plan)
            if self.stopping.is_set():
                return
            steady = monotonic() - began_s > STEADY_S
            pause_s = PAUSE_S_MIN if steady else min(PAUSE_S_MAX, pause_s * 2)
            self.log.error("child_died", child=plan.index, status=status, restart_in_s=pause_s)
            await self._stopping_within(pause_s)

    async def _run_once(self, plan: ChildPlan) -> int:
        """Run a child to its end; returns its exit status.

        The lifeline has two ends: the child sees its own close when this process dies, however it
        dies; and it writes into it why it cannot work.
        """
        ours, its = socket.socketpair()
        with ours:
            with its, _interrupt_held_back():
                child = await asyncio.create_subprocess_exec(
                    *plan.command, "--lifeline", str(its.fileno()), pass_fds=(its.fileno(),)
                )
            try:
                await self._exit_or_stopping(child)
            finally:
                status = await self._ended(child)
            if status == SETUP_ERROR:
                self._setup_error = _last_words(ours)
                self.stopping.set()
        return status

    async def _exit_or_stopping(self, child: asyncio.subprocess.Process) -> None:
        waits = (
            asyncio.create_task(child.wait(), name="child exit"),
            asyncio.create_task(self.stopping.wait(), name="stopping"),
        )
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _ended(self, child: asyncio.subprocess.Process) -> int:
        """Let a child finish what it has begun, but not for ever."""
        with contextlib.suppress(ProcessLookupError):
            child.terminate()
        try:
            async with asyncio.timeout(self.stop_s_max):
                return await child.wait()
        except TimeoutError:
            self.log.error("child_killed", pid=child.pid, after_s=self.stop_s_max)
            child.kill()
            return await child.wait()

    async def _stopping_within(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.stopping.wait()


@contextlib.contextmanager
def _interrupt_held_back() -> Iterator[None]:
    """What starts meanwhile has SIGINT blocked: a Ctrl-C would find it importing, without a handler.

    It unblocks SIGINT itself; ours is only late.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def child_command(module: str, *arguments: str) -> Sequence[str]:
    """A fresh interpreter, not a fork."""
    return (sys.executable, "-m", module, *arguments)


def _last_words(ours: socket.socket) -> str:
    ours.settimeout(0)
    with contextlib.suppress(BlockingIOError):
        text = ours.recv(SETUP_TEXT_BYTES_MAX).decode(errors="replace")
        if text:
            return text
    return "a server process cannot work with its settings; its log says why"
