"""Statuses by key in SQL: what shows, what expires, what is told, what is refused."""

from __future__ import annotations

import hashlib
import threading
from typing import Any

import psycopg
import pytest
from eventually import eventually
from psycopg.types.json import Jsonb
from statements import column, notifications, rows, value

Connect = Any
SET = "SELECT pgqueue.set_status(%s, %s)"
GET = "SELECT pgqueue.get_status(%s)"
KEY = hashlib.md5(b"https://example.org/").hexdigest()


def over(conn: psycopg.Connection, table: str) -> None:
    """Let everything in a table have expired a moment ago, as it would by itself later."""
    conn.execute(f"UPDATE pgqueue.{table} SET expires_at = clock_timestamp()")


def channel(key: str) -> str:
    return f"pgqueue:status:{hashlib.md5(key.encode()).hexdigest()}"


# --- by key


def test_a_status_is_set_and_set_again(db: psycopg.Connection) -> None:
    assert value(db, GET, KEY) is None
    for status in ["converted", {"pages": [1, None]}, 0, False, ""]:
        db.execute(SET, [KEY, Jsonb(status)])
        assert value(db, GET, KEY) == status
    assert rows(db, "SELECT key, value, expires_at FROM pgqueue.statuses") == [(KEY, "", None)]


@pytest.mark.parametrize("key", ["k", "K", "ü" * 200, "'; --", 'a"b', " "])
def test_any_short_key_will_do(db: psycopg.Connection, connect: Connect, key: str) -> None:
    ear = connect()
    ear.execute(f'LISTEN "{channel(key)}"')
    db.execute(SET, [key, Jsonb(1)])
    assert value(db, GET, key) == 1
    assert value(db, GET, key.swapcase() + "x") is None
    assert notifications(ear, db) == [channel(key)]


@pytest.mark.parametrize(
    ("call", "sqlstate"),
    [
        ("set_status('', '1')", "PQ040"),
        ("set_status(repeat('x', 201), '1')", "PQ040"),
        ("set_status(NULL, '1')", "PQ040"),
        ("set_status('k', NULL)", "PQ041"),
        ("set_status('k', 'null')", "PQ041"),
        ("set_status('k', '1', '0')", "PQ042"),
        ("set_status('k', '1', '-1 s')", "PQ042"),
    ],
)
def test_what_cannot_be_is_refused(db: psycopg.Connection, call: str, sqlstate: str) -> None:
    with pytest.raises(psycopg.errors.DatabaseError) as caught:
        db.execute(f"SELECT pgqueue.{call}")
    assert caught.value.sqlstate == sqlstate
    assert rows(db, "SELECT FROM pgqueue.status") == []


def test_an_expired_status_is_absent_before_anybody_cleans(db: psycopg.Connection) -> None:
    db.execute("SELECT pgqueue.set_status('k', '1', '1 ms')")
    eventually(lambda: value(db, GET, "k") is None)
    assert rows(db, "SELECT FROM pgqueue.status") != []
    assert rows(db, "SELECT FROM pgqueue.statuses") == []
    assert value(db, "SELECT pgqueue.delete_status('k')") is False


def test_a_status_that_is_set_again_lives_as_the_new_one(db: psycopg.Connection) -> None:
    db.execute("SELECT pgqueue.set_status('a', '1', '1 h'), pgqueue.set_status('b', '1')")
    db.execute("SELECT pgqueue.set_status('a', '2'), pgqueue.set_status('b', '2', '1 h')")
    assert rows(db, "SELECT key, expires_at IS NULL FROM pgqueue.statuses ORDER BY key") == [("a", True), ("b", False)]


