"""The products that this process knows, each under its present layout."""

import asyncio
from collections import Counter, OrderedDict
from functools import partial

from sharding.directory import Directory, Listing
from sharding.home import Home, HomeContext
from sharding.lookups import Lookups
from sharding.shards import Shards
from sharding.shortage import Shortage

PRODUCTS_MAX = 4_096
"""Products whose layout this process remembers; 20 kB each with 6 shards."""


class Product:
    """One product under one layout, as this process routes to it."""

    __slots__ = ("asked", "homes", "listing", "lookups", "shards", "shortage")

    def __init__(self, product_id: int, listing: Listing, context: HomeContext) -> None:
        self.listing = listing
        self.shards = Shards(context.cluster, product_id, listing.layout, earlier=listing.earlier)
        self.shortage = Shortage(self.shards, context.metrics)
        self.lookups = Lookups(
            self.shards,
            listing.former,
            listing.since_s,
            context.metrics,
            context.tasks,
            partitions=context.cluster.settings.partitions,
            by_user=listing.max_per_user > 0,
        )
        self.homes = [
            Home(self.shards, shard, self.lookups, self.shortage, context)
            for shard in range(listing.layout.shards)
        ]
        self.asked = 0
        """Requests since somebody last looked."""


class Catalogue:
    """Finds products; at most PRODUCTS_MAX are remembered."""

    def __init__(self, directory: Directory, context: HomeContext) -> None:
        self._directory = directory
        self._context = context
        self._products: OrderedDict[int, Product] = OrderedDict()
        self._lookups: dict[int, asyncio.Task[Product | None]] = {}
        self._asked_before: Counter[int] = Counter()
        """Requests of products that were forgotten since."""

    def get(self, product_id: int) -> Product | None:
        """The product if it is remembered."""
        return self._products.get(product_id)

    def forget(self, product_id: int) -> None:
        """Look it up anew when it is next asked for. Work on it goes on as it was begun."""
        product = self._products.pop(product_id, None)
        if product is not None and product.asked:
            self._asked_before[product_id] += product.asked

    async def find(self, product_id: int) -> Product | None:
        """The product, None if it was never loaded. StockUnavailableError."""
        product = self._products.get(product_id)
        if product is not None:
            return product
        lookup = self._lookups.get(product_id)
        if lookup is None:
            lookup = asyncio.create_task(self._look_up(product_id), name=f"find {product_id}")
            self._lookups[product_id] = lookup
            lookup.add_done_callback(partial(self._looked_up, product_id))
        return await asyncio.shield(lookup)

    def _looked_up(self, product_id: int, lookup: asyncio.Task[Product | None]) -> None:
        self._lookups.pop(product_id, None)
        if not lookup.cancelled():
            lookup.exception()  # whoever waited for it may have gone

    def take_rates(self) -> dict[int, int]:
        """Requests per product since the last call; products without any are left out."""
        rates = dict(self._asked_before)
        self._asked_before.clear()
        for product_id, product in self._products.items():
            if product.asked:
                rates[product_id] = rates.get(product_id, 0) + product.asked
                product.asked = 0
        return rates

    async def _look_up(self, product_id: int) -> Product | None:
        listing = await self._directory.find(product_id)
        if listing is None:
            return None
        product = Product(product_id, listing, self._context)
        self._products[product_id] = product
        while len(self._products) > PRODUCTS_MAX:
            self._products.popitem(last=False)
        return product
