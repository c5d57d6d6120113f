"""Changes of products' rows that a transaction has in hand."""

from collections.abc import Sequence

from ledger.database import Transaction
from ledger.engine.shelves import Shelf
from ledger.errors import BatchRefusedError
from ledger.journal import UNION_ROWS_MAX
from ledger.literals import product_change_row
from ledger.statements import UNION, with_rows


async def move(transaction: Transaction, shelves: Sequence[Shelf]) -> None:
    """Add to each row what has become of its units; BatchRefusedError if it has fewer than it gave."""
    for start in range(0, len(shelves), UNION_ROWS_MAX):
        piece = shelves[start : start + UNION_ROWS_MAX]
        rows = [product_change_row(each.row.product_id, each.change).encode() for each in piece]
        moved = await transaction.bulk(with_rows("product_move", rows, UNION))
        if moved != len(piece):
            ids = [each.row.product_id for each in piece]
            raise BatchRefusedError("below_zero", f"available units of one of the products {ids}")
