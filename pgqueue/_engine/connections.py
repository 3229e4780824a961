"""How a Call runs on a connection: the pools of a client, blocking and awaiting.

A client has two pools, each made at its first use. Puts and acks keep the server's durability. Claims and releases run
with synchronous_commit off. If a crash loses one of them, a task is delivered again; in exchange a take with its ack
needs one flush instead of two. The SQL functions cannot have this setting, since it would remove the durability of the
caller's whole transaction. Behind a transaction pooler it is not possible either, since the setting would stay with a
server connection that other clients use next.

A pool's connection keeps its cursor. A new cursor looks up again how to send and read every type, which costs a take
and ack a tenth of its time.

A connection that broke while it idled in the pool (the server restarted) is recognised by its socket and replaced; the
check takes two microseconds and no round trip. A connection that breaks during a call raises ConnectionLost.
"""

from __future__ import annotations

import asyncio
import select
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import tuple_row
from psycopg_pool import AsyncConnectionPool, ConnectionPool, PoolTimeout

from .._calls.call import Call
from . import forks
from .borrowed import fail, translated
from .core import Core
from .dsn import unreachable

T = TypeVar("T")
Conn = psycopg.Connection[Any]
AsyncConn = psycopg.AsyncConnection[Any]
Row = tuple[Any, ...]


# Overrides the role's default: a claim has to see the takes that were committed while it ran (sql/3_tasks/take.sql).
READ_COMMITTED = r"-c default_transaction_isolation=read\ committed"
RELAXED = "-c synchronous_commit=off"
AHEAD = 16  # calls that run_all sends before it reads the answer to the first: each holds its text until then


def _pool_arguments(core: Core, conninfo: str, relaxed: bool) -> dict[str, Any]:
    settings = core.settings
    given = conninfo_to_dict(conninfo)
    known: dict[str, Any] = {"application_name": given.get("application_name") or "pgqueue"}
    if not settings.listen_dsn:  # a pooler accepts no options
        chosen = [str(given.get("options") or ""), READ_COMMITTED, RELAXED if relaxed else ""]
        known["options"] = " ".join(filter(None, chosen))
    kwargs: dict[str, Any] = {"autocommit": True, "row_factory": tuple_row}
    if settings.listen_dsn:  # then dsn leads through a pooler
        kwargs["prepare_threshold"] = None
    return {
        "conninfo": make_conninfo(conninfo, **known),
        "kwargs": kwargs,
        "min_size": 0,
        "max_size": settings.pool_size,
        "num_workers": 1,
        "timeout": settings.connect_timeout,
        # The pool doubles its pauses while the server is away. Without a limit it would stay away twice as long.
        "reconnect_timeout": settings.connect_timeout,
        "name": "pgqueue-claims" if relaxed else "pgqueue",
    }


class _OwnConn(psycopg.Connection[Row]):
    """A connection of a pool."""

    kept: psycopg.Cursor[Row] | None = None

    def run(self, call: Call[T]) -> T:
        cursor = self.kept = self.kept or psycopg.Cursor(self, row_factory=tuple_row)
        rows = cursor.execute(call.sql, call.args).fetchall()
        if len(rows) > 1:
            self.kept = None  # it would hold a copy of the rows until its next use
        return call.read(rows)


class _OwnAsyncConn(psycopg.AsyncConnection[Row]):
    """A connection of an awaiting client's pool."""

    kept: psycopg.AsyncCursor[Row] | None = None

    async def run(self, call: Call[T]) -> T:
        cursor = self.kept = self.kept or psycopg.AsyncCursor(self, row_factory=tuple_row)
        await cursor.execute(call.sql, call.args)
        rows = await cursor.fetchall()
        if len(rows) > 1:
            self.kept = None
        return call.read(rows)


def _usable(conn: Conn | AsyncConn) -> None:
    """Raise if the server has closed an idle connection: then its socket is readable."""
    poll = select.poll()
    poll.register(conn.fileno(), select.POLLIN)
    while poll.poll(0):
        conn.pgconn.consume_input()  # raises at the end of the stream, after a message with the reason


async def _usable_async(conn: AsyncConn) -> None:
    _usable(conn)


