"""One flash sale on a service of its own: `make demo`.

Buyers want more than there is, some of them send everything twice or again; in the middle a server
process, a worker and a Redis master are killed. At the end the units are counted from three sides: what
the buyers were told, what Redis has, what MySQL has. Exit code 1 names what does not add up.
"""

import argparse
import asyncio
import random
import secrets
import signal
import sys
from contextlib import AsyncExitStack, suppress

from rich.console import Console
from rich.progress import Progress

from deploy.demo.accidents import kill_master, kill_server_process, kill_worker, start_again
from deploy.demo.balance import Operator, faults, terms
from deploy.demo.history import History
from deploy.demo.purchases import errands, purchases
from deploy.demo.readings import read_ledger, undos_owed
from deploy.demo.report import off, print_balance, print_history, progress, terminal
from deploy.demo.shoppers import PATIENT, Shoppers
from deploy.local.errors import StackError
from deploy.local.stack import LocalStack
from deploy.local.waiting import together, until
from inventory.client import AsyncInventoryClient, InventoryError, NewProduct

PRODUCT_ID = 1001
NAME = "Flash sale ticket"
SHARDS = 6
SERVER_PROCESSES, WORKERS = 2, 2
CLIENTS = 3
DEMAND = 1.3
UNITS_MIN = 1_000
"""With fewer units they may all be sold before any can be removed."""
RESTOCKED_PART, REMOVED_PART = 0.05, 0.01
RESTOCK_AT, SERVER_KILLED_AT, WORKER_KILLED_AT, MASTER_KILLED_AT = 0.2, 0.3, 0.4, 0.5
MASTER_BACK_AT, MASTER_AWAY_S_MAX = 0.95, 8.0
"""Parts of the buyers that have their answer by then; a master stays away no longer than so."""
OFF, INTERRUPTED = 1, 130
"""Exit codes."""
OPEN_WITHIN_S, DRAINED_WITHIN_S = 20.0, 60.0


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m deploy.demo",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--units",
        type=_units,
        default=20_000,
        help=f"on sale, at least {UNITS_MIN:,} (%(default)s)",
    )
    parser.add_argument("--seed", type=int, help="chooses the buyers (else: a random one)")
    return parser


def _units(text: str) -> int:
    if not text.isdecimal() or int(text) < UNITS_MIN:
        raise argparse.ArgumentTypeError(f"must be a number of at least {UNITS_MIN:,}")
    return int(text)


