"""Sessions in SQL: one advisory lock ties takes to a connection's life; a sweep gives back what the dead held."""

from __future__ import annotations

import json
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
        (ids[0], "ready", 0, None),
        (ids[1], "ready", 0, None),
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
    assert 0.3 - missing() <= again <= 0.3
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

UNDO = "SELECT pgqueue.undo_take(7)"
CLAIMS = {
    "take": "SELECT FROM pgqueue.take('q', %s, new_token => 7)",
    "take_many": "SELECT FROM pgqueue.take_many('{q}', 2, %s, new_token => 7)",
    "take_id": "SELECT FROM pgqueue.take_id((SELECT min(id) FROM pgqueue.tasks), %s, new_token => 7)",
}
claims = pytest.mark.parametrize("claim", CLAIMS.values(), ids=CLAIMS)


def test_undo_gives_back_what_was_taken_under_a_token(db: psycopg.Connection, connect: Connect) -> None:
    for _ in range(5):
        put(db, "q")
    db.execute("SELECT FROM pgqueue.take_many('{q}', 2, new_token => 7)")
    db.execute("SELECT FROM pgqueue.take('q', new_token => 8)")
    other = connect()
    assert value(other, UNDO) == 2
    assert column(db, "SELECT state FROM pgqueue.tasks ORDER BY id") == ["ready", "ready", "taken", "ready", "ready"]
    assert column(db, "SELECT DISTINCT attempts FROM pgqueue.tasks") == [0]
    assert value(other, UNDO) == 0


@claims
def test_undo_of_a_claim_under_way_is_asked_again(db: psycopg.Connection, connect: Connect, claim: str) -> None:
    session = open_session(db)
    put(db, "q")
    claimer, other = connect(autocommit=False), connect()
    claimer.execute(claim, [session])
    assert value(other, UNDO) is None
    claimer.commit()
    assert value(other, UNDO) == 1
    assert column(db, "SELECT state FROM pgqueue.tasks") == ["ready"]


def test_undo_does_not_wait_for_other_claims_of_the_session(db: psycopg.Connection, connect: Connect) -> None:
    session = open_session(db)
    put(db, "q"), put(db, "q")
    db.execute("SELECT FROM pgqueue.take('q', new_token => 7)")
    connect(autocommit=False).execute(TAKE_FOR, [session])
    assert value(connect(), UNDO) == 1


@claims
@pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ"])
def test_a_claim_that_arrives_after_its_undo_is_refused(
    db: psycopg.Connection, connect: Connect, claim: str, isolation: str
) -> None:
    """Also one whose snapshot is older than the undo."""
    session = open_session(db)
    id = put(db, "q")
    late, undoer = connect(autocommit=False), connect()
    late.execute(f"SET TRANSACTION ISOLATION LEVEL {isolation}")
    late.execute("SELECT FROM pgqueue.task")
    assert value(undoer, UNDO) == 0
    with pytest.raises(psycopg.DatabaseError, match="the claim with the token 7 was undone") as raised:
        late.execute(claim, [session])
    assert raised.value.sqlstate == "PQ005"
    assert state(db, id) == "ready"
    assert value(undoer, "SELECT pgqueue.forget_undo(7)") is True
    late.rollback()
    late.execute(claim, [session])
    late.commit()
    assert state(db, id) == "taken"


@claims
def test_a_claim_that_stalls_before_it_enters_is_refused(db: psycopg.Connection, connect: Connect, claim: str) -> None:
    """CLAIMING, held by another transaction, stalls it as a slow server or network would."""
    session = open_session(db)
    id = put(db, "q")
    blocker, late, undoer = connect(autocommit=False), connect(), connect()
    blocker.execute("SELECT pg_advisory_xact_lock(pgqueue._claiming_lock(), %s)", [session])
    with waiting(late, db, claim, session) as answer:
        assert value(undoer, UNDO) == 0
        blocker.rollback()
    with pytest.raises(psycopg.DatabaseError, match="was undone"):
        answer.result()
    assert state(db, id) == "ready"


def test_what_was_acked_meanwhile_is_not_undone(db: psycopg.Connection) -> None:
    open_session(db)
    put(db, "q")
    (id,) = column(db, "SELECT id FROM pgqueue.take('q', new_token => 7)")
    db.execute("SELECT pgqueue.ack(%s, 7)", [id])
    assert value(db, UNDO) == 0
    assert rows(db, "SELECT FROM pgqueue.task") == []


