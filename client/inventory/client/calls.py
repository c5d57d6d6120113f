"""Every call of the service as steps: the message that goes out, the record that comes back."""

from collections.abc import Callable, Collection, Sequence
from typing import Any, Generic
from uuid import uuid4

from google.protobuf.message import Message
from grpc_health.v1 import health_pb2

from inventory.client.audits import Audit, Repair, RepairSide, audit_of, repair_of
from inventory.client.failures import Failure, error_of
from inventory.client.journal import (
    DeadLetterPage,
    TimelinePage,
    dead_letter_page_of,
    timeline_page_of,
)
from inventory.client.messages import build
from inventory.client.ordering import (
    CONFIRMING,
    RELEASING,
    RESERVING,
    SELLING,
    OrderCall,
    OrderRequest,
    settled_order,
)
from inventory.client.orders import (
    Event,
    EventKind,
    HoldPage,
    Order,
    OrderLine,
    OrderResult,
    Reservation,
    event_of,
    hold_page_of,
    order_of,
)
from inventory.client.outcomes import Resolved
from inventory.client.records import (
    BufferRelease,
    Cluster,
    LoadedProduct,
    NewProduct,
    Product,
    ProductPage,
    Stock,
    cluster_of,
    loaded_of,
    product_of,
    resolved_of,
    stock_of,
)
from inventory.client.retrier import Retrier
from inventory.client.retry import FOR_ADMIN, Budget
from inventory.client.rpcs import (
    AUDIT,
    BATCH_CONFIRM,
    BATCH_DEDUCT_ORDER,
    BATCH_GET_STOCK,
    BATCH_RELEASE,
    BATCH_RESERVE,
    CLOSE,
    DISCARD_DEAD_LETTER,
    EXTEND_HOLD,
    FORCE_RELEASE,
    FREEZE,
    GET_CLUSTER,
    GET_ORDER,
    GET_PRODUCT,
    GET_STOCK,
    GET_TIMELINE,
    HEALTH_CHECK,
    LIST_DEAD_LETTERS,
    LIST_HOLDS,
    LIST_PRODUCTS,
    LOAD,
    PUT_PRODUCT,
    RELEASE_BUFFER,
    REMOVE,
    REPAIR,
    RESOLVE_REQUEST,
    RESTOCK,
    RETRY_DEAD_LETTER,
    SET_SHARDS,
    UNFREEZE,
    WATCH_EVENTS,
    WATCH_STOCK,
    AnyRpc,
)
from inventory.client.steps import AnySend, Send, Steps, T
from inventory.v1 import admin_pb2, inventory_pb2


