"""The quick ones of the faults, one after the other on one stack, and no time is judged; `make chaos`
plays all of them."""

import os
from collections.abc import AsyncIterator
from random import Random

import pytest

from tests.chaos.faults import FAULTS
from tests.chaos.scene import play
from tests.chaos.stack import Stage

SEED = os.environ.get("INVENTORY_CHAOS_SEED", "1")
QUICK = ("F02", "F04", "F06-older", "F14", "F22", "F23", "F30")


@pytest.fixture(scope="module")
async def stage() -> AsyncIterator[Stage]:
    async with Stage(Random(SEED)) as stage:
        yield stage


@pytest.mark.parametrize("number", QUICK)
async def test_a_fault_under_load_breaks_no_promise(stage: Stage, number: str) -> None:
    stage.choice.seed(f"{SEED} {number}")
    report = await play(stage, FAULTS[number], is_timed=False)
    assert not report.wrong, f"seed {SEED}: {report.wrong}"
