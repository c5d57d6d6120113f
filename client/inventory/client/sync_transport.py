"""Performs steps in the calling thread."""

import threading
import time
from collections.abc import Callable
from typing import Any

import grpc

from inventory.client.rpcs import AnyRpc
from inventory.client.steps import AnySend, Pause, Send, Steps, T


def completed(
    steps: Steps[T], carry: Callable[[AnySend], object], sleep: Callable[[float], None] = time.sleep
) -> T:
    """Performs a call to its end; `carry` makes one try."""
    reply: object = None
    while True:
        try:
            step = steps.send(reply)
        except StopIteration as end:
            value: T = end.value
            return value
        if isinstance(step, Pause):
            sleep(step.seconds)
            reply = None
        else:
            assert isinstance(step, Send)
            reply = carry(step)


class Lane:
    """A channel with the callables that were made for it; safe for threads."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.channel = channel
        self._unary: dict[AnyRpc, grpc.UnaryUnaryMultiCallable[Any, Any]] = {}
        self._making = threading.Lock()

    def unary(self, rpc: AnyRpc) -> "grpc.UnaryUnaryMultiCallable[Any, Any]":
        with self._making:
            call = self._unary.get(rpc)
            if call is None:
                call = self.channel.unary_unary(
                    rpc.path,
                    request_serializer=rpc.serialize,
                    response_deserializer=rpc.response.FromString,
                )
                self._unary[rpc] = call
            return call

    def unary_stream(self, rpc: AnyRpc) -> "grpc.UnaryStreamMultiCallable[Any, Any]":
        return self.channel.unary_stream(
            rpc.path,
            request_serializer=rpc.serialize,
            response_deserializer=rpc.response.FromString,
        )

    def stream_stream(self, rpc: AnyRpc) -> "grpc.StreamStreamMultiCallable[Any, Any]":
        return self.channel.stream_stream(
            rpc.path,
            request_serializer=rpc.serialize,
            response_deserializer=rpc.response.FromString,
        )
