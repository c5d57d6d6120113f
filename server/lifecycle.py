"""A product's way on sale and off it, and corrections of its units: ledger and live stock together.

Each of these is a row of steps that may break off anywhere; the same call again goes on from there,
because the ledger has written down what was decided before the live stock sees it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from grpc import StatusCode

from ledger.errors import LedgerUnavailableError
from ledger.products import Adjustment, JournalKind, ProductRow, Products
from ledger.servers import PerServer
from server.errors import RefusedError, refused, unavailable
from server.gate import Gates
from sharding.errors import CloseBusyError, LoadConflictError, StockUnavailableError
from sharding.loading import BeforeOpening
from sharding.outcomes import Answer, Outcome, Reason, State
from sharding.plans import Freeze, LoadPlan

LOOK_S = 0.05
"""Time between two looks at how far the worker has come with a load or a close."""
LOADED_AT_ONCE = 16
"""Products of one call."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A product that is on sale, and whether this call put it there."""

    plan: LoadPlan
    now: bool


@dataclass(frozen=True, slots=True)
class Correction:
    """Units to add or to take away, once per request id."""

    kind: JournalKind
    product_id: int
    request_id: str
    quantity: int
    reason: str
    actor: str


class LoadableStock(Protocol):
    """What of a stock puts products on sale, takes them off and corrects them."""

    async def load(self, plan: LoadPlan, *, before_opening: BeforeOpening) -> None: ...

    async def close(self, product_id: int, epoch: int) -> int: ...

    async def restock(
        self, product_id: int, *, request_id: str, quantity: int, reason: str, actor: str
    ) -> Answer: ...

    async def remove(
        self, product_id: int, *, request_id: str, quantity: int, reason: str, actor: str
    ) -> Answer: ...


