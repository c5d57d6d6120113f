"""What happens to the service in the middle of the sale."""

import os
import signal
from collections.abc import Callable

from deploy.demo.families import children
from deploy.local.stack import LocalStack
from deploy.local.waiting import until

BACK_WITHIN_S = 20.0

Say = Callable[[str], None]


async def kill_server_process(stack: LocalStack, say: Say) -> None:
    """SIGKILL to one of the processes behind the port; its supervisor starts another."""
    supervisor = stack.servers[0].pid
    before = children(supervisor)
    victim = before[0]
    os.kill(victim, signal.SIGKILL)
    say(f"killed server process {victim} with {len(before) - 1} left")

    async def is_replaced() -> bool:
        now = children(supervisor)
        return victim not in now and len(now) == len(before)

    await until(is_replaced, what="the server's supervisor starts another", within_s=BACK_WITHIN_S)
    say(f"the supervisor started server process {(set(children(supervisor)) - set(before)).pop()}")


async def kill_worker(stack: LocalStack, say: Say) -> None:
    """SIGKILL to a worker, whose partitions another one takes over; then start it again."""
    worker = stack.workers[0]
    victim = worker.pid
    worker.kill()
    say(f"killed worker {victim}; its leases run out, another takes its partitions")
    await worker.start()
    say(f"worker {worker.pid} is back")
