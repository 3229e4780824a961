"""Interleavings that the locks, snapshots and fences exist for, each stepped through by hand.

Two connections do in one fixed order what two processes do once in a million times. Each test is the proof of one
sentence in the head comments of sql/*/*.sql.
"""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest
from eventually import Stopwatch
from statements import column, notifications, put, row, rows, state, take, value
from stepping import die, waiting

Connect = Callable[..., psycopg.Connection]

ACK_MANY = "SELECT problem FROM pgqueue.ack_many(ARRAY [%s::bigint], ARRAY [%s::bigint])"
ACK_THESE = "SELECT problem FROM pgqueue.ack_many(%s::bigint[], %s::bigint[])"
ACK_FOR = "SELECT problem FROM pgqueue.ack_many(%s::bigint[], %s::bigint[], %s)"
TAKE_FOR = "SELECT id FROM pgqueue.take('q', session => %s)"


@pytest.fixture
def other(connect: Connect) -> psycopg.Connection:
    return connect()


def open_session(conn: psycopg.Connection, grace: str = "0") -> int:
    return int(value(conn, "SELECT pgqueue.open_session(grace => %s::interval, label => 'test')", grace))


# --- settling


def begin_touch(conn: psycopg.Connection, id: int, token: int) -> None:
    """Touch a take in a transaction that stays open."""
    conn.execute("BEGIN")
    conn.execute("SELECT pgqueue.touch(%s, %s, more => '1 min')", [id, token])


def test_an_ack_waits_for_a_touch_and_counts(
    db: psycopg.Connection, other: psycopg.Connection, connect: Connect
) -> None:
    """The touched take has moved to a place that the ack's snapshot does not see."""
    put(db, "q", ttr="1 min")
    id, token = take(db, "q")
    begin_touch(other, id, token)
    with waiting(connect(), db, ACK_MANY, id, token) as ack:
        other.execute("COMMIT")
    assert ack.result() == []
    assert state(db, id) is None


