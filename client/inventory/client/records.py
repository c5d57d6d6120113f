"""Stock, products and the cluster as records; field for field the messages of inventory.v1."""

from dataclasses import dataclass
from enum import StrEnum

from inventory.client.errors import ServiceFault
from inventory.client.outcomes import Resolution, Resolved
from inventory.v1 import admin_pb2, inventory_pb2


class ProductStatus(StrEnum):
    """Where a product is in its life."""

    UNSPECIFIED = "unspecified"
    CLOSED = "closed"
    LOADING = "loading"
    OPEN = "open"
    CLOSING = "closing"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardStock:
    """One shard's share of a product, in units."""

    shard: int
    partition: int
    available: int
    held: int
    sold: int
    in_transit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stock:
    """A product's counts, in units; `inexact`: units moved all the time while they were read, or these
    are the ledger's counts, which may lag, or shards did not answer.

    `unread_partitions`: those of the latter, whose units are in none of the sums.
    """

    product_id: int
    available: int
    held: int
    in_transit: int
    buffer: int
    sold: int
    total: int
    frozen: bool
    layout_version: int
    shards: tuple[ShardStock, ...]
    inexact: bool
    status: ProductStatus
    unread_partitions: tuple[int, ...] = ()

    @property
    def accounted(self) -> int:
        """Units that are in one of the five places; equal to `total` when nothing is lost."""
        return self.available + self.held + self.in_transit + self.buffer + self.sold


@dataclass(frozen=True, slots=True, kw_only=True)
class NewProduct:
    """A product to write.

    `buffer_percent` None: the service's default. `shards`, `max_per_user`, `low_stock`,
    `buffer_release_below` 0: the service's choice, no limit, never, never.
    """

    product_id: int
    name: str = ""
    total_stock: int = 0
    buffer_percent: int | None = None
    shards: int = 0
    max_per_user: int = 0
    low_stock: int = 0
    buffer_release_below: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """A product as the ledger has it."""

    product_id: int
    name: str
    status: ProductStatus
    total_stock: int
    available_stock: int
    held_stock: int
    buffer_stock: int
    sold_count: int
    buffer_percent: int
    shards: int
    layout_version: int
    epoch: int
    max_per_user: int
    low_stock: int
    version: int
    pinned_shards: int
    frozen: bool
    frozen_reason: str
    buffer_release_below: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductPage:
    """Products by id; `next_after_product_id` starts the next page, 0: this was the last."""

    products: tuple[Product, ...]
    next_after_product_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedProduct:
    """A product that is on sale; `loaded` False: it was already, and nothing changed."""

    product_id: int
    loaded: bool
    pool: int
    shards: int
    layout_version: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferRelease:
    """Units that left the buffer; `replayed`: by an earlier call with this request_id."""

    quantity: int
    replayed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """One partition of the live stock; `backlog` counts events that are not in the ledger yet.

    `degraded`: its node has no replica, and its loss loses what was accepted. `node`: where its master
    listens, empty if nobody knows.
    """

    partition: int
    slot: int
    open: bool
    reason: str
    generation: int
    event_number: int
    backlog: int
    degraded: bool = False
    node: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFlaw:
    """One thing that is wrong with how a Redis node is set up, and what mends it.

    `loses_units`: what was accepted can be lost by it; otherwise it is merely unwise.
    """

    node: str
    what: str
    value: str
    loses_units: bool
    reason: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """What the service is made of; `schema_version` counts the ledger's migrations.

    `mode`: where units are sold from; `mode_epoch` grows with its changes. `durability`: what an answer
    waits for, empty where there is no Redis.
    """

    partitions: tuple[Partition, ...]
    version: str
    schema_version: int
    mode: str
    mode_epoch: int
    durability: str = ""
    node_flaws: tuple[NodeFlaw, ...] = ()


