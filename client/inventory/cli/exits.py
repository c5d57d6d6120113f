"""Exit codes of `inventoryctl`, and which error ends with which."""

from enum import IntEnum

from inventory.client import InventoryError, NotEnoughStock, OutcomeUnknown, Unavailable
from inventory.client.errors import ServiceFault


class Exit(IntEnum):
    """What a script can tell apart."""

    OK = 0
    REFUSED = 1
    USAGE = 2
    REJECTED = 3
    UNAVAILABLE = 4
    UNKNOWN = 5
    FAULT = 6
    INTERRUPTED = 130


EXPLAINED = """\
Exit codes: 0 done; 1 refused for shortage, an order to be refunded, or audit, doctor or simulate
found something off; 2 wrong usage; 3 rejected: invalid, not found, or not in this state;
4 unavailable, nothing happened; 5 outcome unknown: send the same --request-id or order again;
6 the service failed; 130 interrupted.
"""

_EXITS: tuple[tuple[type[InventoryError], Exit], ...] = (
    (OutcomeUnknown, Exit.UNKNOWN),
    (Unavailable, Exit.UNAVAILABLE),
    (NotEnoughStock, Exit.REFUSED),
    (ServiceFault, Exit.FAULT),
    (InventoryError, Exit.REJECTED),
)


def exit_of(error: InventoryError) -> Exit:
    return next(code for kind, code in _EXITS if isinstance(error, kind))
