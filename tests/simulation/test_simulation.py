"""Some tens of seeds with every run of the suite, and the proof that the simulation notices anything.

`python -m tests.simulation --seeds 2000` plays many more.
"""

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.simulation.run import Result, run
from tests.simulation.world import Equipment

SEEDS = 60
RARE_SEEDS = (60, 98, 104, 111, 161, 177, 1002, 1362)
"""In 98 and 161 a failover loses events, in 104 and 111 a further line is taken at an alternate. Each
happens in about one seed in sixty, now that a node which does not serve is hardly asked any more.
In 1002 an attempt to restore a partition is overtaken before it has written anything, in 1362 a base is
restored before the ledger has heard of shards that left the layout."""
BREAKABLE_WITHIN = 200
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def equipment() -> Equipment:
    return Equipment()


@pytest.fixture(scope="module")
def played(equipment: Equipment) -> Callable[[int], Result]:
    """What a seed came to; each is played once, whoever asks."""
    return cache(lambda seed: run(seed, equipment))


@pytest.mark.parametrize("first", range(0, SEEDS, 10))
def test_every_promise_is_kept_whatever_the_network_does(
    played: Callable[[int], Result], first: int
) -> None:
    for seed in range(first, first + 10):
        result = played(seed)
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


def altered(pattern: str, instead: str) -> Callable[[bytes], bytes]:
    """Scripts in which a piece, given as a pattern, reads otherwise."""

    def alter(source: bytes) -> bytes:
        return re.sub(pattern.encode(), instead.encode(), source)

    return alter


@pytest.mark.parametrize(
    ("present", "instead", "noticed", "likely"),
    [
        (r"if value then found\[position\] = value end", "", "I4|I8", 0),
        (r"if units > 0 then write_got\(stock, donor, got\) end", "", "I1", 0),
        (r"stock\.held \+ held, stock\.sold \+ sold", "stock.held + held, stock.sold", "I1", 0),
        (r" or stock\.layout ~= tonumber\(call\.layout\)", "", "I4.* after .* were", 8),
        (r'redis\.call\("HSET", .*, unpack\(served\.tombstones\)\)', "", "I4", 0),
        (
            r"field, tombstone\)(?=\nreturn)",
            'tombstone == "b" and "-" or field, tombstone)',
            "I4",
            272,
        ),
        (r'C = \{ H = "C" \}', 'C = { H = "C", E = "C" }', "I6", 0),
        (r"if HOLDS\[order\.state\] and not HOLDS\[target\] then", "if false then", "I6", 0),
        (r'line\.letter == "h" and not ended', "not ended", "I6", 83),
        (r"if #tombstones > 0 then", "if false then", "I6.* released", 0),
        (r"changes\.users\[line\.user\] = .*", "", "nothing going wrong|user . has", 2),
        (r"stock\.held \+ held, stock\.sold \+ sold", "stock.held, stock.sold + sold", "I1", 0),
        (r'order\.state == "H" and now > order\.deadline_ms', "false", "stay due", 0),
        (r'call\.mode ~= "visit" and call\.mode ~= "bar"', "true", "I6.* taken twice", 0),
    ],
    ids=[
        "records",
        "the sum of what arrived",
        "counting of sales",
        "the layout that a shard serves",
        "the tombstone of a final refusal",
        "the bar at the alternate",
        "the compare-and-set of an order's decision",
        "the end of a first line by its decision",
        "the note that a line has ended",
        "the tombstone of an order",
        "the room that a user has again",
        "counting of holds",
        "the deadline of an order",
        "the bar at the alternate of a line",
    ],
)
def test_a_kernel_that_lacks_a_safeguard_is_noticed(
    present: str, instead: str, noticed: str, likely: int
) -> None:
    sources = [path.read_text() for path in (ROOT / "sharding" / "lua").rglob("*.lua")]
    assert any(re.search(present, source) for source in sources), "the scripts look different now"
    broken = Equipment(altered(present, instead))
    # Another promise may be the first to break; the one that is meant must, too.
    assert_noticed(broken, noticed, likely=likely)


def test_a_kernel_that_waits_for_no_replica_is_noticed() -> None:
    assert_noticed(Equipment(durability="fast"), "I5.* a master's end has undone it", likely=3)


def assert_noticed(broken: Equipment, noticed: str, *, likely: int) -> None:
    """Some seed breaks the promise that is meant, and none with everything in place.

    `likely`: the seed that did so when this was written; it only saves time.
    """
    for seed in (likely, *range(BREAKABLE_WITHIN)):
        if re.search(noticed, run(seed, broken).failure):
            assert not run(seed, Equipment()).failure
            return
    raise AssertionError(f"{noticed} stays unnoticed")


def test_what_is_rare_is_played(played: Callable[[int], Result]) -> None:
    counts: Counter[str] = Counter()
    for seed in (*range(SEEDS), *RARE_SEEDS):
        result = played(seed)
        assert not result.failure, f"seed {seed}: {result.failure}"
        counts.update(result.counts)
    for name in (
        *("layout changes done", "layout changes rolled back", "events lost"),
        *("orders held", "orders confirmed", "orders released", "orders expired", "orders refused"),
        *("orders retaken", "orders refund required", "orders given up by a keeper"),
        *("orders swept: expired", "orders swept: released", "units of buffers"),
        *("orders at alternates", "further lines at alternates"),
        *("nodes emptied", "nodes set back", "restorations ended"),
    ):
        assert counts[name], (name, counts)
