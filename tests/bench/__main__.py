"""What the service does a second on this machine, next to what would be possible: `make bench`.

Everything runs on this machine: Redis, MySQL, servers, worker and the generators of load. All topics are
measured in turn, round after round, so that whatever else the machine does hits all of them alike.
"""

import argparse
import asyncio
import json
import signal
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from deploy.demo.families import family
from deploy.local.errors import StackError
from deploy.local.programs import find_programs
from deploy.local.stack import LocalStack
from deploy.local.waiting import until
from inventory.client import AsyncInventoryClient, NewProduct
from tests.bench.figures import Figure, Topic, figure_of
from tests.bench.hot import HotProduct
from tests.bench.ledger_rates import STOP_GRACE_S, JournalRates, sell_and_record
from tests.bench.orders import Orders
from tests.bench.products import (
    ON_SALE,
    PLENTY,
    RECORDED,
    SOLD_OUT,
    bring_on_sale,
    cold_ids,
    hot_and_cold,
    ordered,
    product,
)
from tests.bench.programs import BareRedis, start_echo
from tests.bench.report import as_object, print_tables
from tests.bench.sales import Sales, to_be_sold
from tests.bench.service import Service
from tests.bench.topics import BATCH_DEDUCT, DEDUCT, Bench
from tests.bench.window import Measured
from tests.bench.without_redis import WithoutRedis

OPEN_WITHIN_S = 20.0
FAILED, INTERRUPTED = 1, 130
"""Exit codes."""
QUICK = {
    "runs": 1,
    "seconds": 0.2,
    "warm_up_s": 0.1,
    "rows": 5_000,
    "cold": 50,
    "alone": 20_000,
}
FULL = {
    "runs": 3,
    "seconds": 1.2,
    "warm_up_s": 0.3,
    "rows": 40_000,
    "cold": 1_000,
    "alone": 100_000,
}


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--runs", type=int, default=FULL["runs"], help="rounds (%(default)s)")
    parser.add_argument(
        "--seconds", type=float, default=FULL["seconds"], help="of each measurement (%(default)s)"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the arrivals (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print the numbers as one object")
    parser.add_argument(
        "--quick", action="store_true", help="only show that everything works; no figures to quote"
    )
    unnamed = ("warm_up_s", "rows", "cold", "alone")
    parser.set_defaults(**{name: FULL[name] for name in unnamed})
    return parser


async def measured(chosen: argparse.Namespace) -> list[Figure]:
    """Start everything, measure in rounds, stop everything."""
    rounds: dict[str, list[Measured]] = defaultdict(list)
    topics: list[Topic] = []
    async with _running(chosen) as bench:
        with _progress() as bar:
            task = bar.add_task("", total=None)
            for number in range(chosen.runs):
                measures = bench.measures(rounds)
                topics = [topic for topic, _ in measures]
                bar.update(task, total=len(measures) * chosen.runs)
                for topic, measure in measures:
                    bar.update(task, description=f"round {number + 1}: {topic.name}")
                    rounds[topic.name].append(await measure())
                    bar.advance(task)
    return [figure_of(topic, rounds) for topic in topics]


@asynccontextmanager
async def _running(chosen: argparse.Namespace) -> AsyncIterator[Bench]:
    async with LocalStack() as stack:
        await stack.start_services()
        await stack.migrate()
        cold = cold_ids(chosen.cold)
        await _begin_sales(stack, [*hot_and_cold(cold), *to_be_sold(chosen.runs)])
        sold = await sell_and_record(stack, RECORDED, total=PLENTY, rows=chosen.rows)
        mysql = {"mysql": family(stack.database.process.pid)}
        echo, echo_address = await start_echo(stack)
        redis = BareRedis(find_programs(), stack.directory)
        try:
            await redis.start()
            service = Service(stack=stack, seconds=chosen.seconds, warm_up_s=chosen.warm_up_s)
            yield Bench(
                service=service,
                echo_address=echo_address,
                echo_pid=echo.pid,
                redis=redis,
                journal=JournalRates(stack.mysql_url, sold, mysql),
                hot=HotProduct(
                    service=service, baseline=BATCH_DEDUCT, cold=cold, alone=chosen.alone
                ),
                sales=Sales(service, baseline=BATCH_DEDUCT),
                orders=Orders(service, baseline=DEDUCT),
                without_redis=WithoutRedis(
                    stack.mysql_url, mysql, warm_up_s=chosen.warm_up_s, seconds=chosen.seconds
                ),
                seed=chosen.seed,
            )
        finally:
            redis.process.kill()
            echo.kill()


async def _begin_sales(stack: LocalStack, sales: Sequence[NewProduct]) -> None:
    """Bring all products on sale. The worker leaves again: its work is measured by itself."""
    worker = await stack.start_worker()
    for number in range(2):
        await stack.start_server(number)
    async with AsyncInventoryClient(stack.grpc_address()) as client:

        async def all_open() -> bool:
            return all(each.open for each in (await client.get_cluster()).partitions)

        await until(all_open, what="all partitions are open", within_s=OPEN_WITHIN_S)
        plenty = [product(product_id, PLENTY) for product_id in (ON_SALE, RECORDED)]
        await bring_on_sale(client, [product(SOLD_OUT, 1), *plenty, *ordered(), *sales])
        await worker.stop(grace_s=STOP_GRACE_S)
        await client.deduct(SOLD_OUT, 1)


def _progress() -> Progress:
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
    )


def main(arguments: Sequence[str]) -> int:
    chosen = options().parse_args(arguments)
    if chosen.quick:
        vars(chosen).update(QUICK)
    settings = {
        "runs": chosen.runs,
        "seconds": chosen.seconds,
        "seed": chosen.seed,
        "cold_products": chosen.cold,
    }
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stops everything, as Ctrl-C does
    try:
        figures = asyncio.run(measured(chosen))
    except StackError as error:
        print(f"bench: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    if chosen.json:
        print(json.dumps(as_object(figures, settings)))
    else:
        print_tables(figures, settings)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
