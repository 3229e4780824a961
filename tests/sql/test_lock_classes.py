"""The classes of advisory locks: health knows each of them, and nothing waits for a stranger without an end."""

from __future__ import annotations

import re
from collections.abc import Callable

import psycopg
import pytest
from altered import replaced
from eventually import Stopwatch
from psycopg import sql
from statements import column, rows, value

Connect = Callable[..., psycopg.Connection]

FOREIGN = "SELECT status, detail FROM pgqueue.health WHERE name = 'foreign_locks'"
IN_DATABASE = "SELECT blocks FROM pgqueue._foreign_locks() WHERE pid = %s"
FUNCTIONS = """
    SELECT proname FROM pg_proc
     WHERE pronamespace = 'pgqueue'::regnamespace AND proname LIKE '%%\\_lock' AND pronargs = 0 ORDER BY 1"""

# What clients and users do, on one connection; each with a queue of its kind.
CALLS = (
    "SELECT pgqueue.put('plain', '1')",
    "SELECT id FROM pgqueue.take('plain')",
    "SELECT pgqueue.ack(id, token) FROM pgqueue.take('plain')",
    "SELECT pgqueue.release(id, token) FROM pgqueue.take('plain')",
    "SELECT pgqueue.put('lanes', '1', lane => 'a')",
    "SELECT id FROM pgqueue.take('lanes')",
    "SELECT id FROM pgqueue.pop('lanes')",
    "SELECT id FROM pgqueue.take('limited')",
    "SELECT id FROM pgqueue.pop('limited')",
    "SELECT pgqueue.put_flow('plain', '1', batch => {batch})",
    "SELECT pgqueue.close_batch({batch})",
    "SELECT pgqueue.finish(id, token, result => '1', keep => '1 h') FROM pgqueue.take('plain')",
    "SELECT pgqueue.await_ends('{{1,2}}')",
    "SELECT pgqueue.leave_ends('{{1,2}}')",
    "SELECT pgqueue.arm(ARRAY [{queue}])",
    "SELECT pgqueue.arm(ARRAY [{queue}], in_turn => true)",
    "SELECT pgqueue.disarm(ARRAY [{queue}, {queue}])",
    "SELECT pgqueue.open_session(label => 'new')",
    "SELECT pgqueue.close_session()",
    "SELECT pgqueue.sweep()",
    "SELECT pgqueue.promote_all()",
    "SELECT pgqueue.clean_up()",
    "SELECT pgqueue.undo_take(4711)",
    "SELECT queue FROM pgqueue.stats",
)


def classes(db: psycopg.Connection) -> dict[str, int]:
    """What advisory.sql has."""
    return {name: value(db, sql.SQL("SELECT pgqueue.{}()").format(sql.Identifier(name)).as_string())
            for name in column(db, FUNCTIONS)}  # fmt: skip


def unknown(db: psycopg.Connection) -> set[str]:
    """Those of which health knows nothing."""
    known = column(db, "SELECT class FROM pgqueue._lock_class")
    assert len(set(known)) == len(known)
    return {name for name, number in classes(db).items() if number not in known}


def test_health_knows_each_class(db: psycopg.Connection) -> None:
    assert len(classes(db)) >= 14
    assert unknown(db) == set()


def test_a_class_that_was_forgotten_is_found(db: psycopg.Connection) -> None:
    db.execute("CREATE FUNCTION pgqueue._new_lock() RETURNS int LANGUAGE sql IMMUTABLE RETURN 1885827399")
    assert unknown(db) == {"_new_lock"}


def test_health_names_a_stranger_with_each_class(db: psycopg.Connection, stranger: Connect) -> None:
    foreigner = stranger()
    db.execute("SELECT pgqueue.create_queue('q')")
    queue = value(db, "SELECT id FROM pgqueue.queue")
    for number in classes(db).values():
        foreigner.execute("SELECT pg_advisory_lock(%s, %s)", [number, queue])
    expected = {
        re.sub("%s", "q" if "queue" in blocks else str(queue), blocks)
        for (blocks,) in rows(db, "SELECT blocks FROM pgqueue._lock_class WHERE kept <> 'session'")
    }
    found = set(column(db, IN_DATABASE, foreigner.info.backend_pid))
    assert found >= expected
    ((status, detail),) = rows(db, FOREIGN)
    assert status == "bad"
    assert f"backend {foreigner.info.backend_pid} of role {foreigner.info.user}" in detail


def late(
    db: psycopg.Connection,
    connect: Connect,
    foreigner: psycopg.Connection,
    locks: dict[str, int],
    calls: tuple[str, ...] = CALLS,
    timeout: int = 30,
) -> list[tuple[str, str]]:
    """The calls that wait for the stranger until the server ends them, by the class of its locks.

    The stranger has each lock of a class that these calls may try: those of one class fit into the lock table.
    """
    db.execute("SELECT pgqueue.create_queue('plain'), pgqueue.create_queue('limited'), pgqueue.create_queue('lanes')")
    rows(db, "SELECT pgqueue.set_limit('limited', concurrency => 5), pgqueue.put('limited', '1')")
    found = []
    for name, number in locks.items():
        names = {"queue": value(db, "SELECT id FROM pgqueue.queue WHERE name = 'plain'"),
                 "batch": value(db, "SELECT pgqueue.create_batch('b')")}  # fmt: skip
        foreigner.execute("SELECT pg_advisory_lock(%s, g) FROM generate_series(0, 1023) g", [number])
        with connect(options=f"-c statement_timeout={timeout}s") as conn:
            for call in calls:
                watch = Stopwatch()
                try:
                    conn.execute(call.format(**names))
                except psycopg.Error as error:
                    if error.sqlstate != "PQ007":
                        found.append((name, call))
                if watch() > timeout / 2:
                    found.append((name, call))
        foreigner.execute("SELECT pg_advisory_unlock_all()")
    return found


@pytest.mark.slow
def test_no_call_waits_for_a_stranger_without_an_end(
    db: psycopg.Connection, connect: Connect, stranger: Connect
) -> None:
    assert late(db, connect, stranger(), classes(db)) == []


@pytest.mark.slow
def test_a_wait_without_an_end_is_found(db: psycopg.Connection, connect: Connect, stranger: Connect) -> None:
    closing = {"_closing_lock": classes(db)["_closing_lock"]}
    call = "SELECT pgqueue.close_batch({batch})"
    with replaced(db, "_await_lock", "IF patience IS NOT NULL", "IF false"):
        assert set(late(db, connect, stranger(), closing, (call,), 2)) == {("_closing_lock", call)}
