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
import time
from typing import Any, cast

import psycopg
from psycopg.rows import tuple_row
from psycopg_pool import AsyncConnectionPool, ConnectionPool, PoolClosed, PoolTimeout

from ..errors import ClosedError, ServerError
from .core import Settings
from .door import opening
from .dsn import unreachable
from .front import Front
from .own import OwnAsyncConn, OwnConn, is_alive, ready

RETRYING = 0.5  # seconds for which an attempt of the pool tries to connect; the pool makes two of them
PAUSE = 0.05  # seconds between two tries
ASKING = 1.0  # seconds after which a waiting call asks the pool again: it loses its place in the queue


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
                return ready(conn)


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
                return ready(conn)


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
        self.front: Front[OwnConn] = Front()
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
                conn = self.front.take() or self._next(left)
            except PoolClosed:
                raise ClosedError("the client is closed") from None
            except PoolTimeout:
                pass
            else:
                if is_alive(conn):
                    conn.patience = limit - (time.monotonic() - began)
                    return conn
                conn.close()
                self.putconn(conn)
            left = times.ask(began, limit)
        raise _none_in_time(self, self._attempts.failure)

    def take_back(self, conn: OwnConn) -> None:
        """The end of a call: the connection is free."""
        if (one := self.front.keep(conn)) is not None:
            self.putconn(one)

    def _next(self, within: float) -> OwnConn:
        with self.front.waiting():
            return self.front.take() or self.front.begin(self.getconn(within))

    def drain(self) -> None:
        super().drain()
        for conn in self.front.drain():
            self.putconn(conn)

    def close(self, timeout: float = 5.0) -> None:
        super().close(timeout)
        for conn in self.front.close():
            self.putconn(conn)

    def _shrink_pool(self) -> None:
        for conn in self.front.shrink():
            self.putconn(conn)
        super()._shrink_pool()


class AsyncPool(AsyncConnectionPool[OwnAsyncConn]):
    """As Pool."""

    def __init__(self, settings: Settings, conninfo: str, relaxed: bool) -> None:
        self._times = _Times(settings)
        self._attempts = _AsyncAttempts()
        self.front: Front[OwnAsyncConn] = Front()
        kind = cast("type[OwnAsyncConn]", self._attempts)
        super().__init__(connection_class=kind, open=False, **_arguments(settings, conninfo, relaxed))

    async def lend(self, within: float | None) -> OwnAsyncConn:
        times, began = self._times, time.monotonic()
        limit = times.call if within is None or within > times.call else within
        left = times.first if times.first < limit else limit
        while left > 0:
            try:
                conn = self.front.take() or await self._next(left)
            except PoolClosed:
                raise ClosedError("the client is closed") from None
            except PoolTimeout:
                pass
            else:
                if is_alive(conn):
                    conn.patience = limit - (time.monotonic() - began)
                    return conn
                await conn.close()
                await self.putconn(conn)
            left = times.ask(began, limit)
        raise _none_in_time(self, self._attempts.failure)

    async def _next(self, within: float) -> OwnAsyncConn:
        with self.front.waiting():
            return self.front.take() or self.front.begin(await self.getconn(within))

    async def drain(self) -> None:
        await super().drain()
        for conn in self.front.drain():
            await self.putconn(conn)

    async def close(self, timeout: float = 5.0) -> None:
        await super().close(timeout)
        for conn in self.front.close():
            await self.putconn(conn)

    async def _shrink_pool(self) -> None:
        for conn in self.front.shrink():
            await self.putconn(conn)
        await super()._shrink_pool()


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


def _none_in_time(pool: Pool | AsyncPool, reason: Exception | None) -> ServerError:
    if reason is not None:
        return unreachable(str(pool.conninfo), reason)
    return ServerError(
        f"none of the {pool.max_size} connections of the client's pool was free in time:"
        " set a larger pool_size, or let fewer threads call at once"
    )
