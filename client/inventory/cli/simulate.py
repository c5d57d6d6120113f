"""`inventoryctl simulate`: a sale with many buyers, and its account."""

import asyncio
from dataclasses import asdict
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

from inventory.cli.exits import Exit
from inventory.cli.output import console, equation, print_json
from inventory.cli.products import ProductId
from inventory.cli.session import CONNECT_TIMEOUT_S, Session, ended, session_of
from inventory.client import AsyncInventoryClient
from inventory.simulation import Bar, Sale, SaleReport
from inventory.simulation import simulate as hold

BAR_WIDTH = 40


def simulate(
    context: typer.Context,
    product_id: ProductId,
    buyers: Annotated[int, typer.Option(min=1, help="How many want to buy.")] = 1_000,
    concurrency: Annotated[int, typer.Option(min=1, help="How many at a time.")] = 100,
    quantity: Annotated[int, typer.Option(min=1, help="Units that each wants.")] = 1,
    duplicates: Annotated[
        float, typer.Option(min=0, max=1, help="Share of buyers who send everything twice.")
    ] = 0.0,
    seed: Annotated[int, typer.Option(help="Chooses who sends twice.")] = 0,
    batch: Annotated[bool, typer.Option("--batch", help="Send what waits in batches.")] = False,
) -> None:
    """Sell to many buyers at once and balance the stock; exit code 1 when it is off.

    Nobody else may buy or restock the product meanwhile, and units that are sold stay sold.
    """
    session = session_of(context)
    sale = Sale(
        product_id=product_id,
        buyers=buyers,
        concurrency=concurrency,
        quantity=quantity,
        duplicates=duplicates,
        seed=seed,
    )
    report = asyncio.run(_held(session, sale, batch=batch))
    if session.as_json:
        print_json({**asdict(report), "balanced": report.balanced})
    else:
        _print(report)
    ended(Exit.OK if report.balanced else Exit.REFUSED)


async def _held(session: Session, sale: Sale, *, batch: bool) -> SaleReport:
    bar = Progress(
        "{task.description}",
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console(stderr=True),
        disable=session.as_json or not console(stderr=True).is_terminal,
    )
    async with AsyncInventoryClient(session.target, batch=batch) as client:
        with session.naming_target():
            await client.wait_ready(CONNECT_TIMEOUT_S)
        with bar:
            task = bar.add_task("buyers served", total=sale.buyers)
            return await hold(client, sale, on_answer=lambda served: bar.advance(task, served))


def _print(report: SaleReport) -> None:
    out = console()
    latency = report.latency
    out.print(
        f"{report.buyers} buyers in {report.elapsed_s:.2f} s, {report.answers_per_s:.0f} answers/s"
    )
    out.print(f"accepted {report.accepted} ({report.accepted_units} units)")
    out.print(f"refused  {report.refused}")
    for outcome, count in report.outcomes.items():
        if count and outcome not in ("deducted", "insufficient_stock"):
            out.print(f"{outcome} {count}")
    out.print(f"sent twice {report.duplicates}, answered from memory {report.replayed}")
    out.print(
        f"latency ms: p50 {latency.p50_ms:.2f}  p90 {latency.p90_ms:.2f}  p99 {latency.p99_ms:.2f}"
        f"  p99.9 {latency.p999_ms:.2f}  max {latency.max_ms:.2f}"
    )
    for line in drawn(report.histogram):
        out.print(line)
    out.print(f"before: {equation(report.before)}")
    out.print(f"after:  {equation(report.after)}")
    out.print(
        f"sold before {report.before.sold} + accepted {report.accepted_units}"
        f" = {report.before.sold + report.accepted_units}, sold after {report.after.sold}"
    )
    for sentence in report.imbalances:
        out.print(f"OFF: {sentence}", style="bold red")
    if report.balanced:
        out.print("balanced", style="green")


def drawn(histogram: tuple[Bar, ...]) -> list[str]:
    """One line a bar; the longest is 40 marks, and none that counts anything is empty."""
    most = max(bar.answers for bar in histogram)
    return [
        f"  <= {bar.upto_ms:>10.4g} ms {bar.answers:>9} {'#' * -(-bar.answers * BAR_WIDTH // most)}"
        for bar in histogram
    ]
