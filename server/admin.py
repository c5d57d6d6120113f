"""AdminService: the operator's calls. Protobuf ends here."""

from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import Protocol

from inventory.v1 import admin_pb2 as messages
from ledger.buffer_releases import Buffers, Release
from ledger.products import JournalKind, ProductRow, Products, ProductSettings
from ledger.servers import PerServer
from server import validation
from server.calls import Context, wait_s
from server.errors import Violation
from server.gate import Gates
from server.lifecycle import Correction, Lifecycle, Loaded
from server.overview import ClusterState, PartitionState
from server.stocks import STATUSES
from sharding.fitness import Flaw
from sharding.placement import is_shard_count


class ShardCounts(Protocol):
    """What changes the shard count of a product."""

    async def set_shards(self, product_id: int, shards: int, *, wait_s: float) -> int: ...


class Views(Protocol):
    """What shows the service's parts."""

    async def read(self) -> ClusterState: ...


@dataclass(frozen=True, slots=True)
class AdminService:
    """One method for each call of the contract that this version has, by its name in snake_case;
    those on holds are in server/holds.py, on the journal in server/journal.py, on audits and freezing in
    server/audits.py."""

    products: PerServer[Products]
    lifecycle: Lifecycle
    gates: Gates
    buffers: PerServer[Buffers]
    resharding: ShardCounts
    overview: Views
    partitions: int
    close_wait_s_max: float
    version: str

    async def put_product(
        self, request: messages.PutProductRequest, _context: Context
    ) -> messages.PutProductResponse:
        """Write a product, or the settings of one that is closed."""
        _check_product(request, self.partitions)
        row = await self.products.of(request.product_id).put(_settings(request))
        return messages.PutProductResponse(product=_product(row))

    async def get_product(
        self, request: messages.GetProductRequest, _context: Context
    ) -> messages.GetProductResponse:
        """Read a ledger row."""
        validation.product_id(request.product_id)
        row = await self.products.of(request.product_id).get(request.product_id)
        return messages.GetProductResponse(product=_product(row))

    async def list_products(
        self, request: messages.ListProductsRequest, _context: Context
    ) -> messages.ListProductsResponse:
        """Read a page of ledger rows."""
        after = request.after_product_id
        validation.check(validation.at_least("after_product_id", after, 0))
        size = validation.page_size(request.page_size)
        pages = await self.products.from_all(lambda each: each.list(after=after, limit=size))
        rows = sorted(chain(*pages), key=attrgetter("product_id"))[:size]
        return messages.ListProductsResponse(
            products=map(_product, rows),
            next_after_product_id=rows[-1].product_id if len(rows) == size else 0,
        )

    async def load(self, request: messages.LoadRequest, context: Context) -> messages.LoadResponse:
        """Put products on sale."""
        validation.product_ids(request.product_ids)
        loaded = await self.lifecycle.load_all(
            request.product_ids, wait_s=wait_s(context, self.close_wait_s_max)
        )
        return messages.LoadResponse(products=map(_loaded, loaded))

    async def close(
        self, request: messages.CloseRequest, context: Context
    ) -> messages.CloseResponse:
        """Take a product off sale."""
        validation.product_id(request.product_id)
        row = await self.lifecycle.close(
            request.product_id, wait_s=wait_s(context, self.close_wait_s_max)
        )
        return messages.CloseResponse(product=_product(row))

    async def restock(
        self, request: messages.RestockRequest, _context: Context
    ) -> messages.RestockResponse:
        """Add units."""
        wanted = _correction(JournalKind.RESTOCK, request)
        return messages.RestockResponse(replayed=await self.lifecycle.correct(wanted))

    async def remove(
        self, request: messages.RemoveRequest, _context: Context
    ) -> messages.RemoveResponse:
        """Take unsold units away."""
        wanted = _correction(JournalKind.REMOVE, request)
        return messages.RemoveResponse(replayed=await self.lifecycle.correct(wanted))

    async def set_shards(
        self, request: messages.SetShardsRequest, context: Context
    ) -> messages.SetShardsResponse:
        """Change the number of shards of a product that is on sale."""
        validation.check(
            validation.at_least("product_id", request.product_id, 1),
            _shard_count(request.shards, self.partitions),
        )
        version = await self.resharding.set_shards(
            request.product_id, request.shards, wait_s=wait_s(context, self.close_wait_s_max)
        )
        return messages.SetShardsResponse(layout_version=version)

    async def release_buffer(
        self, request: messages.ReleaseBufferRequest, _context: Context
    ) -> messages.ReleaseBufferResponse:
        """Bring units on sale from the buffer."""
        validation.release(
            name=request.request_id,
            product_id=request.product_id,
            quantity=request.quantity,
            why=request.reason,
            who=request.actor,
        )
        self.gates.of(request.product_id).require_live()
        wanted = Release(
            request.product_id, request.request_id, request.quantity, request.reason, request.actor
        )
        released = await self.buffers.of(request.product_id).release(wanted)
        return messages.ReleaseBufferResponse(
            quantity=released.quantity, replayed=released.replayed
        )

    async def get_cluster(
        self, _request: messages.GetClusterRequest, _context: Context
    ) -> messages.GetClusterResponse:
        """Show the partitions."""
        state = await self.overview.read()
        return messages.GetClusterResponse(
            partitions=map(_partition, state.partitions),
            version=self.version,
            schema_version=state.schema_version,
            mode=state.mode,
            mode_epoch=state.mode_epoch,
            durability=state.durability,
            node_flaws=map(_node_flaw, state.flaws),
        )


