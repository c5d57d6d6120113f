"""The sale as a person at the terminal sees it."""

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from deploy.demo.balance import SIDES, Fault, Term
from deploy.demo.history import History

PIPE_WIDTH = 120


def terminal() -> Console:
    """A console that is as wide as the balance where no terminal says otherwise."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=PIPE_WIDTH)


def progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    )


def print_history(console: Console, history: History) -> None:
    console.print(
        f"\n{history.buyers} buyers, {history.calls_answered} answers: "
        f"{len(history.accepted)} accepted, {history.refused} refused, "
        f"{history.replayed} answers repeated from memory\n"
    )


def print_balance(console: Console, terms: Sequence[Term], faults: Sequence[Fault]) -> None:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("term")
    for side in SIDES:
        table.add_column(side, justify="right")
    table.add_column("")
    for term in terms:
        cells = [str(term.by_side[side]) if side in term.by_side else "" for side in SIDES]
        table.add_row(term.name, *cells, _verdict(is_off=term.is_off))
    console.print(table)
    for fault in faults:
        verdict = _verdict(is_off=bool(fault.found))
        console.print(f"  {fault.name}: {len(fault.found)} {verdict}")
    console.print()


def off(terms: Sequence[Term], faults: Sequence[Fault]) -> list[str]:
    """A sentence on each thing that is not as it must be."""
    different = [f"{term.name}: {_sides(term)}" for term in terms if term.is_off]
    found = [f"{fault.name}: {', '.join(fault.found[:3])}" for fault in faults if fault.found]
    return different + found


def _sides(term: Term) -> str:
    return ", ".join(f"{side} {value}" for side, value in term.by_side.items())


def _verdict(*, is_off: bool) -> str:
    return "[bold red]OFF[/]" if is_off else "[green]ok[/]"
