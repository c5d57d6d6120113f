"""Break the service in every way that there is in faults/, under load, and let the oracle judge.

`python -m tests.chaos F07 --seed 3` breaks one thing; without a number all, one after the other.
Ends with 1 when something is wrong, and says by which seed and where the callers' history is. What only
came late is played again, and is late when it came so each time.
"""

import argparse
import asyncio
import secrets
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random
from tempfile import gettempdir

import uvloop
from rich import box
from rich.console import Console
from rich.table import Table

from deploy.demo.report import terminal
from deploy.local.errors import StackError
from tests.chaos.faults import FAULTS
from tests.chaos.scene import MIX_S, Fault, Report, play
from tests.chaos.stack import Stage

WRONG, INTERRUPTED = 1, 130
TRIES_MAX = 3
"""So often a fault is played of which nothing is wrong but that something came late while the machine
was seen to be busy with something else. A promise that was broken once is broken."""


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("faults", nargs="*", metavar="FAULT", help=", ".join(FAULTS))
    parser.add_argument(
        "--minutes", type=float, default=MIX_S / 60, help="how long F35 goes on (%(default)g)"
    )
    parser.add_argument(
        "--sold",
        type=int,
        default=0,
        help="accepted deductions before F07 cuts the replication (%(default)d)",
    )
    parser.add_argument("--seed", type=int, help="chooses victims and buyers (else: a random one)")
    return parser


async def run(
    chosen: Sequence[Fault], *, seed: int, mix_s: float, sold: int, console: Console
) -> list[Report]:
    """Each fault on one stack; a stack that did not come back is replaced."""
    reports: list[Report] = []
    waiting = list(chosen)
    while waiting:
        async with Stage(Random(f"{seed}")) as stage:
            while waiting:
                fault = waiting.pop(0)
                console.print(f"{fault.number} {fault.name} …")
                for number in range(1, TRIES_MAX + 1):
                    stage.choice.seed(f"{seed} {fault.number}")
                    report = await play(stage, fault, mix_s=mix_s, sold=sold)
                    report.tries = number
                    _tell(console, report)
                    if report.wrong or not (report.late and report.was_disturbed):
                        break
                reports.append(report)
                if not report.passed:
                    _keep(console, stage, report, seed)
                    break
    return reports


def _tell(console: Console, report: Report) -> None:
    back = "" if report.back_s is None else f", back after {report.back_s:g} s"
    console.print(
        f"    {report.took_s:.0f} s, {report.calls} calls, {report.accepted} accepted{back}; "
        f"{dict(report.not_facts) or 'every answer a fact'}"
    )
    for note in report.notes:
        console.print(f"    {note}")
    for sentence in report.wrong:
        console.print(f"    [bold red]wrong[/]: {sentence}")
    for sentence in report.late:
        console.print(f"    [bold yellow]late[/]: {sentence}")


def _keep(console: Console, stage: Stage, report: Report, seed: int) -> None:
    """What there is to look at afterwards: the callers' history and the logs."""
    folder = Path(gettempdir()) / f"chaos-{report.fault.number}-{seed}"
    folder.mkdir(exist_ok=True)
    if report.record:
        report.record.write(folder / "history.jsonl")
    for log in (stage.stack.directory / "logs").glob("*.log"):
        (folder / log.name).write_bytes(log.read_bytes())
    console.print(f"    seed {seed}; history and logs in {folder}")


def print_table(console: Console, reports: Sequence[Report]) -> None:
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("fault", "", "calls", "back in s", "limit", "took s", ""):
        table.add_column(column)
    for report in reports:
        table.add_row(
            report.fault.number,
            report.fault.name,
            str(report.calls),
            "" if report.back_s is None else f"{report.back_s:g}",
            "" if report.back_s is None else f"{report.fault.back_within_s:g}",
            f"{report.took_s:.0f}",
            _verdict(report),
        )
    console.print(table)


def _verdict(report: Report) -> str:
    if not report.passed:
        return "[bold red]WRONG[/]" if report.wrong else "[bold red]LATE[/]"
    return "[green]ok[/]" if report.tries == 1 else f"[yellow]ok, try {report.tries}[/]"


def main() -> int:
    parser = options()
    chosen = parser.parse_args()
    unknown = [each for each in chosen.faults if each not in FAULTS]
    if unknown:
        parser.error(f"{', '.join(unknown)}: choose from {', '.join(FAULTS)}")
    seed = secrets.randbelow(1_000_000) if chosen.seed is None else chosen.seed
    console = terminal()
    console.print(f"seed {seed} (the same again: --seed {seed})")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stops everything, as Ctrl-C does
    try:
        # Buyers and proxies share this process, and must not be what is slow.
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            reports = runner.run(
                run(
                    [FAULTS[each] for each in chosen.faults or FAULTS],
                    seed=seed,
                    mix_s=chosen.minutes * 60,
                    sold=chosen.sold,
                    console=console,
                )
            )
    except StackError as error:
        console.print(f"chaos: {error}")
        return WRONG
    except KeyboardInterrupt:
        return INTERRUPTED
    print_table(console, reports)
    return 0 if all(report.passed for report in reports) else WRONG


if __name__ == "__main__":
    sys.exit(main())
