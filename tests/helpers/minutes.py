"""The end of a minute, for tests of the history of queues: the next tick writes it, however late it is."""

from __future__ import annotations

import psycopg


def pass_minutes(conn: psycopg.Connection, n: int = 1) -> None:
    """As if so many minutes had passed since the last tick: what the history has is so much older."""
    shift_history(conn, f"{n} min")
    conn.execute(
        "SELECT setval('pgqueue.history_turn',"
        " ((floor(extract(epoch FROM clock_timestamp()) / 60)::bigint - 1 - %s) << 31) + 2147483647)",
        [n],
    )


def shift_history(conn: psycopg.Connection, by: str) -> None:
    """Make all rows of the history so much older."""
    conn.execute("CREATE TEMP TABLE IF NOT EXISTS moved (LIKE pgqueue.history)")
    conn.execute("WITH gone AS (DELETE FROM pgqueue.history RETURNING *) INSERT INTO moved SELECT * FROM gone")
    conn.execute("UPDATE moved SET at = at - %s::interval", [by])
    conn.execute("INSERT INTO pgqueue.history SELECT * FROM moved")
    conn.execute("DROP TABLE moved")


def write_minute(conn: psycopg.Connection) -> None:
    """Let a minute pass, and tick."""
    pass_minutes(conn)
    conn.execute("SELECT pgqueue.promote_all()")
