"""Performs steps on asyncio: tries go to channels, pauses to the loop's clock."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from inventory.client.rpcs import AnyRpc
from inventory.client.steps import AnySend, Pause, Send, Steps, T


async def completed(steps: Steps[T], carry: Callable[[AnySend], Awaitable[object]]) -> T:
    """Performs a call to its end; `carry` makes one try."""
    reply: object = None
    while True:
        try:
            step = steps.send(reply)
        except StopIteration as end:
            value: T = end.value
            return value
        if isinstance(step, Pause):
            await asyncio.sleep(step.seconds)
            reply = None
        else:
            assert isinstance(step, Send)
            reply = await carry(step)


class AsyncLane:
    """A channel with the callables that were made for it."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel
        self._unary: dict[AnyRpc, grpc.aio.UnaryUnaryMultiCallable[Any, Any]] = {}

    def unary(self, rpc: AnyRpc) -> grpc.aio.UnaryUnaryMultiCallable[Any, Any]:
        call = self._unary.get(rpc)
        if call is None:
            call = self.channel.unary_unary(
                rpc.path,
                request_serializer=rpc.serialize,
                response_deserializer=rpc.response.FromString,
            )
            self._unary[rpc] = call
        return call

    def unary_stream(self, rpc: AnyRpc) -> grpc.aio.UnaryStreamMultiCallable[Any, Any]:
        return self.channel.unary_stream(
            rpc.path,
            request_serializer=rpc.serialize,
            response_deserializer=rpc.response.FromString,
        )

    def stream_stream(self, rpc: AnyRpc) -> grpc.aio.StreamStreamMultiCallable[Any, Any]:
        return self.channel.stream_stream(
            rpc.path,
            request_serializer=rpc.serialize,
            response_deserializer=rpc.response.FromString,
        )
