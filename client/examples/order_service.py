"""A small order service: it reserves for its buyers, sells what they pay, and cancels what they do not.

    python client/examples/order_service.py --target 127.0.0.1:17020 --product 1001 --folder /tmp/shop

Of three buyers one pays in time, one forgets to, and one pays when the time is over. What it knows of
its orders is in `orders.json` of the folder, how far it has dealt with events in `cursor`: start it
again, and it goes on from there.
"""

import argparse
import asyncio
import json
import os
import secrets
from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from itertools import count
from pathlib import Path
from typing import TypeVar

from inventory.client import (
    AsyncInventoryClient,
    CursorOutOfRange,
    Event,
    EventKind,
    OrderEnded,
    OrderLine,
    OrderReleased,
    OrderResult,
    OrderState,
    Outcome,
    OutcomeUnknown,
    Unavailable,
    UnknownOrder,
)

T = TypeVar("T")

EVERYTHING_KEPT = "0"
OUTAGE_S_MAX = 3_600.0
"""How long the inventory may be away before the watch on its events gives up."""
PAUSE_S = 0.5
TRIES_MAX = 120


class Status(StrEnum):
    """Where an order is, as its buyer sees it."""

    NEW = "new"
    SOLD_OUT = "sold out"
    TO_BE_PAID = "to be paid"
    CANCELLED = "cancelled"
    SHIPPED = "shipped"
    REFUNDED = "refunded"


_AFTER_RESERVING = {
    Outcome.HELD: Status.TO_BE_PAID,
    Outcome.INSUFFICIENT_STOCK: Status.SOLD_OUT,
    Outcome.CONFIRMED: Status.SHIPPED,
    Outcome.RETAKEN: Status.SHIPPED,
}
_AFTER_PAYING = {
    Outcome.CONFIRMED: Status.SHIPPED,
    Outcome.RETAKEN: Status.SHIPPED,
    Outcome.REFUND_REQUIRED: Status.REFUNDED,
}


class Books:
    """The orders and the cursor, each in a file that is replaced as a whole."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._orders_file = folder / "orders.json"
        self._cursor_file = folder / "cursor"
        self._statuses: dict[int, Status] = {}
        if self._orders_file.exists():
            kept = json.loads(self._orders_file.read_text())
            self._statuses = {int(order_id): Status(word) for order_id, word in kept.items()}

    @property
    def cursor(self) -> str:
        """After which event to go on; at the very first start everything is of interest."""
        if not self._cursor_file.exists():
            return EVERYTHING_KEPT
        return self._cursor_file.read_text()

    @property
    def statuses(self) -> dict[int, Status]:
        return dict(self._statuses)

    def write(self, order_id: int, status: Status) -> None:
        self._statuses[order_id] = status
        _replace(self._orders_file, json.dumps(self._statuses))

    def turn_to(self, cursor: str) -> None:
        _replace(self._cursor_file, cursor)


class OrderService:
    """Takes orders and payments, and follows the inventory's events."""

    def __init__(self, inventory: AsyncInventoryClient, books: Books) -> None:
        self._inventory = inventory
        self._books = books

    async def order(self, lines: Sequence[OrderLine], *, user_id: int, ttl_s: int) -> int:
        """A new order. Its id is written down before the call, so that a crash loses no hold."""
        order_id = 1 + secrets.randbits(62)
        self._books.write(order_id, Status.NEW)
        # The first call says that it is: it is answered though a node is away that repeats wait for.
        attempts = count(1)
        try:
            result = await _until_known(
                lambda: self._inventory.reserve(
                    order_id, lines, user_id=user_id, ttl_s=ttl_s, attempt=next(attempts)
                )
            )
        except OrderEnded:  # it was held, and is over before its answer came
            status = Status.CANCELLED
        else:
            status = _AFTER_RESERVING[result.outcome]
        self._books.write(order_id, status)
        return order_id

    async def pay(self, order_id: int) -> Status:
        """The buyer has paid, in time or not: the inventory says what that comes to."""
        try:
            result = await _until_known(lambda: self._inventory.confirm(order_id))
        except OrderReleased:
            status = Status.REFUNDED
        else:
            status = _AFTER_PAYING[result.outcome]
        self._books.write(order_id, status)
        return status

    async def cancel(self, order_id: int) -> OrderResult:
        """The buyer does not want it any more."""
        result = await _until_known(lambda: self._inventory.release(order_id))
        self._books.write(order_id, Status.CANCELLED)
        return result

    async def tidy(self) -> None:
        """Orders whose reservation was cut off: whatever became of it, it is given back. An order that
        the inventory has never heard of is barred by that: a late copy of its call holds nothing."""
        for order_id, status in self._books.statuses.items():
            if status is Status.NEW:
                await self.cancel(order_id)

    async def follow(self) -> None:
        """Deals with what happens to orders, for ever. Whoever was away for longer than events are kept
        looks at the orders themselves, and goes on with all that is kept."""
        while True:
            try:
                await self._follow()
            except CursorOutOfRange:
                await self._look_at_the_unpaid()
                self._books.turn_to(EVERYTHING_KEPT)

    async def _follow(self) -> None:
        """The cursor is turned when an event is dealt with: after a crash it may come again, and
        `deal_with` does not mind."""
        events = self._inventory.watch_events(
            cursor=self._books.cursor,
            kinds=(EventKind.ORDER_EXPIRED, EventKind.REFUND_REQUIRED),
            cursors=True,
            patience_s=OUTAGE_S_MAX,
        )
        async for event in events:
            self.deal_with(event)
            self._books.turn_to(event.cursor)

    async def _look_at_the_unpaid(self) -> None:
        for order_id, status in self._books.statuses.items():
            if status is Status.TO_BE_PAID and await self._is_over(order_id):
                self._books.write(order_id, Status.CANCELLED)

    async def _is_over(self, order_id: int) -> bool:
        try:
            order = await _until_known(lambda: self._inventory.get_order(order_id))
        except UnknownOrder:  # forgotten, long after its end
            return True
        return order.state in (OrderState.EXPIRED, OrderState.RELEASED)

    def deal_with(self, event: Event) -> None:
        """One event, perhaps not for the first time, perhaps of an order of somebody else."""
        known = self._books.statuses.get(event.order_id)
        if event.kind is EventKind.ORDER_EXPIRED and known in (Status.NEW, Status.TO_BE_PAID):
            self._books.write(event.order_id, Status.CANCELLED)
        elif event.kind is EventKind.REFUND_REQUIRED and known is not None:
            self._books.write(event.order_id, Status.REFUNDED)


