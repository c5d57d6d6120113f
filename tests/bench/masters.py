"""How evenly Redis masters share the work of running scripts."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from deploy.local.redis_cluster import RedisNode

CALLS, TIME = "script calls", "script time"


class ScriptLoad(NamedTuple):
    """What one master has spent on scripts since it began."""

    calls: int
    time_us: int
    """What a script calls is part of it."""


async def script_loads(masters: Sequence[RedisNode]) -> Sequence[ScriptLoad]:
    """One reading of all masters, in their order."""
    return await asyncio.gather(*(_script_load(master) for master in masters))


def largest_shares(
    before: Sequence[ScriptLoad], after: Sequence[ScriptLoad]
) -> Mapping[str, float]:
    """The busiest master's part of what all of them did between two readings, 1 being all."""
    calls = [late.calls - early.calls for early, late in zip(before, after, strict=True)]
    times_us = [late.time_us - early.time_us for early, late in zip(before, after, strict=True)]
    return {CALLS: max(calls) / sum(calls), TIME: max(times_us) / sum(times_us)}


async def _script_load(master: RedisNode) -> ScriptLoad:
    stats = await master.call("INFO", "commandstats")
    spent = stats.get("cmdstat_evalsha", {"calls": 0, "usec": 0})
    return ScriptLoad(int(spent["calls"]), int(spent["usec"]))
