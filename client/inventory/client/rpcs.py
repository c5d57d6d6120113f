"""The calls of the service by name, with the messages that go out and come back."""

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from google.protobuf.message import Message
from grpc_health.v1 import health_pb2

from inventory.v1 import admin_pb2, inventory_pb2

RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)


@dataclass(frozen=True, slots=True)
class Rpc(Generic[RequestT, ResponseT]):
    """One method of a gRPC service; `acts`: it changes something, a lost answer leaves a doubt."""

    path: str
    request: type[RequestT]
    response: type[ResponseT]
    acts: bool = False

    def serialize(self, request: Message) -> bytes:
        return request.SerializeToString()


AnyRpc = Rpc[Any, Any]

_INVENTORY = "/inventory.v1.InventoryService/"
_ADMIN = "/inventory.v1.AdminService/"

DEDUCT = Rpc(
    _INVENTORY + "Deduct", inventory_pb2.DeductRequest, inventory_pb2.DeductResponse, acts=True
)
BATCH_DEDUCT = Rpc(
    _INVENTORY + "BatchDeduct",
    inventory_pb2.BatchDeductRequest,
    inventory_pb2.BatchDeductResponse,
    acts=True,
)
STREAM_DEDUCT = Rpc(
    _INVENTORY + "StreamDeduct",
    inventory_pb2.StreamDeductRequest,
    inventory_pb2.StreamDeductResponse,
    acts=True,
)
RESOLVE_REQUEST = Rpc(
    _INVENTORY + "ResolveRequest",
    inventory_pb2.ResolveRequestRequest,
    inventory_pb2.ResolveRequestResponse,
    acts=True,
)
GET_STOCK = Rpc(
    _INVENTORY + "GetStock", inventory_pb2.GetStockRequest, inventory_pb2.GetStockResponse
)
BATCH_GET_STOCK = Rpc(
    _INVENTORY + "BatchGetStock",
    inventory_pb2.BatchGetStockRequest,
    inventory_pb2.BatchGetStockResponse,
)
WATCH_STOCK = Rpc(
    _INVENTORY + "WatchStock", inventory_pb2.WatchStockRequest, inventory_pb2.WatchStockResponse
)
RESERVE = Rpc(
    _INVENTORY + "Reserve", inventory_pb2.ReserveRequest, inventory_pb2.ReserveResponse, acts=True
)
BATCH_RESERVE = Rpc(
    _INVENTORY + "BatchReserve",
    inventory_pb2.BatchReserveRequest,
    inventory_pb2.BatchReserveResponse,
    acts=True,
)
DEDUCT_ORDER = Rpc(
    _INVENTORY + "DeductOrder",
    inventory_pb2.DeductOrderRequest,
    inventory_pb2.DeductOrderResponse,
    acts=True,
)
BATCH_DEDUCT_ORDER = Rpc(
    _INVENTORY + "BatchDeductOrder",
    inventory_pb2.BatchDeductOrderRequest,
    inventory_pb2.BatchDeductOrderResponse,
    acts=True,
)
CONFIRM = Rpc(
    _INVENTORY + "Confirm", inventory_pb2.ConfirmRequest, inventory_pb2.ConfirmResponse, acts=True
)
BATCH_CONFIRM = Rpc(
    _INVENTORY + "BatchConfirm",
    inventory_pb2.BatchConfirmRequest,
    inventory_pb2.BatchConfirmResponse,
    acts=True,
)
RELEASE = Rpc(
    _INVENTORY + "Release", inventory_pb2.ReleaseRequest, inventory_pb2.ReleaseResponse, acts=True
)
BATCH_RELEASE = Rpc(
    _INVENTORY + "BatchRelease",
    inventory_pb2.BatchReleaseRequest,
    inventory_pb2.BatchReleaseResponse,
    acts=True,
)
EXTEND_HOLD = Rpc(
    _INVENTORY + "ExtendHold",
    inventory_pb2.ExtendHoldRequest,
    inventory_pb2.ExtendHoldResponse,
    acts=True,
)
GET_ORDER = Rpc(
    _INVENTORY + "GetOrder", inventory_pb2.GetOrderRequest, inventory_pb2.GetOrderResponse
)
WATCH_EVENTS = Rpc(
    _INVENTORY + "WatchEvents",
    inventory_pb2.WatchEventsRequest,
    inventory_pb2.WatchEventsResponse,
)
PUT_PRODUCT = Rpc(
    _ADMIN + "PutProduct", admin_pb2.PutProductRequest, admin_pb2.PutProductResponse, acts=True
)
GET_PRODUCT = Rpc(_ADMIN + "GetProduct", admin_pb2.GetProductRequest, admin_pb2.GetProductResponse)
LIST_PRODUCTS = Rpc(
    _ADMIN + "ListProducts", admin_pb2.ListProductsRequest, admin_pb2.ListProductsResponse
)
LOAD = Rpc(_ADMIN + "Load", admin_pb2.LoadRequest, admin_pb2.LoadResponse, acts=True)
CLOSE = Rpc(_ADMIN + "Close", admin_pb2.CloseRequest, admin_pb2.CloseResponse, acts=True)
RESTOCK = Rpc(_ADMIN + "Restock", admin_pb2.RestockRequest, admin_pb2.RestockResponse, acts=True)
REMOVE = Rpc(_ADMIN + "Remove", admin_pb2.RemoveRequest, admin_pb2.RemoveResponse, acts=True)
SET_SHARDS = Rpc(
    _ADMIN + "SetShards", admin_pb2.SetShardsRequest, admin_pb2.SetShardsResponse, acts=True
)
RELEASE_BUFFER = Rpc(
    _ADMIN + "ReleaseBuffer",
    admin_pb2.ReleaseBufferRequest,
    admin_pb2.ReleaseBufferResponse,
    acts=True,
)
LIST_HOLDS = Rpc(_ADMIN + "ListHolds", admin_pb2.ListHoldsRequest, admin_pb2.ListHoldsResponse)
FORCE_RELEASE = Rpc(
    _ADMIN + "ForceRelease",
    admin_pb2.ForceReleaseRequest,
    admin_pb2.ForceReleaseResponse,
    acts=True,
)
LIST_DEAD_LETTERS = Rpc(
    _ADMIN + "ListDeadLetters",
    admin_pb2.ListDeadLettersRequest,
    admin_pb2.ListDeadLettersResponse,
)
RETRY_DEAD_LETTER = Rpc(
    _ADMIN + "RetryDeadLetter",
    admin_pb2.RetryDeadLetterRequest,
    admin_pb2.RetryDeadLetterResponse,
    acts=True,
)
DISCARD_DEAD_LETTER = Rpc(
    _ADMIN + "DiscardDeadLetter",
    admin_pb2.DiscardDeadLetterRequest,
    admin_pb2.DiscardDeadLetterResponse,
    acts=True,
)
GET_TIMELINE = Rpc(
    _ADMIN + "GetTimeline", admin_pb2.GetTimelineRequest, admin_pb2.GetTimelineResponse
)
FREEZE = Rpc(_ADMIN + "Freeze", admin_pb2.FreezeRequest, admin_pb2.FreezeResponse, acts=True)
UNFREEZE = Rpc(
    _ADMIN + "Unfreeze", admin_pb2.UnfreezeRequest, admin_pb2.UnfreezeResponse, acts=True
)
AUDIT = Rpc(_ADMIN + "Audit", admin_pb2.AuditRequest, admin_pb2.AuditResponse)
REPAIR = Rpc(_ADMIN + "Repair", admin_pb2.RepairRequest, admin_pb2.RepairResponse, acts=True)
GET_CLUSTER = Rpc(_ADMIN + "GetCluster", admin_pb2.GetClusterRequest, admin_pb2.GetClusterResponse)
HEALTH_CHECK = Rpc(
    "/grpc.health.v1.Health/Check", health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse
)
