"""Which tests stay together where several processes share the suite."""

from pathlib import Path

from tests.sharing import ALONE, BUSY, SEEDS, group_of

ROOT = Path(__file__).parents[2]


def test_the_tests_of_a_file_stay_together() -> None:
    one, other = (group_of(f"tests/sharding/test_stock.py::{name}") for name in ("a[1]", "b"))
    assert one == other != group_of("tests/sharding/test_fence.py::a[1]")


def test_those_of_the_service_as_it_is_run_all_do() -> None:
    assert all((ROOT / folder).is_dir() for folder in BUSY)
    groups = {group_of(f"{folder}test_{name}.py::x") for folder in BUSY for name in "ab"}
    assert len(groups) == 1


def test_of_long_files_only_those_do_that_share_simulations() -> None:
    texts = {file: (ROOT / file).read_text() for file in ALONE}
    for name in SEEDS:
        (file,) = [file for file, text in texts.items() if f"def {name}(" in text]
        assert group_of(f"{file}::{name}[10]") == group_of(f"{file}::{SEEDS[0]}")
    for file in ALONE:
        assert group_of(f"{file}::test_other[1]") != group_of(f"{file}::test_other[2]")
