"""What the buyers were told: the one account of the sale that the service has no hand in. Pure."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from itertools import chain

from deploy.demo.purchases import Purchase
from inventory.client import Deduction, Outcome

_FACTS = {Outcome.DEDUCTED, Outcome.INSUFFICIENT_STOCK}


class History:
    """All answers by request id, and how far the sale is."""

    def __init__(self, wanted: Sequence[Purchase] = ()) -> None:
        self._wanted = {purchase.request_id: purchase for purchase in wanted}
        self._answers: defaultdict[str, list[Deduction]] = defaultdict(list)
        self._milestones: dict[float, asyncio.Event] = {}
        self._listener: Callable[[], None] = lambda: None

    def on_answer(self, listener: Callable[[], None]) -> None:
        """Call it whenever answers came."""
        self._listener = listener

    def wants(self, purchase: Purchase) -> None:
        """Note a purchase that nobody knew of before."""
        self._wanted[purchase.request_id] = purchase

    @property
    def wanted(self) -> list[Purchase]:
        return list(self._wanted.values())

    def answered(self, answers: Sequence[Deduction]) -> None:
        """Note the answers that came."""
        for answer in answers:
            self._answers[answer.request_id].append(answer)
        for part, event in self._milestones.items():
            if self.buyers_answered >= part * len(self._wanted):
                event.set()
        self._listener()

    def without(self, request_ids: Collection[str]) -> "History":
        """The same without some of the purchases."""
        kept = History([each for each in self.wanted if each.request_id not in request_ids])
        for request_id in kept._wanted:
            kept.answered(self._answers.get(request_id, ()))
        return kept

    async def reached(self, part: float) -> None:
        """Return when that part of the buyers, from 0 to 1, has been answered."""
        if self.buyers_answered < part * len(self._wanted):
            await self._milestones.setdefault(part, asyncio.Event()).wait()

    @property
    def buyers(self) -> int:
        return len(self._wanted)

    @property
    def buyers_answered(self) -> int:
        return len(self._answers)

    @property
    def calls_answered(self) -> int:
        return sum(map(len, self._answers.values()))

    @property
    def replayed(self) -> int:
        return sum(answer.replayed for answer in chain.from_iterable(self._answers.values()))

    @property
    def accepted(self) -> dict[str, int]:
        """Units by request id."""
        return {
            request_id: self._wanted[request_id].quantity
            for request_id, answers in self._answers.items()
            if any(answer.accepted for answer in answers)
        }

    @property
    def least_refused(self) -> int | None:
        """The smallest quantity that was refused for shortage; None: nobody was refused."""
        refused = [
            self._wanted[request_id].quantity
            for request_id in self._answers.keys() - self.accepted.keys()
            if Outcome.INSUFFICIENT_STOCK in self._outcomes(request_id)
        ]
        return min(refused, default=None)

    @property
    def refused(self) -> int:
        """Buyers who were refused for shortage."""
        return sum(
            self._outcomes(request_id) & _FACTS == {Outcome.INSUFFICIENT_STOCK}
            for request_id in self._answers
        )

    @property
    def open(self) -> list[Purchase]:
        """Purchases that no answer has decided."""
        return [
            purchase
            for request_id, purchase in self._wanted.items()
            if not self._outcomes(request_id) & _FACTS
        ]

    @property
    def contradicted(self) -> list[str]:
        """Requests that were told both that they got their units and that they did not."""
        return [each for each in self._answers if self._outcomes(each) >= _FACTS]

    @property
    def taken_twice(self) -> list[str]:
        """Requests with two answers that each claim to be the first."""
        return [
            request_id
            for request_id, answers in self._answers.items()
            if sum(answer.accepted and not answer.replayed for answer in answers) > 1
        ]

    def _outcomes(self, request_id: str) -> set[Outcome]:
        return {answer.outcome for answer in self._answers.get(request_id, ())}
