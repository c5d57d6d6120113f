"""The tests of the tests: without one of its mechanisms the kernel must fail the test that guards it."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
COPIED = ("sharding", "ledger", "tests")
PYTEST_TESTS_FAILED = 1


class Mutation(NamedTuple):
    """One text of one file, replaced by another; `guard` is the test that must then fail.

    Both stand in the folder of a part, the test in that of its tests.
    """

    file: str
    present: str
    instead: str
    guard: str
    part: str = "sharding"

    @property
    def test(self) -> str:
        return f"tests/{self.part}/{self.guard}"


MUTATIONS = {
    "the generation in which nobody waits": Mutation(
        "alone.py",
        "if not named or named[0] == self._generations.get(partition):",
        "if True:",
        "test_degraded.py::test_who_did_not_wait_asks_again_when_the_generation_is_another_one",
    ),
    "the record": Mutation(
        "lua/include/serve.lua",
        "local value = found[i] or decided[field]",
        "local value = decided[field]",
        "test_stock.py::test_one_id_in_fifty_concurrent_calls_and_within_one_batch_has_one_effect",
    ),
    "the layout fence": Mutation(
        "lua/include/serve.lua",
        "if not stock.serves or stock.layout ~= tonumber(call.layout) then",
        "if false then",
        "test_reshard.py::test_a_process_with_an_earlier_layout_and_a_retry_have_one_effect",
    ),
    "the second reading of moves": Mutation(
        "shortage.py",
        "if versions(first) != versions(second):",
        "if len(first) != len(second):",
        "test_proof.py::test_a_unit_that_moves_behind_the_readers_back_is_not_refused[False]",
    ),
    "units in transit": Mutation(
        "shortage.py",
        "        if units:",
        "        if False:",
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
        "homes = {p for p in self._former_homes(request) if p.partition != home}",
        "homes: set[Place] = set()",
        "test_layouts.py::test_an_id_of_the_earlier_layout_gets_its_first_answer",
    ),
    "the look-up at the alternate": Mutation(
        "lookups.py",
        "if not await self._was_visited(place.partition):",
        "if place:",
        "test_decided.py::test_a_repeat_finds_what_an_alternate_accepted",
    ),
    "the bar at the alternate of a line": Mutation(
        "home.py",
        "return any(r.attempt != 1 and not is_retake(r.request_id) for r in self.requests)",
        "return False",
        "test_alternates.py"
        "::test_a_first_copy_that_was_held_up_takes_nothing_once_a_retry_has_come",
    ),
    "the look at what one of two shards has lost": Mutation(
        "shortage.py",
        "uneven = in_transit(first)",
        "uneven: list[OpenTransfer] = []",
        "test_proof.py::test_units_that_a_node_lost_on_their_way_are_found_before_anybody_is_refused",
    ),
    "the sum of what arrived": Mutation(
        "lua/put.lua",
        "math.max(given - got, 0)",
        "given",
        "test_stock.py::test_a_step_of_a_transfer_that_is_repeated_changes_nothing",
    ),
    "the owner in the fence": Mutation(
        "lua/include/head.lua",
        'if owner ~= redis.call("CLUSTER", "MYID") then',
        "if false then",
        "test_fence.py::test_a_head_of_another_node_or_run_or_of_the_past_refuses_everything",
    ),
    "the run in the fence": Mutation(
        "lua/include/head.lua",
        'return run == RUN and "" or "RESTARTED"',
        'return ""',
        "test_fence.py::test_a_head_of_another_node_or_run_or_of_the_past_refuses_everything",
    ),
    "the number in the fence": Mutation(
        "lua/include/head.lua",
        "head.generation == seen_generation and head.number < seen_number",
        "false",
        "test_fence.py::test_a_head_of_another_node_or_run_or_of_the_past_refuses_everything",
    ),
    "the wait for a replica": Mutation(
        "cluster.py",
        "return self.settings.confirms",
        "return False",
        "test_fence.py::test_what_no_replica_confirms_is_unknown_and_not_accepted",
    ),
    "the word of the replica": Mutation(
        "lane.py",
        "confirmed = self.replies[-1] if self.waits else replicas",
        "confirmed = replicas",
        "test_lane.py::test_too_few_replicas_spoil_the_round_but_not_its_error_replies",
    ),
    "the check of a type": Mutation(
        "lua/deduct.lua",
        'refusal = wrong_type(KEYS[10], "zset", "deadlines") or wrong_type(KEYS[11], "hash", "users")',
        "",
        "test_fence.py"
        "::test_a_key_of_another_type_changes_nothing_and_after_repair_the_same_id_succeeds",
    ),
    "the check that an event was appended": Mutation(
        "lua/include/events.lua",
        'if type(reply) == "table" and reply.err then',
        "if false then",
        "test_fence.py"
        "::test_a_key_of_another_type_changes_nothing_and_after_repair_the_same_id_succeeds",
    ),
    "the compare-and-set of a checkpoint": Mutation(
        "journal.py",
        "moved = [move.partition for move in moves if found.get(move.partition) != move.start]",
        "moved: list[int] = []",
        "test_journal.py::test_workers_that_overlap_apply_every_event_once",
        part="ledger",
    ),
    "the end of a batch that another worker applied": Mutation(
        "journal.py",
        "if all(found.get(move.partition) == move.end.id for move in moves):",
        "if False:",
        "test_journal.py::test_a_commit_whose_reply_was_lost_is_not_done_twice",
        part="ledger",
    ),
    "the generation of a restoration": Mutation(
        "lua/include/restoring.lua",
        'if values[1] ~= "" or values[2] ~= attempt or values[6] ~= RUN then',
        "if false then",
        "test_restoring.py::test_an_attempt_that_was_overtaken_writes_nothing",
    ),
    "the run of a restoration": Mutation(
        "lua/include/restoring.lua",
        " or values[6] ~= RUN then",
        " then",
        "test_restoring.py::test_an_attempt_ends_with_the_run_of_the_node_that_it_began_in",
    ),
    "what a donor gives up": Mutation(
        "lua/ack.lua",
        "local paid = math.min(math.max(told, arrived) - given, stock.available)",
        "local paid = 0",
        "test_restoring.py::test_a_restored_donor_gives_up_what_it_has_forgotten_to_have_given",
    ),
    "the tombstone of a resolved request": Mutation(
        "lua/include/serve.lua",
        'if value == "n" then return "N" end',
        "",
        "test_decided.py::test_a_late_copy_of_a_resolved_request_takes_nothing",
    ),
    "the age of what is remembered": Mutation(
        "lua/include/records.lua",
        "memory[first + (head.records + age) % RECORD_GENERATIONS + 1]",
        "memory[first + RECORD_GENERATIONS - age + 1]",
        "test_decided.py::test_the_newest_of_several_tombstones_counts",
    ),
    "the mark of an undo": Mutation(
        "lua/undo.lua",
        "if found[1] then",
        "if false then",
        "test_decided.py::test_a_second_effect_is_undone_once",
    ),
    "the epoch of a resolution": Mutation(
        "lua/resolve.lua",
        "if stock.epoch ~= epoch or stock.layout ~= layout or not stock.serves then",
        "if false then",
        "test_decided.py::test_a_process_that_slept_over_a_reload_resolves_by_the_base",
    ),
    "the order of layouts": Mutation(
        "lua/tell.lua",
        "stock.epoch > epoch or stock.layout > layout",
        "stock.epoch > epoch",
        "test_reshard.py::test_a_delayed_fence_and_a_delayed_word_change_nothing",
    ),
    "the decision for a change that was prepared": Mutation(
        "lua/commit.lua",
        "info.epoch ~= epoch or info.next_layout ~= prepared",
        "info.epoch ~= epoch",
        "test_reshard.py"
        "::test_a_late_decision_for_a_change_that_is_not_prepared_any_more_changes_nothing",
    ),
    "the wait for notes of other processes": Mutation(
        "corrections.py",
        "await asyncio.sleep(NOTE_S)",
        "await asyncio.sleep(0)",
        "test_decided.py::test_units_that_come_back_are_sold_at_once_in_every_process",
    ),
    "the compare-and-set of a decision": Mutation(
        "lua/decide.lua",
        'C = { H = "C" }',
        'C = { H = "C", E = "C" }',
        "test_orders.py::test_a_late_confirmation_takes_the_units_again_or_wants_a_refund",
    ),
    "the end of a hold by its order's decision": Mutation(
        "lua/decide.lua",
        "if HOLDS[order.state] and not HOLDS[target] then",
        "if false then",
        "test_orders.py::test_a_hold_is_confirmed_once",
    ),
    "the deadline": Mutation(
        "lua/decide.lua",
        'order.state == "H" and now > order.deadline_ms',
        "false",
        "test_orders.py::test_a_hold_ends_when_its_time_is_over_whoever_looks_first",
    ),
    "the note that a hold has ended": Mutation(
        "lua/settle.lua",
        'elseif line.letter == "h" and not ended[request_id] then',
        "elseif not ended[request_id] then",
        "test_order_races.py::test_an_end_that_is_told_twice_ends_a_hold_once",
    ),
    "the tombstone of an order that was released before it came": Mutation(
        "lua/order.lua",
        'if #tombstones > 0 then redis.call("HSET"',
        'if false then redis.call("HSET"',
        "test_orders.py::test_what_is_released_before_it_comes_holds_nothing",
    ),
    "the end of a release that broke off": Mutation(
        "ordering.py",
        "known = await self._finder.bar(want.order_id, product_id)",
        "pass",
        "test_order_races.py::test_who_is_told_of_a_release_that_broke_off_completes_it",
    ),
    "the look elsewhere for an order that was released here": Mutation(
        "reserving.py",
        "known = await self._finder.bar(wanted.order_id, wanted.lines[0].product_id)",
        "known = None",
        "test_order_races.py::test_an_order_is_found_though_its_former_home_was_told_of_a_release",
    ),
    "the state that lines were told of": Mutation(
        "lua/decide.lua",
        "if order.state ~= lines or",
        "if",
        "test_order_races.py"
        "::test_a_word_of_delivery_that_was_held_up_says_nothing_of_a_later_state",
    ),
    "the room that a user has again": Mutation(
        "lua/include/holds.lua",
        "changes.users[line.user] = (changes.users[line.user] or 0) + line.quantity",
        "",
        "test_order_races.py::test_a_users_room_comes_back_with_a_hold",
    ),
    "the count of held units": Mutation(
        "lua/include/serve.lua",
        "stock.held, stock.sold = stock.held + held, stock.sold + sold",
        "stock.sold = stock.sold + sold",
        "test_orders.py::test_a_hold_is_confirmed_once",
    ),
    "the shards that a resolution has not come to": Mutation(
        "resolving.py",
        "if not any(each.status is Status.REPLAYED for each in found):",
        "if all(each.status is Status.STALE for each in found):",
        "test_order_races.py"
        "::test_a_resolution_that_broke_off_at_one_shard_decides_nothing_at_the_others",
    ),
}


WITH_THE_SUITE = frozenset(
    (
        *("the record", "the owner in the fence", "the number in the fence", "the check of a type"),
        *("the wait for a replica", "the word of the replica", "the second reading of moves"),
        *("the compare-and-set of a checkpoint", "the compare-and-set of a decision"),
        *("units in transit", "the look at what one of two shards has lost"),
        *("the sum of what arrived", "what a donor gives up"),
    )
)
"""What the promises rest on; each takes a cluster of its own, so the others run by `make mutations`."""
CHOSEN = [
    name if name in WITH_THE_SUITE else pytest.param(name, marks=pytest.mark.thorough)
    for name in MUTATIONS
]


def test_each_mechanism_has_its_line() -> None:
    for mutation in MUTATIONS.values():
        text = (ROOT / mutation.part / mutation.file).read_text()
        assert text.count(mutation.present) == 1, f"{mutation.file} has no such line any more"
    assert MUTATIONS.keys() >= WITH_THE_SUITE


@pytest.mark.parametrize("name", CHOSEN)
def test_the_kernel_without(name: str, tmp_path: Path) -> None:
    mutation = MUTATIONS[name]
    house = _house(tmp_path)
    path = house / mutation.part / mutation.file
    text = path.read_text()
    path.write_text(text.replace(mutation.present, mutation.instead))
    done = _run(house, [mutation.test])
    assert done.returncode == PYTEST_TESTS_FAILED, done.stdout[-4_000:] + done.stderr[-2_000:]
    summary = done.stdout.rstrip().rsplit("\n", 1)[-1]
    assert "failed" in summary, summary
    assert "error" not in summary, summary


def test_the_kernel_as_it_is_passes_all_of_them(tmp_path: Path) -> None:
    guards = sorted({mutation.test for mutation in MUTATIONS.values()})
    done = _run(_house(tmp_path), guards)
    assert done.returncode == 0, done.stdout[-4_000:] + done.stderr[-2_000:]


def _run(house: Path, guards: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"),
            *guards,
        ],
        cwd=house,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )


def _house(folder: Path) -> Path:
    """The repository in a folder, with a copy of the kernel that may be changed."""
    for entry in ROOT.iterdir():
        if entry.name in COPIED:
            shutil.copytree(
                entry, folder / entry.name, ignore=shutil.ignore_patterns("__pycache__")
            )
        elif not entry.name.startswith("."):
            (folder / entry.name).symlink_to(entry)
    return folder
