"""Judges what is left after a fault: what callers were told, what Redis has, what MySQL has. Pure.

Each function returns a sentence for each promise that is broken, by its number in ARCHITECTURE.md.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import NamedTuple

from deploy.demo.balance import Operator, faults, terms
from deploy.demo.history import History
from deploy.demo.readings import LedgerReading
from deploy.demo.report import off
from inventory.client import Audit, Deduction, Outcome, Stock
from server.errors import internal
from sharding.outcomes import Reason
from tests.acceptance.orders import Journal
from tests.chaos.history import Record, Try

ALLOWANCE_S = 0.1
"""So long after its deadline a call may end, and longer by as much as the callers stood still."""
SLACK_S = 0.05
"""A pause is seen a moment after it has ended."""
SHOWN = 3
OF_THE_TRANSPORT = {"UNAVAILABLE", "UNREACHABLE", "DEADLINE_EXCEEDED", "CANCELLED", "NOT_SENT"}
"""What gRPC says in place of a service that does not answer."""
DOCUMENTED = {reason.value for reason in Reason} | OF_THE_TRANSPORT
SHORT_OF_WORDS = {Outcome.INVALID, Outcome.REQUEST_MISMATCH, Outcome.UNKNOWN_PRODUCT}
"""Outcomes that no buyer here has a reason to be told."""


class Pause(NamedTuple):
    """The callers' own process did nothing until `ended_s`, for so long."""

    ended_s: float
    lasted_s: float


@dataclass(frozen=True, slots=True)
class OrderLines:
    """One product that is sold in orders only, at the end."""

    journal: Journal
    stock: Stock
    ledger: LedgerReading


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything there is about one product and the orders beside it after a fault was healed."""

    record: Record
    loaded: int
    deadline_s: float
    known_before: Mapping[str, int]
    """The journal's deductions before anybody asked again."""
    asked_again: Sequence[Deduction]
    stock: Stock
    ledger: LedgerReading
    """After that, with everything drained."""
    rest: History
    """Buyers who took what was left, and one more."""
    last_stock: Stock
    last_ledger: LedgerReading
    dead_letters: int
    audits: Sequence[Audit]
    orders: Sequence[OrderLines] = field(default=())
    lost_orders: frozenset[int] = frozenset()
    """Orders that were sold and of which it may be that not all lines are."""
    pauses: Sequence[Pause] = field(default=())


def judge(evidence: Evidence) -> list[str]:
    """What is not as it must be; empty: every promise was kept as far as this can be seen."""
    return [
        *_calls_ended(evidence),
        *islice(_unknown_were_decided(evidence), SHOWN),
        *_balance(evidence),
        *_sold_to_nothing(evidence),
        *_audited(evidence),
        *_orders(evidence),
    ]


class Losses(NamedTuple):
    """What was acknowledged, and the ledger never had."""

    requests: frozenset[str]
    orders: frozenset[int]

    @property
    def number(self) -> int:
        """Of both."""
        return len(self.requests) + len(self.orders)


def without_losses(evidence: Evidence) -> tuple[Evidence, Losses]:
    """The evidence as if nobody had been told of what the ledger never had, and what that is.

    For a fault that may lose what was acknowledged: all other promises hold for what was kept. Of an
    order that was sold a line may be lost.
    """
    record = Record()
    lost = evidence.record.deductions.accepted.keys() - evidence.ledger.deductions.keys()
    lost_orders = _lost_orders(evidence)
    again = _accepted_again(evidence)
    for each in evidence.record.tries:
        record.add(each)
    record.deductions = evidence.record.deductions.without({*lost, *again})
    for purchase in evidence.record.deductions.wanted:
        if purchase.request_id in again:
            record.deductions.wants(purchase)
    record.deductions.answered(list(again.values()))
    asked = [each for each in evidence.asked_again if each.request_id not in lost]
    kept = replace(evidence, record=record, asked_again=asked, lost_orders=lost_orders)
    return kept, Losses(frozenset({*lost, *again}), lost_orders)


def _accepted_again(evidence: Evidence) -> Mapping[str, Deduction]:
    """What was accepted, lost, and accepted when it was asked for again; by request id."""
    twice = set(evidence.record.deductions.taken_twice)
    asked = (each for each in evidence.asked_again if each.accepted and not each.replayed)
    unknown = (each for each in asked if each.request_id not in evidence.known_before)
    return {each.request_id: each for each in unknown if each.request_id in twice}


def _lost_orders(evidence: Evidence) -> frozenset[int]:
    """Orders that are sold by what their callers were told, and not by what all their products have."""
    told = {order_id for order_id, sold in evidence.record.decided_orders().items() if sold}
    kept = [_sold_to(lines) for lines in evidence.orders]
    return frozenset(told - set.intersection(*kept)) if kept else frozenset()


def _sold_to(lines: OrderLines) -> set[int]:
    return {order_id for order_id, each in lines.journal.units().items() if each.sold}


