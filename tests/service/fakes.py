"""Stock and ledger in memory, with the methods that the server calls, and faults on demand."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ledger.errors import Conflict, LedgerConflictError, UnknownProductError
from ledger.layouts import Aim, Cause, ChangeState
from ledger.products import Adjustment, JournalKind, ProductRow, ProductSettings
from sharding.outcomes import (
    Answer,
    Deduction,
    Outcome,
    ProductStock,
    Reason,
    Resolution,
    Resolved,
    ShardStock,
    State,
)
from sharding.plans import LoadPlan


@dataclass
class FakeStock:
    """One shard a product. `open_gate` lets deductions through; `answers` replaces them."""

    available: dict[int, int] = field(default_factory=dict)
    taken: dict[tuple[int, str], int] = field(default_factory=dict)
    batches: list[list[Deduction]] = field(default_factory=list)
    states: dict[int, State] = field(default_factory=dict)
    answers: list[Answer] | None = None
    failure: BaseException | None = None
    failures: list[BaseException] = field(default_factory=list)
    """Raised one by one by the next calls that are no deductions."""
    open_gate: asyncio.Event = field(default_factory=asyncio.Event)
    reads: int = 0
    left: tuple[ShardStock, ...] = ()
    """Shards that left in a change of the layout, as a read shows them."""
    retired: int = 0
    """Shards beside the one that left in a change of the layout and are closed, too."""

    def __post_init__(self) -> None:
        self.open_gate.set()
        self._tasks: set[asyncio.Task[None]] = set()

    def deduct(self, deductions: Sequence[Deduction]) -> asyncio.Future[list[Answer]]:
        done: asyncio.Future[list[Answer]] = asyncio.get_running_loop().create_future()
        self.batches.append(list(deductions))
        task = asyncio.create_task(self._work(deductions, done))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return done

    async def _work(
        self, deductions: Sequence[Deduction], done: asyncio.Future[list[Answer]]
    ) -> None:
        await self.open_gate.wait()
        answers = self.answers or [self._take(wanted) for wanted in deductions]
        if done.done():
            return
        if isinstance(self.failure, asyncio.CancelledError):
            done.cancel()
        elif self.failure:
            done.set_exception(self.failure)
        else:
            done.set_result(answers)

    def _take(self, wanted: Deduction) -> Answer:
        name = (wanted.product_id, wanted.request_id)
        if wanted.product_id not in self.available:
            return Answer(Outcome.UNKNOWN_PRODUCT)
        if name in self.taken:
            same = self.taken[name] == wanted.quantity
            return (
                Answer(Outcome.DEDUCTED, replayed=True)
                if same
                else Answer(Outcome.REQUEST_MISMATCH)
            )
        left = self.available[wanted.product_id] - wanted.quantity
        if left < 0:
            return Answer(Outcome.INSUFFICIENT_STOCK)
        self.available[wanted.product_id] = left
        self.taken[name] = wanted.quantity
        return Answer(Outcome.DEDUCTED, available=left)

    async def read(self, product_id: int) -> ProductStock | None:
        self.reads += 1
        self._fail()
        if product_id not in self.available:
            return None
        sold = sum(n for (product, _), n in self.taken.items() if product == product_id)
        available = self.available[product_id]
        shard = ShardStock(0, 7, available, 0, sold, available + sold, 0)
        return ProductStock(
            product_id=product_id,
            state=self.states.get(product_id, State.OPEN),
            frozen=False,
            layout_version=1,
            epoch=1,
            buffer=5,
            sold_before=2,
            shards=(shard, *self.left),
            serving=1,
            exact=True,
        )

    async def resolve(self, product_id: int, request_id: str) -> Resolved | Answer:
        self._fail()
        if self.answers:
            return self.answers.pop(0)
        if product_id not in self.available:
            return Answer(Outcome.UNKNOWN_PRODUCT)
        units = self.taken.get((product_id, request_id))
        return Resolved(Resolution.DEDUCTED, units) if units else Resolved(Resolution.NEVER, 0)

    async def load(self, plan: LoadPlan) -> None:
        self._fail()
        self.available[plan.product_id] = sum(plan.amounts)
        self.states[plan.product_id] = State.OPEN

    async def close(self, product_id: int, epoch: int) -> int:
        self._fail()
        self.available[product_id] = 0
        self.states[product_id] = State.CLOSED
        return 1 + self.retired

    async def restock(
        self, product_id: int, *, request_id: str, quantity: int, reason: str
    ) -> Answer:
        self._fail()
        self.available[product_id] += quantity
        return Answer(Outcome.DEDUCTED)

    async def remove(
        self, product_id: int, *, request_id: str, quantity: int, reason: str
    ) -> Answer:
        self._fail()
        if self.available[product_id] < quantity:
            return Answer(Outcome.INSUFFICIENT_STOCK)
        self.available[product_id] -= quantity
        return Answer(Outcome.DEDUCTED)

    def _fail(self) -> None:
        if self.failures:
            raise self.failures.pop(0)


@dataclass
class FakeProducts:
    """Product rows. `applied` says whether the worker has applied what a close gave back."""

    rows: dict[int, ProductRow] = field(default_factory=dict)
    adjustments: dict[tuple[int, str], Adjustment] = field(default_factory=dict)
    applied: bool = True
    closed: int = 1
    """Shards whose close was applied."""
    journal: dict[tuple[int, str], Adjustment] = field(default_factory=dict)
    """Units by product and request that the journal has."""
    failures: list[BaseException | None] = field(default_factory=list)
    """Raised one by one by the next calls; None: that call succeeds."""

    def add(self, product_id: int, *, total: int = 0, status: State = State.CLOSED) -> None:
        self.rows[product_id] = ProductRow(
            product_id=product_id,
            name="",
            status=status,
            total_stock=total,
            available_stock=total,
            held_stock=0,
            buffer_stock=0,
            sold_count=0,
            buffer_percent=0,
            max_per_user=0,
            low_stock=0,
            shards=1,
            layout_version=0,
            layout_shards=1,
            epoch=0,
            load_pool=0,
            sold_before=0,
            former_shards="",
            version=1,
        )

    async def put(self, wanted: ProductSettings) -> ProductRow:
        self._fail()
        self.add(wanted.product_id, total=wanted.total_stock)
        percent = wanted.buffer_percent
        return self._set(wanted.product_id, name=wanted.name, buffer_percent=percent)

    async def get(self, product_id: int) -> ProductRow:
        self._fail()
        if product_id not in self.rows:
            raise UnknownProductError(product_id)
        return self.rows[product_id]

    async def list(self, *, after: int, limit: int) -> Sequence[ProductRow]:
        return [self.rows[i] for i in sorted(self.rows) if i > after][:limit]

    async def begin_load(
        self, product_id: int, *, partitions: int, default_shards: int
    ) -> tuple[LoadPlan, bool]:
        row = await self.get(product_id)
        if row.status is State.OPEN:
            return row.plan, False
        if row.status is State.CLOSED:
            self._set(
                product_id,
                status=State.LOADING,
                epoch=row.epoch + 1,
                load_pool=row.available_stock,
            )
        return self.rows[product_id].plan, True

    async def finish_load(self, plan: LoadPlan) -> ProductRow:
        self._fail()
        return self._set(plan.product_id, status=State.OPEN)

    async def begin_close(self, product_id: int) -> ProductRow:
        row = await self.get(product_id)
        return row if row.status is State.CLOSED else self._set(product_id, status=State.CLOSING)

    async def closed_shards(self, product_id: int, *, epoch: int) -> int:
        return self.closed if self.applied else 0

    async def find_request(self, product_id: int, request_id: str) -> Adjustment | None:
        self._fail()
        return self.journal.get((product_id, request_id))

    async def finish_close(self, product_id: int, *, epoch: int) -> ProductRow:
        return self._set(product_id, status=State.CLOSED)

    async def find_adjustment(self, product_id: int, request_id: str) -> Adjustment | None:
        return self.adjustments.get((product_id, request_id))

    async def adjust_closed(
        self, kind: JournalKind, product_id: int, *, request_id: str, quantity: int, reason: str
    ) -> Adjustment:
        row = self.rows[product_id]
        signed = quantity if kind is JournalKind.RESTOCK else -quantity
        if row.available_stock + signed < 0:
            raise LedgerConflictError(Conflict.INSUFFICIENT_STOCK, "not so many units")
        self._set(product_id, available_stock=row.available_stock + signed)
        done = Adjustment(kind, quantity, replayed=False)
        self.adjustments[product_id, request_id] = replace(done, replayed=True)
        return done

    def _set(self, product_id: int, **changes: object) -> ProductRow:
        self.rows[product_id] = replace(self.rows[product_id], **changes)  # type: ignore[arg-type]
        return self.rows[product_id]

    def _fail(self) -> None:
        failure = self.failures.pop(0) if self.failures else None
        if failure:
            raise failure


@dataclass
class FakeLayouts:
    """One change: `states` are what looks at it find one by one, the last one for ever."""

    aim: Aim = field(default_factory=lambda: Aim(7, in_force=False))
    states: list[ChangeState] = field(default_factory=lambda: [ChangeState.ACTIVE])
    failures: list[BaseException] = field(default_factory=list)
    wanted: list[tuple[int, int, Cause]] = field(default_factory=list)

    async def want(self, product_id: int, shards: int, cause: Cause, *, partitions: int) -> Aim:
        if self.failures:
            raise self.failures.pop(0)
        self.wanted.append((product_id, shards, cause))
        return self.aim

    async def state(self, product_id: int, version: int) -> ChangeState:
        return self.states.pop(0) if len(self.states) > 1 else self.states[0]


def unavailable(reason: Reason) -> Answer:
    return Answer(Outcome.UNAVAILABLE, reason=reason)
