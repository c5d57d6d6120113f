"""How much is asked of which product: counted here, told to the ledger, read by the workers."""

import asyncio
import math
from collections.abc import Mapping
from time import monotonic

from ledger.demand import Demand
from ledger.errors import LedgerError
from ledger.servers import PerServer
from server.metrics import Metrics
from server.names import process_name
from sharding.stock import Stock

REPORT_S = 1.0
HALF_LIFE_S = 5.0
"""After so long without a request half of a product's rate is forgotten."""
PRODUCTS_MAX = 100
SHARE_OF_HOT = 1 / 128
"""What is below this share of the hot rate is not reported: a hundred processes that say nothing of a
product hide less than one shard's worth of requests."""
_FORGOTTEN_PER_S = 0.5


class Rates:
    """Decayed rates of one process, by product. Pure: time is passed in."""

    def __init__(self) -> None:
        self._rates: dict[int, float] = {}

    def count(self, requests: Mapping[int, int], *, elapsed_s: float) -> None:
        """Take what came in during the last `elapsed_s`, above 0."""
        kept = 0.5 ** (elapsed_s / HALF_LIFE_S)
        fresh = {
            product_id: number / elapsed_s * (1 - kept) for product_id, number in requests.items()
        }
        for product_id, rate in self._rates.items():
            fresh[product_id] = fresh.get(product_id, 0.0) + rate * kept
        self._rates = {
            product_id: rate for product_id, rate in fresh.items() if rate >= _FORGOTTEN_PER_S
        }

    def hottest(self, *, at_least: float) -> dict[int, int]:
        """Requests a second of the hottest products, a bounded number, in whole numbers."""
        hot = [(rate, product_id) for product_id, rate in self._rates.items() if rate >= at_least]
        hot.sort(reverse=True)
        return {product_id: math.ceil(rate) for rate, product_id in hot[:PRODUCTS_MAX]}


class DemandReporter:
    """Tells the ledger once a second; a ledger that is away misses it, and nothing else happens."""

    def __init__(
        self, stock: Stock, demand: PerServer[Demand], metrics: Metrics, *, hot_rate_per_s: int
    ) -> None:
        self._stock = stock
        self._demand = demand
        self._metrics = metrics
        self._at_least = hot_rate_per_s * SHARE_OF_HOT
        self._server = process_name()
        self._rates = Rates()
        self._telling: set[Demand] = set()
        """MySQL servers that have not answered yet; one that hangs delays no other."""

    async def run(self, ended: asyncio.Event) -> None:
        """Until `ended`, or cancelled."""
        counted_s = monotonic()
        async with asyncio.TaskGroup() as tasks:
            while not ended.is_set():
                await asyncio.sleep(REPORT_S)
                now_s = monotonic()
                self._rates.count(self._stock.take_rates(), elapsed_s=now_s - counted_s)
                counted_s = now_s
                self._report(tasks)

    def _report(self, tasks: asyncio.TaskGroup) -> None:
        hottest = self._rates.hottest(at_least=self._at_least)
        for demand, its in self._demand.by_server(hottest):
            if demand not in self._telling:
                self._telling.add(demand)
                rates = {product_id: hottest[product_id] for product_id in its}
                tasks.create_task(self._tell(demand, rates), name="demand")

    async def _tell(self, demand: Demand, rates: Mapping[int, int]) -> None:
        try:
            await demand.report(self._server, rates)
        except LedgerError:
            self._metrics.demand_unreported.inc()
        finally:
            self._telling.discard(demand)