def _calls_ended(evidence: Evidence) -> Iterator[str]:
    tries = evidence.record.tries
    allowed_s = evidence.deadline_s + ALLOWANCE_S
    late = [
        each
        for each in tries
        if each.ended_s - each.started_s > allowed_s + _stood_still_s(evidence.pauses, each)
    ]
    if late:
        yield f"I8: {len(late)} calls outlived their deadline: {_names(late)}"
    odd = [each for each in tries if not _is_documented(each)]
    if odd:
        words = sorted({f"{each.outcome} {each.reason}" for each in odd})
        yield f"I8: {len(odd)} calls ended with {', '.join(words)}: {_names(odd)}"


def _stood_still_s(pauses: Sequence[Pause], made: Try) -> float:
    """How long the callers did nothing during a call."""
    return sum(
        each.lasted_s for each in pauses if made.started_s <= each.ended_s <= made.ended_s + SLACK_S
    )


def _is_documented(made: Try) -> bool:
    return (
        made.reason in DOCUMENTED
        and made.outcome not in SHORT_OF_WORDS
        and made.message != internal().message
    )


def _names(tries: Sequence[Try]) -> str:
    return ", ".join(sorted({each.name for each in tries})[:SHOWN])


def _unknown_were_decided(evidence: Evidence) -> Iterator[str]:
    """What the ledger had was accepted before; what it had not was not."""
    for answer in evidence.asked_again:
        had = answer.request_id in evidence.known_before
        told = answer.accepted and answer.replayed
        if had != told:
            where = "in" if had else "not in"
            yield (
                f"I4: {answer.request_id}, {where} the ledger, was told {answer.outcome}"
                f"{', replayed' if answer.replayed else ''} when asked again"
            )


def _balance(evidence: Evidence) -> Iterator[str]:
    history, stock, ledger = evidence.record.deductions, evidence.stock, evidence.ledger
    operator = Operator(evidence.loaded, 0, 0)
    numbers = list(terms(operator, history, stock, ledger))
    found = list(faults(history, stock, ledger))
    yield from (f"I1-I5: {sentence}" for sentence in off(numbers, found))


def _sold_to_nothing(evidence: Evidence) -> Iterator[str]:
    stock, ledger, rest = evidence.last_stock, evidence.last_ledger, evidence.rest
    if stock.available or sum(rest.accepted.values()) != evidence.stock.available:
        yield (
            f"I3: {evidence.stock.available} were left, {sum(rest.accepted.values())} of them sold, "
            f"and {stock.available} are left now"
        )
    if not rest.refused:
        yield "I2: one more was sold than there were"
    accepted = {**evidence.record.deductions.accepted, **rest.accepted}
    if accepted != ledger.deductions or ledger.deduction_rows != len(accepted):
        differing = {each[0] for each in accepted.items() ^ ledger.deductions.items()}
        yield f"I5: buyers and journal differ in {len(differing)}: {sorted(differing)[:SHOWN]}"
    if stock.sold != ledger.product.sold or stock.sold != evidence.loaded:
        yield f"I2: {evidence.loaded} loaded, {stock.sold} sold, {ledger.product.sold} in the ledger"


def _audited(evidence: Evidence) -> Iterator[str]:
    for number, audit in enumerate(evidence.audits):
        if not audit.balanced or audit.live.difference or audit.ledger.difference:
            yield f"I1: audit {number} finds {audit.drifts or audit.live}"
    if evidence.dead_letters:
        yield f"I5: {evidence.dead_letters} dead letters"


def _orders(evidence: Evidence) -> Iterator[str]:
    told = evidence.record.decided_orders()
    sold = {order_id for order_id, is_sold in told.items() if is_sold}
    for lines in evidence.orders:
        units = lines.journal.units()
        on_one_side = (_sold_to(lines) ^ sold) - evidence.lost_orders
        product_id = lines.stock.product_id
        if on_one_side:
            yield f"I6: product {product_id}: sold to {sorted(on_one_side)[:SHOWN]} on one side only"
        if any(each.held or each.sold > 1 for each in units.values()) or lines.stock.held:
            yield f"I6: product {product_id}: a hold without an end, or with two"
        if lines.journal.dead_letters:
            yield f"I5: product {product_id}: {lines.journal.dead_letters} dead letters"
        yield from _same_counts(lines)


def _same_counts(lines: OrderLines) -> Iterator[str]:
    stock = lines.stock
    if stock.total != stock.accounted:
        yield f"I1: product {stock.product_id}: {stock.accounted} of {stock.total} are anywhere"
    for name, counts in (("product", lines.ledger.product), ("shards", lines.ledger.shards)):
        if (counts.available, counts.held, counts.sold) != (
            stock.available, stock.held, stock.sold,
        ):  # fmt: skip
            yield f"I1: product {stock.product_id}: Redis and the ledger's {name} row differ"
