"""An inventory in this process: honest about stock and request ids, and failing on demand."""

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NoReturn

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_status import rpc_status

from inventory.v1 import admin_pb2, admin_pb2_grpc, inventory_pb2, inventory_pb2_grpc
from tests.unit.client_journal import Journal, JournalCalls
from tests.unit.client_orders import HoldCalls, OrderCalls, Orders

HANG_MAX_S = 60.0


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to one call. reason None: the status is worded by no service, as by a proxy."""

    code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE
    reason: str | None = None
    retry_s: int = 0
    acts_first: bool = False
    hangs: bool = False


@dataclass(slots=True)
class Product:
    total: int
    available: int
    held: int = 0
    sold: int = 0
    open: bool = True
    pinned_shards: int = 0
    frozen_reason: str = ""
    """Of a product on sale."""


class Inventory:
    """The state behind both services; all methods are called from gRPC's threads."""

    def __init__(self) -> None:
        self.products: dict[int, Product] = {}
        self.orders = Orders(self.products)
        self.journal = Journal()
        self.order_faults: deque[Fault] = deque()
        self.faults: deque[Fault] = deque()
        self.other_faults: deque[Fault] = deque()
        self.item_answers: defaultdict[str, deque[inventory_pb2.DeductResponse]] = defaultdict(
            deque
        )
        self.calls: list[list[inventory_pb2.DeductRequest]] = []
        self.peers: list[str] = []
        self.cluster = admin_pb2.GetClusterResponse(
            version="1.2.3", schema_version=4, durability="replicated"
        )
        self.arrived = threading.Semaphore(0)
        self.gate = threading.Event()
        self.gate.set()
        self.released = threading.Event()
        self.changes: set[str] = set()
        self.watches = 0
        self._records: dict[tuple[int, str], int] = {}
        self._lock = threading.Lock()

    @property
    def requests(self) -> list[inventory_pb2.DeductRequest]:
        return [request for call in self.calls for request in call]

    def take(
        self, requests: Sequence[inventory_pb2.DeductRequest], context: grpc.ServicerContext
    ) -> list[inventory_pb2.DeductResponse]:
        """One call with these requests, and the next fault, if there is one left."""
        with self._lock:
            self.calls.append([_copy(request) for request in requests])
            self.peers.append(context.peer())
            fault = self.faults.popleft() if self.faults else None
        self.arrived.release()
        self.gate.wait(HANG_MAX_S)
        responses = [] if fault and not fault.acts_first else list(map(self._deduct, requests))
        if fault and fault.hangs:
            self.released.wait(HANG_MAX_S)
        if fault:
            fail(context, fault)
        return responses

    def fail_next(self, context: grpc.ServicerContext) -> None:
        """The next fault, in calls that are no deductions."""
        if self.other_faults:
            fail(context, self.other_faults.popleft())

    def fail_next_order(self, context: grpc.ServicerContext, act: Callable[[], object]) -> None:
        """The next fault, in calls on orders."""
        fault = self.order_faults.popleft() if self.order_faults else None
        if fault is None:
            return
        if fault.acts_first:
            act()
        if fault.hangs:
            self.released.wait(HANG_MAX_S)
        fail(context, fault)

    def units_of(self, product_id: int, request_id: str) -> int:
        """What a request took."""
        return self._records.get((product_id, request_id), 0)

    def _deduct(self, request: inventory_pb2.DeductRequest) -> inventory_pb2.DeductResponse:
        with self._lock:
            if self.item_answers[request.request_id]:
                return self.item_answers[request.request_id].popleft()
            product = self.products.get(request.product_id)
            if product is None:
                return inventory_pb2.DeductResponse(outcome=inventory_pb2.OUTCOME_UNKNOWN_PRODUCT)
            return self._taken(product, request)

    def _taken(
        self, product: Product, request: inventory_pb2.DeductRequest
    ) -> inventory_pb2.DeductResponse:
        key = (request.product_id, request.request_id)
        recorded = self._records.get(key)
        if recorded is not None and recorded != request.quantity:
            return inventory_pb2.DeductResponse(outcome=inventory_pb2.OUTCOME_REQUEST_MISMATCH)
        if recorded is None and product.available < request.quantity:
            return inventory_pb2.DeductResponse(outcome=inventory_pb2.OUTCOME_INSUFFICIENT_STOCK)
        if recorded is None:
            self._records[key] = request.quantity
            product.available -= request.quantity
            product.sold += request.quantity
        return inventory_pb2.DeductResponse(
            outcome=inventory_pb2.OUTCOME_DEDUCTED,
            replayed=recorded is not None,
            shard_available=product.available,
        )


