"""What became of a request whose answer was lost: the journal knows it, or the live stock decides."""

import asyncio
from typing import Protocol

from ledger.errors import LedgerUnavailableError
from ledger.products import Adjustment, JournalKind, Products
from ledger.servers import PerServer
from server.errors import refused
from server.gate import Gates
from sharding.outcomes import Answer, Outcome, Resolution, Resolved

JOURNAL_LOOK_S = 0.5
"""How long the ledger may take; without it the live stock decides just as well."""


class ResolvingStock(Protocol):
    """What of a stock decides requests."""

    async def resolve(self, product_id: int, request_id: str) -> Resolved | Answer: ...


class Resolver:
    """Decides requests."""

    def __init__(self, stock: ResolvingStock, products: PerServer[Products], gates: Gates) -> None:
        self._stock = stock
        self._products = products
        self._gates = gates

    async def resolve(self, product_id: int, request_id: str) -> Resolved:
        """The end of a request, now and for ever; RefusedError if it cannot be said.

        The journal goes first: it remembers longer than the live stock does.
        """
        known = await self._in_journal(product_id, request_id)
        if known is not None and known.kind is JournalKind.DEDUCT:
            return Resolved(Resolution.DEDUCTED, known.quantity)
        if known is not None:
            raise refused(Answer(Outcome.REQUEST_MISMATCH))
        self._gates.of(product_id).require_live()
        resolved = await self._stock.resolve(product_id, request_id)
        if isinstance(resolved, Answer):
            raise refused(resolved)
        return resolved

    async def _in_journal(self, product_id: int, request_id: str) -> Adjustment | None:
        try:
            async with asyncio.timeout(JOURNAL_LOOK_S):
                return await self._products.of(product_id).find_request(product_id, request_id)
        except (LedgerUnavailableError, TimeoutError):
            return None
