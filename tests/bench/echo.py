"""A server that answers without doing anything, in a process of its own: what gRPC alone costs.

`python -m tests.bench.echo HOST:PORT` takes the messages of inventory.v1 apart, puts the answers together
and has no stock behind them.
"""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc
import uvloop

from inventory.v1 import inventory_pb2, inventory_pb2_grpc

DEDUCTED = inventory_pb2.DeductResponse(
    outcome=inventory_pb2.OUTCOME_DEDUCTED, shard=3, shard_available=123_456
)

Context = grpc.aio.ServicerContext[Any, Any]


class Echo(inventory_pb2_grpc.InventoryServiceServicer):
    """Everything is deducted."""

    async def Deduct(  # noqa: N802 - the contract's name
        self, _request: inventory_pb2.DeductRequest, _context: Context
    ) -> inventory_pb2.DeductResponse:
        return DEDUCTED

    async def BatchDeduct(  # noqa: N802
        self, request: inventory_pb2.BatchDeductRequest, _context: Context
    ) -> inventory_pb2.BatchDeductResponse:
        return inventory_pb2.BatchDeductResponse(results=[DEDUCTED] * len(request.items))

    async def StreamDeduct(  # noqa: N802
        self, requests: AsyncIterator[inventory_pb2.StreamDeductRequest], _context: Context
    ) -> AsyncIterator[inventory_pb2.StreamDeductResponse]:
        async for request in requests:
            results = [DEDUCTED] * len(request.items)
            yield inventory_pb2.StreamDeductResponse(results=results)


async def serve(address: str) -> None:
    """Serve until SIGTERM."""
    server = grpc.aio.server()
    inventory_pb2_grpc.add_InventoryServiceServicer_to_server(Echo(), server)
    server.add_insecure_port(address)
    await server.start()
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()
    await server.stop(grace=None)


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1]))
