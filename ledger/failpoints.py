"""Places where a test can make a process die or stop, switched on by INVENTORY_FAILPOINTS.

`worker.after_read=kill,redis.after_take=stop@3,sale.before_commit=sleep:1.5` kills the process the first
time that it passes the first place, stops it as SIGSTOP does when it passes the second one for the third
time, and has nothing of it run for 1.5 seconds where it first passes the last one. Each happens once.

Of a server and of a worker, for every Lua script by its name (`deduct`, `take`, `put`, `ack`, `decide`,
`settle`, `restock`, `resolve`, `undo`, `load`, `close`, `open` …):
    redis.before_<script>   nothing of the call was sent
    redis.after_<script>    its reply is there, and the replica's word where it is waited for
Of a server that sells from MySQL, the whole stock or the buffer:
    sale.before_commit      all is written, COMMIT was not sent
    sale.after_commit       committed, nobody was answered
    order.before_commit, order.after_commit     the same of calls on orders
    letter.before_commit, letter.after_commit   the same of a dead letter that is retried
Of a worker:
    worker.before_read, after_read, before_insert, after_insert, before_commit, after_commit,
    before_trim, after_trim                     from a stream to the ledger, in this order
    worker.before_opening                       before a partition is opened as it is
    worker.after_shut, after_refill, after_settle, after_reopen     steps of a restoration, in this order
    worker.before_buffer, worker.after_buffer   around bringing released units on sale
    worker.before_recall, worker.after_recall   around telling Redis of sales from the buffer
"""

import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

VARIABLE = "INVENTORY_FAILPOINTS"
SLEEP_S_MAX = 600.0


class Action(StrEnum):
    """What happens to the process."""

    KILL = "kill"
    STOP = "stop"
    """Until somebody sends SIGCONT."""
    SLEEP = "sleep"


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens at a place, and at which of its passes, counted from 1."""

    action: Action
    sleep_s: float = 0.0
    at_pass: int = 1


class Failpoints:
    """Counts the passes of each named place."""

    def __init__(self, faults: Mapping[str, Fault]) -> None:
        self._faults = dict(faults)
        self._passes = dict.fromkeys(faults, 0)

    @classmethod
    def from_environment(cls) -> "Failpoints":
        """Read the variable; ValueError if it is anything else than described above."""
        text = os.environ.get(VARIABLE, "")
        return cls(dict(_parsed(part) for part in text.split(",") if part))

    def __bool__(self) -> bool:
        """Whether anything may happen anywhere."""
        return bool(self._faults)

    def hit(self, name: str) -> None:
        """Pass a place; what was asked for happens to the process there and then."""
        fault = self._faults.get(name)
        if fault is None:
            return
        self._passes[name] += 1
        if self._passes[name] == fault.at_pass:
            _strike(fault)


NO_FAILPOINTS = Failpoints({})


def _strike(fault: Fault) -> None:
    match fault.action:
        case Action.KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        case Action.STOP:
            os.kill(os.getpid(), signal.SIGSTOP)
        case Action.SLEEP:
            time.sleep(fault.sleep_s)


def _parsed(part: str) -> tuple[str, Fault]:
    name, _, what = part.strip().partition("=")
    word, _, passes = what.partition("@")
    action, _, sleep_s = word.partition(":")
    try:
        fault = Fault(Action(action), float(sleep_s or 0), int(passes or 1))
    except ValueError:
        raise _unreadable(part) from None
    sleeps = fault.action is Action.SLEEP
    if not name or fault.at_pass < 1 or bool(sleep_s) != sleeps:
        raise _unreadable(part)
    if not 0 <= fault.sleep_s <= SLEEP_S_MAX:
        raise _unreadable(part)
    return name, fault


def _unreadable(part: str) -> ValueError:
    return ValueError(
        f"{VARIABLE}: {part!r} is not <place>=kill, <place>=stop or <place>=sleep:<seconds>, "
        "each with @<pass> after it if it is not the first one"
    )
