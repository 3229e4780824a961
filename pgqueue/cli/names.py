"""The names of the queues that there are, for completion and for suggestions; asked for with little patience."""

from __future__ import annotations

import os

import psycopg

from .._calls.queue import queues
from .._engine import dsn

PATIENCE = 2  # seconds that the tab key may take


def queue_names(given: str | None, incomplete: str) -> list[str]:
    """The queue names that begin with `incomplete`; none if the database does not answer soon. Starts no server."""
    call = queues(incomplete, None, 100)
    conninfo = given or os.environ.get("PGQUEUE_DSN") or os.environ.get("DATABASE_URL")
    try:
        if not conninfo:
            from .. import embedded

            conninfo = embedded.status().dsn
        if not conninfo:
            return []
        with psycopg.connect(dsn.plain(conninfo), autocommit=True, connect_timeout=PATIENCE) as conn:
            conn.execute(f"SET statement_timeout = '{PATIENCE}s'")
            return [info.name for info in call.read(conn.execute(call.sql, call.args).fetchall())]
    except Exception:  # of any kind: a traceback would be printed into the command line that is being typed
        return []