def test_an_undo_of_a_take_that_is_locked_is_asked_again(db: psycopg.Connection, connect: Connect) -> None:
    put(db, "q")
    db.execute("SELECT FROM pgqueue.take('q', new_token => 7)")
    locker, undoer = connect(autocommit=False), connect()
    locker.execute("SELECT FROM pgqueue.take FOR UPDATE")
    assert value(undoer, UNDO) is None
    locker.commit()
    assert value(undoer, UNDO) == 1


def test_an_undo_of_a_locked_table_is_asked_again_and_leaves_no_lock(db: psycopg.Connection, connect: Connect) -> None:
    locker, undoer = connect(autocommit=False), connect()
    locker.execute("LOCK TABLE pgqueue.take IN EXCLUSIVE MODE")
    assert value(undoer, UNDO) is None
    assert value(db, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") == 0


# --- sessions without a row, and rows without a lock


@pytest.mark.parametrize("ended", ["swept", "deleted"])
@pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ"])
def test_a_connection_whose_session_ended_takes_for_a_new_one(
    db: psycopg.Connection, connect: Connect, ended: str, isolation: str
) -> None:
    """pg_advisory_unlock_all() frees its lock, as a pooler's reset query does: a sweep then ends the session."""
    taker = connect()
    open_session(taker)
    put(db, "q")
    taker.execute("SELECT pg_advisory_unlock_all()")
    if ended == "swept":
        sweep(db)
    else:
        db.execute("DELETE FROM pgqueue.session")
    taker.execute("SET default_transaction_isolation = '" + isolation.lower() + "'")
    id, _ = take(taker, "q")
    assert sweep(db) == 0
    assert column(db, "SELECT session FROM pgqueue.tasks") == column(db, "SELECT id FROM pgqueue.session")
    die(taker, db)
    eventually(lambda: sweep(db) or state(db, id) == "ready")
    assert state(db, id) == "ready"


def test_a_connection_that_lost_its_lock_takes_it_again(db: psycopg.Connection, connect: Connect) -> None:
    """Its session is missing, but in its grace: the next take keeps what it had taken."""
    taker = connect()
    session = open_session(taker, grace="1 min")
    put(db, "q"), put(db, "q")
    first, _ = take(taker, "q")
    taker.execute("SELECT pg_advisory_unlock_all()")
    sweep(db)
    assert column(db, "SELECT missing_since IS NULL FROM pgqueue.session") == [False]
    take(taker, "q")
    assert rows(db, "SELECT id, missing_since FROM pgqueue.session") == [(session, None)]
    assert sweep(db) == 0
    assert state(db, first) == "taken"


def test_a_claim_with_an_old_snapshot_of_a_session_that_ended_fails(db: psycopg.Connection, connect: Connect) -> None:
    taker = connect(autocommit=False)
    open_session(taker)
    put(taker, "q")
    taker.commit()
    taker.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    taker.execute("SELECT FROM pgqueue.session")
    taker.execute("SELECT pg_advisory_unlock_all()")
    sweep(db)
    with pytest.raises(psycopg.errors.SerializationFailure):
        take(taker, "q")


def test_pq002_for_the_close_of_another_connections_living_session(db: psycopg.Connection, connect: Connect) -> None:
    session = open_session(db)
    put(db, "q")
    id, _ = take(db, "q")
    with pytest.raises(psycopg.DatabaseError, match=f"session {session} is alive, and another connection") as raised:
        connect().execute("SELECT pgqueue.close_session(%s)", [session])
    assert raised.value.sqlstate == "PQ002"
    assert state(db, id) == "taken"


def test_a_dead_session_can_be_closed_by_any_connection(db: psycopg.Connection, connect: Connect) -> None:
    dead = connect()
    session = open_session(dead, grace="1 h")
    put(db, "q")
    take(dead, "q")
    die(dead, db)
    assert value(db, "SELECT pgqueue.close_session(%s)", session) == 1


def test_clean_up_gives_back_takes_without_a_session(db: psycopg.Connection) -> None:
    ids = [put(db, "q") for _ in range(4)]
    db.execute("SELECT FROM pgqueue.take_many('{q}', 3)")
    db.execute("UPDATE pgqueue.take SET session_id = %s WHERE task_id = %s", [4711, ids[0]])
    db.execute("UPDATE pgqueue.take SET session_id = %s WHERE task_id = %s", [-4711, ids[1]])
    db.execute("SELECT pgqueue.claim_messages('q')")
    db.execute("SELECT pgqueue.clean_up()")
    assert column(db, "SELECT state FROM pgqueue.tasks ORDER BY id") == ["ready", "ready", "taken", "taken"]
    assert column(db, "SELECT error FROM pgqueue.tasks WHERE id = %s", ids[0]) == ["its taker left: session 4711"]


def test_a_sweep_says_that_the_own_session_is_gone(db: psycopg.Connection) -> None:
    assert value(db, "SELECT alive FROM pgqueue.sweep()") is True
    open_session(db)
    assert value(db, "SELECT alive FROM pgqueue.sweep()") is True
    db.execute("DELETE FROM pgqueue.session")
    assert value(db, "SELECT alive FROM pgqueue.sweep()") is False


# --- locked rows


def test_a_session_that_an_open_transaction_has_locked_holds_up_no_other(
    db: psycopg.Connection, connect: Connect
) -> None:
    """The transaction called close_session(); its process died, and a sweep cannot mark the session as missing."""
    closing, killed = connect(autocommit=False), connect()
    open_session(closing)
    closing.commit()
    open_session(killed)
    id = put(db, "q")
    take(killed, "q")
    closing.execute("SELECT pgqueue.close_session()")
    die(killed, db)
    db.execute("SET lock_timeout = '1 s'")
    assert sweep(db) == 1
    assert state(db, id) == "ready"


# --- clocks


@pytest.mark.parametrize("epoch", ["now", "earlier"])
def test_a_session_that_is_missing_since_the_future_is_missing_as_of_now(
    db: psycopg.Connection, connect: Connect, epoch: str
) -> None:
    """The clock stepped back since."""
    conn = connect()
    open_session(conn, grace="0.1 s" if epoch == "now" else "1 h")
    put(db, "q")
    take(conn, "q")
    die(conn, db)
    db.execute("UPDATE pgqueue.session SET missing_since = clock_timestamp() + interval '1 h'")
    if epoch == "earlier":
        db.execute("UPDATE pgqueue.session SET epoch = epoch - interval '1 h'")
    freed, again = rows(db, "SELECT freed, again FROM pgqueue.sweep()")[0]
    assert freed == 0
    assert again <= (0.1 if epoch == "now" else 3600)
    assert column(db, "SELECT missing_since <= clock_timestamp() FROM pgqueue.session") == [True]
    if epoch == "now":
        assert eventually(lambda: sweep(db)) == 1


def left(conn: psycopg.Connection, started: str, missing: str, epoch: str = "started", grace: str = "1 s") -> float:
    """The seconds that are left of a grace, at noon, on a server that started at that time."""
    source = value(conn, "SELECT prosrc FROM pg_proc WHERE proname = '_grace_left'")
    source = source.replace("pg_postmaster_start_time()", f"timestamptz '2030-01-01 {started}+00'")
    conn.execute(
        f"CREATE OR REPLACE FUNCTION pg_temp.grace_left(s pgqueue.session, moment timestamptz) RETURNS interval"
        f" LANGUAGE plpgsql AS $f${source}$f$"
    )
    session = {
        "id": 1,
        "label": "x",
        "grace": grace,
        "backend_pid": 1,
        "started_at": "2030-01-01 00:00+00",
        "missing_since": f"2030-01-01 {missing}+00",
        "epoch": f"2030-01-01 {started if epoch == 'started' else epoch}+00",
    }
    query = (
        "SELECT extract(epoch FROM pg_temp.grace_left(s, '2030-01-01 12:00+00'))::float8"
        " FROM json_populate_record(NULL::pgqueue.session, %s::json) s"
    )
    return float(value(conn, query, json.dumps(session)))


@pytest.mark.parametrize(
    ("started", "missing", "epoch", "expected"),
    [
        ("11:00:00", "11:59:59.5", "started", 0.5),
        ("11:59:59.5", "11:00:00", "11:00:00", 9.5),  # missing before a restart: it counts from the restart
        ("13:00:00", "11:59:59.5", "started", 0.5),  # the clock stepped back after the start
        ("13:00:00", "12:00:00", "11:00:00", 10.0),
        ("13:00:00", "11:59:00", "started", -59.0),
        ("11:00:00", "12:30:00", "started", 1.0),  # and after the session was found missing
    ],
)
def test_the_grace_that_is_left(
    db: psycopg.Connection, started: str, missing: str, epoch: str, expected: float
) -> None:
    assert left(db, started, missing, epoch) == expected
