"""`inventoryctl order …`."""

from collections.abc import Sequence
from typing import Annotated

import typer

from inventory.cli.exits import Exit
from inventory.cli.output import (
    console,
    jsonable,
    print_event,
    print_holds,
    print_json,
    print_order,
    worded_lines,
)
from inventory.cli.session import Session, ended, session_of
from inventory.client import EventKind, Order, OrderLine, OrderResult, Outcome

app = typer.Typer(help="Hold units for orders, sell them, give them back.", no_args_is_help=True)

OrderId = Annotated[int, typer.Argument(help="The order, at least 1.", show_default=False)]
Lines = Annotated[
    list[str],
    typer.Option(
        "--line", metavar="PRODUCT:QUANTITY", help="Units of a product; repeat it.",
        show_default=False,
    ),
]  # fmt: skip
User = Annotated[int, typer.Option(help="The buyer; 0: none.")]
Hint = Annotated[int, typer.Option(help="A product of the order, to find it faster; 0: none.")]
Attempt = Annotated[
    int, typer.Option(help="1: first, 2 and more: a retry, whose refusal is final, 0: not known.")
]

_WORDS = {
    Outcome.HELD: "held",
    Outcome.CONFIRMED: "sold",
    Outcome.RETAKEN: "sold: its time was over, and its units were still there",
    Outcome.RELEASED: "released",
    Outcome.EXPIRED: "its time was over before",
    Outcome.INSUFFICIENT_STOCK: "refused",
    Outcome.REFUND_REQUIRED: "paid too late and could not be sold any more: refund it",
}
_REFUSED = frozenset({Outcome.INSUFFICIENT_STOCK, Outcome.REFUND_REQUIRED})


@app.command()
def reserve(
    context: typer.Context,
    order_id: OrderId,
    line: Lines,
    user: User = 0,
    ttl: Annotated[int, typer.Option(help="Seconds to hold; 0: the service's choice.")] = 0,
    attempt: Attempt = 0,
) -> None:
    """Hold all lines of an order, or none; exit code 1 when there are too few units."""
    lines = _lines(line)
    session = session_of(context)
    with session.client() as client:
        result = client.reserve(order_id, lines, user_id=user, ttl_s=ttl, attempt=attempt)
    _show(session, result)


@app.command()
def sell(
    context: typer.Context, order_id: OrderId, line: Lines, user: User = 0, attempt: Attempt = 0
) -> None:
    """Sell all lines of an order at once, or none; exit code 1 when there are too few units."""
    lines = _lines(line)
    session = session_of(context)
    with session.client() as client:
        result = client.deduct_order(order_id, lines, user_id=user, attempt=attempt)
    _show(session, result)


@app.command()
def confirm(context: typer.Context, order_id: OrderId, product: Hint = 0) -> None:
    """Sell what an order holds; exit code 1 when it was too late and the money goes back."""
    session = session_of(context)
    with session.client() as client:
        result = client.confirm(order_id, product_id=product)
    _show(session, result, without=("short_lines",))


@app.command()
def release(context: typer.Context, order_id: OrderId, product: Hint = 0) -> None:
    """Give back what an order holds."""
    session = session_of(context)
    with session.client() as client:
        result = client.release(order_id, product_id=product)
    _show(session, result, without=("short_lines",))


@app.command()
def extend(
    context: typer.Context,
    order_id: OrderId,
    ttl: Annotated[int, typer.Option(help="Seconds from now.", show_default=False)],
    product: Hint = 0,
) -> None:
    """Hold an order's units for longer."""
    session = session_of(context)
    with session.client() as client:
        _show_order(session, client.extend_hold(order_id, ttl, product_id=product))


@app.command()
def show(context: typer.Context, order_id: OrderId, product: Hint = 0) -> None:
    """Show an order as it is now."""
    session = session_of(context)
    with session.client() as client:
        _show_order(session, client.get_order(order_id, product_id=product))


@app.command()
def holds(
    context: typer.Context,
    product: Annotated[int, typer.Option(help="Of this product; 0: of all.")] = 0,
    user: Annotated[int, typer.Option(help="Of this buyer; 0: of all.")] = 0,
    after: Annotated[int, typer.Option(help="Holds after this one.")] = 0,
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="At most so many.")] = 100,
) -> None:
    """List units that orders hold, as far as the ledger knows, oldest first."""
    session = session_of(context)
    with session.client() as client:
        page = client.list_holds(product_id=product, user_id=user, after_id=after, page_size=limit)
    if session.as_json:
        print_json(page)
        return
    print_holds(page.holds)
    if page.next_after_id:
        console().print(f"there are more: --after {page.next_after_id}")


@app.command("force-release")
def force_release(
    context: typer.Context,
    order_id: OrderId,
    reason: Annotated[str, typer.Option(help="Why, for the journal.", show_default=False)],
    actor: Annotated[str, typer.Option(help="Who, for the journal.", show_default=False)],
) -> None:
    """Release an order whatever its time."""
    session = session_of(context)
    with session.client() as client:
        _show_order(session, client.force_release(order_id, reason=reason, actor=actor))


@app.command()
def watch(
    context: typer.Context,
    cursor: Annotated[
        str,
        typer.Option(help="Events after this one; 0: all that are kept. [default: from now on]"),
    ] = "",
    kind: Annotated[
        list[EventKind] | None, typer.Option(help="Only these; repeat it. [default: all]")
    ] = None,
    product: Annotated[
        list[int] | None, typer.Option(help="Only of these; repeat it. [default: all]")
    ] = None,
) -> None:
    """Show what happens to orders and products, until interrupted. With --json: one object a line."""
    session = session_of(context)
    with session.client() as client:
        for event in client.watch_events(
            cursor=cursor, kinds=kind or (), product_ids=product or ()
        ):
            if session.as_json:
                print_json(event)
            else:
                print_event(event)


def _lines(texts: Sequence[str]) -> list[OrderLine]:
    return [_line(text) for text in texts]


def _line(text: str) -> OrderLine:
    parts = text.split(":")
    if len(parts) != 2 or not all(part.isascii() and part.isdigit() for part in parts):
        raise typer.BadParameter(f"'{text}' is not PRODUCT:QUANTITY", param_hint="--line")
    product_id, quantity = map(int, parts)
    return OrderLine(product_id, quantity)


def _show(session: Session, result: OrderResult, *, without: Sequence[str] = ()) -> None:
    if session.as_json:
        _print_result(result, without)
    else:
        _tell(result)
    ended(Exit.REFUSED if result.outcome in _REFUSED else Exit.OK)


def _print_result(result: OrderResult, without: Sequence[str]) -> None:
    fields = jsonable(result)
    assert isinstance(fields, dict)
    for name in ("message", *without):
        del fields[name]
    print_json(fields)


def _tell(result: OrderResult) -> None:
    earlier = " (an earlier call's answer)" if result.replayed else ""
    short = f", too few units for {worded_lines(result.short_lines)}" if result.short_lines else ""
    said = f"{_WORDS[result.outcome]}{earlier}{short}"
    if result.order:
        print_order(result.order, said)
    else:
        console().print(f"order {result.order_id}: {said}")


def _show_order(session: Session, order: Order) -> None:
    if session.as_json:
        print_json(order)
    else:
        print_order(order)
