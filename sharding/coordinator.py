"""Script calls on orders: decisions at their coordinators, and the ends of their lines' holds."""

from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from functools import partial
from typing import NamedTuple, TypeVar

from msgpack import packb

from sharding import keys
from sharding.cluster import Cluster, LaneKind
from sharding.desk import Desk
from sharding.errors import StockUnavailableError
from sharding.events import Status
from sharding.orders import Order, OrderState
from sharding.outcomes import Reason
from sharding.placement import ledger_of
from sharding.scripts import script
from sharding.tasks import Tasks

DELIVERY_MS = 2_000
"""So long after a decision a keeper sees to it that all lines are told."""
WANTS_MAX = 500
"""Orders a script call: about two milliseconds of a node."""
DESKS_MAX = 4_096

_DECIDE = script("decide")
_SETTLE = script("settle")
_ORDER = script("order")
_RECORDED = script("recorded")
_DUE = script("due")
_PARK = script("park")

BARRED = b"n"

Item = TypeVar("Item")
Result = TypeVar("Result")


class Wish(StrEnum):
    """What an order is to become, in the letters of decide.lua."""

    CONFIRM = "C"
    RELEASE = "R"
    LOOK = "E"
    """Expire, if its time is over."""
    EXTEND = "X"
    HOLD = "H"
    SELL = "S"
    REFUSE = "A"
    GIVE_UP = "G"
    RETAKE = "T"
    SELL_RETAKEN = "K"
    REFUND = "F"
    CLOSE = "D"
    """All lines have been told."""


class Want(NamedTuple):
    """What is to become of an order."""

    order_id: int
    what: Wish
    ttl_ms: int = 0
    lines: str = "-"
    """Or a state, where `what` is CLOSE."""


class Decided(NamedTuple):
    """What became of it, and whether this call changed it."""

    partition: int
    has_changed: bool
    order: Order


class LineEnd(NamedTuple):
    """How one line's hold is to end."""

    request_id: str
    why: OrderState
    quantity: int
    user_id: int


class DueOrder(NamedTuple):
    """An order that somebody has to look at; `order` is None where its record cannot be read.

    `member`: how the partition calls it; `is_gone`: there is no record any more.
    """

    member: str
    due_ms: int
    order: Order | None
    is_gone: bool = False


class DueOrders(NamedTuple):
    """What is due in one partition, oldest first; `now_ms` by its node's clock."""

    now_ms: int
    orders: tuple[DueOrder, ...]

    @property
    def lag_s(self) -> float:
        """How late the oldest is, in seconds."""
        return (self.now_ms - self.orders[0].due_ms) / 1_000 if self.orders else 0.0


