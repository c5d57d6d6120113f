"""Carries out calls on orders: reads what they concern, decides, writes, in one transaction."""

from collections.abc import Sequence

from ledger import literals
from ledger.database import Database, Transaction
from ledger.engine.book import Ask, Book, products_of
from ledger.engine.entries import enter
from ledger.engine.order_rows import (
    KnownOrders,
    bar_orders,
    change_orders,
    make_orders,
    read_orders,
)
from ledger.engine.records import Record, bury, find_records
from ledger.engine.rows import move
from ledger.engine.shelves import Shelf, read_users, write_users
from ledger.errors import DuplicateEffectsError
from ledger.journal import STATEMENT_BYTES_MAX, UNION_ROWS_MAX
from ledger.products import product_rows
from ledger.service_events import publish
from ledger.statements import UNION, statement, with_rows
from ledger.values import in_pieces
from sharding.orders import Order, OrderAnswer

LOOKS_MAX = 5
"""How often orders are looked up again that somebody else made meanwhile."""


class Bookkeeping:
    """Transactions on orders. Safe in any number of processes at once.

    Rows are locked in one order everywhere: orders by id, products by id, the feed's number last.
    """

    def __init__(self, database: Database, *, hold_s_max: float) -> None:
        self._database = database
        self._hold_ms_max = round(hold_s_max * 1_000)

    async def answer(self, asks: Sequence[Ask]) -> list[OrderAnswer]:
        """One answer a call, each after those before it; all of it happens, or nothing. LedgerError."""

        async def run(transaction: Transaction) -> list[OrderAnswer]:
            book = await self._open(transaction, asks)
            answers = [book.answer(ask) for ask in asks]
            await _write(transaction, book)
            self._database.failpoints.hit("order.before_commit")
            return answers

        for look in range(1, LOOKS_MAX + 1):
            try:
                answers = await self._database.transaction(run)
            except DuplicateEffectsError:
                if look == LOOKS_MAX:
                    raise
            else:
                self._database.failpoints.hit("order.after_commit")
                return answers
        raise AssertionError("the loop above returns or raises")

    async def _open(self, transaction: Transaction, asks: Sequence[Ask]) -> Book:
        known = await read_orders(transaction, {ask.order_id for ask in asks}, locks=True)
        now_ms = await _now_ms(transaction)
        product_ids = products_of(asks, known.orders, now_ms)
        rows = await product_rows(transaction, product_ids, locks=True)
        shelves = {id_: Shelf(row, row.available_stock) for id_, row in rows.items() if row.epoch}
        new = [ask for ask in asks if ask.order_id not in known.orders and ask.call.takes]
        await _require_unknown(transaction, new, known)
        user_ids = {ask.user_id for ask in asks} | {each.user_id for each in known.orders.values()}
        for shelf in shelves.values():
            await read_users(transaction, shelf, user_ids)
        return Book(
            now_ms=now_ms,
            hold_ms_max=self._hold_ms_max,
            orders=known.orders,
            barred=known.barred,
            shelves=shelves,
            refused=await _refused(transaction, new),
        )


async def _now_ms(transaction: Transaction) -> int:
    """After the orders' rows are in our hands, by the clock that all servers share."""
    row = await transaction.row(statement("clock"))
    assert row is not None
    return int(row[0])


async def _require_unknown(
    transaction: Transaction, new: Sequence[Ask], known: KnownOrders
) -> None:
    """Whoever made one of these orders while we waited for the products' rows has committed by now."""
    ids = {ask.order_id for ask in new if ask.order_id not in known}
    found = await read_orders(transaction, ids, locks=False)
    if found.orders or found.barred:
        raise DuplicateEffectsError("an order was made meanwhile")


async def _refused(transaction: Transaction, new: Sequence[Ask]) -> dict[tuple[int, str], Record]:
    """What is remembered of the first lines of orders that nobody knows."""
    ids: dict[int, list[str]] = {}
    for ask in new:
        ids.setdefault(ask.lines[0].product_id, []).append(ask.line_id)
    return {
        (product_id, line_id): record
        for product_id, line_ids in ids.items()
        for line_id, record in (await find_records(transaction, product_id, line_ids)).items()
    }


async def _write(transaction: Transaction, book: Book) -> None:
    await make_orders(transaction, _some(book, book.made))
    await change_orders(transaction, _some(book, book.changed))
    await bar_orders(transaction, book.newly_barred, book.now_ms)
    moved = [shelf for _, shelf in sorted(book.shelves.items()) if shelf.has_changed]
    await move(transaction, moved)
    await enter(transaction, book.entries)
    await _change_holds(transaction, book)
    await bury(transaction, book.buried)
    await write_users(transaction, moved)
    notices = [notice for shelf in moved for notice in shelf.notices()]
    await publish(transaction, [*book.notices, *notices])


async def _change_holds(transaction: Transaction, book: Book) -> None:
    ended = [literals.hold_end_row(key) for key in book.freed]
    for start in range(0, len(ended), UNION_ROWS_MAX):
        piece = ended[start : start + UNION_ROWS_MAX]
        await transaction.bulk(with_rows("hold_end", piece, UNION))
    held = (literals.hold_row(*each) for each in book.held.items())
    for rows in in_pieces(held, STATEMENT_BYTES_MAX):
        await transaction.bulk(with_rows("hold_insert", rows))


def _some(book: Book, order_ids: set[int]) -> list[Order]:
    return [book.orders[order_id] for order_id in sorted(order_ids)]
