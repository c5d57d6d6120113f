"""`inventoryctl product …`."""

from dataclasses import replace
from typing import Annotated, Any
from uuid import uuid4

import typer

from inventory.cli.output import console, print_json, print_products
from inventory.cli.session import session_of
from inventory.client import InventoryClient, NewProduct, Product, UnknownProduct

app = typer.Typer(help="Put products on sale and correct their units.", no_args_is_help=True)

ProductId = Annotated[int, typer.Argument(help="The product, at least 1.", show_default=False)]
Units = Annotated[int, typer.Argument(help="Units, at least 1.", show_default=False)]
RequestId = Annotated[
    str | None,
    typer.Option(
        help="Names this change for good; repeat it to repeat safely. [default: a new id]"
    ),
]
Reason = Annotated[str, typer.Option(help="Why, for the journal.", show_default=False)]
Why = Annotated[str, typer.Option("--reason", help="Why, for the journal.", show_default=False)]
Actor = Annotated[str, typer.Option(help="Who, for the journal.", show_default=False)]

AUTOMATIC = "auto"


@app.command()
def put(
    context: typer.Context,
    product_id: ProductId,
    *,
    total: Annotated[
        int | None, typer.Option(help="All units; fixed once it was loaded. [default: 0]")
    ] = None,
    name: Annotated[str | None, typer.Option(help="What people call it. [default: none]")] = None,
    shards: Annotated[
        int | None, typer.Option(help="Shards to keep to; 0: the service chooses. [default: 0]")
    ] = None,
    buffer_percent: Annotated[
        int | None, typer.Option(help="Share that stays in the ledger, in percent. [default: 5]")
    ] = None,
    max_per_user: Annotated[
        int | None, typer.Option(help="Units a user may hold and buy; 0: no limit. [default: 0]")
    ] = None,
    low_stock: Annotated[
        int | None, typer.Option(help="Units that count as low; 0: never. [default: 0]")
    ] = None,
    buffer_release_below: Annotated[
        int | None,
        typer.Option(
            help="Units in the shards below which the buffer is released by itself; 0: never. "
            "[default: 0]"
        ),
    ] = None,
) -> None:
    """Write a product to the ledger, or change settings of one that is closed: those that are named."""
    with session_of(context).client() as client:
        wanted = _settings(client, product_id)
        named: dict[str, Any] = {
            "total_stock": total,
            "name": name,
            "shards": shards,
            "buffer_percent": buffer_percent,
            "max_per_user": max_per_user,
            "low_stock": low_stock,
            "buffer_release_below": buffer_release_below,
        }
        changed = {setting: value for setting, value in named.items() if value is not None}
        _show(context, client.put_product(replace(wanted, **changed)))


def _settings(client: InventoryClient, product_id: int) -> NewProduct:
    """A product's settings as they are, or those of one that is new."""
    try:
        known = client.get_product(product_id)
    except UnknownProduct:
        return NewProduct(product_id=product_id, total_stock=0)
    return NewProduct(
        product_id=product_id,
        name=known.name,
        # The total of a product that was loaded once is fixed; 0 says: as it is.
        total_stock=0 if known.epoch else known.total_stock,
        buffer_percent=known.buffer_percent,
        shards=known.pinned_shards,
        max_per_user=known.max_per_user,
        low_stock=known.low_stock,
        buffer_release_below=known.buffer_release_below,
    )


@app.command("list")
def list_(
    context: typer.Context,
    after: Annotated[int, typer.Option(help="Products after this id.")] = 0,
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="At most so many.")] = 100,
) -> None:
    """List the ledger's products by id."""
    session = session_of(context)
    with session.client() as client:
        page = client.list_products(after_product_id=after, page_size=limit)
    if session.as_json:
        print_json(page)
        return
    print_products(page.products)
    if page.next_after_product_id:
        console().print(f"there are more: --after {page.next_after_product_id}")


@app.command()
def show(context: typer.Context, product_id: ProductId) -> None:
    """Show a product's ledger row; `stock` shows the live counts."""
    with session_of(context).client() as client:
        _show(context, client.get_product(product_id))


@app.command()
def load(
    context: typer.Context,
    product_ids: Annotated[list[int], typer.Argument(help="1 to 100 products.")],
) -> None:
    """Put closed products on sale; on those that are, nothing changes."""
    session = session_of(context)
    with session.client() as client:
        products = client.load(product_ids)
    if session.as_json:
        print_json({"products": products})
        return
    for product in products:
        did = "loaded" if product.loaded else "was on sale already,"
        console().print(
            f"product {product.product_id} {did} {product.pool} units over "
            f"{product.shards} shards (epoch {product.epoch}, layout {product.layout_version})"
        )


