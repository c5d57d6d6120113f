"""What `inventoryctl` prints: tables for people, one JSON object for scripts."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime
from enum import Enum

from rich import box
from rich.console import Console
from rich.table import Table

from inventory.client import (
    DeadLetter,
    Deduction,
    Event,
    EventKind,
    Hold,
    InventoryError,
    Order,
    OrderLine,
    OrderState,
    Outcome,
    Product,
    ProductStatus,
    RepairSide,
    Resolution,
    ShardDrift,
    Stock,
    TimelineEntry,
)

PIPE_WIDTH = 160
"""Columns where no terminal says how many it has; enough for every table."""

_PREFIXES: Mapping[type[Enum], str] = {
    EventKind: "EVENT_KIND_",
    OrderState: "ORDER_STATE_",
    Outcome: "OUTCOME_",
    ProductStatus: "PRODUCT_STATUS_",
    RepairSide: "REPAIR_SIDE_",
    Resolution: "RESOLUTION_",
}
"""How inventory.v1 begins the names of these values."""


def console(*, stderr: bool = False) -> Console:
    """A console for plain text: what is in a name is never taken for markup."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else PIPE_WIDTH
    return Console(stderr=stderr, width=width, markup=False, highlight=False)


def print_json(value: object) -> None:
    """Prints one object on one line, with the field names of the messages."""
    print(json.dumps(jsonable(value), ensure_ascii=False), flush=True)


