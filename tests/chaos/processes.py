"""What processes use, from /proc, and whose turn it is."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

FAVOUR, LAST = 10, 19
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_RESIDENT = 1  # a field of /proc/PID/statm, counted in pages


def resident_bytes_each(pids: Iterable[int]) -> dict[int, int]:
    """Memory by process."""
    return {pid: _resident_bytes(pid) for pid in pids}


def resident_bytes(pids: Iterable[int]) -> int:
    """Memory that these processes have together; one that has ended has none."""
    return sum(map(_resident_bytes, pids))


def descriptors(pids: Iterable[int]) -> int:
    """Files and sockets that these processes have open together."""
    return sum(map(_descriptors, pids))


def is_stopped(pid: int) -> bool:
    """Whether a process stands still until SIGCONT."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("T")


@contextmanager
def served_first() -> Iterator[None]:
    """This process, which is the network and the healthy callers, is not slow because processors are
    busy with others. As root only; who is begun meanwhile asks for `no_favour`."""
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, usual - FAVOUR)
    try:
        yield
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, usual)


@contextmanager
def served_after_others(pids: Iterable[int]) -> Iterator[None]:
    """These processes, which would have a machine of their own, leave this one to the others; so do the
    threads that they begin meanwhile."""
    usual = {}
    for thread in [each for pid in pids for each in _threads(pid)]:
        with suppress(ProcessLookupError):
            usual[thread] = os.getpriority(os.PRIO_PROCESS, thread)
            os.setpriority(os.PRIO_PROCESS, thread, usual[thread] + FAVOUR)
    try:
        yield
    finally:
        for thread, priority in usual.items():
            with suppress(ProcessLookupError, PermissionError):
                os.setpriority(os.PRIO_PROCESS, thread, priority)


def no_favour() -> None:
    """Be served as the service is."""
    os.setpriority(os.PRIO_PROCESS, 0, 0)


def served_last() -> None:
    """Get what nobody else wants of the processors."""
    os.setpriority(os.PRIO_PROCESS, 0, LAST)


def _threads(pid: int) -> list[int]:
    with suppress(OSError):
        return [int(each.name) for each in Path(f"/proc/{pid}/task").iterdir()]
    return []


def _resident_bytes(pid: int) -> int:
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[_RESIDENT]) * PAGE_BYTES
    return 0


def _descriptors(pid: int) -> int:
    with suppress(OSError):
        return len(list(Path(f"/proc/{pid}/fd").iterdir()))
    return 0
