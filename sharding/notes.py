"""A proof that a product has too few units, remembered for a moment."""

from collections.abc import Sequence
from typing import NamedTuple

from sharding.outcomes import Deduction

NOTE_S = 0.05
"""How long a proof refuses first tries, from its start. Whatever brings units to a product in answer to
a call answers it later than this, so nobody who knows of the units is refused by an older proof."""


class Note(NamedTuple):
    """All shards together held `available` units, proven; times are the loop's."""

    available: int
    until_s: float

    def refuses(self, requests: Sequence[Deduction]) -> list[int]:
        """Positions of the first tries that ask for more. What may be a repeat must be looked up."""
        available = self.available
        return [
            i for i, request in enumerate(requests) if request[5] == 1 and request[2] > available
        ]

    def is_ageing(self, now_s: float) -> bool:
        """Whether it is time for a new proof, if anybody still asks."""
        return self.until_s - now_s < NOTE_S / 4
