"""The listener's direct connection. Its only timeouts are those that detect a server that is gone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.rows import tuple_row

HALF_OPEN: dict[str, Any] = {
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10000,
}
SETTINGS = """
    SET statement_timeout = 0; SET idle_session_timeout = 0; SET lock_timeout = '2s';
    SET default_transaction_isolation = 'read committed'; SET synchronous_commit = off;
    SET tcp_keepalives_idle = 5; SET tcp_keepalives_interval = 2; SET tcp_keepalives_count = 3;
    SET tcp_user_timeout = 10000; SET client_connection_check_interval = 0; SET client_encoding = 'UTF8'; SET jit = off;
"""


def connect(conninfo: str, notified: Callable[[str, str], None]) -> psycopg.Connection[Any]:
    """Connect. `notified` gets channel and payload of each notification that arrives with a statement's answer."""
    options = make_conninfo(conninfo, application_name="pgqueue listener", **HALF_OPEN)
    conn = psycopg.connect(options, autocommit=True, row_factory=tuple_row, connect_timeout=10)
    conn.add_notify_handler(lambda note: notified(note.channel, note.payload))
    conn.execute(SETTINGS)
    if conn.info.server_version >= 170000:
        conn.execute("SET transaction_timeout = 0")
    return conn
