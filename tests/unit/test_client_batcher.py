"""What the client's batcher owes those who wait when it is closed."""

import asyncio

from inventory.client.batcher import Batcher
from inventory.client.deductions import Ticket
from inventory.client.failures import Failure
from inventory.client.outcomes import DeductItem, Outcome
from inventory.client.rpcs import DEDUCT
from inventory.client.steps import Send
from inventory.v1 import inventory_pb2

ITEM = DeductItem(1, 1, "r")


def single() -> Send[inventory_pb2.DeductRequest, inventory_pb2.DeductResponse]:
    return Send(DEDUCT, Ticket(ITEM).request(0), 60.0, 0)


async def test_what_still_waits_is_answered_and_what_is_out_is_finished() -> None:
    sent: asyncio.Event = asyncio.Event()
    returned: asyncio.Event = asyncio.Event()

    async def send(batch: object) -> inventory_pb2.BatchDeductResponse:
        sent.set()
        await returned.wait()
        results = [inventory_pb2.DeductResponse(outcome=inventory_pb2.OUTCOME_DEDUCTED)]
        return inventory_pb2.BatchDeductResponse(results=results)

    batcher = Batcher(send, batches_out_max=1)
    async with asyncio.TaskGroup() as group:
        out = group.create_task(batcher.carry(single()))
        await sent.wait()
        waiting = group.create_task(batcher.carry(single()))
        await asyncio.sleep(0)
        closing = group.create_task(batcher.close())
        left = await waiting
        assert not closing.done()
        returned.set()
    late = await batcher.carry(single())
    assert not isinstance(out.result(), Failure)
    for failure in (left, late):
        assert isinstance(failure, Failure)
        ticket = Ticket(ITEM)
        ticket.failed(failure)
        assert not ticket.open
        assert (ticket.deduction.outcome, failure.reason) == (Outcome.NOT_EXECUTED, "CLIENT_CLOSED")
