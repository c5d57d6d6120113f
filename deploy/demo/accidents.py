"""What happens to the service in the middle of the sale."""

import os
import signal
from collections.abc import Callable

from deploy.demo.families import children
from deploy.local.redis_cluster import MASTERS, RedisNode
from deploy.local.stack import LocalStack
from deploy.local.waiting import until

BACK_WITHIN_S = 20.0
PROMOTED_WITHIN_S = 20.0
VICTIM = 1
"""The second master; servers and workers look for the cluster at the first one, too."""

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


async def kill_master(stack: LocalStack, say: Say) -> RedisNode:
    """SIGKILL to a Redis master; returns it once its replica has taken over."""
    victim, replica = stack.redis[VICTIM], stack.redis[VICTIM + MASTERS]
    victim.process.kill()
    say(
        f"killed Redis master {victim.address} with a third of the shards; the others go on selling"
    )
    await until(replica.is_master, what="its replica takes over", within_s=PROMOTED_WITHIN_S)
    say(f"its replica {replica.address} is master now; a worker compares it with the ledger")
    return victim


async def start_again(node: RedisNode, say: Say) -> None:
    """Start a node that was killed; it follows the one that took over."""
    await node.process.start()
    say(f"Redis node {node.address} is back, as a replica")
