"""What servers have counted of their own work, from their metrics ports."""

import asyncio
from collections.abc import Iterable, Mapping
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

from tests.bench.figures import ACCEPTED, REFUSED

SCRIPT_CALLS, REDIS_CALLS, MOVES = "script calls", "Redis calls", "moves"
UNAVAILABLE = "unavailable"
WORK = (SCRIPT_CALLS, REDIS_CALLS, MOVES, UNAVAILABLE)
READ_WITHIN_S = 10.0

_NAMES = {
    ("inventory_deductions_total", "deducted"): ACCEPTED,
    ("inventory_orders_total", "deduct_order confirmed"): ACCEPTED,
    ("inventory_orders_total", "confirm confirmed"): ACCEPTED,
    ("inventory_deductions_total", "insufficient_stock"): REFUSED,
    ("inventory_deductions_total", "unavailable"): UNAVAILABLE,
    ("inventory_script_requests_count", ""): SCRIPT_CALLS,
    ("inventory_redis_round_calls_sum", ""): REDIS_CALLS,
    ("inventory_shard_moves_total", "put"): MOVES,
}
"""What a sample counts here, by its name and the values of its labels."""

Work = Mapping[str, float]
"""How much was done by what it is: ACCEPTED and REFUSED, and all of WORK."""


async def counted(addresses: Iterable[str]) -> Work:
    """What the processes with these metrics ports have done since they began, added up."""
    texts = await asyncio.gather(*(asyncio.to_thread(_text, address) for address in addresses))
    return added_up(texts)


def added_up(texts: Iterable[str]) -> Work:
    """Several processes' metrics as one account; what nobody counted yet is 0."""
    total = dict.fromkeys((ACCEPTED, REFUSED, *WORK), 0.0)
    for text in texts:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                name = _NAMES.get((sample.name, " ".join(sample.labels.values())))
                if name is not None:
                    total[name] += sample.value
    return total


def _text(address: str) -> str:
    with urlopen(f"http://{address}/metrics", timeout=READ_WITHIN_S) as reply:
        return str(reply.read().decode())
