"""The live stock of all products: what the server asks of this package."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from sharding.answers import CLOSED, INSUFFICIENT, MISSING, STALE, answers, unavailable
from sharding.cluster import Cluster
from sharding.directory import Directory, Listing
from sharding.errors import StockError, StockUnavailableError
from sharding.home import Batch, Group, Home, refuse
from sharding.metrics import StockMetrics
from sharding.outcomes import (
    Answer,
    Deduction,
    Outcome,
    ProductStock,
    Reason,
    ShardStock,
    State,
)
from sharding.placement import Layout, home_shard
from sharding.plans import LoadPlan
from sharding.shards import MissingShardError, OpenTransfer, Served, ShardReading, Shards
from sharding.shortage import Gathered, Shortage, Survey, survey

_LOG = logging.getLogger(__name__)

Result = TypeVar("Result")

QUEUED_REQUESTS_MAX = 50_000
"""Requests in this process that are not answered yet; beyond it new ones are refused."""
REROUTES_MAX = 8
REROUTE_PAUSE_S = 0.02
CLOSED_LOOKS = 2
"""How often a product is looked up again before closed is believed; the first look may have begun just
before it was loaded anew."""
PRODUCTS_MAX = 4_096
"""Products whose layout this process remembers; 20 kB each with 6 shards."""
SURVEYS_MAX = 8
ADJUST_ROUNDS_MIN = 64


class LoadConflictError(StockError):
    """A shard has another epoch than the one that is to be loaded or closed."""


class CloseBusyError(StockError):
    """Units are held or on their way; the text says which. Close again later."""


class _Correction(NamedTuple):
    """A restock or removal."""

    kind: str
    request_id: str
    quantity: int
    reason: str


class _Product:
    """One product under its present layout, as this process routes to it."""

    __slots__ = ("former", "homes", "listing", "shards", "shortage")

    def __init__(
        self, stock: "Stock", listing: Listing, shards: Shards, former: Sequence[Shards]
    ) -> None:
        self.listing = listing
        self.former = former
        self.shards = shards
        self.shortage = Shortage(shards, stock.metrics)
        self.homes = [
            Home(
                shards,
                shard,
                former,
                listing.loaded_s,
                self.shortage,
                stock.metrics,
                reroute=stock.reroute,
                spawn=stock.spawn,
            )
            for shard in range(listing.layout.shards)
        ]


class Stock:
    """Takes units and reads, loads, closes products. Lives in one event loop.

    Requests are worked on by tasks of this object: a caller that stops waiting for an answer cuts
    nothing in two. `drain` waits for all of them.
    """

    def __init__(self, cluster: Cluster, metrics: StockMetrics) -> None:
        self.metrics = metrics
        self._cluster = cluster
        self._directory = Directory(cluster)
        self._products: OrderedDict[int, _Product] = OrderedDict()
        self._lookups: dict[int, asyncio.Task[_Product | None]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._queued = 0

    def deduct(self, deductions: Sequence[Deduction]) -> asyncio.Future[list[Answer]]:
        """Take units for each request that stands alone; the answers come in the same order.

        Never raises for a request: a failure is its answer.
        """
        done: asyncio.Future[list[Answer]] = asyncio.get_running_loop().create_future()
        size = len(deductions)
        if not size:
            done.set_result([])
            return done
        if self._queued + size > QUEUED_REQUESTS_MAX:
            done.set_result([unavailable(Reason.QUEUE_FULL)] * size)
            return done
        self._queued += size
        batch = Batch(size, done, self._release)
        by_product: dict[int, Group] = {}
        for position, deduction in enumerate(deductions):
            product_id = deduction[1]
            group = by_product.get(product_id)
            if group is None:
                group = by_product[product_id] = Group([], [], batch)
            group.requests.append(deduction)
            group.positions.append(position)
        for product_id, group in by_product.items():
            self._route(product_id, group)
        return done

    def reroute(self, group: Group) -> None:
        """Look a group's product up again and send it on: its layout may be outdated."""
        product_id = group.requests[0].product_id
        product = self._products.get(product_id)
        if group.why is Reason.PRODUCT_CLOSED and group.reroutes > CLOSED_LOOKS:
            # An older copy cannot know that the product was loaded anew elsewhere.
            is_fact = product is not None and not product.listing.is_copy
            answer = CLOSED if is_fact else unavailable(Reason.SHARDS_UNREACHABLE)
            group.answer([answer] * len(group.requests))
            return
        self._products.pop(product_id, None)
        if group.reroutes > REROUTES_MAX:
            if group.why is Reason.SHARD_CORRUPT:
                self.metrics.corrupt.inc()
            refuse(group, group.why)
            return
        self.spawn(self._look_up_and_route(product_id, group), f"reroute {product_id}")

    async def read(self, product_id: int) -> ProductStock | None:
        """The live counts; None if the product was never loaded. StockUnavailableError."""
        reason = Reason.LAYOUT_CHANGING
        for _ in range(REROUTES_MAX):
            product = await self._find(product_id)
            if product is None:
                return None
            try:
                seen = await self._survey(product.shards)
            except MissingShardError:
                reason = Reason.SHARD_CORRUPT
                await self._forget(product_id)
                continue
            if all(r.layout == product.listing.layout.version for r in seen.readings):
                return _product_stock(product_id, product.listing, seen)
            reason = Reason.LAYOUT_CHANGING
            await self._forget(product_id)
        if reason is Reason.SHARD_CORRUPT:
            self.metrics.corrupt.inc()
        raise StockUnavailableError(reason, f"product {product_id}")

    async def restock(
        self, product_id: int, *, request_id: str, quantity: int, reason: str
    ) -> Answer:
        """Add units once per request id. DEDUCTED means that it was applied."""
        return await self._whole(
            self._adjust("restock", product_id, request_id, quantity, reason), "restock"
        )

    async def remove(
        self, product_id: int, *, request_id: str, quantity: int, reason: str
    ) -> Answer:
        """Take unsold units away once per request id. DEDUCTED means that it was applied."""
        return await self._whole(
            self._adjust("remove", product_id, request_id, quantity, reason), "remove"
        )

    async def load(self, plan: LoadPlan) -> None:
        """Put a product's units into its shards and open them. Repeating it changes nothing.

        LoadConflictError if a shard is in another epoch; StockUnavailableError: call again.
        """
        await self._whole(self._load(plan), "load")

    async def close(self, product_id: int, epoch: int) -> None:
        """Stop every shard, finish transfers, give the units back. Repeating it changes nothing.

        LoadConflictError if the product is in another epoch; CloseBusyError while units are held;
        StockUnavailableError: call again.
        """
        await self._whole(self._close(product_id, epoch), "close")

    async def open_transfers(self, product_id: int) -> frozenset[OpenTransfer]:
        """The transfers of a product that are open now."""
        product = await self._find(product_id)
        if product is None:
            return frozenset()
        readings = await product.shards.read_all()
        return frozenset(transfer for r in readings for transfer in r.open_transfers)

    async def drain(self) -> None:
        """Return once everything that was asked for is answered."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    def _release(self, size: int) -> None:
        self._queued -= size

    def _route(self, product_id: int, group: Group) -> None:
        product = self._products.get(product_id)
        if product is None:
            self.spawn(self._look_up_and_route(product_id, group), f"look up {product_id}")
            return
        for home, part in _by_home(product, group):
            home.put(part)

    async def _look_up_and_route(self, product_id: int, group: Group) -> None:
        if group.reroutes > 1:
            await asyncio.sleep(REROUTE_PAUSE_S)
        try:
            product = await self._find(product_id)
        except StockUnavailableError as failure:
            refuse(group, failure.reason)
            return
        except Exception:  # noqa: BLE001 - the top of a task: whoever waits must be answered
            _LOG.exception("looking a product up failed")
            refuse(group, Reason.SHARD_CORRUPT)
            return
        if product is None:
            group.answer([Answer(Outcome.UNKNOWN_PRODUCT)] * len(group.requests))
            return
        self._route(product_id, group)

    async def _find(self, product_id: int) -> _Product | None:
        product = self._products.get(product_id)
        if product is not None:
            return product
        lookup = self._lookups.get(product_id)
        if lookup is None:
            lookup = asyncio.create_task(self._look_up(product_id), name=f"find {product_id}")
            self._lookups[product_id] = lookup
            lookup.add_done_callback(lambda _: self._lookups.pop(product_id, None))
        return await asyncio.shield(lookup)

    async def _look_up(self, product_id: int) -> _Product | None:
        listing = await self._directory.find(product_id)
        if listing is None:
            return None
        shards = Shards(self._cluster, product_id, listing.layout)
        # No shard is ever asked by version 0, so there is nothing but answers to earlier requests.
        former = [Shards(self._cluster, product_id, Layout(0, count)) for count in listing.former]
        product = _Product(self, listing, shards, former)
        self._products[product_id] = product
        self._drop_oldest_products()
        return product

    def _drop_oldest_products(self) -> None:
        """Forget the products that were looked up first, until few enough are remembered.

        One that is at work finishes what it has; it is only not found again.
        """
        while len(self._products) > PRODUCTS_MAX:
            self._products.popitem(last=False)

    async def _forget(self, product_id: int) -> None:
        self._products.pop(product_id, None)
        await asyncio.sleep(REROUTE_PAUSE_S)

    async def _survey(self, shards: Shards) -> Survey:
        """A proven reading where there is one within bounds, else the last one."""
        seen = await survey(shards)
        for _ in range(SURVEYS_MAX - 1):
            if seen.proven:
                break
            seen = await survey(shards)
        return seen

    async def _adjust(
        self, kind: str, product_id: int, request_id: str, quantity: int, reason: str
    ) -> Answer:
        looks = 0
        for _ in range(ADJUST_ROUNDS_MIN + 4 * self._cluster.settings.partitions):
            product = await self._find(product_id)
            if product is None:
                return Answer(Outcome.UNKNOWN_PRODUCT)
            answer = await self._adjust_once(kind, product, request_id, quantity, reason)
            if answer in (STALE, MISSING) or (answer == CLOSED and looks < CLOSED_LOOKS):
                looks += answer == CLOSED
                await self._forget(product_id)
            elif answer == CLOSED and product.listing.is_copy:
                return unavailable(Reason.SHARDS_UNREACHABLE)
            elif answer is not None:
                return answer
        return unavailable(Reason.CONTENDED)

    async def _adjust_once(
        self, kind: str, product: _Product, request_id: str, quantity: int, reason: str
    ) -> Answer | None:
        """None: units were brought to the request's home, ask again."""
        correction = _Correction(kind, request_id, quantity, reason)
        try:
            for former in product.former:
                earlier = await _adjust_at(former, correction)
                if earlier.statuses in (b"R", b"M"):
                    return _adjusted(earlier, shard=home_shard(request_id, former.layout.shards))
            shards = product.shards
            shard = home_shard(request_id, shards.layout.shards)
            served = await _adjust_at(shards, correction)
            if served.statuses != b"I":
                return _adjusted(served, shard=shard)
            gathered = await product.shortage.gather(
                shards.partitions[shard], quantity, at_home=served.available
            )
        except MissingShardError:
            return MISSING
        if gathered is Gathered.TOO_FEW:
            return INSUFFICIENT
        if gathered is Gathered.NOTHING_NOW:
            await asyncio.sleep(REROUTE_PAUSE_S)
        return None

    async def _load(self, plan: LoadPlan) -> None:
        shards = Shards(self._cluster, plan.product_id, plan.layout)
        await self._all(
            self._load_shard(shards, partition, amount, plan)
            for partition, amount in zip(shards.partitions, plan.amounts, strict=True)
        )
        await self._all(
            self._lead(shards, partition, plan.epoch, State.LOADING, State.OPEN)
            for partition in shards.partitions
        )
        self._products.pop(plan.product_id, None)

    async def _close(self, product_id: int, epoch: int) -> None:
        # Another process may have loaded it with other shards since this one looked.
        self._products.pop(product_id, None)
        product = await self._find(product_id)
        if product is None:
            raise LoadConflictError(f"product {product_id} was never loaded")
        if product.listing.epoch != epoch:
            raise LoadConflictError(f"product {product_id} is not in epoch {epoch} any more")
        shards = product.shards
        await self._all(
            self._lead(shards, partition, epoch, State.OPEN, State.CLOSING)
            for partition in shards.partitions
        )
        for reading in await shards.read_all():
            for transfer in reading.open_transfers:
                await shards.finish(transfer)
        await self._all(_close_shard(shards, partition, epoch) for partition in shards.partitions)

    async def _load_shard(
        self, shards: Shards, partition: int, amount: int, plan: LoadPlan
    ) -> None:
        loaded = await shards.load(partition, amount, plan)
        if loaded.word != "done":
            raise LoadConflictError(
                f"product {plan.product_id} cannot be loaded as epoch {plan.epoch}: "
                f"its shard in partition {partition} answers {loaded.word}"
            )
        if loaded.state is State.LOADING and loaded.available != amount:
            raise LoadConflictError(
                f"product {plan.product_id}: its shard in partition {partition} holds "
                f"{loaded.available} units instead of {amount}"
            )

    async def _lead(
        self, shards: Shards, partition: int, epoch: int, source: State, target: State
    ) -> None:
        state = await shards.change_state(partition, epoch=epoch, source=source, target=target)
        if state == "passed":
            raise LoadConflictError(f"product {shards.product_id} is not in epoch {epoch} any more")

    async def _all(self, steps: Iterable[Coroutine[object, object, None]]) -> None:
        results = await asyncio.gather(*steps, return_exceptions=True)
        for result in results:
            if isinstance(result, MissingShardError):
                raise StockUnavailableError(Reason.SHARD_CORRUPT, "a shard's key is gone")
            if isinstance(result, BaseException):
                raise result

    def spawn(self, work: Coroutine[object, object, Result], name: str) -> asyncio.Task[Result]:
        """Work that `drain` waits for."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _whole(self, work: Coroutine[object, object, Result], name: str) -> Result:
        """The result of work of several steps, which goes on if the caller stops waiting for it."""
        return await asyncio.shield(self.spawn(work, name))


def _by_home(product: _Product, group: Group) -> Iterable[tuple[Home, Group]]:
    homes = product.homes
    count = len(homes)
    if count == 1:
        return ((homes[0], group),)
    if len(group.requests) == 1:
        return ((homes[home_shard(group.requests[0][0], count)], group),)
    parts: dict[int, Group] = {}
    for request, position in zip(group.requests, group.positions, strict=True):
        shard = home_shard(request[0], count)
        part = parts.get(shard)
        if part is None:
            part = parts[shard] = group._replace(requests=[], positions=[])
        part.requests.append(request)
        part.positions.append(position)
    return ((homes[shard], part) for shard, part in parts.items())


async def _close_shard(shards: Shards, partition: int, epoch: int) -> None:
    word = await shards.close(partition, epoch=epoch)
    if word == "passed":
        raise LoadConflictError(f"product {shards.product_id} is not in epoch {epoch} any more")
    if word != "done":
        raise CloseBusyError(f"product {shards.product_id}, partition {partition}: {word}")


async def _adjust_at(shards: Shards, wanted: _Correction) -> Served:
    """Restock or remove at the home that the request has among these shards."""
    return await shards.adjust(
        shards.partitions[home_shard(wanted.request_id, shards.layout.shards)],
        wanted.kind,
        request_id=wanted.request_id,
        quantity=wanted.quantity,
        reason=wanted.reason,
    )


def _adjusted(served: Served, *, shard: int) -> Answer:
    firsts = (str(served.available).encode(),) if served.statuses == b"R" else ()
    request = Deduction("", 0, 0)
    return answers([request], served._replace(firsts=firsts), shard=shard)[0]


def _product_stock(product_id: int, listing: Listing, seen: Survey) -> ProductStock:
    return ProductStock(
        product_id=product_id,
        state=_state_of(seen.readings),
        frozen=any(reading.frozen for reading in seen.readings),
        layout_version=listing.layout.version,
        epoch=listing.epoch,
        buffer=listing.buffer,
        sold_before=listing.sold_before,
        shards=tuple(_shard_stock(i, reading) for i, reading in enumerate(seen.readings)),
        exact=seen.proven,
    )


def _state_of(readings: Sequence[ShardReading]) -> State:
    """The state that is furthest from being on sale."""
    for state in (State.CLOSED, State.CLOSING, State.LOADING):
        if any(reading.state is state for reading in readings):
            return state
    return State.OPEN


def _shard_stock(shard: int, reading: ShardReading) -> ShardStock:
    return ShardStock(
        shard=shard,
        partition=reading.partition,
        available=reading.available,
        held=reading.held,
        sold=reading.sold,
        loaded=reading.loaded,
        in_transit=sum(transfer.units for transfer in reading.open_transfers),
    )