_CODES = {
    inventory_pb2.OUTCOME_UNKNOWN_PRODUCT: grpc.StatusCode.NOT_FOUND,
    inventory_pb2.OUTCOME_FROZEN: grpc.StatusCode.FAILED_PRECONDITION,
    inventory_pb2.OUTCOME_REQUEST_MISMATCH: grpc.StatusCode.ALREADY_EXISTS,
    inventory_pb2.OUTCOME_INVALID: grpc.StatusCode.INVALID_ARGUMENT,
    inventory_pb2.OUTCOME_USER_LIMIT: grpc.StatusCode.FAILED_PRECONDITION,
    inventory_pb2.OUTCOME_OVERLOADED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    inventory_pb2.OUTCOME_UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
}


class OrderSide(OrderCalls, inventory_pb2_grpc.InventoryServiceServicer):
    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._book = inventory.orders

    def _may_fail(self, context: grpc.ServicerContext, act: Callable[[], object]) -> None:
        self._inventory.fail_next_order(context, act)

    def _refuse(self, context: grpc.ServicerContext, code: grpc.StatusCode, reason: str) -> None:
        fail(context, Fault(code, reason))

    def Deduct(self, request, context):  # noqa: N802
        (response,) = self._inventory.take([request], context)
        if response.outcome in _CODES:
            name = inventory_pb2.Outcome.Name(response.outcome).removeprefix("OUTCOME_")
            fail(context, Fault(_CODES[response.outcome], response.reason or name))
        return response

    def BatchDeduct(self, request, context):  # noqa: N802
        results = self._inventory.take(request.items, context)
        return inventory_pb2.BatchDeductResponse(results=results)

    def StreamDeduct(self, request_iterator, context):  # noqa: N802
        for request in request_iterator:
            results = self._inventory.take(request.items, context)
            yield inventory_pb2.StreamDeductResponse(results=results)

    def ResolveRequest(self, request, context):  # noqa: N802
        self._inventory.fail_next(context)
        units = self._inventory.units_of(request.product_id, request.request_id)
        ends = inventory_pb2.ResolveRequestResponse
        return ends(
            resolution=ends.RESOLUTION_DEDUCTED if units else ends.RESOLUTION_NEVER, quantity=units
        )

    def GetStock(self, request, context):  # noqa: N802
        self._inventory.fail_next(context)
        return inventory_pb2.GetStockResponse(stock=self._stock(request.product_id, context))

    def BatchGetStock(self, request, context):  # noqa: N802
        known = [each for each in request.product_ids if each in self._inventory.products]
        stocks = [self._stock(each, context) for each in known]
        return inventory_pb2.BatchGetStockResponse(stocks=stocks)

    def WatchStock(self, request, context):  # noqa: N802
        self._inventory.watches += 1
        yield inventory_pb2.WatchStockResponse(stock=self._stock(request.product_id, context))

    def _stock(self, product_id: int, context: grpc.ServicerContext) -> inventory_pb2.Stock:
        product = self._inventory.products.get(product_id)
        if product is None:
            fail(context, Fault(grpc.StatusCode.NOT_FOUND, "UNKNOWN_PRODUCT"))
        self._book.sweep()
        shard = inventory_pb2.ShardStock(available=product.available, sold=product.sold)
        return inventory_pb2.Stock(
            product_id=product_id,
            available=product.available,
            held=product.held,
            sold=product.sold,
            total=product.total,
            layout_version=1,
            shards=[shard],
            status=inventory_pb2.PRODUCT_STATUS_OPEN,
        )


