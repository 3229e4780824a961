"""Observed queues in SQL: which changes are told, how, and to the end of whose session."""

from __future__ import annotations

import uuid
from typing import Any

import psycopg
import pytest
from eventually import eventually
from statements import put, row, rows, take, value
from stepping import die, gone, waiting

Connect = Any
OBSERVE = "SELECT pgqueue.observe(pgqueue.queue_id(%s))"
UNOBSERVE = "SELECT pgqueue.unobserve(pgqueue.queue_id(%s))"
SWEEP = "SELECT pgqueue.sweep()"


def observed(conn: psycopg.Connection, queue: str = "q") -> bool:
    return bool(value(conn, "SELECT observed FROM pgqueue.queue WHERE name = %s", queue))


def told(ear: psycopg.Connection, sender: psycopg.Connection) -> list[tuple[str, list[int]]]:
    """What `ear` was told so far: each verb with its ids. No silence is waited for: a marker follows all the rest."""
    ear.execute("LISTEN marker")
    sender.execute("NOTIFY marker")
    heard = []
    for note in ear.notifies(timeout=10):
        if note.channel == "marker":
            return heard
        verb, _, ids = note.payload.split(" ")
        heard.append((verb, [int(id) for id in ids.split(",")]))
    raise AssertionError("the marker did not arrive")


@pytest.fixture
def ear(connect: Connect) -> psycopg.Connection:
    """A connection that observes q and hears of its changes."""
    conn = connect()
    channel = value(conn, OBSERVE, "q")
    conn.execute(f'LISTEN "{channel}"')
    return conn


def test_every_verb_is_told(db: psycopg.Connection, ear: psycopg.Connection) -> None:
    id = put(db, "q")
    _, token = take(db, "q")
    db.execute("SELECT pgqueue.touch(%s, %s)", [id, token])
    db.execute("SELECT pgqueue.release(%s, %s)", [id, token])
    db.execute("SELECT pgqueue.bury(%s)", [id])
    db.execute("SELECT pgqueue.kick('q')")
    take(db, "q")
    db.execute("SELECT pgqueue.ack(%s)", [id])
    other = put(db, "q")
    db.execute("SELECT pgqueue.delete(%s)", [other])
    verbs = ["put", "take", "touch", "release", "bury", "kick", "take", "delete"]
    assert told(ear, db) == [(verb, [id]) for verb in verbs] + [("put", [other]), ("delete", [other])]


def test_what_time_does_is_told(db: psycopg.Connection, ear: psycopg.Connection) -> None:
    delayed = put(db, "q", delay="1 h")
    slow = put(db, "q", ttr="1 h")
    take(db, "q")
    old = put(db, "q", ttl="1 h")
    db.execute("UPDATE pgqueue.task SET run_at = now() - interval '1 s' WHERE id = %s", [delayed])
    db.execute("UPDATE pgqueue.take SET deadline = now() - interval '1 s'")
    db.execute("UPDATE pgqueue.task SET expires_at = now() - interval '1 s' WHERE id = %s", [old])
    told(ear, db)
    db.execute("SELECT pgqueue.promote_all()")
    assert told(ear, db) == [("delay", [delayed]), ("ttr", [slow]), ("ttl", [old])]


def test_many_at_once_are_told_in_portions(db: psycopg.Connection, ear: psycopg.Connection) -> None:
    """At most 7999 bytes fit in a notification, and a portion fits if ids have the 19 digits of a bigint."""
    db.execute("ALTER TABLE pgqueue.task ALTER id SET NO MAXVALUE RESTART WITH 9000000000000000000")
    db.execute("SELECT pgqueue.put_many('q', to_jsonb(array_fill(0, ARRAY[1000])))")
    ids = [id for (id,) in rows(db, "SELECT id FROM pgqueue.take_many('{q}', 1000)")]
    db.execute("SELECT FROM pgqueue.ack_many(%s)", [ids])
    heard = told(ear, db)
    for verb in ("put", "take", "delete"):
        assert [id for other, some in heard if other == verb for id in some] == ids
    assert [len(some) for verb, some in heard if verb == "take"] == [350, 350, 300]


def test_the_same_change_twice_in_one_transaction_is_told_twice(
    db: psycopg.Connection, ear: psycopg.Connection
) -> None:
    id = put(db, "q")
    take(db, "q")
    told(ear, db)
    with db.transaction():
        db.execute("SELECT pgqueue.touch(%s)", [id])
        db.execute("SELECT pgqueue.touch(%s)", [id])
    assert told(ear, db) == [("touch", [id])] * 2


def test_a_rollback_tells_nothing(db: psycopg.Connection, ear: psycopg.Connection) -> None:
    with db.transaction(force_rollback=True):
        put(db, "q")
    assert told(ear, db) == []


