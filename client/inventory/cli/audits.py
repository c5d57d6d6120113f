"""`inventoryctl audit` and `inventoryctl repair`."""

from collections.abc import Sequence
from typing import Annotated

import typer

from inventory.cli.exits import Exit
from inventory.cli.output import console, print_drifts, print_json
from inventory.cli.products import Actor, ProductId, Why
from inventory.cli.session import ended, session_of
from inventory.client import Audit, Repair, RepairSide, UnitBalance

Side = Annotated[
    RepairSide,
    typer.Option(
        help="live: the shard becomes what the ledger says; ledger: the other way round; "
        "unspecified: the service chooses for each shard."
    ),
]


def audit(context: typer.Context, product_id: ProductId) -> None:
    """Compare a product's shards with the ledger while it sells; exit code 1 when they differ."""
    session = session_of(context)
    with session.client() as client:
        found = client.audit(product_id)
    if session.as_json:
        print_json(found)
    else:
        _tell(product_id, found)
    ended(Exit.OK if found.balanced else Exit.REFUSED)


def repair(
    context: typer.Context,
    product_id: ProductId,
    reason: Why,
    actor: Actor,
    apply: Annotated[
        bool, typer.Option("--apply", help="Enter the compensation; without it: only show it.")
    ] = False,
    side: Side = RepairSide.UNSPECIFIED,
) -> None:
    """Compensate what an audit finds, once; without --apply only say what would be entered."""
    session = session_of(context)
    with session.client() as client:
        done = client.repair(product_id, reason=reason, actor=actor, apply=apply, side=side)
    if session.as_json:
        print_json(done)
        return
    print_drifts(done.drifts)
    console().print(f"product {product_id}: {_outcome(done, apply=apply)}")


def _tell(product_id: int, found: Audit) -> None:
    out = console()
    print_drifts(found.drifts)
    out.print(f"ledger: {balance(found.ledger)}")
    out.print(f"live:   {balance(found.live)}")
    what = "balanced" if found.balanced else "NOT BALANCED"
    out.print(f"product {product_id}: {what}, {found.shards} shards compared")


def balance(units: UnitBalance) -> str:
    """The equation of a product with every term."""
    sign = "IS NOT" if units.difference else "="
    off = f" (off by {units.difference})" if units.difference else ""
    return (
        f"loaded {units.loaded} + restocked {units.restocked} - removed {units.removed} {sign}"
        f" available {units.available} + held {units.held} + in transit {units.in_transit}"
        f" + buffer {units.buffer} + sold {units.sold}{off}"
    )


def _outcome(done: Repair, *, apply: bool) -> str:
    if not done.drifts:
        return "nothing to repair"
    shards = _counted(done.drifts)
    if done.applied:
        return f"{shards} repaired; `inventoryctl audit` says when the ledger knows"
    return f"{shards} repaired by another call" if apply else f"--apply would repair {shards}"


def _counted(drifts: Sequence[object]) -> str:
    return "1 shard" if len(drifts) == 1 else f"{len(drifts)} shards"
