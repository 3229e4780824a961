"""Looking and the operator's verbs in SQL: the views, kick and delete."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from statements import column, pass_time, put, row, rows, state, take, value

Connect = Any
STATS = "SELECT total, ready, delayed, taken, buried FROM pgqueue.stats WHERE queue = %s"


def buried(conn: psycopg.Connection, n: int, **options: Any) -> list[int]:
    ids = [put(conn, "q", **options) for _ in range(n)]
    for id in ids:
        conn.execute("SELECT pgqueue.bury(%s)", [id])
    return ids


def test_kick_counts_what_it_kicked(db: psycopg.Connection) -> None:
    ids = buried(db, 4)
    assert value(db, "SELECT pgqueue.kick('q', 3)") == 3
    assert [state(db, id) for id in ids] == ["ready"] * 3 + ["buried"]
    assert value(db, "SELECT pgqueue.kick('q', 100500)") == 1
    assert value(db, "SELECT pgqueue.kick('q', 100500)") == 0


def test_kick_takes_the_lowest_first_and_one_by_default(db: psycopg.Connection) -> None:
    (last,), (first,), (second,) = buried(db, 1, priority=1), buried(db, 1), buried(db, 1)
    for id in (first, second, last):
        assert value(db, "SELECT pgqueue.kick('q')") == 1
        assert take(db, "q")[0] == id


def test_kick_is_for_one_queue(db: psycopg.Connection) -> None:
    buried(db, 1)
    assert value(db, "SELECT pgqueue.kick('other', 9)") == value(db, "SELECT pgqueue.kick('', 9)") == 0


def test_a_kicked_task_keeps_its_error_and_begins_its_attempts_anew(db: psycopg.Connection) -> None:
    put(db, "q")
    id, token = take(db, "q")
    db.execute("SELECT pgqueue.bury(%s, %s, error => 'why')", [id, token])
    assert row(db, "SELECT state, attempts, error FROM pgqueue.tasks") == ("buried", 1, "why")
    db.execute("SELECT pgqueue.kick('q')")
    assert row(db, "SELECT state, attempts, error FROM pgqueue.tasks") == ("ready", 0, "why")
    assert row(db, "SELECT number, error FROM pgqueue.attempts") == (1, "why")


@pytest.mark.parametrize("now", ["ready", "delayed", "taken", "buried"])
def test_delete_takes_any_state(db: psycopg.Connection, connect: Connect, now: str) -> None:
    id = put(db, "q", delay="1 h" if now == "delayed" else "0")
    if now == "taken":
        take(connect(), "q")
    if now == "buried":
        db.execute("SELECT pgqueue.bury(%s)", [id])
    assert state(db, id) == now
    assert value(db, "SELECT pgqueue.delete(%s)", id) is True
    assert rows(db, "SELECT FROM pgqueue.task") == rows(db, "SELECT FROM pgqueue.take") == []
    assert value(db, "SELECT pgqueue.delete(%s)", id) is False


def test_peek_shows_who_holds_a_task(db: psycopg.Connection) -> None:
    id = put(db, "q", ttr="1 h")
    session = value(db, "SELECT pgqueue.open_session(label => 'host:1:worker')")
    take(db, "q")
    query = "SELECT state, session, holder, deadline - taken_at = '1 h' FROM pgqueue.tasks WHERE id = %s"
    assert row(db, query, id) == ("taken", session, "host:1:worker", True)
    query = "SELECT label, backend_pid, taken, missing_since FROM pgqueue.sessions WHERE id = %s"
    assert row(db, query, session) == ("host:1:worker", db.info.backend_pid, 1, None)


def test_stats_count_every_state(db: psycopg.Connection) -> None:
    buried(db, 3)
    for _ in range(5):
        put(db, "q")
    put(db, "q", delay="1 h")
    take(db, "q"), take(db, "q")
    put(db, "other")
    assert row(db, STATS, "q") == (9, 3, 1, 2, 3)
    assert row(db, STATS, "other") == (1, 1, 0, 0, 0)
    assert row(db, STATS, "none") is None


def test_what_is_due_shows_as_ready_before_anybody_promotes_it(db: psycopg.Connection) -> None:
    delayed, overdue = put(db, "q", delay="1 h"), put(db, "q", ttr="1 h")
    take(db, "q")
    assert row(db, STATS, "q") == (2, 0, 1, 1, 0)
    pass_time(db, "1 h")
    assert row(db, STATS, "q") == (2, 2, 0, 0, 0)
    assert [state(db, id) for id in (delayed, overdue)] == ["ready", "ready"]
    assert column(db, "SELECT state FROM pgqueue.task ORDER BY id") == ["D", "R"]
