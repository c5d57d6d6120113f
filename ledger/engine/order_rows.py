"""Orders as the ledger's table has them."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from ledger.database import Database, Row, Transaction
from ledger.errors import BatchRefusedError
from ledger.statements import placeholders, statement, with_rows
from ledger.values import instant, text
from sharding.orders import Held, Order, OrderState, held_of

BARRED = "barred"
PRUNED_AT_ONCE = 2_000


@dataclass(slots=True)
class KnownOrders:
    """Orders by id, and those that were released before they came."""

    orders: dict[int, Order] = field(default_factory=dict)
    barred: set[int] = field(default_factory=set)

    def __contains__(self, order_id: object) -> bool:
        return order_id in self.orders or order_id in self.barred


async def read_orders(
    transaction: Transaction, order_ids: Collection[int], *, locks: bool
) -> KnownOrders:
    """What the ledger has of some orders; `locks`: each row is held until the transaction ends.

    BatchRefusedError where a row makes no sense.
    """
    known = KnownOrders()
    if not order_ids:
        return known
    sql = placeholders("order_lock" if locks else "order_some", len(order_ids))
    for row in await transaction.rows(sql, sorted(order_ids)):
        order_id, _, state, *_ = row
        if state == BARRED:
            known.barred.add(order_id)
        else:
            known.orders[order_id] = _order(row)
    return known


async def make_orders(transaction: Transaction, orders: Iterable[Order]) -> None:
    """Write new orders. DuplicateEffectsError where somebody was faster."""
    await _write(transaction, "order_insert", map(_row, orders))


async def change_orders(transaction: Transaction, orders: Iterable[Order]) -> None:
    """Write the states and deadlines of orders whose rows are in our hands."""
    await _write(transaction, "order_change", map(_row, orders))


async def bar_orders(transaction: Transaction, order_ids: Iterable[int], at_ms: int) -> None:
    """Have orders hold nothing that nobody has heard of. DuplicateEffectsError as above."""
    moment = instant(at_ms)
    rows = [f"({each},0,'{BARRED}','',{moment},{moment})".encode() for each in sorted(order_ids)]
    await _write(transaction, "order_insert", rows)


async def due_orders(database: Database, *, limit: int) -> tuple[list[int], float]:
    """Held orders whose time is over, the oldest first, and for how many seconds the first has been."""

    async def run(transaction: Transaction) -> list[Row]:
        return await transaction.rows(statement("order_due"), (limit,))

    rows = await database.transaction(run)
    lag_ms = int(rows[0][1]) if rows else 0
    return [int(order_id) for order_id, _ in rows], lag_ms / 1_000


async def park_order(database: Database, order_id: int, *, pause_s: int) -> None:
    """Look at an order only later again."""

    async def run(transaction: Transaction) -> None:
        await transaction.execute(statement("order_park"), (pause_s, order_id))

    await database.transaction(run)


async def prune_barred(database: Database, *, older_than_s: int) -> int:
    """Forget orders that were released before they came, a bounded number; returns how many."""

    async def run(transaction: Transaction) -> int:
        values = (older_than_s, PRUNED_AT_ONCE)
        return await transaction.execute(statement("order_prune_barred"), values)

    return await database.transaction(run)


async def _write(transaction: Transaction, name: str, rows: Iterable[bytes]) -> None:
    written = list(rows)
    if written:
        await transaction.bulk(with_rows(name, written))


def _row(order: Order) -> bytes:
    """One row in the columns of order_insert.sql."""
    lines = ",".join(map(str, order.held))
    return (
        f"({order.order_id},{order.user_id},'{order.state.name.lower()}',{text(lines)},"
        f"{instant(order.deadline_ms)},{instant(order.created_ms)})"
    ).encode()


def _order(row: Row) -> Order:
    order_id, user_id, state, lines, deadline_ms, created_ms = row
    return Order(
        order_id,
        user_id,
        OrderState[state.upper()],
        int(deadline_ms),
        int(created_ms),
        is_open=False,
        held=_held(order_id, lines),
    )


def _held(order_id: int, lines: str) -> tuple[Held, ...]:
    try:
        return held_of(lines)
    except ValueError as error:
        raise BatchRefusedError("unreadable", f"order {order_id}: {error}") from error