def _check_product(request: messages.PutProductRequest, partitions: int) -> None:
    validation.check(
        validation.at_least("product_id", request.product_id, 1),
        validation.name(request.name),
        validation.total(request.total_stock),
        validation.between("buffer_percent", request.buffer_percent, 0, 100),
        _shard_count(request.shards, partitions),
        validation.at_least("low_stock", request.low_stock, 0),
        validation.at_least("buffer_release_below", request.buffer_release_below, 0),
        validation.between("max_per_user", request.max_per_user, 0, validation.MAX_PER_USER_MAX),
    )


def _shard_count(shards: int, partitions: int) -> Violation | None:
    if shards == 0 or is_shard_count(shards, partitions):
        return None
    return Violation("shards", "INVALID_SHARDS", f"must be 0 or a divisor of {partitions}")


def _settings(request: messages.PutProductRequest) -> ProductSettings:
    percent = request.buffer_percent
    if not request.HasField("buffer_percent"):
        percent = validation.BUFFER_PERCENT_DEFAULT
    return ProductSettings(
        product_id=request.product_id,
        name=request.name,
        total_stock=request.total_stock,
        buffer_percent=percent,
        shards=request.shards,
        max_per_user=request.max_per_user,
        low_stock=request.low_stock,
        buffer_release_below=request.buffer_release_below,
    )


def _correction(
    kind: JournalKind, request: messages.RestockRequest | messages.RemoveRequest
) -> Correction:
    validation.adjustment(
        name=request.request_id,
        product_id=request.product_id,
        quantity=request.quantity,
        why=request.reason,
        who=request.actor,
    )
    return Correction(
        kind,
        request.product_id,
        request.request_id,
        request.quantity,
        request.reason,
        request.actor,
    )


def _product(row: ProductRow) -> messages.Product:
    return messages.Product(
        product_id=row.product_id,
        name=row.name,
        status=STATUSES[row.status],
        total_stock=row.total_stock,
        available_stock=row.available_stock,
        held_stock=row.held_stock,
        buffer_stock=row.buffer_stock,
        sold_count=row.sold_count,
        buffer_percent=row.buffer_percent,
        shards=row.layout_shards or row.shards,
        pinned_shards=row.shards,
        layout_version=row.layout_version,
        epoch=row.epoch,
        max_per_user=row.max_per_user,
        low_stock=row.low_stock,
        buffer_release_below=row.buffer_release_below,
        version=row.version,
        frozen=bool(row.frozen_reason),
        frozen_reason=row.frozen_reason,
    )


def _loaded(loaded: Loaded) -> messages.LoadedProduct:
    plan = loaded.plan
    return messages.LoadedProduct(
        product_id=plan.product_id,
        loaded=loaded.now,
        pool=sum(plan.amounts),
        shards=plan.layout.shards,
        layout_version=plan.layout.version,
        epoch=plan.epoch,
    )


def _partition(state: PartitionState) -> messages.Partition:
    return messages.Partition(
        partition=state.partition,
        slot=state.slot,
        open=state.head.is_open,
        reason=state.head.reason.upper().replace(" ", "_"),
        generation=state.head.generation,
        event_number=state.head.number,
        backlog=state.backlog,
        degraded=state.head.is_degraded,
        node=state.node,
    )


def _node_flaw(flaw: Flaw) -> messages.NodeFlaw:
    return messages.NodeFlaw(
        node=flaw.node,
        what=flaw.what,
        value=flaw.value,
        loses_units=flaw.loses_units,
        reason=flaw.reason,
        remedy=flaw.remedy,
    )
