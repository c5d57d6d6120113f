"""Orders' records as scripts wrote them with an event. Pure: no I/O, no clock.

A record is `<state> <deadline_ms> <created_ms> <user> <open> <lines>`, see
sharding/lua/include/orders.lua.
"""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

_TERMS = re.compile("([HPC]) ([0-9]{1,19}) ([0-9]{1,15}) ([-0-9:,?!]{1,2500})")
_FURTHER_LINE = "L"
_DECISION = re.compile(
    "([0-9]{1,19}) ([PHCREAKTF] [0-9]{1,15} [0-9]{1,15} [0-9]{1,19} [01] [-0-9:,?!]{1,2500})"
)


class DecidedOrder(NamedTuple):
    """An order and its record."""

    order_id: int
    record: str


def are_terms(text: object) -> bool:
    """Whether a request's last value is the terms of an order's line, and no order's id."""
    return str(text)[:1].isalpha()


def first_decisions(requests: Iterator[Sequence[object]], *, at_ms: int) -> Iterator[DecidedOrder]:
    """What was decided about the orders of these requests when their first lines were taken.

    ValueError: no script takes a line on such terms.
    """
    for _, _, user, terms in requests:
        if are_terms(terms) and str(terms)[0] != _FURTHER_LINE:
            yield _first_decision(str(terms), at_ms, str(user))


def _first_decision(terms: str, at_ms: int, user: str) -> DecidedOrder:
    found = _TERMS.fullmatch(terms)
    if not found:
        raise ValueError(f"no terms: {terms[:60]!r}")
    state, order_id, ttl_ms, lines = found.groups()
    record = f"{state} {at_ms + int(ttl_ms)} {at_ms} {user} {int(state == 'P')} {lines}"
    return DecidedOrder(int(order_id), record)


def later_decisions(text: str) -> Iterator[DecidedOrder]:
    """Read what decide.lua says of the orders that it changed. ValueError: it does not say so."""
    for part in filter(None, text.split(";")):
        found = _DECISION.fullmatch(part)
        if not found:
            raise ValueError(f"no record of an order: {part[:60]!r}")
        yield DecidedOrder(int(found[1]), found[2])
