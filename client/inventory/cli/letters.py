"""`inventoryctl deadletter …` and `inventoryctl timeline`."""

from typing import Annotated

import typer

from inventory.cli.output import console, print_json, print_letters, print_timeline
from inventory.cli.session import Session, session_of

app = typer.Typer(
    help="Deal with events that could not be applied to the ledger.", no_args_is_help=True
)

LetterId = Annotated[int, typer.Argument(help="The dead letter's number.", show_default=False)]
Reason = Annotated[str, typer.Option(help="Why, for the journal.", show_default=False)]
Actor = Annotated[str, typer.Option(help="Who, for the journal.", show_default=False)]
Limit = Annotated[int, typer.Option(min=1, max=1_000, help="At most so many.")]


@app.command("list")
def list_(
    context: typer.Context,
    everything: Annotated[
        bool, typer.Option("--all", help="Also those that somebody has dealt with.")
    ] = False,
    after: Annotated[int, typer.Option(help="Letters after this one.")] = 0,
    limit: Limit = 100,
) -> None:
    """List events that could not be applied, oldest first."""
    session = session_of(context)
    with session.client() as client:
        page = client.list_dead_letters(after_id=after, page_size=limit, include_closed=everything)
    if session.as_json:
        print_json(page)
        return
    print_letters(page.letters)
    if page.next_after_id:
        console().print(f"there are more: --after {page.next_after_id}")


@app.command()
def retry(context: typer.Context, letter_id: LetterId, actor: Actor, reason: Reason) -> None:
    """Apply a dead letter again, once what stood against it is out of the way."""
    session = session_of(context)
    with session.client() as client:
        client.retry_dead_letter(letter_id, reason=reason, actor=actor)
    _show(session, letter_id, "retried")


@app.command()
def discard(context: typer.Context, letter_id: LetterId, actor: Actor, reason: Reason) -> None:
    """Give a dead letter up."""
    session = session_of(context)
    with session.client() as client:
        client.discard_dead_letter(letter_id, reason=reason, actor=actor)
    _show(session, letter_id, "discarded")


def timeline(
    context: typer.Context,
    product: Annotated[int, typer.Option(help="Of this product; 0: of all of an order.")] = 0,
    order: Annotated[int, typer.Option(help="Of this order; 0: of all.")] = 0,
    request: Annotated[
        str, typer.Option(help="Of this request of the product.", show_default=False)
    ] = "",
    before: Annotated[int, typer.Option(help="Entries before this one; 0: the newest.")] = 0,
    limit: Limit = 100,
) -> None:
    """Show what the ledger's journal has of a product, an order or a request, newest first."""
    if not product and (request or not order):
        raise typer.BadParameter(
            "name an order or a product, and the product where you name a request",
            param_hint="--product",
        )
    session = session_of(context)
    with session.client() as client:
        page = client.get_timeline(
            product_id=product,
            request_id=request,
            order_id=order,
            before_id=before,
            page_size=limit,
        )
    if session.as_json:
        print_json(page)
        return
    print_timeline(page.entries)
    if page.next_before_id:
        console().print(f"there are more: --before {page.next_before_id}")


def _show(session: Session, letter_id: int, state: str) -> None:
    if session.as_json:
        print_json({"id": letter_id, "state": state})
    else:
        console().print(f"dead letter {letter_id}: {state}")
