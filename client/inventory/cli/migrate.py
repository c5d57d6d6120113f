"""`inventoryctl migrate`: a command of the service's own distribution, where that is installed."""

import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from importlib.metadata import entry_points
from io import StringIO

import typer

from inventory.cli.exits import Exit
from inventory.cli.output import console, error_json, print_json
from inventory.cli.session import ended, session_of

GROUP = "inventory.commands"
MISSING = (
    "migrate needs the service on this machine, not the client alone: "
    "install the inventory-service distribution"
)


def migrate(context: typer.Context) -> None:
    """Bring the ledger's tables up to date; needs the service's own distribution."""
    as_json = session_of(context).as_json
    command = _installed("migrate")
    if command is None:
        _not_installed(as_json=as_json)
    elif as_json:
        _in_json(command)
    else:
        command()


def _installed(name: str) -> Callable[[], None] | None:
    """A command of the entry point group; it prints, and raises SystemExit where it fails."""
    for found in entry_points(group=GROUP, name=name):
        command: Callable[[], None] = found.load()
        return command
    return None


def _not_installed(*, as_json: bool) -> None:
    if as_json:
        print_json(error_json("FAILED_PRECONDITION", "NOT_INSTALLED", MISSING))
    else:
        console(stderr=True).print(f"inventoryctl: {MISSING}", soft_wrap=True)
    ended(Exit.REJECTED)


def _in_json(command: Callable[[], None]) -> None:
    said, complained = StringIO(), StringIO()
    try:
        with redirect_stdout(said), redirect_stderr(complained):
            command()
    except SystemExit as end:
        if end.code:
            print_json(error_json("INTERNAL", "MIGRATION_FAILED", complained.getvalue().strip()))
            sys.exit(end.code)
    print_json({"output": said.getvalue().splitlines()})
