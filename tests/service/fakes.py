"""Stock and ledger in memory, with the methods that the server calls, and faults on demand."""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from ledger.errors import (
    Conflict,
    LedgerConflictError,
    LedgerUnavailableError,
    UnknownProductError,
)
from ledger.events_feed import ID_MAX, ServiceEvent
from ledger.holds import HoldRow
from ledger.layouts import Aim, Cause, ChangeState
from ledger.products import Adjustment, JournalKind, ProductRow, ProductSettings
from ledger.service_events import ServiceEventKind
from sharding.loading import BeforeOpening
from sharding.orders import Held, Line, Order, OrderAnswer, OrderState
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
from sharding.tasks import Tasks


@dataclass
class FakeStock:
    """One shard a product. `open_gate` lets deductions and loads through; `answers` replaces them."""

    available: dict[int, int] = field(default_factory=dict)
    taken: dict[tuple[int, str], int] = field(default_factory=dict)
    batches: list[list[Deduction]] = field(default_factory=list)
    states: dict[int, State] = field(default_factory=dict)
    answers: list[Answer] | None = None
    failure: BaseException | None = None
    failures: list[BaseException] = field(default_factory=list)
    """Raised one by one by the next calls that are no deductions."""
    open_gate: asyncio.Event = field(default_factory=asyncio.Event)
    background: Tasks = field(default_factory=Tasks)
    loading: list[int] = field(default_factory=list)
    """Products whose load has begun."""
    reads: int = 0
    left: tuple[ShardStock, ...] = ()
    """Shards that left in a change of the layout, as a read shows them."""
    unread: tuple[int, ...] = ()
    """Partitions of shards that do not answer, as a read shows them."""
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
            exact=not self.unread,
            unread=self.unread,
        )

    async def resolve(self, product_id: int, request_id: str) -> Resolved | Answer:
        self._fail()
        if self.answers:
            return self.answers.pop(0)
        if product_id not in self.available:
            return Answer(Outcome.UNKNOWN_PRODUCT)
        units = self.taken.get((product_id, request_id))
        return Resolved(Resolution.DEDUCTED, units) if units else Resolved(Resolution.NEVER, 0)

    async def load(self, plan: LoadPlan, *, before_opening: BeforeOpening) -> None:
        """Goes on when its caller has left, as the real one does."""
        await self.background.whole(self._load(plan, before_opening), "load")

    async def _load(self, plan: LoadPlan, before_opening: BeforeOpening) -> None:
        self._fail()
        self.loading.append(plan.product_id)
        await self.open_gate.wait()
        await before_opening()
        self.available[plan.product_id] = sum(plan.amounts)
        self.states[plan.product_id] = State.OPEN

    async def close(self, product_id: int, epoch: int) -> int:
        self._fail()
        self.available[product_id] = 0
        self.states[product_id] = State.CLOSED
        return 1 + self.retired

    async def restock(
        self, product_id: int, *, request_id: str, quantity: int, reason: str, actor: str
    ) -> Answer:
        self._fail()
        self.available[product_id] += quantity
        return Answer(Outcome.DEDUCTED)

    async def remove(
        self, product_id: int, *, request_id: str, quantity: int, reason: str, actor: str
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
    """Product rows. `applied` says whether the worker has applied what was loaded and given back."""

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
            buffer_release_below=0,
            shards=1,
            layout_version=0,
            layout_shards=1,
            epoch=0,
            load_pool=0,
            sold_before=0,
            sold_from_buffer=0,
            released_stock=0,
            former_shards="",
            version=1,
        )

    async def put(self, wanted: ProductSettings) -> ProductRow:
        self._fail()
        self.add(wanted.product_id, total=wanted.total_stock)
        percent = wanted.buffer_percent
        return self._set(
            wanted.product_id,
            name=wanted.name,
            buffer_percent=percent,
            max_per_user=wanted.max_per_user,
        )

    async def get(self, product_id: int) -> ProductRow:
        self._fail()
        if product_id not in self.rows:
            raise UnknownProductError(product_id)
        return self.rows[product_id]

    async def list(self, *, after: int, limit: int) -> Sequence[ProductRow]:
        return [self.rows[i] for i in sorted(self.rows) if i > after][:limit]

    async def begin_load(
        self, product_id: int, *, partitions: int, default_shards: int, has_buffer: bool = True
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

    async def loaded_shards(self, product_id: int, *, epoch: int) -> int:
        return len(self.rows[product_id].plan.amounts) if self.applied else 0

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
        self,
        kind: JournalKind,
        product_id: int,
        *,
        request_id: str,
        quantity: int,
        reason: str,
        actor: str,
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
class FakeOrders:
    """Orders of any units. `answers` are the next ones, `failures` are raised before them."""

    kept: dict[int, Order] = field(default_factory=dict)
    answers: list[OrderAnswer] = field(default_factory=list)
    failures: list[BaseException] = field(default_factory=list)
    calls: list[tuple[str, int, dict[str, object]]] = field(default_factory=list)
    open_gate: asyncio.Event = field(default_factory=asyncio.Event)
    ended: int = 0
    """Calls that came to their end, answered or not."""

    def __post_init__(self) -> None:
        self.open_gate.set()

    async def reserve(
        self, order_id: int, *, user_id: int, lines: Sequence[Line], ttl_s: float, attempt: int = 0
    ) -> OrderAnswer:
        fields = {"user_id": user_id, "lines": lines, "ttl_s": ttl_s, "attempt": attempt}
        made = self._make(order_id, user_id, lines, OrderState.HELD)
        return await self._answer("reserve", order_id, fields, Outcome.HELD, made)

    async def sell(
        self, order_id: int, *, user_id: int, lines: Sequence[Line], attempt: int = 0
    ) -> OrderAnswer:
        fields = {"user_id": user_id, "lines": lines, "attempt": attempt}
        made = self._make(order_id, user_id, lines, OrderState.CONFIRMED)
        return await self._answer("sell", order_id, fields, Outcome.CONFIRMED, made)

    async def confirm(self, order_id: int, *, product_id: int = 0) -> OrderAnswer:
        fields = {"product_id": product_id}
        made = self._end(order_id, OrderState.CONFIRMED)
        return await self._answer("confirm", order_id, fields, Outcome.CONFIRMED, made)

    async def release(self, order_id: int, *, product_id: int = 0) -> OrderAnswer:
        fields = {"product_id": product_id}
        made = self._end(order_id, OrderState.RELEASED)
        return await self._answer("release", order_id, fields, Outcome.RELEASED, made)

    async def extend(self, order_id: int, ttl_s: float, *, product_id: int = 0) -> OrderAnswer:
        fields = {"ttl_s": ttl_s, "product_id": product_id}
        made = self._end(order_id, OrderState.HELD)
        return await self._answer("extend", order_id, fields, Outcome.HELD, made)

    async def get(self, order_id: int, *, product_id: int = 0) -> OrderAnswer:
        fields = {"product_id": product_id}
        order = self.kept.get(order_id)
        outcome = Outcome.HELD if order else Outcome.UNKNOWN_ORDER
        return await self._answer("get", order_id, fields, outcome, order)

    async def drain(self) -> None:
        """Nothing is ever left."""

    def _make(self, order_id: int, user_id: int, lines: Sequence[Line], state: OrderState) -> Order:
        held = tuple(Held(line.product_id, line.quantity, "-") for line in lines)
        return Order(order_id, user_id, state, 61_000, 1_000, is_open=False, held=held)

    def _end(self, order_id: int, state: OrderState) -> Order | None:
        order = self.kept.get(order_id)
        return order._replace(state=state) if order else None

    async def _answer(
        self,
        call: str,
        order_id: int,
        fields: dict[str, object],
        outcome: Outcome,
        made: Order | None,
    ) -> OrderAnswer:
        self.calls.append((call, order_id, fields))
        await self.open_gate.wait()
        self.ended += 1
        if self.failures:
            raise self.failures.pop(0)
        if self.answers:
            return self.answers.pop(0)
        if made is None and call != "release":
            return OrderAnswer(Outcome.UNKNOWN_ORDER)
        replayed = made is not None and self.kept.get(order_id) == made
        if made is not None:
            self.kept[order_id] = made
        return OrderAnswer(outcome, made, replayed=replayed)


@dataclass
class FakeHolds:
    """Holds by id, and what the journal was told of releases by force."""

    rows: list[HoldRow] = field(default_factory=list)
    pages: list[dict[str, int]] = field(default_factory=list)
    notes: list[tuple[int, dict[str, object]]] = field(default_factory=list)
    failures: list[BaseException] = field(default_factory=list)

    async def page(self, **asked: int) -> Sequence[HoldRow]:
        self.pages.append(asked)
        return [row for row in self.rows if row.id > asked["after_id"]][: asked["limit"]]

    async def note_force_release(self, order_id: int, **note: object) -> None:
        if self.failures:
            raise self.failures.pop(0)
        self.notes.append((order_id, note))


@dataclass
class FakeFeed:
    """The ledger's events, in the order of their ids. `away`: the ledger does not answer."""

    events: list[ServiceEvent] = field(default_factory=list)
    away: bool = False
    ids_max: int = ID_MAX
    """A look for some kinds or products that goes through more ids is too slow to be answered."""
    asked: int = 0
    pruned: int = 0
    """Id of the last event that is not kept any more."""

    def prune(self, last_id: int) -> None:
        """Forget the events up to one."""
        self.pruned = last_id
        self.events = [event for event in self.events if event.id > last_id]

    def happen(self, kind: ServiceEventKind, **fields: int) -> None:
        values = {"product_id": 0, "order_id": 0, "user_id": 0, "available": 0, "at_ms": 7}
        self.events.append(ServiceEvent(id=self._last() + 1, kind=kind, **{**values, **fields}))

    async def last(self) -> int:
        self.asked += 1
        self._fail()
        return self._last()

    async def oldest(self) -> int:
        self.asked += 1
        self._fail()
        return self.events[0].id if self.events else 0

    async def after(
        self,
        cursor: int,
        *,
        until: int = ID_MAX,
        kinds: Collection[ServiceEventKind] = (),
        product_ids: Collection[int] = (),
        limit: int,
    ) -> Sequence[ServiceEvent]:
        self.asked += 1
        self._fail()
        if (kinds or product_ids) and min(until, self._last()) - cursor > self.ids_max:
            raise LedgerUnavailableError("too slow")
        return [
            event
            for event in self.events
            if cursor < event.id <= until
            and (not kinds or event.kind in kinds)
            and (not product_ids or event.product_id in product_ids)
        ][:limit]

    def _last(self) -> int:
        return self.events[-1].id if self.events else self.pruned

    def _fail(self) -> None:
        if self.away:
            raise LedgerUnavailableError("away")


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
