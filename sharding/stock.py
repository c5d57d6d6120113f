"""The live stock of all products: what the server asks of this package."""

import asyncio
from collections.abc import Coroutine, Iterable, Sequence

from sharding.answers import STALE, answers, unavailable
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
from sharding.placement import home_shard
from sharding.plans import LoadPlan
from sharding.shards import MissingShardError, OpenTransfer, Served, ShardReading, Shards
from sharding.shortage import Shortage, Survey, survey

QUEUED_REQUESTS_MAX = 50_000
"""Requests in this process that are not answered yet; beyond it new ones are refused."""
REROUTES_MAX = 8
REROUTE_PAUSE_S = 0.02
SURVEYS_MAX = 8
ADJUST_ROUNDS_MAX = 64


class LoadConflictError(StockError):
    """A shard has another epoch than the one that is to be loaded or closed."""


class CloseBusyError(StockError):
    """Units are held or on their way; the text says which. Close again later."""


class _Product:
    """One product under its present layout, as this process routes to it."""

    __slots__ = ("homes", "listing", "shards")

    def __init__(self, stock: "Stock", listing: Listing, shards: Shards) -> None:
        self.listing = listing
        self.shards = shards
        shortage = Shortage(shards, stock.metrics)
        self.homes = [
            Home(shards, shard, shortage, stock.metrics, stock.reroute)
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
        self._products: dict[int, _Product] = {}
        self._lookups: dict[int, asyncio.Task[_Product | None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._serving: set[Home] = set()
        self._queued = 0

    def deduct(self, deductions: Sequence[Deduction]) -> asyncio.Future[list[Answer]]:
        """Take units for each request that stands alone; the answers come in the same order.

        Never raises for a request: a failure is its answer.
        """
        done: asyncio.Future[list[Answer]] = asyncio.get_running_loop().create_future()
        size = len(deductions)
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
        """Look a group's product up again and send it on: its layout was outdated."""
        product_id = group.requests[0].product_id
        self._products.pop(product_id, None)
        if group.reroutes > REROUTES_MAX:
            if group.why is Reason.SHARD_CORRUPT:
                self.metrics.corrupt.inc()
            refuse(group, group.why)
            return
        self._spawn(self._look_up_and_route(product_id, group), f"reroute {product_id}")

    async def read(self, product_id: int) -> ProductStock | None:
        """The live counts; None if the product was never loaded. StockUnavailableError."""
        for _ in range(REROUTES_MAX):
            product = await self._find(product_id)
            if product is None:
                return None
            try:
                seen = await self._survey(product.shards)
            except MissingShardError:
                await self._forget(product_id)
                continue
            if any(r.layout != product.listing.layout.version for r in seen.readings):
                await self._forget(product_id)
                continue
            return _product_stock(product_id, product.listing, seen)
        self.metrics.corrupt.inc()
        raise StockUnavailableError(Reason.SHARD_CORRUPT, f"product {product_id} lacks a shard")

    async def restock(
        self, product_id: int, *, request_id: str, quantity: int, reason: str
    ) -> Answer:
        """Add units once per request id. DEDUCTED means that it was applied."""
        return await self._adjust("restock", product_id, request_id, quantity, reason)

    async def remove(
        self, product_id: int, *, request_id: str, quantity: int, reason: str
    ) -> Answer:
        """Take unsold units away once per request id. DEDUCTED means that it was applied."""
        return await self._adjust("remove", product_id, request_id, quantity, reason)

    async def load(self, plan: LoadPlan) -> None:
        """Put a product's units into its shards and open them. Repeating it changes nothing.

        LoadConflictError if a shard is in another epoch; StockUnavailableError: call again.
        """
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

    async def close(self, product_id: int, epoch: int) -> None:
        """Stop every shard, finish transfers, give the units back. Repeating it changes nothing.

        CloseBusyError while units are held; StockUnavailableError: call again.
        """
        product = await self._find(product_id)
        if product is None:
            raise LoadConflictError(f"product {product_id} was never loaded")
        shards = product.shards
        await self._all(
            self._lead(shards, partition, epoch, State.OPEN, State.CLOSING)
            for partition in shards.partitions
        )
        await self.finish_transfers(product_id)
        await self._all(_close_shard(shards, partition, epoch) for partition in shards.partitions)

    async def finish_transfers(self, product_id: int) -> int:
        """Bring every open transfer of a product to its end; returns how many there were."""
        product = await self._find(product_id)
        if product is None:
            return 0
        transfers = [
            transfer
            for reading in await product.shards.read_all()
            for transfer in reading.open_transfers
        ]
        for transfer in transfers:
            await product.shards.finish(transfer)
        return len(transfers)

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
            self._spawn(self._look_up_and_route(product_id, group), f"look up {product_id}")
            return
        for home, part in _by_home(product, group):
            home.put(part)
            if home not in self._serving:
                self._serving.add(home)
                self._spawn(self._serve(home), "serve")

    async def _serve(self, home: Home) -> None:
        try:
            await home.serve_queue()
        finally:
            self._serving.discard(home)

    async def _look_up_and_route(self, product_id: int, group: Group) -> None:
        if group.reroutes > 1:
            await asyncio.sleep(REROUTE_PAUSE_S)
        try:
            product = await self._find(product_id)
        except StockUnavailableError as failure:
            refuse(group, failure.reason)
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
        product = _Product(self, listing, Shards(self._cluster, product_id, listing.layout))
        self._products[product_id] = product
        return product

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
        for _ in range(ADJUST_ROUNDS_MAX):
            product = await self._find(product_id)
            if product is None:
                return Answer(Outcome.UNKNOWN_PRODUCT)
            answer = await self._adjust_once(kind, product, request_id, quantity, reason)
            if answer is STALE:
                await self._forget(product_id)
            elif answer is not None:
                return answer
        return unavailable(Reason.CONTENDED)

    async def _adjust_once(
        self, kind: str, product: _Product, request_id: str, quantity: int, reason: str
    ) -> Answer | None:
        """None: units were brought to the request's home, ask again."""
        shards = product.shards
        shard = home_shard(request_id, shards.layout.shards)
        home = shards.partitions[shard]
        try:
            served = await shards.adjust(
                home, kind, request_id=request_id, quantity=quantity, reason=reason
            )
            request = Deduction(request_id, shards.product_id, quantity)
            if served.statuses == b"I":
                return await self._gather_for_removal(shards, home, quantity, served)
        except MissingShardError:
            return STALE
        return _adjusted(request, served, shard=shard)

    async def _gather_for_removal(
        self, shards: Shards, home: int, quantity: int, served: Served
    ) -> Answer | None:
        seen = await survey(shards)
        for transfer in seen.open_transfers:
            await shards.finish(transfer)
        if seen.proven and seen.available < quantity:
            return Answer(Outcome.INSUFFICIENT_STOCK)
        donor = seen.richest_but(home)
        if donor is None or seen.open_transfers:
            return None
        number = donor.last_out.get(home, 0) + 1
        lacking = max(1, quantity - served.available)
        taken = await shards.take(donor.partition, receiver=home, number=number, quantity=lacking)
        if taken.word == "taken":
            await shards.finish(OpenTransfer(donor.partition, home, number, taken.numbers[0]))
        return None

    async def _load_shard(
        self, shards: Shards, partition: int, amount: int, plan: LoadPlan
    ) -> None:
        word, available, state = await shards.load(
            partition,
            epoch=plan.epoch,
            amount=amount,
            buffer=plan.buffer,
            sold_before=plan.sold_before,
        )
        if word != "done":
            raise LoadConflictError(
                f"product {plan.product_id} cannot be loaded as epoch {plan.epoch}: "
                f"its shard in partition {partition} answers {word}"
            )
        if state == State.LOADING and available != amount:
            raise LoadConflictError(
                f"product {plan.product_id}: its shard in partition {partition} holds {available} "
                f"units instead of {amount}"
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

    def _spawn(self, work: Coroutine[object, object, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


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


def _adjusted(request: Deduction, served: Served, *, shard: int) -> Answer:
    firsts = (b"0",) if served.statuses == b"R" else ()
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
