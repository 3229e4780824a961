"""Calls on a connection that belongs to the caller: the kinds of connection, and how a call runs on each.

A call is one statement in the transaction that the connection is in. pgqueue does not begin, commit or roll back
anything. `with conn.transaction()` around the call would be wrong: Django's atomic() and SQLAlchemy's Session send
their BEGIN with their first statement. If the call is this first statement, the block would be the outermost one, and
its end would commit the task although the caller rolls back.

This module serves psycopg's connections. An adapter serves the connections of another library. It is loaded when the
first such connection arrives, so an application needs only the libraries that it uses. An adapter is a module with

    run(conn, call) -> the call's result                  for the blocking shell
    async run_async(conn, call) -> the call's result      for the awaiting one
    check(conn), check_async(conn) -> None                raise TypeError for a conn on which these cannot run a call

and raises its errors as sqlstates.translate maps them.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeAlias, TypeVar

import psycopg
from psycopg.rows import tuple_row

from .._calls.call import Call
from .._calls.sqlstates import translate
from ..errors import CallTimeout, NotRunning
from .bounded import Late
from .door import why_read_only

if TYPE_CHECKING:
    from sqlalchemy import Connection as AlchemyConnection
    from sqlalchemy.ext.asyncio import AsyncConnection as AsyncAlchemyConnection
    from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session
    from sqlalchemy.orm import Session, scoped_session

T = TypeVar("T")


class DjangoConnection(Protocol):
    """`django.db.connection`, or one of `django.db.connections`."""

    alias: str

    def ensure_connection(self) -> None: ...
    def cursor(self) -> Any: ...


Conn: TypeAlias = "psycopg.Connection[Any] | AlchemyConnection | Session | scoped_session[Any] | DjangoConnection"
AsyncConn: TypeAlias = (
    "psycopg.AsyncConnection[Any] | AsyncAlchemyConnection | AsyncSession | async_scoped_session[AsyncSession]"
)

#: The package of a connection's type, or of one of its bases, and the adapter for it.
ADAPTERS = {"sqlalchemy": "pgqueue.contrib.sqlalchemy", "django": "pgqueue.contrib.django.connections"}


def check(conn: Conn) -> None:
    """Raise TypeError if run() would do so for this conn."""
    if not isinstance(conn, psycopg.Connection):
        _adapter(conn, "psycopg.Connection").check(conn)


def check_async(conn: AsyncConn) -> None:
    """As check(), for run_async()."""
    if not isinstance(conn, psycopg.AsyncConnection):
        _adapter(conn, "psycopg.AsyncConnection").check_async(conn)


def run(conn: Conn, call: Call[T]) -> T:
    """Run a call on the caller's connection. Raises TypeError for an unknown kind of connection."""
    if not isinstance(conn, psycopg.Connection):
        adapter = _adapter(conn, "psycopg.Connection")
        adapter.check(conn)
        done: T = adapter.run(conn, call)
        return done
    # An explicit cursor class and row factory: the caller's connection may have others.
    with translated(conn), psycopg.Cursor(conn, row_factory=tuple_row) as cursor:
        return call.read(cursor.execute(call.sql, call.args).fetchall())


async def run_async(conn: AsyncConn, call: Call[T]) -> T:
    """As run(), for the awaiting shell."""
    if not isinstance(conn, psycopg.AsyncConnection):
        adapter = _adapter(conn, "psycopg.AsyncConnection")
        adapter.check_async(conn)
        done: T = await adapter.run_async(conn, call)
        return done
    with translated(conn):
        async with psycopg.AsyncCursor(conn, row_factory=tuple_row) as cursor:
            await cursor.execute(call.sql, call.args)
            return call.read(await cursor.fetchall())


def fail(conn: psycopg.Connection[Any] | psycopg.AsyncConnection[Any], error: psycopg.Error) -> NoReturn:
    """Raise the pgqueue error for the error's SQLSTATE, if there is one."""
    seen = CallTimeout(str(error)) if isinstance(error, Late) else translate(error, lost=conn.closed)
    if isinstance(seen, NotRunning):
        seen = why_read_only(conn) or seen
    if seen is error:
        raise error
    raise seen from error


@contextmanager
def translated(conn: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> Iterator[None]:
    try:
        yield
    except psycopg.Error as error:
        fail(conn, error)


def _adapter(conn: object, expected: str) -> Any:
    for kind in type(conn).__mro__:
        if name := ADAPTERS.get(kind.__module__.partition(".")[0]):
            return importlib.import_module(name)
    raise TypeError(f"conn must be a {expected}, or a connection of SQLAlchemy or Django, not {type(conn).__name__}")
