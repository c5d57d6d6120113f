"""The inventory for order services, from threads and from asyncio."""

from inventory.client.async_stream import AsyncDeductStream
from inventory.client.asynchronous import AsyncInventoryClient
from inventory.client.errors import (
    Frozen,
    InvalidRequest,
    InventoryError,
    NotEnoughStock,
    NotExecuted,
    OutcomeUnknown,
    Overloaded,
    PreconditionFailed,
    RequestMismatch,
    ServiceFault,
    Unavailable,
    UnknownProduct,
    UserLimit,
)
from inventory.client.outcomes import Deduction, DeductItem, Outcome, Resolution, Resolved
from inventory.client.records import (
    Cluster,
    LoadedProduct,
    NewProduct,
    Partition,
    Product,
    ProductPage,
    ProductStatus,
    ShardStock,
    Stock,
)
from inventory.client.retry import RetryPolicy
from inventory.client.sync_stream import DeductStream
from inventory.client.synchronous import InventoryClient

__all__ = [
    "AsyncDeductStream",
    "AsyncInventoryClient",
    "Cluster",
    "DeductItem",
    "DeductStream",
    "Deduction",
    "Frozen",
    "InvalidRequest",
    "InventoryClient",
    "InventoryError",
    "LoadedProduct",
    "NewProduct",
    "NotEnoughStock",
    "NotExecuted",
    "Outcome",
    "OutcomeUnknown",
    "Overloaded",
    "Partition",
    "PreconditionFailed",
    "Product",
    "ProductPage",
    "ProductStatus",
    "RequestMismatch",
    "Resolution",
    "Resolved",
    "RetryPolicy",
    "ServiceFault",
    "ShardStock",
    "Stock",
    "Unavailable",
    "UnknownProduct",
    "UserLimit",
]