class Coordinator:
    """Calls of one process; those of one shard that wait at the same time travel together.

    All raise StockUnavailableError.
    """

    def __init__(self, cluster: Cluster, tasks: Tasks, *, hold_s_max: float) -> None:
        self._cluster = cluster
        self._tasks = tasks
        self._hold_ms_max = round(hold_s_max * 1_000)
        self._deciding: dict[tuple[int, int], Desk[Want, Decided | None]] = {}
        self._settling: dict[tuple[int, int], Desk[LineEnd, Status]] = {}

    async def decide(self, partition: int, product_id: int, want: Want) -> Decided | None:
        """Decide an order whose first line is of that product, at its coordinator; others are read."""
        work = partial(_singly_if_corrupt, partial(self._decide, partition, product_id))
        return await self._desk(self._deciding, (partition, product_id), work).ask(want)

    async def decide_known(self, partition: int, product_id: int, want: Want) -> Decided:
        """The same of an order that the coordinator must know."""
        decided = await self.decide(partition, product_id, want)
        if decided is None:
            text = f"p{partition:02d} lost order {want.order_id}"
            raise StockUnavailableError(Reason.SHARD_CORRUPT, text)
        return decided

    async def settle(self, partition: int, product_id: int, end: LineEnd) -> Status:
        """End a line's hold. STALE: nothing is known of it here; MISMATCH: it had ended otherwise."""
        work = partial(_singly_if_corrupt, partial(self._settle, partition, product_id))
        return await self._desk(self._settling, (partition, product_id), work).ask(end)

    async def line(self, partition: int, product_id: int, request_id: str) -> bytes:
        """A line's record, see include/holds.lua; empty: none."""
        tag = self._cluster.tags[partition]
        packed: bytes = packb([f"{product_id}:{request_id}"])
        reply = await self._cluster.run(
            _RECORDED,
            partition,
            (keys.head(tag), *keys.memory(tag)),
            (packed,),
            lane=LaneKind.READ,
        )
        records = reply[3]
        assert isinstance(records, list)
        record: bytes = records[0]
        return record

    async def look(self, partition: int, order_ids: Sequence[int]) -> list[bytes]:
        """Orders' records in a partition; empty: none, BARRED: it was released before it came."""
        return await self._remembered(partition, order_ids, bars="0", lane=LaneKind.READ)

    async def bar(self, partition: int, order_ids: Sequence[int]) -> list[bytes]:
        """The same; where there was none, BARRED from now on."""
        return await self._remembered(partition, order_ids, bars="1", lane=LaneKind.WRITE)

    async def due(self, partition: int, limit: int) -> DueOrders:
        """The orders of a partition that somebody has to look at."""
        tag = self._cluster.tags[partition]
        reply = await self._cluster.run(
            _DUE,
            partition,
            (keys.head(tag), *keys.memory(tag), keys.deadlines(tag)),
            (str(limit),),
            lane=LaneKind.READ,
        )
        _, _, _, now_ms, flat = reply
        assert isinstance(now_ms, int)
        assert isinstance(flat, list)
        orders = zip(flat[::3], flat[1::3], flat[2::3], strict=True)
        return DueOrders(now_ms, tuple(_due(*each) for each in orders))

    async def park(self, partition: int, members: Sequence[str], *, pause_s: float) -> None:
        """Look at these orders of a partition only later again; 0: never."""
        tag = self._cluster.tags[partition]
        packed: bytes = packb(list(members))
        await self._cluster.run(
            _PARK,
            partition,
            (keys.head(tag), keys.deadlines(tag)),
            (str(round(pause_s * 1_000)), packed),
            lane=LaneKind.WRITE,
        )

    async def _remembered(
        self, partition: int, order_ids: Sequence[int], *, bars: str, lane: LaneKind
    ) -> list[bytes]:
        tag = self._cluster.tags[partition]
        packed: bytes = packb(list(map(str, order_ids)))
        reply = await self._cluster.run(
            _ORDER,
            partition,
            (keys.head(tag), *keys.memory(tag)),
            (bars, str(self._cluster.settings.tombstone_cap), packed),
            lane=lane,
        )
        if reply[0] == b"full":
            raise StockUnavailableError(Reason.RECORDS_FULL, f"p{partition:02d}")
        records = reply[3]
        assert isinstance(records, list)
        return records

    async def _decide(
        self, partition: int, product_id: int, wants: Sequence[Want]
    ) -> list[Decided | None]:
        tag = self._cluster.tags[partition]
        flat: list[str | int] = []
        for want in wants:
            flat += (str(want.order_id), want.what, want.ttl_ms, want.lines)
        packed: bytes = packb(flat)
        reply = await self._cluster.run(
            _DECIDE,
            partition,
            (
                *self._shard_keys(tag, product_id),
                *keys.memory(tag),
                keys.deadlines(tag),
                keys.users(tag, product_id),
            ),
            (str(product_id), str(DELIVERY_MS), str(self._hold_ms_max), packed),
            lane=LaneKind.MOVE,
        )
        _require_done(partition, reply)
        flat_answers = reply[3]
        assert isinstance(flat_answers, list)
        pairs = zip(wants, flat_answers[::2], flat_answers[1::2], strict=True)
        return [
            _decided(partition, want, record, has_changed=changed == 1)
            for want, changed, record in pairs
        ]

    async def _settle(
        self, partition: int, product_id: int, ends: Sequence[LineEnd]
    ) -> list[Status]:
        tag = self._cluster.tags[partition]
        flat: list[str | int] = []
        for end in ends:
            flat += (end.request_id, end.why.value, end.quantity, str(end.user_id))
        packed: bytes = packb(flat)
        reply = await self._cluster.run(
            _SETTLE,
            partition,
            (
                *self._shard_keys(tag, product_id),
                *keys.memory(tag),
                keys.users(tag, product_id),
            ),
            (str(product_id), packed),
            lane=LaneKind.MOVE,
        )
        _require_done(partition, reply)
        statuses = reply[3]
        assert isinstance(statuses, bytes)
        return [_ENDED.get(status, Status.MISMATCH) for status in statuses]

    def _shard_keys(self, tag: str, product_id: int) -> tuple[str, ...]:
        ledger = ledger_of(product_id, self._cluster.ledgers)
        return keys.head(tag), keys.stock(tag, product_id), keys.events(tag, ledger)

    def _desk(
        self,
        desks: dict[tuple[int, int], Desk[Item, Result]],
        place: tuple[int, int],
        work: Callable[[Sequence[Item]], Awaitable[Sequence[Result | Exception]]],
    ) -> Desk[Item, Result]:
        desk = desks.get(place)
        if desk is None:
            if len(desks) >= DESKS_MAX:
                for idle in [key for key, each in desks.items() if each.is_idle]:
                    del desks[idle]
            desk = desks[place] = Desk(work, self._tasks, size_max=WANTS_MAX)
        return desk


async def _singly_if_corrupt(
    work: Callable[[Sequence[Item]], Awaitable[list[Result]]], items: Sequence[Item]
) -> list[Result | Exception]:
    """One hold that makes no sense must not keep the others of its lot waiting."""
    try:
        return [*await work(items)]
    except StockUnavailableError as failure:
        if failure.reason is not Reason.SHARD_CORRUPT or len(items) == 1:
            raise
    results: list[Result | Exception] = []
    for item in items:
        try:
            results += await work([item])
        except StockUnavailableError as failure:
            results.append(failure)
    return results


def _due(order_id: bytes, due_ms: bytes, record: bytes) -> DueOrder:
    number = int(order_id) if order_id.isdigit() else 0
    member = order_id.decode(errors="replace")
    return DueOrder(member, int(float(due_ms)), read_order(number, record), is_gone=not record)


def _decided(partition: int, want: Want, record: bytes, *, has_changed: bool) -> Decided | None:
    order = read_order(want.order_id, record)
    return Decided(partition, has_changed, order) if order else None


def read_order(order_id: int, record: bytes) -> Order | None:
    """None where there is no record that makes sense."""
    try:
        return Order.parse(order_id, record)
    except ValueError:
        return None


_ENDED = {ord("E"): Status.REPLAYED, ord("S"): Status.STALE}


def _require_done(partition: int, reply: Sequence[object]) -> None:
    if reply[0] == b"missing":
        raise StockUnavailableError(Reason.SHARD_CORRUPT, f"p{partition:02d} has no such shard")
