"""A client's pools of connections, blocking and awaiting, which lend a connection within a time.

A connection that broke while it idled (the server restarted) is recognised by its socket: this takes two microseconds
and no round trip. It goes back to the pool, which drops it and connects anew in its own thread, and the call takes the
next one. So n broken connections cost n looks and one new connection. The pool's `check` callback would do the same,
but the pool sleeps for 0, 1, 2, 4 ... seconds between two broken connections.

While the server cannot be reached, the pool's pauses of 1, 2, 4 ... seconds would keep it away for longer than the
server is. So the pool is told not to try again. Its attempts try for RETRYING seconds themselves, with short pauses,
and the calls that wait ask again every ASKING seconds, which starts the next attempt.

After a call without an answer the idle connections of both pools are dropped (connections.py): they take the same way
through the network.
"""

from __future__ import annotations

import asyncio
import select
import time
from typing import Any, TypeVar, cast

import psycopg
from psycopg.rows import tuple_row
from psycopg_pool import AsyncConnectionPool, ConnectionPool, PoolClosed, PoolTimeout

from .._calls.call import Call
from ..errors import ClosedError, ServerError
from .bounded import BoundedAsyncConnection, BoundedConnection
from .core import Settings
from .door import opening
from .dsn import unreachable

T = TypeVar("T")
Row = tuple[Any, ...]

RETRYING = 0.5  # seconds for which an attempt of the pool tries to connect; the pool makes two of them
PAUSE = 0.05  # seconds between two tries
ASKING = 1.0  # seconds after which a waiting call asks the pool again: it loses its place in the queue


class OwnConn(BoundedConnection):
    """A connection of a pool."""

    kept: psycopg.Cursor[Row] | None = None
    ended = False  # the server has said why it ends the connection

    def run(self, call: Call[T]) -> T:
        cursor = self.kept = self.kept or psycopg.Cursor(self, row_factory=tuple_row)
        rows = cursor.execute(call.sql, call.args).fetchall()
        if len(rows) > 1:
            self.kept = None  # it would hold a copy of the rows until its next use
        return call.read(rows)


class OwnAsyncConn(BoundedAsyncConnection):
    """A connection of an awaiting client's pool."""

    kept: psycopg.AsyncCursor[Row] | None = None
    ended = False

    async def run(self, call: Call[T]) -> T:
        cursor = self.kept = self.kept or psycopg.AsyncCursor(self, row_factory=tuple_row)
        await cursor.execute(call.sql, call.args)
        rows = await cursor.fetchall()
        if len(rows) > 1:
            self.kept = None
        return call.read(rows)


C = TypeVar("C", OwnConn, OwnAsyncConn)


class _Attempts:
    """Connects for a pool, which calls it as it would a connection class, and keeps the reason of the last failure."""

    def __init__(self) -> None:
        self.failure: Exception | None = None
        self._end = 0.0

    def connect(self, conninfo: str, **options: Any) -> OwnConn:
        end = time.monotonic() + RETRYING
        while True:
            try:
                conn = OwnConn.connect(conninfo, **options)
            except psycopg.Error as error:
                self.failure = error
                if time.monotonic() > end:
                    raise
                time.sleep(PAUSE)
            else:
                self.failure = None
                return _watched(conn)


class _AsyncAttempts:
    """As _Attempts."""

    def __init__(self) -> None:
        self.failure: Exception | None = None

    async def connect(self, conninfo: str, **options: Any) -> OwnAsyncConn:
        end = time.monotonic() + RETRYING
        while True:
            try:
                conn = await OwnAsyncConn.connect(conninfo, **options)
            except psycopg.Error as error:
                self.failure = error
                if time.monotonic() > end:
                    raise
                await asyncio.sleep(PAUSE)
            else:
                self.failure = None
                return _watched(conn)


class _Times:
    """How long a call waits for a connection, and how long it may take with it, in seconds."""

    def __init__(self, settings: Settings) -> None:
        self.call = settings.call_timeout
        self.connect = settings.patience
        self.first = min(ASKING, self.connect)

    def ask(self, began: float, limit: float) -> float:
        """For how long to ask the pool once more; not positive when the time is over."""
        return min(ASKING, min(self.connect, limit) - (time.monotonic() - began))


