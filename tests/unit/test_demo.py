"""The demo's balance: it names what is off, whichever side it is off on."""

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from deploy.demo.__main__ import options
from deploy.demo.balance import Operator, faults, terms
from deploy.demo.history import History
from deploy.demo.purchases import Purchase, errands, purchases
from deploy.demo.readings import Counts, LedgerReading
from deploy.demo.report import off
from inventory.client import Deduction, Outcome, Stock
from inventory.client.records import ProductStatus

OPERATOR = Operator(loaded=10, restocked=3, removed=1)
STOCK = Stock(
    product_id=1,
    available=7,
    held=0,
    in_transit=0,
    buffer=0,
    sold=5,
    total=12,
    frozen=False,
    layout_version=1,
    shards=(),
    inexact=False,
    status=ProductStatus.OPEN,
)
LEDGER = LedgerReading(
    product=Counts(total=12, available=7, held=0, buffer=0, sold=5),
    shards=Counts(total=12, available=7, held=0, in_transit=0, sold=5),
    deductions={"a": 2, "b": 3},
    deduction_rows=2,
    restocked=3,
    removed=1,
)


def purchase(request_id: str, quantity: int) -> Purchase:
    return Purchase(request_id, quantity, user_id=1, twice=False, again=False)


def history(answers: Mapping[str, Outcome] | None = None) -> History:
    told = History([purchase("a", 2), purchase("b", 3), purchase("c", 8)])
    outcomes = {
        "a": Outcome.DEDUCTED,
        "b": Outcome.DEDUCTED,
        "c": Outcome.INSUFFICIENT_STOCK,
        **(answers or {}),
    }
    told.answered([Deduction(request_id=each, outcome=outcomes[each]) for each in outcomes])
    return told


def what_is_off(told: History, stock: Stock = STOCK, ledger: LedgerReading = LEDGER) -> list[str]:
    return off([*terms(OPERATOR, told, stock, ledger)], [*faults(told, stock, ledger)])


def test_nothing_is_off_where_all_sides_agree() -> None:
    assert what_is_off(history()) == []


@pytest.mark.parametrize(
    ("stock", "ledger", "name"),
    [
        ({"sold": 6}, {}, "sold"),
        ({"available": 6, "held": 1}, {}, "held"),
        ({}, {"deduction_rows": 3}, "requests accepted"),
        ({}, {"restocked": 0}, "restocked"),
        ({}, {"deductions": {"a": 2}}, "requests accepted, not in the journal: b"),
        ({}, {"deductions": {"a": 2, "b": 3, "z": 1}}, "in the journal, not accepted: z"),
        ({}, {"deductions": {"a": 2, "b": 4}}, "with another quantity: b"),
        ({"available": 8}, {}, "sides whose places do not add up: GetStock"),
    ],
)
def test_a_side_that_differs_is_named(
    stock: dict[str, Any], ledger: dict[str, Any], name: str
) -> None:
    sentences = what_is_off(history(), replace(STOCK, **stock), replace(LEDGER, **ledger))
    assert any(name in sentence for sentence in sentences)


def test_a_refusal_while_there_were_enough_units_is_off() -> None:
    (sentence,) = what_is_off(history(), replace(STOCK, available=8, sold=4, total=12), LEDGER)[-1:]
    assert "refusals while there were enough units" in sentence


def test_a_request_without_an_answer_is_off() -> None:
    sentences = what_is_off(history({"c": Outcome.UNKNOWN}))
    assert sentences == ["requests without an answer: c"]


def test_a_request_that_was_told_both_is_off() -> None:
    told = history()
    told.answered([Deduction(request_id="c", outcome=Outcome.DEDUCTED)])
    assert any("told both yes and no: c" in sentence for sentence in what_is_off(told))


def test_two_first_answers_to_one_request_are_off() -> None:
    told = history()
    told.answered([Deduction(request_id="a", outcome=Outcome.DEDUCTED)])
    assert what_is_off(told) == ["requests that took units twice: a"]
    told = history()
    told.answered([Deduction(request_id="a", outcome=Outcome.DEDUCTED, replayed=True)])
    assert what_is_off(told) == []


@pytest.mark.parametrize("units", ["999", "-1", "many"])
def test_too_few_units_are_one_clear_line(units: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        options().parse_args([f"--units={units}"])
    last = capsys.readouterr().err.splitlines()[-1]
    assert "--units: must be a number of at least 1,000" in last


def test_a_seed_chooses_the_buyers_and_every_one_is_sent_once() -> None:
    first, again = (purchases(random.Random(5), units=1_000) for _ in range(2))
    assert first == again
    assert sum(each.quantity for each in first) >= 1_000
    sent = [each for errand in errands(random.Random(5), first) for each in errand]
    assert sorted(sent, key=lambda each: each.user_id) == first
