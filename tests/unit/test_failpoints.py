"""Where a test may have a process end, and what it can ask for."""

import os
import signal
import subprocess
import sys

import pytest

from ledger.failpoints import VARIABLE, Failpoints

PASSES = """
import sys
from ledger.failpoints import Failpoints
failpoints = Failpoints.from_environment()
for number in range(4):
    print(number, flush=True)
    failpoints.hit("here")
"""


def passing(text: str) -> subprocess.Popen[str]:
    """A process that passes the place `here` four times and counts aloud before each."""
    return subprocess.Popen(
        [sys.executable, "-c", PASSES],
        env={**os.environ, VARIABLE: text},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_process_is_killed_at_the_pass_that_was_asked_for_and_at_no_other_place() -> None:
    process = passing("there=kill,here=kill@3")
    out, _ = process.communicate(timeout=30)
    assert (out.split(), process.returncode) == (["0", "1", "2"], -signal.SIGKILL)


def test_a_process_is_stopped_once_and_goes_on_when_it_is_woken() -> None:
    process = passing("here=stop@2")
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    process.send_signal(signal.SIGCONT)
    out, _ = process.communicate(timeout=30)
    assert (out.split(), process.returncode) == (["0", "1", "2", "3"], 0)


def test_a_process_sleeps_at_its_place_and_goes_on_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    monkeypatch.setenv(VARIABLE, "here=sleep:1.5@2")
    failpoints = Failpoints.from_environment()
    for _ in range(3):
        failpoints.hit("here")
    assert slept == [1.5]


@pytest.mark.parametrize(
    "text",
    [
        *("here", "here=die", "=kill", "here=kill@0", "here=kill@x", "here=kill:1"),
        *("here=sleep", "here=sleep:-1", "here=sleep:nan", "here=stop:2"),
    ],
)
def test_what_cannot_be_read_is_named(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(VARIABLE, f"there=kill,{text}")
    with pytest.raises(ValueError, match=VARIABLE):
        Failpoints.from_environment()