def taken_of(db: psycopg.Connection, claims: int) -> tuple[list[int], list[int]]:
    """Three tasks that one claim has taken, or three: their ids, ascending, and the tokens."""
    for _ in range(3):
        put(db, "q", ttr="1 min")
    claim = "SELECT id, token FROM pgqueue.take_many('{q}', %s)"
    taken = [one for _ in range(claims) for one in rows(db, claim, 3 // claims)]
    return [id for id, _ in taken], [token for _, token in taken]


@pytest.mark.parametrize("claims", [1, 3])
def test_an_ack_of_many_waits_for_a_touch_and_counts(
    db: psycopg.Connection, other: psycopg.Connection, connect: Connect, claims: int
) -> None:
    ids, tokens = taken_of(db, claims)
    begin_touch(other, ids[1], tokens[1])
    with waiting(connect(), db, ACK_THESE, ids, tokens) as ack:
        other.execute("COMMIT")
    assert ack.result() == []
    assert [state(db, id) for id in ids] == [None] * 3


def taken_for(conn: psycopg.Connection, session: int) -> tuple[list[int], list[int]]:
    """Three tasks that a session has taken: their ids, ascending, and the tokens."""
    for _ in range(3):
        put(conn, "q", ttr="1 min")
    taken = rows(conn, "SELECT id, token FROM pgqueue.take_many('{q}', 3, session => %s)", session)
    return [id for id, _ in taken], [token for _, token in taken]


def test_an_ack_of_many_by_its_session_waits_for_a_touch_and_counts(
    db: psycopg.Connection, other: psycopg.Connection, connect: Connect
) -> None:
    mine = connect()
    session = open_session(mine)
    ids, tokens = taken_for(mine, session)
    begin_touch(other, ids[1], tokens[1])
    with waiting(mine, db, ACK_FOR, ids, None, session) as ack:
        other.execute("COMMIT")
    assert ack.result() == []
    assert [state(db, id) for id in ids] == [None] * 3


def test_a_wrong_token_is_refused_also_in_the_session_of_the_take(db: psycopg.Connection) -> None:
    session = open_session(db)
    ids, tokens = taken_for(db, session)
    assert rows(db, ACK_FOR, ids, [None, tokens[1] + 1, tokens[2]], session) == [("taken by another",)]
    assert [state(db, id) for id in ids] == [None, "taken", None]


@pytest.mark.parametrize("claims", [1, 3])
def test_two_acks_of_the_same_tasks_do_not_deadlock(
    db: psycopg.Connection, other: psycopg.Connection, connect: Connect, claims: int
) -> None:
    """The first has the first take and waits for the second; in another order the other one would have the third."""
    ids, tokens = taken_of(db, claims)
    begin_touch(other, ids[1], tokens[1])
    with (
        waiting(connect(), db, ACK_THESE, ids[::-1], tokens[::-1]) as late,
        waiting(connect(), db, ACK_THESE, ids, tokens) as early,
    ):
        other.execute("COMMIT")
    assert sorted([late.result(), early.result()]) == [[], [("not found",)] * 3]


def test_a_token_counts_for_its_own_task_alone(db: psycopg.Connection) -> None:
    ids, tokens = taken_of(db, 3)
    assert rows(db, ACK_THESE, ids, [tokens[1], tokens[0], tokens[2]]) == [("taken by another",)] * 2
    assert rows(db, ACK_THESE, ids[:2], [tokens[0]] * 2) == [("taken by another",)]
    assert [state(db, id) for id in ids] == [None, "taken", None]


def test_two_acks_of_one_take_count_once(db: psycopg.Connection, other: psycopg.Connection, connect: Connect) -> None:
    put(db, "q")
    id, token = take(db, "q")
    other.execute("BEGIN")
    other.execute("SELECT pgqueue.ack(%s, %s)", [id, token])
    with waiting(connect(), db, ACK_MANY, id, token) as second:
        other.execute("COMMIT")
    assert second.result() == [("not found",)]


def test_an_ack_that_rolls_back_leaves_the_take(db: psycopg.Connection, other: psycopg.Connection) -> None:
    put(db, "q")
    id, token = take(db, "q")
    with other.transaction(force_rollback=True):
        assert value(other, "SELECT state FROM pgqueue.ack(%s, %s)", id, token) == "done"
        assert rows(db, "SELECT id FROM pgqueue.take('q')") == []
    assert state(db, id) == "taken"


@pytest.mark.parametrize("verb", ["SELECT pgqueue.delete(%s)", "SELECT pgqueue.bury(%s)"])
def test_who_removes_a_task_removes_a_take_that_was_under_way(
    db: psycopg.Connection, other: psycopg.Connection, connect: Connect, verb: str
) -> None:
    """The claim's take was invisible when the verb looked for it; the verb then waited for the task's row."""
    id = put(db, "q")
    other.execute("BEGIN")
    take(other, "q")
    with waiting(connect(), db, verb, id):
        other.execute("COMMIT")
    assert rows(db, "SELECT * FROM pgqueue.take WHERE task_id = %s", id) == []
    assert row(db, "SELECT taken, ready FROM pgqueue.stats") == (0, 0)


# --- snapshots


def test_a_claim_with_an_old_snapshot_takes_nothing_twice(db: psycopg.Connection, other: psycopg.Connection) -> None:
    put(db, "q")
    with other.transaction():
        other.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        value(other, "SELECT count(*) FROM pgqueue.task")
        take(db, "q")
        with pytest.raises(psycopg.errors.SerializationFailure), other.transaction():
            other.execute("SELECT * FROM pgqueue.take('q')")


def test_a_pop_with_an_old_snapshot_is_refused(db: psycopg.Connection, other: psycopg.Connection) -> None:
    """It does not see the take, and would return a task that somebody is at."""
    put(db, "q")
    with other.transaction():
        other.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        value(other, "SELECT count(*) FROM pgqueue.task")
        take(db, "q")
        with pytest.raises(psycopg.Error, match="READ COMMITTED") as refused, other.transaction():
            other.execute("SELECT * FROM pgqueue.pop('q')")
    assert refused.value.sqlstate == "PQ002"


# --- sessions


def test_a_claim_under_way_is_swept_after_it_committed(
    db: psycopg.Connection, other: psycopg.Connection, connect: Connect
) -> None:
    """The take that commits just as its session is swept does not survive, and the sweep does not wait for it."""
    id = put(db, "q")
    holder = connect()
    session = open_session(holder)
    with other.transaction():
        assert column(other, TAKE_FOR, session) == [id]
        die(holder, db)
        assert value(db, "SELECT freed FROM pgqueue.sweep()") == 0
    assert state(db, id) == "taken"
    assert value(db, "SELECT freed FROM pgqueue.sweep()") == 1
    assert state(db, id) == "ready"


def test_a_claim_that_waited_for_the_sweep_is_refused(
    db: psycopg.Connection, other: psycopg.Connection, connect: Connect
) -> None:
    put(db, "q")
    holder = connect()
    session = open_session(holder)
    die(holder, db)
    other.execute("BEGIN")
    other.execute("SELECT pgqueue.sweep()")
    with waiting(connect(), db, TAKE_FOR, session) as claim:
        other.execute("COMMIT")
    refused = claim.exception()
    assert isinstance(refused, psycopg.Error)
    assert refused.sqlstate == "PQ004"


def test_no_claim_believes_in_a_swept_session_that_somebody_resumes(
    db: psycopg.Connection, other: psycopg.Connection, connect: Connect
) -> None:
    """T1 resumes while a sweep ends the session. T1 gets CLAIMING and SESSION before it finds that the row is gone: a
    take that a claim made for the session then would belong to no session."""
    put(db, "q")
    holder, sweeper = connect(), connect(autocommit=False)
    session = open_session(holder)
    die(holder, db)
    sweeper.execute("SELECT pgqueue.sweep()")
    other.execute("SELECT pg_advisory_lock_shared(pgqueue._session_lock(), %s)", [session])  # T1 is to wait here
    reopen = "SELECT pgqueue.open_session(resume => %s, label => 'test')"
    with waiting(connect(), db, reopen, session) as resumed:
        sweeper.commit()
        with waiting(connect(), db, TAKE_FOR, session) as claim:
            other.execute("SELECT pg_advisory_unlock_all()")
    assert resumed.result() != [(session,)]
    assert claim.exception() is not None
    orphans = "SELECT * FROM pgqueue.take k WHERE NOT EXISTS (SELECT FROM pgqueue.session s WHERE s.id = k.session_id)"
    assert rows(db, orphans) == []


def test_a_sweep_does_not_wait_for_an_open_ack(
    db: psycopg.Connection, other: psycopg.Connection, connect: Connect
) -> None:
    """It frees the rest at once, and what is being settled when that transaction has rolled back."""
    first, second = put(db, "q"), put(db, "q")
    holder = connect()
    session = open_session(holder)
    column(db, TAKE_FOR, session), column(db, TAKE_FOR, session)
    with other.transaction(force_rollback=True):
        other.execute("SELECT pgqueue.ack(%s, session => %s)", [first, session])
        die(holder, db)
        db.execute("SET lock_timeout = '1s'")
        assert value(db, "SELECT freed FROM pgqueue.sweep()") == 1
        assert state(db, second) == "ready"
    assert value(db, "SELECT freed FROM pgqueue.sweep()") == 1
    assert state(db, first) == "ready"
    assert value(db, "SELECT count(*) FROM pgqueue.session") == 0


def test_the_grace_after_a_restart_begins_with_the_server(db: psycopg.Connection, connect: Connect) -> None:
    """A session that was found missing just before a long restart still gets its time to come back."""
    put(db, "q")
    holder = connect()
    session = open_session(holder)
    column(db, TAKE_FOR, session)
    die(holder, db)
    started = value(db, "SELECT pg_postmaster_start_time()")
    db.execute(
        "UPDATE pgqueue.session SET epoch = %s::timestamptz - interval '1 h',"
        " missing_since = clock_timestamp() - interval '1 h', grace = clock_timestamp() - %s + interval '1 min'",
        [started, started],
    )
    assert value(db, "SELECT freed FROM pgqueue.sweep()") == 0


def test_takes_that_roll_back_leave_no_locks_behind(db: psycopg.Connection, other: psycopg.Connection) -> None:
    """The row of a connection's own session goes with the transaction, its lock does not."""
    put(db, "q")
    for _ in range(3):
        with other.transaction(force_rollback=True):
            take(other, "q")
    locks = "SELECT count(*) FROM pg_locks WHERE classid = pgqueue._session_lock()"
    assert value(db, locks) == 1
    assert take(other, "q")


# --- waking


@pytest.mark.parametrize("event", ["sweep", "promotion", "undone take"])
def test_what_a_listener_makes_ready_wakes_its_own_takers(
    db: psycopg.Connection, other: psycopg.Connection, connect: Connect, event: str
) -> None:
    """A listener's probe does not see the WAITER lock that it holds itself."""
    id = put(db, "q", delay="1 h") if event == "promotion" else put(db, "q")
    queue = value(db, "SELECT pgqueue.queue_id('q')")
    holder = connect()
    session = open_session(holder)
    if event != "promotion":
        other.execute("SELECT * FROM pgqueue.take('q', session => %s, new_token => 7)", [session])
    db.execute(f'LISTEN "pgqueue:{queue}"')
    assert rows(db, "SELECT queue_id, drained FROM pgqueue.arm(ARRAY [%s])", queue) == [(queue, True)]
    if event == "sweep":
        die(holder, other)
        db.execute("SELECT pgqueue.sweep()")
    elif event == "promotion":
        db.execute("UPDATE pgqueue.task SET run_at = now()")
        db.execute("SELECT pgqueue.promote_all()")
    else:
        db.execute("SELECT pgqueue.undo_take(7)")
    assert notifications(db, other) == [f"pgqueue:{queue}"]
    assert state(db, id) == "ready"


def test_nothing_is_due_in_a_queue_whose_tasks_are_taken(db: psycopg.Connection) -> None:
    """0 would have every waiting taker look again four times a second."""
    put(db, "q")
    take(db, "q")
    assert row(db, "SELECT * FROM pgqueue.next_due(ARRAY ['q'])") == ("q", None)
    passed = Stopwatch()
    put(db, "q", ttr="1 min")
    take(db, "q")
    left = value(db, "SELECT seconds FROM pgqueue.next_due(ARRAY ['q'])")
    assert 60 - passed() < left <= 60
    db.execute("UPDATE pgqueue.take SET deadline = now() - interval '1 s' WHERE deadline < 'infinity'")
    assert value(db, "SELECT seconds FROM pgqueue.next_due(ARRAY ['q'])") == 0
