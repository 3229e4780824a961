"""What the tests of locks and elections share."""

from __future__ import annotations

from typing import Any

import psycopg
from eventually import eventually, soon
from statements import column, row, value

LEFT = (
    "SELECT (SELECT count(*) FROM pgqueue.lock_holder), (SELECT count(*) FROM pgqueue.lock_ticket),"
    " (SELECT count(*) FROM pgqueue._advisory_locks())"
)
NOTHING = (0, 0, 0)
TRY = "SELECT pgqueue.try_lock(%s)"
SHARE = "SELECT pgqueue.try_lock(%s, shared => true)"
UNLOCK = "SELECT pgqueue.unlock(%s)"
TICKETS = "SELECT count(*) FROM pgqueue.lock_ticket"
LISTENERS = (
    "SELECT pid FROM pg_stat_activity WHERE application_name = 'pgqueue listener' AND datname = current_database()"
)


def left(db: psycopg.Connection) -> tuple[Any, ...]:
    """How many rows of holders, tickets, and advisory locks of ours there are."""
    found = row(db, LEFT)
    assert found is not None
    return found


async def in_line(db: psycopg.Connection, n: int) -> None:
    """Until so many wait."""
    await soon(lambda: value(db, TICKETS) == n)


async def nothing_left(db: psycopg.Connection) -> None:
    """Until there are neither holders nor tickets."""
    await soon(lambda: left(db)[:2] == (0, 0))


def terminate_listeners(db: psycopg.Connection) -> None:
    for pid in column(db, LISTENERS):
        value(db, "SELECT pg_terminate_backend(%s::int, 5000)", pid)


# --- in SQL


def ask(conn: psycopg.Connection, token: int, name: str = "a", shared: bool = False, wait: bool = True) -> Any:
    """The fence, or None; with `wait` it leaves a ticket."""
    return value(conn, "SELECT fence FROM pgqueue.ask_lock(%s, %s, %s, %s)", name, shared, token, wait)


def drop(conn: psycopg.Connection, token: int) -> bool:
    return bool(value(conn, "SELECT pgqueue.drop_lock(%s)", token))


def end(conn: psycopg.Connection, db: psycopg.Connection) -> None:
    """The connection's end, and the server has noticed."""
    pid = conn.info.backend_pid
    conn.close()
    eventually(lambda: value(db, "SELECT count(*) FROM pg_stat_activity WHERE pid = %s", pid) == 0)
