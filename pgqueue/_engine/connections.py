"""How a Call runs on a connection: the pools of a client, blocking and awaiting.

A client has two pools, each made at its first use. Puts and acks keep the server's durability. Claims and releases run
with synchronous_commit off. If a crash loses one of them, a task is delivered again; in exchange a take with its ack
needs one flush instead of two. The SQL functions cannot have this setting, since it would remove the durability of the
caller's whole transaction. Behind a transaction pooler it is not possible either, since the setting would stay with a
server connection that other clients use next.

At a limit of connections claims run in the pool for puts, and pay a flush (scarcity.py).

A call ends within the client's call_timeout, the wait for a connection included. A connection that breaks during a call
raises ConnectionLost, and an answer that is not in time CallTimeout (bounded.py).
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import deque
from collections.abc import Iterable
from functools import partial
from sys import _getframe
from threading import get_ident
from typing import Any, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from .._calls.call import Call
from . import forks
from .attempts import Elsewhere
from .borrowed import fail, translated
from .core import Core
from .lending import Lending
from .own import OwnAsyncConn, OwnConn
from .pools import AsyncPool, Pool
from .shielded import shielded

T = TypeVar("T")
Row = tuple[Any, ...]

# Not conn.transaction(): it counts transactions, and an interrupt in it can leave a wrong count, at which the next
# transaction of the connection fails, and raise an error of psycopg in place of KeyboardInterrupt.
BEGIN, COMMIT, ROLLBACK = "BEGIN", "COMMIT", "ROLLBACK"
ENDED_BY_ROLLBACK = (TransactionStatus.INTRANS, TransactionStatus.INERROR)
AHEAD = 16  # calls that run_all sends before it reads the answer to the first: each holds its text until then
LONG = 40  # times call_timeout: for the calls that change all tasks of a queue


class Connections:
    """The pools of a blocking client. Thread-safe."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.duties = core.duties
        self._lock = threading.Lock()
        self._pools: dict[bool, Pool] = {}
        forks.register(self)

    def run(self, call: Call[T], *, relaxed: bool = False, within: float | None = None) -> T:
        """Run a call on a pool's connection; `within`: seconds, if that is less than call_timeout.

        Written out: two context managers would cost a put 5 % of its time.
        """
        pool = self._pools.get(relaxed) or self._open(relaxed)
        duties, conn = self.duties, None
        lending = Lending(self, pool)
        if get_ident() == duties.main:
            duties.open[lending] = _getframe()
        try:
            try:
                conn = pool.lend(lending, within)
            except Elsewhere:
                lending.pool = pool = self._pools.get(False) or self._open(False)
                conn = pool.lend(lending, within)
            if call.long:
                conn.patience = LONG * self._core.settings.call_timeout
            try:
                return conn.run(call)
            except psycopg.Error as error:
                fail(conn, error)
        finally:
            if conn is not None:
                lending.keep()
            else:
                lending.give_back()
            if lending in duties.open:
                del duties.open[lending]

    def run_all(self, calls: Iterable[Call[T]], ahead: int = AHEAD) -> list[T]:
        """Run calls in one transaction. The next call is made while the server works on the last `ahead` calls.

        With 0 a call is made when the answer to the one before it is there. call_timeout is the time for one answer.
        """
        results: list[T] = []
        before = sys.exception()
        sent: deque[tuple[Call[T], psycopg.Cursor[Row]]] = deque()
        pool, duties = self._pools.get(False) or self._open(False), self.duties
        lending = Lending(self, pool)
        if get_ident() == duties.main:
            duties.open[lending] = _getframe()
        try:
            conn = pool.lend(lending, None)
            conn.patience = self._core.settings.call_timeout
            lending.fit = False
            with translated(conn):
                try:
                    with conn.pipeline():
                        conn.execute(BEGIN)
                        for call in calls:
                            sent.append((call, conn.execute(call.sql, call.args)))
                            if len(sent) > ahead:
                                earliest, cursor = sent.popleft()
                                results.append(earliest.read(cursor.fetchall()))
                        results.extend(call.read(cursor.fetchall()) for call, cursor in sent)
                        conn.execute(COMMIT)
                except Exception as error:
                    _raise_interrupt(error, before)
                    if conn.pgconn.transaction_status in ENDED_BY_ROLLBACK:
                        conn.execute(ROLLBACK)
                    lending.fit = True
                    raise
            lending.fit = True
            lending.keep()
        finally:
            lending.give_back()
            if lending in duties.open:
                del duties.open[lending]
        return results

    def drop_if_silent(self, conn: OwnConn) -> None:
        if conn.silent:
            for any_pool in list(self._pools.values()):
                any_pool.drain()

    def _open(self, relaxed: bool) -> Pool:
        return shielded(partial(self._make, relaxed))

    def _make(self, relaxed: bool) -> Pool:
        conninfo = self._core.conninfo()
        with self._lock:
            if relaxed not in self._pools:
                self._pools[relaxed] = Pool(
                    self._core.settings, conninfo, relaxed, self._core.outage, self._core.scarcity
                )
            return self._pools[relaxed]

    def close(self) -> None:
        shielded(self._close)

    def _close(self) -> None:
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
        self.duties = core.duties
        self._lock = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pools: dict[bool, AsyncPool] = {}
        forks.register(self)

    async def run(self, call: Call[T], *, relaxed: bool = False, within: float | None = None) -> T:
        pool = self._pool(relaxed) or await self._open(relaxed)
        try:
            conn = await pool.lend(within)
        except Elsewhere:
            pool = self._pool(False) or await self._open(False)
            conn = await pool.lend(within)
        lent = [conn]
        try:
            if call.long:
                conn.patience = LONG * self._core.settings.call_timeout
            return await conn.run(call)
        except psycopg.Error as error:
            fail(conn, error)
        finally:
            pool.front.keep(lent)
            if lent:
                await asyncio.shield(self._hand_back(pool, lent[0]))

    async def run_all(self, calls: Iterable[Call[T]], ahead: int = AHEAD) -> list[T]:
        results: list[T] = []
        before = sys.exception()
        sent: deque[tuple[Call[T], psycopg.AsyncCursor[Row]]] = deque()
        pool = self._pool(False) or await self._open(False)
        lent = [conn := await pool.lend(None)]
        conn.patience = self._core.settings.call_timeout
        fit = False  # as in lending.py
        try:
            with translated(conn):
                try:
                    async with conn.pipeline():
                        await conn.execute(BEGIN)
                        for call in calls:
                            sent.append((call, await conn.execute(call.sql, call.args)))
                            if len(sent) > ahead:
                                earliest, cursor = sent.popleft()
                                results.append(earliest.read(await cursor.fetchall()))
                        results.extend([call.read(await cursor.fetchall()) for call, cursor in sent])
                        await conn.execute(COMMIT)
                except Exception as error:
                    _raise_interrupt(error, before)
                    if conn.pgconn.transaction_status in ENDED_BY_ROLLBACK:
                        await conn.execute(ROLLBACK)
                    fit = True
                    raise
            fit = True
        finally:
            if not fit:
                conn.pgconn.finish()
            pool.front.keep(lent)
            if lent:
                await asyncio.shield(self._hand_back(pool, lent[0]))
        return results

    async def _hand_back(self, pool: AsyncPool, conn: OwnAsyncConn) -> None:
        await pool.putconn(conn)
        if conn.silent:
            for any_pool in list(self._pools.values()):
                await any_pool.drain()

    def _pool(self, relaxed: bool) -> AsyncPool | None:
        if self._loop is not asyncio.get_running_loop():
            self._loop, self._lock, self._pools = asyncio.get_running_loop(), asyncio.Lock(), {}
        return self._pools.get(relaxed)

    async def _open(self, relaxed: bool) -> AsyncPool:
        conninfo = await asyncio.to_thread(self._core.conninfo)
        async with self._lock:
            if relaxed not in self._pools:
                pool = AsyncPool(self._core.settings, conninfo, relaxed, self._core.outage, self._core.scarcity)
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


def _raise_interrupt(error: BaseException, before: BaseException | None) -> None:
    """Raise the interrupt in whose place psycopg's pipeline has raised an error of its own.

    Args:
        before: the exception that the caller was handling, at which the search ends.
    """
    context = error.__context__
    while context is not None and context is not before:
        if not isinstance(context, Exception):
            raise context.with_traceback(None) from None
        context = context.__context__


def _leave(pools: dict[bool, Any]) -> None:
    """In a forked child: let go of the parent's pools. Their connections are detached (forks.py)."""
    for pool in pools.values():
        forks.bury(pool)
