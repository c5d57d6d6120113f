"""The loop that leads sales back from the buffer to the live stock."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Protocol

import structlog

from ledger.checkpoints import Checkpoints
from ledger.errors import LedgerError
from ledger.failpoints import Failpoints
from ledger.sales_mode import Mode, ModeRow, Modes
from ledger.untold import UntoldSale, UntoldSales
from sharding.errors import StockUnavailableError
from sharding.outcomes import Deduction
from sharding.partitions import PartitionHead, Partitions
from sharding.placement import Layout
from worker.metrics import WorkerMetrics
from worker.share import Share
from worker.waiting import wait_until

TICK_S = 0.2
REST_EVERY_S = 2.0
"""Time between two tries to tell homes that did not answer when the buffer was left."""
OPENED_WITHIN_S = 3.0
"""How long a partition is waited for whose node answers and that its worker is about to open."""
IN_CHARGE = 0
"""The partition whose worker does this for all."""
ABOUT_TO_OPEN = ("NEW_OWNER", "RESTARTED", "NO_HEAD", "RESTORING", "WENT_BACK", "EVENTS_AHEAD")
"""Reasons of heads that are shut and soon open again, as they are or restored."""

log = structlog.get_logger()


class Recalls(Protocol):
    """What of `Stock` is needed."""

    async def recall(
        self, product_id: int, layout: Layout, sold: Sequence[Deduction]
    ) -> list[Deduction]: ...


class Leaving:
    """Drains the streams, has the live stock remember what was sold from the buffer, and opens it.

    Every step may be repeated, by two workers at once or by another than began it.
    """

    def __init__(
        self,
        share: Share,
        partitions: Partitions,
        stock: Recalls,
        modes: Modes,
        checkpoints: Checkpoints,
        untold: UntoldSales,
        metrics: WorkerMetrics,
        failpoints: Failpoints,
    ) -> None:
        self._share = share
        self._partitions = partitions
        self._stock = stock
        self._modes = modes
        self._checkpoints = checkpoints
        self._untold = untold
        self._metrics = metrics
        self._failpoints = failpoints
        self._all = range(partitions.count)
        self._leave: _Leave | None = None
        self._rest_due_s = 0.0

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`."""
        while not stop.is_set():
            if self._share.is_leased and IN_CHARGE in self._share.owned:
                await self._tick()
            await wait_until(stop, TICK_S)

    async def _tick(self) -> None:
        try:
            row = await self._modes.get()
            if row.mode is Mode.LEAVING:
                await self._lead_back(row)
            elif row.mode is Mode.REDIS and time.monotonic() >= self._rest_due_s:
                self._rest_due_s = time.monotonic() + REST_EVERY_S
                await self._tell()
        except LedgerError:
            self._metrics.failures.labels("modes").inc()

    async def _lead_back(self, row: ModeRow) -> None:
        leave = self._leave
        if leave is None or leave.epoch != row.epoch:
            leave = self._leave = _Leave(
                row.epoch, time.monotonic(), ledger=self._share.place.index
            )
            log.info("the live stock is back", epoch=row.epoch)
        if not await self._is_drained(leave):
            return
        self._failpoints.hit("worker.before_recall")
        told, untold = await self._tell()
        self._failpoints.hit("worker.after_recall")
        after = await self._modes.finish(row.epoch)
        log.info("the live stock sells again", epoch=after.epoch, told=told, untold=untold)

    async def _is_drained(self, leave: "_Leave") -> bool:
        """Whether the ledger has what every open partition had when the buffer was left.

        One that is away or shut sells nothing, and holds nobody up.
        """
        heads = await self._heads(leave.waited_for(self._all))
        may_open = time.monotonic() < leave.begun_s + OPENED_WITHIN_S
        leave.look(heads, await self._applied(), may_open=may_open)
        return not leave.waited_for(self._all)

    async def _applied(self) -> Mapping[int, int]:
        known = await self._checkpoints.all()
        return {partition: checkpoint.id.number for partition, checkpoint in known.items()}

    async def _heads(self, wanted: Sequence[int]) -> Mapping[int, PartitionHead | None]:
        """None: it does not answer."""
        return dict(zip(wanted, await asyncio.gather(*map(self._head, wanted)), strict=True))

    async def _head(self, partition: int) -> PartitionHead | None:
        try:
            return await self._partitions.head(partition)
        except StockUnavailableError:
            return None

    async def _tell(self) -> tuple[int, int]:
        """Have homes remember sales; returns how many know theirs by now, and how many do not answer."""
        told = untold = after_id = 0
        while page := await self._untold.page(after_id=after_id):
            known = await self._tell_page(page)
            await self._untold.told(known)
            told, untold = told + len(known), untold + len(page) - len(known)
            after_id = page[-1].id
        self._metrics.buffer_sales_untold.set(untold)
        return told, untold

    async def _tell_page(self, page: Sequence[UntoldSale]) -> list[int]:
        ids = {sale.request: sale.id for sale in page}
        of_products: defaultdict[tuple[int, Layout], list[Deduction]] = defaultdict(list)
        for sale in page:
            of_products[sale.request.product_id, sale.layout].append(sale.request)
        told = await asyncio.gather(
            *(self._stock.recall(*product, sold) for product, sold in of_products.items())
        )
        return [ids[request] for requests in told for request in requests]


class _Leave:
    """One way back: which partitions are still waited for. Pure: time is passed in."""

    def __init__(self, epoch: int, begun_s: float, *, ledger: int = 0) -> None:
        """`ledger`: the MySQL server whose products are led back, by its place in the setting."""
        self._ledger = ledger
        self.epoch = epoch
        self.begun_s = begun_s
        self._goals: dict[int, int] = {}
        """Numbers of the events that the ledger must have."""
        self._done: set[int] = set()

    def waited_for(self, partitions: Sequence[int]) -> list[int]:
        return [partition for partition in partitions if partition not in self._done]

    def look(
        self,
        heads: Mapping[int, PartitionHead | None],
        applied: Mapping[int, int],
        *,
        may_open: bool,
    ) -> None:
        """Note what partitions and the ledger say. The first goal stays: workers go on writing."""
        for partition, head in heads.items():
            if head is not None and head.is_open:
                last = head.stream(self._ledger).last
                goal = self._goals.setdefault(partition, last.number)
                if applied.get(partition, 0) >= goal:
                    self._done.add(partition)
            elif head is None or not (may_open and head.reason in ABOUT_TO_OPEN):
                self._done.add(partition)
