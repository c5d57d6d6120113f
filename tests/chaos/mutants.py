"""`python -m tests.chaos.mutants [NAME ...]`: without a mechanism the fault that needs it must be told.

Each plays one fault on a copy of the repository in which some lines are others; where the oracle does
not say what it should, this ends with 1. Takes about a minute each, so it is no part of the suite.
"""

import os
import re
import shutil
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
COPIED = ("sharding", "ledger", "server", "worker", "deploy", "client", "tests")
FAULT_WITHIN_S = 300


class Change(NamedTuple):
    """One text of one file, and what stands there instead."""

    file: str
    present: str
    instead: str


class Mutant(NamedTuple):
    """Texts of files, each replaced by another; a pattern of what is wrong with `fault` then."""

    changes: Sequence[Change]
    fault: str
    wrong: str


MUTANTS = {
    "WAIT": Mutant(
        [Change("sharding/cluster.py", "REPLICAS_CONFIRMING = 1", "REPLICAS_CONFIRMING = 0")],
        "F07",
        "requests accepted, not in the journal",
    ),
    "the record": Mutant(
        [
            Change(
                "sharding/lua/include/serve.lua",
                "local value = found[i] or decided[field]",
                "local value = decided[field]",
            )
        ],
        "F02",
        "effects of 300 requests",
    ),
    "the fence": Mutant(
        [
            Change(
                "sharding/lua/include/head.lua",
                'if shut ~= "" then',
                "if false then",
            ),
            Change(
                "sharding/lua/include/head.lua",
                'return nil, { "fenced", "WENT_BACK" }',
                "return head",
            ),
            Change(
                "sharding/partitions.py",
                "if not why and went_back:",
                "if False:",
            ),
        ],
        "F07-fast",
        # Which of them comes first depends on whom the node that lost events serves first.
        "took units twice|events were lost, and",
    ),
    "the compare-and-set": Mutant(
        [
            Change(
                "ledger/journal.py",
                "if await _is_applied(transaction, batch.moves):",
                "if False:",
            )
        ],
        "F28-stall",
        r"finds \(ShardDrift",
    ),
}


def main() -> int:
    """Exit status."""
    parser = ArgumentParser(prog="python -m tests.chaos.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(MUTANTS))
    chosen = parser.parse_args().names or list(MUTANTS)
    survivors = [name for name in chosen if not _is_found(name, MUTANTS[name])]
    if survivors:
        sys.stdout.write(f"nobody missed {', '.join(survivors)}\n")
    return 1 if survivors else 0


def _is_found(name: str, mutant: Mutant) -> bool:
    with TemporaryDirectory(prefix="mutant-") as folder:
        house = _house(Path(folder))
        for file, present, instead in mutant.changes:
            text = (house / file).read_text()
            assert text.count(present) == 1, f"{file} has no such line any more"
            (house / file).write_text(text.replace(present, instead))
        said = _play(house, mutant.fault)
    wrong = [line for line in said.splitlines() if "wrong:" in line]
    is_found = any(re.search(mutant.wrong, line) for line in wrong)
    sys.stdout.write(f"without {name}, {mutant.fault}: {'found' if is_found else 'NOT found'}\n")
    sys.stdout.write("".join(f"{line}\n" for line in wrong or said.splitlines()[-5:]))
    return is_found


def _house(folder: Path) -> Path:
    for name in COPIED:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    return folder


def _play(house: Path, fault: str) -> str:
    paths = os.pathsep.join((str(house), str(house / "client")))
    done = subprocess.run(
        [sys.executable, "-m", "tests.chaos", fault, "--seed", "1"],
        cwd=house,
        env={**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=FAULT_WITHIN_S,
        check=False,
    )
    return done.stdout + done.stderr


if __name__ == "__main__":
    sys.exit(main())