class Demo:
    """One sale."""

    def __init__(self, stack: LocalStack, console: Console, *, units: int, seed: int) -> None:
        self._stack = stack
        self._console = console
        choice = random.Random(seed)
        self._operator = Operator(
            units, int(units * RESTOCKED_PART) + 1, int(units * REMOVED_PART) + 1
        )
        wanted = purchases(choice, units=int(units * DEMAND))
        self._errands = errands(choice, wanted)
        self._history = History(wanted)

    async def run(self) -> list[str]:
        """Hold the sale and return what is off."""
        await self._start()
        async with AsyncExitStack() as resources:
            address = self._stack.grpc_address()
            clients = [
                await resources.enter_async_context(AsyncInventoryClient(address, policy=PATIENT))
                for _ in range(CLIENTS)
            ]
            await self._put_on_sale(clients[0])
            with progress(self._console) as bars:
                await self._sell(clients, bars)
                await self._drain(clients[0], bars)
            stock = await clients[0].get_stock(PRODUCT_ID)
        ledger = await read_ledger(self._stack, PRODUCT_ID)
        numbers = list(terms(self._operator, self._history, stock, ledger))
        found = list(faults(self._history, stock, ledger))
        print_history(self._console, self._history)
        print_balance(self._console, numbers, found)
        return off(numbers, found)

    async def _start(self) -> None:
        self._say("starting three Redis masters, three replicas, a database")
        await self._stack.start_services()
        await self._stack.migrate()
        self._say(f"starting {WORKERS} workers and {SERVER_PROCESSES} server processes")
        for number in range(WORKERS):
            await self._stack.start_worker(number)
        await self._stack.start_server(processes=SERVER_PROCESSES)

    async def _put_on_sale(self, client: AsyncInventoryClient) -> None:
        async def all_open() -> bool:
            return all(each.open for each in (await client.get_cluster()).partitions)

        await until(all_open, what="all partitions are open", within_s=OPEN_WITHIN_S)
        await client.put_product(
            NewProduct(
                product_id=PRODUCT_ID,
                name=NAME,
                total_stock=self._operator.loaded,
                buffer_percent=0,
                shards=SHARDS,
            )
        )
        await client.load([PRODUCT_ID])
        self._say(f"{self._operator.loaded} units on sale in {SHARDS} shards")

    async def _sell(self, clients: list[AsyncInventoryClient], bars: Progress) -> None:
        history = self._history
        task = bars.add_task("buyers answered", total=history.buyers)
        history.on_answer(lambda: bars.update(task, completed=history.buyers_answered))
        shoppers = Shoppers(clients, PRODUCT_ID, history)
        await together(self._accidents(clients[0]), shoppers.buy(self._errands))

    async def _accidents(self, client: AsyncInventoryClient) -> None:
        await self._history.reached(RESTOCK_AT)
        await client.restock(PRODUCT_ID, self._operator.restocked, reason="late delivery")
        await client.remove(PRODUCT_ID, self._operator.removed, reason="damaged")
        self._say(f"{self._operator.restocked} units restocked, {self._operator.removed} removed")
        await self._history.reached(SERVER_KILLED_AT)
        await kill_server_process(self._stack, self._say)
        await self._history.reached(WORKER_KILLED_AT)
        await kill_worker(self._stack, self._say)
        await self._history.reached(MASTER_KILLED_AT)
        node = await kill_master(self._stack, self._say)
        with suppress(TimeoutError):
            async with asyncio.timeout(MASTER_AWAY_S_MAX):
                await self._history.reached(MASTER_BACK_AT)
        await start_again(node, self._say)

    async def _drain(self, client: AsyncInventoryClient, bars: Progress) -> None:
        """Wait until the ledger has applied every event, and has had undone what was done twice."""
        task = bars.add_task("events in the ledger", total=None)

        async def are_applied() -> bool:
            partitions = (await client.get_cluster()).partitions
            behind = sum(each.backlog for each in partitions)
            events = sum(each.event_number for each in partitions)
            bars.update(task, completed=events - behind, total=events)
            return behind == 0

        async def is_drained() -> bool:
            # The last event may have been a second effect, and its undo is an event as well.
            return (
                await are_applied()
                and not await undos_owed(self._stack, PRODUCT_ID)
                and await are_applied()
            )

        await until(is_drained, what="the ledger has applied all", within_s=DRAINED_WITHIN_S)

    def _say(self, what: str) -> None:
        self._console.print(what)


async def hold(console: Console, *, units: int, seed: int) -> list[str]:
    """One sale on a stack of its own; what is off at its end."""
    async with LocalStack() as stack:
        return await Demo(stack, console, units=units, seed=seed).run()


def main() -> int:
    chosen = options().parse_args()
    seed = secrets.randbelow(1_000_000) if chosen.seed is None else chosen.seed
    console = terminal()
    console.print(f"seed {seed} (the same buyers again: --seed {seed})")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stops everything, as Ctrl-C does
    try:
        wrong = asyncio.run(hold(console, units=chosen.units, seed=seed))
    except (StackError, InventoryError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return OFF
    except KeyboardInterrupt:
        return INTERRUPTED
    for sentence in wrong:
        print(f"demo: off: {sentence}", file=sys.stderr)
    if wrong:
        return OFF
    console.print("[bold green]balanced[/]: every unit is in exactly one place")
    return 0


if __name__ == "__main__":
    sys.exit(main())
