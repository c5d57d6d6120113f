"""Entry point of `inventoryctl`."""

import sys
from collections.abc import Sequence
from itertools import islice
from typing import Annotated

import typer

from inventory.cli import letters, orders, products
from inventory.cli.audits import audit, repair
from inventory.cli.doctor import doctor
from inventory.cli.exits import EXPLAINED, Exit, exit_of
from inventory.cli.migrate import migrate
from inventory.cli.output import console, error_json, print_json, sentence_of
from inventory.cli.session import DEFAULT_TARGET, Session
from inventory.cli.simulate import simulate
from inventory.cli.stock import deduct, resolve, stock
from inventory.client import InventoryError

PROGRAM = "inventoryctl"

app = typer.Typer(
    help="The inventory from a shell.",
    epilog=EXPLAINED,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command()(migrate)
app.add_typer(products.app, name="product")
app.add_typer(orders.app, name="order")
app.add_typer(letters.app, name="deadletter")
app.command()(letters.timeline)
app.command()(deduct)
app.command()(resolve)
app.command()(stock)
app.command()(audit)
app.command()(repair)
app.command()(doctor)
app.command()(simulate)


@app.callback()
def options(
    context: typer.Context,
    target: Annotated[
        str, typer.Option(envvar="INVENTORY_TARGET", help="The service, HOST:PORT.")
    ] = DEFAULT_TARGET,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print one JSON object with the message's field names; on an error "
            '{"error": {"code", "reason", "message"}}. Both options may follow the command, too.',
        ),
    ] = False,
) -> None:
    """Takes the options that all commands share."""
    context.obj = Session(target=target, as_json=as_json)


def main() -> None:
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Runs one command; returns its exit code."""
    first, rest = shared_first(arguments)
    as_json = "--json" in first
    try:
        code = app(args=[*first, *rest], prog_name=PROGRAM, standalone_mode=False)
    except InventoryError as error:
        _failed(error, as_json=as_json)
        return exit_of(error)
    except typer.TyperException as error:
        _misused(error.format_message(), as_json=as_json)
        return Exit.USAGE
    except (typer.Abort, KeyboardInterrupt):
        return Exit.INTERRUPTED
    return code if isinstance(code, int) else Exit.OK


def shared_first(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Arguments apart: the options that all commands share, wherever they stand, and the rest."""
    first: list[str] = []
    rest: list[str] = []
    waiting = iter(arguments)
    for argument in waiting:
        if argument == "--":
            return first, [*rest, argument, *waiting]
        if argument == "--json" or argument.startswith("--target="):
            first.append(argument)
        elif argument == "--target":
            first.extend([argument, *islice(waiting, 1)])
        else:
            rest.append(argument)
    return first, rest


def _failed(error: InventoryError, *, as_json: bool) -> None:
    if as_json:
        named = {"request_id": error.request_id, "order_id": error.order_id}
        print_json(error_json(error.code, error.reason, error.message, **named))
    else:
        _complain(sentence_of(error))


def _misused(message: str, *, as_json: bool) -> None:
    if as_json:
        print_json(error_json("INVALID_ARGUMENT", "USAGE", message))
    elif message:  # a command group without a command has shown its help instead
        _complain(f"{message} (`{PROGRAM} --help` says more)")


def _complain(sentence: str) -> None:
    console(stderr=True).print(f"{PROGRAM}: {sentence}", soft_wrap=True)


if __name__ == "__main__":
    main()
