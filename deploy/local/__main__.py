"""Run the whole service on this machine: `python -m deploy.local run`."""

import argparse
import asyncio
import json
import os
import signal
import sys
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any, get_args

from deploy.local.demo_product import load_demo_product
from deploy.local.errors import StackError
from deploy.local.given import given
from deploy.local.greeting import greeting
from deploy.local.report import report
from deploy.local.stack import LocalStack
from deploy.local.supervision import AGAIN, keep_down, keep_running
from ledger.engine_claim import Engine
from sharding.settings import Durability

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m deploy.local", description=__doc__)
    run = parser.add_subparsers(required=True, metavar="run").add_parser(
        "run",
        help="start everything, stay in the foreground, stop everything on SIGTERM or Ctrl-C",
        epilog="INVENTORY_… settings in the environment are passed on to servers and workers, but for "
        "those that the stack sets itself (stores, engine, durability, addresses, TLS). SIGUSR1 starts "
        "Redis nodes and MySQL servers again that have ended.",
    )
    run.add_argument("--dir", type=Path, help="keep data and logs here (else: a temporary folder)")
    run.add_argument("--base-port", type=int, help="first of 100 ports (else: a free block)")
    run.add_argument(
        "--json",
        action="store_true",
        help="print one line for scripts when ready; no demo product is loaded",
    )
    run.add_argument("--services-only", action="store_true", help="only Redis and MySQL")
    run.add_argument(
        "--engine",
        type=Engine,
        choices=list(Engine),
        default=Engine.REDIS,
        help="what is sold from; mysql: no Redis and no worker",
    )
    run.add_argument(
        "--durability",
        choices=get_args(Durability),
        default="replicated",
        help="what an answer waits for; synced: the nodes write to disk before each answer",
    )
    run.add_argument("--processes", type=int, default=1, help="processes of the server")
    run.add_argument(
        "--workers",
        type=_workers,
        default=1,
        help="number of workers, at least 1: without one no partition opens",
    )
    run.add_argument(
        "--mysql-servers", type=int, default=1, help="share the products out over them"
    )
    return parser


def _workers(word: str) -> int:
    number = int(word)
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1, or no partition opens and nothing is sold")
    return number


async def run(chosen: argparse.Namespace) -> None:
    """Start, say where things are, keep them running until a signal comes, stop."""
    stopping, again = asyncio.Event(), asyncio.Event()
    for number in STOP_SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    asyncio.get_running_loop().add_signal_handler(AGAIN, _pulse, again)
    stack = LocalStack(
        chosen.dir,
        base_port=chosen.base_port,
        mysql_servers=chosen.mysql_servers,
        engine=chosen.engine,
        durability=chosen.durability,
        settings=_settings(),
    )
    async with stack:
        await _unless(stopping, _start(stack, chosen))
        if not stopping.is_set():
            await _unless(stopping, _supervise(stack, again))
        report("stopping")


async def _start(stack: LocalStack, chosen: argparse.Namespace) -> None:
    await stack.start_services()
    if not chosen.services_only:
        await stack.migrate()
        await stack.start_server(processes=chosen.processes)
        workers = chosen.workers if chosen.engine is Engine.REDIS else 0
        for number in range(workers):
            await stack.start_worker(number)
    prometheus = stack.write_prometheus_config()
    if chosen.json:
        print(json.dumps(stack.endpoints()), flush=True)
        return
    if not chosen.services_only:
        await load_demo_product(stack)
    print(greeting(stack, prometheus), flush=True)


def _settings() -> Mapping[str, str]:
    """What the environment has for the service; says what of it is used and what is not."""
    found = given(os.environ)
    if found.taken:
        report(f"from the environment: {', '.join(sorted(found.taken))}")
    for name, why in sorted(found.ignored.items()):
        report(f"{name} is ignored: {why}")
    return found.taken


def _pulse(event: asyncio.Event) -> None:
    """Wake who waits for it now, and nobody who comes later."""
    event.set()
    event.clear()


async def _supervise(stack: LocalStack, again: asyncio.Event) -> None:
    async with asyncio.TaskGroup() as group:
        for process in [*stack.servers.values(), *stack.workers.values()]:
            group.create_task(keep_running(process), name=f"keep {process.name} running")
        databases = [database.process for database in stack.databases]
        for process in [*databases, *(node.process for node in stack.redis)]:
            group.create_task(keep_down(process, again), name=f"watch {process.name}")


async def _unless(stopping: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
    """Run `work` to its end, or cancel it when `stopping` is set."""
    task = asyncio.create_task(work, name="work")
    stop = asyncio.create_task(stopping.wait(), name="stop")
    await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
    stop.cancel()
    if task.done():
        return task.result()
    task.cancel()
    await asyncio.wait({task})
    return None


def main() -> None:
    chosen = options().parse_args()
    try:
        asyncio.run(run(chosen))
    except StackError as error:
        report(str(error))
        sys.exit(1)


if __name__ == "__main__":
    main()
