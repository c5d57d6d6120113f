"""Connections to one MySQL server and transactions on them.

READ COMMITTED, autocommit off. A connection goes back to the pool only after its transaction ended;
otherwise it is closed, and the server rolls back what it held.
"""

import asyncio
import random
import ssl
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import aiomysql
from pymysql.constants import CLIENT, CR
from pymysql.err import MySQLError, OperationalError

from ledger.errors import LedgerError
from ledger.failpoints import NO_FAILPOINTS, Failpoints
from ledger.metrics import LedgerMetrics
from ledger.mysql_errors import LOST, TIMED_OUT, passing_kind, translated
from ledger.servers import ALONE, PerServer, Place
from ledger.settings import LedgerSettings, MysqlUrl
from ledger.statements import statement

T = TypeVar("T")
Row = tuple[Any, ...]
"""One row as the library gives it; each reader unpacks it into names at once."""

ATTEMPTS = 5
BACKOFF_S = 0.02
BACKOFF_MAX_S = 0.5
_LIBRARY_ERRORS = (MySQLError, OSError, asyncio.IncompleteReadError)
"""OSError includes TimeoutError."""


class Transaction:
    """Statements on one connection, between its begin and its end."""

    def __init__(self, connection: Any, *, may_have_run: bool = False) -> None:
        self._connection = connection
        self.may_have_run = may_have_run
        """Whether an earlier attempt of the same work may have been committed."""

    async def execute(self, sql: str, values: Sequence[object] = ()) -> int:
        """Run one statement with its %s filled in; returns how many rows it affected."""
        async with self._connection.cursor() as cursor:
            await cursor.execute(sql, values or None)
            return int(cursor.rowcount)

    async def bulk(self, sql: bytes) -> int:
        """Run one statement that holds its literals already; returns how many rows it affected."""
        return int(await self._connection.query(sql))

    async def rows(self, sql: str, values: Sequence[object] = ()) -> list[Row]:
        """All rows that one query finds."""
        async with self._connection.cursor() as cursor:
            await cursor.execute(sql, values or None)
            return list(await cursor.fetchall())

    async def row(self, sql: str, values: Sequence[object] = ()) -> Row | None:
        """The first row that one query finds."""
        found = await self.rows(sql, values)
        return found[0] if found else None


IDLE_S_MAX = 10
"""After so long without a statement the server ends a session and what it had begun: a process that
is stopped in the middle of a transaction would else keep its locks for as long as it is stopped."""


class Database:
    """A bounded pool of connections to one server, opened as they are needed."""

    def __init__(
        self,
        url: MysqlUrl,
        metrics: LedgerMetrics,
        *,
        connections: int = 8,
        connect_timeout_ms: int = 3_000,
        timeout_ms: int = 15_000,
        lock_wait_s: int = 2,
        place: Place = ALONE,
        failpoints: Failpoints = NO_FAILPOINTS,
    ) -> None:
        self.place = place
        """Of the server among those of the ledger."""
        self.failpoints = failpoints
        self._url = url
        self._metrics = metrics
        self._tls = _tls_context(url)
        self._connect_timeout_s = connect_timeout_ms / 1_000
        self._timeout_s = timeout_ms / 1_000
        self._lock_wait_s = lock_wait_s
        self._slots = asyncio.Semaphore(connections)
        self._idle: list[tuple[Any, float]] = []
        """Connections and when they were put back, the latest last."""

    @property
    def server(self) -> str:
        """The server in words, without the password."""
        return str(self._url)

    async def transaction(
        self, run: Callable[[Transaction], Awaitable[T]], *, attempts: int = ATTEMPTS
    ) -> T:
        """Run statements in one transaction and commit; again from the start after a passing error.

        An attempt takes `timeout_ms` at the longest, the wait for a connection of the pool included.
        `run` must be safe to run again after it was committed: the reply to a COMMIT can be lost.
        What timed out is not tried again. Raises LedgerError, its own or `run`'s.
        """
        attempt = _Attempt()
        for number in range(1, attempts + 1):
            try:
                return await self._once(run, attempt)
            except _LIBRARY_ERRORS as error:
                kind = passing_kind(error)
                self._metrics.errors.labels(kind or "other").inc()
                if kind == LOST:
                    self._discard_idle()
                if kind in ("", TIMED_OUT) or number == attempts:
                    raise translated(
                        error, self.server, may_have_run=attempt.has_asked_to_commit
                    ) from error
                await asyncio.sleep(backoff_s(number))
        raise AssertionError("the loop above returns or raises")

    async def close(self) -> None:
        """Close the idle connections; one in use is closed by whoever uses it."""
        while self._idle:
            await _quit(self._idle.pop()[0])

    async def _once(self, run: Callable[[Transaction], Awaitable[T]], attempt: "_Attempt") -> T:
        async with asyncio.timeout(self._timeout_s), self._slots:
            connection = self._rested() or await self._connect()
            ended = False
            try:
                may_have_run = attempt.has_asked_to_commit
                result = await run(Transaction(connection, may_have_run=may_have_run))
                attempt.has_asked_to_commit = True
                await connection.commit()
                ended = True
            except (LedgerError, MySQLError):
                ended = await _rolled_back(connection)
                raise
            finally:
                if ended:
                    self._idle.append((connection, time.monotonic()))
                else:
                    connection.close()
        return result

    async def _connect(self) -> Any:
        connection = _Connection(
            host=self._url.host,
            port=self._url.port,
            user=self._url.user,
            password=self._url.password,
            db=self._url.database,
            charset="utf8mb4",
            cursorclass=_Cursor,
            autocommit=False,
            connect_timeout=self._connect_timeout_s,
            ssl=self._tls,
            program_name="inventory",
        )
        try:
            await connection._connect()  # noqa: SLF001 - as aiomysql.connect() does for its own class
            await self._prepare(Transaction(connection))
        except BaseException:
            connection.close()
            raise
        return connection

    async def _prepare(self, session: Transaction) -> None:
        await session.execute(statement("session_isolation"))
        await session.execute(statement("session_settings"), (self._lock_wait_s, IDLE_S_MAX))

    def _rested(self) -> Any | None:
        """A connection that the server has not closed for idleness, the latest used; None without."""
        if self._idle and self._idle[-1][1] + IDLE_S_MAX / 2 > time.monotonic():
            return self._idle.pop()[0]
        self._discard_idle()
        return None

    def _discard_idle(self) -> None:
        while self._idle:
            self._idle.pop()[0].close()