class Connections:
    """The pools of a blocking client. Thread-safe."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._lock = threading.Lock()
        self._pools: dict[bool, ConnectionPool[_OwnConn]] = {}
        forks.register(self)

    def run(self, call: Call[T], *, relaxed: bool = False) -> T:
        """Run a call on a pool's connection. Written out: two context managers would cost a put 5 % of its time."""
        pool, conn = self._get(relaxed)
        try:
            return conn.run(call)
        except psycopg.Error as error:
            fail(conn, error)
        finally:
            pool.putconn(conn)

    def run_all(self, calls: Iterable[Call[T]]) -> list[T]:
        """Run calls in one transaction. The next call is made while the server works on the last AHEAD calls."""
        results: list[T] = []
        sent: deque[tuple[Call[T], psycopg.Cursor[Row]]] = deque()
        with self._connection(False) as conn, translated(conn), conn.pipeline(), conn.transaction():
            for call in calls:
                sent.append((call, conn.execute(call.sql, call.args)))
                if len(sent) > AHEAD:
                    earliest, cursor = sent.popleft()
                    results.append(earliest.read(cursor.fetchall()))
            results.extend(call.read(cursor.fetchall()) for call, cursor in sent)
        return results

    @contextmanager
    def _connection(self, relaxed: bool) -> Iterator[_OwnConn]:
        pool, conn = self._get(relaxed)
        try:
            yield conn
        finally:
            pool.putconn(conn)

    def _get(self, relaxed: bool) -> tuple[ConnectionPool[_OwnConn], _OwnConn]:
        pool = self._pools.get(relaxed) or self._open(relaxed)
        try:
            return pool, pool.getconn()
        except PoolTimeout as error:
            raise unreachable(self._core.conninfo(), error) from None

    def _open(self, relaxed: bool) -> ConnectionPool[_OwnConn]:
        conninfo = self._core.conninfo()
        with self._lock:
            if relaxed not in self._pools:
                arguments = _pool_arguments(self._core, conninfo, relaxed and not self._core.settings.listen_dsn)
                self._pools[relaxed] = ConnectionPool(connection_class=_OwnConn, **arguments, check=_usable, open=True)
            return self._pools[relaxed]

    def close(self) -> None:
        with self._lock:
            pools, self._pools = self._pools, {}
        for pool in pools.values():
            pool.close()

    def after_fork(self) -> None:
        self._lock = threading.Lock()
        _leave(self._pools)
        self._pools = {}


class AsyncConnections:
    """The pools of an awaiting client. They belong to the running event loop; another loop gets new pools."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._lock = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pools: dict[bool, AsyncConnectionPool[_OwnAsyncConn]] = {}
        forks.register(self)

    async def run(self, call: Call[T], *, relaxed: bool = False) -> T:
        async with self._connection(relaxed) as conn:
            with translated(conn):
                return await conn.run(call)

    async def run_all(self, calls: Iterable[Call[T]]) -> list[T]:
        results: list[T] = []
        sent: deque[tuple[Call[T], psycopg.AsyncCursor[Row]]] = deque()
        async with self._connection(False) as conn:
            with translated(conn):
                async with conn.pipeline(), conn.transaction():
                    for call in calls:
                        sent.append((call, await conn.execute(call.sql, call.args)))
                        if len(sent) > AHEAD:
                            earliest, cursor = sent.popleft()
                            results.append(earliest.read(await cursor.fetchall()))
                    results.extend([call.read(await cursor.fetchall()) for call, cursor in sent])
        return results

    @asynccontextmanager
    async def _connection(self, relaxed: bool) -> AsyncIterator[_OwnAsyncConn]:
        if self._loop is not asyncio.get_running_loop():
            self._loop, self._lock, self._pools = asyncio.get_running_loop(), asyncio.Lock(), {}
        pool = self._pools.get(relaxed) or await self._open(relaxed)
        try:
            conn = await pool.getconn()
        except PoolTimeout as error:
            raise unreachable(self._core.conninfo(), error) from None
        try:
            yield conn
        finally:
            await asyncio.shield(pool.putconn(conn))

    async def _open(self, relaxed: bool) -> AsyncConnectionPool[_OwnAsyncConn]:
        conninfo = await asyncio.to_thread(self._core.conninfo)
        async with self._lock:
            if relaxed not in self._pools:
                arguments = _pool_arguments(self._core, conninfo, relaxed and not self._core.settings.listen_dsn)
                pool = AsyncConnectionPool(connection_class=_OwnAsyncConn, **arguments, check=_usable_async, open=False)
                await pool.open()
                self._pools[relaxed] = pool
            return self._pools[relaxed]

    async def close(self) -> None:
        pools, self._pools = self._pools, {}
        for pool in pools.values():
            await pool.close()

    def after_fork(self) -> None:
        self._lock = asyncio.Lock()
        _leave(self._pools)
        self._pools = {}


def _leave(pools: dict[bool, Any]) -> None:
    """In a forked child: let go of the parent's pools and of the connections that idled in them."""
    for pool in pools.values():
        forks.bury(pool)
        for conn in pool._pool:
            forks.detach(conn)
