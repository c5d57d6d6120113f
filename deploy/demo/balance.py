"""Promise I1 term by term, from three sides, and what else must hold after a sale. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from deploy.demo.history import History
from deploy.demo.readings import Counts, LedgerReading
from inventory.client import Stock

BUYERS, REDIS, PRODUCT_ROW, SHARD_ROWS, JOURNAL = SIDES = (
    "buyers",
    "GetStock",
    "product row",
    "shard rows",
    "journal",
)
PLACES = ("available", "held", "in_transit", "buffer", "sold")


@dataclass(frozen=True, slots=True)
class Operator:
    """What was put on sale, added and taken away, in units, by who did it."""

    loaded: int
    restocked: int
    removed: int

    @property
    def total(self) -> int:
        return self.loaded + self.restocked - self.removed


@dataclass(frozen=True, slots=True)
class Term:
    """One number that several sides know."""

    name: str
    by_side: Mapping[str, int]

    @property
    def is_off(self) -> bool:
        return len(set(self.by_side.values())) > 1


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that must not be found."""

    name: str
    found: Sequence[str]


def terms(
    operator: Operator, history: History, stock: Stock, ledger: LedgerReading
) -> Iterator[Term]:
    """Every number of the balance; each must be the same on all sides that know it."""
    accepted = history.accepted
    counts = {
        REDIS: Counts(
            stock.total, stock.available, stock.held, stock.in_transit, stock.buffer, stock.sold
        ),
        PRODUCT_ROW: ledger.product,
        SHARD_ROWS: ledger.shards,
    }
    journal_total = operator.loaded + ledger.restocked - ledger.removed
    totals = {side: each.total for side, each in counts.items()}
    yield Term("restocked", {BUYERS: operator.restocked, JOURNAL: ledger.restocked})
    yield Term("removed", {BUYERS: operator.removed, JOURNAL: ledger.removed})
    yield Term(
        "loaded + restocked - removed",
        {BUYERS: operator.total, **totals, JOURNAL: journal_total},
    )
    told = {"sold": {BUYERS: sum(accepted.values()), JOURNAL: sum(ledger.deductions.values())}}
    for place in PLACES:
        known = {side: getattr(each, place) for side, each in counts.items()}
        live = {side: units for side, units in known.items() if units is not None}
        yield Term(place.replace("_", " "), {**told.get(place, {}), **live})
    yield Term("requests accepted", {BUYERS: len(accepted), JOURNAL: ledger.deduction_rows})


def faults(history: History, stock: Stock, ledger: LedgerReading) -> Iterator[Fault]:
    """What must not be found."""
    accepted = history.accepted
    journal = ledger.deductions
    yield Fault("requests accepted, not in the journal", sorted(accepted.keys() - journal.keys()))
    yield Fault("requests in the journal, not accepted", sorted(journal.keys() - accepted.keys()))
    shared = accepted.keys() & journal.keys()
    other = [each for each in shared if accepted[each] != journal[each]]
    yield Fault("requests in the journal with another quantity", other)
    yield Fault("requests that took units twice", history.taken_twice)
    yield Fault("requests told both yes and no", history.contradicted)
    yield Fault("requests without an answer", [each.request_id for each in history.open])
    yield Fault("sides whose places do not add up", list(_unequal(stock, ledger)))
    yield Fault("refusals while there were enough units", list(_phantom(history, stock)))


def _unequal(stock: Stock, ledger: LedgerReading) -> Iterator[str]:
    if stock.inexact or stock.total != stock.accounted:
        yield REDIS
    for side, counts in ((PRODUCT_ROW, ledger.product), (SHARD_ROWS, ledger.shards)):
        if counts.total != sum(getattr(counts, place) or 0 for place in PLACES):
            yield side


def _phantom(history: History, stock: Stock) -> Iterator[str]:
    """Nothing came back after the first refusal, so what is left was there all the time."""
    least = history.least_refused
    if least is not None and stock.available >= least:
        yield f"{least} units were refused, {stock.available} are left"
