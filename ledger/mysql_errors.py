"""What MySQL's and MariaDB's errors mean to the ledger. The only list of their codes."""

import asyncio

from pymysql.err import InterfaceError, MySQLError

from ledger.errors import (
    BatchRefusedError,
    DuplicateEffectsError,
    LedgerError,
    LedgerUnavailableError,
    SchemaError,
)

TIMED_OUT = "timed_out"
LOST = "lost_connection"

_PASSING = {
    1205: "lock_wait",
    1213: "deadlock",
    1020: "record_changed",
    1047: "not_ready",
    1180: "commit_failed",
    3101: "commit_conflict",
    1290: "read_only",
    1792: "read_only",
    1836: "read_only",
    1317: "interrupted",
    1040: "too_many_connections",
    1203: "too_many_connections",
    2002: "cannot_connect",
    2003: "cannot_connect",
    1053: LOST,
    1077: LOST,
    1079: LOST,
    1152: LOST,
    1158: LOST,
    1159: LOST,
    1160: LOST,
    1161: LOST,
    1927: LOST,
    2006: LOST,
    2013: LOST,
    2014: LOST,
    2055: LOST,
    3024: "interrupted",
    3169: LOST,
    4031: LOST,
}
"""Among them what members of a cluster say: 1047 Galera, 3101 and 1180 where a commit lost to another
member's."""
_LOGIN = {1044, 1045, 1049, 1130, 1698, 2026, 2059, 2061}
_SCHEMA = {1054, 1146}
_DUPLICATE = {1062, 1586}
_DONE_ALREADY = {1060, 1061, 1091}
_REFUSED = {
    1048: "invalid_value",
    1267: "invalid_value",
    1264: "out_of_range",
    1292: "invalid_value",
    1300: "invalid_value",
    1366: "invalid_value",
    1406: "too_long",
    1411: "invalid_value",
    1690: "out_of_range",
    3819: "below_zero",
    3988: "invalid_value",
    4025: "below_zero",
    1153: "too_long",
}
"""Codes that blame the values of a statement. CHECK constraints guard counts, hence below_zero."""


def code_of(error: BaseException) -> int:
    """MySQL's number of an error; 0: it has none."""
    first = error.args[0] if error.args else 0
    return first if isinstance(first, int) else 0


def is_done_already(error: BaseException) -> bool:
    """Whether an ALTER TABLE was to add a column or an index that the table has, or to drop one that it
    has not."""
    return code_of(error) in _DONE_ALREADY


def passing_kind(error: BaseException) -> str:
    """One word for an error after which the transaction may be tried again, '' for any other."""
    if isinstance(error, TimeoutError):
        return TIMED_OUT
    if isinstance(error, OSError | asyncio.IncompleteReadError):
        return LOST
    if isinstance(error, InterfaceError) and not code_of(error):
        return LOST
    return _PASSING.get(code_of(error), "") if isinstance(error, MySQLError) else ""


def translated(error: BaseException, server: str, *, may_have_run: bool) -> LedgerError:
    """The ledger's own error for one of the library's."""
    code = code_of(error)
    if kind := passing_kind(error):
        text = f"MySQL at {server}: {kind.replace('_', ' ')}{_why(error)}"
        return LedgerUnavailableError(text, may_have_run=may_have_run)
    if code in _LOGIN:
        text = f"MySQL at {server}: {_one_line(error)}"
        return LedgerUnavailableError(text, may_have_run=may_have_run)
    if code in _SCHEMA:
        return SchemaError(
            f"{server} lacks tables of this program, run `inventoryctl migrate`: {_one_line(error)}"
        )
    if code in _DUPLICATE:
        return DuplicateEffectsError(_one_line(error))
    if code in _REFUSED:
        return BatchRefusedError(_REFUSED[code], _one_line(error))
    return LedgerError(f"MySQL at {server}: error {code}: {_one_line(error)}")


def _why(error: BaseException) -> str:
    """What stood behind an error, such as a certificate that is not trusted."""
    return f" ({_one_line(error.__cause__)})" if error.__cause__ else ""


def _one_line(error: BaseException) -> str:
    return " ".join(str(error.args[-1] if error.args else error).split())[:300]
