"""A client's pools of connections, blocking and awaiting, which lend a connection within a time.

A connection that broke while it idled (the server restarted) is recognised by its socket: this takes two microseconds
and no round trip. It is returned to the pool, which drops it and opens a new one in its own thread, and the call takes
the next one. So n broken connections cost n looks and one new connection. The pool's `check` callback would do the
same, but the pool sleeps for 0, 1, 2, 4 ... seconds between two broken connections.

While the server cannot be reached, the pool's pauses of 1, 2, 4 ... seconds would outlast the outage. So the pool is
told not to try again. Its attempts try for a while themselves (attempts.py), and the calls that wait ask again every
ASKING seconds, which starts the next attempt. The pool's own log lines of each attempt are dropped: the outage is
logged once.

At a limit of connections a pool gives way to other parts of its client (scarcity.py), and the pool for claims sends
its calls to the other pool (Elsewhere).

After a call without an answer the idle connections of both pools are dropped (connections.py): they take the same way
through the network.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, cast
from weakref import WeakMethod

from psycopg.rows import tuple_row
from psycopg_pool import AsyncConnectionPool, ConnectionPool, PoolClosed, PoolTimeout

from ..errors import ClosedError, ServerError
from .attempts import AsyncAttempts, Attempts, BlockingAttempts
from .core import Settings
from .door import opening
from .dsn import unreachable
from .front import Front
from .lending import Lending
from .outages import Outage
from .own import OwnAsyncConn, OwnConn, is_alive
from .scarcity import Scarcity
from .shielded import shielded

ASKING = 1.0  # seconds after which a waiting call asks the pool again: it loses its place in the queue


NAMES = {False: "pgqueue", True: "pgqueue-claims"}  # of pools, for plain calls and for relaxed ones


def _is_others(record: logging.LogRecord) -> bool:
    """Whether a record of the pool's logger is about a pool that is not ours."""
    about = record.args[0] if isinstance(record.args, tuple) and record.args else None
    return not (about in NAMES.values() if isinstance(about, str) else isinstance(about, OwnConn | OwnAsyncConn))


