"""Stock messages: the live counts of a product, or the ledger's where it is not on sale."""

import asyncio
from collections.abc import Mapping
from typing import Protocol

from inventory.v1 import inventory_pb2 as messages
from ledger.errors import LedgerError, UnknownProductError
from ledger.products import ProductRow, Products
from ledger.servers import PerServer
from server.gate import Gates, Stance
from sharding.errors import StockUnavailableError
from sharding.outcomes import ProductStock, Reason, ShardStock, State

STATUSES: Mapping[State, messages.ProductStatus.ValueType] = {
    state: messages.ProductStatus.Value(f"PRODUCT_STATUS_{state.name}") for state in State
}


LEDGER_LOOK_S = 0.5
"""How long the ledger may take to say what was sold from the buffer."""
ALL_SHARDS_S = 1.5
"""How long shards that do not answer are waited for."""
_AWAY = frozenset((Reason.NOT_EXECUTED, Reason.OUTCOME_UNKNOWN, Reason.PARTITION_FENCED))
_OUT_OF_REACH = (Stance.AWAY, Stance.BUFFER)


class ReadableStock(Protocol):
    """What of a stock tells its counts."""

    async def read(self, product_id: int) -> ProductStock | None: ...


class LiveStock(ReadableStock, Protocol):
    """What tells also the counts of some shards where others are away."""

    async def read_present(self, product_id: int) -> ProductStock | None: ...


class PatientReader:
    """Waits a while for all shards of a product, then tells what those have that answer."""

    def __init__(self, stock: LiveStock) -> None:
        self._stock = stock

    async def read(self, product_id: int) -> ProductStock | None:
        """As the stock tells it; `unread` names shards that do not answer. StockUnavailableError."""
        try:
            async with asyncio.timeout(ALL_SHARDS_S):
                return await self._stock.read(product_id)
        except TimeoutError:
            pass
        except StockUnavailableError as error:
            if error.reason not in _AWAY:
                raise
        return await self._stock.read_present(product_id)


class StockReader:
    """Reads the stock of products that are on sale where they are sold, of others from the ledger; of
    all while Redis is away."""

    def __init__(self, stock: ReadableStock, products: PerServer[Products], gates: Gates) -> None:
        self._stock = stock
        self._products = products
        self._gates = gates

    async def read(self, product_id: int) -> messages.Stock:
        """One product's counts; UnknownProductError, StockUnavailableError, LedgerUnavailableError."""
        products = self._products.of(product_id)
        if self._gates.of(product_id).stance in _OUT_OF_REACH:
            return _at_rest(await products.get(product_id))
        live = await self._stock.read(product_id)
        if live is not None and live.state is not State.CLOSED:
            return _live(await self._with_sales_from_buffer(live))
        return _at_rest(await products.get(product_id))

    async def _with_sales_from_buffer(self, live: ProductStock) -> ProductStock:
        """Units that the ledger sold while Redis was away; without its word the reading is inexact.

        The sum of all units is the same either way.
        """
        if self._gates.of(live.product_id).mode_epoch == 0:
            return live
        try:
            async with asyncio.timeout(LEDGER_LOOK_S):
                row = await self._products.of(live.product_id).get(live.product_id)
        except (LedgerError, TimeoutError):
            return live._replace(exact=False)
        sold = row.sold_from_buffer if row.epoch == live.epoch else 0
        return live._replace(buffer=live.buffer - sold, sold_elsewhere=sold)

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
        unread_partitions=stock.unread,
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
        frozen=bool(row.frozen_reason),
        layout_version=row.layout_version,
        # What was sold just before may still be on its way to the ledger.
        inexact=row.status is not State.CLOSED,
        status=STATUSES[row.status],
    )