class Calls:
    """The calls that have no life of their own: one question, one answer."""

    def __init__(self, retrier: Retrier) -> None:
        self._retrier = retrier

    def resolve(
        self, product_id: int, request_id: str, deadline_s: float | None
    ) -> Steps[Resolved]:
        request = build(
            inventory_pb2.ResolveRequestRequest, product_id=product_id, request_id=request_id
        )
        reply = yield from self._retrier.answer(
            RESOLVE_REQUEST, request, deadline_s=deadline_s, request_id=request_id
        )
        return resolved_of(reply)

    def get_stock(self, product_id: int, deadline_s: float | None) -> Steps[Stock]:
        request = build(inventory_pb2.GetStockRequest, product_id=product_id)
        reply = yield from self._retrier.answer(GET_STOCK, request, deadline_s=deadline_s)
        return stock_of(reply.stock)

    def batch_get_stock(
        self, product_ids: Sequence[int], deadline_s: float | None
    ) -> Steps[tuple[Stock, ...]]:
        request = build(inventory_pb2.BatchGetStockRequest, product_ids=product_ids)
        reply = yield from self._retrier.answer(BATCH_GET_STOCK, request, deadline_s=deadline_s)
        return tuple(stock_of(stock) for stock in reply.stocks)

    def put_product(self, product: NewProduct) -> Steps[Product]:
        request = build(
            admin_pb2.PutProductRequest,
            product_id=product.product_id,
            name=product.name,
            total_stock=product.total_stock,
            buffer_percent=product.buffer_percent,
            shards=product.shards,
            max_per_user=product.max_per_user,
            low_stock=product.low_stock,
            buffer_release_below=product.buffer_release_below,
        )
        reply = yield from self._retrier.answer(PUT_PRODUCT, request, policy=FOR_ADMIN)
        return product_of(reply.product)

    def get_product(self, product_id: int) -> Steps[Product]:
        request = build(admin_pb2.GetProductRequest, product_id=product_id)
        reply = yield from self._retrier.answer(GET_PRODUCT, request)
        return product_of(reply.product)

    def list_products(self, after_product_id: int, page_size: int) -> Steps[ProductPage]:
        request = build(
            admin_pb2.ListProductsRequest, after_product_id=after_product_id, page_size=page_size
        )
        reply = yield from self._retrier.answer(LIST_PRODUCTS, request)
        return ProductPage(
            products=tuple(product_of(product) for product in reply.products),
            next_after_product_id=reply.next_after_product_id,
        )

    def load(self, product_ids: Sequence[int]) -> Steps[tuple[LoadedProduct, ...]]:
        request = build(admin_pb2.LoadRequest, product_ids=product_ids)
        reply = yield from self._retrier.answer(LOAD, request, policy=FOR_ADMIN)
        return tuple(loaded_of(product) for product in reply.products)

    def close_product(self, product_id: int) -> Steps[Product]:
        request = build(admin_pb2.CloseRequest, product_id=product_id)
        reply = yield from self._retrier.answer(CLOSE, request, policy=FOR_ADMIN)
        return product_of(reply.product)

    def restock(
        self, product_id: int, quantity: int, request_id: str | None, reason: str, actor: str
    ) -> Steps[bool]:
        request = build(
            admin_pb2.RestockRequest,
            request_id=uuid4().hex if request_id is None else request_id,
            product_id=product_id,
            quantity=quantity,
            reason=reason,
            actor=actor,
        )
        reply = yield from self._retrier.answer(
            RESTOCK, request, policy=FOR_ADMIN, request_id=request.request_id
        )
        return reply.replayed

    def remove(
        self, product_id: int, quantity: int, request_id: str | None, reason: str, actor: str
    ) -> Steps[bool]:
        request = build(
            admin_pb2.RemoveRequest,
            request_id=uuid4().hex if request_id is None else request_id,
            product_id=product_id,
            quantity=quantity,
            reason=reason,
            actor=actor,
        )
        reply = yield from self._retrier.answer(
            REMOVE, request, policy=FOR_ADMIN, request_id=request.request_id
        )
        return reply.replayed

    def release_buffer(
        self, product_id: int, quantity: int, request_id: str | None, reason: str, actor: str
    ) -> Steps[BufferRelease]:
        request = build(
            admin_pb2.ReleaseBufferRequest,
            request_id=uuid4().hex if request_id is None else request_id,
            product_id=product_id,
            quantity=quantity,
            reason=reason,
            actor=actor,
        )
        reply = yield from self._retrier.answer(
            RELEASE_BUFFER, request, policy=FOR_ADMIN, request_id=request.request_id
        )
        return BufferRelease(quantity=reply.quantity, replayed=reply.replayed)

    def set_shards(
        self, product_id: int, shards: int, deadline_s: float | None = None
    ) -> Steps[int]:
        request = build(admin_pb2.SetShardsRequest, product_id=product_id, shards=shards)
        reply = yield from self._retrier.answer(
            SET_SHARDS, request, policy=FOR_ADMIN, deadline_s=deadline_s
        )
        return reply.layout_version

    def reserve(self, wanted: Reservation, deadline_s: float | None) -> Steps[OrderResult]:
        return self._order(RESERVING, _reservation(wanted), deadline_s)

    def batch_reserve(
        self, items: Sequence[Reservation], deadline_s: float | None
    ) -> Steps[tuple[OrderResult, ...]]:
        requests = [_reservation(item) for item in items]
        return self._retrier.order_batch(BATCH_RESERVE, requests, deadline_s=deadline_s)

    def deduct_order(self, wanted: Reservation, deadline_s: float | None) -> Steps[OrderResult]:
        return self._order(SELLING, _sale(wanted), deadline_s)

    def batch_deduct_order(
        self, items: Sequence[Reservation], deadline_s: float | None
    ) -> Steps[tuple[OrderResult, ...]]:
        requests = [_sale(item) for item in items]
        return self._retrier.order_batch(BATCH_DEDUCT_ORDER, requests, deadline_s=deadline_s)

    def confirm(
        self, order_id: int, product_id: int, deadline_s: float | None
    ) -> Steps[OrderResult]:
        request = build(inventory_pb2.ConfirmRequest, order_id=order_id, product_id=product_id)
        return self._order(CONFIRMING, request, deadline_s)

    def batch_confirm(
        self, order_ids: Sequence[int], deadline_s: float | None
    ) -> Steps[tuple[OrderResult, ...]]:
        requests = [build(inventory_pb2.ConfirmRequest, order_id=each) for each in order_ids]
        return self._retrier.order_batch(BATCH_CONFIRM, requests, deadline_s=deadline_s)

    def release(
        self, order_id: int, product_id: int, deadline_s: float | None
    ) -> Steps[OrderResult]:
        request = build(inventory_pb2.ReleaseRequest, order_id=order_id, product_id=product_id)
        return self._order(RELEASING, request, deadline_s)

    def batch_release(
        self, order_ids: Sequence[int], deadline_s: float | None
    ) -> Steps[tuple[OrderResult, ...]]:
        requests = [build(inventory_pb2.ReleaseRequest, order_id=each) for each in order_ids]
        return self._retrier.order_batch(BATCH_RELEASE, requests, deadline_s=deadline_s)

    def extend_hold(
        self, order_id: int, ttl_s: int, product_id: int, deadline_s: float | None
    ) -> Steps[Order]:
        request = build(
            inventory_pb2.ExtendHoldRequest, order_id=order_id, ttl_s=ttl_s, product_id=product_id
        )
        reply = yield from self._retrier.answer(
            EXTEND_HOLD, request, deadline_s=deadline_s, order_id=order_id
        )
        return order_of(reply.order)

    def get_order(self, order_id: int, product_id: int, deadline_s: float | None) -> Steps[Order]:
        request = build(inventory_pb2.GetOrderRequest, order_id=order_id, product_id=product_id)
        reply = yield from self._retrier.answer(
            GET_ORDER, request, deadline_s=deadline_s, order_id=order_id
        )
        return order_of(reply.order)

    def list_holds(
        self, product_id: int, user_id: int, after_id: int, page_size: int
    ) -> Steps[HoldPage]:
        request = build(
            admin_pb2.ListHoldsRequest,
            product_id=product_id,
            user_id=user_id,
            after_id=after_id,
            page_size=page_size,
        )
        reply = yield from self._retrier.answer(LIST_HOLDS, request)
        return hold_page_of(reply)

    def force_release(self, order_id: int, reason: str, actor: str) -> Steps[Order]:
        request = build(
            admin_pb2.ForceReleaseRequest, order_id=order_id, reason=reason, actor=actor
        )
        reply = yield from self._retrier.answer(FORCE_RELEASE, request, order_id=order_id)
        return order_of(reply.order)

    def list_dead_letters(
        self, after_id: int, page_size: int, *, include_closed: bool
    ) -> Steps[DeadLetterPage]:
        request = build(
            admin_pb2.ListDeadLettersRequest,
            after_id=after_id,
            page_size=page_size,
            include_closed=include_closed,
        )
        reply = yield from self._retrier.answer(LIST_DEAD_LETTERS, request)
        return dead_letter_page_of(reply)

    def retry_dead_letter(self, letter_id: int, reason: str, actor: str) -> Steps[None]:
        request = build(admin_pb2.RetryDeadLetterRequest, id=letter_id, reason=reason, actor=actor)
        yield from self._retrier.answer(RETRY_DEAD_LETTER, request, policy=FOR_ADMIN)

    def discard_dead_letter(self, letter_id: int, reason: str, actor: str) -> Steps[None]:
        request = build(
            admin_pb2.DiscardDeadLetterRequest, id=letter_id, reason=reason, actor=actor
        )
        yield from self._retrier.answer(DISCARD_DEAD_LETTER, request, policy=FOR_ADMIN)

    def get_timeline(
        self, product_id: int, request_id: str, order_id: int, before_id: int, page_size: int
    ) -> Steps[TimelinePage]:
        request = build(
            admin_pb2.GetTimelineRequest,
            product_id=product_id,
            request_id=request_id,
            order_id=order_id,
            before_id=before_id,
            page_size=page_size,
        )
        reply = yield from self._retrier.answer(GET_TIMELINE, request)
        return timeline_page_of(reply)

    def _order(
        self, call: OrderCall, request: OrderRequest, deadline_s: float | None
    ) -> Steps[OrderResult]:
        result = yield from self._retrier.order(call, request, deadline_s=deadline_s)
        return settled_order(result, call.values)

    def freeze(self, product_id: int, reason: str, actor: str) -> Steps[None]:
        request = build(admin_pb2.FreezeRequest, product_id=product_id, reason=reason, actor=actor)
        yield from self._retrier.answer(FREEZE, request, policy=FOR_ADMIN)

    def unfreeze(self, product_id: int, reason: str, actor: str) -> Steps[None]:
        request = build(
            admin_pb2.UnfreezeRequest, product_id=product_id, reason=reason, actor=actor
        )
        yield from self._retrier.answer(UNFREEZE, request, policy=FOR_ADMIN)

    def audit(self, product_id: int, deadline_s: float | None) -> Steps[Audit]:
        request = build(admin_pb2.AuditRequest, product_id=product_id)
        reply = yield from self._retrier.answer(
            AUDIT, request, policy=FOR_ADMIN, deadline_s=deadline_s
        )
        return audit_of(reply)

    def repair(
        self,
        product_id: int,
        *,
        apply: bool,
        reason: str,
        actor: str,
        side: RepairSide,
        deadline_s: float | None,
    ) -> Steps[Repair]:
        request = build(
            admin_pb2.RepairRequest,
            product_id=product_id,
            apply=apply,
            reason=reason,
            actor=actor,
            side=f"REPAIR_SIDE_{side.name}",
        )
        reply = yield from self._retrier.answer(
            REPAIR, request, policy=FOR_ADMIN, deadline_s=deadline_s
        )
        return repair_of(reply)

    def get_cluster(self) -> Steps[Cluster]:
        reply = yield from self._retrier.answer(GET_CLUSTER, admin_pb2.GetClusterRequest())
        return cluster_of(reply)

    def is_serving(self) -> Steps[bool]:
        reply = yield from self._retrier.answer(HEALTH_CHECK, health_pb2.HealthCheckRequest())
        return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)


