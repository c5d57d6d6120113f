"""The oracle is right about a fault that was survived, and wrong about none that was not.

One honest account of ten requests and two orders; each test doctors one thing in it.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deploy.demo.history import History
from deploy.demo.purchases import Purchase
from deploy.demo.readings import Counts, LedgerReading
from inventory.client import Audit, Deduction, Outcome, Stock
from inventory.client.audits import UnitBalance
from inventory.client.records import ProductStatus
from ledger.products import JournalKind
from server.errors import internal
from tests.acceptance.orders import Journal, Row
from tests.chaos.history import Record, Try, back_after_s, p99_s, usual_p99_s
from tests.chaos.oracle import Evidence, OrderLines, Pause, judge, without_losses

UNITS = 10
DEADLINE_S = 2.0
SOLD_ORDER, RELEASED_ORDER = 1, 2
BALANCED = UnitBalance(
    loaded=0, restocked=0, removed=0, available=0, held=0, in_transit=0, buffer=0, sold=0,
    difference=0,
)  # fmt: skip


def stock(*, available: int, sold: int, product_id: int = 1, held: int = 0) -> Stock:
    return Stock(
        product_id=product_id,
        available=available,
        held=held,
        in_transit=0,
        buffer=0,
        sold=sold,
        total=UNITS,
        frozen=False,
        layout_version=1,
        shards=(),
        inexact=False,
        status=ProductStatus.OPEN,
    )


def ledger(*, available: int, deductions: Mapping[str, int], sold: int) -> LedgerReading:
    counts = Counts(total=UNITS, available=available, held=0, in_transit=0, buffer=0, sold=sold)
    return LedgerReading(
        product=replace(counts, in_transit=None),
        shards=replace(counts, buffer=None),
        deductions=deductions,
        deduction_rows=len(deductions),
        restocked=0,
        removed=0,
    )


def purchase(name: str, quantity: int = 1) -> Purchase:
    return Purchase(name, quantity, user_id=1, twice=False, again=False)


def deduction(name: str, outcome: Outcome, *, replayed: bool = False, **other: Any) -> Deduction:
    return Deduction(request_id=name, outcome=outcome, replayed=replayed, **other)


def tell(record: Record, answer: Deduction, *, took_s: float = 0.01) -> None:
    """A buyer of one unit is given an answer."""
    if answer.request_id not in {each.request_id for each in record.deductions.wanted}:
        record.wants(purchase(answer.request_id))
    times = (0.0, took_s)
    record.add(Try.of(answer, "deduct", answer.request_id, 1, is_first=True, times=times))
    record.deductions.answered([answer])


def told_of_order(record: Record, order_id: int, what: str, outcome: Outcome) -> None:
    answer = deduction(str(order_id), outcome)
    record.add(Try.of(answer, what, str(order_id), 1, is_first=True, times=(0.0, 0.01)))


def record() -> Record:
    """Three buyers of a unit, of whom one did not hear the answer, and two orders."""
    made = Record()
    tell(made, deduction("a", Outcome.DEDUCTED))
    tell(made, deduction("b", Outcome.DEDUCTED))
    tell(made, deduction("lost", Outcome.UNKNOWN, reason="OUTCOME_UNKNOWN"))
    made.deductions.answered([deduction("lost", Outcome.DEDUCTED, replayed=True)])
    for order_id, decision, outcome in (
        (SOLD_ORDER, "confirm", Outcome.CONFIRMED),
        (RELEASED_ORDER, "release", Outcome.RELEASED),
    ):
        told_of_order(made, order_id, "reserve", Outcome.HELD)
        told_of_order(made, order_id, decision, outcome)
    return made


def lines() -> OrderLines:
    rows = [
        Row(SOLD_ORDER, JournalKind.RESERVE, "", -1),
        Row(SOLD_ORDER, JournalKind.CONFIRM, "", -1),
        Row(RELEASED_ORDER, JournalKind.RESERVE, "", -1),
        Row(RELEASED_ORDER, JournalKind.RELEASE, "released", 1),
    ]
    return OrderLines(
        Journal(rows, dead_letters=0),
        stock(product_id=2, available=9, sold=1),
        ledger(available=9, deductions={}, sold=1),
    )


def evidence() -> Evidence:
    """An honest account."""
    first = {"a": 1, "b": 1, "lost": 1}
    rest = History([purchase("rest", 7), purchase("too-late")])
    rest.answered([deduction("rest", Outcome.DEDUCTED)])
    rest.answered([deduction("too-late", Outcome.INSUFFICIENT_STOCK)])
    return Evidence(
        record=record(),
        loaded=UNITS,
        deadline_s=DEADLINE_S,
        known_before=first,
        asked_again=[deduction("lost", Outcome.DEDUCTED, replayed=True)],
        stock=stock(available=7, sold=3),
        ledger=ledger(available=7, deductions=first, sold=3),
        rest=rest,
        last_stock=stock(available=0, sold=10),
        last_ledger=ledger(available=0, deductions={**first, "rest": 7}, sold=10),
        dead_letters=0,
        audits=[Audit(balanced=True, drifts=(), ledger=BALANCED, live=BALANCED, audited_ms=1, shards=6)],
        orders=[lines()],
    )  # fmt: skip


def test_an_honest_account_is_left_alone() -> None:
    assert judge(evidence()) == []


def test_a_call_may_end_later_by_as_much_as_the_callers_stood_still() -> None:
    late = told("a", Outcome.DEDUCTED, took_s=DEADLINE_S + 0.3, replayed=True)
    assert judge(replace(late, pauses=[Pause(ended_s=1.0, lasted_s=0.3)])) == []


def told(name: str, outcome: Outcome, *, took_s: float = 0.01, **words: Any) -> Evidence:
    """The account with one more answer to somebody."""
    honest = evidence()
    tell(honest.record, deduction(name, outcome, **words), took_s=took_s)
    return honest


def told_of(order_id: int, what: str, outcome: Outcome) -> Evidence:
    honest = evidence()
    told_of_order(honest.record, order_id, what, outcome)
    return honest


def orders(**changes: Any) -> Evidence:
    return replace(evidence(), orders=[replace(lines(), **changes)])


def journal(*rows: Row, letters: int = 0) -> Journal:
    return Journal([*lines().journal.rows, *rows], dead_letters=letters)


def last(units: Mapping[str, int], **changes: int) -> Evidence:
    honest = evidence()
    counts = {"available": 0, "sold": 10, **changes}
    return replace(honest, last_ledger=ledger(deductions=units, **counts))


ALL = {"a": 1, "b": 1, "lost": 1, "rest": 7}
WITHOUT_WAIT = replace(
    evidence(),
    ledger=ledger(available=8, deductions={"a": 1, "lost": 1}, sold=2),
    stock=stock(available=8, sold=2),
)
"""A master died with an acknowledged sale that no replica had."""
WITHOUT_RECORD = replace(
    evidence(), asked_again=[deduction("lost", Outcome.DEDUCTED, replayed=False)]
)
"""A retry takes units once more."""
WITHOUT_FENCE = replace(evidence(), stock=stock(available=8, sold=2))
"""An old master went on selling by itself, or a new one with what it had."""
WITHOUT_COMPARE_AND_SET = replace(
    evidence(),
    ledger=replace(evidence().ledger, deduction_rows=4),
)
"""Two workers applied one event."""
WITHOUT_TYPE_CHECK = replace(
    evidence(), stock=replace(evidence().stock, available=6), last_stock=stock(available=0, sold=9)
)
"""A script stopped half way: units were taken and no event tells of it."""

DOCTORED: Mapping[str, tuple[Callable[[], Evidence], str]] = {
    "without WAIT": (lambda: WITHOUT_WAIT, "accepted, not in the journal: b"),
    "without the record": (lambda: WITHOUT_RECORD, "I4: lost, in the ledger, was told deducted"),
    "without the fence": (lambda: WITHOUT_FENCE, "available: GetStock 8"),
    "without the compare-and-set": (lambda: WITHOUT_COMPARE_AND_SET, "requests accepted: buyers 3"),
    "without a type check": (lambda: WITHOUT_TYPE_CHECK, "sides whose places do not add up"),
    "a call that outlives its deadline": (
        lambda: told("a", Outcome.DEDUCTED, took_s=DEADLINE_S + 0.2),
        "1 calls outlived their deadline: a",
    ),
    "a call that outlives it though the callers stood still for a moment": (
        lambda: replace(
            told("a", Outcome.DEDUCTED, took_s=DEADLINE_S + 0.5),
            pauses=[Pause(ended_s=1.0, lasted_s=0.3), Pause(ended_s=DEADLINE_S + 1, lasted_s=9.0)],
        ),
        "1 calls outlived their deadline: a",
    ),
    "a status that is not documented": (
        lambda: told("a", Outcome.UNKNOWN, reason="SOME_TRACE"),
        "1 calls ended with unknown SOME_TRACE",
    ),
    "a mistake of the service": (
        lambda: told("a", Outcome.UNKNOWN, reason="OUTCOME_UNKNOWN", message=internal().message),
        "1 calls ended with unknown OUTCOME_UNKNOWN",
    ),
    "an outcome that nobody asked for": (
        lambda: told("a", Outcome.REQUEST_MISMATCH),
        "1 calls ended with request_mismatch",
    ),
    "an unknown that the ledger never had": (
        lambda: replace(evidence(), known_before={"a": 1, "b": 1}),
        "I4: lost, not in the ledger, was told deducted, replayed",
    ),
    "a phantom refusal": (
        lambda: told("d", Outcome.INSUFFICIENT_STOCK),
        "refusals while there were enough units",
    ),
    "yes and no": (lambda: told("a", Outcome.INSUFFICIENT_STOCK), "told both yes and no: a"),
    "two first effects": (lambda: told("a", Outcome.DEDUCTED), "took units twice: a"),
    "a request without an answer": (
        lambda: told("e", Outcome.UNKNOWN, reason="OUTCOME_UNKNOWN"),
        "without an answer: e",
    ),
    "a unit that cannot be sold": (
        lambda: replace(evidence(), last_stock=stock(available=1, sold=9)),
        "1 are left now",
    ),
    "one unit too many": (
        lambda: replace(evidence(), rest=History([purchase("rest", 7)])),
        "I2: one more was sold than there were",
    ),
    "a request that was refused and is in the journal": (
        lambda: last({**ALL, "refused": 1}),
        "I5: buyers and journal differ in 1: ['refused']",
    ),
    "another quantity": (lambda: last({**ALL, "rest": 6}), "I5: buyers and journal differ in 1"),
    "a sum in the ledger": (lambda: last(ALL, sold=11), "I2: 10 loaded, 10 sold, 11 in the ledger"),
    "an audit": (
        lambda: replace(evidence(), audits=[replace(evidence().audits[0], balanced=False)]),
        "I1: audit 0 finds",
    ),
    "a dead letter": (lambda: replace(evidence(), dead_letters=1), "I5: 1 dead letters"),
    "an order that was sold to nobody's knowledge": (
        lambda: orders(journal=journal(Row(3, JournalKind.CONFIRM, "", -1))),
        "sold to [3] on one side only",
    ),
    "an order that is sold and not in the journal": (
        lambda: told_of(4, "confirm", Outcome.CONFIRMED),
        "sold to [4] on one side only",
    ),
    "a hold that ended twice": (
        lambda: orders(journal=journal(Row(SOLD_ORDER, JournalKind.RELEASE, "expired", 1))),
        "a hold without an end, or with two",
    ),
    "a hold without an end": (
        lambda: orders(journal=journal(Row(5, JournalKind.RESERVE, "", -1))),
        "a hold without an end, or with two",
    ),
    "an order's dead letter": (lambda: orders(journal=journal(letters=1)), "product 2: 1 dead"),
    "an order's unit that is nowhere": (
        lambda: orders(stock=stock(product_id=2, available=8, sold=1)),
        "I1: product 2: 9 of 10 are anywhere",
    ),
    "an order's unit that the ledger has elsewhere": (
        lambda: orders(ledger=ledger(available=8, deductions={}, sold=2)),
        "I1: product 2: Redis and the ledger's product row differ",
    ),
}


@pytest.mark.parametrize("doctored", DOCTORED)
def test_what_was_doctored_is_named(doctored: str) -> None:
    account, named = DOCTORED[doctored]
    found = judge(account())
    assert any(named in sentence for sentence in found), found


def test_what_a_mode_may_lose_is_counted_and_nothing_else_is_forgiven() -> None:
    account, lost = without_losses(WITHOUT_WAIT)
    assert lost.number == 1
    assert not any("not in the journal" in sentence for sentence in judge(account))
    twice = replace(WITHOUT_WAIT, stock=stock(available=7, sold=3))
    assert any("available" in sentence for sentence in judge(without_losses(twice)[0]))


def test_what_was_lost_and_accepted_again_is_one_loss_and_one_sale() -> None:
    again = deduction("a", Outcome.DEDUCTED)
    account = told("a", Outcome.DEDUCTED)
    lost_first = replace(account, asked_again=[again], known_before={})
    forgiven, lost = without_losses(lost_first)
    assert (lost.number, any("took units twice" in each for each in judge(forgiven))) == (1, False)
    kept_first = replace(account, asked_again=[again], known_before={"a": 1})
    forgiven, lost = without_losses(kept_first)
    assert (lost.number, any("took units twice: a" in each for each in judge(forgiven))) == (
        0,
        True,
    )


def test_an_order_that_was_sold_and_lost_is_counted_and_one_that_was_not_sold_is_no_loss() -> None:
    unsold = orders(journal=Journal(lines().journal.rows[2:], dead_letters=0))
    assert any("on one side only" in sentence for sentence in judge(unsold))
    account, lost = without_losses(unsold)
    assert (judge(account), lost.number) == ([], 1)
    sold = orders(journal=journal(Row(RELEASED_ORDER, JournalKind.CONFIRM, "", -1)))
    account, lost = without_losses(sold)
    assert lost.number == 0
    assert any(str(RELEASED_ORDER) in sentence for sentence in judge(account))


def test_accepted_requests_that_cannot_share_an_event_had_one_each() -> None:
    record = Record()
    waits = {"a": (0.0, 2.0, 0), "b": (1.0, 3.0, 0), "c": (2.5, 4.0, 0), "d": (0.0, 9.0, 1)}
    for name, (started_s, ended_s, shard) in waits.items():
        accepted = a_try(started_s, took_s=ended_s - started_s)
        record.add(accepted._replace(name=name, shard=shard))
        record.add(accepted._replace(name=name, shard=shard, replayed=True, started_s=20.0))
    assert record.events_at_least("abc") == 2
    assert record.events_at_least("abcd") == 3
    assert record.events_at_least("") == 0


def a_try(started_s: float, outcome: Outcome = Outcome.DEDUCTED, *, took_s: float = 0.01) -> Try:
    times = (started_s, started_s + took_s)
    return Try.of(deduction("x", outcome), "deduct", "x", 1, is_first=True, times=times)


def test_the_way_back_ends_where_the_old_rate_holds_for_a_second() -> None:
    well = [a_try(0.1 * each) for each in range(100)]
    ill = [a_try(2 + 0.1 * each, Outcome.UNKNOWN) for each in range(10)]
    once_more = [a_try(3.6, Outcome.UNKNOWN)]
    assert back_after_s([*well, *ill, *once_more], since_s=2, before=1.0, until_s=9) == 1.75
    assert back_after_s([*well, *ill], since_s=2, before=1.0, until_s=9) == 1.0
    assert back_after_s([*well, *ill], since_s=2, before=1.0, until_s=3.9) is None
    assert back_after_s(well, since_s=2, before=1.0, until_s=9) == 0.0


def test_silence_is_no_success() -> None:
    assert back_after_s([], since_s=0, before=1.0, until_s=9) is None


def test_the_slowest_in_a_hundred_is_left_out_of_p99() -> None:
    quick = [a_try(0, took_s=0.01) for _ in range(199)]
    assert p99_s([*quick, a_try(0, took_s=1.0)]) == pytest.approx(0.01)
    assert p99_s([*quick, *[a_try(0, took_s=1.0)] * 3]) == pytest.approx(1.0)


def test_a_hiccup_of_one_second_does_not_count() -> None:
    seconds = [a_try(each, took_s=0.01) for each in range(9)]
    assert usual_p99_s([*seconds, a_try(9, took_s=1.0)]) == pytest.approx(0.01)
    assert usual_p99_s([]) == 0.0


def test_a_history_is_written_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    record().write(path)
    assert len(path.read_text().splitlines()) == len(record().tries)
