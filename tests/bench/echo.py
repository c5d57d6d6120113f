"""A server that answers without doing anything, in a process of its own: what gRPC alone costs.

`python -m tests.bench.echo HOST:PORT` takes the messages of inventory.v1 apart and puts the answers
together; there is no stock behind them.
"""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc
import uvloop

from inventory.v1 import inventory_pb2
from inventory.v1.inventory_pb2 import (
    BatchDeductRequest,
    BatchDeductResponse,
    DeductRequest,
    DeductResponse,
    StreamDeductRequest,
    StreamDeductResponse,
)

SERVICE = "inventory.v1.InventoryService"
DEDUCTED = DeductResponse(outcome=inventory_pb2.OUTCOME_DEDUCTED, shard=3, shard_available=123_456)

Context = grpc.aio.ServicerContext[Any, Any]


async def deduct(_request: DeductRequest, _context: Context) -> DeductResponse:
    return DEDUCTED


async def batch_deduct(request: BatchDeductRequest, _context: Context) -> BatchDeductResponse:
    return BatchDeductResponse(results=[DEDUCTED] * len(request.items))


async def stream_deduct(
    requests: AsyncIterator[StreamDeductRequest], _context: Context
) -> AsyncIterator[StreamDeductResponse]:
    async for request in requests:
        yield StreamDeductResponse(results=[DEDUCTED] * len(request.items))


HANDLERS = grpc.method_handlers_generic_handler(
    SERVICE,
    {
        "Deduct": grpc.unary_unary_rpc_method_handler(
            deduct, DeductRequest.FromString, DeductResponse.SerializeToString
        ),
        "BatchDeduct": grpc.unary_unary_rpc_method_handler(
            batch_deduct, BatchDeductRequest.FromString, BatchDeductResponse.SerializeToString
        ),
        "StreamDeduct": grpc.stream_stream_rpc_method_handler(
            stream_deduct, StreamDeductRequest.FromString, StreamDeductResponse.SerializeToString
        ),
    },
)


async def serve(address: str) -> None:
    """Serve until SIGTERM."""
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((HANDLERS,))
    server.add_insecure_port(address)
    await server.start()
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()
    await server.stop(grace=None)


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1]))
