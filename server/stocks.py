"""Stock messages: the live counts of a product, or the ledger's where it is not on sale."""

from collections.abc import Mapping

from inventory.v1 import inventory_pb2 as messages
from ledger.errors import UnknownProductError
from ledger.products import ProductRow, Products
from ledger.servers import PerServer
from sharding.outcomes import ProductStock, ShardStock, State
from sharding.stock import Stock

STATUSES: Mapping[State, messages.ProductStatus.ValueType] = {
    state: messages.ProductStatus.Value(f"PRODUCT_STATUS_{state.name}") for state in State
}


class StockReader:
    """Reads the stock of products that are on sale from Redis, of others from the ledger."""

    def __init__(self, stock: Stock, products: PerServer[Products]) -> None:
        self._stock = stock
        self._products = products

    async def read(self, product_id: int) -> messages.Stock:
        """One product's counts; UnknownProductError, StockUnavailableError, LedgerUnavailableError."""
        live = await self._stock.read(product_id)
        if live is not None and live.state is not State.CLOSED:
            return _live(live)
        return _at_rest(await self._products.of(product_id).get(product_id))

    async def find(self, product_id: int) -> messages.Stock | None:
        """The same, with None for a product that is unknown."""
        try:
            return await self.read(product_id)
        except UnknownProductError:
            return None


def _live(stock: ProductStock) -> messages.Stock:
    return messages.Stock(
        product_id=stock.product_id,
        available=stock.available,
        held=stock.held,
        in_transit=stock.in_transit,
        buffer=stock.buffer,
        sold=stock.sold,
        total=stock.total,
        frozen=stock.frozen,
        layout_version=stock.layout_version,
        shards=[_shard(shard) for shard in stock.shards if _is_shown(stock, shard)],
        inexact=not stock.exact,
        status=STATUSES[stock.state],
    )


def _is_shown(stock: ProductStock, shard: ShardStock) -> bool:
    """A shard that left is of interest until it is empty."""
    has_units = shard.available or shard.held or shard.in_transit
    return shard.shard < stock.serving or bool(has_units)


def _shard(shard: ShardStock) -> messages.ShardStock:
    return messages.ShardStock(
        shard=shard.shard,
        partition=shard.partition,
        available=shard.available,
        held=shard.held,
        sold=shard.sold,
        in_transit=shard.in_transit,
    )


def _at_rest(row: ProductRow) -> messages.Stock:
    return messages.Stock(
        product_id=row.product_id,
        available=row.available_stock,
        held=row.held_stock,
        buffer=row.buffer_stock,
        sold=row.sold_count,
        total=row.total_stock,
        layout_version=row.layout_version,
        # What was sold just before Close may still be on its way to the ledger.
        inexact=row.status is not State.CLOSED,
        status=STATUSES[row.status],
    )