def stock_of(message: inventory_pb2.Stock) -> Stock:
    return Stock(
        product_id=message.product_id,
        available=message.available,
        held=message.held,
        in_transit=message.in_transit,
        buffer=message.buffer,
        sold=message.sold,
        total=message.total,
        frozen=message.frozen,
        layout_version=message.layout_version,
        shards=tuple(_shard_of(shard) for shard in message.shards),
        inexact=message.inexact,
        status=_status_of(message.status),
        unread_partitions=tuple(message.unread_partitions),
    )


def resolved_of(message: inventory_pb2.ResolveRequestResponse) -> Resolved:
    """ServiceFault for a word that this client does not know, from a newer service."""
    resolution = _RESOLUTIONS.get(message.resolution)
    if resolution is None:
        raise ServiceFault(
            "the service answers with a word that this client does not know",
            reason="UNKNOWN_RESOLUTION",
        )
    return Resolved(resolution, message.quantity)


def product_of(message: admin_pb2.Product) -> Product:
    return Product(
        product_id=message.product_id,
        name=message.name,
        status=_status_of(message.status),
        total_stock=message.total_stock,
        available_stock=message.available_stock,
        held_stock=message.held_stock,
        buffer_stock=message.buffer_stock,
        sold_count=message.sold_count,
        buffer_percent=message.buffer_percent,
        shards=message.shards,
        layout_version=message.layout_version,
        epoch=message.epoch,
        max_per_user=message.max_per_user,
        low_stock=message.low_stock,
        version=message.version,
        pinned_shards=message.pinned_shards,
        frozen=message.frozen,
        frozen_reason=message.frozen_reason,
        buffer_release_below=message.buffer_release_below,
    )


def loaded_of(message: admin_pb2.LoadedProduct) -> LoadedProduct:
    return LoadedProduct(
        product_id=message.product_id,
        loaded=message.loaded,
        pool=message.pool,
        shards=message.shards,
        layout_version=message.layout_version,
        epoch=message.epoch,
    )


def cluster_of(message: admin_pb2.GetClusterResponse) -> Cluster:
    return Cluster(
        partitions=tuple(_partition_of(partition) for partition in message.partitions),
        version=message.version,
        schema_version=message.schema_version,
        mode=message.mode,
        mode_epoch=message.mode_epoch,
        durability=message.durability,
        node_flaws=tuple(_node_flaw_of(flaw) for flaw in message.node_flaws),
    )


def _shard_of(message: inventory_pb2.ShardStock) -> ShardStock:
    return ShardStock(
        shard=message.shard,
        partition=message.partition,
        available=message.available,
        held=message.held,
        sold=message.sold,
        in_transit=message.in_transit,
    )


def _node_flaw_of(message: admin_pb2.NodeFlaw) -> NodeFlaw:
    return NodeFlaw(
        node=message.node,
        what=message.what,
        value=message.value,
        loses_units=message.loses_units,
        reason=message.reason,
        remedy=message.remedy,
    )


def _partition_of(message: admin_pb2.Partition) -> Partition:
    return Partition(
        partition=message.partition,
        slot=message.slot,
        open=message.open,
        reason=message.reason,
        generation=message.generation,
        event_number=message.event_number,
        backlog=message.backlog,
        degraded=message.degraded,
        node=message.node,
    )


_RESOLUTIONS = {
    inventory_pb2.ResolveRequestResponse.RESOLUTION_DEDUCTED: Resolution.DEDUCTED,
    inventory_pb2.ResolveRequestResponse.RESOLUTION_REFUSED: Resolution.REFUSED,
    inventory_pb2.ResolveRequestResponse.RESOLUTION_NEVER: Resolution.NEVER,
}

_STATUSES = {
    inventory_pb2.PRODUCT_STATUS_CLOSED: ProductStatus.CLOSED,
    inventory_pb2.PRODUCT_STATUS_LOADING: ProductStatus.LOADING,
    inventory_pb2.PRODUCT_STATUS_OPEN: ProductStatus.OPEN,
    inventory_pb2.PRODUCT_STATUS_CLOSING: ProductStatus.CLOSING,
}


def _status_of(status: inventory_pb2.ProductStatus.ValueType) -> ProductStatus:
    return _STATUSES.get(status, ProductStatus.UNSPECIFIED)
