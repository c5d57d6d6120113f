"""CPU time of running processes, from /proc."""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_UTIME, _STIME = 11, 12  # fields of /proc/PID/stat, counted from the one behind the name

Watched = Mapping[str, Sequence[int]]
"""Process ids by what they are together."""


def spent_s(watched: Watched) -> dict[str, float]:
    """CPU seconds that each group has used since its processes began."""
    return {name: _spent_by(pids) for name, pids in watched.items()}


def since(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """What was used between two readings, such as those of `spent_s`."""
    return {name: after[name] - before[name] for name in before}


def _spent_by(pids: Iterable[int]) -> float:
    return sum(_ticks(pid) for pid in pids) / TICKS_PER_S


def _ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[_UTIME]) + int(fields[_STIME])
