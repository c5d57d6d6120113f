"""The walk through lines that are held although nobody else will end them."""

import asyncio
import time
from collections.abc import Sequence
from typing import cast

from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from ledger.holds import FurtherHold, Holds
from sharding.finding import AmbiguousOrderError
from sharding.orders import OrderState
from sharding.reminding import HeldLine
from tests.waiting import eventually
from worker.metrics import WorkerMetrics
from worker.share import Share
from worker.strays import Strays

PARTITION = 3
ODD, EVEN = 1, 2


class Lines:
    """Lines of two orders, one of which nobody can make sense of."""

    def __init__(self) -> None:
        self.reminded: list[int] = []

    async def further(self, *, after_id: int, limit: int) -> Sequence[FurtherHold]:
        return [
            FurtherHold(number, line_of(order_id), is_undecided=False)
            for number, order_id in enumerate((ODD, EVEN), 1)
            if after_id < number <= after_id + limit
        ]

    async def remind(self, line: HeldLine) -> OrderState | None:
        if line.order_id == ODD:
            raise AmbiguousOrderError
        self.reminded.append(line.order_id)
        return OrderState.RELEASED


def line_of(order_id: int) -> HeldLine:
    return HeldLine(PARTITION, 1, f"o{order_id}", order_id, user_id=0, quantity=1)


async def test_a_line_that_nobody_understands_does_not_end_the_others() -> None:
    lines, registry = Lines(), CollectorRegistry()
    metrics = WorkerMetrics(registry)
    share = Share(metrics, trim_lag_s=1, partitions=PARTITION + 1)
    share.owned = frozenset((PARTITION,))
    share.leased_until_s = time.monotonic() + 3_600
    strays, stop = Strays(share, cast(Holds, lines), lines, metrics), asyncio.Event()

    async def is_reminded() -> bool:
        return lines.reminded == [EVEN]

    with capture_logs() as logs:
        walking = asyncio.create_task(strays.run(stop), name="strays")
        await eventually(is_reminded)
        stop.set()
        await walking
    failures = registry.get_sample_value("inventory_worker_failures_total", {"source": "strays"})
    assert failures == 1
    assert [entry["order"] for entry in logs] == [ODD]
