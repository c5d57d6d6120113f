"""What the server's and the worker's logs say of an exception, and what they keep to themselves."""

import json
from collections.abc import Iterator

import pytest
import structlog

from server.logs import configure_logs
from worker.__main__ import configure_logs as configure_logs_of_worker


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    yield
    structlog.reset_defaults()


def fail() -> None:
    password = "hunter2".upper()
    raise RuntimeError(f"login with {len(password)} characters refused")


@pytest.mark.parametrize("configure", [configure_logs, configure_logs_of_worker])
def test_an_exception_is_logged_without_local_variables(
    configure: object, capsys: pytest.CaptureFixture[str]
) -> None:
    assert callable(configure)
    configure()
    try:
        fail()
    except RuntimeError as error:
        structlog.get_logger().error("failed", exc_info=error)
    said = capsys.readouterr().err
    assert "login with 7 characters refused" in json.loads(said)["exception"][0]["exc_value"]
    assert "HUNTER2" not in said
