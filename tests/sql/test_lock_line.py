"""Locks in SQL: who stands in line, who is called, and what a session that comes back still has."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from eventually import eventually
from locks import NOTHING, SHARE, TRY, UNLOCK, ask, drop, end, left
from statements import notifications, rows, value

Connect = Any


# --- the line


def test_tickets_are_served_in_their_order(db: psycopg.Connection, connect: Connect) -> None:
    conns = [connect() for _ in range(4)]
    fences = [ask(conn, token) for token, conn in enumerate(conns)]
    assert fences[0]
    assert fences[1:] == [None] * 3
    for token in range(3):
        assert [ask(conn, i) for i, conn in enumerate(conns) if i > token] == [None] * (3 - token)
        assert drop(conns[token], token)
        assert [bool(ask(conn, i)) for i, conn in reversed(list(enumerate(conns))) if i > token] == [
            i == token + 1 for i in range(3, token, -1)
        ]
    assert drop(conns[3], 3)
    assert left(db) == NOTHING


def test_sharers_wait_behind_an_exclusive_one_and_go_together(db: psycopg.Connection, connect: Connect) -> None:
    holder, alone, one, two, last = (connect() for _ in range(5))
    assert ask(holder, 1, shared=True)
    assert ask(alone, 2) is None
    assert ask(one, 3, shared=True) is None
    assert ask(two, 4, shared=True) is None
    assert ask(last, 5) is None
    assert value(connect(), SHARE, "a") is None
    assert drop(holder, 1)
    assert ask(two, 4, shared=True) is None
    assert ask(alone, 2)
    assert ask(one, 3, shared=True) is None
    assert drop(alone, 2)
    assert ask(two, 4, shared=True)
    assert ask(one, 3, shared=True)
    assert ask(last, 5) is None
    assert drop(one, 3)
    assert ask(last, 5) is None
    assert drop(two, 4)
    assert ask(last, 5)


def test_try_lock_does_not_overtake(db: psycopg.Connection, connect: Connect) -> None:
    holder, waiter = connect(), connect()
    value(holder, TRY, "a")
    ask(waiter, 1)
    value(holder, UNLOCK, "a")
    assert value(db, TRY, "a") is None
    assert value(db, SHARE, "a") is None
    assert ask(waiter, 1)


def test_who_waits_with_his_session_gone_does_not_count(db: psycopg.Connection, connect: Connect) -> None:
    waiter = connect()
    value(db, TRY, "a")
    ask(waiter, 1)
    end(waiter, db)
    assert value(db, "SELECT waiters FROM pgqueue.locks") == 0
    value(db, UNLOCK, "a")
    assert value(db, TRY, "a")


def test_asking_again_changes_nothing(db: psycopg.Connection, connect: Connect) -> None:
    """So a question whose answer was lost may be repeated."""
    waiter = connect()
    fence = ask(db, 1)
    assert ask(db, 1) == fence
    assert ask(waiter, 2) is ask(waiter, 2) is None
    assert left(db) == (1, 1, 1)
    assert drop(db, 1) is True
    assert drop(db, 1) is False


def test_one_who_will_not_wait_any_more_leaves_the_line(db: psycopg.Connection, connect: Connect) -> None:
    waiter = connect()
    ask(db, 1)
    ask(waiter, 2)
    assert ask(waiter, 2, wait=False) is None
    assert left(db) == (1, 0, 1)


def test_nobody_drops_what_is_another_sessions(db: psycopg.Connection, connect: Connect) -> None:
    other = connect()
    value(other, "SELECT pgqueue.open_session()")
    ask(db, 1)
    assert drop(other, 1) is False
    assert left(db) == (1, 0, 1)


def test_ahead_counts_those_who_exclude_it(db: psycopg.Connection, connect: Connect) -> None:
    ask(db, 1, shared=True)
    conns = [connect() for _ in range(4)]
    for token, shared in enumerate((False, True, True, False), 2):
        ask(conns[token - 2], token, shared=shared)
    ahead = [
        value(conn, "SELECT ahead FROM pgqueue.ask_lock('a', %s, %s, true)", shared, token)
        for token, (conn, shared) in enumerate(zip(conns, (False, True, True, False), strict=True), 2)
    ]
    assert ahead == [0, 1, 1, 3]


# --- calls


@pytest.fixture
def calls(connect: Connect, db: psycopg.Connection) -> Any:
    """The tokens that were called since the last look."""
    ears = connect()
    heard: set[str] = set()

    def hear(*conns: psycopg.Connection) -> list[str]:
        """Listen for these sessions from now on, or tell what came."""
        for conn in conns:
            session = value(conn, "SELECT pgqueue.open_session()")
            channel = value(db, "SELECT pgqueue._lock_channel(%s)", session)
            heard.add(channel)
            ears.execute(f'LISTEN "{channel}"')
        if conns:
            return []
        payloads = []
        ears.execute("LISTEN marker")
        db.execute("NOTIFY marker")
        for note in ears.notifies(timeout=10):
            if note.channel == "marker":
                return payloads
            payloads.append(note.payload)
        raise AssertionError("the marker did not arrive")

    return hear


def test_the_next_one_is_called_and_nobody_else(db: psycopg.Connection, connect: Connect, calls: Any) -> None:
    conns = [connect() for _ in range(3)]
    calls(*conns)
    for token, conn in enumerate(conns):
        ask(conn, token)
    drop(conns[0], 0)
    assert calls() == ["1"]
    ask(conns[1], 1)
    drop(conns[1], 1)
    assert calls() == ["2"]


def test_sharers_are_called_together(db: psycopg.Connection, connect: Connect, calls: Any) -> None:
    conns = [connect() for _ in range(5)]
    calls(*conns)
    for token, (conn, shared) in enumerate(zip(conns, (False, True, True, False, True), strict=True)):
        ask(conn, token, shared=shared)
    drop(conns[0], 0)
    assert calls() == ["1", "2"]


def test_who_leaves_the_line_calls_those_whom_he_kept(db: psycopg.Connection, connect: Connect, calls: Any) -> None:
    holder, alone, sharer = conns = [connect() for _ in range(3)]
    calls(*conns)
    ask(holder, 0, shared=True)
    for leave in (lambda: drop(alone, 1), lambda: ask(alone, 1, wait=False)):
        ask(alone, 1)
        ask(sharer, 2, shared=True)
        leave()
        assert calls() == ["2"]
        assert ask(sharer, 2, shared=True)
        drop(sharer, 2)
        calls()


def test_the_dead_are_not_called(db: psycopg.Connection, connect: Connect, calls: Any) -> None:
    holder, dead, _ = conns = [connect() for _ in range(3)]
    calls(*conns)
    for token, conn in enumerate(conns):
        ask(conn, token)
    end(dead, db)
    drop(holder, 0)
    assert calls() == ["2"]


def test_the_end_of_a_session_calls(db: psycopg.Connection, connect: Connect, calls: Any) -> None:
    """In order, and by a sweep."""
    conns = [connect() for _ in range(4)]
    calls(*conns)
    for token, conn in enumerate(conns):
        ask(conn, token)
    conns[0].execute("SELECT pgqueue.close_session()")
    assert calls() == ["1"]
    assert ask(conns[1], 1)
    db.execute("UPDATE pgqueue.session SET grace = '0'")
    end(conns[1], db)
    eventually(lambda: db.execute("SELECT pgqueue.sweep()") and value(db, "SELECT count(*) FROM pgqueue.session") == 2)
    assert calls()[0] == "2"
    end(conns[2], db)  # first in line
    eventually(lambda: db.execute("SELECT pgqueue.sweep()") and value(db, "SELECT count(*) FROM pgqueue.session") == 1)
    assert "3" in calls()
    assert ask(conns[3], 3)
    assert left(db) == (1, 0, 1)


def test_without_waiters_nobody_is_notified(db: psycopg.Connection, connect: Connect) -> None:
    ears = connect()
    session = value(db, "SELECT pgqueue.open_session()")
    ears.execute(f'LISTEN "pgqueue:lock:{session}"')
    value(db, TRY, "a")
    value(db, UNLOCK, "a")
    assert notifications(ears, db) == []


# --- sessions that come back


def test_a_session_that_comes_back_keeps_its_place_and_not_its_lock(db: psycopg.Connection, connect: Connect) -> None:
    old = connect()
    session = value(old, "SELECT pgqueue.open_session(label => 'x', grace => '1 h')")
    assert ask(old, 1, "held")
    value(db, TRY, "a")
    ask(old, 2, "a")
    last = connect()
    ask(last, 3, "a")
    end(old, db)
    new = connect()
    assert value(new, "SELECT pgqueue.open_session(%s, label => 'x')", session) == session
    assert rows(db, "SELECT FROM pgqueue.locks WHERE name = 'held'") == []
    assert ask(new, 4, "held")  # its own row of before does not exclude it
    assert drop(new, 1) is False
    value(db, UNLOCK, "a")
    assert ask(last, 3, "a") is None
    assert ask(new, 2, "a")


def test_a_grant_of_a_connection_that_broke_is_a_new_request(db: psycopg.Connection, connect: Connect) -> None:
    old = connect()
    session = value(old, "SELECT pgqueue.open_session(label => 'x', grace => '1 h')")
    fence = ask(old, 1)
    end(old, db)
    new = connect()
    value(new, "SELECT pgqueue.open_session(%s, label => 'x')", session)
    assert ask(new, 1) > fence
    assert drop(new, 1) is True
    assert left(db) == NOTHING
