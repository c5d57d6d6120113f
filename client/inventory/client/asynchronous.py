"""The client for asyncio."""

import asyncio
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Sequence
from contextlib import aclosing, asynccontextmanager
from types import TracebackType
from typing import Any, Self

import grpc

from inventory.client.async_stream import AsyncDeductStream
from inventory.client.async_transport import AsyncLane, completed
from inventory.client.audits import Audit, Repair, RepairSide
from inventory.client.batcher import Batcher
from inventory.client.calls import Calls, Watch, event_watch, stock_watch
from inventory.client.channels import CHANNELS, open_async_channel
from inventory.client.deductions import settled
from inventory.client.errors import Unavailable
from inventory.client.failures import NO_CONNECTION, UNREACHABLE, failure_of, stream_ended
from inventory.client.journal import DeadLetterPage, TimelinePage
from inventory.client.orders import (
    Event,
    EventKind,
    HoldPage,
    Order,
    OrderLine,
    OrderResult,
    Reservation,
)
from inventory.client.outcomes import Deduction, DeductItem, Resolved
from inventory.client.records import (
    BufferRelease,
    Cluster,
    LoadedProduct,
    NewProduct,
    Product,
    ProductPage,
    Stock,
)
from inventory.client.retrier import Retrier
from inventory.client.retry import FOR_CALLS, RetryPolicy
from inventory.client.rpcs import DEDUCT
from inventory.client.steps import AnySend, Steps, T


