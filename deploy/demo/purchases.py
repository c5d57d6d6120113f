"""Who wants to buy what, and in which way they send it. Pure."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

QUANTITIES, WEIGHTS = (1, 2, 3), (6, 3, 1)
TWICE_AT_ONCE = 0.15
ONCE_MORE_LATER = 0.10
TOGETHER = 0.6
"""Share of the buyers who come through an order service that sends batches."""
BATCH_MAX = 100


@dataclass(frozen=True, slots=True)
class Purchase:
    """One buyer's wish, known by its request id."""

    request_id: str
    quantity: int
    user_id: int
    twice: bool
    """Sent twice at the same moment, as an impatient buyer does."""
    again: bool
    """Sent once more after it was answered, as a caller that lost the answer does."""


Errand = Sequence[Purchase]
"""What travels together; a single one goes by a call of its own."""


def purchases(choice: random.Random, *, units: int) -> list[Purchase]:
    """Buyers who together want at least so many units."""
    wanted: list[Purchase] = []
    missing = units
    while missing > 0:
        quantity = choice.choices(QUANTITIES, WEIGHTS)[0]
        missing -= quantity
        wanted.append(
            Purchase(
                request_id=f"sale-{choice.getrandbits(64):016x}",
                quantity=quantity,
                user_id=len(wanted) + 1,
                twice=choice.random() < TWICE_AT_ONCE,
                again=choice.random() < ONCE_MORE_LATER,
            )
        )
    return wanted


def errands(choice: random.Random, wanted: Sequence[Purchase]) -> list[Errand]:
    """The same purchases, some of them in batches, in the order in which they are sent."""
    together = int(len(wanted) * TOGETHER)
    found: list[Errand] = [[purchase] for purchase in wanted[together:]]
    found.extend(_batches(choice, wanted[:together]))
    choice.shuffle(found)
    return found


def _batches(choice: random.Random, wanted: Sequence[Purchase]) -> Iterator[Errand]:
    start = 0
    while start < len(wanted):
        size = choice.randint(2, BATCH_MAX)
        yield wanted[start : start + size]
        start += size
