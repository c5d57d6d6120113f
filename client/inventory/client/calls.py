"""Every call of the service as steps: the message that goes out, the record that comes back."""

from collections.abc import Sequence
from uuid import uuid4

from grpc_health.v1 import health_pb2

from inventory.client.failures import Failure, error_of
from inventory.client.messages import build
from inventory.client.outcomes import Resolved
from inventory.client.records import (
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
    BATCH_GET_STOCK,
    CLOSE,
    GET_CLUSTER,
    GET_PRODUCT,
    GET_STOCK,
    HEALTH_CHECK,
    LIST_PRODUCTS,
    LOAD,
    PUT_PRODUCT,
    REMOVE,
    RESOLVE_REQUEST,
    RESTOCK,
    SET_SHARDS,
    WATCH_STOCK,
)
from inventory.client.steps import Send, Steps
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
        self, product_id: int, quantity: int, request_id: str | None, reason: str
    ) -> Steps[bool]:
        request = build(
            admin_pb2.RestockRequest,
            request_id=uuid4().hex if request_id is None else request_id,
            product_id=product_id,
            quantity=quantity,
            reason=reason,
        )
        reply = yield from self._retrier.answer(
            RESTOCK, request, policy=FOR_ADMIN, request_id=request.request_id
        )
        return reply.replayed

    def remove(
        self, product_id: int, quantity: int, request_id: str | None, reason: str
    ) -> Steps[bool]:
        request = build(
            admin_pb2.RemoveRequest,
            request_id=uuid4().hex if request_id is None else request_id,
            product_id=product_id,
            quantity=quantity,
            reason=reason,
        )
        reply = yield from self._retrier.answer(
            REMOVE, request, policy=FOR_ADMIN, request_id=request.request_id
        )
        return reply.replayed

    def set_shards(
        self, product_id: int, shards: int, deadline_s: float | None = None
    ) -> Steps[int]:
        request = build(admin_pb2.SetShardsRequest, product_id=product_id, shards=shards)
        reply = yield from self._retrier.answer(
            SET_SHARDS, request, policy=FOR_ADMIN, deadline_s=deadline_s
        )
        return reply.layout_version

    def get_cluster(self) -> Steps[Cluster]:
        reply = yield from self._retrier.answer(GET_CLUSTER, admin_pb2.GetClusterRequest())
        return cluster_of(reply)

    def is_serving(self) -> Steps[bool]:
        reply = yield from self._retrier.answer(HEALTH_CHECK, health_pb2.HealthCheckRequest())
        return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)


class Watch:
    """A watch on one product that outlives its streams: when to open the next, when to give up."""

    def __init__(
        self, retrier: Retrier, *, product_id: int, interval_ms: int, patience_s: float | None
    ) -> None:
        self._retrier = retrier
        self._request = build(
            inventory_pb2.WatchStockRequest, product_id=product_id, interval_ms=interval_ms
        )
        self._patience_s = patience_s
        self._budget: Budget | None = None

    def opening(
        self,
    ) -> Send[inventory_pb2.WatchStockRequest, inventory_pb2.WatchStockResponse]:
        """The stream to open next; it has no time limit of its own."""
        return Send(WATCH_STOCK, self._request, 0.0, self._retrier.turn())

    def seen(self, message: inventory_pb2.WatchStockResponse) -> Stock:
        """Takes a message; the patience starts anew with the next failure."""
        self._budget = None
        return stock_of(message.stock)

    def pause_s(self, failure: Failure) -> float:
        """How long to wait before the next stream; raises where waiting is of no use (any more)."""
        if self._budget is None:
            self._budget = self._retrier.budget(self._patience_s)
        pause_s = self._retrier.pause_s(self._budget, failure.asked_s) if failure.passing else None
        if pause_s is None:
            raise error_of(failure, acts=False, doubtful=False, request_id=None)
        return pause_s
