"""Audits and repairs while a product sells: shards are marked, the workers compare, the ledger tells."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from grpc import StatusCode

from ledger.audits import AuditReading, Audits, DriftRow, Side
from ledger.checkpoints import Checkpoints
from ledger.errors import Conflict, LedgerConflictError, LedgerUnavailableError
from ledger.products import ProductRow, Products
from server.errors import RefusedError, unavailable
from sharding.auditing import Marked
from sharding.errors import RepairImpossibleError, StockUnavailableError
from sharding.events import Counts, EventId, Repair
from sharding.outcomes import Reason, State
from sharding.stock import Stock

LOOK_S = 0.05
"""Time between two looks at how far the workers have come."""
LOOKS_MAX = 20
"""So often is a balance read in which more units have arrived at shards than left others: workers apply
the two ends of a transfer in either order, so what is on its way may look like that for a moment."""
NOTHING = Counts(0, 0, 0, 0)
MYSQL = "MySQL"


@dataclass(frozen=True, slots=True)
class RepairWish:
    """What somebody wants to be done about a product's differences."""

    product_id: int
    reason: str
    actor: str
    side: Side | None
    """None: of each difference its own."""


@dataclass(slots=True)
class _Awaited:
    """Whom an audit waits for at present, by a name for people."""

    who: str = MYSQL


class Auditor:
    """Audits on demand, and enters compensations for what it finds."""

    def __init__(
        self,
        stock: Stock,
        products: Products,
        audits: Audits,
        checkpoints: Checkpoints,
        *,
        require_live: Callable[[int], None],
    ) -> None:
        """`require_live` raises what becomes of a call that needs a product's live stock, while that is
        away."""
        self._require_live = require_live
        self._stock = stock
        self._products = products
        self._audits = audits
        self._checkpoints = checkpoints

    async def audit(self, product_id: int, *, wait_s: float) -> AuditReading:
        """Compare every shard with the ledger at a marker; a closed product has its ledger row alone.

        RefusedError AUDIT_PENDING if a shard or a worker does not answer within `wait_s`;
        LedgerConflictError STATUS_CHANGING while the product is being loaded, or was meanwhile. While no
        Redis node is reached, what `require_live` raises.
        """
        awaited = _Awaited()
        try:
            async with asyncio.timeout(wait_s):
                return await self._audit(await self._products.get(product_id), awaited)
        except LedgerUnavailableError as error:
            raise _pending(MYSQL) from error
        except TimeoutError as error:
            raise _pending(awaited.who) from error

    async def repair(self, wish: RepairWish, found: AuditReading) -> bool:
        """Compensate what an audit found; whether this call entered anything.

        RefusedError REPAIR_IMPOSSIBLE if a live count would be below zero, LedgerConflictError
        DEAD_LETTERS_OPEN while events of the shard are set aside; the other shards are repaired.
        """
        results = await asyncio.gather(
            *(self._enter(wish, drift) for drift in found.drifts), return_exceptions=True
        )
        await self._stock.outlive_notes([wish.product_id])
        for result in results:
            if isinstance(result, RepairImpossibleError):
                raise _impossible() from result
            if isinstance(result, BaseException):
                raise result
        return any(results)

    async def _audit(self, row: ProductRow, awaited: _Awaited) -> AuditReading:
        if row.status is State.CLOSED:
            return await self._audits.read(row.product_id)
        if row.status is State.LOADING:
            raise _status_changing(row.product_id)
        self._require_live(row.product_id)
        awaited.who = "a shard"
        marked = await self._marked(row.product_id)
        await self._passed({each.partition: each.event_id for each in marked.markers}, awaited)
        awaited.who = MYSQL
        found = await self._read(row.product_id, awaited)
        if found.epoch != marked.epoch or found.status is State.LOADING:
            raise _status_changing(row.product_id)
        return found

    async def _read(self, product_id: int, awaited: _Awaited) -> AuditReading:
        found = await self._audits.read(product_id)
        for _ in range(LOOKS_MAX):
            if found.ledger.in_transit >= 0:
                break
            awaited.who = "the workers of both ends of a transfer"
            await asyncio.sleep(LOOK_S)
            awaited.who = MYSQL
            found = await self._audits.read(product_id)
        return found

    async def _marked(self, product_id: int) -> Marked:
        """Markers at every shard; a damaged one is away until somebody looks at it."""
        try:
            marked = await self._stock.mark(product_id)
        except StockUnavailableError as error:
            raise _pending("a shard") from error
        if marked is None:
            raise _pending("a shard")
        for fault in marked.faults:
            if fault.reason is Reason.SHARD_CORRUPT:
                raise StockUnavailableError(fault.reason, f"p{fault.partition:02d} {fault.detail}")
        if marked.faults:
            raise _pending(f"the shard in {_named(each.partition for each in marked.faults)}")
        return marked

    async def _passed(self, markers: Mapping[int, EventId], awaited: _Awaited) -> None:
        """Return when the ledger has applied all of them."""
        while True:
            applied = await self._checkpoints.of(markers)
            late = [each for each, marker in markers.items() if applied[each].id < marker]
            if not late:
                return
            awaited.who = f"the worker of {_named(late)}"
            await asyncio.sleep(LOOK_S)

    async def _enter(self, wish: RepairWish, drift: DriftRow) -> bool:
        if not await self._audits.confirm(drift):
            return False  # somebody was faster, or an event was applied after all
        repair = compensation(drift, wish.side or drift.side, wish.actor)
        return await self._stock.repair(
            drift.product_id, drift.partition, repair, epoch=drift.epoch, reason=wish.reason
        )


class LedgerAuditor:
    """Audits products that are sold from the ledger's own rows: there is nothing to differ from them."""

    def __init__(self, audits: Audits) -> None:
        self._audits = audits

    async def audit(
        self,
        product_id: int,
        *,
        wait_s: float,  # noqa: ARG002 - nothing is waited for
    ) -> AuditReading:
        """The product's equation. UnknownProductError."""
        return await self._audits.read(product_id)

    async def repair(self, wish: RepairWish, found: AuditReading) -> bool:
        """Nothing: no shard can differ."""
        assert not found.drifts, f"product {wish.product_id} has shards"
        return False


def compensation(drift: DriftRow, side: Side, actor: str) -> Repair:
    """What makes both halves equal again. Pure.

    Where the ledger follows live units that nothing explains, both halves have loaded them from now on.
    """
    units = drift.units
    if side is Side.LIVE:
        return Repair(drift.id, Counts(*(-each for each in units)), NOTHING, actor)
    there = units.available + units.held + units.sold
    live = NOTHING._replace(loaded=there - units.loaded)
    return Repair(drift.id, live, units._replace(loaded=there), actor)


def _named(partitions: Iterable[int]) -> str:
    return ", ".join(f"p{each:02d}" for each in sorted(partitions))


def _pending(who: str) -> RefusedError:
    return unavailable(
        "AUDIT_PENDING", f"{who} did not answer in time; nothing was compared, call again"
    )


def _impossible() -> RefusedError:
    return RefusedError(
        StatusCode.FAILED_PRECONDITION,
        "REPAIR_IMPOSSIBLE",
        "a shard has fewer units than the repair would take away there: restock the product first, "
        "or let the ledger follow with side LEDGER",
    )


def _status_changing(product_id: int) -> LedgerConflictError:
    text = f"product {product_id} is being loaded or was loaded anew; call again"
    return LedgerConflictError(Conflict.STATUS_CHANGING, text)
