"""Journal rows of what happens in this engine: it has no streams, so they name no event."""

from collections.abc import Sequence
from typing import NamedTuple

from ledger.database import Transaction
from ledger.journal import STATEMENT_BYTES_MAX
from ledger.literals import SIGN
from ledger.products import JournalKind, JournalType
from ledger.statements import with_rows
from ledger.values import escaped, in_pieces, text


class Entry(NamedTuple):
    """One operation. A tuple and not a dataclass: tens of thousands are made a second.

    `quantity` in units, without a sign; `available`: units of the product that were left just after it.
    """

    product_id: int
    request_id: str
    kind: JournalKind
    quantity: int
    available: int
    user_id: int = 0
    order_id: int = 0
    remark: str = ""
    actor: str = ""


async def enter(transaction: Transaction, entries: Sequence[Entry]) -> None:
    """Write journal rows. DuplicateEffectsError where a request has an effect of this kind already."""
    for piece in in_pieces(map(_row, entries), STATEMENT_BYTES_MAX):
        await transaction.bulk(with_rows("entry_insert", piece))


_TYPES = {kind: JournalType[kind.name].value for kind in JournalKind}
_SIGNS = {kind: SIGN.get(kind, 1) for kind in JournalKind}


def _row(entry: Entry) -> bytes:
    """One row in the columns of entry_insert.sql."""
    product_id, request_id, kind, quantity, available, user_id, order_id, remark, actor = entry
    return (
        f"({product_id},'{escaped(request_id)}','{kind.value}',{_TYPES[kind]},{order_id},"
        f"{user_id},{_SIGNS[kind] * quantity},{text(remark)},{text(actor)},{available})"
    ).encode()
