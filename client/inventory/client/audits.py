"""Audits and repairs as records; field for field the messages of inventory.v1."""

from dataclasses import dataclass
from enum import StrEnum

from inventory.v1 import admin_pb2


class RepairSide(StrEnum):
    """Which half of a shard a repair changes; UNSPECIFIED: the service chooses."""

    UNSPECIFIED = "unspecified"
    LIVE = "live"
    LEDGER = "ledger"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitBalance:
    """Where a product's units are: loaded + restocked - removed is the sum of the places, but for
    `difference`: units that vanished, or below zero, that came from nowhere."""

    loaded: int
    restocked: int
    removed: int
    available: int
    held: int
    in_transit: int
    buffer: int
    sold: int
    difference: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardDrift:
    """One shard that differs from the ledger, in units: live less ledger.

    `side`: which half a repair would change unless it is told otherwise.
    """

    partition: int
    available: int
    held: int
    sold: int
    loaded: int
    first_event_id: str
    noticed_ms: int
    side: RepairSide


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """What an audit found; `shards`: how many were compared."""

    balanced: bool
    drifts: tuple[ShardDrift, ...]
    ledger: UnitBalance
    live: UnitBalance
    audited_ms: int
    shards: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """What was, or would be, compensated; `applied`: by this very call."""

    drifts: tuple[ShardDrift, ...]
    applied: bool


def audit_of(message: admin_pb2.AuditResponse) -> Audit:
    return Audit(
        balanced=message.balanced,
        drifts=tuple(drift_of(drift) for drift in message.drifts),
        ledger=balance_of(message.ledger),
        live=balance_of(message.live),
        audited_ms=message.audited_ms,
        shards=message.shards,
    )


def repair_of(message: admin_pb2.RepairResponse) -> Repair:
    return Repair(
        drifts=tuple(drift_of(drift) for drift in message.drifts), applied=message.applied
    )


def balance_of(message: admin_pb2.UnitBalance) -> UnitBalance:
    return UnitBalance(
        loaded=message.loaded,
        restocked=message.restocked,
        removed=message.removed,
        available=message.available,
        held=message.held,
        in_transit=message.in_transit,
        buffer=message.buffer,
        sold=message.sold,
        difference=message.difference,
    )


def drift_of(message: admin_pb2.ShardDrift) -> ShardDrift:
    return ShardDrift(
        partition=message.partition,
        available=message.available,
        held=message.held,
        sold=message.sold,
        loaded=message.loaded,
        first_event_id=message.first_event_id,
        noticed_ms=message.noticed_ms,
        side=_SIDES.get(message.side, RepairSide.UNSPECIFIED),
    )


_SIDES = {
    admin_pb2.REPAIR_SIDE_LIVE: RepairSide.LIVE,
    admin_pb2.REPAIR_SIDE_LEDGER: RepairSide.LEDGER,
}
