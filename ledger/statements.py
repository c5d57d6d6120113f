"""The SQL of the ledger: one statement a file in ledger/sql/, read when it is first used.

A line `-- @include <name>` stands for the text of ledger/sql/include/<name>.sql.
"""

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).parent / "sql"
COMMA = b",\n"
UNION = b"\nUNION ALL "
_INCLUDE = re.compile(r"^-- @include (\w+)\n", re.MULTILINE)


@cache
def statement(name: str) -> str:
    """The statement in `sql/<name>.sql`, with its includes in place."""
    return _INCLUDE.sub(lambda match: _text(f"include/{match[1]}"), _text(name))


def with_rows(name: str, rows: Iterable[bytes], separator: bytes = COMMA) -> bytes:
    """The statement with its `{rows}` filled in; the caller has escaped the literals in them."""
    before, after = statement(name).encode().split(b"{rows}")
    return before + separator.join(rows) + after


def placeholders(name: str, count: int) -> str:
    """The statement with `{values}` replaced by that many %s."""
    return statement(name).replace("{values}", ", ".join(["%s"] * count))


def _text(name: str) -> str:
    return (_FOLDER / f"{name}.sql").read_text(encoding="utf-8")