def test_a_death_is_a_release(db: psycopg.Connection, ear: psycopg.Connection, connect: Connect) -> None:
    doomed = connect()
    doomed.execute("SELECT pgqueue.open_session(grace => '0')")
    id = put(db, "q")
    take(doomed, "q")
    die(doomed, db)
    told(ear, db)
    db.execute(SWEEP)
    assert told(ear, db) == [("release", [id])]


def test_other_queues_are_silent_and_plain(db: psycopg.Connection, ear: psycopg.Connection) -> None:
    put(db, "other")
    take(db, "other")
    assert told(ear, db) == []
    assert row(db, "SELECT observed, special FROM pgqueue.queue WHERE name = 'other'") == (False, False)


def test_the_last_who_leaves_makes_the_queue_plain_again(db: psycopg.Connection, connect: Connect) -> None:
    one, two = connect(), connect()
    assert value(one, OBSERVE, "q") == value(two, OBSERVE, "q") == value(one, OBSERVE, "q")
    assert value(one, UNOBSERVE, "q") is True
    assert value(one, UNOBSERVE, "q") is False
    assert observed(db) is True
    assert value(two, UNOBSERVE, "q") is True
    assert row(db, "SELECT observed, special FROM pgqueue.queue") == (False, False)


def test_who_leaves_waits_for_who_comes_and_sees_it(db: psycopg.Connection, connect: Connect) -> None:
    """Else the one turns off what the other found turned on."""
    one, two = connect(), connect(autocommit=False)
    one.execute(OBSERVE, ["q"])
    two.execute(OBSERVE, ["q"])
    with waiting(one, db, UNOBSERVE, "q"):
        two.commit()
    assert observed(db) is True


def test_there_is_nothing_to_observe_without_a_queue(db: psycopg.Connection) -> None:
    assert value(db, "SELECT pgqueue.observe(12345)") is None
    assert rows(db, "SELECT FROM pgqueue.observer") == []


def test_pq004_for_a_session_that_never_was(db: psycopg.Connection) -> None:
    with pytest.raises(psycopg.DatabaseError, match="session 42 is not alive") as raised:
        db.execute("SELECT pgqueue.observe(pgqueue.queue_id('q'), 42)")
    assert raised.value.sqlstate == "PQ004"


def test_a_restricted_queue_is_observed_by_those_only_who_may_use_it(db: psycopg.Connection, connect: Connect) -> None:
    names = [f"pgqueue_test_{uuid.uuid4().hex[:12]}" for _ in range(2)]
    try:
        for name in names:
            db.execute(f"CREATE ROLE {name}")
            db.execute("SELECT pgqueue.grant_to(%s)", [name])
        db.execute("SELECT pgqueue.grant('q', %s::regrole), pgqueue.restrict_queue('q')", [names[0]])
        allowed, other = (connect(options=f"-c role={name}") for name in names)
        assert value(allowed, OBSERVE, "q") is not None
        assert value(allowed, UNOBSERVE, "q") is True
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            other.execute(OBSERVE, ["q"])
        assert observed(db) is False
    finally:
        for name in names:
            db.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


@pytest.mark.parametrize("ending", ["close", "death"])
def test_it_ends_with_the_session(db: psycopg.Connection, connect: Connect, ending: str) -> None:
    conn = connect()
    conn.execute("SELECT pgqueue.open_session(grace => '0')")
    conn.execute(OBSERVE, ["q"])
    if ending == "close":
        conn.execute("SELECT pgqueue.close_session()")
    else:
        die(conn, db)
        db.execute(SWEEP)
    assert observed(db) is False
    assert rows(db, "SELECT FROM pgqueue.observer") == []


def test_a_sweep_does_not_wait_for_a_queue_that_is_locked(db: psycopg.Connection, connect: Connect) -> None:
    conn, busy = connect(), connect(autocommit=False)
    conn.execute("SELECT pgqueue.open_session(grace => '0')")
    conn.execute(OBSERVE, ["q"])
    die(conn, db)
    busy.execute("SELECT FROM pgqueue.queue FOR UPDATE")
    db.execute("SET lock_timeout = '5 s'")
    db.execute(SWEEP)
    assert rows(db, "SELECT FROM pgqueue.sessions") == []
    assert observed(db) is True
    busy.rollback()
    db.execute("SELECT pgqueue.clean_up()")
    assert observed(db) is False


def test_what_a_crash_of_the_server_left_is_cleaned(db: psycopg.Connection, connect: Connect) -> None:
    """It empties the tables of sessions and observers, and not that of queues."""
    conn = connect()
    conn.execute(OBSERVE, ["q"])
    pid = conn.info.backend_pid
    conn.close()
    eventually(lambda: gone(db, pid))
    db.execute("TRUNCATE pgqueue.session, pgqueue.observer")
    db.execute("SELECT pgqueue.clean_up()")
    assert observed(db) is False
