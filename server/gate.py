"""Where this process sends deductions: the live stock, the buffer in the ledger, or nowhere for now."""

import asyncio
from collections.abc import Sequence
from enum import StrEnum
from typing import Final, Protocol, Self

from structlog.typing import FilteringBoundLogger

from ledger.servers import ALONE, PerServer, Place
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
    """Says to all services of a process where requests for one MySQL server's products go. Shut until
    it is turned."""

    def __init__(
        self,
        live: Sales,
        buffer: Sales,
        metrics: Metrics,
        log: FilteringBoundLogger,
        *,
        place: Place = ALONE,
    ) -> None:
        """`place`: of the MySQL server whose products it is for."""
        self._of_stance: dict[Stance, Sales] = {
            Stance.LIVE: live,
            Stance.BUFFER: buffer,
            Stance.AWAY: Shut(Reason.LIVE_STOCK_AWAY),
            Stance.LEAVING: Shut(Reason.LIVE_STOCK_RETURNING),
        }
        self._metrics = metrics
        self._log = log
        self._place = place
        self.stance = Stance.AWAY
        self.sales: Sales = self._of_stance[Stance.AWAY]
        """What takes deductions just now."""
        self.mode_epoch: int | None = None
        """Of the mode as it was last heard of; 0: it has never changed; None: nothing was heard yet."""
        self._metrics.mode(self.stance, among=Stance, server=place.index)

    @classmethod
    def always_open(cls, sales: Sales, metrics: Metrics, log: FilteringBoundLogger) -> Self:
        """For a process in which nothing but the ledger can be away."""
        gate = cls(sales, sales, metrics, log)
        gate.turn(Stance.LIVE)
        gate.mode_epoch = 0
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
        self._metrics.mode(stance, among=Stance, server=self._place.index)
        fields = {"ledger": self._place.index} if self._place.count > 1 else {}
        self._log.warning("sales_mode", mode=stance.value, **fields)


class Gates(PerServer[Gate]):
    """The gate of each MySQL server, and what holds for all of them."""

    @property
    def sales(self) -> Sales:
        """What takes deductions of any products just now."""
        first = self.all[0].sales
        return first if all(gate.sales is first for gate in self.all) else Divided(self)

    @property
    def are_live(self) -> bool:
        """Whether the live stock serves all products."""
        return all(gate.is_live for gate in self.all)

    @property
    def take_deductions(self) -> bool:
        """Whether some products are sold."""
        return any(gate.takes_deductions for gate in self.all)

    @property
    def objection(self) -> Reason:
        """Why what needs the live stock of any product is not done now; NONE: it is."""
        return next((gate.objection for gate in self.all if not gate.is_live), Reason.NONE)


class Divided:
    """Takes units where each product is sold, while that is not the same place for all."""

    def __init__(self, gates: Gates) -> None:
        self._gates = gates

    def deduct(self, deductions: Sequence[Deduction]) -> asyncio.Future[list[Answer]]:
        """One answer a request, in their order."""
        places: dict[Gate, list[int]] = {}
        for position, wanted in enumerate(deductions):
            places.setdefault(self._gates.of(wanted.product_id), []).append(position)
        asked = [
            gate.sales.deduct([deductions[position] for position in positions])
            for gate, positions in places.items()
        ]
        return asyncio.ensure_future(_in_order(asked, list(places.values())))


async def _in_order(
    asked: Sequence[asyncio.Future[list[Answer]]], positions: Sequence[Sequence[int]]
) -> list[Answer]:
    """The answers of several lists, each to its place."""
    answers = await asyncio.gather(*asked)
    found = {
        position: answer
        for of_list, its in zip(positions, answers, strict=True)
        for position, answer in zip(of_list, its, strict=True)
    }
    return [found[position] for position in sorted(found)]
