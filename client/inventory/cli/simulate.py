"""`inventoryctl simulate`: a sale with many buyers, and its account."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

from inventory.cli.exits import Exit
from inventory.cli.output import console, equation, print_json
from inventory.cli.products import ProductId
from inventory.cli.session import CONNECT_TIMEOUT_S, Session, ended, session_of
from inventory.client import AsyncInventoryClient, Stock
from inventory.payment import PaidSale, PaidSaleReport, simulate_payment
from inventory.simulation import Bar, Sale, SaleReport
from inventory.simulation import simulate as hold

BAR_WIDTH = 40


def simulate(
    context: typer.Context,
    product_id: ProductId,
    buyers: Annotated[int, typer.Option(min=1, help="How many want to buy.")] = 1_000,
    concurrency: Annotated[int, typer.Option(min=1, help="How many at a time.")] = 100,
    quantity: Annotated[int, typer.Option(min=1, help="Units that each wants.")] = 1,
    *,
    duplicates: Annotated[
        float, typer.Option(min=0, max=1, help="Share of buyers who send everything twice.")
    ] = 0.0,
    seed: Annotated[int, typer.Option(help="Chooses who sends twice.")] = 0,
    batch: Annotated[bool, typer.Option("--batch", help="Send what waits in batches.")] = False,
    with_payment: Annotated[
        bool, typer.Option("--with-payment", help="Reserve first; then buyers do as below.")
    ] = False,
    cancel: Annotated[float, typer.Option(min=0, max=1, help="Share who cancel.")] = 0.1,
    vanish: Annotated[float, typer.Option(min=0, max=1, help="Share who never pay.")] = 0.1,
    late: Annotated[float, typer.Option(min=0, max=1, help="Share who pay too late.")] = 0.1,
    ttl: Annotated[int, typer.Option(min=1, help="Seconds that units are held.")] = 3,
) -> None:
    """Sell to many buyers at once and balance the stock; exit code 1 when it is off.

    With --with-payment they reserve, and pay in time, cancel, vanish or pay too late; it ends when no
    unit is held any more, and nobody sends anything twice or in batches. Nobody else may buy or
    restock the product meanwhile, and units that are sold stay sold.
    """
    session = session_of(context)
    if with_payment:
        if cancel + vanish + late > 1:
            raise typer.BadParameter("--cancel, --vanish and --late add up to more than 1")
        paid = PaidSale(
            product_id=product_id,
            buyers=buyers,
            concurrency=concurrency,
            quantity=quantity,
            cancel=cancel,
            vanish=vanish,
            late=late,
            ttl_s=ttl,
            seed=seed,
        )
        _ended_paid(session, asyncio.run(_held_paid(session, paid)))
        return
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
    async with _client(session, batch=batch) as client:
        with _counting(session, sale.buyers) as served:
            return await hold(client, sale, on_answer=served)


async def _held_paid(session: Session, sale: PaidSale) -> PaidSaleReport:
    async with _client(session, batch=False) as client:
        with _counting(session, sale.buyers) as served:
            return await simulate_payment(client, sale, on_answer=served)


@asynccontextmanager
async def _client(session: Session, *, batch: bool) -> AsyncIterator[AsyncInventoryClient]:
    async with AsyncInventoryClient(session.target, batch=batch) as client:
        with session.naming_target():
            await client.wait_ready(CONNECT_TIMEOUT_S)
        yield client


@contextmanager
def _counting(session: Session, buyers: int) -> Iterator[Callable[[int], None]]:
    bar = Progress(
        "{task.description}",
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console(stderr=True),
        disable=session.as_json or not console(stderr=True).is_terminal,
    )
    with bar:
        task = bar.add_task("buyers served", total=buyers)
        yield lambda served: bar.advance(task, served)


def _ended_paid(session: Session, report: PaidSaleReport) -> None:
    if session.as_json:
        print_json({**asdict(report), "balanced": report.balanced})
    else:
        _print_paid(report)
    ended(Exit.OK if report.balanced else Exit.REFUSED)


def _print_paid(report: PaidSaleReport) -> None:
    out = console()
    out.print(f"{report.buyers} buyers in {report.elapsed_s:.2f} s, holds that ran out included")
    out.print(f"held {report.held}, refused {report.refused}, failed {report.failed}")
    did = ", ".join(f"{count} {who.replace('_', ' ')}" for who, count in report.conduct.items())
    out.print(f"of those held: {did}")
    for outcome, count in report.outcomes.items():
        out.print(f"{outcome.replace('_', ' ')} {count}")
    _print_balance(
        report.before, report.after, "confirmed and retaken", report.units_sold, report.imbalances
    )


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
    _print_balance(
        report.before, report.after, "accepted", report.accepted_units, report.imbalances
    )


def _print_balance(
    before: Stock, after: Stock, what: str, units: int, imbalances: Sequence[str]
) -> None:
    out = console()
    out.print(f"before: {equation(before)}")
    out.print(f"after:  {equation(after)}")
    out.print(
        f"sold before {before.sold} + {what} {units} = {before.sold + units}, sold after {after.sold}"
    )
    for sentence in imbalances:
        out.print(f"OFF: {sentence}", style="bold red")
    if not imbalances:
        out.print("balanced", style="green")


def drawn(histogram: tuple[Bar, ...]) -> list[str]:
    """One line a bar; the longest is 40 marks, and none that counts anything is empty."""
    most = max(bar.answers for bar in histogram)
    return [
        f"  <= {bar.upto_ms:>10.4g} ms {bar.answers:>9} {'#' * -(-bar.answers * BAR_WIDTH // most)}"
        for bar in histogram
    ]
