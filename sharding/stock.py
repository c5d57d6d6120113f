"""The live stock of all products: what server and worker ask of this package."""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from math import inf

from sharding.answers import CLOSED, SOLD_OUT, unavailable
from sharding.auditing import Auditing, Marked
from sharding.balancing import Balancing
from sharding.batches import Batch
from sharding.catalogue import Catalogue, Product
from sharding.cluster import Cluster
from sharding.corrections import CLOSED_LOOKS, Correction, Corrections
from sharding.directory import Directory, Listing
from sharding.errors import StockUnavailableError
from sharding.events import EventId, Repair
from sharding.freezing import Freezing
from sharding.home import Group, Home, HomeContext, Served, refuse
from sharding.layouts import Layouts
from sharding.loading import BeforeOpening, Loading
from sharding.metrics import StockMetrics
from sharding.notes import NOTE_S, Note
from sharding.outcomes import (
    Answer,
    Deduction,
    Outcome,
    ProductStock,
    Reason,
    Resolved,
    ShardStock,
    State,
)
from sharding.placement import Layout, home_shard
from sharding.plans import Freeze, LoadPlan
from sharding.readings import ShardReading
from sharding.recalling import Recalling
from sharding.resolving import Resolving
from sharding.shards import Found, MissingShardError, Shards
from sharding.shortage import Survey, in_transit, versions
from sharding.tasks import Tasks

_LOG = logging.getLogger(__name__)

QUEUED_REQUESTS_MAX = 50_000
"""Requests in this process that are not answered yet; beyond it new ones are refused."""
REQUEST_ID, USER_ID = 0, 3
"""What selects a request's home, by its place in a Deduction; see placement.home_key."""
REROUTE_PAUSE_S = 0.02
MISSING_LOOKS = 8
READINGS_MAX = 16
READS_MAX = 8


