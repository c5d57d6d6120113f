"""Where each fault enters itself."""

from collections.abc import Awaitable, Callable

from tests.chaos.scene import Fault, Scene

NODE_TIMEOUT_S = 2.0
"""Of redis.conf: a node that is silent for so long is failed over."""

REGISTER: dict[str, Fault] = {}

Strike = Callable[[Scene], Awaitable[None]]


def fault(number: str, name: str, *, back_within_s: float = 2.0) -> Callable[[Strike], Strike]:
    """Enter a strike."""

    def register(strike: Strike) -> Strike:
        assert number not in REGISTER
        REGISTER[number] = Fault(number, name, strike, back_within_s)
        return strike

    return register
