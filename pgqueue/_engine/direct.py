"""The listener's direct connection. Its statements have the client's call_timeout; it sets no other timeout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from . import primaries
from .bounded import KEEPALIVES, BoundedConnection
from .door import ATTEMPT, why_read_only

SETTINGS = """
    SET statement_timeout = 0; SET idle_session_timeout = 0; SET lock_timeout = '2s';
    SET default_transaction_isolation = 'read committed'; SET synchronous_commit = off;
    SET tcp_keepalives_idle = 5; SET tcp_keepalives_interval = 2; SET tcp_keepalives_count = 3;
    SET tcp_user_timeout = 10000; SET client_connection_check_interval = 0; SET client_encoding = 'UTF8'; SET jit = off;
    SET DateStyle = 'ISO';
"""
TERMINATE = (
    "SELECT pg_catalog.pg_terminate_backend(pid) FROM pg_catalog.pg_stat_activity"
    " WHERE (pid, backend_start) OPERATOR(pg_catalog.=) (%s, %s)"
)


def connect(conninfo: str, notified: Callable[[str, str], None], call_timeout: float) -> BoundedConnection:
    """Connect. `notified` gets channel and payload of each notification that arrives with a statement's answer.

    Raises:
        NotRunning: the server is a standby, or read-only for this role, so it could not open a session.
    """
    known = {"connect_timeout": ATTEMPT} | KEEPALIVES | conninfo_to_dict(conninfo)
    options = make_conninfo("", **known | {"application_name": "pgqueue listener", "client_encoding": "UTF8"})
    conn = BoundedConnection.connect(primaries.chosen(options), autocommit=True)
    primaries.check(conn, options)
    conn.patience = call_timeout
    try:
        if refusal := why_read_only(conn):
            raise refusal
        # In place of psycopg's handler, which raises for a payload that is no UTF-8, in the midst of a statement.
        conn.pgconn.notify_handler = lambda note: notified(decoded(note.relname), decoded(note.extra))
        conn.execute(SETTINGS)
        if conn.info.server_version >= 170000:
            conn.execute("SET transaction_timeout = 0")
    except BaseException:
        conn.close()
        raise
    return conn


def decoded(text: bytes) -> str:
    """A part of a notification. A server with the encoding SQL_ASCII sends bytes as they are."""
    return text.decode("utf-8", "backslashreplace")


Backend = tuple[Any, ...]  # the process id and the start of a connection's backend: a process id alone is used again


def succeed(conn: BoundedConnection, former: Backend | None) -> Backend | None:
    """End the backend of the connection that this one replaces. Returns this one's backend.

    The client may have given its connection up while the server has not: a packet that says so gets lost, or a proxy
    keeps its half of the connection. Then the old backend would keep the session's lock for as long as it lives.
    """
    if former is not None:
        conn.execute(TERMINATE, former)
    return conn.execute(
        "SELECT pid, backend_start FROM pg_catalog.pg_stat_activity"
        " WHERE pid OPERATOR(pg_catalog.=) pg_catalog.pg_backend_pid()"
    ).fetchone()