class Stock:
    """Takes units and reads, loads, closes, splits products. Lives in one event loop.

    Requests are worked on by tasks of this object: a caller that stops waiting for an answer cuts
    nothing in two. `drain` waits for all of them.
    """

    def __init__(
        self, cluster: Cluster, metrics: StockMetrics, *, served: Served | None = None
    ) -> None:
        """`served` is told of requests that their own shards answer."""
        self.metrics = metrics
        self._cluster = cluster
        self._tasks = Tasks()
        partitions = cluster.settings.partitions
        self._directory = directory = Directory(cluster)
        context = HomeContext(cluster, metrics, self._tasks, self._reroute, served)
        self._catalogue = Catalogue(directory, context)
        self._corrections = Corrections(self._catalogue, partitions=partitions)
        self._loading = Loading(cluster, self._catalogue)
        self._balancing = Balancing(self._catalogue)
        self._layouts = Layouts(cluster, directory, self._catalogue, self._balancing)
        self._resolving = Resolving(cluster, directory)
        self._auditing = Auditing(cluster, directory)
        self._freezing = Freezing(cluster, directory)
        self._recalling = Recalling(cluster)
        self._reroute_s_max = cluster.settings.redis_patience_ms / 1_000
        self._queued = 0

    def deduct(
        self, deductions: Sequence[Deduction], *, is_new: bool = False
    ) -> asyncio.Future[list[Answer]]:
        """Take units for each request that stands alone; the answers come in the same order.

        All of them are lines of orders, or none is. `is_new`: nobody has ever asked for them before,
        even if their `attempt` has their refusal remembered. Never raises for a request: a failure is
        its answer.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[list[Answer]] = loop.create_future()
        size = len(deductions)
        if not size:
            done.set_result([])
            return done
        if self._queued + size > QUEUED_REQUESTS_MAX:
            done.set_result([unavailable(Reason.QUEUE_FULL)] * size)
            return done
        self._queued += size
        batch = Batch(size, done, self._release)
        since_s = loop.time()
        by_product: dict[int, Group] = {}
        for position, deduction in enumerate(deductions):
            product_id = deduction[1]
            group = by_product.get(product_id)
            if group is None:
                group = Group([], [], batch, since_s, is_new=is_new)
                by_product[product_id] = group
            group.requests.append(deduction)
            group.positions.append(position)
        for product_id, group in by_product.items():
            self._route(product_id, group)
        return done

    async def read(self, product_id: int) -> ProductStock | None:
        """The live counts; None if the product was never loaded. StockUnavailableError."""
        reason = Reason.LAYOUT_CHANGING
        for _ in range(READS_MAX):
            product = await self._catalogue.find(product_id)
            if product is None:
                return None
            try:
                seen = await _read_consistently(product.shards)
            except MissingShardError:
                reason = Reason.SHARD_CORRUPT
                await self._forget(product_id)
                continue
            serving = seen.readings[: len(product.shards.partitions)]
            if all(r.layout == product.listing.layout.version for r in serving):
                return _product_stock(product_id, product.listing, seen.readings, exact=seen.proven)
            reason = Reason.LAYOUT_CHANGING
            await self._forget(product_id)
        if reason is Reason.SHARD_CORRUPT:
            self.metrics.corrupt.inc()
        raise StockUnavailableError(reason, f"product {product_id}")

    async def read_present(self, product_id: int) -> ProductStock | None:
        """The live counts of the shards that answer soon, which is not exact; `unread` names the
        others. None if the product was never loaded. StockUnavailableError, also if no shard answers."""
        listing = await self._directory.find_present(product_id)
        if listing is None:
            return None
        shards = Shards(self._cluster, product_id, listing.layout, earlier=listing.earlier)
        try:
            seen = await shards.read_present()
        except MissingShardError:
            raise StockUnavailableError(Reason.SHARD_CORRUPT, f"product {product_id}") from None
        serving = seen.readings[: listing.layout.shards]
        if any(each and each.layout != listing.layout.version for each in serving):
            raise StockUnavailableError(Reason.LAYOUT_CHANGING, f"product {product_id}")
        return _product_stock(product_id, listing, seen.readings, exact=False, unread=seen.unread)

    async def restock(
        self, product_id: int, *, request_id: str, quantity: int, reason: str, actor: str = ""
    ) -> Answer:
        """Add units once per request id. DEDUCTED means that it was applied."""
        wanted = Correction("restock", product_id, request_id, quantity, reason, actor)
        return await self._tasks.whole(self._corrections.apply(wanted), "restock")

    async def remove(
        self, product_id: int, *, request_id: str, quantity: int, reason: str, actor: str = ""
    ) -> Answer:
        """Take unsold units away once per request id. DEDUCTED means that it was applied."""
        wanted = Correction("remove", product_id, request_id, quantity, reason, actor)
        return await self._tasks.whole(self._corrections.apply(wanted), "remove")

    async def load(self, plan: LoadPlan, *, before_opening: BeforeOpening | None = None) -> None:
        """Put a product's units into its shards and open them. Repeating it changes nothing.

        `before_opening` is awaited when all shards are there: what it says of a freeze counts, and not
        the plan's; what it raises leaves the product unsold. LoadConflictError if a shard is in another
        epoch; StockUnavailableError: call again.
        """
        await self._tasks.whole(self._loading.load(plan, before_opening), "load")

    async def close(self, product_id: int, epoch: int) -> int:
        """Stop every shard, finish transfers, give the units back; returns the number of shards.
        Repeating it changes nothing.

        LoadConflictError if the product is in another epoch; CloseBusyError while units are held;
        StockUnavailableError: call again.
        """
        return await self._tasks.whole(self._loading.close(product_id, epoch), "close")

    async def resolve(self, product_id: int, request_id: str) -> Resolved | Answer:
        """Decide what became of a request; where nothing did, nothing ever will. Never raises."""
        return await self._tasks.whole(self._resolving.resolve(product_id, request_id), "resolve")

    async def locate(self, product_id: int, request_id: str) -> Found | Answer:
        """Decide a request as `resolve` does, and say where its record is."""
        return await self._tasks.whole(self._resolving.find(product_id, request_id), "locate")

    async def recall(
        self, product_id: int, layout: Layout, sold: Sequence[Deduction]
    ) -> list[Deduction]:
        """Remember requests that were sold from the ledger's buffer. See Recalling.recall."""
        work = self._recalling.recall(product_id, layout, sold)
        return await self._tasks.whole(work, "recall")

    async def change_layout(
        self, product_id: int, *, version: int, shards: int, cause: str
    ) -> bool:
        """Split a product that sells over another number of shards. See Layouts.change."""
        work = self._layouts.change(product_id, version=version, shards=shards, cause=cause)
        return await self._tasks.whole(work, "change layout")

    async def drain_retired(self, product_id: int) -> bool:
        """Bring the units of shards that left to the others; whether nothing is left there.

        StockUnavailableError.
        """
        return await self._tasks.whole(self._balancing.drain_retired(product_id), "drain")

    async def rebalance(self, product_id: int) -> int:
        """Level shards that have drifted apart, merge fragments; returns the units that moved.

        StockUnavailableError.
        """
        return await self._tasks.whole(self._balancing.rebalance(product_id), "rebalance")

    async def undo(
        self,
        product_id: int,
        *,
        epoch: int,
        partition: int,
        request_id: str,
        quantity: int,
        undone: EventId,
    ) -> bool:
        """Bring the units of a request's second effect back, once per `undone`, the event that had it.

        False: nothing to do, the shard is closed or of another epoch. StockUnavailableError.
        """
        shards = Shards(self._cluster, product_id, Layout(0, 1))
        try:
            word = await shards.undo(
                partition, epoch=epoch, request_id=request_id, quantity=quantity, undone=undone
            )
        except MissingShardError:
            word = "corrupt"
        if word not in ("done", "passed"):
            raise StockUnavailableError(Reason.SHARD_CORRUPT, f"p{partition:02d} {word}")
        return word == "done"

    async def bring_buffer(self, product_id: int, *, epoch: int, released: int) -> int | None:
        """Put units on sale that the ledger has taken out of the buffer: of the `released` ones of this
        epoch all that have not come yet, however often and late it is called. Returns how many came;
        None: the product was closed, and the ledger has them.

        Ends when no process refuses anybody any more by a proof from before. StockUnavailableError.
        """
        return await self._tasks.whole(
            self._bring_buffer(product_id, epoch, released), "bring buffer"
        )

    async def _bring_buffer(self, product_id: int, epoch: int, released: int) -> int | None:
        shards = Shards(self._cluster, product_id, Layout(0, 1))
        (base,) = shards.partitions
        try:
            word, units = await shards.bring_buffer(base, epoch=epoch, released=released)
        except MissingShardError:
            raise StockUnavailableError(Reason.SHARD_CORRUPT, f"product {product_id}") from None
        if word == "loading":
            raise StockUnavailableError(Reason.PRODUCT_LOADING, f"product {product_id}")
        if word == "passed":
            return None
        await self.outlive_notes([product_id])
        return units

    async def mark(self, product_id: int) -> Marked | None:
        """Have every shard's counts told in its stream; see Auditing.mark."""
        return await self._tasks.whole(self._auditing.mark(product_id), "mark")

    async def repair(
        self, product_id: int, partition: int, repair: Repair, *, epoch: int, reason: str
    ) -> bool:
        """Compensate a difference from the ledger, once; see Auditing.repair."""
        work = self._auditing.repair(product_id, partition, repair, epoch=epoch, reason=reason)
        return await self._tasks.whole(work, "repair")

    async def freeze(self, product_id: int, freeze: Freeze) -> frozenset[int]:
        """Stop or resume the sale at every shard that can be reached; see Freezing.apply."""
        return await self._tasks.whole(self._freezing.apply(product_id, freeze), "freeze")

    async def freeze_at(self, partition: int, product_id: int, freeze: Freeze) -> None:
        """The same at one partition, open or not; see Freezing.apply_at."""
        await self._freezing.apply_at(partition, product_id, freeze)

    async def finish_transfers(self, product_id: int, donor: int, receiver: int) -> None:
        """Let all that one shard gave another arrive, whoever left it open; what the donor has forgotten
        to have given leaves it, too.

        StockUnavailableError: not all of that can be now, as where one of them is being restored, or the
        donor owes more than it has and others could give it.
        """
        work = self._finish_transfers(product_id, donor, receiver)
        await self._tasks.whole(work, "finish transfers")

    async def _finish_transfers(self, product_id: int, donor: int, receiver: int) -> None:
        known = await Shards(self._cluster, product_id, Layout(0, 1)).finish(donor, receiver)
        if known.owed:
            await self._balancing.repay(product_id, donor, receiver, owed=known.owed)
        elif not known.is_even:
            where = f"p{receiver:02d} takes nothing now"
            raise StockUnavailableError(Reason.NOT_EXECUTED, where)

    async def outlive_notes(self, product_ids: Iterable[int]) -> None:
        """Return when no process refuses anybody any more by a proof from before this call."""
        for product_id in product_ids:
            product = self._catalogue.get(product_id)
            if product is not None:
                product.shortage.forget_note()
        await asyncio.sleep(NOTE_S)

    async def objection(self, product_id: int, user_id: int) -> Answer | None:
        """What every request of this user for the product would be refused for; None: nothing known.

        StockUnavailableError.
        """
        product = await self._catalogue.find(product_id)
        if product is None:
            return Answer(Outcome.UNKNOWN_PRODUCT)
        if product.lookups.by_user and not user_id:
            return _NAMELESS
        return None

    async def about(self, product_id: int) -> float:
        """About how many units can be taken now, by one reading; 0 of a product that was never loaded,
        infinitely many where a shard does not answer."""
        try:
            product = await self._catalogue.find(product_id)
            if product is None:
                return 0
            note = product.shortage.note
            if note is not None:
                return note.available
            return sum(reading.available for reading in await product.shards.read_all())
        except (StockUnavailableError, MissingShardError):
            return inf

    def take_rates(self) -> dict[int, int]:
        """Requests per product that this process was asked since the last call."""
        return self._catalogue.take_rates()

    async def drain(self) -> None:
        """Return once everything that was asked for is answered."""
        await self._tasks.drain()

    def _release(self, size: int) -> None:
        self._queued -= size

    def _route(self, product_id: int, group: Group) -> None:
        product = self._catalogue.get(product_id)
        if product is None:
            work = self._look_up_and_route(product_id, group)
            self._tasks.spawn(work, f"look up {product_id}")
            return
        product.asked += len(group.requests)
        if product.lookups.by_user:
            named = _refuse_nameless(group)
            if named is None:
                return
            group = named
        note = product.shortage.note
        left = group if note is None else self._refuse_by(note, product, group)
        if left is not None:
            for home, part in _by_home(product, left):
                home.put(part)

    def _refuse_by(self, note: Note, product: Product, group: Group) -> Group | None:
        """Refuse the first tries that a proof speaks of; returns the others."""
        refused = note.refuses(group.requests)
        if not refused:
            return group
        if note.is_ageing(asyncio.get_running_loop().time()) and not product.shortage.is_proving:
            self._tasks.spawn(product.shortage.renew_note(), "renew note")
        self.metrics.noted_refusals.inc(len(refused))
        if len(refused) == len(group.requests):
            group.answer([SOLD_OUT] * len(refused))
            return None
        group.part(refused).answer([SOLD_OUT] * len(refused))
        gone = set(refused)
        return group.part([i for i in range(len(group.requests)) if i not in gone])

    def _reroute(self, group: Group) -> None:
        """Look a group's product up again and send it on: its layout may be outdated."""
        product_id = group.requests[0].product_id
        if group.why is Reason.PRODUCT_CLOSED and group.reroutes > CLOSED_LOOKS:
            # An older copy cannot know that the product was loaded anew elsewhere.
            answer = unavailable(Reason.SHARDS_UNREACHABLE) if group.by_copy else CLOSED
            group.answer([answer] * len(group.requests))
            return
        self._catalogue.forget(product_id)
        if self._is_lost(group):
            # Too few looks to believe that it is closed.
            is_closed = group.why is Reason.PRODUCT_CLOSED
            refuse(group, Reason.SHARDS_UNREACHABLE if is_closed else group.why)
            return
        self._tasks.spawn(self._look_up_and_route(product_id, group), f"reroute {product_id}")

    def _is_lost(self, group: Group) -> bool:
        """Whether there is no point in looking once more: a change of the layout takes its time, but a
        key that is gone stays gone."""
        if group.why is Reason.SHARD_CORRUPT:
            lost = group.reroutes > MISSING_LOOKS
            self.metrics.corrupt.inc(lost)
            return lost
        return asyncio.get_running_loop().time() - group.since_s > self._reroute_s_max

    async def _look_up_and_route(self, product_id: int, group: Group) -> None:
        if group.reroutes > 1:
            await asyncio.sleep(REROUTE_PAUSE_S)
        try:
            product = await self._catalogue.find(product_id)
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
        self._route(product_id, group._replace(by_copy=product.listing.is_copy))

    async def _forget(self, product_id: int) -> None:
        self._catalogue.forget(product_id)
        await asyncio.sleep(REROUTE_PAUSE_S)


