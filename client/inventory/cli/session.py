"""What every command shares: the target, the form of the output, a client that is connected."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import typer

from inventory.cli.exits import Exit
from inventory.client import InventoryClient, Unavailable
from inventory.client.failures import UNREACHABLE

DEFAULT_TARGET = "127.0.0.1:50051"
CONNECT_TIMEOUT_S = 3.0


@dataclass(frozen=True, slots=True)
class Session:
    """The global options of one run."""

    target: str
    as_json: bool

    @contextmanager
    def client(self) -> Iterator[InventoryClient]:
        """A client with a connection; raises Unavailable at once where there is no service."""
        with InventoryClient(self.target, channels=1) as client, self.naming_target():
            client.wait_ready(CONNECT_TIMEOUT_S)
            yield client

    @contextmanager
    def naming_target(self) -> Iterator[None]:
        """Says of a service that cannot be reached where it was looked for, and what to do."""
        try:
            yield
        except Unavailable as error:
            if error.reason != UNREACHABLE:
                raise
            message = (
                f"no inventory service can be reached at {self.target}; start it, "
                "or name another one with --target HOST:PORT or INVENTORY_TARGET"
            )
            raise type(error)(message, reason=UNREACHABLE) from error


def session_of(context: typer.Context) -> Session:
    session = context.find_root().obj
    assert isinstance(session, Session)
    return session


def ended(code: Exit) -> None:
    """Ends the command with a code that is not OK."""
    if code is not Exit.OK:
        raise typer.Exit(code)