class Lifecycle:
    """Loads, closes and corrects products; `has_buffer`: loading keeps a part of the units back."""

    def __init__(
        self,
        stock: LoadableStock,
        products: PerServer[Products],
        gates: Gates,
        *,
        partitions: int,
        default_shards: int,
        has_buffer: bool = True,
    ) -> None:
        self._stock = stock
        self._products = products
        self._gates = gates
        self._partitions = partitions
        self._default_shards = default_shards
        self._has_buffer = has_buffer

    async def load_all(self, product_ids: Sequence[int], *, wait_s: float) -> list[Loaded]:
        """Load products, some at a time; none is begun after a failure, and what is loaded stays so.

        Most of a load is waiting for its worker, who has many for the price of one.
        """
        until_s = _from_now(wait_s)
        turn = asyncio.Semaphore(LOADED_AT_ONCE)
        failures: list[Exception] = []

        async def load(product_id: int) -> Loaded | None:
            async with turn:
                if failures:
                    return None
                try:
                    return await self.load(product_id, wait_s=until_s - _from_now(0))
                except Exception as error:  # noqa: BLE001 - raised below, once the others have ended
                    failures.append(error)
                    return None

        found = await asyncio.gather(*map(load, dict.fromkeys(product_ids)))
        if failures:
            defects = [each for each in failures if not isinstance(each, RefusedError)]
            raise next(iter(defects or failures))
        loaded = {each.plan.product_id: each for each in found if each is not None}
        return [loaded[each] for each in product_ids]

    async def load(self, product_id: int, *, wait_s: float) -> Loaded:
        """Put a closed product on sale; one that is on sale stays as it is.

        RefusedError LOAD_PENDING if it broke off, or `wait_s` is too short, after it was begun.
        """
        until_s = _from_now(wait_s)
        self._gates.of(product_id).require_live()
        products = self._products.of(product_id)
        plan, wanted = await products.begin_load(
            product_id,
            partitions=self._partitions,
            default_shards=self._default_shards,
            has_buffer=self._has_buffer,
        )
        if not wanted:
            return Loaded(plan, now=False)
        try:
            async with asyncio.timeout_at(until_s):
                known_to_ledger = partial(self._known_to_ledger, plan, until_s)
                await self._stock.load(plan, before_opening=known_to_ledger)
                await products.finish_load(plan)
        except LoadConflictError as error:
            raise _conflict("LOAD_CONFLICT", "the live stock is in another epoch") from error
        except (StockUnavailableError, LedgerUnavailableError, TimeoutError) as error:
            raise _load_pending() from error
        return Loaded(plan, now=True)

    async def close(self, product_id: int, *, wait_s: float) -> ProductRow:
        """Take a product off sale.

        RefusedError CLOSE_PENDING if it broke off, or `wait_s` is too short, after it was begun.
        """
        until_s = _from_now(wait_s)
        self._gates.of(product_id).require_live()
        products = self._products.of(product_id)
        row = await products.begin_close(product_id)
        if row.status is State.CLOSED:
            return row
        try:
            async with asyncio.timeout_at(until_s):
                shards = await self._stock.close(row.product_id, row.epoch)
                await _until(partial(self._is_applied, row, shards))
            return await products.finish_close(product_id, epoch=row.epoch)
        except CloseBusyError as error:
            raise _close_busy() from error
        except (StockUnavailableError, LedgerUnavailableError, TimeoutError) as error:
            raise _close_pending() from error
        except LoadConflictError as error:
            raise _conflict("CLOSE_CONFLICT", "the live stock is in another epoch") from error

    async def correct(self, wanted: Correction) -> bool:
        """Restock or remove; returns whether it had been done before."""
        products = self._products.of(wanted.product_id)
        earlier = await products.find_adjustment(wanted.product_id, wanted.request_id)
        if earlier:
            return _repeated(earlier, wanted)
        row = await products.get(wanted.product_id)
        if row.status is State.CLOSED:
            return await self._correct_closed(wanted)
        answer = await self._correct_live(wanted)
        if answer.outcome is not Outcome.DEDUCTED:
            raise refused(answer)
        return answer.replayed

    async def _known_to_ledger(self, plan: LoadPlan, until_s: float) -> Freeze:
        """Wait until the ledger knows what the shards were given; returns the last freeze.

        A shard that is lost before is loaded once more, with all its units: none may have been sold.
        """
        products = self._products.of(plan.product_id)

        async def is_known() -> bool:
            known = await products.loaded_shards(plan.product_id, epoch=plan.epoch)
            return known >= len(plan.amounts)

        try:
            async with asyncio.timeout_at(until_s):  # the load goes on when its caller has left
                await _until(is_known)
                return (await products.get(plan.product_id)).freeze
        except (TimeoutError, LedgerUnavailableError) as error:
            raise StockUnavailableError(
                Reason.NOT_EXECUTED, "the ledger has not heard of the shards"
            ) from error

    async def _is_applied(self, row: ProductRow, shards: int) -> bool:
        """Whether what so many shards gave back has reached the ledger by the worker.

        The row does not say how many: those that left in a change of the layout closed, too.
        """
        products = self._products.of(row.product_id)
        return await products.closed_shards(row.product_id, epoch=row.epoch) >= shards

    async def _correct_closed(self, wanted: Correction) -> bool:
        done = await self._products.of(wanted.product_id).adjust_closed(
            wanted.kind,
            wanted.product_id,
            request_id=wanted.request_id,
            quantity=wanted.quantity,
            reason=wanted.reason,
            actor=wanted.actor,
        )
        return done.replayed

    async def _correct_live(self, wanted: Correction) -> Answer:
        self._gates.of(wanted.product_id).require_live()
        restocks = wanted.kind is JournalKind.RESTOCK
        correct = self._stock.restock if restocks else self._stock.remove
        return await correct(
            wanted.product_id,
            request_id=wanted.request_id,
            quantity=wanted.quantity,
            reason=wanted.reason,
            actor=wanted.actor,
        )


def _from_now(wait_s: float) -> float:
    """By the loop's clock."""
    return asyncio.get_running_loop().time() + wait_s


async def _until(condition: Callable[[], Awaitable[bool]]) -> None:
    while True:
        if await condition():
            return
        await asyncio.sleep(LOOK_S)


def _repeated(earlier: Adjustment, wanted: Correction) -> bool:
    if (earlier.kind, earlier.quantity) != (wanted.kind, wanted.quantity):
        raise refused(Answer(Outcome.REQUEST_MISMATCH))
    return True


def _load_pending() -> RefusedError:
    return unavailable(
        "LOAD_PENDING",
        "the load has begun and may wait for a worker; call Load again until it is done",
    )


def _close_pending() -> RefusedError:
    return unavailable(
        "CLOSE_PENDING", "the product is being taken off sale; call Close again until it is closed"
    )


def _close_busy() -> RefusedError:
    return unavailable(
        "CLOSE_PENDING",
        "orders still hold units of the product, or units are on their way between its shards: "
        "ListHolds says which orders; call Close again when their holds have ended",
    )


def _conflict(reason: str, message: str) -> RefusedError:
    return RefusedError(StatusCode.FAILED_PRECONDITION, reason, message)
