"""The connections of a client's pools, and how a call runs on one.

A call is passed to libpq directly (statements.py). psycopg's cursor would cost as much again as libpq: it parses the
statement, looks up how to send each value, and waits by a generator. Here a call whose whole answer arrives soon and at
once costs one poll of the socket. Otherwise the rest of the answer is awaited as for psycopg's own statements
(bounded.py), so a deadline or an interrupt ends both in the same way.

A call with a value that is not plain text, for example a datetime, is passed to psycopg's cursor.
"""

from __future__ import annotations

import asyncio
import select
from time import monotonic
from typing import Any, TypeVar

import psycopg
from psycopg.pq.abc import PGresult
from psycopg.rows import tuple_row

from .._calls.call import Call
from .._values.parameters import Text, Unusual, as_text
from .bounded import INTERRUPTS, INTERVAL, BoundedAsyncConnection, BoundedConnection
from .statements import STALE, Statements, check

T = TypeVar("T")


class OwnConn(BoundedConnection):
    """A connection of a pool. ready() makes it one."""

    ended = False  # the server has said why it ends the connection
    statements: Statements
    socket: select.poll
    keeping: object = None  # see front.py
    kept_until = 0.0

    def run(self, call: Call[T]) -> T:
        try:
            values = as_text(call.args)
        except Unusual:
            with psycopg.Cursor(self, row_factory=tuple_row) as cursor:
                return call.read(cursor.execute(call.sql, call.args).fetchall())
        sql, statements, end = call.sql, self.statements, monotonic() + self.patience
        if statements.is_due(sql):
            self.wait_until(end, statements.prepare(sql))
        try:
            results = self._ask(sql, values, end)
        except STALE as error:
            if not statements.forget(error):
                raise
            results = self._ask(sql, values, end)
        return call.read(statements.rows(results))

    def _ask(self, sql: str, values: list[Text], end: float) -> list[PGresult]:
        statements, results = self.statements, list[PGresult]()
        try:
            statements.send(sql, values)
            if self.pgconn.flush() == 0 and self.socket.poll(100) and statements.received(results):
                check(results)
                return results
        except INTERRUPTS:
            self.interrupted(statements.rest(results))
            raise
        return self.wait_until(end, statements.rest(results))


class OwnAsyncConn(BoundedAsyncConnection):
    """As OwnConn, of an awaiting client."""

    ended = False
    statements: Statements
    socket: select.poll
    keeping: object = None
    kept_until = 0.0

    async def run(self, call: Call[T]) -> T:
        try:
            values = as_text(call.args)
        except Unusual:
            async with psycopg.AsyncCursor(self, row_factory=tuple_row) as cursor:
                await cursor.execute(call.sql, call.args)
                return call.read(await cursor.fetchall())
        sql, statements, end = call.sql, self.statements, monotonic() + self.patience
        if statements.is_due(sql):
            await self.wait_until(end, statements.prepare(sql))
        try:
            results = await self._ask(sql, values, end)
        except STALE as error:
            if not statements.forget(error):
                raise
            results = await self._ask(sql, values, end)
        return call.read(statements.rows(results))

    async def _ask(self, sql: str, values: list[Text], end: float) -> list[PGresult]:
        statements, results = self.statements, list[PGresult]()
        try:
            statements.send(sql, values)
            if self.pgconn.flush() == 0 and await self._arrival() and statements.received(results):
                check(results)
                return results
        except INTERRUPTS:
            await self.interrupted(statements.rest(results))
            raise
        return await self.wait_until(end, statements.rest(results))

    async def _arrival(self) -> bool:
        """Wait until something arrives, for INTERVAL at most. Returns whether something did."""
        loop, socket = asyncio.get_running_loop(), self.pgconn.socket
        arrived: asyncio.Future[bool] = loop.create_future()
        loop.add_reader(socket, _answer, arrived, True)
        timer = loop.call_later(INTERVAL, _answer, arrived, False)
        try:
            return await arrived
        finally:
            timer.cancel()
            loop.remove_reader(socket)


C = TypeVar("C", OwnConn, OwnAsyncConn)


def ready(conn: C) -> C:
    """The connection, ready to run calls, and to notice when the server says that it ends."""

    def noticed(notice: psycopg.errors.Diagnostic) -> None:
        conn.ended = conn.ended or notice.severity_nonlocalized in ("FATAL", "PANIC")

    conn.add_notice_handler(noticed)
    conn.statements = Statements(conn, prepares=conn.prepare_threshold is not None)
    conn.socket = select.poll()
    conn.socket.register(conn.fileno(), select.POLLIN)
    return conn


def is_alive(conn: OwnConn | OwnAsyncConn) -> bool:
    """Whether an idle connection is alive. If the server ends it, its socket is readable.

    The server sends the reason first, and closes the socket some milliseconds later. Not everything that arrives is a
    reason: settings that were reloaded arrive too, and with TLS any record of the library at the other end.
    """
    try:
        while conn.socket.poll(0):
            conn.pgconn.consume_input()  # raises at the end of the stream
            conn.pgconn.notifies()  # parses: libpq hands an error that no statement awaits to the notice handlers
    except psycopg.Error:
        return False
    return not conn.ended


def _answer(future: asyncio.Future[Any], value: bool) -> None:
    if not future.done():
        future.set_result(value)
