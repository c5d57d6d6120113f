"""What a call wants done next. Calls are generators of steps; a client performs them.

A call yields a Send and gets the answer or a Failure, or yields a Pause and gets None. So the same
call runs synchronously, on asyncio, and in a test without either.
"""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from inventory.client.failures import Failure
from inventory.client.rpcs import RequestT, ResponseT, Rpc

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Send(Generic[RequestT, ResponseT]):
    """One try of one call; `turn` chooses the channel, modulo their number."""

    rpc: Rpc[RequestT, ResponseT]
    request: RequestT
    timeout_s: float
    turn: int


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait."""

    seconds: float


Steps: TypeAlias = Generator[object, object, T]


def sent(send: Send[RequestT, ResponseT]) -> Steps[ResponseT | Failure]:
    """Has a try performed; gives the answer or why there is none."""
    reply = yield send
    assert isinstance(reply, send.rpc.response | Failure)
    return reply


AnySend: TypeAlias = Send[Any, Any]
