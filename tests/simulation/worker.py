"""What workers do in a simulation: apply events to the ledger, open partitions, change shard counts,
undo second effects, look after orders. Each step goes through any process, which may end at each of its
calls.
"""

from functools import partial
from typing import cast

from ledger.errors import CheckpointMovedError
from ledger.failpoints import Failpoints
from ledger.freezes import Freezes
from ledger.restoring import PartitionStates
from ledger.servers import PerServer
from sharding.errors import (
    LayoutPassedError,
    NotOpenableError,
    RestorationPassedError,
    StockUnavailableError,
)
from sharding.events import EventId, anchor, decode
from sharding.keys import events
from sharding.ordering import PARKED
from sharding.outcomes import Reason, State
from sharding.partitions import Checkpoint, Entry
from sharding.plans import Freeze
from sharding.restoring import Restoring
from tests.simulation.ledger import PASSED_MAX, Change, Ledger, SecondEffect
from tests.simulation.observed import ViolationError, expect
from tests.simulation.restoring import SimulatedStates
from tests.simulation.shop import TRIES_MAX, Shop
from tests.simulation.world import PARTITIONS, Process
from worker.freezes import PartitionFreezes
from worker.restoring import Case, Restorer


async def catch_up(shop: Shop, partition: int) -> bool:
    """Apply what a partition's stream has, and tell it so; whether both was done."""
    key = events(shop.world.tags[partition], 0).encode()
    after = shop.ledger.applied[partition].id
    entries = shop.world.node_of(partition).entries_after(key, str(after).encode())
    if not entries:
        return await _tell_applied(shop, partition)
    last = EventId.parse(entries[-1][0])
    newest = Checkpoint(last, anchor(entries[-1][1]))
    try:
        has_it = await shop.ask(
            lambda process: process.partitions.replicated(partition, ledger=0, last=newest)
        )
    except StockUnavailableError:
        return False
    if not has_it or shop.ledger.applied[partition].id != after:
        return False
    for entry_id, flat in entries:
        event_id = EventId.parse(entry_id)
        event = decode(event_id, dict(zip(flat[::2], flat[1::2], strict=True)))
        shop.ledger.apply(partition, event, Checkpoint(event_id, anchor(flat)))
        shop.ledger.known.follow(partition, Entry(event_id, tuple(flat)), event)
    shop.world.trace.note("applied", partition, str(last))
    return await _tell_applied(shop, partition)


def has_news(shop: Shop, partition: int) -> bool:
    """Whether a partition has events that the ledger has not."""
    key = events(shop.world.tags[partition], 0).encode()
    after = str(shop.ledger.applied[partition].id).encode()
    return bool(shop.world.node_of(partition).entries_after(key, after))


async def _tell_applied(shop: Shop, partition: int) -> bool:
    """Let a partition know how far the ledger is; whether it does."""
    applied = shop.ledger.applied[partition].id
    if shop.ledger.told.get(partition, -1) >= applied.number:
        return True

    async def work(process: Process) -> bool:
        await process.partitions.note_applied(partition, applied)
        return True

    try:
        is_told = await shop.ask(work)
    except StockUnavailableError:
        return False
    if is_told:
        shop.ledger.told[partition] = applied.number
    return bool(is_told)


async def catch_up_everywhere(shop: Shop) -> None:
    """Apply what all streams have."""
    for _ in range(TRIES_MAX):
        done = [await catch_up(shop, partition) for partition in range(PARTITIONS)]
        if all(done):
            return
        await shop.pause(0.3)
    raise ViolationError("the ledger cannot catch up")


async def open_partition(shop: Shop, partition: int) -> None:
    """Open a partition where it is now, by what the ledger has."""
    await shop.manage(lambda process: _open(shop, process, partition, above=0))


async def _open(shop: Shop, process: Process, partition: int, *, above: int) -> None:
    freezes = cast(Freezes, _Freezes(shop.ledger))
    await PartitionFreezes(freezes, process.stock).apply(partition)
    opening = shop.ledger.begin_opening(partition, above=above)
    checkpoint = shop.ledger.applied[partition]
    try:
        await process.partitions.open(partition, [checkpoint], opening=opening)
    except NotOpenableError as error:
        case = Case(partition, opening, error.found, 0, error.may_be_past, str(error))
        await _restore(shop, process, case)


class _Freezes:
    """As ledger/freezes.py has them, of the model."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def at(self, partition: int) -> dict[int, Freeze]:
        """All of the model's products; one without a shard there is not told."""
        rows = self._ledger.rows.values()
        return {row.product_id: row.freeze for row in rows if row.freeze.version}