logging.getLogger("psycopg.pool").addFilter(_is_others)


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

    def __init__(self, settings: Settings, conninfo: str, relaxed: bool, outage: Outage, scarcity: Scarcity) -> None:
        self._times = _Times(settings)
        self._attempts = BlockingAttempts(relaxed, outage, scarcity)
        self.front: Front[OwnConn] = Front()
        kind = cast("type[OwnConn]", self._attempts)
        super().__init__(
            connection_class=kind, open=True, configure=_read_dates, **_arguments(settings, conninfo, relaxed)
        )
        self._attempts.give_way = _weakly(self.give_way)

    def __del__(self) -> None:
        """End the threads of a pool that was not closed.

        Not at the end of the interpreter: its threads do not run any more, and from Python 3.13 on psycopg's join of
        each would wait for five seconds.
        """
        if not sys.is_finalizing():
            super().__del__()

    def lend(self, lending: Lending, within: float | None) -> OwnConn:
        """A connection that is alive, also put into `lending`; `within`: seconds for the call, if less than
        call_timeout.

        The connection in `lending` belongs to the caller, also after an error or an interrupt.

        Raises:
            ServerError: none could be had in time.
            ClosedError: the client is closed.
            Elsewhere: it is for another pool.
        """
        times, began, lent = self._times, time.monotonic(), lending.lent
        limit = times.call if within is None or within > times.call else within
        left = times.first if times.first < limit else limit
        while left > 0:
            if (conn := self.front.take()) is not None:
                lent += (conn,)
            try:
                if conn is None:
                    shielded(partial(self._ask, lending, left))
                    conn = lent[0]
            except PoolClosed:
                raise ClosedError("the client is closed") from None
            except PoolTimeout:
                if self._attempts.gives_up():
                    break
            else:
                if is_alive(conn):
                    conn.patience = limit - (time.monotonic() - began)
                    return conn
                conn.close()
                self.hand_back(lending)
            left = times.ask(began, limit)
        raise _none_in_time(self, self._attempts)

    def hand_back(self, lending: Lending) -> None:
        """Give the pool the connection that was lent, or one for which it waits."""
        shielded(partial(self._hand_back, lending))

    def _hand_back(self, lending: Lending) -> None:
        lent = lending.lent
        self.front.call_in(lent)
        with contextlib.suppress(IndexError):  # of the end, or since another thread does the same, after an interrupt
            while True:
                conn = lent.pop()
                if not lending.fit:
                    conn.pgconn.finish()
                self.putconn(conn)
                lending.home.drop_if_silent(conn)

    def _ask(self, lending: Lending, within: float) -> None:
        """Put a connection of the pool into `lending`. The call may be over when there is one."""
        lending.home.duties.settle(lending)  # interrupted calls may have connections
        within, lent = self._attempts.asking(within), lending.lent
        with self.front.waiting():
            lent += (self.front.take() or self.front.begin(self.getconn(within)),)
        if lending.over:
            lending.give_back()

    def putconn(self, conn: OwnConn) -> None:
        if self._attempts.has_surplus() and not conn.closed:
            with self._lock:
                self._nconns -= 1
            self._close_connection(conn)
        else:
            super().putconn(conn)

    def give_way(self) -> None:
        """Close connections that another part of the client needs more; those in use after it, in putconn()."""
        for conn in self.front.drain():
            self.putconn(conn)
        while self._attempts.has_surplus():
            with self._lock:
                if not self._pool:
                    break
                conn = self._pool.popleft()
                self._nconns -= 1
            self._close_connection(conn)

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

    def __init__(self, settings: Settings, conninfo: str, relaxed: bool, outage: Outage, scarcity: Scarcity) -> None:
        self._times = _Times(settings)
        self._attempts = AsyncAttempts(relaxed, outage, scarcity)
        self._returning: set[asyncio.Task[None]] = set()  # the loop itself keeps no task alive
        self.front: Front[OwnAsyncConn] = Front()
        kind = cast("type[OwnAsyncConn]", self._attempts)
        super().__init__(
            connection_class=kind, open=False, configure=_read_dates_async, **_arguments(settings, conninfo, relaxed)
        )
        self._loop = asyncio.get_running_loop()
        self._attempts.give_way = _weakly(self._give_way_soon)

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
                if self._attempts.gives_up():
                    break
            else:
                if is_alive(conn):
                    conn.patience = limit - (time.monotonic() - began)
                    return conn
                await asyncio.shield(self._drop(conn))
            left = times.ask(began, limit)
        raise _none_in_time(self, self._attempts)

    async def _next(self, within: float) -> OwnAsyncConn:
        within = self._attempts.asking(within)
        with self.front.waiting():
            return self.front.take() or self.front.begin(await self._getconn(within))

    async def _getconn(self, within: float) -> OwnAsyncConn:
        """getconn() in a task of its own, which a cancellation of the caller does not reach.

        In the caller's task, a cancellation that arrives just after the pool has given it a connection loses the
        connection, and the place in the pool. Here it is returned as soon as the task has it.
        """
        asking = asyncio.create_task(self.getconn(within))
        try:
            return await asyncio.shield(asking)
        except asyncio.CancelledError:
            self._keep(asyncio.create_task(self._unasked(asking)))
            raise

    async def _unasked(self, asking: asyncio.Task[OwnAsyncConn]) -> None:
        with contextlib.suppress(PoolTimeout, PoolClosed, asyncio.CancelledError):
            await self.putconn(await asking)

    async def _drop(self, conn: OwnAsyncConn) -> None:
        await conn.close()
        await self.putconn(conn)

    async def putconn(self, conn: OwnAsyncConn) -> None:
        if self._attempts.has_surplus() and not conn.closed:
            async with self._lock:
                self._nconns -= 1
            await self._close_connection(conn)
        else:
            await super().putconn(conn)

    async def give_way(self) -> None:
        for conn in self.front.drain():
            await self.putconn(conn)
        while self._attempts.has_surplus():
            async with self._lock:
                if not self._pool:
                    break
                conn = self._pool.popleft()
                self._nconns -= 1
            await self._close_connection(conn)

    def _give_way_soon(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(lambda: self._keep(self._loop.create_task(self.give_way())))

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._returning.add(task)
        task.add_done_callback(self._returning.discard)

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


def _weakly(method: Callable[[], None]) -> Callable[[], None]:
    """The method of a pool, which this does not keep alive."""
    reference = WeakMethod(method)

    def call() -> None:
        if (bound := reference()) is not None:
            bound()

    return call


# psycopg reads times in ISO style only. The server reports its style when a connection starts: where a role or a
# database has another one, each connection costs one statement more.
ISO = "SET DateStyle = 'ISO'"


def _is_iso(conn: OwnConn | OwnAsyncConn) -> bool:
    return (conn.info.parameter_status("DateStyle") or "ISO").startswith("ISO")


def _read_dates(conn: OwnConn) -> None:
    if not _is_iso(conn):
        conn.execute(ISO)


async def _read_dates_async(conn: OwnAsyncConn) -> None:
    if not _is_iso(conn):
        await conn.execute(ISO)


def _arguments(settings: Settings, conninfo: str, relaxed: bool) -> dict[str, Any]:
    pooled = bool(settings.listen_dsn)  # then dsn leads through a pooler: no prepared statements
    return {
        "conninfo": opening(conninfo, pooled=pooled, relaxed=relaxed, lock_patience=settings.lock_patience),
        "kwargs": {"autocommit": True, "row_factory": tuple_row} | ({"prepare_threshold": None} if pooled else {}),
        "min_size": 0,
        "max_size": settings.pool_size,
        "num_workers": 1,
        "reconnect_timeout": 0.0,
        "name": NAMES[relaxed],
    }


def _none_in_time(pool: Pool | AsyncPool, attempts: Attempts[Any]) -> ServerError:
    if attempts.failure is not None:
        return unreachable(str(pool.conninfo), attempts.failure)
    if not attempts.held():
        reason = "no connection was made in the time that connect_timeout and call_timeout allow"
        return unreachable(str(pool.conninfo), reason)
    return ServerError(
        f"none of the {pool.max_size} connections of the client's pool was free in time:"
        " set a larger pool_size, or let fewer threads call at once"
    )
