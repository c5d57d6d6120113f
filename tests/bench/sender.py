"""A given number of requests to one product, from this process: for work that must end exactly."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator

import grpc

from inventory.client.channels import OPTIONS
from inventory.v1 import inventory_pb2
from tests.bench import requests
from tests.bench.load import BATCH, call, outcomes_of, patient
from tests.bench.order_calls import Call
from tests.bench.requests import Template
from tests.bench.window import Measured

CHANNELS = 4
IN_FLIGHT = 16


async def send(target: str, product_id: int, *, total: int, size: int) -> Measured:
    """Send `total` requests for one unit in batches of `size` and wait for all answers.

    What is neither accepted nor refused, once the service has taken it on, is not sent again and
    counted nowhere.
    """
    assert total % size == 0
    channels = [grpc.aio.insecure_channel(target, options=OPTIONS) for _ in range(CHANNELS)]
    template, turns = requests.batch(product_id, size), iter(range(total // size))
    try:
        await asyncio.gather(*(channel.channel_ready() for channel in channels))
        start_s = time.perf_counter()
        tallies = await asyncio.gather(
            *(
                _lane(patient(call(BATCH, channels[number % CHANNELS])), template, turns)
                for number in range(IN_FLIGHT)
            )
        )
        elapsed_s = time.perf_counter() - start_s
    finally:
        for channel in channels:
            await channel.close()
    tally = sum(tallies, Counter[int]())
    return Measured(
        elapsed_s=elapsed_s,
        accepted=tally[inventory_pb2.OUTCOME_DEDUCTED],
        refused=tally[inventory_pb2.OUTCOME_INSUFFICIENT_STOCK],
    )


async def _lane(send_one: Call, template: Template, turns: Iterator[int]) -> Counter[int]:
    tally: Counter[int] = Counter()
    for _ in turns:
        tally.update(outcomes_of(BATCH, await send_one(template.fresh())))
    return tally
