"""Two connections stepping by hand: statements that wait for each other, in the order that the test says."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import psycopg
from eventually import eventually
from statements import rows, value


@contextmanager
def waiting(conn: psycopg.Connection, other: psycopg.Connection, query: str, *args: Any) -> Iterator[Future[list[Any]]]:
    """Send a statement on `conn` that has to wait for a lock. The block begins once it does, seen from `other`, and
    has to let it go on; afterwards its rows are in the future."""
    with ThreadPoolExecutor(1) as thread:
        future = thread.submit(rows, conn, query, *args)
        pid = conn.info.backend_pid
        eventually(lambda: future.done() or blocked(other, pid))
        assert not future.done(), f"did not wait: {future.result()}"
        yield future
        future.exception(timeout=5)


def blocked(conn: psycopg.Connection, pid: int) -> bool:
    return bool(value(conn, "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = %s", pid))


def gone(conn: psycopg.Connection, pid: int) -> bool:
    """True once the backend has ended, and freed its locks."""
    return not value(conn, "SELECT count(*) FROM pg_stat_activity WHERE pid = %s", pid)


def die(doomed: psycopg.Connection, other: psycopg.Connection) -> None:
    """Close a connection, and wait until the server knows."""
    pid = doomed.info.backend_pid
    doomed.close()
    eventually(lambda: gone(other, pid))