@dataclass(slots=True)
class _Attempt:
    """How far the attempts at one piece of work have come; only a COMMIT can have had an effect."""

    has_asked_to_commit: bool = False


def databases(
    settings: LedgerSettings, metrics: LedgerMetrics, failpoints: Failpoints = NO_FAILPOINTS
) -> PerServer[Database]:
    """A pool for each server as the settings say; connects nowhere yet."""
    urls = settings.mysql_servers
    return PerServer(
        [
            Database(
                url,
                metrics,
                connections=settings.mysql_connections,
                connect_timeout_ms=settings.mysql_connect_timeout_ms,
                timeout_ms=settings.mysql_timeout_ms,
                lock_wait_s=settings.mysql_lock_wait_s,
                place=Place(index, len(urls)),
                failpoints=failpoints,
            )
            for index, url in enumerate(urls)
        ]
    )


class _Cursor(aiomysql.Cursor):  # type: ignore[misc]  # aiomysql has no annotations
    """aiomysql asks for notes and makes Python warnings of them; in strict mode errors tell."""

    async def _show_warnings(self, connection: Any) -> None:
        pass


class _Connection(aiomysql.Connection):  # type: ignore[misc]  # aiomysql has no annotations
    """aiomysql goes on without encryption where the server offers none, and lets an event loop's own
    errors through; we do not."""

    async def _connect(self) -> None:
        try:
            await super()._connect()
        except RuntimeError as error:  # their word for a peer that hung up at once
            raise OperationalError(CR.CR_CONN_HOST_ERROR, "reset while connecting") from error

    def _write_bytes(self, data: bytes) -> None:
        try:
            super()._write_bytes(data)
        except RuntimeError as error:  # uvloop's word for a transport that the network has closed
            raise OperationalError(CR.CR_SERVER_LOST, "the connection was reset") from error

    async def _request_authentication(self) -> None:
        if self._ssl_context and not self.server_capabilities & CLIENT.SSL:
            raise OperationalError(CR.CR_SSL_CONNECTION_ERROR, "the server offers no TLS")
        await super()._request_authentication()


def backoff_s(attempt: int) -> float:
    """How long to wait after the attempt of that number, from 1; jittered, so that rivals part."""
    return min(BACKOFF_MAX_S, BACKOFF_S * 2.0 ** (attempt - 1)) * random.uniform(0.5, 1)


def _tls_context(url: MysqlUrl) -> ssl.SSLContext | None:
    if url.tls == "off":
        return None
    context = ssl.create_default_context(cafile=url.ca or None)
    if url.tls == "on":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


async def _rolled_back(connection: Any) -> bool:
    if connection.closed:
        return False
    try:
        await connection.rollback()
    except _LIBRARY_ERRORS:
        return False
    return True


async def _quit(connection: Any) -> None:
    try:
        await connection.ensure_closed()
    except (*_LIBRARY_ERRORS, RuntimeError):  # the farewell is not written by _write_bytes
        connection.close()
