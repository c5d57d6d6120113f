"""The operator's calls on audits, repairs and freezing. Protobuf ends here."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from inventory.v1 import admin_pb2 as messages
from ledger.audits import AuditReading, DriftRow, Side, Units
from ledger.freezes import Freezes
from ledger.servers import PerServer
from server import validation
from server.auditing import RepairWish
from server.calls import Context, wait_s
from sharding.errors import StockUnavailableError
from sharding.plans import Freeze

SIDES: Mapping[Side, messages.RepairSide.ValueType] = {
    side: messages.RepairSide.Value(f"REPAIR_SIDE_{side.name}") for side in Side
}
_SIDES_OF_NUMBERS: Mapping[int, Side | None] = {
    messages.REPAIR_SIDE_UNSPECIFIED: None,
    **{number: side for side, number in SIDES.items()},
}


class ProductAuditor(Protocol):
    """What compares a product's units with the ledger, and compensates differences."""

    async def audit(self, product_id: int, *, wait_s: float) -> AuditReading: ...

    async def repair(self, wish: RepairWish, found: AuditReading) -> bool: ...


class FreezableStock(Protocol):
    """What of a stock stops and resumes sales."""

    async def freeze(self, product_id: int, freeze: Freeze) -> object: ...

    async def outlive_notes(self, product_ids: Iterable[int]) -> None: ...


@dataclass(frozen=True, slots=True)
class AuditService:
    """One method for each call of the contract on audits, by its name in snake_case."""

    auditors: PerServer[ProductAuditor]
    wait_s_max: float

    async def audit(
        self, request: messages.AuditRequest, context: Context
    ) -> messages.AuditResponse:
        """Compare a product's shards with the ledger."""
        validation.product_id(request.product_id)
        found = await self.auditors.of(request.product_id).audit(
            request.product_id, wait_s=wait_s(context, self.wait_s_max)
        )
        return messages.AuditResponse(
            balanced=found.balanced,
            drifts=map(_drift, found.drifts),
            ledger=_balance(found.ledger),
            live=_balance(found.live),
            audited_ms=found.read_ms,
            shards=found.shards,
        )

    async def repair(
        self, request: messages.RepairRequest, context: Context
    ) -> messages.RepairResponse:
        """Audit, and compensate what is found if that is wanted."""
        validation.check(
            validation.at_least("product_id", request.product_id, 1),
            *validation.why_and_who(reason=request.reason, actor=request.actor),
            validation.one_of("side", request.side, _SIDES_OF_NUMBERS),
        )
        auditor = self.auditors.of(request.product_id)
        found = await auditor.audit(request.product_id, wait_s=wait_s(context, self.wait_s_max))
        side = _SIDES_OF_NUMBERS[request.side]
        wish = RepairWish(request.product_id, request.reason, request.actor, side)
        is_wanted = request.apply and bool(found.drifts)
        return messages.RepairResponse(
            drifts=map(_drift, found.drifts),
            applied=is_wanted and await auditor.repair(wish, found),
        )


@dataclass(frozen=True, slots=True)
class FreezeService:
    """One method for each call of the contract on freezing, by its name in snake_case."""

    freezes: PerServer[Freezes]
    stock: FreezableStock

    async def freeze(
        self, request: messages.FreezeRequest, _context: Context
    ) -> messages.FreezeResponse:
        """Stop a product's sale."""
        _check(request)
        freeze = await self.freezes.of(request.product_id).freeze(
            request.product_id, reason=request.reason, actor=request.actor
        )
        await self._apply(request.product_id, freeze)
        return messages.FreezeResponse()

    async def unfreeze(
        self, request: messages.UnfreezeRequest, _context: Context
    ) -> messages.UnfreezeResponse:
        """Resume a product's sale."""
        _check(request)
        freeze = await self.freezes.of(request.product_id).unfreeze(
            request.product_id, reason=request.reason, actor=request.actor
        )
        await self._apply(request.product_id, freeze)
        return messages.UnfreezeResponse()

    async def _apply(self, product_id: int, freeze: Freeze) -> None:
        """The shards that cannot be reached now are the worker's, see worker/freezes.py.

        Whoever has the answer is told by nobody's older proof that the product is sold out.
        """
        with suppress(StockUnavailableError):
            await self.stock.freeze(product_id, freeze)
        await self.stock.outlive_notes([product_id])


def _check(request: messages.FreezeRequest | messages.UnfreezeRequest) -> None:
    validation.check(
        validation.at_least("product_id", request.product_id, 1),
        *validation.why_and_who(reason=request.reason, actor=request.actor),
    )


def _balance(units: Units) -> messages.UnitBalance:
    return messages.UnitBalance(
        loaded=units.loaded,
        restocked=units.restocked,
        removed=units.removed,
        available=units.available,
        held=units.held,
        in_transit=units.in_transit,
        buffer=units.buffer,
        sold=units.sold,
        difference=units.difference,
    )


def _drift(row: DriftRow) -> messages.ShardDrift:
    return messages.ShardDrift(
        partition=row.partition,
        available=row.units.available,
        held=row.units.held,
        sold=row.units.sold,
        loaded=row.units.loaded,
        first_event_id=str(row.first_event),
        noticed_ms=row.noticed_ms,
        side=SIDES[row.side],
    )
