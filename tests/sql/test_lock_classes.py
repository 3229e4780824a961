"""The classes of advisory locks: health knows each of them, and nothing waits for a stranger without an end."""

from __future__ import annotations

import re
from collections.abc import Callable

import psycopg
import pytest
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
    assert len(classes(db)) >= 16
    assert unknown(db) == set()


def test_a_class_that_was_forgotten_is_found(db: psycopg.Connection) -> None:
    db.execute("CREATE FUNCTION pgqueue._new_lock() RETURNS int LANGUAGE sql IMMUTABLE RETURN 1885827399")
    assert unknown(db) == {"_new_lock"}


def test_health_names_a_stranger_with_each_class(db: psycopg.Connection, stranger: Connect) -> None:
    foreigner = stranger()
    db.execute("SELECT pgqueue.create_queue('q')")
    queue = value(db, "SELECT id FROM pgqueue.queue")
    names = ("_entering_lock", "_admitting_lock")
    locks = {name: (number, queue << 8 if name in names else queue) for name, number in classes(db).items()}
    for lock in locks.values():
        foreigner.execute("SELECT pg_advisory_lock(%s, %s)", lock)
    expected = {
        re.sub("%s", "q" if "queue" in blocks else str(queue), blocks)
        for (blocks,) in rows(db, "SELECT blocks FROM pgqueue._lock_class WHERE kept <> 'session'")
    }
    found = set(column(db, IN_DATABASE, foreigner.info.backend_pid))
    assert found >= expected
    ((status, detail),) = rows(db, FOREIGN)
    assert status == "bad"
    assert f"backend {foreigner.info.backend_pid} of role {foreigner.info.user}" in detail


@pytest.mark.slow
def test_no_call_waits_for_a_stranger_without_an_end(
    db: psycopg.Connection, connect: Connect, stranger: Connect
) -> None:
    """The stranger has each lock of a class that these calls may try: the sets of one class fit into the lock table."""
    db.execute("SELECT pgqueue.create_queue('plain'), pgqueue.create_queue('limited'), pgqueue.create_queue('lanes')")
    rows(db, "SELECT pgqueue.set_limit('limited', concurrency => 5), pgqueue.put('limited', '1')")
    queues = column(db, "SELECT id FROM pgqueue.queue ORDER BY id")
    late, foreigner = [], stranger()
    for name, number in classes(db).items():
        names = {"queue": value(db, "SELECT id FROM pgqueue.queue WHERE name = 'plain'"),
                 "batch": value(db, "SELECT pgqueue.create_batch('b')")}  # fmt: skip
        foreigner.execute("SELECT pg_advisory_lock(%s, g) FROM generate_series(0, 1023) g", [number])
        for queue in queues:
            foreigner.execute(
                "SELECT pg_advisory_lock(%s, g) FROM generate_series(%s::int, %s::int) g",
                [number, queue << 8, (queue << 8) + 255],
            )
        with connect(options="-c statement_timeout=30s") as conn:
            for call in CALLS:
                watch = Stopwatch()
                try:
                    conn.execute(call.format(**names))
                except psycopg.Error as error:
                    if error.sqlstate != "PQ007":
                        late.append((name, call, str(error)))
                if watch() > 15:
                    late.append((name, call, "it waited"))
        foreigner.execute("SELECT pg_advisory_unlock_all()")
    assert late == []
