"""Sessions in SQL: one advisory lock ties takes to a connection's life; a sweep gives back what the dead held."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from eventually import Stopwatch, eventually
from statements import column, put, row, rows, state, take, value
from stepping import die, waiting

Connect = Any
OPEN = "SELECT pgqueue.open_session(%s, %s, %s)"
TAKE_FOR = "SELECT id FROM pgqueue.take('q', %s)"
SWEEP = "SELECT freed FROM pgqueue.sweep()"


def open_session(conn: psycopg.Connection, resume: int | None = None, grace: str = "0", label: str = "x") -> int:
    return int(value(conn, OPEN, resume, grace, label))


def sweep(conn: psycopg.Connection) -> int:
    """How many tasks it gave back."""
    return int(value(conn, SWEEP))


# --- open, resume, close


def test_a_take_opens_a_session_if_there_is_none(db: psycopg.Connection) -> None:
    put(db, "q")
    assert value(db, "SELECT pgqueue.own_session()") is None
    take(db, "q")
    session = value(db, "SELECT pgqueue.own_session()")
    assert column(db, "SELECT session FROM pgqueue.tasks") == [session]
    assert rows(db, "SELECT id, taken FROM pgqueue.sessions") == [(session, 1)]
    put(db, "q")
    take(db, "q")
    assert rows(db, "SELECT id, taken FROM pgqueue.sessions") == [(session, 2)]


def test_a_session_can_be_taken_for_on_any_connection(db: psycopg.Connection, connect: Connect) -> None:
    session = open_session(db)
    id = put(db, "q")
    assert column(connect(), TAKE_FOR, session) == [id]
    assert column(db, "SELECT session FROM pgqueue.tasks") == [session]


def test_the_label_is_the_application_by_default(connect: Connect) -> None:
    conn = connect(application_name="psql of ada")
    conn.execute("SELECT pgqueue.open_session()")
    assert column(conn, "SELECT label FROM pgqueue.sessions") == [f"psql of ada, backend {conn.info.backend_pid}"]


def test_a_session_is_resumed_by_its_id(db: psycopg.Connection, connect: Connect) -> None:
    first = connect()
    session = open_session(first, grace="1 min")
    put(db, "q")
    id, token = take(first, "q")
    die(first, db)
    assert sweep(db) == 0
    assert value(db, "SELECT missing_since IS NOT NULL FROM pgqueue.sessions") is True
    second = connect()
    assert open_session(second, resume=session) == session
    query = "SELECT id, missing_since, backend_pid, taken FROM pgqueue.sessions"
    assert rows(db, query) == [(session, None, second.info.backend_pid, 1)]
    assert sweep(db) == 0
    assert row(db, "SELECT state FROM pgqueue.ack(%s, %s)", id, token) == ("done",)


def test_a_session_that_was_swept_is_another_one(db: psycopg.Connection, connect: Connect) -> None:
    first = connect()
    session = open_session(first)
    die(first, db)
    sweep(db)
    again = open_session(connect(), resume=session)
    assert again != session
    assert column(db, "SELECT id FROM pgqueue.sessions") == [again]


def test_resuming_waits_for_the_verdict_of_a_sweep(db: psycopg.Connection, connect: Connect) -> None:
    first, sweeper, back = connect(), connect(autocommit=False), connect()
    session = open_session(first)
    die(first, db)
    sweeper.execute(SWEEP)
    with waiting(back, db, OPEN, session, "0", "x") as answer:
        sweeper.commit()
    assert answer.result()[0][0] != session


def test_close_gives_everything_back_at_once(db: psycopg.Connection, connect: Connect) -> None:
    ids = [put(db, "q") for _ in range(3)]
    conn = connect()
    session = open_session(conn)
    conn.execute("SELECT FROM pgqueue.take_many('{q}', 2)")
    assert value(conn, "SELECT pgqueue.close_session()") == 2
    assert [state(db, id) for id in ids] == ["ready"] * 3
    assert column(db, "SELECT attempts FROM pgqueue.tasks") == [0, 0, 0]
    assert rows(db, "SELECT FROM pgqueue.sessions") == []
    assert value(conn, "SELECT pgqueue.own_session()") is None
    with pytest.raises(psycopg.DatabaseError) as raised:
        db.execute(TAKE_FOR, [session])
    assert raised.value.sqlstate == "PQ004"


def test_close_waits_for_a_claim_under_way(db: psycopg.Connection, connect: Connect) -> None:
    session = open_session(db)
    id = put(db, "q")
    claimer = connect(autocommit=False)
    claimer.execute(TAKE_FOR, [session])
    with waiting(db, connect(), "SELECT pgqueue.close_session()") as freed:
        claimer.commit()
    assert freed.result() == [(1,)]
    assert state(db, id) == "ready"


# --- death


def test_pq004_for_a_session_that_is_dead(db: psycopg.Connection, connect: Connect) -> None:
    conn = connect()
    session = open_session(conn, grace="1 min")
    id = put(db, "q")
    die(conn, db)
    for call in ("take('q', %s)", "take_many('{q}', 1, %s)"):
        with pytest.raises(psycopg.DatabaseError, match=f"session {session} is not alive") as raised:
            db.execute(f"SELECT * FROM pgqueue.{call}", [session])
        assert raised.value.sqlstate == "PQ004"
    assert state(db, id) == "ready"


def test_pq004_for_a_session_that_never_was(db: psycopg.Connection) -> None:
    put(db, "q")
    with pytest.raises(psycopg.DatabaseError, match="session 42 is not alive") as raised:
        db.execute(TAKE_FOR, [42])
    assert raised.value.sqlstate == "PQ004"


def test_a_sweep_gives_back_what_the_dead_held(db: psycopg.Connection, connect: Connect) -> None:
    ids = [put(db, "q") for _ in range(3)]
    conn = connect()
    open_session(conn, label="host:1:worker")
    conn.execute("SELECT FROM pgqueue.take_many('{q}', 2)")
    die(conn, db)
    assert sweep(db) == 2
    assert rows(db, "SELECT id, state, attempts, error FROM pgqueue.tasks ORDER BY id") == [
        (ids[0], "ready", 1, "its taker died: host:1:worker"),
        (ids[1], "ready", 1, "its taker died: host:1:worker"),
        (ids[2], "ready", 0, None),
    ]
    assert rows(db, "SELECT FROM pgqueue.sessions") == []


def test_a_grace_runs_from_when_a_sweep_found_it_missing(db: psycopg.Connection, connect: Connect) -> None:
    conn = connect()
    open_session(conn, grace="0.3 s")
    id = put(db, "q")
    take(conn, "q")
    die(conn, db)
    missing = Stopwatch()
    freed, again = rows(db, "SELECT freed, again FROM pgqueue.sweep()")[0]
    assert freed == 0
    assert 0.2 < again <= 0.3
    assert state(db, id) == "taken"
    assert eventually(lambda: sweep(db)) == 1
    assert missing() >= 0.3
    assert state(db, id) == "ready"


def test_a_sweep_never_takes_from_the_living(db: psycopg.Connection, connect: Connect) -> None:
    living = [connect() for _ in range(3)]
    for conn in living:
        open_session(conn)
        put(db, "q")
        take(conn, "q")
    die(living.pop(), db)
    assert sweep(db) == 1
    assert sweep(db) == 0
    assert column(db, "SELECT state FROM pgqueue.tasks ORDER BY id") == ["taken", "taken", "ready"]
    assert len(rows(db, "SELECT FROM pgqueue.sessions WHERE missing_since IS NULL")) == 2


def test_a_sweep_never_takes_from_its_own_session(db: psycopg.Connection) -> None:
    """Whose lock it could share, being its holder."""
    open_session(db)
    id = put(db, "q")
    take(db, "q")
    assert sweep(db) == 0
    assert state(db, id) == "taken"


def test_a_sweep_asks_the_living_that_took_on_other_connections(db: psycopg.Connection, connect: Connect) -> None:
    session = open_session(db)
    id = put(db, "q")
    claimer = connect()
    claimer.execute(TAKE_FOR, [session])
    die(claimer, db)
    assert sweep(connect()) == 0
    assert state(db, id) == "taken"


def test_two_sweeps_at_once_are_one(db: psycopg.Connection, connect: Connect) -> None:
    conn, other = connect(), connect(autocommit=False)
    open_session(conn)
    put(db, "q")
    take(conn, "q")
    die(conn, db)
    assert sweep(other) == 1
    assert sweep(db) == 0
    other.rollback()
    assert sweep(db) == 1


def test_after_a_restart_of_the_server_the_grace_is_ten_seconds_at_least(
    db: psycopg.Connection, connect: Connect
) -> None:
    """A restart frees every lock at once. Here an older epoch stands for it, by the rights of the owner."""
    conn = connect()
    open_session(conn)
    id = put(db, "q")
    take(conn, "q")
    die(conn, db)
    db.execute("UPDATE pgqueue.session SET epoch = epoch - interval '1 h'")
    assert sweep(db) == 0
    assert state(db, id) == "taken"


def test_pq002_for_a_sweep_with_an_old_snapshot(connect: Connect) -> None:
    conn = connect(autocommit=False)
    conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    with pytest.raises(psycopg.DatabaseError, match="READ COMMITTED") as raised:
        conn.execute(SWEEP)
    assert raised.value.sqlstate == "PQ002"


# --- undo_take


def test_undo_gives_back_what_was_taken_under_a_token(db: psycopg.Connection) -> None:
    session = open_session(db)
    for _ in range(5):
        put(db, "q")
    db.execute("SELECT FROM pgqueue.take_many('{q}', 2, new_token => 7)")
    db.execute("SELECT FROM pgqueue.take('q', new_token => 8)")
    undo = "SELECT pgqueue.undo_take(%s, 7)"
    assert value(db, undo, session) == 2
    assert column(db, "SELECT state FROM pgqueue.tasks ORDER BY id") == ["ready", "ready", "taken", "ready", "ready"]
    assert column(db, "SELECT DISTINCT attempts FROM pgqueue.tasks") == [0]
    assert value(db, undo, session) == 0


def test_undo_waits_for_the_claim_that_it_undoes(db: psycopg.Connection, connect: Connect) -> None:
    session = open_session(db)
    id = put(db, "q")
    claimer = connect(autocommit=False)
    claimer.execute("SELECT FROM pgqueue.take('q', %s, new_token => 7)", [session])
    with waiting(db, connect(), "SELECT pgqueue.undo_take(%s, 7)", session) as undone:
        claimer.commit()
    assert undone.result() == [(1,)]
    assert state(db, id) == "ready"


def test_what_was_acked_meanwhile_is_not_undone(db: psycopg.Connection) -> None:
    session = open_session(db)
    put(db, "q")
    (id,) = column(db, "SELECT id FROM pgqueue.take('q', new_token => 7)")
    db.execute("SELECT pgqueue.ack(%s, 7)", [id])
    assert value(db, "SELECT pgqueue.undo_take(%s, 7)", session) == 0
    assert rows(db, "SELECT FROM pgqueue.task") == []
