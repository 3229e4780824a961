"""Locks in SQL: who is granted what, what it leaves behind, and who may see and do what."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from locks import NOTHING, SHARE, TRY, UNLOCK, ask, drop, end, left
from statements import column, rows, value

Connect = Any


# --- try_lock and unlock


def test_one_has_it_and_then_the_other(db: psycopg.Connection, connect: Connect) -> None:
    other = connect()
    first = value(db, TRY, "a")
    assert isinstance(first, int)
    assert value(other, TRY, "a") is None
    assert value(db, UNLOCK, "a") is True
    assert value(other, TRY, "a") > first
    assert value(db, UNLOCK, "a") is False
    assert value(other, UNLOCK, "a") is True
    assert left(db) == NOTHING


def test_names_are_apart(db: psycopg.Connection, connect: Connect) -> None:
    assert value(db, TRY, "a")
    assert value(connect(), TRY, "A")
    assert value(connect(), TRY, " a")


def test_it_is_not_re_entrant(db: psycopg.Connection) -> None:
    assert value(db, TRY, "a")
    assert value(db, TRY, "a") is None
    assert value(db, SHARE, "a") is None
    assert value(db, UNLOCK, "a") is True
    assert left(db) == NOTHING


def test_sharing_on_one_connection_and_on_several(db: psycopg.Connection, connect: Connect) -> None:
    other = connect()
    fences = [value(db, SHARE, "a"), value(db, SHARE, "a"), value(other, SHARE, "a")]
    assert fences == sorted(set(fences))
    assert value(db, TRY, "a") is value(other, TRY, "a") is value(connect(), TRY, "a") is None
    assert value(db, UNLOCK, "a") is True
    assert value(connect(), TRY, "a") is None
    assert value(other, UNLOCK, "a") is True
    assert value(other, TRY, "a") is None  # db shares it once more
    assert value(db, UNLOCK, "a") is True
    assert value(other, TRY, "a")


def test_the_end_of_the_connection_frees_it_with_no_sweep(db: psycopg.Connection, connect: Connect) -> None:
    holder = connect()
    assert value(holder, TRY, "a")
    end(holder, db)
    assert rows(db, "SELECT * FROM pgqueue.locks") == []
    assert value(db, TRY, "a")


def test_close_session_frees_it(db: psycopg.Connection, connect: Connect) -> None:
    value(db, TRY, "a")
    value(db, SHARE, "b")
    value(db, SHARE, "b")
    value(db, "SELECT pgqueue.close_session()")
    assert left(db) == NOTHING
    assert value(connect(), TRY, "a")


@pytest.mark.parametrize("name", [None, "", "x" * 201])
def test_a_name_that_cannot_be(db: psycopg.Connection, name: str | None) -> None:
    with pytest.raises(psycopg.Error, match="a lock's name has 1 to 200 characters") as error:
        db.execute(TRY, [name])
    assert error.value.sqlstate == "PQ001"
    assert left(db) == NOTHING


def test_the_longest_name(db: psycopg.Connection) -> None:
    name = "\N{SNOWMAN}" * 200
    assert value(db, TRY, name)
    assert value(db, UNLOCK, name)


@pytest.mark.parametrize("arguments", [(None, 1, True), (True, None, True), (True, 1, None)])
def test_arguments_that_cannot_be(db: psycopg.Connection, arguments: tuple[object, ...]) -> None:
    with pytest.raises(psycopg.Error) as error:
        db.execute("SELECT pgqueue.ask_lock('a', %s::bool, %s::int8, %s::bool)", arguments)
    assert error.value.sqlstate == "PQ002"


# --- transactions


def test_a_rollback_does_not_release_it_and_unlock_does(db: psycopg.Connection, connect: Connect) -> None:
    other = connect()
    with db.transaction(force_rollback=True):
        assert value(db, TRY, "a")
    assert value(other, TRY, "a") is None
    assert value(db, TRY, "a")  # its row went with the rollback: now there are two locks
    assert value(db, UNLOCK, "a") is True
    assert value(db, UNLOCK, "a") is False
    assert left(db) == NOTHING
    assert value(other, TRY, "a")


def test_after_a_rollback_alone_unlock_does_too(db: psycopg.Connection) -> None:
    db.execute("SELECT pgqueue.open_session()")
    with db.transaction(force_rollback=True):
        assert value(db, SHARE, "a")
        assert value(db, SHARE, "a")
    assert value(db, UNLOCK, "a") is True
    assert left(db) == NOTHING


def test_an_error_behind_the_grant_leaves_no_lock(db: psycopg.Connection, connect: Connect) -> None:
    """A lock of the session does not go with the statement that failed."""
    user = connect()
    user.execute("SELECT pgqueue.open_session()")
    db.execute("ALTER SEQUENCE pgqueue.fence MAXVALUE 10 RESTART 10; SELECT nextval('pgqueue.fence')")
    for statement in (TRY, SHARE):
        with pytest.raises(psycopg.errors.SequenceGeneratorLimitExceeded):
            user.execute(statement, ["a"])
    assert left(db) == NOTHING


def test_an_open_transaction_keeps_nobody_waiting(db: psycopg.Connection, connect: Connect) -> None:
    """Neither one that was refused, nor one that unlocked; nor does it hold the session locks that it probed."""
    first, second = connect(), connect()
    ask(first, 1)
    ask(second, 2)
    with db.transaction():
        assert value(db, TRY, "a") is None
        assert drop(first, 1)
        assert ask(second, 2)
        assert value(connect(), "SELECT pgqueue.open_session(resume => pgqueue.open_session())") is not None
        assert drop(second, 2)


# --- the view


def test_the_view(db: psycopg.Connection, connect: Connect) -> None:
    holder, waiter = connect(), connect()
    session = value(holder, "SELECT pgqueue.open_session(label => 'host:17:app')")
    fence = value(holder, TRY, "a")
    ask(waiter, 1)
    shared = value(waiter, SHARE, "b")
    query = "SELECT name, mode, holder, backend_pid, session, fence, waiters FROM pgqueue.locks ORDER BY name"
    first, second = rows(db, query)
    assert first == ("a", "exclusive", "host:17:app", holder.info.backend_pid, session, fence, 1)
    assert (*second[:2], *second[3:4], *second[5:]) == ("b", "shared", waiter.info.backend_pid, shared, 0)
    assert value(db, "SELECT bool_and(age >= '0' AND locked_at <= clock_timestamp()) FROM pgqueue.locks")


def test_locks_of_the_application_are_not_shown_and_exclude(db: psycopg.Connection, connect: Connect) -> None:
    """It is one lock to the server, should somebody take it by hand."""
    db.execute("SELECT pg_advisory_lock(hashtextextended('a', 0))")
    assert rows(db, "SELECT * FROM pgqueue.locks") == []
    assert value(connect(), TRY, "a") is None


# --- the fence


def test_fences_rise_over_all_names(db: psycopg.Connection, connect: Connect) -> None:
    fences = []
    for i in range(100):
        fences.append(value(db, SHARE if i % 3 else TRY, f"lock {i % 7}"))
        value(db, UNLOCK, f"lock {i % 7}")
    assert fences == sorted(set(fences))


def test_a_grant_waits_for_the_log(db: psycopg.Connection) -> None:
    """Also on a connection that does not: else a crash could take the sequence back."""
    db.execute("SET synchronous_commit = off")
    value(db, TRY, "warm up")
    before = value(db, "SELECT pg_current_wal_insert_lsn()")
    value(db, TRY, "a")
    assert value(db, "SELECT pg_current_wal_flush_lsn() > %s::pg_lsn", before)
    assert value(db, "SHOW synchronous_commit") == "off"


# --- many at once


@pytest.mark.slow
def test_never_two_at_once(dsn: str, db: psycopg.Connection) -> None:
    """Eight connections, each trying as fast as it can."""
    inside = [0]
    most = [0]
    granted: list[int] = []
    enough = threading.Event()

    def contend() -> None:
        with psycopg.connect(dsn, autocommit=True) as conn:
            while not enough.is_set():
                if (fence := value(conn, TRY, "a")) is not None:
                    inside[0] += 1
                    most[0] = max(most[0], inside[0])
                    granted.append(fence)
                    inside[0] -= 1
                    assert value(conn, UNLOCK, "a")
                if len(granted) > 500:
                    enough.set()

    with ThreadPoolExecutor(8) as threads:
        for done in [threads.submit(contend) for _ in range(8)]:
            done.result(60)
    assert most == [1]
    assert granted == sorted(set(granted))
    assert left(db) == NOTHING


def test_names_of_all_kinds(db: psycopg.Connection) -> None:
    names = ["Ünïcödé", "a'b", 'a"b', "%s", "\n", "-- x"]
    assert all(value(db, TRY, name) for name in names)
    assert sorted(column(db, "SELECT name FROM pgqueue.locks")) == sorted(names)


# --- rights


@pytest.fixture
def user(db: psycopg.Connection, connect: Connect) -> Iterator[psycopg.Connection]:
    """A connection with no more rights than grant_to gives."""
    name = f"pgqueue_test_{uuid.uuid4().hex[:12]}"
    db.execute(f"CREATE ROLE {name}; SELECT pgqueue.grant_to('{name}')")
    yield connect(options=f"-c role={name}")
    db.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


def test_grant_to_is_enough(user: psycopg.Connection, connect: Connect) -> None:
    assert value(user, TRY, "a")
    waiter = connect()
    ask(waiter, 1)
    assert value(user, "SELECT (name, mode, waiters)::text FROM pgqueue.locks") == "(a,exclusive,1)"
    assert value(user, UNLOCK, "a") is True
    assert ask(waiter, 1)
    assert ask(user, 2) is None
    assert drop(user, 2) is False


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT pgqueue._free_locks(1)",
        "SELECT pgqueue._call_next('a')",
        "SELECT * FROM pgqueue.lock_holder",
        "DELETE FROM pgqueue.lock_ticket",
        "SELECT setval('pgqueue.fence', 1)",
    ],
)
def test_nothing_else_is_allowed(user: psycopg.Connection, statement: str) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        user.execute(statement)
