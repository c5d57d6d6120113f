"""deploy/bootstrap where it may install nothing: what it says to somebody who is not root."""

import shutil
import subprocess
from pathlib import Path

from deploy.local.stack import PROJECT

BOOTSTRAP = PROJECT / "deploy" / "bootstrap"
TOOLS = ("sh", "sed", "grep", "dirname", "mktemp")
PROGRAMS = ("make", "redis-server", "mariadbd", "mariadb-install-db", "my_print_defaults")


def machine(folder: Path, *programs: str, python: str = "3.11") -> Path:
    """A folder of programs to be the whole PATH, of a user who is not root."""
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found is not None
        (folder / tool).symlink_to(found)
    for program in programs:
        script(folder / program, "exit 0")
    script(folder / "id", "echo 1000")
    is_old = python < "3.11"
    script(
        folder / "python3",
        f'case "$2" in *print*) echo {python} ;; *"sys.exit"*) exit {int(is_old)} ;; esac',
    )
    return folder


def script(path: Path, body: str) -> None:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def bootstrap(path: Path) -> tuple[int, str]:
    # The servers' own folders are emptied: this machine's programs must not be found.
    text = BOOTSTRAP.read_text().replace("$PATH:/usr/local/sbin:/usr/sbin:/sbin", "$PATH")
    result = subprocess.run(
        ["sh", "-s", "--", "--for", "run"],
        input=text,
        env={"PATH": str(path)},
        capture_output=True,
        text=True,
        check=False,
    )
    return result.returncode, result.stdout + result.stderr


def test_nothing_is_said_when_nothing_is_missing(tmp_path: Path) -> None:
    assert bootstrap(machine(tmp_path, *PROGRAMS)) == (0, "")


def test_somebody_who_is_not_root_is_told_what_to_type(tmp_path: Path) -> None:
    path = machine(tmp_path, "make", "mariadbd", "mariadb-install-db", "apt-get")
    packages = "redis-server mariadb-client-core"
    install = "sudo apt-get install --yes --no-install-recommends"
    status, said = bootstrap(path)
    assert status == 1
    assert said == (
        f"bootstrap: missing: {packages}; type: sudo apt-get update && {install} {packages}\n"
    )


def test_oracles_mysql_and_valkey_will_do(tmp_path: Path) -> None:
    assert bootstrap(machine(tmp_path, "make", "valkey-server", "mysqld")) == (0, "")


def test_a_python_that_is_too_old_is_named(tmp_path: Path) -> None:
    status, said = bootstrap(machine(tmp_path, *PROGRAMS, python="3.10"))
    assert status == 1
    assert said.startswith("bootstrap: python3 is Python 3.10, 3.11 or later is needed")
    assert said.count("\n") == 1