async def _read_consistently(shards: Shards) -> Survey:
    """A reading that is exact where there is one within bounds, else the last one.

    Exact is what two readings agree on to the unit, or one between two others of the same `moves`: then
    only deductions happened all the while, and the sums are those of a moment among them.
    """
    before, present = None, await shards.read_all()
    for _ in range(READINGS_MAX):
        later = await shards.read_all()
        if not any(reading.open_transfers for reading in present):
            is_still = versions(present) == versions(later)
            is_exact = before == versions(present) or _counts(present) == _counts(later)
            if is_still and is_exact and not in_transit(present):
                return Survey(present, proven=True)
        before, present = versions(present), later
    return Survey(present, proven=False)


def _counts(readings: Sequence[ShardReading]) -> list[tuple[int, int, int]]:
    return [(reading.available, reading.held, reading.sold) for reading in readings]


_NAMELESS = Answer(Outcome.INVALID, reason=Reason.USER_REQUIRED)


def _refuse_nameless(group: Group) -> Group | None:
    """Refuse the requests that name no user; returns the others."""
    nameless = [i for i, request in enumerate(group.requests) if not request.user_id]
    if not nameless:
        return group
    group.part(nameless).answer([_NAMELESS] * len(nameless))
    named = [i for i, request in enumerate(group.requests) if request.user_id]
    return group.part(named) if named else None


