"""`inventoryctl deduct`, `inventoryctl resolve` and `inventoryctl stock`."""

from collections.abc import Iterable
from typing import Annotated

import typer
from rich.console import Group
from rich.live import Live

from inventory.cli.exits import Exit
from inventory.cli.output import (
    console,
    deduction_json,
    equation,
    print_json,
    print_stock,
    shard_table,
)
from inventory.cli.products import ProductId, Units
from inventory.cli.session import Session, ended, session_of
from inventory.client import Deduction, Resolution, Stock


def deduct(
    context: typer.Context,
    product_id: ProductId,
    quantity: Units,
    request_id: Annotated[
        str | None,
        typer.Option(help="Names this purchase for good; repeat it to retry. [default: a new id]"),
    ] = None,
    user: Annotated[int, typer.Option(help="The buyer; 0: none.")] = 0,
    order: Annotated[int, typer.Option(help="The order; 0: none.")] = 0,
    attempt: Annotated[
        int | None,
        typer.Option(help="1: first, 2 and more: a retry, whose refusal is final, 0: not known."),
    ] = None,
) -> None:
    """Take units of a product; exit code 1 when it has fewer."""
    session = session_of(context)
    with session.client() as client:
        deduction = client.deduct(
            product_id,
            quantity,
            request_id=request_id,
            user_id=user,
            order_id=order,
            attempt=attempt,
        )
    if session.as_json:
        print_json(deduction_json(deduction))
    else:
        _tell(deduction, product_id, quantity)
    ended(Exit.OK if deduction.accepted else Exit.REFUSED)


def resolve(
    context: typer.Context,
    product_id: ProductId,
    request_id: Annotated[
        str, typer.Argument(help="The request, as it was sent.", show_default=False)
    ],
) -> None:
    """Decide a request whose answer was lost: deducted, refused, or never, whatever still arrives."""
    session = session_of(context)
    with session.client() as client:
        resolved = client.resolve(product_id, request_id)
    if session.as_json:
        print_json(resolved)
    else:
        request = f"request {request_id} of product {product_id}"
        console().print(f"{request}: {_ENDS[resolved.resolution].format(resolved.quantity)}")


_ENDS = {
    Resolution.DEDUCTED: "deducted {} units",
    Resolution.REFUSED: "refused for shortage, and so is a late copy",
    Resolution.NEVER: "took nothing, and no late copy of it will",
}


def stock(
    context: typer.Context,
    product_id: ProductId,
    watch: Annotated[bool, typer.Option("--watch", help="Go on until interrupted.")] = False,
    interval_ms: Annotated[
        int, typer.Option(help="Least time between two counts; 0: the service's choice.")
    ] = 0,
) -> None:
    """Show a product's live counts. With --watch --json: one object a line per change."""
    session = session_of(context)
    with session.client() as client:
        if watch:
            _follow(session, client.watch_stock(product_id, interval_ms=interval_ms))
            return
        counts = client.get_stock(product_id)
    if session.as_json:
        print_json(counts)
    else:
        print_stock(counts)


def _tell(deduction: Deduction, product_id: int, quantity: int) -> None:
    earlier = " (an earlier call's answer)" if deduction.replayed else ""
    request = f"request {deduction.request_id}"
    if deduction.accepted:
        console().print(
            f"deducted {quantity} of product {product_id}{earlier}, "
            f"{deduction.shard_available} left in shard {deduction.shard}, {request}"
        )
    else:
        had = "had" if deduction.replayed else "has"
        console().print(
            f"refused{earlier}: product {product_id} {had} fewer than {quantity} units, {request}"
        )


def _follow(session: Session, counts: Iterable[Stock]) -> None:
    out = console()
    if session.as_json:
        for each in counts:
            print_json(each)
    elif out.is_terminal:
        with Live(console=out, auto_refresh=False) as live:
            for each in counts:
                live.update(Group(shard_table(each), equation(each)), refresh=True)
    else:
        for each in counts:
            out.print(equation(each))