class Pool(ConnectionPool[OwnConn]):
    """lend() instead of getconn()."""

    def __init__(self, settings: Settings, conninfo: str, relaxed: bool) -> None:
        self._times = _Times(settings)
        self._attempts = _Attempts()
        kind = cast("type[OwnConn]", self._attempts)
        super().__init__(connection_class=kind, open=True, **_arguments(settings, conninfo, relaxed))

    def lend(self, within: float | None) -> OwnConn:
        """A connection that is alive; `within`: seconds for the call, if that is less than call_timeout.

        Raises:
            ServerError: none could be had in time.
            ClosedError: the client is closed.
        """
        times, began = self._times, time.monotonic()
        limit = times.call if within is None or within > times.call else within
        left = times.first if times.first < limit else limit
        while left > 0:
            try:
                conn = self.getconn(left)
            except PoolClosed:
                raise ClosedError("the client is closed") from None
            except PoolTimeout:
                pass
            else:
                if _is_alive(conn):
                    conn.patience = limit - (time.monotonic() - began)
                    return conn
                conn.close()
                self.putconn(conn)
            left = times.ask(began, limit)
        raise _none_in_time(self, self._attempts.failure)


class AsyncPool(AsyncConnectionPool[OwnAsyncConn]):
    """As Pool."""

    def __init__(self, settings: Settings, conninfo: str, relaxed: bool) -> None:
        self._times = _Times(settings)
        self._attempts = _AsyncAttempts()
        kind = cast("type[OwnAsyncConn]", self._attempts)
        super().__init__(connection_class=kind, open=False, **_arguments(settings, conninfo, relaxed))

    async def lend(self, within: float | None) -> OwnAsyncConn:
        times, began = self._times, time.monotonic()
        limit = times.call if within is None or within > times.call else within
        left = times.first if times.first < limit else limit
        while left > 0:
            try:
                conn = await self.getconn(left)
            except PoolClosed:
                raise ClosedError("the client is closed") from None
            except PoolTimeout:
                pass
            else:
                if _is_alive(conn):
                    conn.patience = limit - (time.monotonic() - began)
                    return conn
                await conn.close()
                await self.putconn(conn)
            left = times.ask(began, limit)
        raise _none_in_time(self, self._attempts.failure)


def _arguments(settings: Settings, conninfo: str, relaxed: bool) -> dict[str, Any]:
    pooled = bool(settings.listen_dsn)  # then dsn leads through a pooler: no prepared statements
    return {
        "conninfo": opening(conninfo, pooled=pooled, relaxed=relaxed, lock_patience=settings.lock_patience),
        "kwargs": {"autocommit": True, "row_factory": tuple_row} | ({"prepare_threshold": None} if pooled else {}),
        "min_size": 0,
        "max_size": settings.pool_size,
        "num_workers": 1,
        "reconnect_timeout": 0.0,
        "name": "pgqueue-claims" if relaxed else "pgqueue",
    }


def _is_alive(conn: OwnConn | OwnAsyncConn) -> bool:
    """Whether an idle connection is alive. If the server ends it, its socket is readable.

    The server sends the reason first, and closes the socket some milliseconds later. Not everything that arrives is a
    reason: settings that were reloaded arrive too, and with TLS whatever the library at the other end has to say.
    """
    poll = select.poll()
    poll.register(conn.fileno(), select.POLLIN)
    try:
        while poll.poll(0):
            conn.pgconn.consume_input()  # raises at the end of the stream
            conn.pgconn.notifies()  # parses: libpq hands an error that no statement awaits to the notice handlers
    except psycopg.Error:
        return False
    return not conn.ended


def _watched(conn: C) -> C:
    """The connection, which notices by itself when the server says that it ends."""

    def noticed(notice: psycopg.errors.Diagnostic) -> None:
        conn.ended = conn.ended or notice.severity_nonlocalized in ("FATAL", "PANIC")

    conn.add_notice_handler(noticed)
    return conn


def _none_in_time(pool: Pool | AsyncPool, reason: Exception | None) -> ServerError:
    if reason is not None:
        return unreachable(str(pool.conninfo), reason)
    return ServerError(
        f"none of the {pool.max_size} connections of the client's pool was free in time:"
        " set a larger pool_size, or let fewer threads call at once"
    )