def jsonable(value: object) -> object:
    """Records as objects, their enum values by the names they have in inventory.v1."""
    if is_dataclass(value) and not isinstance(value, type):
        return jsonable(asdict(value))
    if isinstance(value, Enum):
        prefix = _PREFIXES.get(type(value), "")
        return f"{prefix}{value.name}" if prefix else value.value
    if isinstance(value, Mapping):
        return {key: jsonable(each) for key, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [jsonable(each) for each in value]
    return value


def deduction_json(deduction: Deduction) -> object:
    """A DeductResponse and the request_id that it answers."""
    fields = asdict(deduction)
    del fields["message"]
    return fields


def error_json(code: str, reason: str, message: str, **named: object) -> object:
    """`named`: what the call was about; what is None or empty is left out."""
    given = {name: value for name, value in named.items() if value}
    return {"error": {"code": code, "reason": reason, "message": message, **given}}


def sentence_of(error: InventoryError) -> str:
    """An error in one line."""
    return " ".join(str(error).split())


def print_stock(stock: Stock) -> None:
    out = console()
    if stock.shards:
        out.print(shard_table(stock))
    out.print(equation(stock))
    where = f"product {stock.product_id}: status {stock.status}, layout {stock.layout_version}"
    out.print(where + _remarks(stock))


def equation(stock: Stock) -> str:
    """The balance of a product in one line, every term named. Shards that do not answer may have given
    units to the others, or got some: without them it need not add up."""
    terms = (
        f"available {stock.available} + held {stock.held}"
        f" + in transit {stock.in_transit} + buffer {stock.buffer} + sold {stock.sold}"
    )
    if stock.unread_partitions:
        return f"counted so far: {terms}"
    sign = "=" if stock.total == stock.accounted else "IS NOT"
    return f"total {stock.total} {sign} {terms}"


def shard_table(stock: Stock) -> Table:
    table = _table(
        f"product {stock.product_id}",
        "shard",
        "partition",
        "available",
        "held",
        "in transit",
        "sold",
    )
    for shard in stock.shards:
        counts = (shard.available, shard.held, shard.in_transit, shard.sold)
        table.add_row(*map(str, (shard.shard, shard.partition, *counts)))
    return table


def print_products(products: Sequence[Product]) -> None:
    table = _table(
        None,
        "product",
        "name",
        "status",
        "total",
        "available",
        "held",
        "buffer",
        "sold",
        "shards",
        "pinned",
        "epoch",
    )
    table.columns[1].justify = "left"
    for product in products:
        table.add_row(
            str(product.product_id),
            product.name,
            product.status.value,
            str(product.total_stock),
            str(product.available_stock),
            str(product.held_stock),
            str(product.buffer_stock),
            str(product.sold_count),
            str(product.shards),
            str(product.pinned_shards or ""),
            str(product.epoch),
        )
    console().print(table)
    for product in products:
        if product.frozen:
            console().print(f"product {product.product_id} is FROZEN: {product.frozen_reason}")


def print_drifts(drifts: Sequence[ShardDrift]) -> None:
    """What differs, live less ledger; nothing where nothing does."""
    if not drifts:
        return
    table = _table(
        None,
        "partition",
        "available",
        "held",
        "sold",
        "loaded",
        "first event",
        "noticed",
        "repair",
    )
    for drift in drifts:
        counts = (drift.available, drift.held, drift.sold, drift.loaded)
        table.add_row(
            str(drift.partition),
            *(f"{units:+d}" if units else "" for units in counts),
            drift.first_event_id,
            _time(drift.noticed_ms),
            drift.side.value,
        )
    console().print(table)


def worded_lines(lines: Sequence[OrderLine]) -> str:
    """`2 of product 1001, 1 of product 1002`"""
    return ", ".join(f"{line.quantity} of product {line.product_id}" for line in lines)


def print_order(order: Order, said: str = "") -> None:
    """`said`: what came of a call, in place of the state."""
    retaken = ", taken again after its time was over" if order.retaken else ""
    buyer = f", user {order.user_id}" if order.user_id else ""
    state = said or order.state.value.replace("_", " ") + retaken
    out = console()
    out.print(f"order {order.order_id}{buyer}: {state}, {worded_lines(order.lines)}")
    if order.state is OrderState.HELD:
        out.print(f"held until {_time(order.expires_ms)}")


def print_holds(holds: Sequence[Hold]) -> None:
    table = _table(None, "hold", "order", "product", "user", "units", "partition", "since", "age s")
    for hold in holds:
        table.add_row(
            str(hold.id),
            str(hold.order_id),
            str(hold.product_id),
            str(hold.user_id or ""),
            str(hold.quantity),
            str(hold.partition),
            _time(hold.created_ms),
            f"{hold.age_ms / 1_000:.0f}",
        )
    console().print(table)


def print_letters(letters: Sequence[DeadLetter]) -> None:
    table = _table(None, "letter", "state", "since", "place", "product", "request", "reason")
    _left(table, "request", "reason")
    for letter in letters:
        table.add_row(
            str(letter.id),
            letter.state,
            _time(letter.created_ms),
            f"p{letter.partition:02d} {letter.event_id}",
            str(letter.product_id or ""),
            letter.request_id,
            "; ".join(filter(None, (letter.reason, letter.remark))),
        )
    console().print(table)


def print_timeline(entries: Sequence[TimelineEntry]) -> None:
    table = _table(
        None, "entry", "when", "product", "what", "units", "available", "order", "user", "place",
        "request", "why",
    )  # fmt: skip
    _left(table, "what", "request", "why")
    for entry in entries:
        known = entry.available_before is not None
        table.add_row(
            str(entry.id),
            _time(entry.created_ms),
            str(entry.product_id),
            entry.kind,
            f"{entry.quantity:+}" if entry.quantity else "0",
            f"{entry.available_before} > {entry.available_after}" if known else "",
            str(entry.order_id or ""),
            str(entry.user_id or ""),
            f"p{entry.partition:02d} {entry.event_id}" if entry.event_id else "",
            entry.request_id,
            ": ".join(filter(None, (entry.actor, entry.reason))),
        )
    console().print(table)


def print_event(event: Event) -> None:
    what = event.kind.value.replace("_", " ")
    who = f"order {event.order_id}" if event.order_id else f"{event.available} available"
    product = f"product {event.product_id}, " if event.product_id else ""
    console().print(f"{_time(event.at_ms)} {what}: {product}{who} (cursor {event.cursor})")


def _time(ms: int) -> str:
    moment = datetime.fromtimestamp(ms / 1_000, UTC)
    return moment.isoformat(sep=" ", timespec="milliseconds").removesuffix("+00:00") + "Z"


def _table(title: str | None, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _left(table: Table, *columns: str) -> None:
    for column in table.columns:
        if column.header in columns:
            column.justify = "left"


def _remarks(stock: Stock) -> str:
    frozen = ", FROZEN" if stock.frozen else ""
    return frozen + (f", inexact: {_why_inexact(stock)}" if stock.inexact else "")


def _why_inexact(stock: Stock) -> str:
    if stock.unread_partitions:
        named = ", ".join(map(str, sorted(stock.unread_partitions)))
        return f"the shards in partitions {named} do not answer and are not counted"
    if not stock.shards:
        return "these are MySQL's counts, which may lag"
    return "units moved while they were read"