class OperatorSide(HoldCalls, JournalCalls, admin_pb2_grpc.AdminServiceServicer):
    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._book = inventory.orders
        self._journal = inventory.journal

    def _refuse(self, context: grpc.ServicerContext, code: grpc.StatusCode, reason: str) -> None:
        fail(context, Fault(code, reason))

    def PutProduct(self, request, context):  # noqa: N802
        product = Product(request.total_stock, request.total_stock, open=False)
        self._inventory.products[request.product_id] = product
        return admin_pb2.PutProductResponse(product=self._row(request.product_id, request.name))

    def GetProduct(self, request, context):  # noqa: N802
        if request.product_id not in self._inventory.products:
            fail(context, Fault(grpc.StatusCode.NOT_FOUND, "UNKNOWN_PRODUCT"))
        return admin_pb2.GetProductResponse(product=self._row(request.product_id))

    def ListProducts(self, request, context):  # noqa: N802
        rows = [self._row(each) for each in sorted(self._inventory.products)]
        return admin_pb2.ListProductsResponse(products=rows)

    def Load(self, request, context):  # noqa: N802
        return admin_pb2.LoadResponse(
            products=[
                admin_pb2.LoadedProduct(product_id=each, loaded=True, pool=7, shards=1, epoch=1)
                for each in request.product_ids
            ]
        )

    def Close(self, request, context):  # noqa: N802
        return admin_pb2.CloseResponse(product=self._row(request.product_id))

    def Restock(self, request, context):  # noqa: N802
        replayed = request.request_id in self._inventory.changes
        self._inventory.changes.add(request.request_id)
        if not replayed:
            self._inventory.products[request.product_id].available += request.quantity
            self._inventory.products[request.product_id].total += request.quantity
            self._inventory.journal.happen(
                kind="restock", product_id=request.product_id, actor=request.actor
            )
        self._inventory.fail_next(context)
        return admin_pb2.RestockResponse(replayed=replayed)

    def Remove(self, request, context):  # noqa: N802
        if self._inventory.products[request.product_id].available < request.quantity:
            fail(context, Fault(grpc.StatusCode.FAILED_PRECONDITION, "INSUFFICIENT_STOCK"))
        return admin_pb2.RemoveResponse()

    def ReleaseBuffer(self, request, context):  # noqa: N802
        replayed = request.request_id in self._inventory.changes
        self._inventory.changes.add(request.request_id)
        product = self._inventory.products[request.product_id]
        quantity = request.quantity or 40
        if not replayed:
            product.available += quantity
        self._inventory.fail_next(context)
        return admin_pb2.ReleaseBufferResponse(quantity=quantity, replayed=replayed)

    def SetShards(self, request, context):  # noqa: N802
        self._inventory.fail_next(context)
        self._inventory.products[request.product_id].pinned_shards = request.shards
        return admin_pb2.SetShardsResponse(layout_version=9)

    def GetCluster(self, request, context):  # noqa: N802
        return self._inventory.cluster

    def _row(self, product_id: int, name: str = "") -> admin_pb2.Product:
        product = self._inventory.products[product_id]
        return admin_pb2.Product(
            product_id=product_id,
            name=name,
            status=(
                inventory_pb2.PRODUCT_STATUS_OPEN
                if product.frozen_reason
                else inventory_pb2.PRODUCT_STATUS_CLOSED
            ),
            total_stock=product.total,
            available_stock=product.available,
            pinned_shards=product.pinned_shards,
            frozen=bool(product.frozen_reason),
            frozen_reason=product.frozen_reason,
        )


@dataclass(slots=True)
class Health:
    """The health service, with the status that it tells."""

    servicer: health.HealthServicer = field(default_factory=health.HealthServicer)

    def tell(self, *, serving: bool) -> None:
        statuses = health_pb2.HealthCheckResponse
        self.servicer.set("", statuses.SERVING if serving else statuses.NOT_SERVING)


@contextmanager
def serving(inventory: Inventory, own_health: Health) -> Iterator[str]:
    """The address of a real server in threads of this process."""
    server = grpc.server(ThreadPoolExecutor(32))
    inventory_pb2_grpc.add_InventoryServiceServicer_to_server(OrderSide(inventory), server)
    admin_pb2_grpc.add_AdminServiceServicer_to_server(OperatorSide(inventory), server)
    health_pb2_grpc.add_HealthServicer_to_server(own_health.servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        inventory.released.set()
        inventory.gate.set()
        server.stop(grace=0).wait()


def fail(context: grpc.ServicerContext, fault: Fault) -> NoReturn:
    """Ends the call as the service does: with google.rpc's details, if it has a reason."""
    if fault.reason is not None:
        context.set_trailing_metadata(trailers_of(fault))
    context.abort(fault.code, "as asked")
    raise AssertionError("abort raises")


def trailers_of(fault: Fault) -> tuple[tuple[str, bytes], ...]:
    details: list[Message] = [ErrorInfo(reason=fault.reason, domain="inventory")]
    if fault.retry_s:
        details.append(RetryInfo(retry_delay=Duration(seconds=fault.retry_s)))
    status = Status(
        code=fault.code.value[0], message="as asked", details=[_packed(each) for each in details]
    )
    return tuple(rpc_status.to_status(status).trailing_metadata)


def answers(*outcomes: tuple[int, str]) -> Iterator[inventory_pb2.DeductResponse]:
    for outcome, reason in outcomes:
        yield inventory_pb2.DeductResponse(outcome=outcome, reason=reason)


def _packed(detail: Message) -> AnyMessage:
    packed = AnyMessage()
    packed.Pack(detail)
    return packed


def _copy(request: inventory_pb2.DeductRequest) -> inventory_pb2.DeductRequest:
    copy = inventory_pb2.DeductRequest()
    copy.CopyFrom(request)
    return copy
