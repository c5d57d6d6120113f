"""The loop that brings changes of shard counts about, step by step, whatever breaks in between."""

import asyncio
from math import inf
from typing import NamedTuple

import structlog

from ledger.errors import LedgerError
from ledger.layouts import ChangeState, LayoutChange, Layouts, OpenChange
from sharding.errors import LayoutPassedError, RetiredAwayError, StockError
from sharding.outcomes import State
from sharding.stock import Stock
from worker.metrics import WorkerMetrics
from worker.share import Share
from worker.waiting import wait_until

TICK_S = 0.15
AT_ONCE_MAX = 16
"""Products whose layouts one worker changes at the same time."""
PINS_EVERY_S = 5.0
TOLD_AGAIN_S = 5.0
"""After so long the shards are told once more of a change that is not done."""
PIN_PAUSE_S = 30
"""After so long a change to an operator's count that was rolled back is wanted again."""
PASSED_MAX = 20
"""So often a product may say that a change comes too late before the change is given up. A change that
is only being undone says so as well, for a moment."""

log = structlog.get_logger()


class _Stuck(NamedTuple):
    """Why a change does not go on, and how often the product has said that it comes too late."""

    text: str
    passed: int


class Reshaper:
    """Drives the changes of products whose base partition this worker serves.

    Two workers may drive one change for a moment, when a lease moves: every step is safe to repeat.
    """

    def __init__(
        self,
        share: Share,
        stock: Stock,
        layouts: Layouts,
        metrics: WorkerMetrics,
    ) -> None:
        self._share = share
        self._stock = stock
        self._layouts = layouts
        self._metrics = metrics
        self._busy: set[int] = set()
        self._pins_due_s = 0.0
        self._stuck: dict[tuple[int, int], _Stuck] = {}
        self._told_s: dict[tuple[int, int], float] = {}
        """When the shards of a change were last told of it."""

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`; what is under way then is finished as far as it goes."""
        async with asyncio.TaskGroup() as tasks:
            while not stop.is_set():
                if self._share.is_leased:
                    await self._tick(tasks)
                await wait_until(stop, TICK_S)

    async def _tick(self, tasks: asyncio.TaskGroup) -> None:
        """Go on with every product that nothing is under way for; one that hangs delays no other."""
        try:
            await self._want_pins()
            found = [each for each in await self._layouts.open_changes() if self._is_ours(each)]
        except LedgerError:
            self._metrics.failures.labels("layout").inc()
            return
        self._metrics.layout_changes_open.set(len(found))
        keys = {_key(each.change) for each in found}
        self._stuck = {key: stuck for key, stuck in self._stuck.items() if key in keys}
        self._told_s = {key: told_s for key, told_s in self._told_s.items() if key in keys}
        # Those that are stuck come last, or there would be no room for the others.
        for each in sorted(_one_a_product(found), key=self._is_stuck):
            product_id = each.change.product_id
            if product_id not in self._busy and len(self._busy) < AT_ONCE_MAX:
                self._busy.add(product_id)
                tasks.create_task(self._advance(each), name=f"layout {product_id}")

    async def _want_pins(self) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s < self._pins_due_s:
            return
        self._pins_due_s = now_s + PINS_EVERY_S
        for product_id in await self._layouts.unmet_pins(pause_s=PIN_PAUSE_S):
            if self._share.owns(product_id):
                await self._layouts.want_pin(product_id)

    async def _advance(self, found: OpenChange) -> None:
        change = found.change
        try:
            if change.state is ChangeState.WANTED:
                await self._bring_about(change)
            elif found.status is State.OPEN:
                await self._finish(found)
            elif found.status is State.CLOSED:
                await self._mark(change, ChangeState.DONE)
        except StockError as error:
            self._note_stuck(change, error)
        except LedgerError:
            self._metrics.failures.labels("layout").inc()
        except Exception as error:  # one product must not end the upkeep of all others
            self._metrics.failures.labels("layout").inc()
            log.error("layout change failed", exc_info=error, **_fields(change))
        finally:
            self._busy.discard(change.product_id)

    async def _bring_about(self, change: LayoutChange) -> None:
        is_active = not self._is_hopeless(change) and await self._comes_into_force(change)
        state = ChangeState.ACTIVE if is_active else ChangeState.ROLLED_BACK
        await self._mark(change, state)

    async def _comes_into_force(self, change: LayoutChange) -> bool:
        """Whoever has left and is away keeps it from being done, and nobody else from the next one."""
        try:
            return await self._is_in_force(change)
        except RetiredAwayError as error:
            self._note_stuck(change, error)
            return True

    async def _is_in_force(self, change: LayoutChange) -> bool:
        return await self._stock.change_layout(
            change.product_id, version=change.version, shards=change.shards, cause=change.cause
        )

    async def _finish(self, found: OpenChange) -> None:
        """Done is only what the ledger has heard of: a base that is restored before knows nothing of it,
        and does it once more."""
        change = found.change
        if not await self._is_still_in_force(found):
            await self._mark(change, ChangeState.ROLLED_BACK)
        elif await self._stock.drain_retired(change.product_id) and found.is_known:
            await self._mark(change, ChangeState.DONE)

    async def _is_still_in_force(self, found: OpenChange) -> bool:
        """Told to all shards now and then: one that was lost, and restored before the ledger had heard
        of the layout, knows nothing of it."""
        begun_s = asyncio.get_running_loop().time()
        told_s = self._told_s.get(_key(found.change), -inf)
        if found.is_known and begun_s < told_s + TOLD_AGAIN_S:
            return True
        try:
            is_in_force = await self._is_in_force(found.change)
        except LayoutPassedError:
            if not found.is_known:
                raise
            return True  # the later one's own change tells them
        if found.is_known:  # a shard that is restored from now on hears of it from the ledger
            self._told_s[_key(found.change)] = begun_s
        return is_in_force

    async def _mark(self, change: LayoutChange, state: ChangeState) -> None:
        if not await self._layouts.mark(change.product_id, change.version, state):
            return  # another worker did
        self._metrics.layout_changes.labels(change.cause.value, state.value).inc()
        fields = _fields(change) | {"state": state.value}
        say = log.warning if state is ChangeState.ROLLED_BACK else log.info
        say("layout changed", **fields)

    def _note_stuck(self, change: LayoutChange, error: StockError) -> None:
        """Said once per change until the text changes."""
        self._metrics.failures.labels("layout").inc()
        before = self._stuck.get(_key(change), _Stuck("", 0))
        passed = before.passed + isinstance(error, LayoutPassedError)
        self._stuck[_key(change)] = _Stuck(str(error), passed)
        if before.text != str(error):
            log.warning("layout change is stuck", why=str(error), **_fields(change))

    def _is_hopeless(self, change: LayoutChange) -> bool:
        stuck = self._stuck.get(_key(change))
        return stuck is not None and stuck.passed >= PASSED_MAX

    def _is_stuck(self, found: OpenChange) -> bool:
        return _key(found.change) in self._stuck

    def _is_ours(self, found: OpenChange) -> bool:
        return self._share.owns(found.change.product_id)


def _key(change: LayoutChange) -> tuple[int, int]:
    return change.product_id, change.version


def _fields(change: LayoutChange) -> dict[str, object]:
    """For the log."""
    return change._asdict() | {"state": change.state.value, "cause": change.cause.value}


def _one_a_product(found: list[OpenChange]) -> list[OpenChange]:
    """The latest change of each product: its steps end those of earlier ones, too, one tick later."""
    latest: dict[int, OpenChange] = {}
    for each in found:
        known = latest.get(each.change.product_id)
        if known is None or known.change.version < each.change.version:
            latest[each.change.product_id] = each
    return list(latest.values())
