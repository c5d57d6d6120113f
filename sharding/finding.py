"""Where an order is decided: remembered, at the home of a product that the caller names or at its
alternate, or looked for in all partitions."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from sharding.cluster import Cluster
from sharding.coordinator import BARRED, WANTS_MAX, Coordinator, read_order
from sharding.desk import Desk
from sharding.directory import Directory, Listing
from sharding.errors import StockUnavailableError
from sharding.orders import Order, request_id_of
from sharding.outcomes import Reason
from sharding.placement import Layout, alternate_shard, home_shard
from sharding.tasks import Tasks

PLACES_MAX = 65_536
"""Orders of which a process remembers where they are decided; 200 bytes each."""


class Known(NamedTuple):
    """An order at its coordinator; `order` is None where it was barred before it came."""

    partition: int
    order: Order | None


class Place(NamedTuple):
    """Where an order is decided, and its first product."""

    partition: int
    product_id: int


class _Seen(NamedTuple):
    """What the partitions that answered know of an order, and why another did not answer."""

    records: list[tuple[int, bytes]]
    failure: BaseException | None

    @property
    def has_order(self) -> bool:
        """Whether anybody has more than a tombstone."""
        return any(record != BARRED for _, record in self.records)


_Ask = Callable[[int, Sequence[int]], Awaitable[list[bytes]]]


class AmbiguousOrderError(Exception):
    """Several partitions have an order of that id, with other first products."""


class Finder:
    """Finds orders. StockUnavailableError where one may be in a partition that does not answer."""

    def __init__(self, cluster: Cluster, coordinator: Coordinator, tasks: Tasks) -> None:
        self._cluster = cluster
        self._directory = Directory(cluster)
        self._coordinator = coordinator
        self._partitions = cluster.settings.partitions
        self._places: OrderedDict[int, Place] = OrderedDict()
        self._finding: Desk[int, _Seen] = Desk(self._look_everywhere, tasks, size_max=WANTS_MAX)
        self._barring: Desk[int, _Seen] = Desk(
            partial(self._everywhere, coordinator.bar), tasks, size_max=WANTS_MAX
        )

    def remember(self, order_id: int, place: Place) -> None:
        """Note where an order is decided."""
        self._places[order_id] = place
        self._places.move_to_end(order_id)
        while len(self._places) > PLACES_MAX:
            self._places.popitem(last=False)

    def remembered(self, order_id: int) -> Place | None:
        """Where this process saw the order."""
        return self._places.get(order_id)

    async def likely(self, order_id: int, product_id: int) -> list[Place]:
        """Where the order may be, best guess first. `product_id`: one of its products, or 0."""
        remembered = self._places.get(order_id)
        if remembered is not None and product_id in (0, remembered.product_id):
            return [remembered]
        hinted = await self._hinted(order_id, product_id)
        if remembered is not None and await self._is_there(order_id, product_id, remembered):
            return [*hinted, remembered]
        return hinted

    async def _hinted(self, order_id: int, product_id: int) -> list[Place]:
        """Where the order may be if the product that the caller names is its first. Where the node is
        away comes last: another may know the order."""
        listing = await self._listing(product_id)
        if listing is None or listing.max_per_user:
            return []
        partitions = [
            partition
            for count in (listing.layout.shards, *listing.former)
            for partition in self._home_and_alternate(order_id, product_id, count)
        ]
        return [
            Place(partition, product_id)
            for partition in sorted(dict.fromkeys(partitions), key=self._cluster.is_down)
        ]

    async def look_at(self, order_id: int, place: Place) -> Known | None:
        """The order, if that place still knows it. StockUnavailableError."""
        (record,) = await self._coordinator.look(place.partition, [order_id])
        order = read_order(order_id, record)
        return Known(place.partition, order) if order else None

    async def _is_there(self, order_id: int, product_id: int, place: Place) -> bool:
        """Whether the order that was seen there is the one that has the product."""
        try:
            known = await self.look_at(order_id, place)
        except StockUnavailableError:
            return False
        return known is not None and known.order is not None and _is_meant(known.order, product_id)

    async def _listing(self, product_id: int) -> Listing | None:
        try:
            return await self._directory.find(product_id) if product_id else None
        except StockUnavailableError:
            return None  # the order may be decided elsewhere

    async def find(self, order_id: int, product_id: int) -> Known | None:
        """The order, looked for in all partitions; None if nobody knows it. AmbiguousOrderError."""
        return self._only(order_id, product_id, await self._finding.ask(order_id))

    async def bar(self, order_id: int, product_id: int) -> Known | None:
        """Leave a tombstone in every partition, so that a late copy holds nothing; the order, if it
        came meanwhile. StockUnavailableError: some of them may have it."""
        try:
            return self._only(order_id, product_id, await self._barring.ask(order_id))
        except StockUnavailableError as failure:
            raise StockUnavailableError(Reason.OUTCOME_UNKNOWN, failure.detail) from failure

    async def _look_everywhere(self, order_ids: Sequence[int]) -> list[_Seen]:
        """What all partitions know of each order. Where the node is away they are waited for only if no
        other knows it."""
        look = self._coordinator.look
        away = [p for p in range(self._partitions) if self._cluster.is_down(p)]
        if not away:
            return await self._everywhere(look, order_ids)
        others = sorted(set(range(self._partitions)) - set(away))
        seen = await self._all(look, others, order_ids)
        unknown = [i for i, each in enumerate(seen) if not each.has_order]
        if unknown:
            later = await self._all(look, away, [order_ids[i] for i in unknown])
            for i, more in zip(unknown, later, strict=True):
                seen[i] = _Seen(seen[i].records + more.records, seen[i].failure or more.failure)
        return seen

    async def _everywhere(self, ask: _Ask, order_ids: Sequence[int]) -> list[_Seen]:
        return await self._all(ask, range(self._partitions), order_ids)

    async def _all(
        self, ask: _Ask, partitions: Sequence[int], order_ids: Sequence[int]
    ) -> list[_Seen]:
        """What these partitions say of each order; one call to each, however many orders wait."""
        replies = await asyncio.gather(
            *(ask(partition, order_ids) for partition in partitions), return_exceptions=True
        )
        failures = [reply for reply in replies if isinstance(reply, BaseException)]
        failure = failures[0] if failures else None
        seen = [_Seen([], failure) for _ in order_ids]
        for partition, reply in zip(partitions, replies, strict=True):
            if isinstance(reply, BaseException):
                continue
            for i, record in enumerate(reply):
                if record:
                    seen[i].records.append((partition, record))
        return seen

    def _home_and_alternate(self, order_id: int, product_id: int, shards: int) -> Iterator[int]:
        home = home_shard(request_id_of(order_id, product_id), shards)
        for shard in (home, alternate_shard(home, shards)):
            if shard is not None:
                yield Layout(0, shards).partition(
                    shard, product_id=product_id, partitions=self._partitions
                )

    def _only(self, order_id: int, product_id: int, seen: _Seen) -> Known | None:
        """Of what the partitions said the one that counts."""
        found = [_known(partition, order_id, record) for partition, record in seen.records]
        orders = [(each, each.order) for each in found if each.order is not None]
        meant = [known for known, order in orders if _is_meant(order, product_id)]
        candidates = meant or [known for known, _ in orders]
        if len(candidates) > 1:
            raise AmbiguousOrderError
        if candidates:
            return candidates[0]
        if isinstance(seen.failure, StockUnavailableError):
            text = f"order {order_id}"
            raise StockUnavailableError(Reason.SHARDS_UNREACHABLE, text) from seen.failure
        if seen.failure is not None:
            raise seen.failure
        return found[0] if found else None


def _is_meant(order: Order, product_id: int) -> bool:
    return not product_id or any(line.product_id == product_id for line in order.held)


def _known(partition: int, order_id: int, record: bytes) -> Known:
    if record == BARRED:
        return Known(partition, None)
    order = read_order(order_id, record)
    if order is None:
        raise StockUnavailableError(Reason.SHARD_CORRUPT, f"p{partition:02d} order {order_id}")
    return Known(partition, order)