@app.command()
def close(context: typer.Context, product_id: ProductId) -> None:
    """Take a product off sale and bring its units back to the ledger."""
    with session_of(context).client() as client:
        _show(context, client.close_product(product_id))


@app.command()
def shards(
    context: typer.Context,
    product_id: ProductId,
    count: Annotated[
        str,
        typer.Argument(
            help="Shards, a divisor of the partition count; auto or 0: the service chooses from the "
            "demand, from now on.",
            show_default=False,
        ),
    ],
) -> None:
    """Change a product's shard count, also while it is on sale, and keep it."""
    wanted = _shard_count(count)
    session = session_of(context)
    with session.client() as client:
        version = client.set_shards(product_id, wanted)
    if session.as_json:
        print_json({"layout_version": version})
        return
    number = f"{wanted} shards" if wanted else "as many shards as the demand asks for"
    console().print(
        f"product {product_id} has {number}, now or when it is loaded (layout {version})"
    )


@app.command()
def restock(
    context: typer.Context,
    product_id: ProductId,
    quantity: Units,
    request_id: RequestId = None,
    reason: Reason = "",
    actor: Actor = "",
) -> None:
    """Add units, once per request id."""
    change_id = request_id or uuid4().hex
    with session_of(context).client() as client:
        replayed = client.restock(
            product_id, quantity, request_id=change_id, reason=reason, actor=actor
        )
    _changed(context, f"{quantity} units added to", product_id, change_id, replayed=replayed)


@app.command()
def remove(
    context: typer.Context,
    product_id: ProductId,
    quantity: Units,
    request_id: RequestId = None,
    reason: Reason = "",
    actor: Actor = "",
) -> None:
    """Take unsold units away, once per request id; never more than are available."""
    change_id = request_id or uuid4().hex
    with session_of(context).client() as client:
        replayed = client.remove(
            product_id, quantity, request_id=change_id, reason=reason, actor=actor
        )
    _changed(context, f"{quantity} units removed from", product_id, change_id, replayed=replayed)


@app.command("release-buffer")
def release_buffer(
    context: typer.Context,
    product_id: ProductId,
    quantity: Annotated[
        int, typer.Option(min=0, help="Units; 0: all of the buffer.", show_default=False)
    ] = 0,
    request_id: RequestId = None,
    reason: Reason = "",
    actor: Annotated[str, typer.Option(help="Who, for the journal.", show_default=False)] = "",
) -> None:
    """Bring units on sale that the ledger keeps back, once per request id."""
    change_id = request_id or uuid4().hex
    session = session_of(context)
    with session.client() as client:
        released = client.release_buffer(
            product_id, quantity, request_id=change_id, reason=reason, actor=actor
        )
    if session.as_json:
        print_json(
            {
                "quantity": released.quantity,
                "replayed": released.replayed,
                "request_id": change_id,
            }
        )
        return
    earlier = " by an earlier call" if released.replayed else ""
    console().print(
        f"{released.quantity} units of product {product_id} left the buffer{earlier} "
        f"(request {change_id})"
    )


@app.command()
def freeze(context: typer.Context, product_id: ProductId, reason: Why, actor: Actor) -> None:
    """Stop the sale; what is held stays held, and can be confirmed and released."""
    with session_of(context).client() as client:
        client.freeze(product_id, reason=reason, actor=actor)
        _show(context, client.get_product(product_id))


@app.command()
def unfreeze(context: typer.Context, product_id: ProductId, reason: Why, actor: Actor) -> None:
    """Resume the sale, whoever stopped it."""
    with session_of(context).client() as client:
        client.unfreeze(product_id, reason=reason, actor=actor)
        _show(context, client.get_product(product_id))


def _shard_count(text: str) -> int:
    if text == AUTOMATIC:
        return 0
    if not text.isascii() or not text.isdigit():
        raise typer.BadParameter(
            f"'{text}' is neither a number nor {AUTOMATIC}", param_hint="COUNT"
        )
    return int(text)


def _show(context: typer.Context, product: Product) -> None:
    if session_of(context).as_json:
        print_json(product)
    else:
        print_products([product])


def _changed(
    context: typer.Context, what: str, product_id: int, request_id: str, *, replayed: bool
) -> None:
    if session_of(context).as_json:
        print_json({"replayed": replayed, "request_id": request_id})
        return
    earlier = ", by an earlier call" if replayed else ""
    console().print(f"{what} product {product_id}{earlier} (request {request_id})")
