"""The house rules that a machine can check."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LUA = ROOT / "sharding" / "lua"
PACKAGES = ("server", "worker", "ledger", "sharding", "deploy", "inventory")
MAY_IMPORT = {
    "sharding": set[str](),
    "ledger": {"sharding"},
    "worker": {"sharding", "ledger"},
    "server": {"sharding", "ledger", "inventory"},
    "inventory": set[str](),
    "deploy": {"sharding", "ledger", "inventory"},
}
ONLY_IN = {"redis": "sharding", "hiredis": "sharding", "aiomysql": "ledger", "pymysql": "ledger"}
DRIVES_SERVICES = {"deploy"}
"""Starts real nodes and talks to them as an operator would, below the borders of the service."""


def modules(package: str) -> Iterator[Path]:
    folder = ROOT / "client" / "inventory" if package == "inventory" else ROOT / package
    return (path for path in folder.rglob("*.py") if "v1" not in path.parts)


def imported(path: Path) -> set[str]:
    """The packages that a module imports from."""
    return {name.split(".")[0] for name in imported_modules(path)}


def imported_modules(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    names = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    names |= {
        node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and not node.level
    }
    return names


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_point_one_way(package: str) -> None:
    for path in modules(package):
        crossing = imported(path) & set(PACKAGES) - {package}
        assert crossing <= MAY_IMPORT[package], path


@pytest.mark.parametrize(("library", "owner"), ONLY_IN.items())
def test_a_library_stays_behind_its_border(library: str, owner: str) -> None:
    for package in set(PACKAGES) - {owner} - DRIVES_SERVICES:
        for path in modules(package):
            assert library not in imported(path), path


@pytest.mark.parametrize("library", ["grpc", "aiomysql", "pymysql"])
def test_the_kernel_knows_neither_rpc_nor_sql(library: str) -> None:
    for path in modules("sharding"):
        assert library not in imported(path), path


PURE = {"batches", "desk", "errors", "orders", "outcomes", "plans", "tasks"}
"""Modules of the kernel that know no Redis."""


def test_the_engine_without_redis_shares_only_what_knows_none() -> None:
    for path in (ROOT / "ledger" / "engine").glob("*.py"):
        shared = {name for name in imported_modules(path) if name.startswith("sharding.")}
        assert shared <= {f"sharding.{name}" for name in PURE}, path
    for name in PURE:
        of_kernel = imported_modules(ROOT / "sharding" / f"{name}.py")
        assert "redis" not in of_kernel
        assert {each for each in of_kernel if each.startswith("sharding.")} <= {
            *(f"sharding.{each}" for each in PURE),
            "sharding.placement",
        }, name


SCRIPTS = sorted(LUA.glob("*.lua"), key=lambda path: path.name)


def header_of(text: str) -> str:
    return "\n".join(line for line in text.split("\n") if line.startswith(("--", "#!")))


def documented(text: str, list_name: str) -> set[int]:
    return {int(n) for n in re.findall(rf"{list_name}\[(\d+)\]", header_of(text))}


def used(text: str, list_name: str) -> set[int]:
    includes = re.findall(r"^-- @include (\w+)$", text, re.MULTILINE)
    bodies = [text, *((LUA / "include" / f"{name}.lua").read_text() for name in includes)]
    code = "\n".join(
        line for body in bodies for line in body.split("\n") if not line.startswith("--")
    )
    return {int(n) for n in re.findall(rf"{list_name}\[(\d+)\]", code)}


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
@pytest.mark.parametrize("list_name", ["KEYS", "ARGV"])
def test_a_scripts_header_names_what_the_script_uses(path: Path, list_name: str) -> None:
    text = path.read_text()
    if path.stem in VARIADIC:
        assert used(text, list_name) <= documented(text, list_name)
        return
    assert used(text, list_name) == documented(text, list_name)


VARIADIC = {"open", "head", "shut", "reopen"}
"""Scripts that take a key, and some two arguments, for each ledger, and loop over them."""


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_scripts_header_names_every_word_that_it_returns(path: Path) -> None:
    text = path.read_text()
    code = "\n".join(line for line in text.split("\n") if not line.startswith("--"))
    words = set(re.findall(r'(?:return (?:nil, )?\{ |answer\()"(\w+)"', code))
    words |= {word for call, word in RETURNED_BY_INCLUDES.items() if call in code}
    for word in words - TAKEN_CARE_OF.get(path.stem, set()):
        assert f'"{word}"' in header_of(text), word


RETURNED_BY_INCLUDES = {
    "read_head(": "fenced",
    "find_records(": "corrupt",
    "= read_stock(": "missing",
    "= read_info(": "missing",
    "adjust(": "missing",
}
TAKEN_CARE_OF = {"load": {"missing"}, "tell": {"missing"}, "inform": {"missing"}}


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_declares_its_flags_and_its_promise(path: Path) -> None:
    text = path.read_text()
    assert text.startswith("#!lua")
    writes = re.search(r'redis\.call\("(HSET|HINCRBY|UNLINK|XADD)"', text)
    assert bool(writes) <= ("From here on it must succeed" in text)
    assert ("no-writes" in text.split("\n")[0]) <= (not writes)


def test_request_keys_are_spelled_in_one_place() -> None:
    for package in ("server", "worker", "ledger", "sharding"):
        for path in modules(package):
            if path != ROOT / "sharding" / "keys.py":
                assert "inv:{" not in path.read_text(), path


def settings_classes() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for package in ("sharding", "ledger", "server", "worker"):
        tree = ast.parse((ROOT / package / "settings.py").read_text())
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and node.name.endswith("Settings"):
                found[node.name] = {
                    item.target.id
                    for item in node.body
                    if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
                }
    return found


def test_every_setting_stands_in_the_example_and_nothing_else_does() -> None:
    example = (ROOT / ".env.example").read_text()
    shown = set(re.findall(r"^#? ?(INVENTORY_\w+)=", example, re.MULTILINE))
    names = {name for names in settings_classes().values() for name in names}
    settings = {f"INVENTORY_{name.upper()}" for name in names if name != "model_config"}
    assert shown == settings
