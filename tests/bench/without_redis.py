"""One hot product sold from MySQL alone, in each way to share transactions, without gRPC."""

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from itertools import count

from prometheus_client import CollectorRegistry

from ledger.database import Database, Transaction
from ledger.engine.metrics import SalesMetrics
from ledger.engine.stock import LedgerStock, Manner
from ledger.metrics import LedgerMetrics
from ledger.migrate import migrate
from ledger.products import Products, ProductSettings
from ledger.settings import MysqlUrl, parse_url
from sharding.outcomes import Deduction, Outcome
from tests.bench.cpu import Watched
from tests.bench.figures import Topic
from tests.bench.products import PLENTY
from tests.bench.requests import FIRST_TRY
from tests.bench.service import Measure
from tests.bench.window import Collector, Measured

CONNECTIONS = 32
FEW, MANY = 32, 600
"""Requests in flight: as many as there are connections, and a flash sale's."""
TEXTBOOK = "MySQL, textbook"
"""What tutorials do: read the row, change it, insert a row, a transaction each; a repeat sells twice."""
OPTIMISTIC = "MySQL, optimistic"

_READ = "SELECT available_stock FROM product_inventory WHERE product_id = %s"
_CHANGE = (
    "UPDATE product_inventory SET available_stock = available_stock - 1,"
    " sold_count = sold_count + 1, version = version + 1"
    " WHERE product_id = %s AND available_stock >= 1"
)
_INSERT = (
    "INSERT INTO inventory_log (product_id, request_id, kind, type, quantity)"
    " VALUES (%s, %s, 'deduct', 5, -1)"
)

Buy = Callable[[str], Awaitable[bool]]
"""Asks for a unit under an id that nobody has used; whether it was sold."""


class WithoutRedis:
    """Measures on a database of its own; every measurement has a product of its own."""

    def __init__(
        self, mysql_url: str, watched: Watched, *, warm_up_s: float, seconds: float
    ) -> None:
        self._url = parse_url(mysql_url)
        self._watched = watched
        self._warm_up_s = warm_up_s
        self._seconds = seconds
        self._product_ids = count(1)
        self._own: MysqlUrl | None = None

    def topics(self) -> Sequence[tuple[Topic, Measure]]:
        """The ways, as ratios to the two that everybody knows."""
        return [
            (Topic(name=OPTIMISTIC, what="deductions"), self._engine(Manner.OPTIMISTIC, FEW)),
            (_compared(TEXTBOOK, OPTIMISTIC), self._textbook),
            (_compared("MySQL, pessimistic"), self._engine(Manner.PESSIMISTIC, FEW)),
            (_compared("MySQL, merged"), self._engine(Manner.MERGED, FEW)),
            (_compared(f"MySQL, merged, {MANY} in flight"), self._engine(Manner.MERGED, MANY)),
        ]

    def _engine(self, manner: Manner, in_flight: int) -> Measure:
        return partial(self._sold_by_engine, manner, in_flight)

    async def _sold_by_engine(self, manner: Manner, in_flight: int) -> Measured:
        async with self._database() as database:
            product_id = await self._on_sale(database)
            stock = LedgerStock(database, SalesMetrics(CollectorRegistry()), manner)

            async def buy(request_id: str) -> bool:
                request = Deduction(request_id, product_id, 1, attempt=FIRST_TRY)
                (answer,) = await stock.deduct([request])
                return answer.outcome is Outcome.DEDUCTED

            return await self._measure(buy, in_flight)

    async def _textbook(self) -> Measured:
        async with self._database() as database:
            product_id = await self._on_sale(database)

            async def buy(request_id: str) -> bool:
                async def run(transaction: Transaction) -> bool:
                    row = await transaction.row(_READ, (product_id,))
                    if row is None or row[0] < 1:
                        return False
                    if not await transaction.execute(_CHANGE, (product_id,)):
                        return False
                    await transaction.execute(_INSERT, (product_id, request_id))
                    return True

                return await database.transaction(run)

            return await self._measure(buy, FEW)

    async def _measure(self, buy: Buy, in_flight: int) -> Measured:
        collector: Collector[bool] = Collector(self._watched)
        ids = _new_ids()

        async def lane() -> None:
            while not collector.is_over:
                collector.take(await buy(next(ids)))

        window = await collector.measure(
            [lane() for _ in range(in_flight)], warm_up_s=self._warm_up_s, seconds=self._seconds
        )
        return Measured(
            elapsed_s=window.elapsed_s, accepted=sum(window.answers), cpu_s=window.cpu_s
        )

    @asynccontextmanager
    async def _database(self) -> AsyncIterator[Database]:
        url = self._own = self._own or await self._prepared()
        opened = Database(url, _metrics(), connections=CONNECTIONS)
        try:
            yield opened
        finally:
            await opened.close()

    async def _prepared(self) -> MysqlUrl:
        url = replace(self._url, database=f"{self._url.database}_alone")
        main = Database(self._url, _metrics())

        async def create(transaction: Transaction) -> None:
            await transaction.execute(f"CREATE DATABASE {url.database}")

        await main.transaction(create)
        await main.close()
        tables = Database(url, _metrics())
        await migrate(tables)
        await tables.close()
        return url

    async def _on_sale(self, database: Database) -> int:
        product_id = next(self._product_ids)
        products = Products(database)
        await products.put(
            ProductSettings(
                product_id=product_id,
                name="",
                total_stock=PLENTY,
                buffer_percent=0,
                shards=0,
                max_per_user=0,
                low_stock=0,
            )
        )
        plan, _ = await products.begin_load(
            product_id, partitions=1, default_shards=1, has_buffer=False
        )
        await products.finish_load(plan)
        return product_id


def _compared(name: str, *baselines: str) -> Topic:
    return Topic(name=name, what="deductions", baselines=baselines or (OPTIMISTIC, TEXTBOOK))


def _new_ids() -> Iterator[str]:
    prefix = secrets.token_hex(6)
    return (f"{prefix}-{number}" for number in count())


def _metrics() -> LedgerMetrics:
    return LedgerMetrics(CollectorRegistry())
