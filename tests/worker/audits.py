"""What tests of audits and of the breaker share: an auditor, and somebody who bypasses the service."""

from ledger.audits import AuditReading, Audits, Side
from ledger.products import ProductRow
from server.auditing import Auditor, RepairWish
from sharding import keys
from sharding.cluster import LaneKind
from sharding.events import Event, EventId, Kind, decode
from sharding.outcomes import Answer, Deduction
from sharding.placement import Layout
from sharding.shards import Shards
from tests.ledger.conftest import fetch
from tests.ledger.streams import fresh_request_ids
from tests.waiting import eventually
from tests.worker.conftest import World

WAIT_S = 20.0


def auditor_of(world: World) -> Auditor:
    return Auditor(
        world.stock,
        world.products,
        Audits(world.database),
        world.checkpoints,
        require_live=lambda _: None,
    )


async def audit(world: World, product: int) -> AuditReading:
    return await auditor_of(world).audit(product, wait_s=WAIT_S)


async def repair(world: World, product: int, side: Side | None = None) -> bool:
    """As the call does: audit, and enter what is found."""
    wish = RepairWish(product, "counted", "ann", side)
    return await auditor_of(world).repair(wish, await audit(world, product))


def shards_of(world: World, product: int, shards: int = 6) -> Shards:
    return Shards(world.cluster, product, Layout(1, shards))


def shard_of(world: World, product: int, shards: int = 6) -> int:
    """The partition of a product's first shard."""
    return shards_of(world, product, shards).partitions[0]


async def by_hand(world: World, product: int, partition: int, *words: str) -> None:
    """A command on a shard's key, as somebody who bypasses the service would give it."""
    name, *args = words
    key = keys.stock(world.cluster.tags[partition], product)
    await world.cluster.command(partition, name, key, *args, lane=LaneKind.WRITE)


async def buy(world: World, product: int, units: int = 1) -> Answer:
    (request_id,) = fresh_request_ids(1)
    (answer,) = await world.stock.deduct([Deduction(request_id, product, units, attempt=1)])
    return answer


async def frozen(world: World, product: int) -> ProductRow | None:
    row = await world.products.get(product)
    return row if row.frozen_reason else None


async def noted(world: World, product: int) -> list[tuple[object, ...]]:
    """The differences of a product that the ledger has noted, in their order."""
    sql = (
        "SELECT state, available, held, sold, loaded FROM shard_drift"
        " WHERE product_id = %s ORDER BY id"
    )
    return await fetch(world.database, sql, product)


async def events_after(world: World, product: int, partition: int, after: EventId) -> list[Event]:
    entries = await world.partitions.read(partition, ledger=0, after=after, count=10_000)
    found = []
    for entry in entries:
        fields = dict(zip(entry.fields[::2], entry.fields[1::2], strict=True))
        if fields.get(b"product") == str(product).encode():
            found.append(decode(entry.id, fields))
    return found


async def last_event(world: World, partition: int) -> EventId:
    head = await world.partitions.head(partition)
    return EventId(head.generation, head.number)


async def looked_at_again(world: World, product: int, partition: int) -> None:
    """Return when a worker has marked a product once more, and the ledger has passed it."""
    after = await last_event(world, partition)

    async def is_passed() -> bool:
        events = await events_after(world, product, partition, after)
        marks = [event.id for event in events if event.kind is Kind.MARK]
        applied = (await world.checkpoints.of({partition}))[partition].id
        return bool(marks) and applied >= marks[0]

    await eventually(is_passed)
