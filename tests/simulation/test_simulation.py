"""Some tens of seeds with every run of the suite, and the proof that the simulation notices anything.

`python -m tests.simulation --seeds 2000` plays many more.
"""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.simulation.run import run
from tests.simulation.world import Equipment

SEEDS = 60
BREAKABLE_WITHIN = 60
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def equipment() -> Equipment:
    return Equipment()


@pytest.mark.parametrize("first", range(0, SEEDS, 10))
def test_every_promise_is_kept_whatever_the_network_does(equipment: Equipment, first: int) -> None:
    for seed in range(first, first + 10):
        result = run(seed, equipment)
        steps = "\n".join(result.trace.lines(200))
        assert not result.failure, f"{steps}\nseed {seed}: {result.failure}"


def test_a_seed_replays_exactly(equipment: Equipment) -> None:
    for seed in (1, 2, 3):
        first, again = run(seed, equipment), run(seed, equipment)
        assert first.trace.digest() == again.trace.digest()
        assert (first.answers, first.calls) == (again.answers, again.calls)


def test_a_seed_replays_exactly_in_another_process(equipment: Equipment) -> None:
    code = (
        "from tests.simulation.run import run; from tests.simulation.world import Equipment; "
        "print(run(5, Equipment()).trace.digest())"
    )
    # Another process has other hashes of texts and other addresses of objects.
    other = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert other.stdout.strip() == run(5, equipment).trace.digest()


def without(text: str) -> Callable[[bytes], bytes]:
    """Scripts that lack a piece of theirs, given as a pattern."""

    def alter(source: bytes) -> bytes:
        return re.sub(text.encode(), b"", source)

    return alter


@pytest.mark.parametrize(
    ("missing", "noticed"),
    [
        (r"if value then found\[position\] = value end", "I4|I8"),
        (r'if is_new then redis\.call\("HSET", stock_key, "in:".*', "I1"),
        (r"stock\.sold = stock\.sold \+ quantity", "I1"),
    ],
    ids=["records", "numbers of arrivals", "counting of sales"],
)
def test_a_kernel_that_lacks_a_safeguard_is_noticed(missing: str, noticed: str) -> None:
    sources = [path.read_text() for path in (ROOT / "sharding" / "lua").rglob("*.lua")]
    assert any(re.search(missing, source) for source in sources), "the scripts look different now"
    broken = Equipment(without(missing))
    failures = (run(seed, broken).failure for seed in range(BREAKABLE_WITHIN))
    assert re.search(noticed, next(filter(None, failures), ""))


def test_a_refusal_without_a_second_reading_is_noticed(
    equipment: Equipment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sharding.shards.ShardReading.version", (0, 0))
    failures = (run(seed, equipment).failure for seed in range(10 * BREAKABLE_WITHIN))
    assert re.match("I3|I1: product . was read", next(filter(None, failures), ""))
