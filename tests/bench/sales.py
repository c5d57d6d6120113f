"""Sales to the last unit: what its end costs, when units are where nobody asks for them."""

from collections.abc import Sequence
from itertools import count

from deploy.local.errors import StackError
from inventory.client import NewProduct
from tests.bench.figures import Topic
from tests.bench.products import FIRST_SALE, product
from tests.bench.sender import send
from tests.bench.service import Measure, Service
from tests.bench.window import Measured

UNITS = 20_000
LAST = UNITS // 100
SHARDS = 24
ITEMS = 50
"""Requests that travel together, each for one unit."""
REQUESTS_A_UNIT = 10
SALES_A_ROUND = 2

BEGINNING, END = "first 99 % of a sale", "last 1 % of a sale"
END_IN_DEMAND = f"last 1 %, {REQUESTS_A_UNIT} requests a unit"


def to_be_sold(rounds: int) -> Sequence[NewProduct]:
    """Products to sell to the last unit in so many rounds, two in each."""
    product_ids = range(FIRST_SALE, FIRST_SALE + SALES_A_ROUND * rounds)
    return [product(product_id, UNITS, shards=SHARDS) for product_id in product_ids]


class Sales:
    """Sells one product after another.

    A sale pauses before its last units: more requests are under way at a time than there are units
    left, and only between two pauses are the counters those of one part of it.
    """

    def __init__(self, service: Service, baseline: str) -> None:
        self._service = service
        self._baseline = baseline
        self._product_ids = count(FIRST_SALE)
        self._product_id = 0
        """What is sold at present."""

    def topics(self) -> Sequence[tuple[Topic, Measure]]:
        """In their order: each goes on from the one before."""
        measures = {
            BEGINNING: self._begin,
            END: self._end,
            END_IN_DEMAND: self._end_in_demand,
        }
        return [
            (Topic(name=name, what="deductions", baselines=(self._baseline,)), measure)
            for name, measure in measures.items()
        ]

    async def _begin(self) -> Measured:
        """Sell all but the last units of the next product."""
        self._product_id = next(self._product_ids)
        return await self._sell(UNITS - LAST, total=UNITS - LAST)

    async def _end(self) -> Measured:
        """As many requests as there are units: each has to find one."""
        return await self._sell(LAST, total=LAST)

    async def _end_in_demand(self) -> Measured:
        """The end of another sale, with more requests than units."""
        await self._begin()
        return await self._sell(LAST, total=LAST * REQUESTS_A_UNIT)

    async def _sell(self, units: int, *, total: int) -> Measured:
        async def run() -> Measured:
            address = self._service.stack.grpc_address()
            return await send(address, self._product_id, total=total, size=ITEMS)

        sold = await self._service.with_work(run)
        is_answered = sold.accepted + sold.refused == total
        if sold.accepted > units or (is_answered and sold.accepted < units):
            raise StackError(f"{sold.accepted} of {units} units were sold to {total} requests")
        return sold
