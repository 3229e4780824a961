"""The plans of statements, and how many pages a statement touches."""

from __future__ import annotations

import psycopg
from statements import value


def without_autovacuum(conn: psycopg.Connection, *tables: str) -> None:
    """Have the statistics of the tables change by the test alone.

    An ANALYZE that comes meanwhile has the next statement read catalogs and plan anew, which touches up to 300 pages
    more.
    """
    for table in tables:
        conn.execute(f"ALTER TABLE pgqueue.{table} SET (autovacuum_enabled = false)".encode())


def plans(dsn: str, query: str) -> list[str]:
    """The plan of the statement and of each inside it, made for a new connection; what it does is rolled back."""
    found: list[str] = []
    with psycopg.connect(dsn) as conn:
        conn.execute("LOAD 'auto_explain'")
        conn.execute("SET auto_explain.log_min_duration = 0")
        conn.execute("SET auto_explain.log_nested_statements = on")
        conn.add_notice_handler(lambda note: found.append(note.message_primary or ""))
        conn.execute("SET client_min_messages = log")
        conn.execute(query).fetchall()
        conn.execute("SET client_min_messages = notice")
        conn.rollback()
    return [plan for plan in found if "plan:" in plan]


def pages(conn: psycopg.Connection, query: str) -> int:
    """How many pages a statement touches, with all that the functions in it do. What it does is rolled back."""
    with conn.transaction(force_rollback=True):
        return pages_of_doing(conn, query)


def pages_of_doing(conn: psycopg.Connection, query: str) -> int:
    """The same of a statement that is not rolled back."""
    plan = value(conn, f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {query}")[0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])