def _by_home(product: Product, group: Group) -> Iterable[tuple[Home, Group]]:
    homes = product.homes
    count = len(homes)
    if count == 1:
        return ((homes[0], group),)
    key = USER_ID if product.lookups.by_user else REQUEST_ID
    if len(group.requests) == 1:
        return ((homes[home_shard(str(group.requests[0][key]), count)], group),)
    parts: dict[int, Group] = {}
    for request, position in zip(group.requests, group.positions, strict=True):
        shard = home_shard(str(request[key]), count)
        part = parts.get(shard)
        if part is None:
            part = parts[shard] = group._replace(requests=[], positions=[])
        part.requests.append(request)
        part.positions.append(position)
    return ((homes[shard], part) for shard, part in parts.items())


def _product_stock(
    product_id: int,
    listing: Listing,
    readings: Sequence[ShardReading | None],
    *,
    exact: bool,
    unread: Sequence[int] = (),
) -> ProductStock:
    """`readings`: of the layout's shards, None where one does not answer, then of retired ones."""
    found = [reading for reading in readings if reading is not None]
    base = readings[0]
    on_their_way: Counter[int] = Counter()
    for transfer in in_transit(found):
        on_their_way[transfer.donor] += transfer.units
    return ProductStock(
        product_id=product_id,
        state=_state_of(found),
        frozen=any(reading.frozen for reading in found),
        layout_version=listing.layout.version,
        epoch=listing.epoch,
        # One hash has both the released units and how many they are, so no reading sees them twice.
        buffer=listing.buffer - (base.released if base else 0),
        sold_before=listing.sold_before,
        shards=tuple(
            _shard_stock(i, reading, on_their_way[reading.partition])
            for i, reading in enumerate(readings)
            if reading is not None
        ),
        serving=listing.layout.shards,
        exact=exact,
        unread=tuple(unread),
    )


def _state_of(readings: Sequence[ShardReading]) -> State:
    """The state that is furthest from being on sale."""
    for state in (State.CLOSED, State.CLOSING, State.LOADING):
        if any(reading.state is state for reading in readings):
            return state
    return State.OPEN


def _shard_stock(shard: int, reading: ShardReading, in_transit: int) -> ShardStock:
    return ShardStock(
        shard=shard,
        partition=reading.partition,
        available=reading.available,
        held=reading.held,
        sold=reading.sold,
        loaded=reading.loaded,
        in_transit=in_transit,
    )
