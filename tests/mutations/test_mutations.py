"""The tests of the tests: without one of its mechanisms the kernel must fail the test that guards it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
COPIED = ("sharding", "tests")
PYTEST_TESTS_FAILED = 1


class Mutation(NamedTuple):
    """One text of one file, replaced by another; `guard` is the test that must then fail."""

    file: str
    present: str
    instead: str
    guard: str


MUTATIONS = {
    "the record": Mutation(
        "lua/include/serve.lua",
        "local value = found[i] or decided[field]",
        "local value = decided[field]",
        "test_stock.py::test_one_id_in_fifty_concurrent_calls_and_within_one_batch_has_one_effect",
    ),
    "the layout fence": Mutation(
        "lua/include/serve.lua",
        'if call.mode == "look" or not stock.serves or stock.layout ~= tonumber(call.layout) then',
        'if call.mode == "look" then',
        "test_reshard.py::test_a_process_with_an_earlier_layout_and_a_retry_have_one_effect",
    ),
    "the second reading of moves": Mutation(
        "shortage.py",
        "[reading.version for reading in first] == [reading.version for reading in second]",
        "len(first) == len(second)",
        "test_proof.py::test_a_unit_that_moves_behind_the_readers_back_is_not_refused",
    ),
    "units in transit": Mutation(
        "shards.py",
        "            if int(units)\n",
        "            if int(units) < 0\n",
        "test_stock.py"
        "::test_a_transfer_that_was_left_open_counts_and_is_finished_by_whoever_needs_it",
    ),
    "the rule for crossing gathers": Mutation(
        "lua/take.lua",
        "gathering_until_ms > now_ms() and",
        "false and",
        "test_proof.py::test_a_shard_that_gathers_gives_only_to_lower_ones",
    ),
    "the look-up at former homes": Mutation(
        "lookups.py",
        "for place in self._former_homes(request):",
        "for place in ():",
        "test_layouts.py::test_an_id_of_the_earlier_layout_gets_its_first_answer",
    ),
    "the look-up at the alternate": Mutation(
        "lookups.py",
        "if not await self._was_visited(place.partition):",
        "if place:",
        "test_decided.py::test_a_repeat_finds_what_an_alternate_accepted",
    ),
    "the number of a transfer": Mutation(
        "lua/put.lua",
        "local is_new = tonumber(transfer) > arrived",
        "local is_new = true",
        "test_stock.py::test_a_step_of_a_transfer_that_is_repeated_changes_nothing",
    ),
    "the owner in the fence": Mutation(
        "lua/include/head.lua",
        'if values[1] ~= redis.call("CLUSTER", "MYID") then return nil, { "fenced", "NEW_OWNER" } end',
        "",
        "test_fence.py",
    ),
    "the wait for notes of other processes": Mutation(
        "corrections.py",
        "await asyncio.sleep(NOTE_S)",
        "await asyncio.sleep(0)",
        "test_decided.py::test_units_that_come_back_are_sold_at_once_in_every_process",
    ),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_the_kernel_without(name: str, tmp_path: Path) -> None:
    mutation = MUTATIONS[name]
    house = _house_with(mutation, tmp_path)
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, f"tests/sharding/{mutation.guard}"],
        cwd=house,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert done.returncode == PYTEST_TESTS_FAILED, done.stdout[-4_000:] + done.stderr[-2_000:]


def _house_with(mutation: Mutation, folder: Path) -> Path:
    """The repository in a folder, with the mistake in its copy of the kernel."""
    for entry in ROOT.iterdir():
        if entry.name in COPIED:
            shutil.copytree(
                entry, folder / entry.name, ignore=shutil.ignore_patterns("__pycache__")
            )
        elif not entry.name.startswith("."):
            (folder / entry.name).symlink_to(entry)
    path = folder / "sharding" / mutation.file
    text = path.read_text()
    assert text.count(mutation.present) == 1, f"{mutation.file} has no such line any more"
    path.write_text(text.replace(mutation.present, mutation.instead))
    return folder
