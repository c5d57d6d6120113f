"""What the callers were told, try by try: the account that the service has no hand in. Pure."""

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from math import inf
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple, Self

from deploy.demo.history import History
from deploy.demo.purchases import Purchase
from inventory.client import Deduction, OrderResult, Outcome

BIN_S = 0.25
STEADY_BINS = 4
"""The old rate is back when it holds for so many bins."""


class Try(NamedTuple):
    """One call and its end; times in seconds of the callers' clock."""

    what: str
    """deduct, reserve, confirm, release."""
    name: str
    """The request's id, or the order's."""
    attempt: int
    """0: the caller does not say which it is."""
    is_first: bool
    started_s: float
    ended_s: float
    outcome: Outcome
    reason: str
    message: str
    replayed: bool
    shard: int | None
    """Where the units of a deduction were taken; None: nowhere, or it is no deduction."""

    @classmethod
    def of(
        cls,
        answer: Deduction | OrderResult,
        what: str,
        name: str,
        attempt: int,
        *,
        is_first: bool,
        times: tuple[float, float],
    ) -> Self:
        return cls(
            what, name, attempt, is_first, *times,
            answer.outcome, answer.reason, answer.message, answer.replayed,
            answer.shard if isinstance(answer, Deduction) and answer.accepted else None,
        )  # fmt: skip


class Record:
    """All tries on one product on sale, in the order in which they ended."""

    def __init__(self) -> None:
        self.tries: list[Try] = []
        self.first_tries: list[Try] = []
        """The deductions of buyers who asked for the first time."""
        self.deductions = History()
        """The same deductions, by request."""
        self.orders: dict[int, list[Try]] = defaultdict(list)

    def wants(self, purchase: Purchase) -> None:
        self.deductions.wants(purchase)

    def add(self, made: Try) -> None:
        self.tries.append(made)
        if made.what == "deduct" and made.is_first:
            self.first_tries.append(made)
        if made.what != "deduct":
            self.orders[int(made.name)].append(made)

    def reasons(self) -> Counter[str]:
        """What was answered instead of a fact."""
        facts = (Outcome.DEDUCTED, Outcome.INSUFFICIENT_STOCK)
        return Counter(
            f"{each.outcome} {each.reason} {each.message}".strip()
            for each in self.tries
            if each.what == "deduct" and each.outcome not in facts
        )

    def decided_orders(self) -> Mapping[int, bool]:
        """Orders whose caller was told that they are sold (True), or released."""
        told: dict[int, bool] = {}
        for order_id, tries in self.orders.items():
            outcomes = {each.outcome for each in tries}
            if outcomes & {Outcome.CONFIRMED, Outcome.RETAKEN}:
                told[order_id] = True
            elif Outcome.RELEASED in outcomes:
                told[order_id] = False
        return told

    def events_at_least(self, request_ids: Collection[str]) -> int:
        """In how many events, at the least, accepted requests were told of: one event has those of one
        shard, and two that did not wait at the same time cannot share it."""
        accepted = [
            each for each in self.tries if each.name in request_ids and each.shard is not None
        ]
        waited_until: dict[int, float] = {}
        events = 0
        for each in sorted(accepted, key=attrgetter("ended_s")):
            assert each.shard is not None
            if not each.replayed and each.started_s > waited_until.get(each.shard, -inf):
                waited_until[each.shard] = each.ended_s
                events += 1
        return events

    def write(self, path: Path) -> None:
        """One line of JSON a try."""
        path.write_text("".join(json.dumps(each._asdict()) + "\n" for each in self.tries))


def success_rate(tries: Sequence[Try]) -> float:
    """The share that was accepted; of none: 0."""
    return sum(each.outcome is Outcome.DEDUCTED for each in tries) / len(tries) if tries else 0.0


def p99_s(tries: Sequence[Try]) -> float:
    """The time that 99 in 100 of those that were accepted took at most; of none: 0."""
    took_s = sorted(
        each.ended_s - each.started_s for each in tries if each.outcome is Outcome.DEDUCTED
    )
    return took_s[int(len(took_s) * 0.99)] if took_s else 0.0


def usual_p99_s(tries: Sequence[Try]) -> float:
    """p99 of the middle one of all seconds, so that a hiccup of the machine is none of the service."""
    seconds: dict[int, list[Try]] = defaultdict(list)
    for each in tries:
        seconds[int(each.started_s)].append(each)
    found = sorted(p99_s(each) for each in seconds.values())
    return found[len(found) // 2] if found else 0.0


def back_after_s(
    tries: Sequence[Try], *, since_s: float, before: float, until_s: float
) -> float | None:
    """From `since_s` until 99 % of the success rate `before` holds for a second; None: not yet.

    Judged by the calls that began in each quarter of a second; calls after `until_s` do not count.
    """
    bins: dict[int, list[Try]] = defaultdict(list)
    for each in tries:
        if each.started_s >= since_s:
            bins[int((each.started_s - since_s) / BIN_S)].append(each)
    steady = 0
    for number in range(int((until_s - since_s) / BIN_S)):
        steady = steady + 1 if success_rate(bins[number]) >= 0.99 * before else 0
        if steady == STEADY_BINS:
            return (number + 1 - STEADY_BINS) * BIN_S
    return None