async def _until_known(call: Callable[[], Awaitable[T]]) -> T:
    """The answer to a call whose earlier tries may or may not have taken effect: the same again."""
    for _ in range(TRIES_MAX - 1):
        try:
            return await call()
        except (OutcomeUnknown, Unavailable):
            await asyncio.sleep(PAUSE_S)
    return await call()


def _replace(path: Path, text: str) -> None:
    new = path.with_suffix(".new")
    new.write_text(text)
    os.replace(new, path)  # noqa: PTH105 - says that it is one step


async def _play(service: OrderService, books: Books, product_id: int, ttl_s: int) -> None:
    """One buyer pays in time, one forgets to, one pays when the time is over."""
    lines = [OrderLine(product_id, 1)]
    in_time, forgotten, late = [
        await service.order(lines, user_id=user_id, ttl_s=ttl_s) for user_id in (1, 2, 3)
    ]
    print(f"paid in time: {await service.pay(in_time)}")
    await _until_cancelled(books, (forgotten, late), patience_s=ttl_s + 60.0)
    print(f"never paid: {books.statuses[forgotten]}")
    print(f"paid too late: {await service.pay(late)}")


async def _until_cancelled(books: Books, order_ids: Sequence[int], *, patience_s: float) -> None:
    async with asyncio.timeout(patience_s):
        while any(  # noqa: ASYNC110 - the books are files and call nobody
            books.statuses[each] is Status.TO_BE_PAID for each in order_ids
        ):
            await asyncio.sleep(PAUSE_S)


async def _run(arguments: argparse.Namespace) -> None:
    books = Books(arguments.folder)
    async with AsyncInventoryClient(arguments.target) as inventory:
        await inventory.wait_ready(5)
        service = OrderService(inventory, books)
        async with asyncio.TaskGroup() as tasks:
            following = tasks.create_task(service.follow(), name="follow")
            await service.tidy()
            await _play(service, books, arguments.product, arguments.ttl)
            following.cancel()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--target", default="127.0.0.1:50051", help="the inventory, HOST:PORT")
    parser.add_argument("--product", type=int, required=True, help="a product that is on sale")
    parser.add_argument("--ttl", type=int, default=3, help="seconds that buyers have to pay")
    parser.add_argument("--folder", type=Path, required=True, help="where its files are")
    asyncio.run(_run(parser.parse_args()))


if __name__ == "__main__":
    main()