def test_of_several_that_set_an_absent_status_one_sets_it(db: psycopg.Connection, connect: Connect) -> None:
    """In 40 races of four connections."""
    races, claims = 40, list[tuple[int, int]]()
    barrier = threading.Barrier(4)

    def claim(me: int, conn: psycopg.Connection) -> None:
        for n in range(races):
            barrier.wait()
            if value(conn, "SELECT pgqueue.set_status(%s, %s, if_absent => true)", f"race {n}", Jsonb(me)):
                claims.append((n, me))

    threads = [threading.Thread(target=claim, args=(me, connect())) for me in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stored = dict(rows(db, "SELECT key, value FROM pgqueue.statuses"))
    assert len(claims) == races
    assert {f"race {n}": me for n, me in claims} == stored


def test_a_status_that_was_not_set_is_not_told(db: psycopg.Connection, connect: Connect) -> None:
    ear = connect()
    ear.execute(f'LISTEN "{channel("k")}"')
    db.execute(SET, ["k", Jsonb(1)])
    assert notifications(ear, db) == [channel("k")]
    assert value(db, "SELECT pgqueue.set_status('k', '2', if_absent => true)") is False
    assert notifications(ear, db) == []


def test_keys_of_one_prefix_are_read_by_the_index(db: psycopg.Connection) -> None:
    db.execute("SELECT count(pgqueue.set_status('page ' || n || ':' || n % 7, '1')) FROM generate_series(1, 3000) n")
    db.execute("ANALYZE pgqueue.status")
    plan = column(db, "EXPLAIN SELECT key FROM pgqueue.statuses WHERE key >= 'page 17:' AND key < 'page 17;'")
    assert any("Index Cond" in line for line in plan), plan


def test_delete_tells_whether_there_was_one(db: psycopg.Connection) -> None:
    db.execute(SET, ["k", Jsonb(1)])
    assert column(db, "SELECT pgqueue.delete_status('k') UNION ALL SELECT pgqueue.delete_status('x')") == [True, False]
    assert value(db, GET, "k") is None
    assert value(db, "SELECT pgqueue.delete_status('k')") is False


def test_a_status_is_told_at_commit_and_never_after_a_rollback(db: psycopg.Connection, connect: Connect) -> None:
    ear = connect()
    ear.execute(f'LISTEN "{channel("k")}"')
    with db.transaction(force_rollback=True):
        db.execute(SET, ["k", Jsonb(1)])
        assert value(connect(), GET, "k") is None
    assert notifications(ear, db) == []
    assert value(db, GET, "k") is None
    with db.transaction():
        db.execute(SET, ["k", Jsonb(1)])
        db.execute(SET, ["k", Jsonb(2)])
        assert notifications(ear, connect()) == []
    assert notifications(ear, db) == [channel("k")]


# --- cleaning


def test_cleaning_removes_statuses_that_expired_and_nothing_else(db: psycopg.Connection) -> None:
    db.execute("SELECT pgqueue.set_status('old', '1', '1 h')")
    over(db, "status")
    db.execute("SELECT pgqueue.set_status('new', '1', '1 h'), pgqueue.set_status('ever', '1')")
    db.execute("SELECT pgqueue._clean_statuses()")
    assert column(db, "SELECT key FROM pgqueue.status ORDER BY key") == ["ever", "new"]


def test_cleaning_does_not_wait(db: psycopg.Connection, connect: Connect) -> None:
    db.execute("SELECT pgqueue.set_status('a', '1', '1 h'), pgqueue.set_status('b', '1', '1 h')")
    over(db, "status")
    other = connect()
    with other.transaction():
        other.execute(SET, ["a", Jsonb(2)])
        db.execute("SET lock_timeout = '5 s'")
        db.execute("SELECT pgqueue.clean_up()")
        assert column(db, "SELECT key FROM pgqueue.status") == ["a"]
    assert value(db, GET, "a") == 2


# --- rights


def test_a_granted_role_may_use_all_of_it(db: psycopg.Connection, connect: Connect) -> None:
    role = value(db, "SELECT 'pgqueue_test_' || substr(md5(random()::text), 1, 12)")
    db.execute(f"CREATE ROLE {role}")
    try:
        db.execute("SELECT pgqueue.grant_to(%s)", [role])
        user = connect(options=f"-c role={role}")
        user.execute(SET, ["k", Jsonb(1)])
        assert column(user, "SELECT value FROM pgqueue.statuses WHERE pgqueue.get_status(key) = value") == [1]
        assert value(user, "SELECT pgqueue.delete_status('k')") is True
        user.execute("SELECT pgqueue.clean_up()")
        for refused in ("FROM pgqueue.status", "pgqueue._clean_statuses()"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                user.execute(f"SELECT {refused}")
    finally:
        db.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
