"""Processes and what they started, from /proc."""

from contextlib import suppress
from pathlib import Path


def children(pid: int) -> list[int]:
    """The processes that a process started and that still run."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):
            found += map(int, (task / "children").read_text().split())
    return found


def family(pid: int) -> list[int]:
    """A process and all that descend from it."""
    return [pid, *(relative for child in children(pid) for relative in family(child))]
