"""put(conn=...) and other calls on SQLAlchemy's sessions and connections, with psycopg, psycopg2 and asyncpg.

The session or connection itself executes a call, so its events, echo, autobegin and savepoints treat the call as one of
the caller's statements. The driver's connection would be faster, but wrong: SQLAlchemy sends BEGIN to asyncpg with its
own first statement, so a call that bypassed it before that would be committed at once.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import URL, Connection, TextClause, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, scoped_session

from .._calls.call import Call
from .._calls.sqlstates import known
from .._engine.dsn import resolve

T = TypeVar("T")

#: The rows of a call are few, and its effect must not wait until a program fetches them.
OPTIONS = {"stream_results": False}


def url(dsn: str | None = None, *, driver: str = "psycopg") -> URL:
    """A PostgreSQL DSN in SQLAlchemy's form, for an engine on the database that pgqueue uses.

    Args:
        dsn: a URI or conninfo string; default, as for a Client, PGQUEUE_DSN, DATABASE_URL or the embedded server.
        driver: psycopg, psycopg2 or asyncpg. asyncpg's connect() refuses parameters that it does not know, such as
            sslmode.

    Raises:
        ServerError: the DSN is not valid, or the embedded server cannot be started.
    """
    words = {name: str(value) for name, value in conninfo_to_dict(resolve(dsn)).items() if value not in (None, "")}
    user, password, database = (words.pop(name, None) for name in ("user", "password", "dbname"))
    # The host stays in the query, with its port: it may be the directory of a socket.
    return URL.create(f"postgresql+{driver}", user, password, database=database, query=words)


def run(conn: Any, call: Call[T]) -> T:
    """Run a call in the transaction that a Session, scoped_session or Connection is in."""
    with _translated():
        result = conn.execute(_statement(call.sql), _arguments(call), execution_options=OPTIONS)
        rows = [tuple(row) for row in result.fetchall()]
    return call.read(rows)


async def run_async(conn: Any, call: Call[T]) -> T:
    """As run(), for an AsyncSession, async_scoped_session or AsyncConnection."""
    with _translated():
        result = await conn.execute(_statement(call.sql), _arguments(call), execution_options=OPTIONS)
        rows = [tuple(row) for row in result.fetchall()]
    return call.read(rows)


def check(conn: Any) -> None:
    """Raise TypeError if conn is not for run(). Sends nothing."""
    if not isinstance(conn, (Session, scoped_session, Connection)):
        _refuse(conn)
        raise TypeError(f"conn must be a Session or Connection, not {type(conn).__name__}, which needs an AsyncClient")
    _insist_on_postgresql(conn)


def check_async(conn: Any) -> None:
    """Raise TypeError if conn is not for run_async(). Sends nothing."""
    if isinstance(conn, (Session, scoped_session, Connection)):
        raise TypeError(
            f"conn must be an AsyncSession or AsyncConnection, not {type(conn).__name__}, which needs a Client"
        )
    _refuse(conn)
    _insist_on_postgresql(conn)


def _refuse(conn: Any) -> None:
    """Raise TypeError for a SQLAlchemy object that is neither a session nor a connection, for example an engine."""
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session  # needs greenlet

    if not isinstance(conn, (AsyncSession, async_scoped_session, AsyncConnection)):
        raise TypeError(f"conn must be a session or a connection of SQLAlchemy, not {type(conn).__name__}")


def _insist_on_postgresql(conn: Any) -> None:
    """Raise TypeError for another database system. A session has its engine without connecting."""
    dialect = conn.dialect if hasattr(conn, "dialect") else conn.get_bind().dialect
    if dialect.name != "postgresql":
        raise TypeError(f"conn must be connected to PostgreSQL, not to {dialect.name}")


@functools.cache  # at most one for each call in _calls/
def _statement(sql: str) -> TextClause:
    """A call's SQL as a text(). Its parameters get no type, so that SQLAlchemy adds no cast to the call's own casts.

    The parentheses are for psycopg2, which writes the values into the statement: -1::int is -(1::int).
    """
    numbers = iter(range(sql.count("%s")))
    escaped = sql.replace(":", r"\:")
    return text(re.sub(r"%[%s]", lambda found: "%" if found[0] == "%%" else f"(:p{next(numbers)})", escaped))


def _arguments(call: Call[Any]) -> dict[str, Any]:
    return {f"p{number}": value for number, value in enumerate(call.args)}


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except DBAPIError as error:
        if seen := _known(error):
            raise seen from error
        raise


def _known(error: DBAPIError) -> Exception | None:
    cause: Any = error.orig
    if (diagnosis := getattr(cause, "diag", None)) is not None:  # psycopg's and psycopg2's
        state = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)
        message, function = diagnosis.message_primary, diagnosis.source_function
        hint, detail = diagnosis.message_hint, diagnosis.message_detail
    else:  # asyncpg's error, the cause of the one that SQLAlchemy makes
        theirs = cause.__cause__
        names = ("sqlstate", "message", "server_source_function", "hint", "detail")
        state, message, function, hint, detail = (getattr(theirs, name, None) for name in names)
    return known(state, message or str(cause), function, lost=error.connection_invalidated, hint=hint, detail=detail)