class AsyncInventoryClient:
    """Calls the service from asyncio; safe for any number of tasks of the loop it was made in.

    With `batch` the deductions of all tasks travel in batches: what is called while batches are out
    goes with the next one. Every method raises InventoryError; `deadline_s` replaces the policy's.
    """

    def __init__(
        self,
        target: str,
        *,
        channels: int = CHANNELS,
        credentials: grpc.ChannelCredentials | None = None,
        policy: RetryPolicy = FOR_CALLS,
        batch: bool = False,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._lanes = [AsyncLane(open_async_channel(target, credentials)) for _ in range(channels)]
        self._retrier = Retrier(policy, clock=clock, jitter=jitter)
        self._calls = Calls(self._retrier)
        self._batcher = Batcher(self._try, batches_out_max=channels) if batch else None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Waits for batches that are out, then closes the channels."""
        if self._batcher:
            await self._batcher.close()
        for lane in self._lanes:
            await lane.channel.close()

    async def wait_ready(self, timeout_s: float) -> None:
        """Returns when a connection stands; raises Unavailable, reason UNREACHABLE, else."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._lanes[0].channel.channel_ready()
        except TimeoutError as error:
            raise Unavailable(NO_CONNECTION, reason=UNREACHABLE) from error

    async def deduct(
        self,
        product_id: int,
        quantity: int,
        *,
        request_id: str | None = None,
        order_id: int = 0,
        user_id: int = 0,
        attempt: int | None = None,
        deadline_s: float | None = None,
    ) -> Deduction:
        """Takes units; DEDUCTED and INSUFFICIENT_STOCK are answers, everything else is raised."""
        item = DeductItem(product_id, quantity, request_id, order_id, user_id, attempt)
        return settled(await self.deduct_item(item, deadline_s=deadline_s))

    async def deduct_item(self, item: DeductItem, *, deadline_s: float | None = None) -> Deduction:
        """Takes units; every outcome is a value, UNKNOWN and NOT_EXECUTED, too."""
        return await self._run(self._retrier.deduct(item, deadline_s=deadline_s))

    async def batch_deduct(
        self, items: Sequence[DeductItem], *, deadline_s: float | None = None
    ) -> tuple[Deduction, ...]:
        """Takes units for up to 2,000 items, each for itself; one outcome per item, in order."""
        return await self._run(self._retrier.deduct_batch(items, deadline_s=deadline_s))

    @asynccontextmanager
    async def stream(self) -> AsyncIterator[AsyncDeductStream]:
        """A stream for batch after batch: `async with client.stream() as stream: …`"""
        stream = AsyncDeductStream(self._retrier, self._lane)
        try:
            yield stream
        finally:
            await stream.close()

    async def reserve(
        self,
        order_id: int,
        lines: Sequence[OrderLine],
        *,
        user_id: int = 0,
        ttl_s: int = 0,
        attempt: int = 0,
        deadline_s: float | None = None,
    ) -> OrderResult:
        """Holds all lines of an order until it is confirmed, released or its time is over, or none.

        HELD and INSUFFICIENT_STOCK are answers, and CONFIRMED and RETAKEN of an order that was sold
        before; everything else is raised. ttl_s 0: the service's default.
        """
        wanted = Reservation(order_id, tuple(lines), user_id, ttl_s, attempt)
        return await self._run(self._calls.reserve(wanted, deadline_s))

    async def batch_reserve(
        self, items: Sequence[Reservation], *, deadline_s: float | None = None
    ) -> tuple[OrderResult, ...]:
        """Reserves for up to 500 orders, each for itself; every outcome is a value, in order."""
        return await self._run(self._calls.batch_reserve(items, deadline_s))

    async def deduct_order(
        self,
        order_id: int,
        lines: Sequence[OrderLine],
        *,
        user_id: int = 0,
        attempt: int = 0,
        deadline_s: float | None = None,
    ) -> OrderResult:
        """Sells all lines of an order at once, or none: CONFIRMED or INSUFFICIENT_STOCK."""
        wanted = Reservation(order_id, tuple(lines), user_id, attempt=attempt)
        return await self._run(self._calls.deduct_order(wanted, deadline_s))

    async def batch_deduct_order(
        self, items: Sequence[Reservation], *, deadline_s: float | None = None
    ) -> tuple[OrderResult, ...]:
        """Sells up to 500 orders, each for itself; every outcome is a value, in order. Their `ttl_s` is
        not used."""
        return await self._run(self._calls.batch_deduct_order(items, deadline_s))

    async def confirm(
        self, order_id: int, *, product_id: int = 0, deadline_s: float | None = None
    ) -> OrderResult:
        """Sells what an order holds.

        CONFIRMED, and too late RETAKEN (sold after all) or REFUND_REQUIRED are answers. product_id:
        any product of the order, so that it is found faster.
        """
        return await self._run(self._calls.confirm(order_id, product_id, deadline_s))

    async def batch_confirm(
        self, order_ids: Sequence[int], *, deadline_s: float | None = None
    ) -> tuple[OrderResult, ...]:
        """Confirms up to 500 orders, each for itself; every outcome is a value, in order."""
        return await self._run(self._calls.batch_confirm(order_ids, deadline_s))

    async def release(
        self, order_id: int, *, product_id: int = 0, deadline_s: float | None = None
    ) -> OrderResult:
        """Gives back what an order holds.

        RELEASED, EXPIRED where its time was over before, INSUFFICIENT_STOCK where it never held any.
        """
        return await self._run(self._calls.release(order_id, product_id, deadline_s))

    async def batch_release(
        self, order_ids: Sequence[int], *, deadline_s: float | None = None
    ) -> tuple[OrderResult, ...]:
        """Releases up to 500 orders, each for itself; every outcome is a value, in order."""
        return await self._run(self._calls.batch_release(order_ids, deadline_s))

    async def extend_hold(
        self, order_id: int, ttl_s: int, *, product_id: int = 0, deadline_s: float | None = None
    ) -> Order:
        """Moves the deadline of a hold to ttl_s from now; never to an earlier time."""
        return await self._run(self._calls.extend_hold(order_id, ttl_s, product_id, deadline_s))

    async def get_order(
        self, order_id: int, *, product_id: int = 0, deadline_s: float | None = None
    ) -> Order:
        """Reads an order in whatever state it is."""
        return await self._run(self._calls.get_order(order_id, product_id, deadline_s))

    async def resolve(
        self, product_id: int, request_id: str, *, deadline_s: float | None = None
    ) -> Resolved:
        """Decides a request whose answer was lost, for good: a late copy of it changes nothing any more.

        After NEVER, `deduct` with the same id raises RequestMismatch, reason RESOLVED_NEVER.
        """
        return await self._run(self._calls.resolve(product_id, request_id, deadline_s))

    async def get_stock(self, product_id: int, *, deadline_s: float | None = None) -> Stock:
        """Reads a product's live counts."""
        return await self._run(self._calls.get_stock(product_id, deadline_s))

    async def batch_get_stock(
        self, product_ids: Sequence[int], *, deadline_s: float | None = None
    ) -> tuple[Stock, ...]:
        """Reads the counts of up to 100 products; unknown ones are left out."""
        return await self._run(self._calls.batch_get_stock(product_ids, deadline_s))

    async def watch_stock(
        self, product_id: int, *, interval_ms: int = 0, patience_s: float | None = None
    ) -> AsyncGenerator[Stock, None]:
        """Yields the counts now and whenever they have changed, across broken connections.

        interval_ms: the least time between two, 0: the service's default. Raises when no stream
        stood for patience_s (None: the policy's deadline).
        """
        watch = stock_watch(
            self._retrier, product_id=product_id, interval_ms=interval_ms, patience_s=patience_s
        )
        async with aclosing(self._follow(watch)) as counts:
            async for stock in counts:
                yield stock

    async def watch_events(
        self,
        *,
        cursor: str = "",
        kinds: Collection[EventKind] = (),
        product_ids: Collection[int] = (),
        cursors: bool = False,
        patience_s: float | None = None,
    ) -> AsyncGenerator[Event, None]:
        """Yields what happened to orders and products after a cursor, across broken connections.

        Every event comes at least once. cursor: of the last event that was dealt with; "": from now
        on, "0": everything that is kept. kinds, product_ids: empty for all. cursors: yield cursors
        without an event, too (kind UNSPECIFIED), as they come at the begin and while nothing happens.
        Raises CursorOutOfRange when the service does not keep what came after the cursor any more, and
        when no stream stood for patience_s (None: the policy's deadline).
        """
        watch = event_watch(
            self._retrier,
            cursor=cursor,
            kinds=kinds,
            product_ids=product_ids,
            patience_s=patience_s,
        )
        async with aclosing(self._follow(watch)) as events:
            async for event in events:
                if cursors or event.kind is not EventKind.UNSPECIFIED:
                    yield event

    async def put_product(self, product: NewProduct) -> Product:
        """Writes a product to the ledger, or changes the settings of one that is closed."""
        return await self._run(self._calls.put_product(product))

    async def get_product(self, product_id: int) -> Product:
        """Reads a product's ledger row."""
        return await self._run(self._calls.get_product(product_id))

    async def list_products(self, *, after_product_id: int = 0, page_size: int = 0) -> ProductPage:
        """Reads a page of ledger rows, by product id; page_size 0: the service's default."""
        return await self._run(self._calls.list_products(after_product_id, page_size))

    async def load(self, product_ids: Sequence[int]) -> tuple[LoadedProduct, ...]:
        """Puts closed products on sale."""
        return await self._run(self._calls.load(product_ids))

    async def close_product(self, product_id: int) -> Product:
        """Takes a product off sale and brings its units back to the ledger."""
        return await self._run(self._calls.close_product(product_id))

    async def restock(
        self,
        product_id: int,
        quantity: int,
        *,
        request_id: str | None = None,
        reason: str = "",
        actor: str = "",
    ) -> bool:
        """Adds units once per request_id; True: this request_id had been applied before."""
        return await self._run(self._calls.restock(product_id, quantity, request_id, reason, actor))

    async def remove(
        self,
        product_id: int,
        quantity: int,
        *,
        request_id: str | None = None,
        reason: str = "",
        actor: str = "",
    ) -> bool:
        """Takes unsold units away once per request_id; True: it had been applied before."""
        return await self._run(self._calls.remove(product_id, quantity, request_id, reason, actor))

    async def release_buffer(
        self,
        product_id: int,
        quantity: int = 0,
        *,
        request_id: str | None = None,
        reason: str = "",
        actor: str = "",
    ) -> BufferRelease:
        """Brings units on sale from the buffer, once per request_id; quantity 0: all of it.

        They are in the shards within moments of the answer.
        """
        return await self._run(
            self._calls.release_buffer(product_id, quantity, request_id, reason, actor)
        )

    async def set_shards(
        self, product_id: int, shards: int, *, deadline_s: float | None = None
    ) -> int:
        """Splits a product into so many shards, also while it is on sale, and keeps it so.

        0: leaves the number to the service from now on. Returns the version of the layout in force.
        """
        return await self._run(self._calls.set_shards(product_id, shards, deadline_s))

    async def list_holds(
        self, *, product_id: int = 0, user_id: int = 0, after_id: int = 0, page_size: int = 0
    ) -> HoldPage:
        """Reads a page of units that orders hold, as far as the ledger knows, oldest first."""
        return await self._run(self._calls.list_holds(product_id, user_id, after_id, page_size))

    async def force_release(self, order_id: int, *, reason: str, actor: str) -> Order:
        """Releases an order whatever its time; the journal is told who wanted it, and why."""
        return await self._run(self._calls.force_release(order_id, reason, actor))

    async def list_dead_letters(
        self, *, after_id: int = 0, page_size: int = 0, include_closed: bool = False
    ) -> DeadLetterPage:
        """Reads a page of events that could not be applied to the ledger, oldest first.

        include_closed: also those that were retried or discarded.
        """
        steps = self._calls.list_dead_letters(after_id, page_size, include_closed=include_closed)
        return await self._run(steps)

    async def retry_dead_letter(self, letter_id: int, *, reason: str, actor: str) -> None:
        """Applies a dead letter again, once; the journal is told who wanted it, and why.

        PreconditionFailed: the ledger still cannot hold it (DEAD_LETTER_REFUSED), only its beginning was
        kept (DEAD_LETTER_CUT), or it was dealt with before (DEAD_LETTER_CLOSED).
        """
        await self._run(self._calls.retry_dead_letter(letter_id, reason, actor))

    async def discard_dead_letter(self, letter_id: int, *, reason: str, actor: str) -> None:
        """Gives a dead letter up. PreconditionFailed, DEAD_LETTER_CLOSED: it was dealt with before."""
        await self._run(self._calls.discard_dead_letter(letter_id, reason, actor))

    async def get_timeline(
        self,
        *,
        product_id: int = 0,
        request_id: str = "",
        order_id: int = 0,
        before_id: int = 0,
        page_size: int = 0,
    ) -> TimelinePage:
        """Reads a page of the journal, newest first: of a product, an order, or a product's request."""
        steps = self._calls.get_timeline(product_id, request_id, order_id, before_id, page_size)
        return await self._run(steps)

    async def freeze(self, product_id: int, *, reason: str, actor: str) -> None:
        """Stops the sale of a product; what is held stays held, and can be confirmed and released."""
        await self._run(self._calls.freeze(product_id, reason, actor))

    async def unfreeze(self, product_id: int, *, reason: str, actor: str) -> None:
        """Resumes the sale of a product, whoever stopped it."""
        await self._run(self._calls.unfreeze(product_id, reason, actor))

    async def audit(self, product_id: int, *, deadline_s: float | None = None) -> Audit:
        """Compares every shard of a product with the ledger at one and the same point as it sells."""
        return await self._run(self._calls.audit(product_id, deadline_s))

    async def repair(
        self,
        product_id: int,
        *,
        reason: str,
        actor: str,
        apply: bool = False,
        side: RepairSide = RepairSide.UNSPECIFIED,
        deadline_s: float | None = None,
    ) -> Repair:
        """Enters a compensation, once, for each difference that an audit finds; apply False: only says
        what it would be."""
        return await self._run(
            self._calls.repair(
                product_id,
                apply=apply,
                reason=reason,
                actor=actor,
                side=side,
                deadline_s=deadline_s,
            )
        )

    async def get_cluster(self) -> Cluster:
        """Reads the partitions' state, the service's version and the ledger's schema."""
        return await self._run(self._calls.get_cluster())

    async def is_serving(self) -> bool:
        """Asks the service's health."""
        return await self._run(self._calls.is_serving())

    async def _follow(self, watch: Watch[T]) -> AsyncGenerator[T, None]:
        while True:
            opening = watch.opening()
            call = self._lane(opening.turn).unary_stream(opening.rpc)(opening.request)
            try:
                async for message in call:
                    yield watch.seen(message)
                failure = stream_ended()
            except grpc.RpcError as error:
                failure = failure_of(error)
            finally:
                call.cancel()
            await asyncio.sleep(watch.pause_s(failure))

    async def _run(self, steps: Steps[T]) -> T:
        return await completed(steps, self._carry)

    async def _carry(self, send: AnySend) -> object:
        if self._batcher and send.rpc is DEDUCT:
            return await self._batcher.carry(send)
        return await self._try(send)

    async def _try(self, send: AnySend) -> Any:
        try:
            return await self._lane(send.turn).unary(send.rpc)(send.request, timeout=send.timeout_s)
        except grpc.RpcError as error:
            return failure_of(error)

    def _lane(self, turn: int) -> AsyncLane:
        return self._lanes[turn % len(self._lanes)]
