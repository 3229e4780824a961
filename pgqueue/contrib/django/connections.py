"""`conn=` with one of Django's connections: the adapter that _engine/borrowed.py loads for it.

A call runs on Django's cursor, so that assertNumQueries, execute_wrapper() and the debug toolbar see it. Django's
cursor begins the transaction of an atomic block with the first statement, also if that is a call of pgqueue.
"""

from __future__ import annotations

from typing import TypeVar

import psycopg
from django.db import Error, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils.connection import ConnectionProxy
from psycopg.types.datetime import TimestamptzLoader
from psycopg.types.json import JsonbLoader

from ..._calls.call import Call, Rows
from ..._calls.sqlstates import translate

T = TypeVar("T")


def run(conn: BaseDatabaseWrapper, call: Call[T]) -> T:
    """Run a call. After an error of the database an atomic block has to be rolled back, as with any other statement."""
    try:
        rows = _rows(conn, call)
    except Error as error:
        cause = error.__cause__
        if isinstance(cause, psycopg.Error):
            seen = translate(cause, lost=conn.connection is None or conn.connection.closed)
            if seen is not cause:
                raise seen from error
        raise
    return call.read(rows)


def check(conn: object) -> None:
    """Raise TypeError if conn is not one of Django's connections, or not one to PostgreSQL."""
    if not isinstance(conn, BaseDatabaseWrapper | ConnectionProxy):
        raise TypeError(f"conn must be a connection, as django.db.connection is, not {type(conn).__name__}")
    if conn.vendor != "postgresql":
        raise TypeError(f"conn: the database {conn.alias!r} is {conn.display_name}, and pgqueue needs PostgreSQL")


def check_async(conn: object) -> None:
    """Raise TypeError: Django's connections belong to threads, so there is no run_async()."""
    check(conn)
    raise TypeError(
        "Django's connections block: await sync_to_async(f)() with a function f that has both the atomic() block and"
        " the put"
    )


def _rows(conn: BaseDatabaseWrapper, call: Call[T]) -> Rows:
    with transaction.mark_for_rollback_on_error(using=conn.alias), conn.cursor() as cursor:
        # For this cursor only: Django's own cursors get JSON as text, and times without a zone if USE_TZ is off.
        cursor.adapters.register_loader("jsonb", JsonbLoader)
        cursor.adapters.register_loader("timestamptz", TimestamptzLoader)
        cursor.execute(call.sql, call.args)
        rows: Rows = cursor.fetchall()
        return rows
