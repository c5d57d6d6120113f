"""Where this process sends deductions: the live stock, the buffer in the ledger, or nowhere for now."""

import asyncio
from collections.abc import Sequence
from enum import StrEnum
from typing import Final, Protocol, Self

from structlog.typing import FilteringBoundLogger

from server.errors import RefusedError, refused
from server.metrics import Metrics
from sharding.outcomes import Answer, Deduction, Outcome, Reason


class Stance(StrEnum):
    """What this process does with requests."""

    LIVE = "live"
    """The live stock serves everything."""
    BUFFER = "buffer"
    """The ledger sells the buffer; nothing else is served that needs the live stock."""
    AWAY = "away"
    """This process reaches no Redis node, and units are not sold from the buffer."""
    LEAVING = "leaving"
    """Redis is back, and is told what was sold from the buffer."""


class Sales(Protocol):
    """Takes units; each failure is an answer."""

    def deduct(self, deductions: Sequence[Deduction]) -> asyncio.Future[list[Answer]]: ...


class Shut:
    """Takes nothing, and says why."""

    def __init__(self, reason: Reason) -> None:
        self._answer = Answer(Outcome.UNAVAILABLE, reason=reason)

    def deduct(self, deductions: Sequence[Deduction]) -> asyncio.Future[list[Answer]]:
        """The same answer for each request."""
        done: asyncio.Future[list[Answer]] = asyncio.get_running_loop().create_future()
        done.set_result([self._answer] * len(deductions))
        return done


OBJECTIONS: Final = {
    Stance.LIVE: Reason.NONE,
    Stance.BUFFER: Reason.LIVE_STOCK_AWAY,
    Stance.AWAY: Reason.LIVE_STOCK_AWAY,
    Stance.LEAVING: Reason.LIVE_STOCK_RETURNING,
}
"""Why what needs the live stock is not done."""


class Gate:
    """Says to all services of a process where requests go. Shut until it is turned."""

    def __init__(
        self, live: Sales, buffer: Sales, metrics: Metrics, log: FilteringBoundLogger
    ) -> None:
        self._of_stance: dict[Stance, Sales] = {
            Stance.LIVE: live,
            Stance.BUFFER: buffer,
            Stance.AWAY: Shut(Reason.LIVE_STOCK_AWAY),
            Stance.LEAVING: Shut(Reason.LIVE_STOCK_RETURNING),
        }
        self._metrics = metrics
        self._log = log
        self.stance = Stance.AWAY
        self.sales: Sales = self._of_stance[Stance.AWAY]
        """What takes deductions just now."""
        self.mode_epoch = 0
        """Of the mode as it was last heard of; 0: nothing was ever sold from the buffer."""
        self._metrics.mode(self.stance, among=Stance)

    @classmethod
    def always_open(cls, sales: Sales, metrics: Metrics, log: FilteringBoundLogger) -> Self:
        """For a process in which nothing but the ledger can be away."""
        gate = cls(sales, sales, metrics, log)
        gate.turn(Stance.LIVE)
        return gate

    @property
    def is_live(self) -> bool:
        return self.stance is Stance.LIVE

    @property
    def takes_deductions(self) -> bool:
        return self.stance in (Stance.LIVE, Stance.BUFFER)

    @property
    def objection(self) -> Reason:
        """Why what needs the live stock is not done now; NONE: it is."""
        return OBJECTIONS[self.stance]

    def require_live(self) -> None:
        """RefusedError unless the live stock serves."""
        if not self.is_live:
            raise self.refusal()

    def refusal(self) -> RefusedError:
        """The status for a call that needs the live stock, while that is not there."""
        return refused(Answer(Outcome.UNAVAILABLE, reason=self.objection))

    def turn(self, stance: Stance) -> None:
        """Send requests elsewhere from now on; said once for each change."""
        if stance is self.stance:
            return
        self.stance, self.sales = stance, self._of_stance[stance]
        self._metrics.mode(stance, among=Stance)
        self._log.warning("sales_mode", mode=stance.value)