def _reservation(wanted: Reservation) -> inventory_pb2.ReserveRequest:
    return build(
        inventory_pb2.ReserveRequest,
        order_id=wanted.order_id,
        user_id=wanted.user_id,
        lines=_lines(wanted.lines),
        ttl_s=wanted.ttl_s,
        attempt=wanted.attempt,
    )


def _sale(wanted: Reservation) -> inventory_pb2.DeductOrderRequest:
    return build(
        inventory_pb2.DeductOrderRequest,
        order_id=wanted.order_id,
        user_id=wanted.user_id,
        lines=_lines(wanted.lines),
        attempt=wanted.attempt,
    )


def _lines(lines: Sequence[OrderLine]) -> list[inventory_pb2.OrderLine]:
    return [
        build(inventory_pb2.OrderLine, product_id=line.product_id, quantity=line.quantity)
        for line in lines
    ]


class Watch(Generic[T]):
    """A watch that outlives its streams: when to open the next, when to give up.

    `read` makes a record of a message; it may change the request that the next stream begins with.
    """

    def __init__(
        self,
        retrier: Retrier,
        rpc: AnyRpc,
        request: Message,
        read: Callable[[Any], T],
        *,
        patience_s: float | None,
    ) -> None:
        self._retrier = retrier
        self._rpc = rpc
        self._request = request
        self._read = read
        self._patience_s = patience_s
        self._budget: Budget | None = None

    def opening(self) -> AnySend:
        """The stream to open next; it has no time limit of its own."""
        return Send(self._rpc, self._request, 0.0, self._retrier.turn())

    def seen(self, message: Message) -> T:
        """Takes a message; the patience starts anew with the next failure."""
        self._budget = None
        return self._read(message)

    def pause_s(self, failure: Failure) -> float:
        """How long to wait before the next stream; raises where waiting is of no use (any more)."""
        if self._budget is None:
            self._budget = self._retrier.budget(self._patience_s)
        pause_s = self._retrier.pause_s(self._budget, failure.asked_s) if failure.passing else None
        if pause_s is None:
            raise error_of(failure, acts=False, doubtful=False)
        return pause_s


def stock_watch(
    retrier: Retrier, *, product_id: int, interval_ms: int, patience_s: float | None
) -> Watch[Stock]:
    """A watch on one product."""
    request = build(inventory_pb2.WatchStockRequest, product_id=product_id, interval_ms=interval_ms)

    def read(message: inventory_pb2.WatchStockResponse) -> Stock:
        return stock_of(message.stock)

    return Watch(retrier, WATCH_STOCK, request, read, patience_s=patience_s)


def event_watch(
    retrier: Retrier,
    *,
    cursor: str,
    kinds: Collection[EventKind],
    product_ids: Collection[int],
    patience_s: float | None,
) -> Watch[Event]:
    """A watch on events; each of its streams goes on from the last cursor that was seen."""
    request = build(
        inventory_pb2.WatchEventsRequest,
        cursor=cursor,
        kinds=[f"EVENT_KIND_{kind.name}" for kind in kinds],
        product_ids=product_ids,
    )

    def read(message: inventory_pb2.WatchEventsResponse) -> Event:
        request.cursor = message.cursor
        return event_of(message)

    return Watch(retrier, WATCH_EVENTS, request, read, patience_s=patience_s)
