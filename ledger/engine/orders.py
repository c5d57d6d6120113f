"""Orders where MySQL is all there is; offers what sharding.ordering.Orders does."""

from collections.abc import Hashable, Sequence

import structlog

from ledger.database import Database
from ledger.engine.book import Ask, Call
from ledger.engine.bookkeeping import Bookkeeping
from ledger.engine.failures import reason_of
from ledger.errors import LedgerError, LedgerUnavailableError
from sharding.desk import Desk
from sharding.orders import Line, OrderAnswer, canonical, hold_s_max
from sharding.outcomes import Outcome, Reason
from sharding.tasks import Tasks

ORDERS_MAX = 100
"""Calls of one transaction."""
DESKS_MAX = 4_096
LANES = 4
"""Desks for calls that name no product, so that one that waits for a row keeps few others waiting."""

log = structlog.get_logger()


class LedgerOrders:
    """Orders of one process. Calls never raise for what can happen: every failure is an answer.

    Calls that wait for the same product travel in one transaction, like requests. A caller that stops
    waiting cuts nothing in two; `drain` waits for all.
    """

    def __init__(self, database: Database, *, record_ttl_s: int, grace_s: float) -> None:
        self._grace_ms = round(grace_s * 1_000)
        self._hold_s_max = hold_s_max(record_ttl_s, grace_s)
        self.bookkeeping = Bookkeeping(database, hold_s_max=self._hold_s_max)
        self._tasks = Tasks()
        self._desks: dict[Hashable, Desk[Ask, OrderAnswer]] = {}

    async def reserve(
        self,
        order_id: int,
        *,
        user_id: int,
        lines: Sequence[Line],
        ttl_s: float,
        attempt: int = 0,
    ) -> OrderAnswer:
        """Hold all lines for `ttl_s`, or none. HELD, INSUFFICIENT_STOCK, or how it ended before."""
        if self._is_too_long(ttl_s):
            return _TOO_LONG
        wanted = canonical(lines)
        ask = Ask(Call.RESERVE, order_id, user_id, wanted, self._ttl_ms(ttl_s), attempt)
        return await self._ask(wanted[0].product_id, ask)

    async def sell(
        self, order_id: int, *, user_id: int, lines: Sequence[Line], attempt: int = 0
    ) -> OrderAnswer:
        """Sell all lines at once, or none. CONFIRMED, INSUFFICIENT_STOCK, or how it ended before."""
        wanted = canonical(lines)
        ask = Ask(Call.SELL, order_id, user_id, wanted, attempt=attempt)
        return await self._ask(wanted[0].product_id, ask)

    async def confirm(self, order_id: int, *, product_id: int = 0) -> OrderAnswer:
        """Sell what the order holds: CONFIRMED; too late RETAKEN or REFUND_REQUIRED."""
        return await self._ask_of(product_id, Ask(Call.CONFIRM, order_id))

    async def release(self, order_id: int, *, product_id: int = 0) -> OrderAnswer:
        """Give back what the order holds. An order that nobody knows will hold nothing from now on."""
        return await self._ask_of(product_id, Ask(Call.RELEASE, order_id))

    async def extend(self, order_id: int, ttl_s: float, *, product_id: int = 0) -> OrderAnswer:
        """Hold the order's units until `ttl_s` from now, if that is later than before."""
        if self._is_too_long(ttl_s):
            return _TOO_LONG
        ask = Ask(Call.EXTEND, order_id, ttl_ms=self._ttl_ms(ttl_s))
        return await self._ask_of(product_id, ask)

    async def get(self, order_id: int, *, product_id: int = 0) -> OrderAnswer:
        """The order as it is, its state as an outcome."""
        return await self._ask_of(product_id, Ask(Call.LOOK, order_id))

    async def drain(self) -> None:
        """Return once everything that was begun has ended."""
        await self._tasks.drain()

    def _ttl_ms(self, ttl_s: float) -> int:
        return round(ttl_s * 1_000) + self._grace_ms

    def _is_too_long(self, ttl_s: float) -> bool:
        return self._ttl_ms(ttl_s) > self._hold_s_max * 1_000

    async def _ask_of(self, product_id: int, ask: Ask) -> OrderAnswer:
        """Of an order that exists, wherever that is; `product_id` 0: not known."""
        return await self._ask(product_id or ("order", ask.order_id % LANES), ask)

    async def _ask(self, desk: Hashable, ask: Ask) -> OrderAnswer:
        return await self._desk(desk).ask(ask)

    def _desk(self, key: Hashable) -> Desk[Ask, OrderAnswer]:
        desk = self._desks.get(key)
        if desk is None:
            if len(self._desks) >= DESKS_MAX:
                for idle in [each for each, found in self._desks.items() if found.is_idle]:
                    del self._desks[idle]
            desk = self._desks[key] = Desk(self._answer, self._tasks, size_max=ORDERS_MAX)
        return desk

    async def _answer(self, asks: Sequence[Ask]) -> list[OrderAnswer]:
        try:
            return await self.bookkeeping.answer(asks)
        except LedgerUnavailableError as error:
            return [_unavailable(error)] * len(asks)
        except LedgerError as error:
            if len(asks) == 1:
                log.error(
                    "an order contradicts its products",
                    order_id=asks[0].order_id,
                    detail=str(error),
                )
                return [_unavailable(error)]
        # One that makes no sense must not keep the others of its lot from their answers.
        return [(await self._answer([ask]))[0] for ask in asks]


_TOO_LONG = OrderAnswer(Outcome.INVALID, reason=Reason.TTL_TOO_LONG)


def _unavailable(error: LedgerError) -> OrderAnswer:
    return OrderAnswer(Outcome.UNAVAILABLE, reason=reason_of(error))
