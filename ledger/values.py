"""Values as SQL literals, and rows of them cut into statements.

Escaping relies on the SQL mode that ledger/sql/session_settings.sql sets.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime

from pymysql.converters import escape_string


def text(value: str) -> str:
    """A string literal; a lone surrogate, which MySQL cannot hold, becomes a question mark."""
    return f"'{escaped(value.encode('utf-8', 'replace').decode())}'"


def binary(value: bytes) -> bytes:
    """A literal of bytes."""
    changed = value.replace(b"\\", b"\\\\").replace(b"'", b"\\'").replace(b"\0", b"\\0")
    return b"_binary'%b'" % changed


def instant(at_ms: int) -> str:
    """A DATETIME(3) literal in UTC; `at_ms` in milliseconds since 1970, before the year 10,000."""
    moment = datetime.fromtimestamp(at_ms // 1_000, UTC)
    return f"'{moment:%Y-%m-%d %H:%M:%S}.{at_ms % 1_000:03d}'"


def escaped(value: str) -> str:
    """What stands between the quotes of a string literal."""
    return value if value.isalnum() else str(escape_string(value))


def in_pieces(rows: Iterable[bytes], bytes_max: int) -> Iterator[Sequence[bytes]]:
    """Rows in their order, cut so that a piece of several rows has at most `bytes_max` bytes."""
    piece: list[bytes] = []
    length = 0
    for row in rows:
        if piece and length + len(row) > bytes_max:
            yield piece
            piece, length = [], 0
        piece.append(row)
        length += len(row)
    if piece:
        yield piece