class _Restorer(Restorer):
    """Tells nobody."""

    def _tell(self, case: Case, work: object, opened: object, *, lost: int) -> None:
        pass


async def _restore(shop: Shop, process: Process, case: Case) -> None:
    restorer = _Restorer(
        Restoring(process.cluster),
        PerServer([cast(PartitionStates, SimulatedStates(shop.ledger))]),
        shop.world.equipment.worker_metrics,
        Failpoints({}),
    )
    shop.oracle.counts["restorations begun"] += 1
    try:
        await restorer.restore(case)
    except (RestorationPassedError, CheckpointMovedError) as error:
        raise StockUnavailableError(Reason.NOT_EXECUTED, str(error)) from error
    shop.oracle.counts["restorations ended"] += 1


async def look_after(shop: Shop, partition: int) -> None:
    """Open a partition if it is shut."""

    async def work(process: Process) -> None:
        head = await process.partitions.head(partition, opening=shop.ledger.openings[partition])
        if not head.is_open:
            await _open(shop, process, partition, above=head.generation)

    await shop.manage(work)


async def undo(shop: Shop, second: SecondEffect) -> None:
    """Bring a second effect's units back, unless the ledger has them."""

    async def work(process: Process) -> None:
        is_back = await process.stock.undo(
            second.product_id,
            epoch=second.epoch,
            partition=second.partition,
            request_id=second.request_id,
            quantity=second.quantity,
            undone=second.event,
        )
        if second in shop.ledger.seconds:
            shop.ledger.seconds.remove(second)
            shop.oracle.undone(second.product_id, second.request_id, is_back=is_back)

    await shop.manage(work)


async def bring_buffer(shop: Shop, product_id: int) -> None:
    """Bring on sale what has left a product's buffer by now."""
    row = shop.ledger.rows[product_id]
    epoch, released = row.epoch, row.released

    async def work(process: Process) -> None:
        units = await process.stock.bring_buffer(product_id, epoch=epoch, released=released)
        is_over = row.epoch != epoch or row.status is not State.OPEN
        expect(units is not None or is_over, f"{row} takes nothing from its buffer")
        shop.oracle.counts["units of buffers"] += units or 0

    if released:
        await shop.manage(work)


async def sweep(shop: Shop, partition: int, *, limit: int) -> int:
    """Look after orders of a partition that are due; how many were, -1 if that is unknown."""
    found = 0

    async def work(process: Process) -> bool:
        nonlocal found
        due = await process.orders.due(partition, limit=limit)
        found = len(due.orders)
        for what, orders in (await process.orders.look_after(partition, due)).items():
            shop.oracle.counts[f"orders swept: {what}"] += orders
            expect(what != PARKED, f"an order makes no sense: {due}")
        return True

    try:
        return found if await shop.ask(work) else -1
    except StockUnavailableError:
        return -1


async def sweep_everywhere(shop: Shop) -> None:
    """Until no order is due any more."""
    for partition in range(PARTITIONS):
        for _ in range(TRIES_MAX):
            if not await sweep(shop, partition, limit=100):
                break
            await shop.pause(1.0)
        else:
            raise ViolationError(f"orders of partition {partition} stay due")


async def drive(shop: Shop, change: Change, *, tries: int) -> None:
    """Go on with a change, as worker/layouts.py does; what is not done is left to the next."""
    for _ in range(tries):
        if change.state not in ("wanted", "active"):
            return
        try:
            if change.state == "wanted":
                await _bring_about(shop, change)
            elif await shop.ask(lambda process: process.stock.drain_retired(change.product_id)):
                _mark(shop, change, "active", "done")
        except LayoutPassedError:
            change.passed += 1
        except StockUnavailableError:
            pass
        await shop.pause(0.3)


async def _bring_about(shop: Shop, change: Change) -> None:
    if change.passed >= PASSED_MAX:
        shop.oracle.counts["layout changes given up"] += 1
        _mark(shop, change, "wanted", "rolled back")
        return
    is_active = await shop.ask(partial(_change_layout, change))
    if is_active is not None:
        _mark(shop, change, "wanted", "active" if is_active else "rolled back")


async def _change_layout(change: Change, process: Process) -> bool:
    return await process.stock.change_layout(
        change.product_id, version=change.version, shards=change.shards, cause="operator"
    )


def _mark(shop: Shop, change: Change, before: str, after: str) -> None:
    if change.state == before:
        change.state = after
        shop.world.trace.note("change", change.product_id, change.version, after)
        shop.oracle.counts[f"layout changes {after}"] += 1
