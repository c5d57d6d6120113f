"""The figures as tables for people and as one object for programs."""

import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from tests.bench.counters import WORK
from tests.bench.figures import REFUSED, Figure, Range
from tests.bench.window import GENERATOR

RATES = ("what", "a second", "", "range", "compared with", "ratio", "range")
SIGNIFICANT = 3


def as_object(figures: Sequence[Figure], settings: Mapping[str, object]) -> dict[str, Any]:
    """Everything, by the names of the topics."""
    return {
        "machine": machine(),
        "settings": dict(settings),
        "figures": {figure.topic.name: _figure_object(figure) for figure in figures},
    }


def machine() -> dict[str, object]:
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "architecture": platform.machine(),
        "python": platform.python_version(),
    }


def print_tables(figures: Sequence[Figure], settings: Mapping[str, object]) -> None:
    """Rates first, then what they cost and how even the masters' load was, then latencies."""
    out = Console(width=None if os.isatty(1) else 150, highlight=False)
    sizes = ", ".join(f"{name} {value}" for name, value in {**machine(), **settings}.items())
    out.print(f"\n{sizes}\nmedians of all rounds, ranges from the least to the most\n")
    rates = [figure for figure in figures if not figure.latency_ms]
    accepted = [figure for figure in rates if figure.topic.counts != REFUSED]
    refused = [figure for figure in rates if figure.topic.counts == REFUSED]
    out.print(_rates("accepted", accepted))
    out.print(_rates("refused: never added to the above", refused))
    out.print(_costs([figure for figure in rates if figure.cpu_us]))
    out.print(_work([figure for figure in rates if figure.work]))
    out.print(_shares([figure for figure in rates if figure.shares]))
    out.print(_latencies([figure for figure in figures if figure.latency_ms]))


def _figure_object(figure: Figure) -> dict[str, Any]:
    fields = asdict(figure)
    topic = fields.pop("topic")
    return {"unit": topic["what"], "counts": topic["counts"], **fields}


def _rates(title: str, figures: Iterable[Figure]) -> Table:
    table = _table(title, *RATES)
    for figure in figures:
        cells = (figure.topic.name, _whole(figure.per_s.median), figure.topic.what)
        table.add_row(*cells, _range(figure.per_s), *_first_ratio(figure))
        for baseline, ratio in list(figure.ratios.items())[1:]:
            table.add_row("", "", "", "", baseline, *_ratio(ratio))
    return table


def _first_ratio(figure: Figure) -> Sequence[str]:
    for baseline, ratio in figure.ratios.items():
        return (baseline, *_ratio(ratio))
    return ("", "", "")


def _costs(figures: Sequence[Figure]) -> Table:
    groups = list(dict.fromkeys(group for figure in figures for group in figure.cpu_us))
    groups.sort(key=lambda group: group == GENERATOR)
    table = _table("CPU µs for each, all processes of a kind together", "what", *groups)
    for figure in figures:
        cells = [figure.cpu_us.get(group) for group in groups]
        table.add_row(figure.topic.name, *(_significant(cell) for cell in cells))
    return table


def _work(figures: Sequence[Figure]) -> Table:
    table = _table("done for each accepted request, or each refused one", "what", *WORK)
    for figure in figures:
        table.add_row(figure.topic.name, *(_significant(figure.work[name]) for name in WORK))
    return table


def _shares(figures: Sequence[Figure]) -> Table:
    names = list(figures[0].shares)
    table = _table("the busiest Redis master's part of the work of all", "what", *names)
    for figure in figures:
        cells = [_share(figure.shares[name]) for name in names]
        table.add_row(figure.topic.name, *cells)
    return table


def _latencies(figures: Sequence[Figure]) -> Table:
    names = list(figures[0].latency_ms)
    table = _table("latency in ms from the time a request was due", "what", "a second", *names)
    for figure in figures:
        cells = [_latency(figure.latency_ms[name]) for name in names]
        table.add_row(figure.topic.name, _whole(figure.per_s.median), *cells)
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left")
    return table


def _whole(value: float) -> str:
    return f"{value:,.0f}"


def _range(values: Range) -> str:
    return f"{values.min:,.0f} - {values.max:,.0f}"


def _ratio(ratio: Range) -> tuple[str, str]:
    return f"{ratio.median:.2f}", f"{ratio.min:.2f} - {ratio.max:.2f}"


def _significant(values: Range | None) -> str:
    if values is None:
        return ""
    return f"{values.median:.{SIGNIFICANT}g}" if values.median < 100 else _whole(values.median)


def _latency(values: Range) -> str:
    return f"{values.median:.1f} ({values.min:.1f} - {values.max:.1f})"


def _share(values: Range) -> str:
    return f"{values.median:.2f} ({values.min:.2f} - {values.max:.2f})"
