"""Verbs for one task by its id, and what is next in a queue, in SQL."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from eventually import eventually
from statements import column, everything, put, row, rows, state, take, value

Connect = Any
TAKE_ID = "SELECT state, problem, holder FROM pgqueue.take_id(%s)"
DELETE = "SELECT problem FROM pgqueue.delete_strict(%s, %s)"


def buried(db: psycopg.Connection, **options: Any) -> int:
    id = put(db, "q", **options)
    db.execute("SELECT pgqueue.bury(%s)", [id])
    return id


def is_blocked(db: psycopg.Connection, conn: psycopg.Connection) -> bool:
    query = "SELECT wait_event_type IS NOT DISTINCT FROM 'Lock' FROM pg_stat_activity WHERE pid = %s"
    return bool(value(db, query, conn.info.backend_pid))


# --- take_id


@pytest.mark.parametrize("now", ["ready", "delayed", "buried"])
def test_take_id_takes_from_any_place(db: psycopg.Connection, connect: Connect, now: str) -> None:
    put(db, "q")
    id = buried(db) if now == "buried" else put(db, "q", delay="1 h" if now == "delayed" else "0")
    found = row(db, "SELECT state, problem, queue, data, deadline, token FROM pgqueue.take_id(%s)", id)
    assert found is not None
    assert found[:5] == ("taken", None, "q", "data", None)
    assert state(db, id) == "taken"
    assert value(connect(), "SELECT state FROM pgqueue.ack(%s, %s)", id, found[5]) == "done"


def test_a_task_that_was_taken_by_id_comes_back_ready(db: psycopg.Connection) -> None:
    id = put(db, "q", delay="1 h")
    db.execute(TAKE_ID, [id])
    db.execute("SELECT pgqueue.release(%s)", [id])
    assert state(db, id) == "ready"


def test_take_id_has_the_deadline_of_a_take(db: psycopg.Connection) -> None:
    id = put(db, "q", ttr="1 h")
    seconds = "SELECT extract(epoch FROM deadline - clock_timestamp()) FROM pgqueue.take_id(%s)"
    assert 3590 < value(db, seconds, id) <= 3600


def test_take_id_of_what_another_has(db: psycopg.Connection, connect: Connect) -> None:
    id = put(db, "q")
    db.execute("SELECT pgqueue.open_session(label => 'host:1:worker')")
    take(db, "q")
    before = everything(db, id)
    assert row(connect(), TAKE_ID, id) == ("taken", "taken by another", "host:1:worker")
    assert everything(db, id) == before


def test_take_id_of_what_is_not_there(db: psycopg.Connection) -> None:
    db.execute("SELECT pgqueue.create_queue('q', keep_done => '1 h')")
    assert row(db, TAKE_ID, 12345) == (None, "not found", None)
    done = put(db, "q")
    db.execute("SELECT pgqueue.ack(%s, %s)", take(db, "q"))
    assert row(db, TAKE_ID, done) == ("done", "not found", None)
    expired = put(db, "q", ttl="0.01 s")
    eventually(lambda: value(db, "SELECT expires_at < clock_timestamp() FROM pgqueue.tasks WHERE id = %s", expired))
    assert row(db, TAKE_ID, expired) == (None, "not found", None)
    assert rows(db, "SELECT FROM pgqueue.take") == []


def test_take_id_after_the_deadline_of_another(db: psycopg.Connection, connect: Connect) -> None:
    id = put(db, "q", ttr="0.05 s")
    take(connect(), "q")
    eventually(lambda: row(db, TAKE_ID, id) == ("taken", None, None))
    assert value(db, "SELECT attempts FROM pgqueue.tasks") == 1


def test_take_id_while_somebody_is_at_it_does_not_wait(db: psycopg.Connection, connect: Connect) -> None:
    id = put(db, "q")
    other = connect(autocommit=False)
    other.execute("SELECT pgqueue.pop('q')")
    assert row(db, TAKE_ID, id) == ("ready", "busy", None)
    other.rollback()
    assert row(db, TAKE_ID, id) == ("taken", None, None)


def test_take_id_looks_for_takes_once_it_has_the_row(db: psycopg.Connection, connect: Connect) -> None:
    """At REPEATABLE READ its look is old: then the primary key of `take` has the last word."""
    id = put(db, "q")
    late = connect(autocommit=False)
    late.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    late.execute("SELECT FROM pgqueue.task")
    take(db, "q")
    with pytest.raises(psycopg.errors.SerializationFailure):
        late.execute(TAKE_ID, [id])
    late.rollback()
    assert value(db, "SELECT count(*) FROM pgqueue.take") == 1


def test_take_id_leaves_a_busy_lane_alone(db: psycopg.Connection, connect: Connect) -> None:
    first, second, other = put(db, "q", lane="a"), put(db, "q", lane="a"), put(db, "q", lane="b")
    assert row(db, TAKE_ID, second) == ("taken", None, None)  # out of its turn, as was asked for
    found = row(connect(), TAKE_ID, first)
    assert found is not None
    assert found[1] == "busy"
    assert column(db, "SELECT id FROM pgqueue.take_many('{q}', 9)") == [other]
    db.execute("SELECT pgqueue.ack(%s)", [second])
    assert column(db, "SELECT id FROM pgqueue.take_many('{q}', 9)") == [first]


def test_take_id_waits_for_nobody_who_takes_in_the_lane(db: psycopg.Connection, connect: Connect) -> None:
    put(db, "q", lane="a")
    second = put(db, "q", lane="a")
    other = connect(autocommit=False)
    assert column(other, "SELECT id FROM pgqueue.take('q')") != []
    with db.transaction():
        db.execute("SET LOCAL lock_timeout = '1ms'")
        found = row(db, TAKE_ID, second)
    assert found is not None
    assert found[1] == "busy"


@pytest.mark.parametrize("of", ["the task", "its lane"])
def test_take_id_waits_for_nobody_who_is_giving_back(db: psycopg.Connection, connect: Connect, of: str) -> None:
    """Its insert would wait for the end of a take that is being deleted: so it looks first."""
    lane = "a" if of == "its lane" else None
    first, second = put(db, "q", lane=lane), put(db, "q", lane=lane)
    _, token = take(db, "q")
    other = connect(autocommit=False)
    other.execute("SELECT FROM pgqueue.release_many(%s, %s)", [[first], [token]])
    with db.transaction():
        db.execute("SET LOCAL lock_timeout = '1ms'")
        found = row(db, TAKE_ID, first if of == "the task" else second)
    assert found is not None
    assert found[1] == ("taken by another" if of == "the task" else "busy")
    other.commit()
    assert row(db, TAKE_ID, first) == ("taken", None, None)


# --- delete


@pytest.mark.parametrize("now", ["ready", "delayed", "buried", "done"])
def test_delete_strict_takes_what_nobody_has(db: psycopg.Connection, now: str) -> None:
    db.execute("SELECT pgqueue.create_queue('q', keep_done => '1 h')")
    id = buried(db) if now == "buried" else put(db, "q", delay="1 h" if now == "delayed" else "0")
    if now == "done":
        db.execute("SELECT pgqueue.ack(%s, %s)", take(db, "q"))
    assert state(db, id) == now
    assert row(db, DELETE, id, None) == (None,)
    assert state(db, id) is None
    assert row(db, DELETE, id, None) == ("not found",)


@pytest.mark.parametrize("by", ["token", "session"])
def test_delete_strict_takes_ones_own(db: psycopg.Connection, connect: Connect, by: str) -> None:
    put(db, "q")
    id, token = take(db, "q")
    conn, named = (connect(), token) if by == "token" else (db, None)
    assert row(conn, DELETE, id, named) == (None,)
    assert rows(db, "SELECT FROM pgqueue.task") == rows(db, "SELECT FROM pgqueue.take") == []


def test_delete_strict_leaves_what_another_has(db: psycopg.Connection, connect: Connect) -> None:
    id = put(db, "q")
    db.execute("SELECT pgqueue.open_session(label => 'host:1:worker')")
    take(db, "q")
    before = everything(db, id)
    for token in (None, 1):
        answer = row(connect(), "SELECT * FROM pgqueue.delete_strict(%s, %s)", id, token)
        assert answer == ("taken", "taken by another", "host:1:worker")
    assert everything(db, id) == before


def test_delete_strict_sees_a_claim_that_it_waited_for(db: psycopg.Connection, connect: Connect) -> None:
    id = put(db, "q")
    claimer, deleter = connect(autocommit=False), connect()
    take(claimer, "q")
    with ThreadPoolExecutor() as threads:
        answer = threads.submit(row, deleter, DELETE, id, None)
        eventually(lambda: is_blocked(db, deleter))
        claimer.commit()
        assert answer.result(30) == ("taken by another",)
    assert state(db, id) == "taken"


def test_delete_strict_needs_read_committed(db: psycopg.Connection) -> None:
    id = put(db, "q")
    db.execute("SET default_transaction_isolation = 'repeatable read'")
    with pytest.raises(psycopg.Error) as caught:
        db.execute(DELETE, [id, None])
    assert caught.value.sqlstate == "PQ002"
    assert state(db, id) == "ready"


# --- kick


def test_kick_moves_delayed_only_when_nothing_is_buried(db: psycopg.Connection) -> None:
    later, sooner = put(db, "q", delay="2 h"), put(db, "q", delay="1 h")
    first, second = buried(db), buried(db)
    kick = "SELECT pgqueue.kick('q', %s, delayed => true)"
    assert value(db, kick, 1) == 1
    assert [state(db, id) for id in (first, second, sooner, later)] == ["ready", "buried", "delayed", "delayed"]
    assert value(db, kick, 100) == 1
    assert [state(db, id) for id in (second, sooner, later)] == ["ready", "delayed", "delayed"]
    assert value(db, kick, 1) == 1
    assert [state(db, id) for id in (sooner, later)] == ["ready", "delayed"]
    assert value(db, "SELECT pgqueue.kick('q', 9)") == 0
    assert value(db, kick, 100) == 1
    assert column(db, "SELECT kicks FROM pgqueue.tasks") == [1] * 4


def test_a_buried_task_that_is_locked_is_still_buried(db: psycopg.Connection, connect: Connect) -> None:
    id, waiting = buried(db), put(db, "q", delay="1 h")
    other = connect(autocommit=False)
    other.execute("SELECT FROM pgqueue.task WHERE id = %s FOR UPDATE", [id])
    assert value(db, "SELECT pgqueue.kick('q', 9, delayed => true)") == 0
    assert state(db, waiting) == "delayed"


@pytest.mark.parametrize("n", [0, -1, None])
def test_a_kick_of_less_than_one(db: psycopg.Connection, n: int | None) -> None:
    with pytest.raises(psycopg.Error) as caught:
        db.execute("SELECT pgqueue.kick('q', %s)", [n])
    assert caught.value.sqlstate == "PQ002"


def test_kick_task_names_one(db: psycopg.Connection) -> None:
    one, other, waiting = buried(db), buried(db), put(db, "q", delay="1 h")
    for id in (other, waiting):
        assert row(db, "SELECT * FROM pgqueue.kick_task(%s)", id) == ("ready", None)
        assert row(db, "SELECT * FROM pgqueue.kick_task(%s)", id) == ("ready", "not buried")
    assert row(db, "SELECT * FROM pgqueue.kick_task(12345)") == (None, "not found")
    assert rows(db, "SELECT id, kicks FROM pgqueue.tasks ORDER BY id") == [(one, 0), (other, 1), (waiting, 1)]


@pytest.mark.parametrize("kick", ["kick('q')", "kick_task(2)"])
def test_a_kicked_task_waits_for_its_lane(db: psycopg.Connection, kick: str) -> None:
    first = put(db, "q", lane="a")
    second = buried(db, lane="a")
    take(db, "q")
    db.execute(f"SELECT pgqueue.{kick}")
    assert state(db, second) == "blocked"
    assert value(db, "SELECT state FROM pgqueue.task WHERE id = %s", second) == "L"  # and in no claim's way
    assert rows(db, "SELECT id FROM pgqueue.take('q')") == []
    db.execute("SELECT pgqueue.ack(%s)", [first])
    assert column(db, "SELECT id FROM pgqueue.take('q')") == [second]


@pytest.mark.slow
def test_a_burial_outlives_the_time_to_run_and_ends_with_the_time_to_live(db: psycopg.Connection) -> None:
    put(db, "q", ttr="2 s", ttl="1 h")
    id, token = take(db, "q")
    deadline = value(db, "SELECT deadline FROM pgqueue.tasks")
    db.execute("SELECT pgqueue.bury(%s, %s)", [id, token])
    eventually(lambda: value(db, "SELECT clock_timestamp() > %s", deadline))
    db.execute("SELECT pgqueue.promote_all()")
    assert row(db, "SELECT state, attempts FROM pgqueue.tasks WHERE id = %s", id) == ("buried", 0)
    db.execute("UPDATE pgqueue.task SET expires_at = clock_timestamp()")
    db.execute("SELECT pgqueue.promote_all()")
    assert state(db, id) is None


# --- requeue, first_task, urgent_priority


def test_requeue_goes_behind_all_others(db: psycopg.Connection) -> None:
    first, second = put(db, "q", key="k", ttr="1 h"), put(db, "q")
    last = put(db, "q", priority=1)
    id, token = take(db, "q")
    assert id == first
    db.execute("SELECT pgqueue.release(%s, %s, error => 'why')", [id, token])
    id, token = take(db, "q")
    new, *rest = rows(db, "SELECT * FROM pgqueue.requeue(%s, %s)", id, token)[0]
    assert rest == ["ready", None, None]
    assert new > last
    kept = "SELECT key, attempts, error, ttr IS NOT NULL, releases FROM pgqueue.tasks WHERE id = %s"
    assert row(db, kept, new) == ("k", 1, "why", True, 2)
    assert column(db, "SELECT id FROM pgqueue.take_many('{q}', 9)") == [second, new, last]


def test_requeue_is_for_its_holder(db: psycopg.Connection, connect: Connect) -> None:
    id = put(db, "q")
    answer = "SELECT new_id, state, problem FROM pgqueue.requeue(%s, %s)"
    assert row(db, answer, id, None) == (None, "ready", "not taken")
    take(db, "q")
    before = everything(db, id)
    assert row(connect(), answer, id, 1) == (None, "taken", "taken by another")
    assert everything(db, id) == before
    assert row(db, answer, 12345, None) == (None, None, "not found")


def test_requeue_lets_the_next_of_its_lane_go_first(db: psycopg.Connection) -> None:
    first, second = put(db, "q", lane="a"), put(db, "q", lane="a")
    take(db, "q")
    new = value(db, "SELECT new_id FROM pgqueue.requeue(%s)", first)
    assert rows(db, "SELECT id, state FROM pgqueue.task ORDER BY id") == [(second, "R"), (new, "L")]
    assert column(db, "SELECT id FROM pgqueue.take_many('{q}', 9)") == [second]
    db.execute("SELECT pgqueue.ack(%s)", [second])
    assert column(db, "SELECT id FROM pgqueue.take_many('{q}', 9)") == [new]


def test_the_first_of_each_state(db: psycopg.Connection) -> None:
    first = "SELECT pgqueue.first_task('q', %s)"
    assert [value(db, first, name) for name in ("ready", "delayed", "buried")] == [None] * 3
    put(db, "q", priority=5), put(db, "q", delay="2 h"), buried(db, priority=5)
    ready, delayed, low = put(db, "q"), put(db, "q", delay="1 h"), buried(db)
    put(db, "q", ttl="0.01 s", priority=-9)  # has expired by the time of the last look
    assert eventually(lambda: value(db, first, "ready") == ready)
    assert [value(db, first, name) for name in ("delayed", "buried")] == [delayed, low]
    db.execute("SELECT pgqueue.take_id(%s)", [ready])
    assert value(db, first, "ready") != ready


def test_an_urgent_priority_comes_before_all(db: psycopg.Connection) -> None:
    urgent = "SELECT pgqueue.urgent_priority('q')"
    assert value(db, urgent) == -1
    put(db, "q", priority=5)
    assert value(db, urgent) == -1
    put(db, "q", priority=-7)
    assert value(db, urgent) == -8
    put(db, "q", priority=-2147483648)
    assert value(db, urgent) == -2147483648


def test_the_first_deadline_of_a_session(db: psycopg.Connection, connect: Connect) -> None:
    for ttr in ("2 h", "1 h", None):
        put(db, "q", ttr=ttr)
    deadline = "SELECT pgqueue.session_deadline(pgqueue.own_session())"
    session = value(db, "SELECT pgqueue.open_session(label => 'x')")
    assert value(db, deadline) is None
    column(db, "SELECT id FROM pgqueue.take_many('{q}', 9)")
    assert 3590 < value(db, deadline) <= 3600
    assert value(connect(), "SELECT pgqueue.session_deadline(%s)", session + 1) is None


KICKS = {
    "kick": "SELECT pgqueue.kick('q', 10)",
    "kick_task": "SELECT FROM pgqueue.kick_task((SELECT id FROM pgqueue.tasks))",
}


@pytest.mark.parametrize("kick", KICKS)
def test_a_kicked_task_has_all_its_attempts_again(db: psycopg.Connection, kick: str) -> None:
    db.execute("SELECT pgqueue.create_queue('q', max_takes => 2), pgqueue.put('q', '1')")

    def fail(times: int) -> None:
        for _ in range(times):
            db.execute("SELECT pgqueue.release(id, token, error => 'it failed') FROM pgqueue.take('q')")

    fail(2)
    assert rows(db, "SELECT state, attempts FROM pgqueue.tasks") == [("buried", 2)]
    db.execute(KICKS[kick])
    assert rows(db, "SELECT state, attempts, error FROM pgqueue.tasks") == [("ready", 0, "it failed")]
    fail(1)
    assert rows(db, "SELECT state, attempts FROM pgqueue.tasks") == [("ready", 1)]
    fail(1)
    assert rows(db, "SELECT state, attempts FROM pgqueue.tasks") == [("buried", 2)]
    assert rows(db, "SELECT number FROM pgqueue.attempts ORDER BY 1") == [(1,), (2,), (3,), (4,)]


def test_a_kick_ends_a_delay_and_leaves_the_attempts(db: psycopg.Connection) -> None:
    db.execute("SELECT pgqueue.put('q', '1')")
    db.execute("SELECT pgqueue.release(id, token, delay => '1 h', error => 'it failed') FROM pgqueue.take('q')")
    db.execute("SELECT pgqueue.kick('q', 1, delayed => true)")
    assert rows(db, "SELECT state, attempts FROM pgqueue.tasks") == [("ready", 1)]
