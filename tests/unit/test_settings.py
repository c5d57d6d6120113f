"""Settings that are almost named, and settings that do not go together."""

import subprocess
import sys
from collections.abc import Iterable

import pytest
from pydantic_settings import BaseSettings

from ledger.settings import (
    LedgerSettings,
    SettingsError,
    misspelt_settings,
    read_settings,
)
from server.settings import ServerSettings
from worker.settings import WorkerSettings

PROGRAMS = (ServerSettings, WorkerSettings, LedgerSettings)
OTHERS = (
    *("INVENTORY_TARGET", "INVENTORY_FAILPOINTS", "INVENTORY_TEST_REDIS"),
    # What Kubernetes puts into every pod beside a service of this name.
    *("INVENTORY_SERVICE_HOST", "INVENTORY_SERVICE_PORT", "INVENTORY_SERVICE_PORT_GRPC"),
    *("INVENTORY_PORT", "INVENTORY_PORT_50051_TCP_ADDR", "INVENTORY_PORT_50051_TCP_PORT"),
    *("INVENTORY_METRICS_SERVICE_HOST", "INVENTORY_SERVER_SERVICE_HOST"),
)


def names(kinds: Iterable[type[BaseSettings]]) -> list[str]:
    return [f"INVENTORY_{name}".upper() for kind in kinds for name in kind.model_fields]


@pytest.mark.parametrize("kind", PROGRAMS)
def test_what_other_programs_have_is_left_alone(kind: type[BaseSettings]) -> None:
    for name in (*names(PROGRAMS), *OTHERS):
        assert misspelt_settings(kind, {name: "1"}) == {}


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("INVENTORY_DURABILTY", "INVENTORY_DURABILITY"),
        ("INVENTORY_REDIS_NODE", "INVENTORY_REDIS_NODES"),
        ("INVENTORY_BACKLOG_MAX_", "INVENTORY_BACKLOG_MAX"),
        ("INVENTORY_MYSQL_URL", "INVENTORY_MYSQL_URLS"),
        ("INVENTORY_RECORDTTL_S", "INVENTORY_RECORD_TTL_S"),
    ],
)
def test_a_misspelt_setting_ends_a_program_that_says_what_is_meant(
    name: str, meant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "1")
    monkeypatch.delenv(meant, raising=False)
    with pytest.raises(SettingsError, match=f"^{name} is no setting: {meant} is$"):
        read_settings(ServerSettings)


def test_a_name_of_before_may_stand_beside_that_of_now() -> None:
    both = {"INVENTORY_MYSQL_URL": "1", "INVENTORY_MYSQL_URLS": "1"}
    assert misspelt_settings(WorkerSettings, both) == {}


def test_settings_that_do_not_go_together_name_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INVENTORY_RECORD_TTL_S", "60")
    monkeypatch.setenv("INVENTORY_CONFIRM_GRACE_S", "600")
    with pytest.raises(SettingsError, match=r"^INVENTORY_CONFIRM_GRACE_S=600 is more than"):
        read_settings(WorkerSettings)


@pytest.mark.parametrize("program", ["server", "worker"])
@pytest.mark.parametrize(("argument", "code"), [("--help", 0), ("--port", 2)])
def test_a_program_takes_no_arguments_and_says_where_its_settings_are(
    program: str, argument: str, code: int
) -> None:
    asked = [sys.executable, "-m", program, argument]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code
    assert (".env.example" if code == 0 else "unrecognized arguments") in done.stdout + done.stderr
